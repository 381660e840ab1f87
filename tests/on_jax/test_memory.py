"""A slab is not refilled while JAX looks into it, and JAX never writes into one."""

from __future__ import annotations

import gc
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import penstock.jax

N, SIZE = 60, 4
BACKENDS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 2},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
]


class Fields:
    """Sample i has arrays that are all made of i. One is aligned, one is too small for that, one is text."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"large": np.full((64, 64), key, np.float32), "small": np.full(3, key, np.int16), "name": str(key)}


def split() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), P("data"))


@jax.jit
def plus_one(data: Any) -> Any:
    return jax.tree.map(lambda array: array + 1, data)


donated = jax.jit(lambda data: jax.tree.map(lambda array: array * 0 + 7, data), donate_argnums=0)


def check(batch: Any, keys: Any, more: int = 0) -> None:
    for name in ("large", "small"):
        array = np.asarray(batch[name])
        assert np.array_equal(array, np.broadcast_to(keys.reshape(-1, *[1] * (array.ndim - 1)) + more, array.shape))


def arrays(data: dict[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in ("large", "small")}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("backend", range(len(BACKENDS)))
def test_batches_that_are_kept_dropped_used_and_donated_are_never_changed(backend: int, sharded: bool) -> None:
    dice = random.Random(backend)
    sharding = split() if sharded else None
    with penstock.jax.DataLoader(
        Fields(), SIZE, shuffle=True, seed=0, sharding=sharding, **BACKENDS[backend]
    ) as loader:
        kept: list[tuple[Any, Any, int]] = []
        for _ in range(6):
            for batch in loader.batches():
                keys, data = np.array(batch.index, np.int64), batch.data
                what = dice.choice(["drop", "drop", "keep", "jit", "donate", "slice"])
                if what == "keep":
                    kept.append((data, keys, 0))
                elif what == "jit":
                    kept.append((plus_one(arrays(data)), keys, 1))
                elif what == "donate":
                    assert jax.tree.all(jax.tree.map(lambda array: bool((array == 7).all()), donated(arrays(data))))
                elif what == "slice":
                    kept.append((jax.tree.map(lambda array: array[1:], arrays(data)), keys[1:], 0))
                if len(kept) > 40:
                    dice.shuffle(kept)
                    del kept[:20]
                for one in kept:
                    check(*one)
    for one in kept:  # the loader is closed
        check(*one)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["drop", "keep", "donate", "forget"]), max_size=14), st.integers(0, 3))
def test_any_history_of_what_is_done_with_batches(history: list[str], ahead: int) -> None:
    with penstock.jax.DataLoader(
        Fields(), SIZE, seed=0, num_workers=1, backend="thread", prefetch_factor=3, ahead=ahead
    ) as loader:
        kept: list[tuple[Any, Any, int]] = []
        for what, batch in zip(history, loader.batches(), strict=False):
            keys = np.array(batch.index, np.int64)
            check(batch.data, keys)
            if what == "keep":
                kept.append((batch.data, keys, 0))
            elif what == "donate":
                jax.block_until_ready(donated(arrays(batch.data)))
            elif what == "forget":
                kept.clear()
            for one in kept:
                check(*one)


def test_donating_a_batch_does_not_write_into_its_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[np.ndarray] = []
    receive = penstock.jax._arrays.DevicePlacer.__call__

    def watched(self: Any, batch: Any, root: Any) -> Any:
        roots.append(root)
        return receive(self, batch, root)

    monkeypatch.setattr(penstock.jax._arrays.DevicePlacer, "__call__", watched)
    for batch in penstock.jax.DataLoader(Fields(), SIZE):
        before = roots[-1][: 1 << 16].copy()
        assert np.any(before) or not np.any(np.asarray(batch["small"]))
        jax.block_until_ready(donated(arrays(batch)))
        assert np.array_equal(roots[-1][: 1 << 16], before)


def test_large_arrays_are_not_copied_on_the_cpu() -> None:
    found: list[bool] = []
    for batch in penstock.jax.DataLoader(np.zeros((8, 4096), np.float32), 4).batches():
        pointer = batch.data.unsafe_buffer_pointer()
        found.append(pointer % 64 == 0 and np.asarray(batch.data).ctypes.data == pointer)
    assert found == [True, True]


def test_memory_is_used_again_when_batches_are_dropped() -> None:
    with penstock.jax.DataLoader(Fields(), SIZE, num_workers=1, seed=0, shuffle=True) as loader:
        for _ in range(12):
            for batch in loader:
                jax.block_until_ready(plus_one(arrays(batch)))
        del batch
        gc.collect()
        jnp.zeros(1).block_until_ready()
        (engine,) = loader._session.engines.all()
        # 180 batches: the window, what is ahead, and what JAX releases late.
        assert len(engine.backend._slabs._regions) <= 16


class Reused:
    """Returns the same array each time, with other values: only a copy of it may be handed out."""

    def __init__(self) -> None:
        self.buffer = np.zeros(1024, np.float32)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> np.ndarray:
        self.buffer[:] = key
        return self.buffer


@pytest.mark.parametrize("given", [{"batch_size": None}, {"collate_fn": lambda samples: samples[-1]}])
@pytest.mark.parametrize("backend", [{}, {"num_workers": 1, "backend": "thread"}])
def test_an_array_of_the_users_is_copied(given: dict[str, Any], backend: dict[str, Any]) -> None:
    workers = {"prefetch_factor": 1, **backend} if backend else {}
    kept = list(penstock.jax.DataLoader(Reused(), **given, **workers))
    if not backend:  # a thread that is ahead overwrites the only buffer by itself
        assert [float(array[0]) for array in kept] == [0, 1, 2, 3, 4, 5]
    before = [np.array(array) for array in kept]
    assert all(np.array_equal(array, one) for array, one in zip(kept, before, strict=True))
    dataset = Reused()
    (array,) = penstock.jax.DataLoader(dataset, batch_size=None, sampler=[3])
    dataset.buffer[:] = 99
    assert float(array[0]) == 3
