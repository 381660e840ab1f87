"""Processes that load some rows of each step have together what one process has, wherever a run begins."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock._feed.base import Begin, Run
from penstock._work.job import Job
from penstock.plan import Draw, OrderPlan, RowsOfSteps, SamplerPlan, Sequential, Shuffled


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, list[tuple[int, ...]]]:
    """A batch size, and disjoint rows for each of some processes."""
    size = draw(st.integers(1, 12))
    owner = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    return size, [tuple(row for row in range(size) if owner[row] == one) for one in sorted(set(owner))]


@settings(deadline=None)
@given(dealt(), st.integers(0, 60), st.booleans(), st.sampled_from(["padded", "drop_last", "rollover"]), st.data())
def test_the_rows_of_all_processes_are_the_step(
    rows: tuple[int, list[tuple[int, ...]]], n: int, shuffled: bool, last: str, data: st.DataObject
) -> None:
    size, processes = rows
    plan = OrderPlan(Shuffled(n, 3) if shuffled else Sequential(n), size, **{last: True})
    epoch = data.draw(st.integers(0, 3))
    steps = plan.steps(epoch) if n else 0
    start = data.draw(st.integers(0, steps))
    whole = [keys.tolist() for keys in plan.draw(epoch, start)] if n else []
    for own in processes if n else []:
        drawn = plan.draw(epoch, start).of_rows(own)
        assert isinstance(drawn, Draw)
        found: list[Any] = []
        while True:
            try:
                keys, count = drawn.take(data.draw(st.integers(1, 4)))
            except StopIteration:
                break
            found += keys.reshape(count, -1).tolist()
        assert found == [[keys[row] for row in own] for keys in whole]
        others = RowsOfSteps(plan.draw(epoch, start), own)
        assert [keys.tolist() for keys in others] == found


@given(dealt())
def test_rows_of_a_sampler_and_of_the_run_after(rows: tuple[int, list[tuple[int, ...]]]) -> None:
    size, processes = rows
    sampler = SamplerPlan("abcdefghijklmnopqrstuvwxyz", size, drop_last=True)
    plan = OrderPlan(Sequential(26), size, padded=True)
    for own in processes:
        assert list(RowsOfSteps(sampler.draw(0), own)) == [[keys[row] for row in own] for keys in sampler.draw(0)]
        run = Run(iter([7, 8]), 0, plan.draw(0), plan, Begin(), local_rows=own)
        after = run.follow()
        for each in (run, after):
            task = each.draw(0)
            assert task is not None
            assert task.keys.tolist() == list(own)


def test_random_numbers_of_a_step_differ_where_rows_differ() -> None:
    def job(rows: tuple[int, ...] | None) -> Job:
        return Job(None, None, None, None, 0, 0, False, batch_size=4, local_rows=rows)

    assert job(None).drawing(3) == job(None).number(3) == job((0, 1)).number(3) == 3
    drawn = [job(rows).drawing(step) for step in range(5) for rows in ((0, 3), (1,), (2,))]
    assert len(set(drawn)) == len(drawn)


def test_a_loader_with_rows_of_its_own_has_the_index_and_the_replacements_of_these_rows() -> None:
    class Some(penstock.Dataset[int]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, key: int) -> Any:
            if key in (4, 9):
                raise ValueError(key)
            return key, penstock.rng().integers(1000)

    def read(rows: tuple[int, ...] | None) -> list[Any]:
        loader = penstock.DataLoader(Some(), 6, shuffle=True, seed=1, last_batch="pad", on_error="replace")
        loader._session.feed.local_rows = rows
        return [(batch.index, *batch.data, batch.pad) for batch in loader.batches()]

    whole = read(None)
    for rows in ((0, 1, 5), (2, 3, 4)):
        for part, one in zip(read(rows), whole, strict=True):
            for column, expected in zip(part[:3], one[:3], strict=True):
                np.testing.assert_array_equal(column, expected[list(rows)])
            assert part[3] == one[3]
