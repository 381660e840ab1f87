"""Laws of the rows that processes load, for meshes larger than this machine has."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from penstock.jax._rows import for_rank, parts, rows_of_processes


class Device(NamedTuple):
    id: int
    process_index: int


class Split:
    """Splits rows over some axes of a mesh of numbered devices, as JAX does, with `each` devices in a process."""

    def __init__(self, mesh: np.ndarray, each: int, axes: tuple[int, ...]) -> None:
        self.mesh, self.each, self.axes, self.num_devices = mesh, each, axes, mesh.size

    def devices_indices_map(self, shape: tuple[int]) -> dict[Device, tuple[slice]]:
        sizes = [self.mesh.shape[axis] for axis in self.axes]
        count = int(np.prod(sizes))
        if shape[0] % count:
            raise ValueError("not divisible")
        each, found = shape[0] // count, {}
        for place in np.ndindex(*self.mesh.shape):
            number = int(np.ravel_multi_index([place[axis] for axis in self.axes], sizes)) if self.axes else 0
            device = Device(int(self.mesh[place]), int(self.mesh[place]) // self.each)
            found[device] = (slice(number * each, number * each + each) if self.axes else slice(None),)
        return found


@st.composite
def splits(draw: st.DrawFn) -> Split:
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2)))
    size = int(np.prod(shape))
    each = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    order = draw(st.permutations(range(size)))
    return Split(np.array(order).reshape(shape), each, tuple(draw(st.lists(st.integers(0, 2), unique=True))))


@settings(deadline=None)
@given(splits(), st.integers(1, 3))
def test_each_process_has_the_rows_of_its_devices_and_any_two_the_same_or_none(split: Split, each: int) -> None:
    size = each * split.num_devices
    found = rows_of_processes(split, size)
    rows = {process: set(range(size) if held is None else held) for process, held in found.items()}
    for device, (index,) in split.devices_indices_map((size,)).items():
        assert set(range(*index.indices(size))) <= rows[device.process_index]
    assert set().union(*rows.values()) == set(range(size)), "every row is loaded"
    for one in rows.values():
        for other in rows.values():
            assert one == other or not one & other
    for held in found.values():
        assert held is None or list(held) == sorted(set(held))
    assert parts(split) == len({index[0].start for index in split.devices_indices_map((size,)).values()})


def test_a_process_whose_devices_have_all_rows_loads_whole_batches() -> None:
    devices = np.array(jax.devices()[:4])
    for spec in (P(), P(None, "data"), P("data")):
        sharding = NamedSharding(jax.sharding.Mesh(devices, ("data",)), spec)
        assert rows_of_processes(sharding, 8) == {0: None}


def test_a_sharding_loses_the_axes_that_an_array_lacks() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    sharding = NamedSharding(mesh, P("a", None, "b"))
    assert for_rank(sharding, 4) is sharding
    assert for_rank(sharding, 1).spec == P("a")
    assert for_rank(sharding, 0).spec == P()


def test_rows_that_cannot_be_split_are_refused() -> None:
    sharding = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",)), P("data"))
    with pytest.raises(ValueError, match="batch_size=3 cannot be split by"):
        rows_of_processes(sharding, 3)
