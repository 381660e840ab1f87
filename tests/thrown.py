"""Exceptions that a program may raise anywhere, and that might mean something else to penstock, or break it."""

from __future__ import annotations

import asyncio
import gc
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.errors import InternalError


class Stopped(StopIteration):
    """A StopIteration of the user's own."""


class TwoArguments(Exception):
    def __init__(self, first: int, second: str) -> None:
        super().__init__(f"{first} and {second}")


class RaisingInit(Exception):
    """Can be made once, here, and never again from what pickle keeps."""

    def __init__(self, *args: Any, made: bool = False) -> None:
        if not made:
            raise StopIteration("from __init__")
        super().__init__(*args)


class RaisingStr(Exception):
    def __str__(self) -> str:
        raise StopIteration("from __str__")


class RaisingRepr(Exception):
    def __repr__(self) -> str:
        raise GeneratorExit("from __repr__")

    __str__ = __repr__


class RaisingReduce(Exception):
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt("from __reduce__")


def refuse(*args: Any) -> Any:
    raise EOFError("from the function that unpickling calls")


class Unbuildable(Exception):
    def __reduce__(self) -> Any:
        return refuse, ()


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


class Falsy(Exception):
    def __len__(self) -> int:
        return 0


class Noteless(Exception):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.__notes__ = 5  # type: ignore[assignment]


class Dictless(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise StopIteration("from __dict__")


class Equal(Exception):
    """Raises when it is compared, and when it is hashed."""

    def __eq__(self, other: object) -> bool:
        raise StopIteration("from __eq__")

    def __hash__(self) -> int:
        raise StopIteration("from __hash__")


class Rows(Exception):
    """Uses a name that our own errors use, for something else."""

    rows = 5


def _with_a_lock() -> BaseException:
    error = ValueError("locked", threading.Lock())
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    return error


def _group() -> BaseException:
    inner = KeyError("inner")
    inner.add_note("a note of the inner one")
    inner.__cause__ = OSError(5, "the cause of the inner one")
    return ExceptionGroup("several", [inner, TwoArguments(3, "four")])


def _noted() -> BaseException:
    error = ValueError("noted")
    error.add_note("a note of the user's")
    error.__cause__ = LookupError("the cause")
    return error


def _recurse() -> None:
    _recurse()


def _deep() -> BaseException:
    gc.disable()  # a finalizer that is called at this depth fails, and Python prints that
    try:
        _recurse()
    except RecursionError as error:
        return error
    finally:
        gc.enable()
    raise AssertionError


SHARED = LookupError("one object, raised many times")

THROWN: dict[str, Callable[[], BaseException]] = {
    "StopIteration": lambda: StopIteration("stop"),
    "a StopIteration of a class of its own": lambda: Stopped("stop", 2),
    "StopAsyncIteration": lambda: StopAsyncIteration("stop"),
    "GeneratorExit": lambda: GeneratorExit("exit"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("pressed"),
    "SystemExit": lambda: SystemExit(3),
    "CancelledError": lambda: asyncio.CancelledError("cancelled"),
    "EOFError": lambda: EOFError("no more"),
    "BrokenPipeError": lambda: BrokenPipeError(32, "burst"),
    "ConnectionResetError": lambda: ConnectionResetError(104, "reset"),
    "TimeoutError": lambda: TimeoutError("late"),
    "LoaderTimeout": lambda: penstock.LoaderTimeout("a loader inside the dataset is late"),
    "WorkerLost": lambda: penstock.WorkerLost("a loader inside the dataset lost a worker"),
    "InternalError": lambda: InternalError("a loader inside the dataset has a bug"),
    "StateError": lambda: penstock.StateError("no state"),
    "CollateError": lambda: penstock.CollateError("does not fit"),
    "UnshippableDataset": lambda: penstock.UnshippableDataset("cannot be sent"),
    "RecursionError": _deep,
    "MemoryError": lambda: MemoryError("full"),
    "Empty": lambda: queue.Empty("empty"),
    "IndexError": lambda: IndexError("outside"),
    "KeyError": lambda: KeyError("missing"),
    "AttributeError": lambda: AttributeError("none", name="x", obj=3),
    "TypeError": lambda: TypeError("wrong"),
    "NotImplementedError": lambda: NotImplementedError("not yet"),
    "AssertionError": lambda: AssertionError("no"),
    "BlockingIOError": lambda: BlockingIOError(11, "try again"),
    "InterruptedError": lambda: InterruptedError(4, "interrupted"),
    "ChildProcessError": lambda: ChildProcessError(10, "no child"),
    "ProcessLookupError": lambda: ProcessLookupError(3, "no process"),
    "UserWarning": lambda: UserWarning("as an error"),
    "a class with two arguments": lambda: TwoArguments(3, "four"),
    "an __init__ that raises": lambda: RaisingInit("made", made=True),
    "a __str__ that raises": lambda: RaisingStr("text"),
    "a __repr__ that raises": lambda: RaisingRepr("text"),
    "a __reduce__ that raises": lambda: RaisingReduce("text"),
    "a class that cannot be unpickled": lambda: Unbuildable("text"),
    "a frozen class": lambda: Frozen("text"),
    "a false value": lambda: Falsy("text"),
    "notes that are no list": lambda: Noteless("text"),
    "a __dict__ that raises": lambda: Dictless("text"),
    "an __eq__ that raises": lambda: Equal("text"),
    "an attribute rows": lambda: Rows("text"),
    "what cannot be pickled": _with_a_lock,
    "a group": _group,
    "a note and a cause": _noted,
    "one object": lambda: SHARED,
    "the same object again": lambda: SHARED,
}


def throw(name: str) -> Any:
    raise THROWN[name]()


def comes_out_as(name: str) -> type[BaseException]:
    """The type that the caller of `next()` gets."""
    kind = type(THROWN[name]())
    return RuntimeError if issubclass(kind, StopIteration) else kind


def notes(error: BaseException) -> list[str]:
    found = getattr(error, "__notes__", ())
    return list(found) if isinstance(found, (list, tuple)) else []


def depth(error: BaseException) -> int:
    """The number of frames in its traceback."""
    trace, count = error.__traceback__, 0
    while trace is not None:
        trace, count = trace.tb_next, count + 1
    return count


SECONDS = 280


@pytest.fixture(autouse=True)
def watchdog(nothing_is_left_behind: None) -> Iterator[None]:
    """For every test of a module that imports it: an error, and not the end of the run, if the test hangs."""

    def bark(*_: object) -> None:
        raise AssertionError(f"hangs for {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    SHARED.__traceback__ = None  # its frames keep memory
