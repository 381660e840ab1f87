"""A mark as bytes: the position of a sampler or stream after a step.

A mark travels with the reply of its step. Taking a mark never fails the step, since the caller may never ask for a
state: a mark that cannot be taken travels as the StateError that says why, and `decode` raises it.
"""

from __future__ import annotations

from typing import Any

from penstock._wire.pickling import dumps, loads
from penstock.errors import StateError


def encode(mark: Any) -> bytes:
    """The mark, or the StateError in its place, as bytes."""
    return dumps(mark)


def decode(data: bytes) -> Any:
    """The mark. Raises the StateError that was encoded in its place, and any error of unpickling as a StateError."""
    try:
        found = loads(data)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise StateError(
            f"The loader has no state now: the state that a worker sent cannot be unpickled here ({why})."
        ) from error
    if isinstance(found, StateError):
        try:
            raise found
        finally:
            del found  # its traceback holds this frame, which must not hold it in turn
    return found
