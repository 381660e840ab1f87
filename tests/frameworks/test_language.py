"""Loaders whose batches penstock plans (mixtures, rows, budgets, balance) in Lightning, accelerate and the Trainer.

torchrun runs this file as its script for the tests with two ranks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
import transformers
from accelerate import Accelerator
from parity.torchrun import torchrun
from torch import Tensor

import penstock
import penstock.torch

RANKS, EPOCHS = 2, 2
LENGTHS = np.random.default_rng(0).integers(1, 30, 64)
TEXTS = [{"tokens": np.full(length, number + 1)} for number, length in enumerate(LENGTHS.tolist())]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:DataLoader uses torch's engine"),
]


def documents(first: int, end: int) -> Any:
    return penstock.dataset(TEXTS[first:end]).with_lengths(LENGTHS[first:end])


def mixture() -> Any:
    return penstock.mix({"a": documents(0, 40), "b": documents(40, 64)}, {"a": 3, "b": 1}, stop=48)


def padded(data: Any, **options: Any) -> Any:
    options.setdefault("collate_fn", penstock.pad())
    return penstock.torch.DataLoader(data, seed=3, **options)


def packed(data: Any, **options: Any) -> Any:
    return penstock.torch.DataLoader(penstock.pack(data, length=64), batch_size=2, seed=3, **options)


BUCKETS = [8, 16, 32]
KINDS: dict[str, Callable[..., Any]] = {
    "budget": lambda **more: padded(TEXTS, batch_tokens=120, lengths=LENGTHS, shuffle=True, **more),
    "buckets": lambda **more: padded(
        TEXTS,
        batch_tokens=128,
        lengths=LENGTHS,
        buckets=BUCKETS,
        shuffle=True,
        collate_fn=penstock.pad(buckets=BUCKETS),
        **more,
    ),
    "mixture": lambda **more: padded(mixture(), batch_size=4, **more),
    "mixture in a budget": lambda **more: padded(mixture(), batch_tokens=120, **more),
    "rows": lambda **more: packed(documents(0, 64), shuffle=True, **more),
    "rows of a mixture": lambda **more: packed(mixture(), **more),
    "balance": lambda **more: padded(
        TEXTS, batch_size=4, lengths=LENGTHS, balance="tokens", accumulate=2, shuffle=True, **more
    ),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
EACH_WORKERS = pytest.mark.parametrize("workers", [0, 2])

Seen = list[list[list[int]]]  # the tokens of each batch


class Line(torch.nn.Module):
    """A model that keeps the tokens of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: Seen = []

    def forward(self, tokens: Tensor, **others: Tensor) -> dict[str, Tensor]:
        self.seen.append(tokens.tolist())
        return {"loss": self.linear(tokens.float().mean().reshape(1, 1)).mean()}


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = Line()

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return self.line(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def by_lightning(loader: Any, **options: Any) -> Seen:
    module = Module()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, enable_model_summary=False, **quiet, **{"devices": 1, **options}
    )
    trainer.fit(module, loader)
    return module.line.seen


def by_accelerate(loader: Any, prepares: bool = True) -> Seen:
    accelerator = Accelerator(cpu=True)
    line = Line()
    model, optimizer = accelerator.prepare(line, torch.optim.SGD(line.parameters(), lr=0.01))
    batches = accelerator.prepare(loader) if prepares else loader
    for _ in range(EPOCHS):
        assert len(batches) > 0
        for batch in batches:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    return line.seen


def by_trainer(loader: Any, folder: Path) -> Seen:
    class Fed(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return loader

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    line = Line()
    Fed(line, arguments, train_dataset=TEXTS).train()
    return line.seen


def plain(kind: str, **more: Any) -> Seen:
    loader = KINDS[kind](**more)
    found = []
    for _ in range(EPOCHS):
        expected = len(loader)
        found.append([batch["tokens"].tolist() for batch in loader])
        assert len(found[-1]) == expected
    return [batch for epoch in found for batch in epoch]


@EACH_KIND
@EACH_WORKERS
def test_lightning_sees_an_ordinary_loader(kind: str, workers: int) -> None:
    assert by_lightning(KINDS[kind](num_workers=workers)) == plain(kind)


@EACH_KIND
@EACH_WORKERS
@pytest.mark.parametrize("enabled", [False, True])
def test_accelerate_sees_an_ordinary_loader(kind: str, workers: int, enabled: bool) -> None:
    if not enabled:
        assert by_accelerate(KINDS[kind](num_workers=workers)) == plain(kind)
        return
    with penstock.torch.enable():
        assert by_accelerate(KINDS[kind](num_workers=workers)) == plain(kind)


@EACH_KIND
@EACH_WORKERS
def test_the_trainer_sees_an_ordinary_loader(kind: str, workers: int, tmp_path: Path) -> None:
    assert by_trainer(KINDS[kind](num_workers=workers), tmp_path) == plain(kind)


def test_weights_change_while_lightning_reads() -> None:
    loader = KINDS["mixture"]()

    class Changing(lightning.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            if args[-1] == 5:
                loader.update(weights={"a": 0, "b": 1})

    seen = by_lightning(loader, callbacks=[Changing()])
    assert {max(row) > 40 for batch in seen[6:12] for row in batch} == {True}


# Two ranks, under torchrun.

SPLIT = {"shard": "auto"}
VARYING = ["rows", "rows of a mixture"]  # their number differs by epoch
DIVIDED = [kind for kind in KINDS if kind != "balance"]


def rank(folder: Path) -> None:
    """What torchrun starts: trains with each framework, and writes what came."""
    found: dict[str, dict[str, Any]] = {}
    ranks = {"devices": RANKS, "strategy": "ddp"}
    for kind, make in KINDS.items():
        each = found[kind] = {
            "lightning, split by penstock": by_lightning(make(**SPLIT), use_distributed_sampler=False, **ranks),
            "accelerate, split by penstock": by_accelerate(make(**SPLIT), prepares=False),
            "trainer, split by penstock": by_trainer(make(**SPLIT), folder / "trainer"),
        }
        if kind in DIVIDED:
            each["accelerate"] = by_accelerate(make())
            with penstock.torch.enable():
                each["accelerate, enabled"] = by_accelerate(make())
        if kind in ("mixture", *VARYING):
            try:
                each["lightning"] = by_lightning(make(), **ranks)
            except ValueError as error:
                each["lightning"] = str(error)
        each["plain"] = plain(kind, **SPLIT)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def reports(torch_forge: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return torchrun(torch_forge, __file__, tmp_path_factory.mktemp("ranks"), RANKS)


@EACH_KIND
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "trainer"])
def test_two_ranks_get_the_parts_that_penstock_gives_them(reports: list[Any], framework: str, kind: str) -> None:
    for report in reports:
        assert report[kind][f"{framework}, split by penstock"] == report[kind]["plain"]
    assert reports[0][kind]["plain"] != reports[1][kind]["plain"]


@pytest.mark.parametrize("kind", DIVIDED)
@pytest.mark.parametrize("how", ["accelerate", "accelerate, enabled"])
def test_two_ranks_of_accelerate_divide_the_batches_of_one_loader(reports: list[Any], how: str, kind: str) -> None:
    whole = plain(kind)
    seen = [batch for report in reports for batch in report[kind][how]]
    texts = {tuple(row) for batch in seen for row in map(trimmed, batch)}
    assert texts == {tuple(row) for batch in whole for row in map(trimmed, batch)}
    assert len(seen) - len(whole) in range(2 * EPOCHS + 1)  # accelerate repeats some, so that ranks are even


def test_two_ranks_of_lightning_divide_the_samples_of_a_mixture(reports: list[Any]) -> None:
    found = [[tuple(trimmed(row)) for batch in report["mixture"]["lightning"] for row in batch] for report in reports]
    assert Counter(found[0] + found[1]) == Counter(tuple(trimmed(row)) for batch in plain("mixture") for row in batch)
    assert len(found[0]) == len(found[1])


@pytest.mark.parametrize("kind", VARYING)
def test_samples_whose_number_differs_by_epoch_are_not_divided_by_lightning(reports: list[Any], kind: str) -> None:
    for report in reports:
        assert "number differs by epoch" in report[kind]["lightning"]
        assert "use_distributed_sampler=False" in report[kind]["lightning"]


def trimmed(row: list[int]) -> list[int]:
    return [token for token in row if token]


def test_balance_and_a_library_that_divides_the_batches_are_an_error() -> None:
    from accelerate.data_loader import prepare_data_loader

    loader = prepare_data_loader(KINDS["balance"](), num_processes=2, process_index=0)
    with pytest.raises(ValueError, match=r"balance='tokens'.*divides.*shard=\"auto\""):
        next(iter(loader.base_dataloader))


if __name__ == "__main__":
    rank(Path(sys.argv[1]))
