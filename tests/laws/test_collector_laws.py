"""The law of the garbage collector: no array that can be reached ever changes or becomes unreadable.

The collector calls weak references before it calls finalizers, and a finalizer may bring anything back: an iterator,
an error, a batch. So the histories here tie batches, iterators, errors and loaders into cycles, with a finalizer that
keeps some of them, and collect at any moment.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock.torch
from penstock import DataLoader, Dataset, prefetch

BAD = 33
LONG = 500  # values in a sample: small batches would share few pages
LONGER = 40_000  # outgrows its slab, and travels as a stray

FORKED = {"num_workers": 1, "multiprocessing_context": "fork"}
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "inline": (DataLoader, {"seed": 1}),
    "thread": (DataLoader, {"seed": 1, "num_workers": 2, "backend": "thread"}),
    "process": (DataLoader, {"seed": 1, **FORKED}),
    "torch, inline": (penstock.torch.DataLoader, {}),
    "torch, workers": (penstock.torch.DataLoader, FORKED),
    "torch, seeded": (penstock.torch.DataLoader, {"seed": 1, **FORKED}),
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
        return np.full(LONGER if key % 10 < 2 else LONG, key, np.int32), key


class Keeper:
    """One end of a cycle. Its finalizer brings some of what it holds back to life."""

    def __init__(self, holds: dict[str, Any], brings: set[str], back: list[Any]) -> None:
        self.holds, self.brings, self.back = holds, brings, back
        self.me = self

    def __del__(self) -> None:
        self.back += [part for name, part in self.holds.items() if name in self.brings]


def check(batch: Any) -> None:
    values, keys = batch
    assert (np.asarray(values) == np.asarray(keys)[:, None]).all(), f"the batch of {keys} holds {values}"


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
    return isinstance(part, (tuple, list)) and len(part) == 2 and hasattr(part[0], "shape")


def use(part: Any) -> None:
    """What came back is whole if it is a batch; if it is an iterator, it goes on, or says why it does not."""
    if is_batch(part):
        check(part)
    elif hasattr(part, "__next__"):
        with suppress(ValueError, RuntimeError, StopIteration):
            check(next(part))


def live(way: tuple[Any, dict[str, Any]], story: Any) -> None:
    """One history. Whatever comes back is used again."""
    back: list[Any] = []
    kind, given = way
    loader = kind(Sized(), 2, persistent_workers="num_workers" in given, **given)
    with closing(loader) if kind is DataLoader else nullcontext():
        batches: Any = iter(loader)
        for act, brings in story:
            batch = error = None
            try:
                if act == COPY:
                    batches = prefetch(iter(loader))
                elif act == SHARE and kind is DataLoader:
                    batches = loader.share(1)[0]
                elif act == AGAIN:
                    batches = iter(loader)
                elif act == FAIL:
                    for batch in batches:  # noqa: B007 - the last one is looked at below
                        pass
                elif act not in (COLLECT, SHARE):
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
    part = loader = None
    gc.collect()
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        thread.join(10)  # a thread of prefetch() has the last reference to the loader that it read


IN_A_CYCLE = [(FAIL, {"batches", "error"}), (COLLECT, set()), (AGAIN, set()), (KEEP, {"batch"}), (COLLECT, set())]


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=20 if "PENSTOCK_WIDE" in os.environ else 7)
@given(story=st.lists(st.tuples(acts, parts), max_size=14), often=st.booleans())
@example(story=IN_A_CYCLE * 3, often=False)
@example(story=[(KEEP, {"batch"}), (COLLECT, set())] * 6, often=True)
def test_no_array_that_can_be_reached_ever_changes(way: str, story: Any, often: bool) -> None:
    with collecting(often):
        live(WAYS[way], story)
