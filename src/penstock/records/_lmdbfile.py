"""Reads the keys and values of an LMDB file, in key order.

The library `lmdb` is not used, for two reasons. It maps the file and trusts the contents, so a damaged page or a
truncated file crashes the process. And the environments of `lmdb` must not be used across a fork. This module checks
every number before using it, and reads the file at explicit offsets.

    pages 0 and 1  the states after the last two transactions; the newer one counts
    branch page    keys, and the pages below them
    leaf page      keys and values; for a large value only the page where it begins
    overflow page  the beginning of a large value, which continues on the next pages

A page begins with its number, its kind, and the offsets of its nodes, in key order. The nodes fill the end of the
page without a gap. LMDB has no checksums, so damage inside a value is not noticed here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock._files.index import Arrays
from penstock._files.local import AnyFile
from penstock.source._packed import PackedList

_MARK, _VERSION = 0xBEEFC0DE, 1
_DATABASE = "IHHQQQQQ"  # page size, flags, depth, pages of each kind (3), entries, root
# mark, version; free pages, the user's database; last page, transaction
_META = struct.Struct(f"<16xIIQQ{_DATABASE}{_DATABASE}QQ")
_PAGE = struct.Struct("<QHHHH")  # number, unused, kind, end of the node offsets, start of the nodes
_NODE = struct.Struct("<HHHH")  # size of the value (4 bytes), flags, size of the key
_KINDS = 0x6F
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_LARGE, _NO_VALUE = 1, 6
_DEEPEST = 32  # the limit of LMDB itself


def is_lmdb(first_bytes: bytes) -> bool:
    return first_bytes[16:20] == _MARK.to_bytes(4, "little")


def find_values(file: AnyFile) -> Arrays:
    """Returns the index of an LMDB file: the location of each key's value, in key order.

    `starts` holds the byte offset of each value, followed by the size of the file. `sizes` holds the length of each
    value. A large value begins at the start of a page, with the page's header. `page` is the size of a page. `keys`
    holds all keys in one byte array, and `key_edges` holds the offset at which each key begins.
    """
    return _Tree(file).arrays()


def value_of(raw: bytes, start: int, page: int) -> memoryview | None:
    """Returns the value that is stored in `raw`, or None if the value's page header is damaged.

    `start` is the offset of `raw` in the file, and `page` is the page size. A large value begins with a page header,
    which is left out.
    """
    if start % page or not raw:  # an empty value may be at the end of its page
        return memoryview(raw)
    number, _, kind, low, high = _PAGE.unpack_from(raw)
    enough = (high << 16 | low) * page >= len(raw)
    is_sound = number == start // page and kind & _KINDS == _OVERFLOW and enough
    return memoryview(raw)[_PAGE.size :] if is_sound else None


class _Tree:
    """The tree of pages in an LMDB file. Every number is checked before it is used."""

    def __init__(self, file: AnyFile) -> None:
        self._file = file
        flags, self._depth, self._entries, self._root = self._newest()
        if flags or (self._entries and not 1 <= self._depth <= _DEEPEST):
            what = f"a database with flags {flags:#x} and depth {self._depth} is not one that Caffe writes"
            self._file.damaged(0, what)

    def arrays(self) -> Arrays:
        starts, sizes = array("q"), array("q")
        keys: PackedList[bytes] = PackedList(self._walk(starts, sizes))
        if len(keys) != self._entries:
            self._file.damaged(0, f"{self._entries:,} entries were expected, but there are {len(keys):,}")
        begins, lengths = np.array(starts, np.int64), np.array(sizes, np.int64)
        self._check_values(keys, begins, lengths)
        return {
            "starts": np.append(begins, self._file.size),
            "sizes": lengths,
            "keys": keys.data,
            "key_edges": keys.offsets,
            "page": np.array([self._page]),
        }

    def _check_values(self, keys: PackedList[bytes], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Checks that all values are inside the file, and that no two of them overlap."""
        order = np.lexsort((sizes, starts))  # an empty value may end where the next page begins
        begins, ends = starts[order], (starts + sizes)[order]
        wrong = np.flatnonzero(ends > np.append(begins[1:], self._file.size))
        if len(wrong):
            key, end = keys[int(order[wrong[0]])], int(ends[wrong[0]])
            self._file.damaged(end, f"the value of key {key!r} ends here, inside another or outside the file")

    def _newest(self) -> tuple[int, int, int, int]:
        """Returns the tree's flags, depth, number of entries and root page, as of the last transaction."""
        first = self._meta(0)
        self._page = first[4]
        if self._page not in (1 << n for n in range(9, 16)):
            self._file.damaged(0, f"LMDB has no pages of {self._page:,} bytes")
        second = self._meta(self._page)
        ages = first[-1], second[-1]
        # Transactions write the two pages in turn, so that the state before the last one can still be read.
        if ages != (0, 0) and (ages[0] % 2 != 0 or ages[1] % 2 != 1 or abs(ages[0] - ages[1]) != 1):
            self._file.damaged(0, f"the last two transactions cannot have the numbers {ages[0]:,} and {ages[1]:,}")
        newest = first if ages[0] > ages[1] else second
        _, flags, depth, _, _, _, entries, root = newest[12:20]
        return flags, depth, entries, root

    def _meta(self, start: int) -> tuple[int, ...]:
        found = _META.unpack(self._file.read(start, _META.size))
        if found[:2] != (_MARK, _VERSION):
            self._file.damaged(start, "this is not an LMDB file of version 1, written by a 64-bit machine")
        return found

    def _walk(self, starts: array[int], sizes: array[int]) -> Iterator[bytes]:
        """Yields the keys in order, and appends the start and size of each value to the two arrays."""
        if self._entries == 0:
            return
        last: bytes | None = None
        for number, raw, positions in self._leaves(self._root, self._depth):
            for at in positions:
                low, high, flags, width = _NODE.unpack_from(raw, at)
                begin = at + _NODE.size + width
                key = raw[at + _NODE.size : begin]
                if flags & _NO_VALUE or (last is not None and key <= last) or len(sizes) == self._entries:
                    self._file.damaged(number * self._page + at, f"key {key!r} should not be here")
                last = key
                size = high << 16 | low
                if flags & _LARGE:
                    page = int.from_bytes(raw[begin : begin + 8], "little")
                    starts.append(self._page_start(page))
                    sizes.append(_PAGE.size + size)
                else:
                    starts.append(number * self._page + begin)
                    sizes.append(size)
                yield key

    def _leaves(self, number: int, depth: int) -> Iterator[tuple[int, bytes, tuple[int, ...]]]:
        """Yields the leaf pages below a page, in key order, as tuples (page number, bytes, offsets of the nodes)."""
        raw, positions = self._nodes(number, _LEAF if depth == 1 else _BRANCH)
        if depth == 1:
            yield number, raw, positions
            return
        for at in positions:
            low, high, higher, _ = _NODE.unpack_from(raw, at)
            yield from self._leaves(higher << 32 | high << 16 | low, depth - 1)

    def _nodes(self, number: int, expected: int) -> tuple[bytes, tuple[int, ...]]:
        """Returns the bytes of a page and the offsets of its nodes. The nodes must fill the end of the page."""
        start = self._page_start(number)
        raw = self._file.read(start, self._page)
        own, _, kind, low, high = _PAGE.unpack_from(raw)
        count = (low - _PAGE.size) // 2
        sound = own == number and kind & _KINDS == expected
        if not sound or count < 1 or low % 2 or not low <= high <= self._page:
            self._file.damaged(start, f"page {number:,} should be of kind {expected}, but is not")
        positions: tuple[int, ...] = struct.unpack_from(f"<{count}H", raw, _PAGE.size)
        end = high
        for at in [*sorted(positions), self._page]:
            if at != end or self._page - _NODE.size < at < self._page:
                self._file.damaged(start, f"the entries of page {number:,} do not fit into it")
            if at < self._page:
                low, high, flags, width = _NODE.unpack_from(raw, at)
                size = 0 if expected == _BRANCH else 8 if flags & _LARGE else high << 16 | low
                end = at + (_NODE.size + width + size + 1 & ~1)
        return raw, positions

    def _page_start(self, number: int) -> int:
        if not 1 < number < self._file.size // self._page:
            self._file.damaged(self._file.size, f"page {number:,} should be in the file, but is not")
        return number * self._page
