"""A verdict is the same a second later: what workers have counted outlives the workers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from handmade import SETTINGS
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock._measure import gauges as gauging
from penstock._measure.gauges import _COUNTS, Counts, Gauges
from penstock._measure.meter import Answer, Stopwatch
from penstock._session import figures, measures
from penstock._session.measures import _PAUSE, Measures
from penstock.stats import _machine
from penstock.stats._verdict import rule_of

SECONDS = 1_000_000_000


class Crew:
    """Two workers whose counters are made up."""

    ready = 0

    def __init__(self, measures: Measures, rows: list[Counts]) -> None:
        self.stopwatch, self.gauges = Stopwatch(measures.meter), Gauges(None)
        self.seats = list(range(len(rows)))
        self.gauges.seats = frozenset(self.seats)
        for seat, row in enumerate(rows):
            _COUNTS.pack_into(self.gauges.memory, self.gauges.row(seat) * 8, *row)

    def open_answer(self) -> Answer | None:
        return None

    def memory(self) -> tuple[int, int, int]:
        return 0, 0, 0


def row(busy: float, task: float, room: float, cpu: float, delayed: float) -> Counts:
    """A worker's time in parts of its whole; `cpu` and `delayed` are shares of what it was busy."""
    whole = 100 * SECONDS / max(1e-9, busy + task + room)
    parts = [int(part * whole) for part in (busy, task, room)]
    computed = int(parts[0] * cpu)
    return Counts(
        born=1, ready=2, first=3, tasks=500, steps=500, busy=parts[0], waited_task=parts[1], waited_room=parts[2],
        cpu=computed, delayed=int((parts[0] - computed) * delayed),
    )  # fmt: skip


part = st.floats(0.01, 1)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.builds(row, part, part, part, part, part), min_size=1, max_size=3), st.floats(0.001, 1))
def test_the_verdict_after_the_workers_have_ended_is_the_one_before(rows: list[Counts], waiting: float) -> None:
    crews: list[Any] = []
    measures = Measures("loader", lambda: {**SETTINGS, "num_workers": len(rows)}, lambda: crews)
    measures.begin_epoch(0)
    crew = Crew(measures, rows)
    crews.append(crew)
    for _ in range(500):
        wait = int(SECONDS * waiting / 5)
        measures.meter.answered(wait, SECONDS // 5 - wait, 1, 64, 1000, 0)
    before = measures.stats()
    crews.clear()
    crew.stopwatch.end(crew.gauges)
    after = measures.stats()
    assert rule_of(before) is rule_of(after) is not None
    assert before.verdict == after.verdict


# Threads that wait for a real processor too look like threads that wait for the GIL.
@pytest.mark.parametrize("backend", [pytest.param("thread", marks=pytest.mark.quiet), "process"])
def test_workers_that_had_no_processor_are_judged_alike_once_they_are_gone(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of every second, the machine's other programs have the processor for 0.9.
    monkeypatch.setattr(gauging, "delay_ns", lambda: time.perf_counter_ns() * 9 // 10)
    monkeypatch.setattr(gauging, "_DELAY_EVERY", 0)

    class Samples:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, key: int) -> int:
            time.sleep(0.01)
            return key

    with penstock.DataLoader(Samples(), num_workers=2, backend=backend, seed=0) as loader:
        for _ in loader:  # starting may take long
            pass
        for step, _ in enumerate(loader):
            if step == 59:
                before = loader.stats()
    after = loader.stats()
    assert not any(worker.alive for worker in after.life.workers)
    for stats in (before, after):
        assert "waited for one" in stats.verdict and "files or a network" not in stats.verdict
    epoch, life = (sum(worker.delayed for worker in one.workers) for one in (after.epoch, after.life))
    assert 0.5 < epoch < life


def test_what_the_program_does_after_the_epoch_is_not_held_against_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held_back = [5.0]
    monkeypatch.setattr(_machine, "_throttled", lambda group: held_back[0])
    monkeypatch.setattr(_machine, "_groups", lambda root, controller: ("/group",))
    with penstock.DataLoader(range(30), seed=0) as loader:
        measures = loader._session.measures
        for _ in range(2):
            for step, _ in enumerate(loader):
                if step in (3, 4, 5):  # ticks, of which the second begins to count
                    measures.tick()
                if step == 20:
                    held_back[0] += 1
                    seen = loader.stats().machine.throttled
            held_back[0] += 100
            assert loader.stats().machine.throttled == seen
            time.sleep(2 * _PAUSE * 1e-9)  # what the program does takes a while
    assert seen == 2


def test_an_epoch_that_follows_at_once_does_not_wait_for_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(figures, "throttled", lambda: asked.append(1) or 0.0)
    monkeypatch.setattr(measures, "clock", lambda: SECONDS)
    found = Measures("", dict, list)
    found.throttled = 0.0  # as after two ticks
    for pause, times in ((0, 0), (_PAUSE, 0), (_PAUSE + 1, 1)):
        found.meter.asked = SECONDS - pause
        found.begin_epoch(0)
        assert len(asked) == times
