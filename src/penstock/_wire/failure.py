"""Failures: exceptions that cross a process boundary and keep their type.

`Failure.capture` runs in the worker and returns bytes. `restore` runs in the parent and returns the exception, with
the same type, args, attributes and notes, one more note that says where it happened, and the remote traceback as its
cause. Neither fails, whatever the exception's own methods do.

Types without an importable name travel by tag (see `pickling.py`), so that `except MyError` works in the parent.
Refused: cloudpickle's own class tracking, because on the way back it writes the worker's attributes and methods over
the parent's class.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock._wire.pickling import by_tag, dumps, loads
from penstock.errors import RemoteTraceback

_UNSET = object()
_dict_of = vars(BaseException)["__dict__"].__get__  # works also for types that define their own
_SHOWN = 200  # characters of a repr that a note may hold

_by_tag = by_tag()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as plain values, and as a pickle (`body`) if it can be pickled."""

    name: str
    message: str
    where: str
    traceback: str
    notes: tuple[str, ...]
    body: bytes

    @classmethod
    def capture(cls, exc: BaseException, *, where: str) -> bytes:
        """The exception as bytes; `where` is added to its notes. Never raises."""
        dropped: list[str] = []
        try:
            body = _body(exc, dropped)
        except BaseException:  # its __reduce__ may do anything; SIGINT is ignored in a worker
            body = b""
        notes: list[str] = []
        with suppress(BaseException):  # it has none, or `__notes__` is not a list
            notes = [_shown(note) for note in exc.__notes__]
        return dumps(cls(type_name(exc), _shown(exc), where, _text(exc), (*notes, *dropped), body))

    def exception(self) -> BaseException:
        """The exception, or a RuntimeError with its name and message if it cannot be rebuilt."""
        try:
            exc: BaseException = loads(self.body)
            if not isinstance(exc, BaseException):
                raise TypeError(f"{self.name} came back as {type(exc)}")
        except Exception:  # a type that this process cannot build
            exc = RuntimeError(f"{self.name}: {self.message}")
        for note in (*self.notes, self.where):
            annotate(exc, note)
        # Not by the type's own __setattr__, which may refuse.
        BaseException.__setattr__(exc, "__cause__", RemoteTraceback(self.traceback))
        return exc


def restore(data: bytes | bytearray | memoryview) -> BaseException:
    """The exception that `Failure.capture` got, or another runner's `capture`, ready to be raised."""
    failure: Failure = loads(data)
    return failure.exception()


def keep(exc: BaseException, *, where: str) -> BaseException:
    """`exc` in the form that `restore` returns, for a worker that is not a process: to be kept, and not raised now.

    The traceback becomes text, because its frames keep samples alive.
    """
    text = _text(exc)
    exc.__traceback__ = exc.__context__ = None
    BaseException.__setattr__(exc, "__cause__", RemoteTraceback(text))
    return annotate(exc, where)


def annotate(exc: BaseException, where: str) -> BaseException:
    """Adds the note `where` to `exc`, unless it has it already."""
    with suppress(Exception):  # its notes may have been set to something that is not a list
        notes = _dict_of(exc).setdefault("__notes__", [])  # not add_note: a __setattr__ may refuse
        if where not in notes:
            notes.append(where)
    return exc


def _body(exc: BaseException, dropped: list[str]) -> bytes:
    """`exc` pickled in its own way if the copy equals it, else taken apart."""
    data, copy = _round_trip(exc)
    # An __init__ that formats its argument pickles well and comes back with the text formatted twice.
    if type(copy) is type(exc) and all(_shown(copy, show) == _shown(exc, show) for show in (str, _args)):
        return data
    return dumps(_Parts(exc, dropped), override=_by_tag)


def _args(exc: Any) -> str:
    return repr(exc.args)


def _round_trip(obj: object) -> tuple[bytes, Any]:
    """The object as bytes, and its copy; no bytes if it cannot be sent."""
    try:
        data = dumps(obj, override=_by_tag)
        return data, loads(data)
    except BaseException:
        return b"", None


class _Parts:
    """An exception taken apart. Unpickling it returns the exception."""

    def __init__(self, exc: BaseException, dropped: list[str]) -> None:
        args = tuple(_sendable(arg, dropped) for arg in exc.args)
        attributes, slots = (_only_sendable(each, dropped) for each in (_dict_of(exc), _slots(exc)))
        self._parts = (type(exc), args, attributes, slots)

    def __reduce__(self) -> Any:
        return _rebuild, self._parts


def _sendable(value: Any, dropped: list[str]) -> Any:
    if _round_trip(value)[0]:
        return value
    if isinstance(value, BaseException):  # a member of an exception group
        return _Parts(value, dropped)
    if type(value) in (list, tuple):
        return type(value)(_sendable(item, dropped) for item in value)
    return _shown(value, repr)


def _only_sendable(values: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        if _round_trip(value)[0]:
            kept[name] = value
        else:
            dropped.append(f"its attribute {name!r} could not be sent: {_shown(value, repr)[:_SHOWN]}")
    return kept


def _slots(exc: BaseException) -> dict[str, Any]:
    """Attributes that `exc` keeps outside its `__dict__`: OSError.filename, ImportError.name, `__slots__`."""
    found: dict[str, Any] = {}
    for cls in type(exc).__mro__:
        if cls is BaseExceptionGroup:  # its members are in args
            continue
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith("__"):
                with suppress(AttributeError):  # a slot that was never set
                    found.setdefault(name, member.__get__(exc))
    return found


def _rebuild(cls: type[BaseException], args: Any, attributes: dict[str, Any], slots: dict[str, Any]) -> Any:
    exc = _bare(cls, args)
    _dict_of(exc).update(attributes)
    for name, value in slots.items():
        with suppress(Exception):  # the attribute may be read-only
            # Only what differs: OSError shows a filename2 that was set to None.
            if getattr(exc, name, _UNSET) is not value:
                BaseException.__setattr__(exc, name, value)
    return exc


def _bare(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An instance of `cls`, made by its built-in base type: the user's `__init__` is not called."""
    for base in cls.__mro__:
        if base.__module__ != "builtins" or not issubclass(base, BaseException):
            continue
        for given in (args, ()):
            with suppress(Exception):  # another base lays out the memory, or it wants other arguments
                exc = base.__new__(cls, *given)
                base.__init__(exc, *given)
                BaseException.__setattr__(exc, "args", args)
                return exc
    raise TypeError(f"no built-in exception can make a {cls}")


def type_name(obj: object) -> str:
    cls = type(obj)
    try:
        return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    except BaseException:
        return "an object"


def _shown(obj: object, show: Callable[[object], str] = str) -> str:
    try:
        return "".join((show(obj),))  # joined: __str__ may return a subclass of str
    except BaseException as exc:
        return f"<{type(obj).__name__} whose {show.__name__}() raised {type(exc).__name__}>"


def _text(exc: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(exc))
    except BaseException:  # e.g. a __cause__ that is a property
        frames = "".join(traceback.format_tb(exc.__traceback__))
        return f"Traceback (most recent call last):\n{frames}{type_name(exc)}: {_shown(exc)}\n"
