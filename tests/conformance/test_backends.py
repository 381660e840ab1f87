"""Every backend of ours keeps the laws that `penstock.testing.conformance` states for anybody's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import ExitStack
from zlib import crc32

import pytest

from penstock.testing import conformance, simulate


class TestInline(conformance.Suite):
    workers = 0
    seats = False


class TestThreads(conformance.Suite):
    backend = "thread"
    loses_workers = False
    own_generators = False
    seats = False


class TestFork(conformance.Suite):
    backend = "process"
    settings = {"multiprocessing_context": "fork"}  # noqa: RUF012


# Laws that start dozens of workers.
_MANY = ("more_or_fewer", "batches_are_those", "close_at_any_point_leaves", "resumes_at_every_step")


def _only(suite: type[conformance.Suite], is_chosen: Callable[[str], bool]) -> type[conformance.Suite]:
    """Leaves the laws that are not chosen to `make wide`."""
    for name in filter(re.compile("test_").match, dir(suite)):
        if not is_chosen(name):
            law = getattr(suite, name)
            setattr(suite, name, pytest.mark.wide(functools.wraps(law)(lambda self, law=law: law(self))))
    return suite


def fresh(suite: type[conformance.Suite]) -> type[conformance.Suite]:
    """A fresh interpreter takes long to start: half of the laws have one, most by forkserver, some by spawn."""

    def is_chosen(name: str) -> bool:
        number = crc32(name.encode())
        chosen = "TestForkserver" if number % 5 else "TestSpawn"
        return number // 5 % 2 == 0 and suite.__name__ == chosen and not any(part in name for part in _MANY)

    return _only(suite, is_chosen)


# Laws that depend on how a simulated worker differs from others.
_OF_DIFFERENCES = ("lost", "dies", "kills", "replaces", "update", "changed", "travel_together")


def variant(suite: type[conformance.Suite]) -> type[conformance.Suite]:
    """TestSimulated has every law; of its variants, one has a law in which they do not differ."""

    def is_chosen(name: str) -> bool:
        chosen = ("TestSimulatedInBundles", "TestSimulatedElsewhere", "TestSimulatedWithoutCopies")
        return any(part in name for part in _OF_DIFFERENCES) or suite.__name__ == chosen[crc32(name.encode()) % 3]

    return _only(suite, is_chosen)


@fresh
class TestSpawn(conformance.Suite):
    backend = "process"
    settings = {"multiprocessing_context": "spawn"}  # noqa: RUF012


@fresh
class TestForkserver(conformance.Suite):
    backend = "process"
    settings = {"multiprocessing_context": "forkserver"}  # noqa: RUF012


class Simulated(conformance.Suite):
    blocks = False
    copies_dataset = True
    most_steps = 1
    names_step = True
    seed = 0

    def setup_method(self) -> None:
        super().setup_method()
        self._block = ExitStack()
        self.simulation = self._block.enter_context(
            simulate.workers(
                choose=simulate.seeded(self.seed),
                copies_dataset=self.copies_dataset,
                most_steps=self.most_steps,
                names_step=self.names_step,
            )
        )
        self.backend = self.simulation.name

    def teardown_method(self) -> None:
        super().teardown_method()
        self._block.close()

    def nothing_is_left(self) -> None:
        assert not self.simulation.open


class TestSimulated(Simulated):
    pass


@variant
class TestSimulatedInBundles(Simulated):
    most_steps = 8
    seed = 1


@variant
class TestSimulatedElsewhere(Simulated):
    """As on remote machines: nobody knows which step of a bundle killed its worker."""

    most_steps = 8
    names_step = False
    seed = 2


@variant
class TestSimulatedWithoutCopies(Simulated):
    copies_dataset = False
    seed = 3
