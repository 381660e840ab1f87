"""Hugging Face's Trainer builds its loaders itself, and has accelerate rebuild them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import Trainer, TrainingArguments

from frameworks.toys import BATCH, Line, NoisyPoints, enabled, seeded

WORKERS = [
    pytest.param({"dataloader_num_workers": 0}, id="inline"),
    pytest.param({"dataloader_num_workers": 2}, id="workers"),
    pytest.param({"dataloader_num_workers": 2, "dataloader_persistent_workers": True}, id="persistent"),
]
STEPS = 10  # of seven batches an epoch: one epoch to its end, and a second one cut short
ITERATORS = 2 + 2  # two epochs of training, two evaluations


def trainer(folder: Path, **options: Any) -> Trainer:
    usual = {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 7,
    }
    arguments = TrainingArguments(**usual | options)
    return Trainer(Line(), arguments, train_dataset=NoisyPoints(), eval_dataset=NoisyPoints())


def losses(trained: Trainer) -> list[float]:
    return [entry[name] for entry in trained.state.log_history for name in ("loss", "eval_loss") if name in entry]


def train(folder: Path, **options: Any) -> tuple[list[Tensor], list[float]]:
    training = trainer(folder, **options)
    training.train()
    return training.model.seen, losses(training)


@pytest.mark.parametrize("options", WORKERS)
def test_a_run_is_the_same_as_with_torchs_engine(tmp_path: Path, options: dict[str, Any]) -> None:
    expected = seeded(train, tmp_path, **options)
    with enabled():
        assert seeded(train, tmp_path, **options) == expected


@pytest.mark.parametrize("options", WORKERS)
def test_a_run_is_on_penstocks_engine_while_enabled(tmp_path: Path, options: dict[str, Any]) -> None:
    with enabled():
        run = seeded(train, tmp_path, **options)
    assert run.served == ITERATORS


def test_a_run_is_on_torchs_engine_again_after_that(tmp_path: Path) -> None:
    with enabled():
        pass
    assert seeded(train, tmp_path, dataloader_num_workers=2).served == 0


def test_a_run_resumed_in_the_middle_of_an_epoch_goes_on_as_with_torchs_engine(tmp_path: Path) -> None:
    saving = trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    saving.train()

    def resume() -> tuple[list[Tensor], list[float]]:
        resuming = trainer(tmp_path, dataloader_num_workers=2)
        resuming.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        return resuming.model.seen, losses(resuming)

    expected = seeded(resume)
    with enabled():
        run = seeded(resume)
    assert run.served == ITERATORS
    assert run == expected
