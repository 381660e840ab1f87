"""Pickling: the one place that decides how objects become bytes between processes.

Two picklers are used. Plain pickle names classes and functions by their module, and is fast. cloudpickle sends
those that cannot be imported, and all of `__main__`, by value; importing it takes 25 ms, so it is imported late.

    message   pickler                  arrays                               classes without an importable name
    task      plain, else cloudpickle  inside the pickle                    by value
    reply     plain, else cloudpickle  out of band, in the slab             by value
    mark      plain, else cloudpickle  inside the pickle                    by value
    failure   plain, else cloudpickle  inside the pickle                    by tag where tagged, else by value
    update    cloudpickle              inside the pickle                    by tag where known, else by value
    shipment  cloudpickle              out of band; mapped files by name    by value, and tagged on the way
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.guests import REDUCERS, Reduce, all_met, guest_in
from penstock._wire.tags import tagged

Override = Callable[[Any, Callable[[Any], Any]], Any]
"""`override(part, otherwise)` says how one object is pickled, as `reducer_override` does.

`otherwise(part)` is the pickler's own answer.
"""

loads = pickle.loads


def dumps(
    value: object,
    buffers: list[pickle.PickleBuffer] | None = None,
    *,
    override: Override | None = None,
    by_value: bool = False,
) -> bytes:
    """Pickles with plain pickle, or with cloudpickle where plain pickle fails or `by_value` is set.

    The bytes of arrays are appended to `buffers`, if it is given, instead of being part of the pickle.
    """
    if not by_value:
        try:
            if buffers is None and override is None:
                return pickle.dumps(value, 5)
            return _dumps(value, buffers, override, by_value=False)
        except Exception:  # a refusal has many types: PicklingError, AttributeError, TypeError
            if buffers is not None:
                buffers.clear()
    return _dumps(value, buffers, override, by_value=True)


def _dumps(
    value: object, buffers: list[pickle.PickleBuffer] | None, override: Override | None, *, by_value: bool
) -> bytes:
    file = io.BytesIO()
    aside = None if buffers is None else buffers.append
    dump(value, file, override=override, aside=aside, guests=buffers is not None, by_value=by_value)
    return file.getvalue()


def dump(
    value: object,
    file: Any,
    *,
    override: Override | None = None,
    aside: Callable[[pickle.PickleBuffer], object] | None = None,
    guests: bool = False,
    by_value: bool,
) -> None:
    """Pickles into a file. `aside` is pickle's `buffer_callback`. `guests`: arrays and guests by their reducers."""
    pickler = (
        _cloud_pickler(file, aside, guests) if by_value else _plain_pickler(file, aside, guests, override)
    )
    if override is None:
        pickler.dump(value)
        return
    otherwise = pickler.reducer_override
    pickler.reducer_override = lambda part: override(part, otherwise)
    try:
        pickler.dump(value)
    finally:
        del pickler.reducer_override  # a reference cycle, which would keep the value alive


class _Overridable(pickle.Pickler):
    def reducer_override(self, part: Any) -> Any:
        return NotImplemented


def _plain_pickler(file: Any, aside: Any, guests: bool, override: object) -> Any:
    make = pickle.Pickler if override is None else _Overridable
    pickler = make(file, 5, buffer_callback=aside)
    if guests:
        pickler.dispatch_table = _table(copyreg.dispatch_table)
    return pickler


def _cloud_pickler(file: Any, aside: Any, guests: bool) -> Any:
    import cloudpickle

    make: Any = cloudpickle.Pickler
    if guests:  # its table is an attribute of the class, read when the pickler is made
        make = type("Pickler", (make,), {"dispatch_table": _table(make.dispatch_table)})
    return make(file, 5, buffer_callback=aside)


def _table(common: Mapping[type, Any]) -> dict[type, Any]:
    """Reducers by exact class. It replaces the common table, which programs may add to at any time."""
    return {**common, **REDUCERS} if all_met() else _Meeting({**common, **REDUCERS})


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


def by_tag(find: Callable[[type], bytes | None]) -> Override:
    """An `override` that sends the classes for which `find` returns a tag by this tag."""

    def override(part: Any, otherwise: Callable[[Any], Any]) -> Any:
        known = find(part) if issubclass(type(part), type) else None
        return otherwise(part) if known is None else (tagged, (known,))

    return override
