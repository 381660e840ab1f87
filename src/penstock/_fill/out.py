"""The memory that a batch is written to: an `Empty`, or an `Into` where numbers are converted on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._fill.cast import BLOCK, Field
from penstock._memory.guests import HANDLERS
from penstock._memory.tree import flatten, unflatten
from penstock.errors import CastError

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Allocates C-contiguous memory for one array: in the slab, or `np.empty`. It may be an `Into`."""


class Into:
    """The memory for one field of a batch. Code that knows nothing of fields may call it like any `Empty`."""

    __slots__ = ("empty", "field")

    def __init__(self, field: Field, empty: Empty) -> None:
        self.field = field
        self.empty = empty

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.empty(shape, dtype)

    def below(self, keys: Iterable[Any]) -> list[Into]:
        return [Into(field, self.empty) for field in self.field.below(keys)]

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Memory for an array that has this dtype before it is converted."""
        return self.empty(shape, self.field.target(dtype) or dtype)

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy of the array, converted."""
        out = self.room(array.shape, array.dtype)
        self.field.write(out, array)
        return out

    def stack(self, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Arrays of one shape, stacked and converted. `dtype` can hold the values of all of them."""
        out = self.room((len(rows), *rows[0].shape), dtype)
        self.field.stack(out, rows, dtype)
        return out

    def gather(self, column: NDArray[Any], keys: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of a column that have these keys, converted in blocks that fit into the processor's cache."""
        out = self.room((len(keys), *column.shape[1:]), column.dtype)
        size = max(1, BLOCK * len(column) // max(1, column.nbytes))
        # take is faster, but first copies a whole column that is not contiguous.
        take = column.take if column.flags.c_contiguous else None
        for at in range(0, len(keys), size):
            some = keys[at : at + size]
            rows = column[some] if take is None else take(some, 0, None, "clip")
            self.field.write(out[at : at + size], rows, at)
        return out

    def finish(self, tree: object, rows: int) -> Any:
        """Converts the arrays of a batch of `rows` samples that were not yet converted when they were written."""
        leaves, spec = flatten(tree)
        made = []
        for leaf, field in zip(leaves, self.field.of(spec), strict=True):
            try:
                made.append(converted(leaf, field, self.empty))
            except CastError as error:
                if tuple(getattr(leaf, "shape", ())[:1]) != (rows,):
                    error.rows = ()  # the first axis does not count samples
                raise
        return tree if all(map(is_, made, leaves)) else unflatten(spec, made)


def converted(leaf: Any, field: Field, empty: Empty) -> Any:
    """The leaf converted to the field's dtype, in memory from `empty`; the leaf itself if it needs no conversion."""
    kind = type(leaf)
    if kind is np.ndarray or kind is np.memmap:
        return leaf if field.target(leaf.dtype) is None else Into(field, empty).put(leaf)
    handler = HANDLERS[kind]
    if handler is not None and handler.cast is not None:
        return handler.cast(leaf, field, empty)
    field.wanted("O", "a ", kind.__name__)
    return leaf
