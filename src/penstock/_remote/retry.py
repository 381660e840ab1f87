"""Decides what a failed request means, and when to retry it. Pure code: time and random numbers are arguments.

PASSING   overload, a reset, a timeout            retried for minutes, with increasing pauses
ODD       a malformed or unexpected response      retried a few times, because a proxy may be at fault
MISSING   no such object                          raised at once
CHANGED   the content has changed                 raised at once
FINAL     any other failure                       raised at once
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RequestFault(Enum):
    PASSING = "passing"
    ODD = "odd"
    MISSING = "missing"
    CHANGED = "changed"
    FINAL = "final"


class RequestFailed(Exception):
    """Raised if a request fails. `came` describes the response or connection error; `remedy` says what to do."""

    def __init__(self, fault: RequestFault, came: str, remedy: str = "") -> None:
        super().__init__(came)
        self.fault, self.came, self.remedy = fault, came, remedy


_AGAIN = {408, 425, 429}


def is_passing(status: int) -> bool:
    return status in _AGAIN or status >= 500


def answered(status: int, came: str) -> RequestFailed:
    if is_passing(status):
        return RequestFailed(RequestFault.PASSING, came, "The store is overloaded or down: try again later.")
    if status in (404, 410):
        return RequestFailed(RequestFault.MISSING, came, "Check the URL: names are case-sensitive.")
    if status in (412, 416):
        return RequestFailed(RequestFault.CHANGED, came)
    if status in (401, 403):
        return RequestFailed(
            RequestFault.FINAL,
            came,
            "Check the credentials, and that they may read this object; a signed URL may have expired.",
        )
    return RequestFailed(RequestFault.FINAL, came, "Check the URL and the options in storage=.")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is retried: `seconds` in total, with pauses that double from `first` to `longest`."""

    seconds: float = 300.0
    first: float = 0.2
    longest: float = 20.0
    odd: int = 5  # the request fails after this many malformed or unexpected responses

    def pause(self, fault: RequestFault, failures: int, odd: int, elapsed: float, dice: float) -> float | None:
        """Returns the seconds until the next attempt, or None to give up. `dice` is a random number from 0 to 1."""
        tries_left = fault is RequestFault.ODD and odd < self.odd
        time_left = fault is RequestFault.PASSING and elapsed < self.seconds
        if not tries_left and not time_left:
            return None
        longest = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        # Random, so that workers that failed at the same time do not retry at the same time.
        return longest * (0.5 + 0.5 * dice)


READING = Patience()
"""Retry limits for reading files that have been found.

The limits let a training run survive an outage of a few minutes.
"""

FINDING = Patience(seconds=20.0)
"""Retry limits for the first request to a store. The limits are low, because a misspelt host looks like an outage."""
