"""Plans: which keys each step has."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import pytest

from penstock.plan._order import Sequential, Shuffled
from penstock.plan._plan import OrderPlan, SamplerPlan


def lists(keys: Iterator[Any]) -> list[Any]:
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in keys]


class Counting:
    """A sampler that tells how often it was started, and how far it was read."""

    def __init__(self, n: int) -> None:
        self.n, self.started, self.read = n, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.started += 1
        for key in range(self.n):
            self.read += 1
            yield key


class TestOrderPlan:
    def test_the_last_step_may_be_short(self) -> None:
        plan = OrderPlan(Sequential(5), 2, False)
        assert plan.steps(0) == 3
        assert lists(plan.draw(0)) == [[0, 1], [2, 3], [4]]

    def test_drop_last_leaves_the_short_step_out(self) -> None:
        plan = OrderPlan(Sequential(5), 2, True)
        assert plan.steps(0) == 2
        assert lists(plan.draw(0)) == [[0, 1], [2, 3]]

    def test_drop_last_of_less_than_one_batch_leaves_nothing(self) -> None:
        plan = OrderPlan(Sequential(3), 4, True)
        assert plan.steps(0) == 0
        assert lists(plan.draw(0)) == []

    def test_without_batches_a_step_is_one_python_int(self) -> None:
        plan = OrderPlan(Sequential(3), None, False)
        drawn = list(plan.draw(0, start=1))
        assert drawn == [1, 2]
        assert {type(key) for key in drawn} == {int}
        assert type(plan.keys(0, 2)) is int

    def test_an_empty_order_has_no_steps(self) -> None:
        for order in (Sequential(0), Shuffled(0, 1)):
            assert OrderPlan(order, 2, False).steps(0) == 0
            assert lists(OrderPlan(order, 2, False).draw(0)) == []

    def test_keys_are_int64_and_cannot_be_written_to(self) -> None:
        plan = OrderPlan(Shuffled(100, 1), 8, False)
        for keys in (next(plan.draw(0)), plan.keys(0, 3)):
            assert isinstance(keys, np.ndarray)
            assert keys.dtype == np.int64
            with pytest.raises(ValueError, match="read-only"):
                keys[0] = 1

    def test_a_batch_larger_than_a_block_is_one_step(self) -> None:
        plan = OrderPlan(Sequential(10_001), 10_000, False)
        assert [len(keys) for keys in plan.draw(0)] == [10_000, 1]

    def test_epochs_of_a_shuffled_plan_differ_and_repeat_exactly(self) -> None:
        plan = OrderPlan(Shuffled(100, 1), 7, False)
        assert plan.after() == plan
        assert lists(plan.draw(0)) == lists(plan.draw(0))
        assert lists(plan.draw(0)) != lists(plan.draw(1))

    def test_two_draws_at_once_do_not_disturb_each_other(self) -> None:
        plan = OrderPlan(Shuffled(100, 1), 7, False)
        one, other = plan.draw(0), plan.draw(0)
        assert lists(islice(one, 5)) == lists(islice(other, 5))
        assert lists(one) == lists(other)

    @pytest.mark.parametrize("step", [-1, 3])
    def test_a_step_that_is_not_there_is_an_error(self, step: int) -> None:
        with pytest.raises(IndexError, match=f"step {step} is outside epoch 5, which has 3 steps"):
            OrderPlan(Sequential(5), 2, False).keys(5, step)

    def test_starting_past_the_end_draws_nothing(self) -> None:
        assert lists(OrderPlan(Sequential(5), 2, False).draw(0, start=9)) == []

    def test_a_plan_is_a_plain_value(self) -> None:
        plan = OrderPlan(Shuffled(100, 1), 7, True)
        assert pickle.loads(pickle.dumps(plan)) == plan
        assert plan != OrderPlan(Shuffled(101, 1), 7, True)

    def test_ten_billion_samples_cost_nothing(self) -> None:
        def begin() -> float:
            started = time.thread_time()
            plan = OrderPlan(Shuffled(10**10, 3), 64, False)
            assert plan.steps(0) == 156_250_000
            assert len(next(plan.draw(0, start=156_000_000))) == 64
            return time.thread_time() - started

        assert min(begin() for _ in range(5)) < 0.010
        tracemalloc.start()
        try:
            begin()
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


class TestSamplerPlan:
    def test_keys_are_grouped_into_lists(self) -> None:
        assert lists(SamplerPlan("abcde", 2, False).draw(0)) == [["a", "b"], ["c", "d"], ["e"]]
        assert lists(SamplerPlan("abcde", 2, True).draw(0)) == [["a", "b"], ["c", "d"]]

    def test_without_batches_keys_come_as_they_are(self) -> None:
        keys = [("a", 1), [2, 3], None]
        drawn = list(SamplerPlan(keys, None, False).draw(0))
        assert all(one is other for one, other in zip(drawn, keys, strict=True))

    def test_the_steps_of_a_batch_sampler_become_lists(self) -> None:
        plan = SamplerPlan([(1, 2), np.array([3]), [4, 5, 6]], batched=True)
        assert list(plan.draw(0)) == [[1, 2], [3], [4, 5, 6]]
        assert plan.steps(0) == 3

    @pytest.mark.parametrize(
        ("plan", "steps"),
        [
            (SamplerPlan(range(5), 2, False), 3),
            (SamplerPlan(range(5), 2, True), 2),
            (SamplerPlan(range(5), None, False), 5),
            (SamplerPlan([[1], [2]], batched=True), 2),
            (SamplerPlan(Counting(5), 2, False), None),
        ],
    )
    def test_the_samplers_length_gives_the_steps(self, plan: SamplerPlan, steps: int | None) -> None:
        assert plan.steps(0) == steps

    def test_a_length_that_the_inner_sampler_lacks_is_unknown(self) -> None:
        class Unsized(Counting):
            def __len__(self) -> int:
                raise NotImplementedError

        assert SamplerPlan(Unsized(3), 1, False).steps(0) is None

    @pytest.mark.parametrize("start", [0, 2])
    @pytest.mark.parametrize("batch_size", [None, 2])
    def test_each_draw_starts_the_sampler_once(self, start: int, batch_size: int | None) -> None:
        sampler = Counting(9)
        plan = SamplerPlan(sampler, batch_size, False)
        assert plan.after() is None
        for epoch in range(3):
            list(plan.draw(epoch, start))
            assert sampler.started == epoch + 1

    def test_the_sampler_is_read_no_further_than_drawn(self) -> None:
        sampler = Counting(100)
        draw = SamplerPlan(sampler, 4, False).draw(0)
        assert sampler.read == 0
        next(draw)
        assert sampler.read == 4

    def test_a_sampler_without_end_can_be_drawn_from(self) -> None:
        draw = SamplerPlan(count(), 3, True).draw(0, start=2)
        assert next(draw) == [6, 7, 8]

    def test_starting_late_drops_whole_steps(self) -> None:
        assert lists(SamplerPlan(range(7), 3, False).draw(0, start=2)) == [[6]]
        assert lists(SamplerPlan([[1], [2, 3]], batched=True).draw(0, start=1)) == [[2, 3]]

    def test_an_error_of_the_sampler_arrives_after_the_steps_before_it(self) -> None:
        def sampler() -> Iterator[int]:
            yield from (1, 2, 3)
            raise OSError("index file")

        draw = SamplerPlan(sampler(), 2, False).draw(0)
        assert next(draw) == [1, 2]
        with pytest.raises(OSError, match="index file"):
            next(draw)


@pytest.mark.parametrize("make", [lambda *a: OrderPlan(Sequential(5), *a), lambda *a: SamplerPlan(range(5), *a)])
class TestBothPlansRefuse:
    @pytest.mark.parametrize("batch_size", [0, -1, True, 2.0, "2"])
    def test_wrong_batch_sizes(self, make: Any, batch_size: object) -> None:
        with pytest.raises(ValueError, match="batch_size must be a positive integer"):
            make(batch_size, False)

    def test_a_drop_last_that_is_not_a_bool(self, make: Any) -> None:
        with pytest.raises(ValueError, match="drop_last must be True or False, but it is 1"):
            make(2, 1)

    def test_drop_last_without_batches(self, make: Any) -> None:
        with pytest.raises(ValueError, match="drop_last=True needs batches"):
            make(None, True)

    def test_a_negative_start(self, make: Any) -> None:
        with pytest.raises(ValueError, match="start must be 0 or more, but it is -1"):
            make(2, False).draw(0, -1)
