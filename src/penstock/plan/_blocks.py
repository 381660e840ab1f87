"""A random order that needs only a few blocks (such as row groups) at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.plan._order import Permutation, _check_sizes, _checked, _permutation
from penstock.plan._seeds import hashes, mix

WINDOW = 16  # the default number of blocks in a window


@dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """A random order of the keys 0..n-1 that needs only a few blocks at a time. It is determined by (seed, epoch).

    `edges` has the first key of each block, and the end of the last block. `window` is the number of blocks that a
    reader holds at a time.

    The blocks are put in random order, and divided into groups of about `window` / 8 blocks. The samples of each
    group are divided at random into K parts. An epoch is a sequence of stretches. A stretch takes one part from each
    of K adjacent groups, and shuffles these samples together. The next stretch leaves out the first of these groups,
    and adds the group after the last one. (The first and the last stretch take more parts.)

    K groups have one group less than `window` blocks, so that the next group can be fetched in the meantime. If there
    are at most `window` blocks, they form one group, and all samples are shuffled together.

    >>> order = BlockOrder(np.arange(0, 101, 10), window=3, seed=1)
    >>> keys = order.at(0, np.arange(100))
    >>> sorted(keys.tolist()) == list(range(100))
    True
    >>> len(set((keys[:10] // 10).tolist()))
    2
    """

    # Rejected: a full shuffle within each group before it is divided, instead of a stride. It needs a permutation for
    # each group of a stretch, and the shares of each block in the parts would be hardly more equal.

    edges: NDArray[np.int64]
    window: int
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", _as_edges(self.edges))
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise ValueError(f"window must be a number of blocks of at least 1, got {self.window!r}.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockOrder):
            return NotImplemented
        same = (self.window, self.seed) == (other.window, other.seed)
        return same and (self.edges is other.edges or np.array_equal(self.edges, other.edges))

    def __hash__(self) -> int:
        return hash((self.window, self.seed, self.edges.size, self.edges.item(-1)))  # fast: each `at` needs it

    def size(self, epoch: int) -> int:
        return self.edges.item(-1)

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        places = _checked(positions, self.size(epoch))
        if not places.size:
            return places
        return _arrangement(self, epoch).keys(places)

    def spans(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns for each block the first position that may need it, and the position after the last.

        At any position, at most `window` blocks may be needed.
        """
        return _arrangement(self, epoch).spans()


class _Known(NamedTuple):
    """The leading groups of an arrangement, as far as they have been computed."""

    groups: int
    numbers: NDArray[np.int64]  # the block numbers, in the order of the epoch
    starts: NDArray[np.int64]  # the first place of each block, and the end
    stretches: NDArray[np.int64]  # the first position of each stretch, and the end


class _GroupParts(NamedTuple):
    """The group parts in a few consecutive stretches, sorted by stretch, and the groups that they belong to."""

    begins: NDArray[np.int64]  # the first position of each part, and the end
    moves: NDArray[np.int64]  # for each part: index in the group minus position
    group_of: NDArray[np.int64]
    firsts: NDArray[np.int64]  # the first place of each group
    sizes: NDArray[np.int64]  # the size of each group, at least 1
    strides: NDArray[np.int64]  # the stride of each group: see `_strides`
    offsets: NDArray[np.int64]


# Each use of randomness in an epoch has its own key.
_BLOCKS, _STRETCH, _STRIDE, _OFFSET = range(4)
_FIRST_GROUPS = 64


class Arrangement:
    """The blocks of one epoch, laid end to end in random order.

    A place is the index of a sample in this sequence. A position is the sample's index in the final order. A mixture
    may begin hundreds of sources at once, so groups are arranged only about as far as positions were requested. An
    arranged block takes 20 bytes.
    """

    __slots__ = ("_blocks", "_edges", "_groups", "_key", "_known", "_last", "_parts", "_permutation")

    def __init__(self, order: BlockOrder, epoch: int) -> None:
        self._key, self._edges = mix(order.seed, epoch), order.edges
        self._blocks = len(order.edges) - 1
        self._groups, self._parts = division(self._blocks, order.window)
        self._permutation = Permutation(max(1, self._blocks), mix(self._key, _BLOCKS))
        # Threads may share an arrangement, so these are replaced as a whole. At worst, they are computed twice.
        self._known = self._upto(min(self._groups, self._parts + _FIRST_GROUPS))
        self._last: tuple[tuple[int, int], _GroupParts] | None = None

    def keys(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the keys at these positions. May overwrite `positions`."""
        ends = positions.min(), positions.max()
        known = self._reaching(int(ends[1]))
        low, high = (known.stretches.searchsorted(ends, "right") - 1).tolist()
        if low == high:  # as for most batches
            places = self._shuffled(known, low, positions)
        else:
            stretches, places = known.stretches.searchsorted(positions, "right") - 1, positions
            for stretch in np.unique(stretches).tolist():
                chosen = stretches == stretch
                places[chosen] = self._shuffled(known, stretch, positions[chosen])
        of = self._parts_of(known, low, high)
        parts = of.begins.searchsorted(places, "right") - 1
        groups = of.group_of[parts]
        places += of.moves[parts]
        places *= of.strides[groups]
        places += of.offsets[groups]
        places %= of.sizes[groups]
        places += of.firsts[groups]
        blocks = known.starts.searchsorted(places, "right") - 1
        places += self._edges[known.numbers[blocks]] - known.starts[blocks]
        return places

    def spans(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        known = self._known if self._known.groups == self._groups else self._upto(self._groups)
        blocks = np.diff(self._ends(np.arange(self._groups + 1)))
        groups = np.repeat(np.arange(self._groups), blocks)  # of each block, in the order of the epoch
        last = len(known.stretches) - 2
        first, stop = np.empty((2, self._blocks), np.int64)
        first[known.numbers] = known.stretches[(groups - self._parts + 1).clip(0, last)]
        stop[known.numbers] = known.stretches[groups.clip(0, last) + 1]
        return first, stop

    def _ends(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns how many blocks there are before each of these groups."""
        return groups * self._blocks // self._groups

    def _reaching(self, position: int) -> _Known:
        known = self._known
        while known.stretches[-1] <= position:
            known = self._known = self._upto(min(self._groups, 2 * known.groups))
        return known

    def _upto(self, groups: int) -> _Known:
        """Arranges the first `groups` groups, and all stretches that consist only of parts of these groups."""
        ends, parts = self._ends(np.arange(groups + 1)), self._parts
        numbers = self._permutation.at(np.arange(ends[-1]))
        starts = np.concatenate([[0], (self._edges[numbers + 1] - self._edges[numbers]).cumsum()])
        # Part i of group g is in stretch g + i. The stretches in which the window fills are merged into one, and so
        # are those in which it empties: so each stretch mixes as many groups as a group has parts.
        whole, rest = np.divmod(np.diff(starts[ends]), parts)
        sizes = np.zeros(groups + parts - 1, np.int64)
        for part in range(parts):
            sizes[part : part + groups] += whole + (part < rest)
        if groups < self._groups:
            sizes = sizes[:groups]
        stretches = np.add.reduceat(sizes, np.append(0, np.arange(parts, groups)))
        stretches = np.concatenate([[0], stretches.cumsum()])
        numbers = numbers.astype(np.int32) if self._blocks < 1 << 31 else numbers
        return _Known(groups, numbers, starts, stretches)

    def _parts_of(self, known: _Known, low: int, high: int) -> _GroupParts:
        last = self._last
        if last is None or last[0] != (low, high):
            last = self._last = (low, high), self._divided(known, low, high)
        return last[1]

    def _divided(self, known: _Known, low: int, high: int) -> _GroupParts:
        parts, each = self._parts, np.arange(low, min(high + self._parts, self._groups))
        firsts = known.starts[self._ends(np.append(each, each[-1] + 1))]
        sizes = np.diff(firsts)
        of, part = np.divmod(np.arange(len(each) * parts), parts)
        stretch = (of + low + part - parts + 1).clip(0, self._groups - parts)
        inside = np.flatnonzero((low <= stretch) & (stretch <= high))
        inside = inside[stretch[inside].argsort(kind="stable")]
        of, part = of[inside], part[inside]
        whole, rest = np.divmod(sizes[of], parts)
        begins = known.stretches[low] + np.concatenate([[0], (whole + (part < rest)).cumsum()])
        moves = whole * part + np.minimum(part, rest) - begins[:-1]
        sizes = sizes.clip(1)
        offsets = (hashes(mix(self._key, _OFFSET), each) % sizes.view(np.uint64)).view(np.int64)
        strides = _strides(sizes, hashes(mix(self._key, _STRIDE), each))
        return _GroupParts(begins, moves, of, firsts[:-1], sizes, strides, offsets)

    def _shuffled(self, known: _Known, stretch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        first, stop = known.stretches[stretch : stretch + 2].tolist()
        places = _permutation(stop - first, mix(self._key, _STRETCH, stretch)).at(positions - first)
        places += first
        return places


# Two, because the next epoch may be drawn early.
_arrangement = lru_cache(maxsize=2)(Arrangement)


def division(blocks: int, window: int) -> tuple[int, int]:
    """Returns the number of groups (of nearly equal size) and of parts per group (K in `BlockOrder`)."""
    size = max(1, window // 8)
    return (1, 1) if blocks <= window else (-(-blocks // size), max(1, window // size - 1))


def _strides(sizes: NDArray[np.int64], numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns, for each size, a random stride that is coprime to the size.

    `i * stride % size` is then a permutation of 0..size-1. Most strides spread neighbours over the whole range.
    `i * stride` stays below 2**62.
    """
    most = np.minimum(sizes, (1 << 62) // sizes).view(np.uint64)
    strides = (numbers % most).view(np.int64) + 1
    while (unfit := np.gcd(strides, sizes) > 1).any():
        strides[unfit] -= 1  # ends with 1, which always fits
    return strides


def _as_edges(blocks: ArrayLike) -> NDArray[np.int64]:
    """Returns a read-only copy of the edges: the first key of each block, and the end of the last block."""
    found = np.asarray(blocks)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise TypeError(
            "blocks must be an array of integers, the first key of each block and the end, but it has the shape "
            f"{found.shape} and the dtype {found.dtype}."
        )
    edges = found.astype(np.int64)
    wrong = np.flatnonzero(np.diff(edges) < 0)
    if edges[0] != 0 or wrong.size:
        at = int(wrong[0]) + 1 if wrong.size else 0
        raise ValueError(
            "blocks must begin with 0 and never decrease (they are the first key of each block, and the end), but "
            f"blocks[{at}] is {edges[at]}" + (f" after {edges[at - 1]}." if at else ".")
        )
    _check_sizes(n=edges.item(-1))
    edges.flags.writeable = False
    return edges
