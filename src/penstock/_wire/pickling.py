"""Decides how objects that are sent between processes are pickled.

Plain pickle is fast, and sends classes and functions by name. cloudpickle sends everything in `__main__`, and
everything that cannot be imported (see `modules.py`), by value. cloudpickle takes 25 ms to import, so it is imported
only when needed.

    message   pickler                  arrays                               classes without an importable name
    task      plain, else cloudpickle  inside the pickle                    by value
    reply     plain, else cloudpickle  out of band, in the slab             by tag or address, else by value
    mark      plain, else cloudpickle  inside the pickle                    by value
    failure   plain, else cloudpickle  inside the pickle                    by tag or address, else by value
    update    cloudpickle              inside the pickle                    by tag where known, else by value
    shipment  cloudpickle              out of band; mapped files by name    by value, together with their tags

A tag is a name of eight random bytes that this process and its workers share. It stands for a class that is defined
in `__main__` or inside a function. If such a class were sent by value, it would arrive as a different class, and
`is`, `isinstance` and `except MyError` would fail. A forked worker inherits the tags, and any other worker gets them
with its shipment.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.guests import REDUCERS, Reduce, all_met, guest_in
from penstock._system.interrupts import import_whole
from penstock._wire.modules import sent_by_value

Override = Callable[[Any, Callable[[Any], Any]], Any]
"""`override(part, otherwise)` is like pickle's `reducer_override`; `otherwise(part)` does what pickle would do."""

loads = pickle.loads

# An assignment to `dispatch_table` would have no effect on a pickler of cloudpickle, whose class has an attribute of
# this name that is read only when the pickler is made.
_set_dispatch_table = vars(pickle.Pickler)["dispatch_table"].__set__


def dumps(
    value: object,
    buffers: list[pickle.PickleBuffer] | None = None,
    *,
    override: Override | None = None,
    otherwise: Override | None = None,
    by_value: bool = False,
    fresh: bool = False,
) -> bytes:
    """Pickles `value`. Uses cloudpickle if `by_value` is True or if plain pickle fails.

    If `buffers` is given, the bytes of arrays are appended to this list. Both picklers use `override`. If `override`
    is None and plain pickle fails, cloudpickle uses the argument `otherwise` as its override. `fresh` (see `dump`)
    has an effect only with `by_value`.
    """
    try:
        if buffers is None and override is None and not by_value:
            return pickle.dumps(value, 5)
        file = io.BytesIO()
        aside = None if buffers is None else buffers.append
        guests = buffers is not None
        dump(value, file, override=override, aside=aside, guests=guests, by_value=by_value, fresh=fresh)
        return file.getvalue()
    except Exception:  # pickle raises many types: PicklingError, AttributeError, TypeError
        if by_value:
            raise
        if buffers is not None:
            buffers.clear()
    return dumps(value, buffers, override=override or otherwise, by_value=True)


def dump(
    value: object,
    file: Any,
    *,
    override: Override | None = None,
    aside: Callable[[pickle.PickleBuffer], object] | None = None,
    guests: bool = False,
    by_value: bool,
    fresh: bool = False,
) -> None:
    """Pickles `value` into a file, and passes out-of-band buffers to `aside` (pickle's `buffer_callback`).

    If `guests` is True, `REDUCERS` pickle the arrays of numpy and of guest libraries. If `fresh` is True, a new
    interpreter will read the pickle, so objects that cannot be imported there are sent by value.
    """
    make: Any = pickle.Pickler if override is None else _Overridable
    common: Mapping[type, Any] = copyreg.dispatch_table
    if by_value:
        import_whole("cloudpickle")
        import cloudpickle

        make, common = cloudpickle.Pickler, cloudpickle.Pickler.dispatch_table
    pickler = make(file, 5, buffer_callback=aside)
    if guests:  # a new table, because programs may add to the common one at any time
        table = {**common, **REDUCERS}
        _set_dispatch_table(pickler, table if all_met() else _Meeting(table))
    if override is None and not fresh:
        pickler.dump(value)
        return
    otherwise = pickler.reducer_override
    with sent_by_value() if fresh else nullcontext() as look_at:

        def reduce(part: Any) -> Any:
            if look_at is not None:
                look_at(part)
            return otherwise(part) if override is None else override(part, otherwise)

        pickler.reducer_override = reduce
        try:
            pickler.dump(value)
        finally:
            del pickler.reducer_override  # breaks a reference cycle, which would keep the value alive


class _Overridable(pickle.Pickler):
    def reducer_override(self, part: Any) -> Any:
        return NotImplemented


class _Meeting(dict[type, Reduce]):
    """A dispatch table for pickle. It imports a guest library's reducers when they are first needed."""

    def __missing__(self, kind: type) -> Reduce:
        if guest_in(kind.__module__) is not None and kind in REDUCERS:
            return REDUCERS[kind]
        raise KeyError(kind)


def _reduce_array(array: NDArray[Any]) -> str | tuple[Any, ...]:
    """Pickles an array out of band. A strided array, or one that would arrive read-only, is copied first."""
    flags = array.flags
    if not (flags.writeable and flags.forc):
        array = array.copy()
    return array.__reduce_ex__(5)


REDUCERS[np.ndarray] = _reduce_array


# Tags. Both tables have weak references, so that a class made inside a function dies with the last object that uses
# it.
_tag_of: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()
_class_of: weakref.WeakValueDictionary[bytes, type] = weakref.WeakValueDictionary()


def by_tag(only: frozenset[bytes] | None = None) -> Override:
    """Returns an `Override` that sends classes by their tags. If `only` is given, other tags are not used."""

    def override(part: Any, otherwise: Callable[[Any], Any]) -> Any:
        if issubclass(type(part), type):
            with suppress(TypeError):  # a metaclass may make its classes unhashable
                known = _tag(part)
                if known is not None and (only is None or known in only):
                    return _tagged, (known,)
                # `only` is None if the receiver is the parent process, which knows the addresses of its types.
                if known is None and only is None and _is_nameless_exception(part):
                    return _inherited, _address(part)
        return otherwise(part)

    return override


def _tagged(known: bytes) -> type:
    return _class_of[known]


def tag(cls: type) -> bytes:
    known = _tag(cls)
    if known is None:
        known = os.urandom(8)  # random, not a counter, so that tags made in two processes never collide
        adopt({known: cls})
    return known


def _tag(cls: type) -> bytes | None:
    """Returns the tag of `cls`, or None if `cls` has none or another copy of the class has taken it over."""
    known = _tag_of.get(cls)
    return known if known is not None and _class_of.get(known) is cls else None


def adopt(tags: Mapping[bytes, type]) -> None:
    for known, cls in tags.items():
        _tag_of[cls] = known
        _class_of[known] = cls


# An exception type without a tag is sent both by its address, which is the same in a forked worker as in the parent,
# and by value. Tagging all exception types before each fork was rejected: a program with many libraries has over a
# thousand of them, and tagging a type copies its memory page. With MONAI this took 7 ms per worker.


def _is_nameless_exception(cls: type) -> bool:
    return issubclass(cls, BaseException) and (cls.__module__ == "__main__" or not _importable(cls))


def _address(cls: type) -> tuple[bytes, bytes]:
    """Returns the address and name of `cls` in this process, and the class pickled by value (b"" if that fails)."""
    place, by_value = _place(cls), b""
    _class_of[place] = cls
    with suppress(Exception):  # this also pickles everything that the class refers to, and may fail
        by_value = dumps(cls, by_value=True)
    return place, by_value


def _place(cls: type) -> bytes:
    return f"{id(cls):x} {cls.__module__}.{cls.__qualname__}".encode()


def _inherited(place: bytes, by_value: bytes) -> type:
    """Finds the exception class with this address and name in this process. If there is none, unpickles a copy."""
    found = _class_of.get(place) or next((cls for cls in _exceptions() if _place(cls) == place), None)
    if found is None:
        found = loads(by_value)
    else:
        _class_of[place] = found
    return found


def _exceptions() -> Iterator[type]:
    seen: set[int] = set()
    todo: list[type] = [BaseException]
    while todo:
        cls = todo.pop()
        if id(cls) not in seen:
            seen.add(id(cls))
            todo += type.__subclasses__(cls)
            yield cls


def tags_of_main() -> frozenset[bytes]:
    """Gives each class of `__main__` a tag. Workers that are forked later know the returned tags."""
    found: set[bytes] = set()
    todo: list[object] = [sys.modules["__main__"]]
    while todo:
        for value in tuple(vars(todo.pop()).values()):
            ours = issubclass(type(value), type) and vars(value).get("__module__") == "__main__"
            with suppress(TypeError):  # a metaclass may make its classes unhashable
                if ours and tag(value) not in found:
                    found.add(tag(value))
                    todo.append(value)
    return frozenset(found)


def _importable(cls: type) -> bool:
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        # Not getattr, because a module's own __getattr__ may import half a library.
        found = getattr(found, "__dict__", {}).get(name)
    return found is cls
