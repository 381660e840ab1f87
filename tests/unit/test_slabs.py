"""Slabs by number: their memory, and which of them are free."""

from __future__ import annotations

import gc
import mmap
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._memory.mapping import mapped
from penstock._memory.slabs import BUNDLE, EXTENT, Slabs
from penstock._schedule.slabs import SlabStates
from penstock._system import interrupts
from penstock._system.interrupts import free_at_end


@pytest.fixture(params=["private", "shared"])
def slabs(request: Any) -> Any:
    fd = os.memfd_create("test-slabs") if request.param == "shared" else None
    yield Slabs(fd)
    if fd is not None:
        os.close(fd)


def test_slabs_do_not_overlap_and_keep_their_memory(slabs: Slabs) -> None:
    slabs.learn(5000)
    for slab in range(50):
        slabs.root(slab)[:5000] = slab
    assert all((slabs.root(slab)[:5000] == slab).all() for slab in range(50))
    assert len({(slabs.region(slab).extent, slabs.region(slab).start) for slab in range(50)}) == 50


def test_a_slab_has_room_for_the_largest_batch_so_far(slabs: Slabs) -> None:
    assert slabs.root(0).nbytes >= EXTENT
    slabs.learn(3000)
    slabs.learn(2000)
    small = slabs.region(1)
    assert 3000 <= small.capacity <= 2 * mmap.PAGESIZE
    assert slabs.region(1) is small
    slabs.learn(100_000)
    assert slabs.root(1).nbytes >= 100_000
    assert slabs.arena.root(slabs.region(1, 300_000)).nbytes >= 300_000


def test_a_slab_has_room_for_the_bundles_to_come(slabs: Slabs) -> None:
    slabs.learn(1000)
    assert slabs.region(0, 0, 1, 100).capacity >= 100 * 1000
    assert slabs.region(1, 0, 1, 10**6).capacity < 10**6 * 1000
    slabs.learn(2 * BUNDLE)
    assert slabs.region(2, 0, 3, 3).capacity >= 3 * 2 * BUNDLE


def test_a_cold_slab_reads_as_zeros_and_is_usable(slabs: Slabs) -> None:
    slabs.learn(5000)
    root = slabs.root(3)
    root[:] = 1
    slabs.cool(3)
    slabs.cool(4)  # never used
    assert not root.any()
    root[:] = 2
    assert (slabs.root(3) == 2).all()


@settings(max_examples=200)
@given(st.lists(st.integers(-3, 5), max_size=60))
def test_free_slabs_are_taken_warm_first_and_the_coldest_lose_their_pages(script: list[int]) -> None:
    """A number from 0 on: so many keep their pages from now on. -1: free one that is held. Below: take."""
    states, warm, cold, held, spare = SlabStates(2), [], [], [], 2
    for action in script:
        cooled: list[Any] = []
        if action >= 0:
            states.spare = spare = action
            states.cool(cooled)
        elif action == -1 and held:
            states.free(held[0], cooled)
            warm.append(held.pop(0))
        else:
            new = len(warm) + len(cold) + len(held)
            held.append(warm.pop() if warm else cold.pop() if cold else new)
            assert states.take() == held[-1]
        beyond = warm[: max(0, len(warm) - spare)]
        assert [command.slab for command in cooled] == beyond
        warm, cold = warm[len(beyond) :], cold + beyond
        assert (list(states.warm), states.cold) == (warm, cold)
        states.check(held)


def test_a_root_is_a_new_array_each_time() -> None:
    slabs = Slabs(None)
    one, other = slabs.root(0), slabs.root(0)
    assert one is not other and np.shares_memory(one, other)


class Thing:
    pass


def test_what_is_freed_at_the_end_of_an_object_is_freed_whatever_ends_first() -> None:
    """Whatever an object refers to may be gone before the weak references to the object are called."""
    called: list[str] = []
    thing = Thing()
    free_at_end(thing, partial(called.append, "end"))
    gc.collect()
    assert not called
    del thing
    assert called == ["end"]
    assert not [end for end in interrupts._waiting.values() if end() is None]


def test_memory_is_unmapped_with_its_last_view() -> None:
    fd = os.memfd_create("penstock-unmapped")
    os.ftruncate(fd, 1 << 20)
    view = np.frombuffer(mapped(fd, 1 << 20), np.uint8)[5:].reshape(-1, 1)
    os.close(fd)
    assert "penstock-unmapped" in Path("/proc/self/maps").read_text()
    del view
    assert "penstock-unmapped" not in Path("/proc/self/maps").read_text()
