"""Marks on their way: where a sampler or a stream is after a step, in bytes, so that it stays what it was then.

Taking one never fails a step, since nobody may ask for a state: a mark that cannot be taken travels as the
StateError that says why, and is raised where a state is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock._resume.reading import Mark
from penstock._wire.mark import decode, encode
from penstock.errors import StateError

T = TypeVar("T")

# For errors that tell of a stream whose position is lost.
NOT_LOST = (
    "A stream with state_dict() and load_state_dict() goes on in another worker. One that hands out light items and "
    "defines load(item) is read in the calling process, and loses nothing when a worker dies."
)


def packed(mark: Mark | None) -> bytes | None:
    return None if mark is None else encode(mark)


def taken(owner: object, take: Callable[[], Mark | None]) -> bytes | None:
    """The mark that `take` gives for the owner, or why there is none, on its way; None if it has no state."""
    try:
        return packed(take())
    except Exception as error:
        return encode(_refusal(owner, error))


def asked(owner: object, take: Callable[[], T]) -> T:
    """What `take` gives for the owner, here and now. A StateError says why it gives nothing."""
    try:
        return take()
    except Exception as error:
        raise _refusal(owner, error) from error


def opened(mark: bytes | Mark | None) -> Mark | None:
    """The mark. A StateError says why there is none."""
    if not isinstance(mark, bytes):
        return mark
    made: Mark = decode(mark)
    return made


def known(mark: bytes | Mark | None) -> Mark | None:
    """The mark; None also where it could not be taken."""
    with suppress(StateError):
        return opened(mark)
    return None


def refusal(mark: bytes | None) -> str:
    """Why there is no mark in these bytes, for a message."""
    try:
        opened(mark)
    except StateError as error:
        return str(error)
    return NOT_LOST


def _refusal(owner: object, error: Exception) -> StateError:
    name = type(owner).__name__
    return StateError(
        f"The loader has no state now: {name} has state_dict() and load_state_dict(), and its state cannot be taken "
        f"({_short(error)}). Mend its state_dict(), or remove both, and it is read again from its beginning."
    )


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
