"""accelerate's `prepare` makes a new torch loader from the one that it is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch import Tensor

import penstock.torch
from frameworks.toys import BATCH, WORKERS, Line, NoisyPoints, enabled, seeded
from penstock.torch import _status

EPOCHS = 2


def train(loader_class: Any, **options: Any) -> tuple[list[Tensor], list[float]]:
    accelerator = Accelerator(cpu=True)
    loader = loader_class(NoisyPoints(), batch_size=BATCH, shuffle=True, **options)
    line = Line()
    model, optimizer, prepared = accelerator.prepare(line, torch.optim.SGD(line.parameters(), lr=0.01), loader)
    losses = []
    for _ in range(EPOCHS):
        for batch in prepared:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return line.seen, losses


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("loader_class", [penstock.torch.DataLoader, torch.utils.data.DataLoader])
def test_a_prepared_loader_trains_as_with_torchs_engine(loader_class: Any, options: dict[str, Any]) -> None:
    expected = seeded(train, torch.utils.data.DataLoader, **options)
    with enabled():
        assert seeded(train, loader_class, **options) == expected


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.parametrize("loader_class", [penstock.torch.DataLoader, torch.utils.data.DataLoader])
def test_a_prepared_loader_runs_on_penstock_while_enabled(loader_class: Any, options: dict[str, Any]) -> None:
    with enabled():
        run = seeded(train, loader_class, **options)
    assert run.served == EPOCHS


@pytest.mark.filterwarnings("ignore:DataLoader uses torch's engine")
def test_prepare_without_enable_keeps_the_batches_of_our_loader() -> None:
    expected = seeded(train, torch.utils.data.DataLoader, num_workers=2)
    assert seeded(train, penstock.torch.DataLoader, num_workers=2) == expected


def test_prepare_without_enable_brings_torchs_engine_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason why `enable` exists. If this fails, accelerate keeps the class now: say so in the docs."""
    monkeypatch.setattr(_status, "_counts", {})
    with pytest.warns(UserWarning, match="accelerate makes a torch loader from it, so call"):
        assert seeded(train, penstock.torch.DataLoader, num_workers=2).served == 0


def test_batches_skipped_on_resuming_are_those_that_torch_skips() -> None:
    """`skip_first_batches` puts a batch sampler of its own into the loader, without a size or a sampler."""

    def resumed() -> tuple[list[Tensor], list[float]]:
        accelerator = Accelerator(cpu=True)
        loader = torch.utils.data.DataLoader(NoisyPoints(), batch_size=BATCH, shuffle=True, num_workers=2)
        rest = accelerator.skip_first_batches(accelerator.prepare(loader), num_batches=3)
        return [batch["x"].clone() for batch in rest], []

    expected = seeded(resumed)
    with enabled():
        run = seeded(resumed)
    assert run.served == 1
    assert run == expected


def test_prepare_keeps_our_arguments_with_and_without_enable() -> None:
    def keys(loader: Any) -> list[Any]:
        return [(batch["labels"].tolist(), batch["labels"].dtype) for _ in range(EPOCHS) for batch in loader]

    def loader() -> Any:
        dtype = {"labels": "float16"}
        return penstock.torch.DataLoader(NoisyPoints(), BATCH, shuffle=True, seed=5, dtype=dtype, casting="unsafe")

    expected = keys(loader())
    torch.manual_seed(1)
    assert keys(Accelerator(cpu=True).prepare(loader())) == expected
    with enabled():
        torch.manual_seed(2)
        assert keys(Accelerator(cpu=True).prepare(loader())) == expected


def test_a_shard_beside_accelerates_own_is_an_error() -> None:
    loader = penstock.torch.DataLoader(NoisyPoints(), BATCH, seed=5, shard=(0, 2))
    with pytest.raises(ValueError, match="Leave shard= out"):
        next(iter(Accelerator(cpu=True).prepare(loader)))


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_of_accelerate_has_its_part_of_the_seeded_order(rank: int) -> None:
    def batches(rank: int) -> list[Any]:
        loader = penstock.torch.DataLoader(NoisyPoints(), BATCH, shuffle=True, seed=5)
        part = prepare_data_loader(loader, num_processes=2, process_index=rank)
        return [batch["labels"].tolist() for batch in part.base_dataloader]

    torch.manual_seed(rank)
    found = batches(rank)
    assert found == batches(rank)
    assert found != batches(1 - rank)
