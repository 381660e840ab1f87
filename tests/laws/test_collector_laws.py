"""The law of the garbage collector: no array that can be reached ever changes or becomes unreadable.

The collector calls weak references before it calls finalizers, and a finalizer may bring anything back: an iterator,
an error, a batch. So the histories here tie batches, iterators, errors and loaders into cycles, with a finalizer that
keeps some of them, and collect at any moment.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import DataLoader, Dataset, prefetch

BAD = 33
LONG = 500  # values in a sample: small batches would share few pages

WAYS: dict[str, Any] = {
    "inline": {},
    "thread": {"num_workers": 2, "backend": "thread"},
    "process": {"num_workers": 1, "multiprocessing_context": "fork"},
}

TAKE, KEEP, FAIL, COPY, SHARE, COLLECT, AGAIN = "take", "keep", "fail", "prefetch", "share", "collect", "again"
acts = st.sampled_from([TAKE, TAKE, TAKE, KEEP, FAIL, COPY, SHARE, COLLECT, AGAIN])
parts = st.sets(st.sampled_from(["batch", "batches", "error", "loader"]))


class Sized(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> Any:
        if key == BAD:
            raise ValueError("bad")
        return np.full(LONG, key, np.int32), key


class Keeper:
    """One end of a cycle. Its finalizer brings some of what it holds back to life."""

    def __init__(self, holds: dict[str, Any], brings: set[str], back: list[Any]) -> None:
        self.holds, self.brings, self.back = holds, brings, back
        self.me = self

    def __del__(self) -> None:
        self.back += [part for name, part in self.holds.items() if name in self.brings]


def check(batch: Any) -> None:
    values, keys = batch
    assert (values == keys[:, None]).all(), f"the batch of {keys} holds {np.unique(values)}"


@contextmanager
def collecting(often: bool) -> Iterator[None]:
    before = gc.get_threshold()
    if often:
        gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def is_batch(part: Any) -> bool:
    return isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], np.ndarray)


def use(part: Any) -> None:
    """What came back is whole if it is a batch; if it is an iterator, it goes on, or says why it does not."""
    if is_batch(part):
        check(part)
    elif hasattr(part, "__next__"):
        with suppress(ValueError, RuntimeError, StopIteration):
            check(next(part))


def live(way: dict[str, Any], story: Any) -> None:
    """One history. Whatever comes back is used again."""
    back: list[Any] = []
    with DataLoader(Sized(), 2, seed=1, persistent_workers=bool(way), **way) as loader:
        batches: Any = iter(loader)
        for act, brings in story:
            batch = error = None
            try:
                if act in (COPY, SHARE):
                    batches = prefetch(iter(loader)) if act == COPY else loader.share(1)[0]
                elif act == AGAIN:
                    batches = iter(loader)
                elif act == FAIL:
                    for batch in batches:  # noqa: B007 - the last one is looked at below
                        pass
                elif act != COLLECT:
                    batch = next(batches, None)
            except (ValueError, RuntimeError) as caught:
                error = caught
            use(batch)
            if act != TAKE:
                Keeper({"batch": batch, "batches": batches, "error": error, "loader": loader}, brings, back)
            if act == COLLECT:
                batch = error = None
                gc.collect()
                for part in back[:4]:
                    use(part)
        batches = batch = error = None
        gc.collect()
        for part in back:
            use(part)
    for part in filter(is_batch, back):
        check(part)
    back.clear()
    part = None
    gc.collect()


IN_A_CYCLE = [(FAIL, {"batches", "error"}), (COLLECT, set()), (AGAIN, set()), (KEEP, {"batch"}), (COLLECT, set())]


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=20)
@given(story=st.lists(st.tuples(acts, parts), max_size=14), often=st.booleans())
@example(story=IN_A_CYCLE * 3, often=False)
@example(story=[(KEEP, {"batch"}), (COLLECT, set())] * 6, often=True)
def test_no_array_that_can_be_reached_ever_changes(way: str, story: Any, often: bool) -> None:
    with collecting(often):
        live(WAYS[way], story)
