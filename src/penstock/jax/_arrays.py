"""Converts batches to `jax.Array`s. Each `jax.Array` copies an array of the batch, or refers to that array's memory.

On the CPU, JAX does not copy a numpy array whose memory is aligned to 64 bytes: the `jax.Array` refers to the numpy
array, or to the base of the numpy array. The base of a batch's arrays is the root array of the slab, so the slab is
reused only after JAX has dropped the last reference (see `_memory/slabs.py`). Arrays outside the slab are always
copied, because they may belong to the user, who may change them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from penstock._fill.cast import Cast, converted
from penstock._memory.forms import MemoTable
from penstock._memory.tree import Spec, flatten, unflatten
from penstock.jax._rows import for_rank
from penstock.plan import LocalRows

_SCALARS = (bool, int, float, complex, np.generic)


def _is_known(dtype: np.dtype[Any]) -> bool:
    try:
        jax.typeof(np.empty(0, dtype))
    except TypeError:  # text, objects, times, records
        return False
    return True


KNOWN = MemoTable(_is_known)
"""Maps each numpy dtype to whether JAX supports it, possibly after narrowing (such as int64 to int32)."""


class DevicePlacer:
    """Converts each batch of a loader to `jax.Array`s.

    - `sharding`: how arrays are divided among devices, or None for arrays on the default device.
    - `batch_size`: the number of rows in the global batch, or None if this process holds all devices of the
      sharding. With None, a batch may have any number of rows.
    - `rows`: the rows of the global batch that this process makes, or None if this process makes all rows.
    - `cast`: the loader's cast. Here it is applied only to Python numbers, because workers do not convert them.
    """

    def __init__(self, sharding: Any, batch_size: int | None, rows: LocalRows | None, cast: Cast | None) -> None:
        self.sharding, self._batch_size, self._rows, self._cast = sharding, batch_size, rows, cast
        self._parts = MemoTable(self._parts_of)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_parts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _parts=MemoTable(self._parts_of))

    def __call__(self, batch: Any, root: NDArray[np.uint8] | None) -> Any:
        """Returns the batch with all values that JAX can hold (not text, for example) converted to `jax.Array`s."""
        leaves, spec = flatten(batch)
        at, arrays = [], []
        slab = None if root is None else root.base  # where several steps share a slab, `root` is a view itself
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, _SCALARS):
                leaf = self._scalar(leaf, number, spec)
            if isinstance(leaf, np.ndarray):
                if not KNOWN[leaf.dtype]:
                    continue
                base = leaf.base
                if base is None or (base is not root and base is not slab) or not leaf.dtype.isnative:
                    leaf = np.array(leaf, leaf.dtype.newbyteorder("="))
            elif not isinstance(leaf, jax.Array):
                continue
            at.append(number)
            arrays.append(leaf)
        try:
            made = jax.device_put(arrays) if self.sharding is None else list(map(self._split, arrays))
        except _Unfit as unfit:
            number = at[next(number for number, array in enumerate(arrays) if array is unfit.array)]
            raise ValueError(f"{_field(spec, number)} {unfit}") from unfit.__cause__
        for number, array in zip(at, made, strict=True):
            leaves[number] = array
        return unflatten(spec, leaves)

    def rows_in_all(self, rows: int) -> int:
        """Returns the number of rows in the global batch. This process has made `rows` of these rows."""
        return self._batch_size or rows

    def mask(self, rows: int, pad: int) -> jax.Array:
        """Returns a mask of `rows` rows, the last `pad` of which are False. The mask is split like a batch."""
        mask = np.arange(rows) < rows - pad
        if self.sharding is None:
            return jax.device_put(mask)
        return self._split(mask if self._rows is None else mask[list(self._rows)])

    def _scalar(self, leaf: Any, number: int, spec: Spec) -> Any:
        array = np.asarray(leaf)
        if self._cast is None or not KNOWN[array.dtype]:
            return array
        return converted(array, self._cast.root().of(spec)[number], np.empty)

    def _split(self, array: Any) -> jax.Array:
        """Returns a global array. Each device of this process gets its part of `array`."""
        try:
            shape, sharding, parts = self._parts[array.shape]
        except ValueError as error:
            raise _Unfit(array, str(error)) from error.__cause__
        # The fastest of four ways (see decision 0056). The callback is called once for each device of this process.
        if parts is None:
            return jax.make_array_from_callback(shape, sharding, lambda index: array[index])
        return jax.make_array_from_callback(shape, sharding, lambda index: array[parts[_key(index)]])

    def _parts_of(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any, dict[Any, Any] | None]:
        """Returns the shape and sharding of the global array, and the place of each part in this process's array.

        If this process makes all rows, its array is the global array, and None is returned instead of the places.
        """
        sharding, whole, size = for_rank(self.sharding, len(shape)), shape, self._batch_size
        if size is not None:
            made = size if self._rows is None else len(self._rows)
            if shape[:1] != (made,):
                raise ValueError(
                    f"has the shape {shape}, but its first axis must be the {made} rows of the global batch that "
                    "this process has loaded. Other processes may have other values in it. Leave it out of the batch."
                )
            whole = size, *shape[1:]
        try:
            indices = sharding.addressable_devices_indices_map(whole)
        except ValueError as error:
            raise ValueError(
                f"has the shape {whole}, which cannot be split by {sharding}. Choose a batch_size that is a multiple "
                f"of the number of parts{_LAST}, a sharding of fewer axes, or pad the samples to one shape."
            ) from error
        if self._rows is None:
            return whole, sharding, None
        places = {row: at for at, row in enumerate(self._rows)}
        parts = {}
        for index in indices.values():
            rows, *others = index
            begin = places[rows.start]
            parts[_key(index)] = slice(begin, begin + rows.stop - rows.start), *others
        return whole, sharding, parts


_LAST = ' (and last_batch="pad" or "drop")'


class _Unfit(Exception):
    """Raised for an array that cannot be split. The message lacks the name of the array's field."""

    def __init__(self, array: Any, message: str) -> None:
        super().__init__(message)
        self.array = array


def _key(index: tuple[slice, ...]) -> tuple[tuple[int | None, int | None], ...]:
    return tuple([(part.start, part.stop) for part in index])


def _field(spec: Spec, number: int) -> str:
    """Returns the name of a leaf, for error messages."""
    return str(Cast((), False, False).root().of(spec)[number]).capitalize()
