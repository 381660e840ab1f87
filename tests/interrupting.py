"""Interrupts a piece of work at each point where CPython may run a signal handler.

A tracer counts these points: the entry of a Python function, calls, and backward jumps. An instruction that is passed
again and again, called from the same place, counts three times: loops over modules or classes would have thousands of
points. Just before the chosen one it
sends SIGINT to this process, and the interpreter runs the handler as it always does: at once, or after the call of C
code that follows, or, if the work defers interrupts, when it lets them in.
"""

from __future__ import annotations

import _thread
import dis
import functools
import gc
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from penstock._system.interrupts import call_at_end

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
_JUMPS = ("JUMP_BACKWARD", "POP_JUMP_BACKWARD")
_MOST = 3  # how often an instruction counts

# A forked child has the tracer too.
os.register_at_fork(after_in_child=lambda: sys.settrace(None))


@functools.cache
def _points(code: CodeType) -> dict[int, bool]:
    """The offsets of the instructions at which, or after which, a handler may run; True for calls."""
    found = ((each.offset, each.opname) for each in dis.get_instructions(code))
    return {at: name in _CALLS for at, name in found if name in _CALLS or name.startswith(_JUMPS)}


class _Bomb:
    """Sends SIGINT when it is deallocated: not while Python code runs, which would run the handler."""


class _Tracer:
    def __init__(self, at: int, counts: Callable[[CodeType], bool]) -> None:
        self.at, self.counts = at, functools.cache(counts)
        self.passed = 0
        self._times: Counter[Any] = Counter()  # by instruction, and the one that called it
        self.where = ""
        self._called = False  # the entry that follows is the same point as the call
        self._pid = os.getpid()
        self._bomb: _Bomb | None = _Bomb()
        self._fuse = call_at_end(self._bomb, functools.partial(_thread.interrupt_main, signal.SIGINT))

    def entry(self, frame: FrameType, event: str, arg: Any) -> Any:
        called, self._called = self._called, False
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if not called and self.counts(frame.f_code):
            bomb = self._pass(frame)  # noqa: F841 - goes off at the end of this function
        return self.opcode

    def opcode(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            is_call = _points(frame.f_code).get(frame.f_lasti)
            if is_call is not None and self.counts(frame.f_code):
                bomb = self._pass(frame)  # noqa: F841 - goes off at the end of this function
            self._called = bool(is_call)
        return self.opcode

    def _pass(self, frame: FrameType) -> _Bomb | None:
        caller = frame.f_back
        place = frame.f_code, frame.f_lasti, caller and (caller.f_code, caller.f_lasti)
        self._times[place] += 1
        if self._times[place] > _MOST:
            return None
        self.passed += 1
        if self.passed != self.at or os.getpid() != self._pid:
            return None
        sys.settrace(None)
        self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        bomb, self._bomb = self._bomb, None
        return bomb

    def defuse(self) -> None:
        self._fuse.action = bool


class Interrupted(NamedTuple):
    """`points` were passed. `where` is empty if there were fewer than wanted, and nothing was sent."""

    points: int
    where: str
    came: int
    ignored: list[tuple[Any, str]]
    result: Any


def interrupt(
    work: Callable[[], Any], at: int, counts: Callable[[CodeType], bool] = lambda code: True
) -> Interrupted:
    """Does the work, with an interrupt just before point `at` (from 1 on) of those in code that `counts`.

    `came` says how often KeyboardInterrupt came out. `ignored` are the errors that Python has reported as ignored,
    and the functions that they came from.
    """
    tracer, came, result = _Tracer(at, counts), 0, None
    ignored: list[tuple[Any, str]] = []

    def ignore(report: Any) -> None:  # the report would keep the object that is finalized
        *_, (frame, _) = traceback.walk_tb(report.exc_traceback)
        ignored.append((report.exc_type, frame.f_code.co_name))

    outer, hook, collects = sys.gettrace(), sys.unraisablehook, gc.isenabled()
    sys.unraisablehook = ignore
    gc.disable()  # when it runs does not depend on the work
    try:
        try:
            sys.settrace(tracer.entry)
            result = work()
            sys.settrace(None)
            for _ in range(2):  # a handler may run here: what came at the very end comes out now
                pass
        except KeyboardInterrupt:
            came += 1
        finally:
            sys.settrace(None)
        for _ in range(2):  # no second one
            pass
    except KeyboardInterrupt:
        came += 1
    finally:
        sys.settrace(outer)
        sys.unraisablehook = hook
        tracer.defuse()
        if collects:
            gc.enable()
    return Interrupted(tracer.passed, tracer.where, came, ignored, result)


def generators() -> Any:
    """The states of the caller's own generators."""
    numpy = np.random.get_state(legacy=False)
    words, position = numpy["state"].values()
    return random.getstate(), words.tobytes(), position, numpy["has_gauss"], numpy["gauss"]


def in_modules(*parts: str) -> Callable[[CodeType], bool]:
    """Counts the points in files whose names contain one of these."""
    return lambda code: any(part in code.co_filename for part in parts)


def sweep(stride: int) -> Iterator[int]:
    """Every `stride`-th point, from a random one on."""
    at = random.Random().randint(1, stride)
    while True:
        yield at
        at += stride
