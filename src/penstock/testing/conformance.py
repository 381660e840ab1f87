"""Laws for authors of backends. A law is a test that every backend must pass.

To check all laws with one function call, and without pytest, use `check`:

    >>> import penstock
    >>> from penstock.testing import conformance
    >>> def make(job, given):
    ...     return penstock.backends.make("thread", job)  # imagine your own
    >>> penstock.backends.register("mine", make, threads=True)
    >>> threads = dict(loses_workers=False, own_generators=False, seats=False)
    >>> broken = conformance.check(backend="mine", only="posted", **threads)
    >>> penstock.backends.unregister("mine")

To have a pytest test for each law, derive a class from `Suite`:

    class TestMine(conformance.Suite):
        backend = "mine"

        def nothing_is_left(self):
            assert not my_cluster.processes()

Each law is a method, and its name is the sentence that it checks. A law that does not apply to a backend raises
`unittest.SkipTest` with the reason, and pytest reports it as skipped. `Suite` lists the attributes that describe a
backend.
"""

from __future__ import annotations

from typing import Any

from penstock.testing._laws import BrokenLaw, ProtocolLaws, check_each
from penstock.testing._loading import LoaderLaws

__all__ = ["BrokenLaw", "Suite", "check"]


class Suite(LoaderLaws, ProtocolLaws):
    """All laws for backends. Derive a class with these attributes and methods to describe the backend under test:

    - `backend`: the registered name. `settings`: additional arguments for every loader.
    - `workers`: the number of workers of each loader (2 by default; 0 checks the plain loop).
    - `loses_workers`: True if a worker can die while the caller lives on. `kill(loader)` must kill one worker. The
      default `kill` calls the `kill()` and `join(timeout)` methods of the first of `loader.workers`.
    - `own_generators`: True if each worker has its own `random` and `numpy.random` generators. Threads share the
      generators of the process.
    - `blocks`: True if the caller continues to run while a dataset waits in a worker.
    - `seats`: True if a task can be posted for a particular worker. Only penstock.torch needs this.
    - `nothing_is_left()`: called after each law. It must raise if the backend has left anything behind.
    - `setup_method()` and `teardown_method()`: called before and after each law. An override must also call the
      method of `super()`.
    """


def check(*, only: str = "", **told: Any) -> list[str]:
    """Checks all laws, and returns those that were skipped, each with its reason.

    Raises `BrokenLaw` if a law is broken. If `only` is given, only the laws whose names contain this text are
    checked. All other arguments are attributes and methods of `Suite`, as in `check(backend="mine", workers=3)`.
    """
    return check_each(type("Checked", (Suite,), told), only)
