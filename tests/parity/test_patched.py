"""Libraries that patch torch's iterators, as SpeechBrain does, to skip the steps before a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from parity.pair import Ours, Theirs
from penstock.torch import _private as private
from penstock.torch import enable


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base class of torch's iterators skips steps of the sampler, and counts them as handed out."""
    begin, reset = private.BaseIterator.__init__, private.BaseIterator._reset

    def skipping(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, loader, *args, **kwargs)
        for number in range(loader.skip):
            next(self._sampler_iter)
            self._num_yielded = number + 1
        loader.skip = 0

    def keeping(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            reset(self, loader, first_iter)

    monkeypatch.setattr(private.BaseIterator, "__init__", skipping)
    monkeypatch.setattr(private.BaseIterator, "_reset", keeping)


class Reproducible(RandomSampler):
    """A sampler that is no longer torch's own class."""

    def __iter__(self) -> Any:
        self.generator = torch.Generator().manual_seed(5)
        return super().__iter__()


class Recovering:
    """A loader whose checkpoint is the number of batches that its iterator has counted."""

    skip = 0
    last: Any = None

    def __iter__(self) -> Any:
        self.last = super().__iter__()  # type: ignore[misc]
        return self.last

    def checkpoint(self) -> int:
        return int(self.last._num_yielded)


class RecoveringTorch(Recovering, Theirs):  # type: ignore[type-arg]
    pass


class RecoveringOurs(Recovering, Ours):  # type: ignore[type-arg]
    pass


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [RecoveringTorch, RecoveringOurs])
def test_the_second_checkpoint_of_a_recovered_epoch_counts_from_its_beginning(kind: Any, workers: int) -> None:
    def make() -> Any:
        return kind(range(20), 2, sampler=Reproducible(range(20)), num_workers=workers)

    expected = [batch.tolist() for batch in make()]
    found, checkpoint = [], 0
    with enable():
        for taken in (3, 2, 4):
            loader = make()
            loader.skip = checkpoint
            batches = iter(loader)
            found += [next(batches).tolist() for _ in range(taken)]
            checkpoint = loader.checkpoint()
            assert checkpoint == len(found)
    assert found == expected[:9]
