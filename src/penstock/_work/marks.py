"""Marks on their way: where a sampler or a stream is after a step, in bytes, so that it stays what it was then."""

from __future__ import annotations

import pickle

from penstock.plan.reading import Mark, Reading

# For errors that tell of a stream whose position is lost.
NOT_LOST = (
    "A stream with state_dict() and load_state_dict() goes on in another worker. One that hands out light items and "
    "defines load(item) is read in the calling process, and loses nothing when a worker dies."
)


def mark_of(reading: Reading) -> bytes | None:
    """Where it is now; None if it has no state."""
    return packed(reading.mark())


def packed(mark: Mark | None) -> bytes | None:
    if mark is None:
        return None
    from penstock.backends.reply import dumps  # late: cloudpickle takes 25 ms

    return dumps(mark)


def opened(mark: bytes | None) -> Mark | None:
    return None if mark is None else pickle.loads(mark)
