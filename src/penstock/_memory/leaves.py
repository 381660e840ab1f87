"""Pickling of the leaves that have no spot in the slab: the bytes of arrays inside of them go there all the same."""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.guests import REDUCERS, Reduce, Spot, all_met, guest_in

Place = Spot  # the name that _wire/reply.py imports


def dump(make_pickler: type[pickle.Pickler], value: object, buffers: list[pickle.PickleBuffer]) -> bytes:
    """Pickles `value` without the bytes of the arrays in it, which are appended to `buffers`."""
    file = io.BytesIO()
    is_plain = make_pickler is pickle.Pickler
    # A table of its own replaces the global one, to which programs may add at any time.
    common = copyreg.dispatch_table if is_plain else make_pickler.dispatch_table
    table = {**common, **REDUCERS} if all_met() else _Meeting({**common, **REDUCERS})
    if is_plain:
        pickler = make_pickler(file, 5, buffer_callback=buffers.append)
        pickler.dispatch_table = table
    else:  # cloudpickle's reads the table of its class, once, when it is made
        pickler = type("Pickler", (make_pickler,), {"dispatch_table": table})(
            file, 5, buffer_callback=buffers.append
        )
    pickler.dump(value)
    return file.getvalue()


class _Meeting(dict[type, Reduce]):
    """A table of reducers while a guest is not met yet: one of its objects may be in this very pickle."""

    def __missing__(self, kind: type) -> Reduce:
        if guest_in(kind.__module__) is not None and kind in REDUCERS:
            return REDUCERS[kind]
        raise KeyError(kind)


def _reduce_array(array: NDArray[Any]) -> str | tuple[Any, ...]:
    """numpy's own reduction, of a copy where the array would otherwise arrive read-only or inside the pickle."""
    flags = array.flags
    if not (flags.writeable and flags.forc):
        array = array.copy()
    return array.__reduce_ex__(5)


REDUCERS[np.ndarray] = _reduce_array
