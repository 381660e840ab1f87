"""Failures: exceptions that cross a process boundary and keep their type.

In the worker, `Failure.capture` turns an exception into bytes. In the parent, `restore` turns the bytes into an
exception with the same type, args, attributes and notes. The exception also gets a note that says where the error
happened, and the remote traceback as its cause. Both functions work even if the exception's own methods fail.

In a worker that is not a process, `caught` makes a copy instead, because a program may raise the same object many
times, and in several threads at once.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock._at_work import is_worker_process
from penstock._system.ending import RAISING
from penstock._system.panics import ordinary
from penstock._wire.pickling import by_tag, dumps, loads
from penstock.errors import RemoteTraceback

_UNSET = object()
# These use the descriptors of BaseException, because the user's type may define attributes with the same names.
_members = vars(BaseException)
dict_of, _args_of, _trace_of = (_members[name].__get__ for name in ("__dict__", "args", "__traceback__"))
_set = BaseException.__setattr__
_MOST_CHARACTERS = 200  # the largest number of characters of a repr in a note

# Types that cannot be imported by name are sent by tag or by address, so that `except MyError` works in the parent.
# cloudpickle's own class tracking was rejected, because it overwrites the attributes and methods of the parent's
# class with those of the worker's class.
_by_tag = by_tag()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as plain data. `body` is the pickled exception, or b"" if it cannot be pickled."""

    name: str
    message: str
    where: str
    traceback: str
    notes: tuple[str, ...]
    body: bytes

    @classmethod
    def capture(cls, exc: BaseException, *, where: str, notes: Sequence[str] = ()) -> bytes:
        """Returns the exception as bytes, with `where` and `notes` as additional notes. This method never raises."""
        exc = ordinary(exc)
        forget_earlier(exc)
        dropped: list[str] = []
        try:
            body = _body(exc, dropped)
        except BaseException:  # its __reduce__ may do anything; SIGINT is ignored in a worker
            body = b""
        own, message = list[str](), ""
        with suppress(BaseException):
            message = safe_text(exc)
        with suppress(BaseException):  # the exception has no notes, or `__notes__` is not a list
            own = [safe_text(note) for note in exc.__notes__]
        return dumps(cls(type_name(exc), message, where, text_of(exc), (*own, *dropped, *notes), body))

    def exception(self) -> BaseException:
        """Returns the exception. If it cannot be rebuilt, returns a RuntimeError with the `name` and `message`."""
        try:
            exc: BaseException = loads(self.body)
            if not isinstance(exc, BaseException):
                raise TypeError(f"{self.name} came back as {type(exc)}")
        except Exception:  # a type that this process cannot build
            exc = RuntimeError(f"{self.name}: {self.message}")
        for note in (*self.notes, self.where):
            annotate(exc, note)
        return without_trace(exc, RemoteTraceback(self.traceback))


def restore(data: bytes | bytearray | memoryview) -> BaseException:
    """Decodes an exception that `Failure.capture` or a runner's `capture` has encoded."""
    failure: Failure = loads(data)
    return failure.exception()


def caught(exc: BaseException, *notes: str) -> BaseException:
    exc = ordinary(exc)
    forget_earlier(exc)
    copy = copied(exc)
    for note in notes:
        annotate(copy, note)
    return copy


def copied(exc: BaseException, of: Callable[[Any], Any] = lambda value: value) -> BaseException:
    """Copies `exc`, converting its args and attributes with `of`. If copying fails, returns `exc` itself."""
    try:
        attributes, slots = ({name: of(each[name]) for name in each} for each in (dict_of(exc), _slots(exc)))
        copy: BaseException = _rebuild(type(exc), of(_args_of(exc)), attributes, slots)
    except Exception:
        return exc
    notes = dict_of(copy).get("__notes__")
    if isinstance(notes, list):
        dict_of(copy)["__notes__"] = [*notes]
    for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__"):
        _set(copy, name, _members[name].__get__(exc))
    return copy


def keep(exc: BaseException, *, where: str) -> BaseException:
    """Returns a copy of `exc` to store. The traceback becomes text, because frames would keep samples alive."""
    exc = ordinary(exc)
    forget_earlier(exc)
    cause = RemoteTraceback(text_of(exc))
    return without_trace(annotate(copied(exc, _traceless), where), cause)


def _traceless(value: Any) -> Any:
    """Copies exceptions, even inside lists, tuples and dicts, but not their tracebacks. Keeps all other values."""
    if isinstance(value, BaseException):
        return without_trace(copied(value, _traceless))
    if type(value) is dict:
        return {name: _traceless(inner) for name, inner in value.items()}
    return type(value)(map(_traceless, value)) if type(value) in (list, tuple) else value


def without_trace(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    for name, value in (("__traceback__", None), ("__context__", None), ("__cause__", cause)):
        _set(exc, name, value)  # the type's own __setattr__ may refuse
    return exc


def forget_earlier(exc: BaseException) -> None:
    """If an exception was raised more than once, removes the older frames from its traceback."""
    # If an object is raised again, Python puts the new frames before the old ones, so its traceback would grow
    # without limit. The old frames begin where the function that catches the exception occurs a second time. They
    # are kept if the frame before them is `RAISING`: then they belong to another loader, which the dataset uses.
    first = at = _trace_of(exc)
    while at is not None and (after := at.tb_next) is not None:
        if after.tb_frame.f_code is first.tb_frame.f_code and at.tb_frame.f_code is not RAISING:
            at.tb_next = None
        at = at.tb_next


def annotate(exc: BaseException, where: str) -> BaseException:
    """Adds the note `where` to `exc` unless `exc` already has it. Returns `exc`."""
    notes = dict_of(exc).get("__notes__")  # not by add_note: a __setattr__ may refuse
    if not isinstance(notes, list):
        notes = dict_of(exc)["__notes__"] = []
    if not any(note is where or (type(note) is str and note == where) for note in notes):
        notes.append(where)
    return exc


def _body(exc: BaseException, dropped: list[str]) -> bytes:
    """Pickles `exc`: as a whole if that gives an equal exception, otherwise as separate parts."""
    data, copy = _round_trip(exc)
    # If __init__ formats its argument, pickling succeeds, but the copy has its text formatted twice.
    if type(copy) is type(exc) and all(safe_text(copy, show) == safe_text(exc, show) for show in (str, _args)):
        return data
    return dumps(_ExceptionParts(exc, dropped), override=_by_tag)


def _args(exc: Any) -> str:
    return repr(exc.args)


def _round_trip(obj: object) -> tuple[bytes, Any]:
    try:
        data = dumps(obj, override=_by_tag)
        return data, loads(data)
    except BaseException:
        return b"", None


class _ExceptionParts:
    """An exception taken apart into type, args and attributes. Unpickling it returns the exception."""

    def __init__(self, exc: BaseException, dropped: list[str]) -> None:
        args = tuple(_sendable(arg, dropped) for arg in exc.args)
        attributes, slots = (_only_sendable(each, dropped) for each in (dict_of(exc), _slots(exc)))
        self._parts = (type(exc), args, attributes, slots)

    def __reduce__(self) -> Any:
        return _rebuild, self._parts


def _sendable(value: Any, dropped: list[str]) -> Any:
    if _round_trip(value)[0]:
        return value
    if isinstance(value, BaseException):  # a member of an exception group
        return _ExceptionParts(value, dropped)
    if type(value) in (list, tuple):
        return type(value)(_sendable(item, dropped) for item in value)
    return safe_text(value, repr)


def _only_sendable(values: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        if _round_trip(value)[0]:
            kept[name] = value
        else:
            dropped.append(f"its attribute {name!r} could not be sent: {safe_text(value, repr)[:_MOST_CHARACTERS]}")
    return kept


def _slots(exc: BaseException) -> dict[str, Any]:
    """Returns the attributes outside `__dict__`, such as OSError.filename and attributes named in `__slots__`."""
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
    dict_of(exc).update(attributes)
    for name, value in slots.items():
        with suppress(Exception):  # the attribute may be read-only
            # Sets only attributes that differ: if filename2 is set to None, OSError shows it.
            if getattr(exc, name, _UNSET) is not value:
                _set(exc, name, value)
    return exc


def _bare(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Creates an instance of `cls` with the constructor of its built-in base class. Skips the user's constructor."""
    for base in cls.__mro__:
        if base.__module__ != "builtins" or not issubclass(base, BaseException):
            continue
        for given in (args, ()):
            with suppress(Exception):  # another base determines the memory layout, or needs other arguments
                exc = base.__new__(cls, *given)
                base.__init__(exc, *given)
                _set(exc, "args", args)
                return exc
    raise TypeError(f"no built-in exception can make a {cls}")


def type_name(obj: object) -> str:
    cls = type(obj)
    try:
        return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    except BaseException:
        return "an object"


def described(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {safe_text(exc)}"


def safe_text(obj: object, show: Callable[[object], str] = str) -> str:
    """Returns `show(obj)` or, if `show` raises an error, text that names the error.

    Raises nothing, except a KeyboardInterrupt outside worker processes.
    """
    try:
        return "".join((show(obj),))  # joined: __str__ may return a subclass of str
    except BaseException as exc:
        if isinstance(exc, KeyboardInterrupt) and not is_worker_process():
            raise
        return f"<{type(obj).__name__} whose {show.__name__}() raised {type(exc).__name__}>"


def text_of(exc: BaseException) -> str:
    """Returns the traceback and message as Python prints them. This never raises."""
    try:
        return "".join(traceback.format_exception(exc))
    except BaseException:  # e.g. a __cause__ that is a property
        frames = "".join(traceback.format_tb(exc.__traceback__))
        return f"Traceback (most recent call last):\n{frames}{type_name(exc)}: {safe_text(exc)}\n"
