"""The public suite finds a backend that breaks a law, and says which law it was."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.backends import Filled, Left, Lost, make, register, unregister
from penstock.testing import _loading, conformance, simulate
from penstock.testing._simulated import SimulatedBackend


@contextmanager
def broken(how: dict[str, Callable[..., Any]], **given: Any) -> Iterator[str]:
    """A simulated backend of which some methods are replaced by wrong ones."""
    with simulate.workers(simulate.seeded(4), **given) as simulation:
        kind = type("Broken", (SimulatedBackend,), how)
        register("broken", lambda job, context: kind(simulation, job))
        try:
            yield "broken"
        finally:
            unregister("broken")


def unordered(self: Any, seat: int) -> Any:
    """The next task is the last one that was posted."""
    return max((p.task for p in self._board.values() if p.worker is None), default=None)


def twice(self: Any, seq: int) -> bool:
    """Says that a task was withdrawn, and does it nevertheless."""
    SimulatedBackend.rescind(self, seq)
    return True


def early(self: Any, change: bytes) -> None:
    """Forgets every third change."""
    if (count := getattr(self, "count", 0)) % 3:
        SimulatedBackend.update(self, change)
    self.count = count + 1


def again(self: Any, change: bytes) -> None:
    """Makes every change twice."""
    SimulatedBackend.update(self, change)
    SimulatedBackend.update(self, change)


def silent(self: Any, timeout: float | None) -> list[Any]:
    """A lost worker is reported as one that has left."""
    found = SimulatedBackend.poll(self, timeout)
    return [Left(one.worker) if isinstance(one, Lost) else one for one in found]


def fewer(self: Any, timeout: float | None) -> list[Any]:
    """Batches are reported with a row too few."""
    found = SimulatedBackend.poll(self, timeout)
    return [one._replace(rows=one.rows - 1) if isinstance(one, Filled) else one for one in found]


def shared(self: Any, outcome: Filled) -> object:
    """The memory of a batch is used again while it is lent: all batches are in one array."""
    batch: Any = outcome.held
    if not hasattr(batch, "dtype"):
        return batch
    held = self.__dict__.setdefault("held", {})
    one = held.setdefault((batch.shape, batch.dtype.str), batch)
    one[...] = batch
    return one


def leaves(self: Any) -> None:
    """Close leaves everything as it is."""


BROKEN: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "tasks of a stream out of order": ({"_next_task": unordered}, "batches_are_those"),
    "rescinded and done": ({"rescind": twice}, "rescinded"),
    "a change is forgotten": ({"update": early}, "update"),
    "a change is made twice": ({"update": again}, "update"),
    "a loss is not told": ({"poll": silent}, "lost_worker"),
    "a row is missing": ({"poll": fewer}, "every_posted_task"),
    "memory is used again": ({"open": shared}, "kept"),
    "wake does nothing": ({"wake": leaves}, "woken_before"),
    "nobody leaves": ({"retire": leaves}, "leaves_for_each_retire"),
    "requests to leave are not withdrawn": ({"retain": lambda self: 2}, "withdrawn_request"),
    "close does nothing": ({"close": leaves}, "close_at_any"),
}


def test_a_backend_that_lacks_a_part_of_the_protocol_is_found() -> None:
    class Bare:
        """Passes everything on, but for what it does not know of."""

        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            if name in ("handles", "has_dead"):
                raise AttributeError(name)
            return getattr(self._backend, name)

    register("bare", lambda job, given: Bare(make("thread", job)))  # type: ignore[arg-type,return-value]
    try:
        with pytest.raises(conformance.BrokenLaw, match="it has no handles, has_dead: derive it from penstock"):
            conformance.check(backend="bare", only="every_attribute")
    finally:
        unregister("bare")


@pytest.mark.parametrize("bug", BROKEN)
def test_a_backend_that_breaks_a_law_is_found_and_the_law_is_named(bug: str) -> None:
    how, law = BROKEN[bug]
    with broken(how) as name, pytest.raises(conformance.BrokenLaw) as caught:
        conformance.check(backend=name, blocks=False, only=law)
    assert law.replace("_", " ").split()[0] in str(caught.value) and "breaks the law that" in str(caught.value)


@pytest.mark.deep
def test_a_backend_without_bugs_breaks_none_of_these() -> None:
    with broken({}) as name:
        for _, law in BROKEN.values():
            assert conformance.check(backend=name, blocks=False, only=law) == []


def test_what_does_not_apply_is_skipped_and_says_why() -> None:
    skipped = conformance.check(workers=0, only="retire")
    assert skipped == ["one worker leaves for each retire and no task with it: num_workers=0: there are no workers"]


def test_what_is_left_behind_breaks_a_law() -> None:
    def left(suite: Any) -> None:
        raise AssertionError("a process is left")

    with pytest.raises(AssertionError, match="a process is left"):
        conformance.check(workers=0, only="outlive", nothing_is_left=left)


def test_the_suite_needs_neither_pytest_nor_hypothesis_nor_torch() -> None:
    program = """
import sys
for name in ("pytest", "_pytest", "hypothesis", "torch", "tests"):
    sys.modules[name] = None
from penstock.testing import conformance, simulate
conformance.check(backend="thread", loses_workers=False, own_generators=False, seats=False, only="posted")
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_law_that_does_not_come_to_its_end_is_broken_and_does_not_hang() -> None:
    began = time.monotonic()
    with (
        broken({"flush": lambda self: None, "_actions": lambda self: []}) as name,
        pytest.raises(conformance.BrokenLaw, match="after 60 seconds poll"),
    ):
        conformance.check(backend=name, only="every_posted_task")
    assert time.monotonic() - began < 30  # the 60 are virtual


def test_a_worker_that_looks_late_finds_the_gate_of_a_law_open() -> None:
    """Else a thread waits for it until the program ends."""
    with _loading._gated() as (dataset, open_gate):
        open_gate()
    late = threading.Thread(target=dataset.__getitem__, args=(1,), daemon=True)
    late.start()
    late.join(10)
    assert not late.is_alive()
