"""A dataset or sampler whose state cannot be taken is iterated as by torch; only who asks for a state is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from parity.test_state import SHAPES
from penstock.errors import StateError
from penstock.torch import DataLoader


class Keys(Dataset[int]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: int) -> int:
        return key


class Raising:
    def state_dict(self) -> Any:
        raise NotImplementedError("later")

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError("later")


class RaisingKeys(Raising, Keys):
    pass


class PrefixedKeys(Keys):
    def state_dict(self, prefix: str) -> Any:
        return {prefix: 1}

    def load_state_dict(self, state: Any, prefix: str) -> None:
        pass


class LockedKeys(RaisingKeys):
    def state_dict(self) -> Any:
        return {"lock": threading.Lock()}


class RemoteKeys(Keys):
    """Seems to have every method."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            raise ConnectionError(f"no remote method {name}")

        return call


class RaisingStream(Raising, IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class RaisingSampler(Raising, Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(16))

    def __len__(self) -> int:
        return 16


class Unreadable:
    def __reduce__(self) -> Any:
        return _unreadable, ()


def _unreadable() -> Any:
    raise OSError("not here")


class UnreadableStream(RaisingStream):
    def state_dict(self) -> Any:
        return {"it": Unreadable()}


def two_epochs(loader: Any) -> list[Any]:
    return [[torch.as_tensor(batch).tolist() for batch in loader] for _ in range(2)]


PROGRAMS: dict[str, Any] = {
    "raises": (lambda: {"dataset": RaisingKeys()}, "RaisingKeys .*NotImplementedError: later"),
    "argument": (lambda: {"dataset": PrefixedKeys()}, "PrefixedKeys .*TypeError: .*'prefix'"),
    "remote": (
        lambda: {"dataset": RemoteKeys()},
        "RemoteKeys .*ConnectionError: no remote method state_dict",
    ),
    "stream": (lambda: {"dataset": RaisingStream()}, "RaisingStream .*NotImplementedError: later"),
    "sampler": (
        lambda: {"dataset": Keys(), "sampler": RaisingSampler()},
        "RaisingSampler .*NotImplementedError: later",
    ),
    "unbatched": (
        lambda: {"dataset": Keys(), "sampler": RaisingSampler(), "batch_size": None},
        "RaisingSampler .*NotImplementedError: later",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_state_that_cannot_be_taken_is_an_error_for_who_asks_for_it(program: str, shape: str) -> None:
    make, why = PROGRAMS[program]
    settings = {"batch_size": 4, **SHAPES[shape]}
    theirs = torch.utils.data.DataLoader(**{**settings, **make()})
    ours: DataLoader[Any] = DataLoader(**{**settings, **make()})
    assert two_epochs(ours) == two_epochs(theirs)
    batches = iter(ours)
    for _ in range(2):  # one of each worker
        next(batches)
    with pytest.raises(StateError, match=why):
        ours.state_dict()


def test_a_state_that_cannot_be_sent_is_an_error_for_who_asks_for_it() -> None:
    loader = DataLoader(LockedKeys(), 4, num_workers=1, persistent_workers=True)
    assert [len(epoch) for epoch in two_epochs(loader)] == [4, 4]
    with pytest.raises(StateError, match=r"LockedKeys .*lock"):
        loader.state_dict()


def test_a_state_that_cannot_be_read_is_an_error_for_who_asks_for_it() -> None:
    loader = DataLoader(UnreadableStream(), 4, num_workers=1, persistent_workers=True)
    assert [len(epoch) for epoch in two_epochs(loader)] == [2, 2]
    with pytest.raises(StateError, match="OSError: not here"):
        loader.state_dict()
