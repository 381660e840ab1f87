"""Interrupts: signal handlers of Python that raise, such as that of Ctrl-C.

CPython runs a handler in the main thread, between two instructions: at the entry of a Python function, at a backward
jump, and after a call of C code, whose result is then lost. It runs none at an assignment, at an attribute, at the
return of a Python function, or at the entry and exit of `with` on a lock. (Python 3.11 to 3.13: the opcodes RESUME,
JUMP_BACKWARD and CALL.) Hence four rules:

- What is acquired is known to its owner first, or is acquired by `acquire`. A constructor is C code to its caller: an
  object that acquires something in its constructor adds itself to a list of its owner's before it does.
- What is changed for a while is restored by `with_loan`, in a `finally` of the function that has changed it. A
  context manager written in Python cannot do that: the interrupt may come at the entry of its `__exit__`.
- What is released is released under `interrupts_deferred`.
- What is imported late is imported by `import_whole`.

Threads wait for each other by `Changes`, not by a Condition or an Event of `threading`.

docs/decisions/0022 has the reasons, and tests/faults/test_interrupts.py interrupts at each of these points.
"""

from __future__ import annotations

import _thread
import importlib
import operator
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress, count
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

# Not `signal`, which converts each number and handler to an enum, and takes ten times as long.
_signal: Any = importlib.import_module("_signal")

T = TypeVar("T")

_getsignal, _setsignal = _signal.getsignal, _signal.signal
_interrupt_main: Any = _thread.interrupt_main

# All that can have a handler.
_NUMBERS = tuple(sorted(int(number) for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}))


class interrupts_deferred:
    """A handler that would run in this block runs at its end, and so raises there. Takes about 4 µs.

    That is true of every signal that has a handler of Python: the program decides which of them raise. A block inside
    of another does nothing.
    """

    # Refused: the signal mask. Another thread would take the signal, and Python would still run the handler in the
    # main thread, the only one that ever runs handlers.

    __slots__ = ("_catcher", "_caught", "_handlers")

    def __enter__(self) -> None:
        global _block
        self._caught: dict[int, tuple[Any, FrameType | None]] = {}
        self._handlers: dict[int, Any] = {}
        self._catcher: Any = self._catch  # a cycle, until the end of the block
        if threading.current_thread() is not threading.main_thread() or _block is not None:
            return
        _block = self
        try:
            handlers = list(map(_getsignal, _NUMBERS))
            for number, handler in compress(zip(_NUMBERS, handlers, strict=True), map(callable, handlers)):
                self._handlers[number] = handler
                _setsignal(number, self._catcher)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        global _block
        try:
            self.restore()
        finally:
            if _block is self:
                _block = None
            if self._handlers:  # one that was back already has raised
                self.restore()
            self._catcher = None
            if self._caught:
                self._deliver()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if number not in self._caught:
            self._caught[number] = self._handlers[number], frame

    def restore(self) -> None:
        """Puts the handlers back, except where the block has set another."""
        while self._handlers:
            number, handler = next(iter(self._handlers.items()))
            if _getsignal(number) is self._catcher:
                _setsignal(number, handler)
            self._handlers.pop(number, None)

    def _deliver(self) -> None:
        if self._caught:
            number, (handler, frame) = self._caught.popitem()
            try:
                handler(number, frame)
            finally:
                self._deliver()


class interrupts_after(interrupts_deferred):
    """For finalizers, out of which nothing can be raised: handlers run when this object is deallocated."""

    __slots__ = ("_again",)

    def _deliver(self) -> None:
        self._again = [_raised_with_the_end_of(number) for number in self._caught]
        self._caught.clear()


_block: interrupts_deferred | None = None
"""The block that the main thread is in, if it is in one."""


def _after_fork_in_child() -> None:
    # The child has the handlers of its parent. It is not in the block, if another thread has forked it.
    global _block
    if _block is not None:
        _block.restore()
        _block = None


os.register_at_fork(after_in_child=_after_fork_in_child)


class CallAtEnd(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    """See `call_at_end`."""

    __slots__ = ("action",)

    action: Callable[[], object]


_act: Any = operator.methodcaller("action")
_call: Any = operator.call


def call_at_end(of: object, action: Callable[[], object]) -> CallAtEnd:
    """Calls `action`, which must be C code, when the object is deallocated, if the result is still alive then.

    No code of Python runs meanwhile: an interrupt in it would be reported as ignored, and lost.
    """
    made = CallAtEnd(of, _act)
    made.action = action
    return made


# By numbers that are never used again, and not by what an action frees, which another thread may get meanwhile.
_waiting: dict[int, CallAtEnd] = {}
_numbers = count()


def free_at_end(of: object, action: Callable[[], object]) -> None:
    """Like `call_at_end`, whatever else is deallocated first. `action` must not refer to the object.

    A weak reference that is kept by something that the object refers to may be gone before it is called: each library
    deallocates in an order of its own (numpy 2.5 lets go of an array's base before the array's weak references).
    """
    number = next(_numbers)
    both = partial(_waiting.pop, number), action
    _waiting[number] = call_at_end(of, partial(deque, map(_call, both), 0))


class Living(Generic[T]):
    """The objects that were added and are alive. A WeakSet, but no code of Python runs when one of them ends."""

    __slots__ = ("_references",)

    def __init__(self, objects: Iterable[T] = ()) -> None:
        self._references: dict[int, CallAtEnd] = {}  # by id
        for one in objects:
            self.add(one)

    def add(self, one: T) -> None:
        self._references[id(one)] = call_at_end(one, partial(self._references.pop, id(one), None))

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[T]:
        # Of a copy: objects may come and go meanwhile.
        found = [reference() for reference in self._references.copy().values()]
        return iter([one for one in found if one is not None])


over: list[bool] = []
"""Not empty once the program is ending, and everything of ours with it (see `_system/exit.py`)."""


def finalizer(release: Callable[[Any], None]) -> Callable[[Any], None]:
    """A `__del__` that calls `release`, which can be repeated. An interrupt in it comes out of the code around it.

    Only one that comes at the very entry is reported by Python as ignored, as in every `__del__`. At the end of the
    interpreter it does nothing: modules are being cleared, and `release` might miss a global.
    """

    def __del__(self: Any, over: list[bool] = over) -> None:
        if over:
            return
        ends: list[object] = []  # with this function
        try:
            _release(release, self, ends)
        except KeyboardInterrupt:  # before it was deferred
            _release(release, self, ends)
            ends.append(_raised_with_the_end_of(_signal.SIGINT))

    return __del__


def _release(release: Callable[[Any], None], of: object, ends: list[object]) -> None:
    after = interrupts_after()
    ends.append(after)
    with after:
        release(of)


class _Token:
    """An object whose end is noticed."""


# The references must outlive their tokens, which end within microseconds.
_latest: deque[CallAtEnd] = deque(maxlen=64)


def _raised_with_the_end_of(number: int) -> _Token:
    """When the result is deallocated, the signal is pending again.

    By `interrupt_main`, which works for any signal: `raise_signal` and `os.kill` run the handler themselves.
    """
    token = _Token()
    _latest.append(call_at_end(token, partial(_interrupt_main, number)))
    return token


def acquire(take: Callable[[], T], give_back: Callable[[T], object]) -> T:
    """The result of `take`; if an interrupt comes meanwhile, it is given back. `take` must be short.

    Bind the result with a plain assignment, and call this with arguments, not with `*args`, which is C code.
    """
    taken: list[T] = []
    try:
        with interrupts_deferred():
            taken.append(take())
        return taken[0]
    except BaseException:
        while taken:
            give_back(taken.pop())
        raise


def import_whole(name: str) -> None:
    """Imports a module, and lets no handler run meanwhile: one that needs the module would find half of it.

    To be called before an import inside of a function. Costs 0.1 µs if the module is there.
    """
    if name not in sys.modules:
        with interrupts_deferred():
            importlib.import_module(name)


class Loan(Protocol):
    """Something of the caller's that is changed for a while."""

    def begin(self) -> object:
        """Notes how it is, and changes it."""

    def end(self) -> None:
        """Makes it as it was, also if `begin` or an earlier `end` was interrupted."""


def with_loan(loan: Loan, work: Callable[..., T], *args: Any) -> T:
    """`work(*args)` between the beginning and the end of a loan. Costs nothing, unless there is an interrupt."""
    try:
        loan.begin()
        return work(*args)
    finally:
        try:
            loan.end()
        except BaseException:
            with interrupts_deferred():
                loan.end()
            raise


# Seconds after which a thread that waits looks by itself. It may not have been woken, if an interrupt came just then;
# and a signal that comes just before a wait does not end the wait.
LOOK_AGAIN = 1.0


class Changes:
    """A lock, and the threads that wait for a change of what it guards: a Condition that survives interrupts.

    The `with` of a Condition or an Event is code of Python, and an interrupt could leave its lock locked for ever.
    Here a thread looks, and takes a bell, under the lock; then it lets go of the lock, and waits:

        while True:
            with changes.lock:
                if there is what it waits for:
                    return
                bell = changes.bell()
            bell.acquire(timeout=LOOK_AGAIN)
    """

    __slots__ = ("_bells", "lock")

    def __init__(self) -> None:
        # The thread that has it may take it again: the garbage collector calls finalizers in any thread.
        self.lock = threading.RLock()
        self._bells: list[threading.Lock] = []

    def bell(self) -> threading.Lock:
        """A lock that is released with the next change. To be called under `lock`."""
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        return bell

    def tell(self) -> None:
        """Wakes the threads that wait: something has changed."""
        with self.lock:
            bells, self._bells = self._bells, []
        for bell in bells:
            bell.release()
