"""A run numbers its steps as it is told, and the run after it is a whole epoch."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from penstock._feed import feed_of
from penstock._feed.base import Begin, Run
from penstock.plan import OrderPlan, SamplerPlan, Sequential


def new_run(plan: OrderPlan | SamplerPlan, step: int = 0) -> Run:
    options: Any = SimpleNamespace(batch_size=2, batch_sampler=None, batch_tokens=None, sampler=None, shuffle=False)
    return feed_of(range(10), options, has_load=False).run(count(), 4, 0, plan, Begin(step))


def test_steps_are_numbered_from_where_the_plan_begins() -> None:
    plan = OrderPlan(Sequential(10), 2, start=4)
    run = new_run(plan, plan.first_step)
    tasks = [run.draw(seq) for seq in range(4)]
    assert [None if task is None else (task.step, task.keys.tolist()) for task in tasks] == [
        (2, [4, 5]),
        (3, [6, 7]),
        (4, [8, 9]),
        None,
    ]


def test_the_epoch_after_one_that_was_begun_late_is_whole() -> None:
    after = new_run(OrderPlan(Sequential(10), 2, start=4)).follow()
    assert after is not None
    assert after.plan == OrderPlan(Sequential(10), 2)
    task = after.draw(0)
    assert task is not None
    assert (task.epoch, task.step, task.keys.tolist()) == (5, 0, [0, 1])


def test_nothing_is_drawn_ahead_from_a_foreign_sampler() -> None:
    assert new_run(SamplerPlan(range(10), 2)).follow() is None
