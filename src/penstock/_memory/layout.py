"""The layout of a batch: which bytes of its slab are which array of which structure."""

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

from penstock._memory.leaves import STORES, Place
from penstock._memory.tree import LEAF, Spec, flatten, unflatten

# A cache line: arrays of one batch never share one, and every dtype is aligned.
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each leaf of a batch is: a place in the slab, or None for one that is pickled."""

    spec: Spec
    places: tuple[Place | None, ...]

    def open(self, root: NDArray[np.uint8], rest: Sequence[object]) -> object:
        """The batch, its arrays being views of `root`, its other leaves taken from `rest`."""
        if not rest:
            places: Any = self.places  # all of them are places, then
            return unflatten(self.spec, [make(shape, dtype, root, at) for make, shape, dtype, at in places])
        others = iter(rest)
        return unflatten(
            self.spec,
            [
                next(others) if place is None else place[0](place[1], place[2], root, place[3])
                for place in self.places
            ],
        )


class Writer:
    """Writes one batch into one slab: first an allocator for collate, then the batch's layout.

    What does not fit is put in ordinary memory, and `overflow` says so.
    """

    __slots__ = ("_address", "_copied", "_kept", "_size", "_starts", "is_stray", "overflow", "root", "used")

    def __init__(self, root: NDArray[np.uint8], used: int = 0, is_stray: bool = False) -> None:
        self.root = root
        self.used = used
        self.overflow = False
        self.is_stray = is_stray
        self._size = root.nbytes
        self._address = 0
        # By id, because arrays do not hash. _kept holds them so that no id is used again.
        self._starts: dict[int, int] = {}
        self._kept: list[object] = []
        self._copied: list[tuple[int, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Like `np.empty`, in the slab."""
        start = self.reserve(math.prod(shape) * dtype.itemsize)
        if start is None or dtype.hasobject:
            return np.empty(shape, dtype)
        array: NDArray[Any] = np.ndarray(shape, dtype, self.root, start)
        self._starts[id(array)] = start
        self._kept.append(array)
        return array

    def reserve(self, nbytes: int) -> int | None:
        """Where the next `nbytes` bytes of the slab begin; None where they do not fit."""
        start = (self.used + ALIGN - 1) & -ALIGN
        self.used = start + nbytes
        if self.used > self._size:
            self.overflow = True
            return None
        return start

    def find(self, address: int, nbytes: int) -> int | None:
        """Where in the slab the bytes at this address are; None for memory outside of it."""
        start = address - self._base()
        return start if 0 <= start <= self._size - nbytes else None

    def copy(self, address: int, nbytes: int, owner: object) -> int:
        """Where in the slab these bytes of `owner` were copied to; -1 where they do not fit."""
        start = self.reserve(nbytes)
        if start is None:
            return -1
        ctypes.memmove(self._base() + start, address, nbytes)
        self._copied.append((address, nbytes))
        self._kept.append(owner)  # so that the address is nobody else's
        return start

    def hold(self, buffers: Sequence[pickle.PickleBuffer]) -> tuple[tuple[int, int], ...]:
        """Start and length of each in the slab, where their bytes are afterwards. What overlaps stays so."""
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

    def place(self, tree: object) -> tuple[Spec, tuple[Place | None, ...], list[object]]:
        """The tree's layout, its arrays being in the slab afterwards, and its other leaves.

        Where one array is in the tree twice, or two share their memory, the tree is one leaf: a pickle
        tells what is one and the same, and a layout does not.
        """
        leaves, spec = flatten(tree)
        if len(set(map(id, leaves))) < len(leaves) and _repeats(leaves):
            return LEAF, (None,), [tree]
        used = self.used
        places: list[Place | None] = []
        rest: list[object] = []
        for leaf in leaves:
            if type(leaf) is np.ndarray and not leaf.dtype.hasobject:
                start = self._starts.get(id(leaf))
                if start is None:
                    copy = self.empty(leaf.shape, leaf.dtype)
                    copy[...] = leaf
                    start = self._starts.get(id(copy), -1)
                places.append((np.ndarray, leaf.shape, leaf.dtype, start))
                continue
            store = STORES.get(type(leaf))
            place = None if store is None else store(leaf, self)
            places.append(place)
            if place is None:
                rest.append(leaf)
        if len(self._copied) > 1 and any(
            a + size > b for (a, size), (b, _) in pairwise(sorted(self._copied))
        ):
            self.used = used
            return LEAF, (None,), [tree]
        return spec, tuple(places), rest

    def _base(self) -> int:
        if not self._address:
            self._address = _address(self.root)
        return self._address


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _repeats(leaves: Sequence[object]) -> bool:
    """Whether an array, or a guest, is among them twice."""
    ids = [id(leaf) for leaf in leaves if type(leaf) is np.ndarray or type(leaf) in STORES]
    return len(set(ids)) < len(ids)


def _overlapping(spans: Iterable[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces of memory (address, size, and a mark), in groups: those that overlap are together."""
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
