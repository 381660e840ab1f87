"""The laws that every backend keeps, for authors of backends.

Use them as one function, which needs only penstock:

    >>> import penstock
    >>> from penstock.testing import conformance
    >>> def make(job, given):
    ...     return penstock.backends.make("thread", job)  # imagine your own
    >>> penstock.backends.register("mine", make, threads=True)
    >>> threads = dict(loses_workers=False, own_generators=False, seats=False)
    >>> broken = conformance.check(backend="mine", only="posted", **threads)
    >>> penstock.backends.unregister("mine")

or as a class for pytest, with a test for each law:

    class TestMine(conformance.Suite):
        backend = "mine"

        def nothing_is_left(self):
            assert not my_cluster.processes()

Each law is a method, and its name is the sentence that it checks. A law that a backend cannot have is skipped, and
says why (`unittest.SkipTest`, which pytest knows). `Suite` lists the attributes that describe a backend.
"""

from __future__ import annotations

from typing import Any

from penstock.testing._laws import BrokenLaw, ProtocolLaws, check_each
from penstock.testing._loading import LoaderLaws

__all__ = ["BrokenLaw", "Suite", "check"]


class Suite(LoaderLaws, ProtocolLaws):
    """All laws. Derive from this class, and describe the backend to check:

    - `backend`: the registered name. `settings`: more arguments for every loader.
    - `workers`: how many a loader has (default 2; 0 checks the plain loop).
    - `loses_workers`: a worker can be killed without the caller. `kill(loader)` kills one: by default the first of
      `loader.workers`, by its `kill()` and `join(timeout)`.
    - `own_generators`: each worker has its own `random` and `numpy.random`, which threads have not.
    - `blocks`: a dataset that waits does not keep the caller from running.
    - `seats`: a task can be posted for one worker, which only penstock.torch needs.
    - `nothing_is_left()`: called after each law, to raise if the backend has left anything behind.
    - `setup_method()` and `teardown_method()`: called before and after each law. Call those of `super()` too.
    """


def check(*, only: str = "", **told: Any) -> list[str]:
    """Checks all laws, and returns those that were skipped, each with its reason. A broken one raises `BrokenLaw`.

    The arguments are the attributes and methods of `Suite`: `check(backend="mine", workers=3)`. `only` is a part of
    the names of the laws to check.
    """
    return check_each(type("Checked", (Suite,), told), only)
