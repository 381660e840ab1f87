"""For the tests of your own datasets: is the stream the same everywhere, and after a stop; what if a sample fails?"""

from penstock.testing._faults import Dying, Raising, Stalling
from penstock.testing._resumed import assert_resumes_everywhere
from penstock.testing._same import EVERYWHERE, assert_same_everywhere, difference

__all__ = [
    "EVERYWHERE",
    "Dying",
    "Raising",
    "Stalling",
    "assert_resumes_everywhere",
    "assert_same_everywhere",
    "difference",
]
