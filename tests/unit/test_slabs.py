"""Slabs by number: their memory, and which of them are free."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._memory.free import FreeSlabs
from penstock._memory.slabs import BUNDLE, EXTENT, Slabs


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
    assert slabs.root(1, at_least=300_000).nbytes >= 300_000


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
    """A number from 0 on: cool what is beyond it. -1: put. Below: take."""
    free, warm, cold, new = FreeSlabs(), [], [], 0
    for action in script:
        if action >= 0:
            beyond = warm[: max(0, len(warm) - action)]
            assert free.surplus(action) == beyond
            warm, cold = warm[len(beyond) :], cold + beyond
        elif action == -1:
            free.put(new)
            warm.append(new)
            new += 1
        else:
            assert free.take() == (warm.pop() if warm else cold.pop() if cold else None)
        assert (list(free.warm), free.cold, len(free)) == (warm, cold, len(warm) + len(cold))
    free.clear()
    assert free.take() is None and len(free) == 0


def test_a_root_is_a_new_array_each_time() -> None:
    slabs = Slabs(None)
    one, other = slabs.root(0), slabs.root(0)
    assert one is not other and np.shares_memory(one, other)
