"""Tools for testing your own datasets: checks of batches and of resuming, and datasets that fail on purpose."""

from penstock.testing._same import EVERYWHERE, assert_resumes_everywhere, assert_same_everywhere, difference
from penstock.testing._sources import Dying, Raising, Stalling

__all__ = [
    "EVERYWHERE",
    "Dying",
    "Raising",
    "Stalling",
    "assert_resumes_everywhere",
    "assert_same_everywhere",
    "difference",
]
