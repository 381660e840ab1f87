"""Raises the exceptions of penstock's iterators: StopIteration at the end, or an error in place of a batch.

Inside penstock, both are values, and only this module turns these values into exceptions. So a StopIteration that
arrives here comes from the user's code. It is replaced by a RuntimeError, because the caller would mistake a
StopIteration for the end of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from penstock._system.panics import raise_ordinary

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_dict_of = vars(BaseException)["__dict__"].__get__  # works also for types that define their own

_NOT_THE_END = (
    "The dataset, or another part of your program that the loader calls, raised StopIteration, and not at its end. "
    "This is an error, and does not end the epoch: raise IndexError for a missing sample, or derive from "
    "IterableDataset for a stream."
)


class NoBatch(NamedTuple):
    """Returned instead of a batch. `error` is the exception to raise, or None at the end of the iteration."""

    error: BaseException | None


END = NoBatch(None)


def raises_instead(take: Callable[[S], T | NoBatch]) -> Callable[[S], T]:
    """Turns a method that may return a NoBatch into a `__next__` method that raises an exception instead."""

    @wraps(take)
    def raising(self: S) -> T:
        try:
            taken = take(self)
        except StopIteration as stop:
            raise _not_the_end(stop) from stop
        except BaseException as trouble:
            raise_ordinary(trouble)
            raise
        if type(taken) is not NoBatch:
            return taken  # type: ignore[return-value]
        error = taken.error
        del taken
        if error is None:
            raise StopIteration
        try:
            if isinstance(error, StopIteration):
                raise _not_the_end(error) from error
            raise error
        finally:
            del error  # the error's traceback refers to this frame, so this avoids a reference cycle

    return raising


def never_ends(call: Callable[P, T]) -> Callable[P, T]:
    """Wraps a function such as `__iter__` or `__len__`, so that a user's StopIteration becomes a RuntimeError."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except StopIteration as error:
            raise _not_the_end(error) from error
        except BaseException as trouble:
            raise_ordinary(trouble)
            raise

    return calling


def _not_the_end(error: StopIteration) -> RuntimeError:
    """Returns a RuntimeError to replace a StopIteration. Copies the notes, which name the sample."""
    wrong = RuntimeError(_NOT_THE_END)
    notes = _dict_of(error).get("__notes__")
    if isinstance(notes, list):
        wrong.__notes__ = [*notes]
    return wrong


RAISING = raises_instead(id).__code__
"""The code object of the function that raises errors in place of batches (see `forget_earlier`)."""
