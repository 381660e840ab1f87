"""Every backend of ours keeps the laws that `penstock.testing.conformance` states for anybody's."""

from __future__ import annotations

import functools
import re
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


def fresh(suite: type[conformance.Suite]) -> type[conformance.Suite]:
    """A fresh interpreter takes long to start: without `make wide`, half of the laws have one of the two ways."""
    for name in filter(re.compile("test_").match, dir(suite)):
        chosen = ("TestForkserver", "TestSpawn", "", "")[crc32(name.encode()) % 4]
        if suite.__name__ != chosen or any(part in name for part in _MANY):
            law = getattr(suite, name)
            setattr(suite, name, pytest.mark.wide(functools.wraps(law)(lambda self, law=law: law(self))))
    return suite


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


class TestSimulatedInBundles(Simulated):
    most_steps = 8
    seed = 1


class TestSimulatedElsewhere(Simulated):
    """As on remote machines: nobody knows which step of a bundle killed its worker."""

    most_steps = 8
    names_step = False
    seed = 2


class TestSimulatedWithoutCopies(Simulated):
    copies_dataset = False
    seed = 3
