"""The global random generators of the process that a worker runs in."""

from __future__ import annotations

from collections.abc import Callable

from penstock._system.interrupts import Loan, import_whole


class Generators:
    """A worker's access to the global random generators. `may_seed` is True if the worker may seed them.

    A worker in its own process seeds the generators for each step. An inline worker runs in the caller's process, and
    borrows the generators for one step at a time. Worker threads do neither, because they share the generators with
    the caller.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seed_step: Callable[[int, int, int], int] | None = None
        self._borrow: Callable[[int, int, int], Loan] | None = None

    @property
    def may_seed(self) -> bool:
        return self._seed_step is not None

    def allow(self) -> None:
        import_whole("penstock._work.seeding")
        from penstock._work.seeding import Borrowed, seed_step  # late: see InlineBackend

        self._seed_step, self._borrow = seed_step, Borrowed

    def seed(self, epoch: int, number: int) -> int:
        """Seeds the generators, and returns the seed. `number` comes from `Job.drawing` or `Job.number`."""
        assert self._seed_step is not None
        return self._seed_step(self._seed, epoch, number)

    def borrowed(self, epoch: int, number: int) -> Loan:
        if self._borrow is None:
            self.allow()
        assert self._borrow is not None
        return self._borrow(self._seed, epoch, number)
