"""Packed rows as tensors: batches equal those of penstock's own loader or, without a seed, of torch's."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from parity.compare import difference
from parity.pair import Ours, Theirs
from parity.test_gathered import counted
from penstock.formats import Megatron
from penstock.source._nested import gathers_numpy
from penstock.torch import _gather

LENGTHS = np.random.default_rng(0).integers(1, 40, 150)
STOPS = LENGTHS.cumsum()
IDS = np.arange(STOPS[-1]) % 60_000
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def arrays(dtype: str = "uint16") -> list[Any]:
    return np.split(IDS.astype(dtype), STOPS[:-1])


def listed(folder: Path) -> Any:
    return penstock.pack(arrays(), 64, LENGTHS)


def tables(folder: Path) -> Any:
    """Documents of equal length, of which some tokens count, with a field beside the tokens."""
    ids = IDS[:960].reshape(60, 16).astype(np.int32)
    data = penstock.ArrayDataset(tokens=ids, loss_mask=(ids % 3 > 0).astype(np.float32))
    return penstock.pack(data, 70, np.full(60, 16), eos=7)


def megatron(folder: Path) -> Any:
    return penstock.pack(Megatron(folder / "ids"), 64, overflow="truncate")


def mixed(folder: Path) -> Any:
    rows = penstock.ArrayDataset(IDS[:960].reshape(60, 16).astype(np.uint16)).with_lengths(np.full(60, 16))
    sources = {"a": Megatron(folder / "ids"), "b": rows}
    return penstock.pack(penstock.mix(sources, {"a": 2, "b": 1}), 64, window=50)


MAKERS = [listed, tables, megatron, mixed]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    IDS.astype(np.uint16).tofile(tmp_path / "ids.bin")
    n = len(LENGTHS)
    starts = 2 * (STOPS - LENGTHS)
    parts = [LENGTHS.astype(np.int32), starts.astype(np.int64), np.arange(n + 1, dtype=np.int64)]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1)
    (tmp_path / "ids.idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    return tmp_path


def converted(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in batch.items()}


@WORKERS
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dtype", [None, "int64", {"tokens": "float32"}])
def test_batches_are_those_of_penstocks_loader_as_tensors(
    make: Callable[[Path], Any], workers: int, dtype: Any, folder: Path
) -> None:
    """The order of the fields, dtypes, padding and the incomplete last batch are the same, over two epochs."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "dtype": dtype, "num_workers": workers}
    if make is mixed:
        options["shuffle"] = False  # a mixture has an order of its own
    with penstock.DataLoader(make(folder), **options) as theirs, Ours(make(folder), **options) as ours:
        for _ in range(2):
            expected = [converted(batch) for batch in islice(theirs, 30)]
            assert difference(list(islice(ours, 30)), expected) is None
            assert len(expected) > 3 and any((batch["documents"] == -1).any() for batch in expected)


@pytest.mark.parametrize("make", MAKERS)
def test_planned_rows_are_gathered(
    make: Callable[[Path], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch)
    batches = list(islice(Ours(make(folder), batch_size=4, seed=0), 4))
    assert found == [True] * 4
    monkeypatch.setattr(_gather, "is_of_numpy", lambda gather: False)
    assert difference(batches, list(islice(Ours(make(folder), batch_size=4, seed=0), 4))) is None
    assert found == [True] * 4 + [False] * 4


def test_a_smaller_torch_dtype_is_made_of_the_finished_tensors(folder: Path) -> None:
    (batch, *_) = Ours(tables(folder), batch_size=4, seed=0, dtype={"loss_mask": torch.bfloat16})
    (plain, *_) = Ours(tables(folder), batch_size=4, seed=0)
    assert torch.equal(batch["loss_mask"], plain["loss_mask"].bfloat16())
    assert batch["tokens"].dtype is torch.int32


@WORKERS
@pytest.mark.parametrize("make", [listed, tables, megatron])
def test_rows_by_number_are_those_of_torchs_loader(make: Callable[[Path], Any], workers: int, folder: Path) -> None:
    options = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    found = []
    for loader_class in (Ours, Theirs):
        torch.manual_seed(2)
        found.append(list(loader_class(make(folder), **options)))
    assert difference(*found) is None


def noisy(document: Any) -> Any:
    return document + torch.randint(0, 1000, document.shape).numpy()


def test_torch_draws_for_the_documents_as_its_own_loader_does() -> None:
    """Without a seed, such rows are not gathered: documents may be read twice then, and draw other numbers."""
    data = penstock.pack(penstock.dataset(arrays("int64")).map(noisy), 64, LENGTHS)
    found = []
    for loader_class in (Ours, Theirs):
        torch.manual_seed(2)
        found.append(list(loader_class(data, batch_size=4, num_workers=2)))
    assert difference(*found) is None


class Alternating(penstock.Dataset[Any]):
    """Documents that draw random numbers. Those of one in five keys have another dtype, so some rows differ."""

    def __init__(self) -> None:
        self.documents = arrays("int64")

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, key: int) -> Any:
        document = noisy(self.documents[key]) + penstock.rng().integers(0, 9)
        return document if key % 5 else document.astype(np.int32)


def test_documents_that_draw_get_the_numbers_of_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that could not be gathered is read again, and gets the same numbers with any number of workers."""
    found = counted(monkeypatch)
    data = penstock.pack(Alternating(), 64, LENGTHS)
    inline, one, two = (
        [batch["tokens"].tolist() for batch in Ours(data, batch_size=2, seed=5, num_workers=workers)]
        for workers in (0, 1, 2)
    )
    assert found.count(True) and found.count(False)
    assert one == inline
    assert two == inline


class Grid(penstock.Dataset[Any]):
    """Samples with keys of two numbers, which are not the keys of rows."""

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return np.array(key)

    @gathers_numpy
    def __gather__(self, keys: Any, empty: Any) -> Any:
        raise AssertionError("the samples were gathered")


def test_keys_that_are_tuples_are_left_to_a_dataset_without_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(monkeypatch)
    [batch] = Ours(Grid(), batch_sampler=[[(0, 1), (2, 2)]], seed=0)
    assert batch.tolist() == [[0, 1], [2, 2]]
    assert found == [False]


def test_code_of_the_user_in_documents_is_seeded_for() -> None:
    rows = penstock.ArrayDataset(np.arange(12).reshape(4, 3))
    lengths = np.full(4, 3)
    assert _gather.is_closed(penstock.pack(rows, 8, lengths))
    assert _gather.is_closed(penstock.pack(penstock.mix({"a": rows}, {"a": 1}), 8, lengths))
    assert not _gather.is_closed(penstock.pack(rows.map(noisy), 8, lengths))
    assert not _gather.is_closed(penstock.pack(penstock.mix({"a": rows.map(noisy)}, {"a": 1}), 8, lengths))
