"""For the tests of your own datasets: is the stream the same everywhere, and after a stop; what if a sample fails?"""

from penstock.testing.faults import Dying, Raising, Stalling
from penstock.testing.resumed import assert_resumes_everywhere
from penstock.testing.same import EVERYWHERE, assert_same_everywhere, difference

__all__ = [
    "EVERYWHERE",
    "Dying",
    "Raising",
    "Stalling",
    "assert_resumes_everywhere",
    "assert_same_everywhere",
    "difference",
]
