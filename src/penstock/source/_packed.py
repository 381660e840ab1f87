"""`PackedList` holds millions of paths in two arrays, which workers share.

In a list, every str has a reference count, and reading a str changes the count. So a forked worker that reads a list
gradually copies the memory of the list, page by page. Two numpy arrays have only two reference counts.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from operator import index as as_int
from operator import methodcaller
from typing import Any, Generic, Literal, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
ItemKind = Literal["str", "bytes", "pickle"]

_ITEMS_AT_ONCE = 1024


class PackedList(Sequence[T], Generic[T]):
    """A read-only list of str, of bytes, or of anything that can be pickled, held in two arrays.

    Choose it for the long lists of a dataset (paths, captions, records). Workers share one copy, which is sent to
    them as two buffers. Reading an item makes a new object, in less than 1 µs for str and bytes. Other items, and
    lists that mix types, are pickled one by one. The constructor takes any iterable, and reads it once.

    >>> paths = PackedList(f"images/{i:06}.png" for i in range(1000))
    >>> paths[-1], len(paths[10:20]), paths
    ('images/000999.png', 10, PackedList(1000 str, 25.0 kB))
    """

    __slots__ = ("_bytes", "_decode", "_edges", "data", "kind", "offsets")

    def __init__(self, items: Iterable[T]) -> None:
        if isinstance(items, np.ndarray) and items.dtype.kind in "US":
            items = items.tolist()  # its own elements are np.str_, which would be pickled
        data, offsets, kind = _pack(items)
        self._set(np.frombuffer(data, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int64), kind)

    @staticmethod
    def of_bytes(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> PackedList[bytes]:
        """Returns the list that uses these two arrays. Item i is the bytes from `offsets[i]` to `offsets[i + 1]`."""
        return _restore(data, offsets, "bytes")

    def _set(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], kind: ItemKind) -> None:
        data.flags.writeable = offsets.flags.writeable = False
        self.data, self.offsets, self.kind = data, offsets, kind
        # A memoryview returns Python ints and slices in half the time that numpy takes.
        self._bytes, self._edges = data.data, offsets.data
        self._decode: Callable[[Any], Any] = _DECODE[kind]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> PackedList[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | PackedList[T]:
        if isinstance(index, slice):
            return self._slice(index)
        at, edges = as_int(index), self._edges
        n = len(edges) - 1
        if at < 0:
            at += n
        if not 0 <= at < n:
            raise IndexError(f"index {index} is outside a PackedList of {n} items.")
        item: T = self._decode(self._bytes[edges[at] : edges[at + 1]])
        return item

    def _slice(self, index: slice) -> PackedList[T]:
        start, stop, step = index.indices(len(self))
        if step != 1:
            return PackedList(self[at] for at in range(start, stop, step))
        return _restore(self.data, self.offsets[start : max(start, stop) + 1], self.kind)

    def __iter__(self) -> Iterator[T]:
        decode, data = self._decode, self._bytes
        for first in range(0, len(self), _ITEMS_AT_ONCE):
            edges = self.offsets[first : first + _ITEMS_AT_ONCE + 1].tolist()
            for start, stop in pairwise(edges):
                yield decode(data[start:stop])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (PackedList, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # unhashable, as a list is

    def __reduce__(self) -> tuple[Any, ...]:
        # The data of a slice is that of the whole list: send only its part. Protocol 5 sends arrays as buffers.
        first, last = self._edges[0], self._edges[-1]
        return _restore, (self.data[first:last], self.offsets - first if first else self.offsets, self.kind)

    def __repr__(self) -> str:
        size = self._edges[-1] - self._edges[0] + self.offsets.nbytes
        power = min((len(str(size)) - 1) // 3, 3)
        kind = "pickled" if self.kind == "pickle" else self.kind
        return f"PackedList({len(self)} {kind}, {size / 1000**power:.1f} {('B', 'kB', 'MB', 'GB')[power]})"


def _restore(data: NDArray[np.uint8], offsets: NDArray[np.int64], kind: ItemKind) -> PackedList[Any]:
    restored: PackedList[Any] = PackedList.__new__(PackedList)
    restored._set(data.view(), offsets.view(), kind)
    return restored


def _text(data: memoryview) -> str:
    # surrogatepass keeps every str, even file names that are not valid UTF-8 (os.fsdecode).
    return str(data, "utf-8", "surrogatepass")


_DECODE: dict[ItemKind, Callable[[Any], Any]] = {"str": _text, "bytes": bytes, "pickle": pickle.loads}
_ENCODE: dict[ItemKind, Callable[[Any], bytes]] = {
    "str": methodcaller("encode", "utf-8", "surrogatepass"),
    "bytes": bytes,
    "pickle": partial(pickle.dumps, protocol=5),
}


def _pack(items: Iterable[Any], kind: ItemKind | None = None) -> tuple[bytearray, array[int], ItemKind]:
    """Returns the concatenated items, their n + 1 offsets, and their kind ("pickle" if the types are mixed)."""
    data, offsets = bytearray(), array("q", [0])
    items = iter(items)
    for item in items:
        item_kind: ItemKind = "str" if type(item) is str else "bytes" if type(item) is bytes else "pickle"
        if kind is None:
            kind = item_kind
        elif kind not in (item_kind, "pickle"):
            packed = _restore(np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64), kind)
            return _pack(chain(packed, [item], items), "pickle")
        try:
            data += _ENCODE[kind](item)
        except Exception as error:
            raise TypeError(
                f"item {len(offsets) - 1} of a PackedList, a {type(item).__qualname__}, cannot be pickled: {error}. "
                "A PackedList holds str, bytes and objects that can be pickled; store this one elsewhere."
            ) from error
        offsets.append(len(data))
    return data, offsets, kind or "str"
