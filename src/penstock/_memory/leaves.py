"""Leaves beside numpy's arrays that live in the slab: how each class is stored there, and how it is pickled.

Nobody here knows a guest: penstock.torch registers its tensors, in the worker and in the calling process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from penstock._memory.layout import Writer

Make = Callable[[tuple[int, ...], Any, Any, int], Any]
"""Makes a leaf that is a view: of this shape and dtype, of this array of bytes, from this byte on.

`np.ndarray` is one. Others are functions of a module, so that a layout pickles them by name, and
whoever receives it imports what it needs.
"""

Place = tuple[Make, tuple[int, ...], Any, int]
"""Where a leaf is in its slab: the arguments of its Make, and the Make first."""

STORES: dict[type, Callable[[Any, Writer], Place | None]] = {}
"""For a leaf of exactly this class: its place, its bytes being there afterwards; None where it must be pickled."""

CASTS: dict[type, Callable[[Any, Any, Any], Any]] = {}
"""For a leaf of exactly this class: the same as a field's dtype (`_work.cast.Field`), in memory of an `empty`."""

REDUCERS: dict[type, Callable[[Any], str | tuple[Any, ...]]] = {}
"""For an object of exactly this class that is inside of other objects: how it is pickled."""


def register(
    kind: type,
    store: Callable[[Any, Writer], Place | None],
    reduce: Callable[[Any], str | tuple[Any, ...]],
    cast: Callable[[Any, Any, Any], Any] | None = None,
) -> None:
    """`reduce` is as `__reduce_ex__(5)`, for those inside of other objects: it may give PickleBuffers."""
    STORES[kind] = store
    if cast is not None:
        CASTS[kind] = cast
    REDUCERS[kind] = reduce


def _reduce_array(array: NDArray[Any]) -> str | tuple[Any, ...]:
    """As numpy does it, but what would arrive read-only, or in the pickle itself, is copied first."""
    flags = array.flags
    if not (flags.writeable and flags.forc):
        array = array.copy()
    return array.__reduce_ex__(5)


REDUCERS[np.ndarray] = _reduce_array
