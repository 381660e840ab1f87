"""The layout of a batch: where each array is in its slab, and how the arrays are nested."""

from __future__ import annotations

import ctypes
import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.forms import PLAIN
from penstock._memory.guests import HANDLERS, LateLeaves, MakeLeaf, Spot
from penstock._memory.tree import LEAF, Spec, flatten, flatten_exactly, unflatten

# The size of a cache line. No two arrays of a batch share one, and every dtype is aligned.
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """The structure of a batch, and the location of each leaf in the slab (None for a pickled leaf)."""

    spec: Spec
    spots: tuple[Spot | None, ...]

    def open(self, root: NDArray[np.uint8], rest: Sequence[object]) -> object:
        """Returns the batch. The arrays are views of the slab's array `root`. The other leaves come from `rest`."""
        spots: Any = self.spots
        if not rest:  # none of the spots is None
            return unflatten(self.spec, [make(shape, dtype, root, at) for make, shape, dtype, at in spots])
        others = iter(rest)
        leaves = [next(others) if spot is None else spot[0](spot[1], spot[2], root, spot[3]) for spot in spots]
        return unflatten(self.spec, leaves)


class Writer:
    """Writes one batch into one slab: allocates arrays for collate, then determines the layout.

    An array that does not fit is put into ordinary memory, and `overflow` becomes True.
    """

    __slots__ = ("_address", "_copied", "_kept", "_size", "_starts", "is_stray", "overflow", "root", "used")

    def __init__(self, root: NDArray[np.uint8], used: int = 0, is_stray: bool = False) -> None:
        self.root = root
        self.used = used
        self.overflow = False
        self.is_stray = is_stray
        self._size = root.nbytes
        self._address = 0
        # The keys are ids, because arrays are not hashable. _kept holds the arrays, so that no id is used twice.
        self._starts: dict[int, int] = {}
        self._kept: list[object] = []
        self._copied: list[tuple[int, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Works like `np.empty`, but allocates the array in the slab if it fits."""
        start = self.reserve(math.prod(shape) * dtype.itemsize)
        if start is None or dtype.hasobject:
            return np.empty(shape, dtype)
        array: NDArray[Any] = np.ndarray(shape, dtype, self.root, start)
        self._starts[id(array)] = start
        self._kept.append(array)
        return array

    def reserve(self, nbytes: int) -> int | None:
        """Allocates `nbytes` bytes in the slab. Returns their offset, or None if they do not fit."""
        start = (self.used + ALIGN - 1) & -ALIGN
        self.used = start + nbytes
        if self.used > self._size:
            self.overflow = True
            return None
        return start

    def find(self, address: int, nbytes: int) -> int | None:
        """Returns the offset of this address in the slab, or None if it is outside."""
        start = address - self._base()
        return start if 0 <= start <= self._size - nbytes else None

    def copy(self, address: int, nbytes: int, owner: object) -> int:
        """Copies bytes of the object `owner` into the slab. Returns their offset, or -1 if they do not fit."""
        start = self.reserve(nbytes)
        if start is None:
            return -1
        ctypes.memmove(self._base() + start, address, nbytes)
        self._copied.append((address, nbytes))
        self._kept.append(owner)  # so that nothing else is allocated at the address
        return start

    def hold(self, buffers: Sequence[pickle.PickleBuffer]) -> tuple[tuple[int, int], ...]:
        """Copies buffers into the slab, and returns the offset and length of each. Shared memory stays shared."""
        arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        spans = [(_address(array), array.nbytes, at) for at, array in enumerate(arrays)]
        held = [(0, 0)] * len(spans)
        for group in _overlapping(spans):
            low = group[0][0]
            nbytes = max(address + size for address, size, _ in group) - low
            start = self.find(low, nbytes)
            if start is None:
                start = self.copy(low, nbytes, arrays)
            for address, size, at in group:
                held[at] = start + address - low, size
        return tuple(held)

    def place(self, tree: object) -> tuple[Spec, tuple[Spot | None, ...], list[object]]:
        """Puts the arrays of a tree (a nested batch, or its `LateLeaves`) into the slab.

        In two cases, the whole batch becomes one leaf, which is pickled later. In the first case, a leaf is neither
        an array nor an atom (a value that refers to no other object, such as a number). In the second case, an array
        occurs twice or shares memory with another array: pickle preserves this, but a layout does not.
        """
        make: MakeLeaf = np.ndarray
        if type(tree) is LateLeaves:
            tree, make = tree
        found = flatten_exactly(tree)
        if found is None:
            return _pickled(tree, make)
        leaves, spec = found
        if not _placeable.issuperset(map(type, leaves)) and not all(map(_can_be_placed, map(type, leaves))):
            return _pickled(tree, make)
        if len(set(map(id, leaves))) < len(leaves) and _repeats(leaves):
            return _pickled(tree, make)
        used = self.used
        spots: list[Spot | None] = []
        rest: list[object] = []
        for leaf in leaves:
            if type(leaf) is np.ndarray and not leaf.dtype.hasobject:
                start = self._starts.get(id(leaf))
                if start is None:
                    copy = self.empty(leaf.shape, leaf.dtype)
                    copy[...] = leaf
                    start = self._starts.get(id(copy), -1)
                spots.append((make, leaf.shape, leaf.dtype, start))
                continue
            handler = HANDLERS[type(leaf)]
            spot = handler and handler.store and handler.store(leaf, self)
            if spot is None:
                if type(leaf) not in _ATOMS:
                    self.used = used
                    return _pickled(tree, make)
                rest.append(leaf)
            spots.append(spot)
        if len(self._copied) > 1 and any(a + size > b for (a, size), (b, _) in pairwise(sorted(self._copied))):
            self.used = used
            return _pickled(tree, make)
        return spec, tuple(spots), rest

    def _base(self) -> int:
        if not self._address:
            self._address = _address(self.root)
        return self._address


def _pickled(tree: object, make: MakeLeaf) -> tuple[Spec, tuple[Spot | None, ...], list[object]]:
    if make is not np.ndarray:
        leaves, spec = flatten(tree)
        made = [make(leaf.shape, leaf.dtype, leaf, 0) if type(leaf) is np.ndarray else leaf for leaf in leaves]
        tree = unflatten(spec, made)
    return LEAF, (None,), [tree]


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _repeats(leaves: Sequence[object]) -> bool:
    """True if any leaf other than an atom (a value such as a number) occurs twice."""
    ids = [id(leaf) for leaf in leaves if type(leaf) not in _ATOMS]
    return len(set(ids)) < len(ids)


_ATOMS: frozenset[type] = PLAIN | {*np.sctypeDict.values()} - {np.void, np.object_}
"""Classes whose instances, such as numbers, refer to no other object."""


_placeable: set[type] = {*_ATOMS, np.ndarray}
"""Classes of leaves that a batch may contain without being pickled whole. `_can_be_placed` adds guests' classes."""


def _can_be_placed(kind: type) -> bool:
    """True if a batch may contain leaves of this class without being pickled whole."""
    handler = HANDLERS[kind]
    if handler is not None and handler.store is not None:
        _placeable.add(kind)
    return kind in _placeable


def _overlapping(spans: Iterable[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Yields groups of overlapping memory spans. A span is (address, size, tag); a tag may be any number."""
    group: list[tuple[int, int, int]] = []
    end = 0
    for span in sorted(spans):
        if group and span[0] >= end:
            yield group
            group = []
        group.append(span)
        end = max(end, span[0] + span[1])
    if group:
        yield group
