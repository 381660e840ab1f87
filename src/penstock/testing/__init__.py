"""For the tests of your own datasets: is the stream the same everywhere, and what if a sample fails?"""

from penstock.testing.faults import Dying, Raising, Stalling
from penstock.testing.same import EVERYWHERE, assert_same_everywhere, difference

__all__ = ["EVERYWHERE", "Dying", "Raising", "Stalling", "assert_same_everywhere", "difference"]
