"""Where workers run. A backend is an extension point: write a class with the methods of `Backend`, and register it.

`penstock.testing.conformance` runs the laws of penstock against it.
"""

from __future__ import annotations

from penstock._wire.task import Bundle, Ended, Failed, Filled
from penstock.backends._base import Backend, Doing, Left, Lost, Outcome, known, make, register, unregister

__all__ = [
    "Backend",
    "Bundle",
    "Doing",
    "Ended",
    "Failed",
    "Filled",
    "Left",
    "Lost",
    "Outcome",
    "known",
    "make",
    "register",
    "unregister",
]
