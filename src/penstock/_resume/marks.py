"""Marks in transit: pickled at once, because the user's objects change while a mark travels.

A mark that cannot be taken does not fail its step, since the caller may never ask for a state. It travels as a
StateError, which is raised when a state is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock._resume.reading import Mark
from penstock._wire.task import decode_mark, encode_mark
from penstock.errors import StateError

T = TypeVar("T")

# For errors about a stream whose position is lost.
NOT_LOST = (
    "A stream with state_dict() and load_state_dict() continues in another worker. A stream that hands out light "
    "items and defines load(item) is read in the calling process, and loses nothing if a worker crashes."
)


def taken(owner: object, take: Callable[[], Mark | None]) -> bytes | None:
    """The mark that `take` returns, or a StateError in its place, as bytes; None if the owner has no state."""
    try:
        mark = take()
        return None if mark is None else encode_mark(mark)
    except Exception as error:
        return encode_mark(_refusal(owner, error))


def asked(owner: object, take: Callable[[], T]) -> T:
    """The result of `take`; a StateError if taking the owner's state fails."""
    try:
        return take()
    except Exception as error:
        raise _refusal(owner, error) from error


def opened(mark: bytes | Mark | None) -> Mark | None:
    """The mark; a StateError if it could not be taken."""
    if not isinstance(mark, bytes):
        return mark
    made: Mark = decode_mark(mark)
    return made


def known(mark: bytes | Mark | None) -> Mark | None:
    """The mark; None if there is none or it could not be taken."""
    with suppress(StateError):
        return opened(mark)
    return None


def refusal(mark: bytes | None) -> str:
    """The reason why the mark could not be taken, for a message."""
    try:
        opened(mark)
    except StateError as error:
        return str(error)
    return NOT_LOST


def _refusal(owner: object, error: Exception) -> StateError:
    return StateError(
        f"The loader has no state now: {type(owner).__name__} has state_dict() and load_state_dict(), and its state "
        f"cannot be taken ({type(error).__name__}: {error}). Fix its state_dict(), or remove both methods, and it is "
        "read from its beginning after a resume."
    )
