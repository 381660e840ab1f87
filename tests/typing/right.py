"""Right uses, as a type checker sees them. Not a test by itself: see test_types.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

import penstock
import penstock.jax
import penstock.torch
from penstock import DataLoader
from penstock.backends import Backend, Change, Doing, Filled, Gauges, Outcome, Task


class Pictures(penstock.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"key": key}


class Numbers(penstock.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class TorchStream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Unsized:
    def __getitem__(self, key: str) -> int:
        return len(key)


def total(samples: list[int]) -> int:
    return sum(samples)


class Own(penstock.torch.DataLoader[Any]):
    def __init__(self, *args: Any, size: int = 3, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Nowhere(Backend):
    """Has only the methods that a backend must have: the others are inherited."""

    gauges = Gauges(None)

    @property
    def workers(self) -> list[Any]:
        return []

    def hire(self, worker: int, seat: int) -> None: ...
    def retire(self, seat: int = -1) -> None: ...
    def retain(self) -> int:
        return 0

    def post(self, task: Task, slab: int, seat: int) -> None: ...
    def encode(self, change: Change) -> bytes:
        return b""

    def update(self, change: bytes) -> None: ...
    def rescind(self, seq: int) -> bool:
        return False

    def poll(self, timeout: float | None) -> list[Outcome]:
        return []

    def open(self, outcome: Filled) -> object:
        return outcome.held

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def doing(self, seq: int | None) -> list[Doing]:
        return []

    def wake(self) -> None: ...
    def close(self) -> None: ...


for batch in DataLoader(np.arange(6), batch_size=4):
    assert_type(batch, Any)
for summed in DataLoader([1, 2], 2, collate_fn=total):
    assert_type(summed, int)
for one in DataLoader([1, 2], 2, collate_fn=total).batches():
    assert_type(one.data, int)
with DataLoader(Pictures(), 2, "blocks", num_workers="auto", prefetch_factor="auto", backend="thread") as loader:
    rows: NDArray[np.int64] = next(iter(loader))["key"]
DataLoader(Numbers(), None, shard="auto", seed=1, last_batch="keep", on_error="skip", dtype="float32")
DataLoader(Unsized(), sampler=["a"], shard=(0, 2), seed=1, last_batch="drop", casting="unsafe")
DataLoader(torch.arange(3), multiprocessing_context="spawn", num_workers=1, backend="process", shuffle=None)

for tensors in penstock.torch.DataLoader(torch.utils.data.TensorDataset(torch.arange(3)), 2, True):
    assert_type(tensors, Any)
for number in penstock.torch.DataLoader([1, 2], batch_size=2, collate_fn=total, num_workers=1, in_order=False):
    assert_type(number, int)
with penstock.torch.DataLoader(TorchStream(), seed=1, num_workers="auto", max_workers=2) as seeded:
    theirs: torch.utils.data.DataLoader[Any] = seeded
for put in penstock.jax.DataLoader([1, 2], 2, True, num_workers="auto", ahead=1, collate_fn=total).batches():
    assert_type(put.data, Any)
    item: penstock.jax.Batch[Any] = put
typed: penstock.jax.DataLoader[dict[str, int]] = penstock.jax.DataLoader([1], sharding=None, dtype="bfloat16")
for fields in typed:
    assert_type(fields, dict[str, int])
with penstock.jax.DataLoader(Numbers(), 2) as on_device:
    plain: DataLoader[Any] = on_device
penstock.torch.DataLoader(range(3), sampler=torch.utils.data.SequentialSampler(range(3)), generator=torch.Generator())
Own(range(3), size=4, batch_size=2)
Nowhere().flush()
