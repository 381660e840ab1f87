"""Protection against interrupts, which are exceptions raised by signal handlers, such as KeyboardInterrupt.

CPython runs a handler in the main thread, between two instructions: at the start of a Python function, at a backward
jump, and after a call to C code. In the last case, the result of the call is lost. CPython runs no handler at an
assignment, at an attribute access, at the return of a Python function, or at the entry and exit of `with` on a lock.
(This is true for Python 3.11 to 3.13, where the opcodes RESUME, JUMP_BACKWARD and CALL run handlers.) So penstock
follows four rules:

- A resource is registered with its owner before it is acquired, or is acquired by `acquire`. Calling a class counts
  as a call to C code, so a new object can be lost, too. Therefore, an object that acquires something in its
  constructor first adds itself to a list that its owner holds.
- A temporary change is undone by `with_loan`, in a `finally` of the function that made the change. A context manager
  written in Python cannot do this, because the interrupt may come at the entry of its `__exit__`.
- A resource is released inside a block of `interrupts_deferred`.
- A late import uses `import_whole`.

Threads wait for each other with `InterruptSafeCondition`, not with a Condition or an Event from `threading`.
docs/decisions/0022 gives the reasons, and tests/faults/test_interrupts.py interrupts at each of these points.
"""

from __future__ import annotations

import _thread
import importlib
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import compress, count
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from penstock._system.platform import UNCATCHABLE, register_at_fork

# Not `signal`, which converts each number and handler to an enum, and takes ten times as long.
_signal: Any = importlib.import_module("_signal")

T = TypeVar("T")

_getsignal, _setsignal = _signal.getsignal, _signal.signal
_interrupt_main: Any = _thread.interrupt_main

# The signals that can have a handler.
_NUMBERS = tuple(sorted(int(number) for number in _signal.valid_signals() - UNCATCHABLE))


def block_signals() -> set[int]:
    """Blocks every signal in this thread. Returns the previously blocked signals, for `set_blocked_signals`."""
    # This takes 2 µs. The functions of the `signal` module take 300 µs, which would delay every fork of a worker.
    before: set[int] = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    return before


def set_blocked_signals(numbers: Collection[int]) -> None:
    """Blocks exactly these signals in this thread, and unblocks all others."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, numbers)


class interrupts_deferred:
    """Context manager that delays Python signal handlers until the end of its block.

    All handlers are delayed, because any of them may raise. The context manager takes about 4 µs. It has no effect
    outside the main thread or inside another such block.
    """

    # The signal mask does not help, because another thread would receive the signal, and Python would still run the
    # handler in the main thread, the only thread that runs handlers.

    __slots__ = ("_catcher", "_caught", "_handlers")

    def __enter__(self) -> None:
        global _deferring
        self._caught: dict[int, tuple[Any, FrameType | None]] = {}
        self._handlers: dict[int, Any] = {}
        self._catcher: Any = self._catch  # a reference cycle until the end of the block
        if threading.current_thread() is not threading.main_thread() or _deferring is not None:
            return
        _deferring = self
        try:
            handlers = list(map(_getsignal, _NUMBERS))
            for number, handler in compress(zip(_NUMBERS, handlers, strict=True), map(callable, handlers)):
                self._handlers[number] = handler
                _setsignal(number, self._catcher)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        global _deferring
        try:
            self.restore()
        finally:
            if _deferring is self:
                _deferring = None
            if self._handlers:  # a handler that was already restored has raised
                self.restore()
            self._catcher = None
            if self._caught:
                self._deliver()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if number not in self._caught:
            self._caught[number] = self._handlers[number], frame

    def restore(self) -> None:
        """Restores the handlers, except those that were replaced inside the block."""
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
    """A variant of `interrupts_deferred` for finalizers, which cannot raise exceptions.

    The delayed handlers run when the context manager itself is freed.
    """

    __slots__ = ("_again",)

    def _deliver(self) -> None:
        self._again = [_raised_with_the_end_of(number) for number in self._caught]
        self._caught.clear()


_deferring: interrupts_deferred | None = None
"""The `interrupts_deferred` block that the main thread is in, or None."""


def _after_fork_in_child() -> None:
    # The child inherits the replaced handlers, but may have been forked by a thread outside of the block.
    global _deferring
    if _deferring is not None:
        _deferring.restore()
        _deferring = None


register_at_fork(after_in_child=_after_fork_in_child)


class CallAtEnd(weakref.ref):  # type: ignore[type-arg]  # a generic base cannot have slots added
    """A weak reference that calls `action` when its referent is deallocated. See `call_at_end`."""

    __slots__ = ("action",)

    action: Callable[[], object]


_act: Any = operator.methodcaller("action")
_call: Any = operator.call


def call_at_end(of: object, action: Callable[[], object]) -> CallAtEnd:
    """Calls `action` when `of` is deallocated. `action` must be C code. The caller must keep the returned object."""
    # In Python code, an interrupt would be lost here, because Python only reports it as ignored.
    made = CallAtEnd(of, _act)
    made.action = action
    return made


# Keyed by numbers that are never reused. An address that an action frees may at once belong to another thread.
_waiting: dict[int, CallAtEnd] = {}
_numbers = count()


def free_at_end(of: object, action: Callable[[], object]) -> None:
    """Like `call_at_end`, but the caller need not keep a returned object. `action` must not refer to `of`."""
    # A weak reference that only the object keeps alive may be gone too early: numpy 2.5 releases an array's base
    # before it calls the weak references to the array.
    number = next(_numbers)
    both = partial(_waiting.pop, number), action
    _waiting[number] = call_at_end(of, partial(deque, map(_call, both), 0))


class LiveObjects(Generic[T]):
    """A set of weak references that, unlike WeakSet, runs no Python code when an object is deallocated."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: dict[int, CallAtEnd] = {}  # by id

    def add(self, one: T) -> None:
        self._references[id(one)] = call_at_end(one, partial(self._references.pop, id(one), None))

    def discard(self, one: T) -> None:
        self._references.pop(id(one), None)

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[T]:
        # Over a copy: objects may be added or deallocated during the iteration.
        found = [reference() for reference in self._references.copy().values()]
        return iter([one for one in found if one is not None])


over: list[bool] = []
"""This list is empty until the program begins to exit (see `_system/exit.py`)."""


def finalizer(release: Callable[[Any], None]) -> Callable[[Any], None]:
    """Makes a `__del__` method that calls `release`. After an interrupt, `release` may be called twice.

    An interrupt during the call is raised in the code that was running when the object was deallocated. An interrupt
    at the very start of `__del__` is lost, as in any `__del__`. While the interpreter shuts down, the method does
    nothing, because `release` might need a global that is already cleared.
    """

    def __del__(self: Any, over: list[bool] = over) -> None:
        if over:
            return
        ends: list[object] = []  # deallocated when this function returns
        try:
            _release(release, self, ends)
        except KeyboardInterrupt:  # it came before interrupts were deferred
            _release(release, self, ends)
            ends.append(_raised_with_the_end_of(_signal.SIGINT))

    return __del__


def _release(release: Callable[[Any], None], of: object, ends: list[object]) -> None:
    after = interrupts_after()
    ends.append(after)
    with after:
        release(of)


class _Token:
    """An object used only to detect its own deallocation."""


# Keeps the references alive longer than their tokens, which live for microseconds.
_latest: deque[CallAtEnd] = deque(maxlen=64)


def _raised_with_the_end_of(number: int) -> _Token:
    """Returns a token whose deallocation makes the signal `number` pending again."""
    token = _Token()
    # `raise_signal` and `os.kill` would run the handler before they return.
    _latest.append(call_at_end(token, partial(_interrupt_main, number)))
    return token


def acquire(take: Callable[[], T], give_back: Callable[[T], object]) -> T:
    """Returns the result of `take()`. If an interrupt prevents the return, passes the result to `give_back`.

    `take` must be short, because signal handlers are delayed while it runs. Assign the result directly to a variable,
    and do not call this function with `*args`: Python runs such a call as C code, and an interrupt right after it
    would lose the result.
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
    """Imports a module while signal handlers are delayed, so that no handler sees a half-imported module."""
    # This costs 0.1 µs if the module is already imported.
    if name not in sys.modules:
        with interrupts_deferred():
            importlib.import_module(name)


class Loan(Protocol):
    """A temporary change to something that belongs to the caller, such as the state of a random generator."""

    def begin(self) -> object: ...

    def end(self) -> None:
        """Restores the original state, even if `begin` or an earlier `end` was interrupted."""


def with_loan(loan: Loan, work: Callable[..., T], *args: Any) -> T:
    """Calls `work(*args)` between `loan.begin()` and `loan.end()`, and returns the result. `end` is always called."""
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


# Seconds after which a waiting thread checks by itself. An interrupt may have prevented its wake-up, and a signal
# just before a wait does not end the wait.
LOOK_AGAIN = 1.0


class InterruptSafeCondition:
    """A condition variable whose lock is never left locked by an interrupt.

    A Condition or an Event from `threading` runs Python code around its lock, so an interrupt could leave the lock
    locked forever. Here, a thread takes a bell (a lock that the next `tell` releases) and waits for the bell:

        while True:
            with changes.lock:
                if the condition holds:
                    return
                bell = changes.bell()
            bell.acquire(timeout=LOOK_AGAIN)
    """

    __slots__ = ("_bells", "lock")

    def __init__(self) -> None:
        # Reentrant: the garbage collector may call a finalizer in the thread that holds the lock.
        self.lock = threading.RLock()
        self._bells: list[threading.Lock] = []

    def bell(self) -> threading.Lock:
        """Returns a lock that is released by the next `tell`. The caller must hold `lock`."""
        bell = threading.Lock()
        bell.acquire()
        self._bells.append(bell)
        return bell

    def tell(self) -> None:
        """Wakes all waiting threads. Call this method after a change."""
        with self.lock:
            bells, self._bells = self._bells, []
        for bell in bells:
            bell.release()
