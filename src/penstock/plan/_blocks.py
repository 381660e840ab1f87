"""An order that needs only a few blocks at a time, such as row groups. (A fully random order needs all of them.)"""

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
        arranged = _arrangement(self, epoch)
        numbers, stretches = arranged.numbers, arranged.stretches
        ends, parts = division(len(numbers), self.window)
        groups = np.repeat(np.arange(len(ends) - 1), np.diff(ends))  # of each block, in the order of the epoch
        last = len(stretches) - 2
        first, stop = np.empty((2, len(numbers)), np.int64)
        first[numbers] = stretches[(groups - parts + 1).clip(0, last)]
        stop[numbers] = stretches[groups.clip(0, last) + 1]
        return first, stop


class Arrangement(NamedTuple):
    """The blocks of one epoch, laid end to end in random order.

    A place is the index of a sample in this sequence. A position is the sample's index in the final order.
    """

    key: int
    numbers: NDArray[np.int64]  # the block numbers, in the order of the epoch
    starts: NDArray[np.int64]  # the first place of each block, and the end
    shifts: NDArray[np.int64]  # for each block: key minus place
    groups: NDArray[np.int64]  # the first place of each group
    sizes: NDArray[np.int64]  # the size of each group, at least 1
    strides: NDArray[np.int64]  # the stride of each group: see `_strides`
    offsets: NDArray[np.int64]
    # The parts of all groups, sorted by their stretch:
    begins: NDArray[np.int64]  # the first position of each part, and the end
    moves: NDArray[np.int64]  # for each part: index in the group minus position
    group_of: NDArray[np.int64]
    stretches: NDArray[np.int64]  # the first position of each stretch, and the end

    def keys(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the keys at these positions. May overwrite `positions`."""
        stretches = self.stretches.searchsorted([positions.min(), positions.max()], "right") - 1
        low, high = stretches.tolist()
        if low == high:  # as for most batches
            places = self._shuffled(low, positions)
        else:
            stretches, places = self.stretches.searchsorted(positions, "right") - 1, positions
            for stretch in np.unique(stretches).tolist():
                chosen = stretches == stretch
                places[chosen] = self._shuffled(stretch, positions[chosen])
        parts = self.begins.searchsorted(places, "right") - 1
        groups = self.group_of[parts]
        places += self.moves[parts]
        places *= self.strides[groups]
        places += self.offsets[groups]
        places %= self.sizes[groups]
        places += self.groups[groups]
        places += self.shifts[self.starts.searchsorted(places, "right") - 1]
        return places

    def _shuffled(self, stretch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        first, stop = self.stretches[stretch : stretch + 2].tolist()
        places: NDArray[np.int64] = _permutation(stop - first, mix(self.key, _STRETCH, stretch)).at(positions - first)
        places += first
        return places


# Each use of randomness in an epoch has its own key.
_BLOCKS, _STRETCH, _STRIDE, _OFFSET = range(4)


def arranged(order: BlockOrder, epoch: int) -> Arrangement:
    """Returns the arrangement of an epoch. This takes 130 bytes and 0.8 µs per block if `window` is 16."""
    key, edges = mix(order.seed, epoch), order.edges
    blocks = len(edges) - 1
    numbers = Permutation(max(1, blocks), mix(key, _BLOCKS)).at(np.arange(blocks))
    starts = np.concatenate([[0], np.diff(edges)[numbers].cumsum()])
    shifts = edges[:-1][numbers] - starts[:-1]
    ends, parts = division(blocks, order.window)
    groups, sizes = starts[ends[:-1]], np.diff(starts[ends])
    each = np.arange(len(groups))
    # Part i of group g is in stretch g + i. The stretches in which the window fills are merged into one, and so are
    # those in which it empties: so each stretch mixes as many groups as a group has parts.
    of, part = np.divmod(np.arange(len(groups) * parts), parts)
    stretch = (of + part - parts + 1).clip(0, len(groups) - parts)
    by_stretch = stretch.argsort(kind="stable")
    group_of, part = of[by_stretch], part[by_stretch]
    whole, rest = np.divmod(sizes[group_of], parts)
    begins = np.concatenate([[0], (whole + (part < rest)).cumsum()])
    moves = whole * part + np.minimum(part, rest) - begins[:-1]
    stretches = begins[np.searchsorted(stretch[by_stretch], np.arange(len(groups) - parts + 2))]
    sizes = sizes.clip(1)
    offsets = (hashes(mix(key, _OFFSET), each) % sizes.view(np.uint64)).view(np.int64)
    strides = _strides(sizes, hashes(mix(key, _STRIDE), each))
    of_groups = groups, sizes, strides, offsets
    return Arrangement(key, numbers, starts, shifts, *of_groups, begins, moves, group_of, stretches)


# Two, because the next epoch may be drawn early.
_arrangement = lru_cache(maxsize=2)(arranged)


def division(blocks: int, window: int) -> tuple[NDArray[np.int64], int]:
    """Returns the edges of groups of nearly equal size, and the number of parts per group (K in `BlockOrder`)."""
    size = max(1, window // 8)
    groups, parts = (1, 1) if blocks <= window else (-(-blocks // size), max(1, window // size - 1))
    return np.arange(groups + 1) * blocks // groups, parts


def _strides(sizes: NDArray[np.int64], numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns, for each size, a random stride that has no divisor in common with the size.

    `i * stride % size` is then a permutation of 0..size-1. Most strides spread neighbours over the whole range. The
    product stays below 2**62.
    """
    most = np.minimum(sizes, (1 << 62) // sizes).view(np.uint64)
    strides = (numbers % most).view(np.int64) + 1
    while (unfit := np.gcd(strides, sizes) > 1).any():
        strides[unfit] -= 1  # ends with 1, which always fits
    return strides


def _as_edges(blocks: ArrayLike) -> NDArray[np.int64]:
    """Returns a read-only copy of the edges: the first key of each block, and the end of the last."""
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
