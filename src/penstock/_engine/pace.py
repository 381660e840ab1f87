"""Decides how many steps are sent in one task. Short, small steps are bundled."""

from __future__ import annotations

from penstock._memory.slabs import BUNDLE

# A bundle takes at most this time and memory. A task costs both sides about 50 µs beyond its steps, and a switch of
# processes. A caller who keeps one batch of a bundle keeps the whole slab, so the more slabs are lent, the fewer
# bytes are bundled, down to the smaller limit.
_SECONDS = 1.6e-3
_LEAST_BYTES, _MOST_BYTES = 256 << 10, BUNDLE
_SLOW = 1e-3  # seconds that a step is assumed to take until it is measured: steps of this length are hardly bundled


class Pace:
    """Decides how many steps to put into the next task: `bundle`, which is at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._largest = 1  # bytes of a batch
        self.forget()

    def forget(self) -> None:
        """Discards the measured duration of a step, because later steps may be faster or slower."""
        self._seconds = _SLOW  # moving average for one step
        self.bundle = 1

    def learn(self, seconds: float, nbytes: int, steps: int, lent: int) -> None:
        """Updates `bundle` from the measurements of a task. `lent` is the number of slabs that the caller holds."""
        self._largest = max(self._largest, nbytes // steps + 1)
        # A single slow step counts little: it may have waited for a processor.
        self._seconds += (min(seconds / steps, 8 * self._seconds) - self._seconds) / 8
        room = max(_LEAST_BYTES, _MOST_BYTES // max(1, lent))
        self.bundle = max(1, int(min(_SECONDS / self._seconds, room / self._largest, self._most)))
