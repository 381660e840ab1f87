"""Exceptions that cross a process border: by every start method, and whatever they do to prevent it."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._wire import pickling
from penstock._wire.failure import Failure, annotate, keep, restore
from penstock.backends._process.launcher import Launcher
from penstock.errors import RemoteTraceback

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WHERE = "sample 17 (row 3) of step 57, epoch 0, in worker 2 (pid 8127)"


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


def crossed(exc: BaseException) -> BaseException:
    """There and back in one process: what pickle does to it, without the processes."""
    return restore(Failure.capture(raised(exc), where=WHERE))


class Plain(ValueError):
    """Importable by its name."""


class Odd(Exception):
    """Cannot be made from its args."""

    def __init__(self, a: object, b: object) -> None:
        super().__init__("odd")
        self.a, self.b = a, b


class Formatting(Exception):
    """Pickles, but would be formatted twice."""

    def __init__(self, key: object) -> None:
        super().__init__(f"no such key: {key}")


class Slotted(Exception):
    __slots__ = ("place",)

    def __init__(self, place: int, _: object) -> None:
        super().__init__("slotted")
        self.place = place


class Remote(OSError):
    def __init__(self, url: str, *, retries: int) -> None:
        super().__init__(110, "timed out", url)
        self.retries = retries


class Both(KeyError, OSError):
    def __init__(self, a: int, b: int, c: int) -> None:
        super().__init__(a)


class Frozen(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


EXCEPTIONS: list[BaseException] = [
    ValueError("x"),
    ValueError(),
    KeyError("missing"),
    Plain("a", 1),
    Odd(1, [2]),
    Formatting("k"),
    Slotted(3, None),
    Remote("http://x", retries=3),
    Both(1, 2, 3),
    Frozen(1, 2),
    OSError(2, "not there", "file.txt"),
    FileNotFoundError(2, "not there", "file.txt"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ImportError("no", name="module", path="/x"),
    StopIteration(5),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    pickle.UnpicklingError("truncated"),
    np.exceptions.AxisError(3, 2),
    ExceptionGroup("several", [ValueError("x"), Odd(1, 2), ExceptionGroup("inner", [KeyError("y")])]),
]


@pytest.mark.parametrize("exc", EXCEPTIONS, ids=repr)
def test_type_args_message_and_attributes_survive(exc: BaseException) -> None:
    back = crossed(exc)
    assert type(back) is type(exc)
    assert str(back) == str(exc)
    assert repr(back.args) == repr(exc.args)
    assert {k: v for k, v in vars(back).items() if k != "__notes__"} == vars(exc)
    assert back.__notes__ == [WHERE]
    for name in ("errno", "strerror", "filename", "name", "path", "code", "value", "place", "object"):
        assert getattr(back, name, None) == getattr(exc, name, None)


def test_notes_come_first_and_where_comes_last() -> None:
    exc = Odd(1, 2)
    exc.add_note("of the user")
    back = crossed(exc)
    assert back.__notes__ == ["of the user", WHERE]
    assert back.b == 2  # type: ignore[attr-defined]


def test_the_remote_traceback_is_the_cause_with_its_own_causes() -> None:
    def inner() -> None:
        raise KeyError("first")

    def outer() -> None:
        try:
            inner()
        except KeyError as exc:
            raise ValueError("second") from exc

    try:
        outer()
    except ValueError as exc:
        data = Failure.capture(exc, where=WHERE)
    cause = restore(data).__cause__
    assert isinstance(cause, RemoteTraceback)
    for text in ("in inner", "KeyError: 'first'", "direct cause", "in outer", "ValueError: second"):
        assert text in cause.text


def test_a_member_of_a_group_keeps_its_type_when_it_must_be_taken_apart() -> None:
    group = ExceptionGroup("several", [Odd(1, threading.Lock()), ValueError("x")])
    back = crossed(group)
    assert isinstance(back, ExceptionGroup)
    odd, plain = back.exceptions
    assert (type(odd), odd.args, odd.a) == (Odd, ("odd",), 1)  # type: ignore[attr-defined]
    assert (type(plain), plain.args) == (ValueError, ("x",))


class Held:
    """Something large in a function that has called a loader."""


@pytest.mark.parametrize("where", ["a group", "an argument", "a dict", "a slot"])
def test_what_is_kept_keeps_no_frame_alive(where: str) -> None:
    class Slotted(ValueError):
        __slots__ = ("inner",)

    def caller() -> tuple[BaseException, BaseException, weakref.ref[Held]]:
        held = Held()
        inner: Any = raised(KeyError("inner"))
        made: Any = Slotted("outer")
        if where == "a group":
            made = ExceptionGroup("several", [inner, ExceptionGroup("inside", [inner])])
        elif where == "an argument":
            made.args = "outer", inner
        elif where == "a dict":
            made.errors = {"first": [inner]}
        else:
            made.inner = inner
        return keep(raised(made), where=WHERE), made, weakref.ref(held)

    kept, made, held = caller()
    inner: Any = {
        "a group": lambda exc: exc.exceptions[1].exceptions[0],
        "an argument": lambda exc: exc.args[1],
        "a dict": lambda exc: exc.errors["first"][0],
        "a slot": lambda exc: exc.inner,
    }[where]
    assert inner(made).__traceback__ is not None, "the user's own object is never changed"
    assert "in raised" in str(kept.__cause__) and "KeyError" in repr(inner(kept))
    assert (type(kept), str(kept)) == (type(made), str(made))
    del made
    gc.collect()
    assert held() is None


def test_what_cannot_be_sent_is_dropped_and_noted() -> None:
    exc = Plain("message", threading.Lock())
    exc.handle = threading.Lock()  # type: ignore[attr-defined]
    exc.fine = [1]  # type: ignore[attr-defined]
    back = crossed(exc)
    assert type(back) is Plain
    assert back.args[0] == "message"
    assert "lock object" in back.args[1]
    assert vars(back)["fine"] == [1]
    assert "handle" not in vars(back)
    assert "'handle' could not be sent: <unlocked _thread.lock object" in back.__notes__[0]


def test_a_function_in_an_exception_travels_by_value() -> None:
    exc = Plain("x")
    exc.key = lambda i: i + 1  # type: ignore[attr-defined]
    assert vars(crossed(exc))["key"](4) == 5


class Hostile(Exception):
    """Raises from whatever is asked of it."""

    def __str__(self) -> str:
        raise SystemExit("from __str__")

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt("from __reduce__")

    def __repr__(self) -> str:
        raise RuntimeError("from __repr__")

    def __setstate__(self, state: object) -> None:
        raise MemoryError("from __setstate__")


class Liar(Exception):
    def __reduce__(self) -> Any:
        return int, (3,)


class Dictless(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no dict")


class Noteless(Exception):
    __notes__ = 5  # type: ignore[assignment]


class BadText(str):
    def __reduce__(self) -> Any:
        raise TypeError("not even its message")


class BadMessage(Exception):
    def __str__(self) -> str:
        return BadText("bad")


@pytest.mark.parametrize(
    "exc", [Hostile(1), Liar(2), Dictless(3), Noteless(3), BadMessage(4)], ids=lambda exc: type(exc).__name__
)
def test_nothing_that_an_exception_does_prevents_it(exc: BaseException) -> None:
    back = restore(Failure.capture(exc, where=WHERE))
    assert isinstance(back, BaseException)
    assert isinstance(back.__cause__, RemoteTraceback)
    if type(back) is not type(exc):
        assert type(back) is RuntimeError
        assert type(exc).__qualname__ in str(back)
    assert back.__notes__[-1] == WHERE


def test_the_hostile_one_still_keeps_its_type() -> None:
    assert type(crossed(Hostile(1))) is Hostile
    assert type(crossed(Liar(1))) is Liar


def test_a_type_that_the_parent_cannot_build_becomes_a_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Failure.capture(raised(np.exceptions.AxisError("axis 3 is out")), where=WHERE)
    monkeypatch.delattr(np.exceptions, "AxisError")
    back = restore(data)
    assert type(back) is RuntimeError
    assert str(back) == "numpy.exceptions.AxisError: axis 3 is out"
    assert back.__notes__ == [WHERE]


@given(st.lists(st.one_of(st.text(), st.binary(), st.integers(), st.none(), st.floats(allow_nan=False)), max_size=4))
def test_any_args_survive(args: list[object]) -> None:
    assert crossed(Plain(*args)).args == tuple(args)


def test_a_note_is_added_once() -> None:
    exc = ValueError("x")
    assert annotate(annotate(exc, WHERE), WHERE) is exc
    assert exc.__notes__ == [WHERE]
    annotate(exc, "elsewhere")
    assert exc.__notes__ == [WHERE, "elsewhere"]


def a_local_class() -> type[Exception]:
    class Local(Exception):
        pass

    return Local


def test_of_two_local_classes_with_one_name_the_one_that_was_raised_arrives() -> None:
    one, other = a_local_class(), a_local_class()
    sent = [Failure.capture(kind(), where=WHERE) for kind in (one, other)]
    pickling._class_of.clear()  # as in the parent, which has the classes and has not pickled them
    assert [type(restore(data)) for data in sent] == [one, other]


def test_a_local_class_that_the_parent_does_not_have_arrives_by_value() -> None:
    data = Failure.capture(a_local_class()("x"), where=WHERE)
    gc.collect()
    there = restore(data)
    assert type(there).__name__ == "Local"
    assert there.args == ("x",)


def test_a_local_class_is_not_kept_alive_by_its_address() -> None:
    Local = a_local_class()
    assert type(restore(Failure.capture(Local(), where=WHERE))) is Local
    gone = weakref.ref(Local)
    del Local
    gc.collect()
    assert gone() is None


# Through real processes


def raise_in_worker(worker: int, payload: Any, fds: Mapping[str, int]) -> None:
    try:
        payload["dataset"]()
    except BaseException as exc:
        data = Failure.capture(exc, where=f"worker {worker}")
    with open(fds["out"], "wb", closefd=False) as out:
        out.write(len(data).to_bytes(8, "big") + data)


def through_a_worker(method: str, dataset: Callable[[], None]) -> BaseException:
    reader, writer = os.pipe()
    launcher = Launcher(method, raise_in_worker, {"dataset": dataset}, {"out": writer})
    worker = launcher.start(0)
    with open(reader, "rb") as answers:
        back = restore(answers.read(int.from_bytes(answers.read(8), "big")))
    worker.join()
    worker.release()
    launcher.close()
    os.close(writer)
    return back


METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize("method", METHODS)
def test_a_class_made_inside_a_function_is_the_same_class_again(method: str) -> None:
    class Local(Exception):
        count = 0

        def __init__(self, a: int, b: int) -> None:
            super().__init__("local")
            self.a, self.lock = a, threading.Lock()

    def dataset() -> None:
        Local.count = 99
        raise Local(1, 2)

    init = Local.__init__
    back = through_a_worker(method, dataset)
    assert type(back) is Local
    assert (back.args, vars(back)["a"]) == (("local",), 1)
    assert "'lock' could not be sent" in back.__notes__[0]
    # What the worker did to its copy of the class stays there.
    assert Local.count == 0
    assert Local.__init__ is init


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_only_the_worker_knows_arrives_as_a_class_of_that_name(method: str) -> None:
    def dataset() -> None:
        class Inner(LookupError):
            pass

        raise Inner("there")

    back = through_a_worker(method, dataset)
    assert type(back).__name__ == "Inner"
    assert isinstance(back, LookupError)
    assert str(back) == "there"
    assert "worker 0" in back.__notes__
    assert isinstance(back.__cause__, RemoteTraceback)
    assert "in dataset" in back.__cause__.text
