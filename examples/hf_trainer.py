"""Hugging Face's Trainer with penstock: one call at the top of a script, or a dataset and a loader of penstock's.

    python examples/hf_trainer.py

It needs `pip install "penstock[torch,huggingface]" transformers accelerate`, and takes about half a minute. A tiny
GPT-2 learns sums ("12+30=42") from a dataset on disk, three times: with the Trainer as it is; after
`penstock.torch.enable()`, which gives the same losses; and with a loader of penstock's, which reads rows directly
from the Arrow files, and whose order depends only on its seed.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

import penstock.torch
from penstock.formats import HuggingFace

datasets.disable_progress_bars()
logging.set_verbosity_error()

LETTERS = "0123456789+= "
LENGTH, ROWS, BATCH, STEPS, WORKERS = 10, 4_000, 32, 60, 2


def write_dataset(folder: str) -> None:
    """Writes sums as rows of tokens, as `datasets.map` would with a tokenizer."""
    rng = np.random.default_rng(0)
    lines = [f"{a}+{b}={a + b}".ljust(LENGTH) for a, b in rng.integers(0, 100, (ROWS, 2)).tolist()]
    ids = [[LETTERS.index(letter) for letter in line] for line in lines]
    features = datasets.Features({name: datasets.List(datasets.Value("int64")) for name in ("input_ids", "labels")})
    datasets.Dataset.from_dict({"input_ids": ids, "labels": ids}, features=features).save_to_disk(folder)


class PenstockTrainer(Trainer):
    """A Trainer whose training loader is one of penstock's. Its dataset may be any dataset of penstock's, too."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = penstock.torch.DataLoader(
            self.train_dataset, batch_size=BATCH, shuffle=True, seed=7, num_workers=WORKERS
        )
        return loader


def train(title: str, trainer_class: type[Trainer], dataset: Any) -> list[float]:
    set_seed(0)
    config = GPT2Config(
        vocab_size=len(LETTERS), n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            dataloader_num_workers=WORKERS,
            learning_rate=5e-3,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = trainer_class(GPT2LMHeadModel(config), arguments, train_dataset=dataset)
        begun = time.perf_counter()
        served = penstock.torch.served()
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    loaders = penstock.torch.served() - served
    print(
        f"{title:36} {time.perf_counter() - begun:5.1f} s   loss {losses[0]:.4f} -> {losses[-1]:.4f}"
        f"   epochs on penstock: {loaders}"
    )
    return losses


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(folder)
        dataset = datasets.load_from_disk(folder)
        before = train("the Trainer as it is", Trainer, dataset)
        with penstock.torch.enable():  # in a program of yours: penstock.torch.enable(), once
            after = train("after penstock.torch.enable()", Trainer, dataset)
            train("HuggingFace(dataset), and a seed", PenstockTrainer, HuggingFace(dataset))
    print(f"After enable(), every loss is the same as before: {before == after}")


if __name__ == "__main__":
    main()
