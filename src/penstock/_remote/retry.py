"""What a failed request means, and when it is made again. Pure: the clock and the dice belong to the caller.

PASSING   overload, a reset, a timeout     again, with longer and longer pauses, for minutes
ODD       an answer that does not fit      again, a few times: a proxy may be at fault
FINAL     all others                       an error at once
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
    """A request that failed: what came instead of an answer, and what the user can do. Holds no credentials."""

    def __init__(self, fault: RequestFault, came: str, remedy: str = "") -> None:
        super().__init__(came)
        self.fault, self.came, self.remedy = fault, came, remedy


_AGAIN = {408, 425, 429}


def is_passing(status: int) -> bool:
    return status in _AGAIN or status >= 500


def answered(status: int, came: str) -> RequestFailed:
    """What the status of an answer means."""
    if is_passing(status):
        return RequestFailed(RequestFault.PASSING, came, "The store is overloaded or down: try again later.")
    if status in (404, 410):
        return RequestFailed(RequestFault.MISSING, came, "Check the URL: names are case-sensitive.")
    if status == 412:
        return RequestFailed(RequestFault.CHANGED, came)
    if status in (401, 403):
        return RequestFailed(
            RequestFault.FINAL,
            came,
            "Check the credentials, and that they may read this object; a signed URL may have expired.",
        )
    if status == 416:
        return RequestFailed(RequestFault.CHANGED, came)
    return RequestFailed(RequestFault.FINAL, came, "Check the URL and the options in storage=.")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request is repeated: `seconds` in all, with pauses that double from `first` up to `longest`."""

    seconds: float = 300.0
    first: float = 0.2
    longest: float = 20.0
    odd: int = 5
    """Answers that do not fit before one of them is an error."""

    def pause(self, fault: RequestFault, failures: int, odd: int, elapsed: float, dice: float) -> float | None:
        """Seconds until the next try, after so many failures in so many seconds; None if there is none.

        `odd` counts those of that kind: an outage before an odd answer does not count. `dice` is a random number
        from 0 to 1: workers that failed together do not come back together.
        """
        tries_left = fault is RequestFault.ODD and odd < self.odd
        time_left = fault is RequestFault.PASSING and elapsed < self.seconds
        if not tries_left and not time_left:
            return None
        longest = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return longest * (0.5 + 0.5 * dice)


READING = Patience()
"""For bytes of files that were found before: a training run outlasts an outage of some minutes."""

FINDING = Patience(seconds=20.0)
"""For the first contact with a store, where a wrong name of a host looks like an outage."""
