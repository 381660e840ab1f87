"""Laws of token budgets and of dealing by cost: each sample once, no batch over its budget, even ranks."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import StateError
from penstock.plan import OrderPlan, Sequential, Shuffled
from penstock.plan._balance import BalancedPlan, deal
from penstock.plan._budget import BudgetPlan, BudgetWindows, LengthTable

law = settings(deadline=None)


@st.composite
def budgets(draw: st.DrawFn) -> BudgetWindows:
    lengths = draw(
        st.one_of(
            st.lists(st.integers(0, 50), max_size=120),
            st.lists(st.sampled_from([0, 1, 49, 50]), max_size=120),
            st.integers(0, 120).map(lambda n: [7] * n),
            # Lists that are drawn are short: few windows would have batches for several steps.
            st.integers(30, 120).map(lambda n: [(at * at + n) % 51 for at in range(n)]),
        )
    )
    buckets, multiple = (), 1
    if draw(st.booleans()):
        buckets = (*sorted(draw(st.sets(st.integers(1, 49), max_size=4))), 50)
    else:
        multiple = draw(st.sampled_from([1, 1, 4, 6]))
    truncates = draw(st.booleans())
    n = len(lengths)
    seed = draw(st.none() | st.integers(0, 9))
    return BudgetWindows(
        Sequential(n) if seed is None else Shuffled(n, seed),
        LengthTable(np.array(lengths, np.int64)),
        batch_tokens=draw(st.integers(56, 300)),
        seed=seed,
        max_length=draw(st.integers(1, 50)) if truncates else None,
        truncates=truncates,
        batch_multiple=draw(st.sampled_from([1, 1, 2, 5])),
        multiple=multiple,
        buckets=buckets,
        window=draw(st.integers(1, 150)),
    )


@st.composite
def budget_plans(draw: st.DrawFn) -> BudgetPlan:
    return BudgetPlan(draw(budgets()), world=draw(st.integers(1, 6)), power=draw(st.sampled_from([1, 2])))


def ranks(plan: BudgetPlan) -> list[BudgetPlan]:
    return [replace(plan, rank=rank) for rank in range(plan.world)]


def width(windows: BudgetWindows, keys: NDArray[np.int64]) -> int:
    """The padded width of a batch, computed from its samples alone."""
    longest = max(1, int(windows.lengths.of(keys).max()))
    if windows.truncates and windows.max_length is not None:
        longest = min(longest, windows.max_length)
    if windows.buckets:
        return min(bucket for bucket in windows.buckets if bucket >= longest)
    return -(-longest // windows.multiple) * windows.multiple


def once(plan: BudgetPlan, first: int, last: int | None = None) -> Counter[int]:
    """Counts the keys of these steps of all ranks, without padding."""
    seen: Counter[int] = Counter()
    for each in ranks(plan):
        for step, keys in enumerate(islice(each.draw(0, first), None if last is None else last - first), first):
            seen.update(keys[: len(keys) - each.pad(0, step)].tolist())
    return seen


@law
@given(plan=budget_plans())
def test_each_sample_comes_once_within_the_budget_on_equal_ranks(plan: BudgetPlan) -> None:
    windows = plan.windows
    drawn = [list(each.draw(0)) for each in ranks(plan)]
    assert {len(steps) for steps in drawn} == {plan.steps(0)}
    for keys in (keys for steps in drawn for keys in steps):
        assert 0 < len(keys) * width(windows, keys) <= windows.batch_tokens
    assert once(plan, 0) == Counter(range(len(windows.lengths)))
    for steps, each in zip(drawn, ranks(plan), strict=True):
        assert [keys.tolist() for keys in steps] == [each.keys(0, step).tolist() for step in range(len(steps))]
        with pytest.raises(IndexError):
            each.keys(0, len(steps))


@law
@given(plan=budget_plans(), data=st.data())
def test_any_place_continues_on_any_ranks_with_each_sample_that_is_left(
    plan: BudgetPlan, data: st.DataObject
) -> None:
    done, seen = 0, Counter[int]()
    for _ in range(3):
        last = data.draw(st.integers(done, plan.steps(0) or 0))
        seen += once(plan, done, last)
        world = data.draw(st.integers(1, 6))
        plan = replace(plan, start=plan.consumed(0, last), first_step=last, world=world)
        done = last
    for keys in (keys for each in ranks(plan) for keys in each.draw(0, done)):
        assert 0 < len(keys) * width(plan.windows, keys) <= plan.windows.batch_tokens
    assert len({each.steps(0) for each in ranks(plan)}) == 1
    assert seen + once(plan, done) == Counter(range(len(plan.windows.lengths)))


@law
@given(plan=budget_plans(), drop=st.booleans(), data=st.data())
def test_the_same_ranks_continue_as_if_they_had_not_stopped(
    plan: BudgetPlan, drop: bool, data: st.DataObject
) -> None:
    plan = replace(plan, drop_last=drop)
    steps = plan.steps(0) or 0
    stop = data.draw(st.integers(0, steps))
    for each in ranks(plan):
        resumed = replace(each, start=each.consumed(0, stop), first_step=stop)
        rest = [keys.tolist() for keys in islice(each.draw(0), stop, None)]
        assert [keys.tolist() for keys in resumed.draw(0, stop)] == rest
        assert resumed.steps(0) == steps
        assert [resumed.pad(0, s) for s in range(stop, steps)] == [each.pad(0, s) for s in range(stop, steps)]
        assert resumed.after() == each
        assert pickle.loads(pickle.dumps(each)) == each


@law
@given(plan=budget_plans())
def test_dropping_drops_less_than_a_step_at_the_end_only(plan: BudgetPlan) -> None:
    dropping, steps = replace(plan, drop_last=True), plan.steps(0) or 0
    assert (dropping.steps(0) or 0) in (steps, steps - 1)
    for ours, theirs in zip(ranks(dropping), ranks(plan), strict=True):
        for one, other in zip(ours.draw(0), theirs.draw(0), strict=False):
            assert np.array_equal(one, other)


@law
@given(plan=budget_plans(), world=st.integers(1, 6), data=st.data())
def test_a_forecast_of_the_rest_has_the_samples_that_are_left(
    plan: BudgetPlan, world: int, data: st.DataObject
) -> None:
    stop = data.draw(st.integers(0, plan.steps(0) or 0))
    rest = replace(plan, start=plan.consumed(0, stop), first_step=stop, world=world)
    known, n = rest.upcoming(0), len(plan.windows.lengths)
    for step in range(stop, (rest.steps(0) or 0) + 1):
        left = known.order.at(0, np.arange(known.reached(step), n))
        assert Counter(left.tolist()) == once(rest, step)


@law
@given(windows=budgets(), world=st.integers(2, 6))
def test_a_window_is_cut_again_so_that_the_costliest_rank_costs_least(windows: BudgetWindows, world: int) -> None:
    windows = replace(windows, batch_multiple=1)
    plans = {power: BudgetPlan(windows, world=world, power=power) for power in (1, 2)}
    for step in range(plans[1].steps(0) or 0):
        batches = {power: [each.keys(0, step) for each in ranks(plan)] for power, plan in plans.items()}
        for power in plans:
            by = {of: max(len(b) * width(windows, b) ** power for b in found) for of, found in batches.items()}
            assert by[power] <= min(by.values())


def test_by_squares_a_window_is_cut_again_into_other_batches_than_by_tokens() -> None:
    lengths = np.array([25, 19, 15, 8, 9])
    windows, most = BudgetWindows(Sequential(5), LengthTable(lengths), batch_tokens=476), {}
    for power in (1, 2):
        batches = [each.keys(0, 0) for each in ranks(BudgetPlan(windows, world=3, power=power))]
        most[power] = max(len(keys) * int(lengths[keys].max()) ** 2 for keys in batches)
    assert most == {1: 722, 2: 675}


@law
@given(windows=budgets())
def test_a_table_has_the_batches_that_one_rank_gets(windows: BudgetWindows) -> None:
    batches = []
    for number in range(windows.count(0) or 0):
        table = windows.table(0, number)
        assert len(table) == windows.size(0, number)
        batches += [table.parts[a:b, 0].tolist() for a, b in zip(table.offsets, table.offsets[1:], strict=False)]
    assert batches == [keys.tolist() for keys in BudgetPlan(windows).draw(0)]


@law
@given(windows=budgets())
def test_only_the_last_batch_of_a_window_is_no_multiple_where_a_multiple_fits(windows: BudgetWindows) -> None:
    for number in range(windows.count(0) or 0):
        keys, _, starts = windows.cut(0, number)
        for begin, end in zip(starts[:-2].tolist(), starts[1:-1].tolist(), strict=True):
            fits = windows.batch_tokens // width(windows, keys[begin:end]) >= windows.batch_multiple
            assert not fits or (end - begin) % windows.batch_multiple == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 8}, "sample 2 has 9 tokens, but max_length is 8"),
        ({"buckets": (4, 8)}, "sample 2 has 9 tokens, but the largest bucket is 8"),
        ({"batch_tokens": 8}, "sample 2 has 9 tokens, but a batch has at most 8"),
        ({"batch_tokens": 12, "multiple": 8}, "sample 2 has 9 tokens, padded to 16, but a batch has at most 12"),
        ({"batch_tokens": 12, "buckets": (8, 16)}, "sample 2 has 9 tokens, padded to 16, but a batch has at most 12"),
    ],
)
def test_a_sample_that_is_too_long_is_named(settings: dict[str, object], message: str) -> None:
    windows = BudgetWindows(Sequential(3), LengthTable([3, 5, 9]), **{"batch_tokens": 32, **settings})  # type: ignore[arg-type]
    for ask in (windows.check, lambda: windows.table(0, 0)):
        with pytest.raises(ValueError, match=message):
            ask()


# Dealing by cost.


@law
@given(data=st.data(), world=st.integers(1, 9), each=st.integers(1, 9))
def test_dealing_gives_each_rank_its_number_of_samples(data: st.DataObject, world: int, each: int) -> None:
    costs = np.array(data.draw(st.lists(st.integers(0, 10**6), min_size=world * each, max_size=world * each)))
    dealt = deal(costs, world, each)
    assert dealt.shape == (world, each)
    assert sorted(dealt.ravel().tolist()) == list(range(world * each))
    assert np.array_equal(dealt, deal(costs, world, each))


@st.composite
def balanced(draw: st.DrawFn) -> BalancedPlan:
    n = draw(st.integers(0, 150))
    last = draw(st.sampled_from(["keep", "drop", "pad"]))
    return BalancedPlan(
        Shuffled(n, draw(st.integers(0, 9))),
        draw(st.integers(1, 5)),
        drop_last=last == "drop",
        padded=last == "pad",
        world=draw(st.integers(1, 4)),
        lengths=LengthTable(np.array(draw(st.lists(st.integers(0, 99), min_size=1, max_size=n or 1)))),
        power=draw(st.sampled_from([1, 2])),
        accumulate=draw(st.integers(1, 4)),
    )


def plain(plan: BalancedPlan) -> OrderPlan:
    names = ("order", "batch_size", "drop_last", "padded", "rank", "world", "start")
    return OrderPlan(**{name: getattr(plan, name) for name in names})


@law
@given(plan=balanced())
def test_balancing_keeps_the_samples_of_each_group_of_steps(plan: BalancedPlan) -> None:
    groups: list[Counter[tuple[int, int]]] = []
    for of in (plain, lambda each: each):
        seen: Counter[tuple[int, int]] = Counter()
        for rank in range(plan.world):
            each = of(replace(plan, rank=rank))
            for step, keys in enumerate(each.draw(0)):
                seen.update((step // plan.accumulate, key) for key in keys.tolist())
        groups.append(seen)
    assert groups[0] == groups[1]
    for rank in range(plan.world):
        one, other = replace(plan, rank=rank), plain(replace(plan, rank=rank))
        assert [len(keys) for keys in one.draw(0)] == [len(keys) for keys in other.draw(0)]
        steps = range(one.steps(0))
        assert [one.pad(0, step) for step in steps] == [other.pad(0, step) for step in steps]
        assert [np.array_equal(one.keys(0, step), keys) for step, keys in enumerate(one.draw(0))] == [True] * len(
            steps
        )


@law
@given(plan=balanced(), data=st.data())
def test_a_balanced_plan_continues_from_its_state(plan: BalancedPlan, data: st.DataObject) -> None:
    for rank in range(plan.world):
        each = replace(plan, rank=rank)
        stop = data.draw(st.integers(0, each.steps(0)))
        start = each.consumed(0, stop)
        resumed = replace(each, start=start)
        if start < plan.order.size(0):
            rest = [keys.tolist() for keys in islice(each.draw(0), stop, None)]
            assert [keys.tolist() for keys in resumed.draw(0, stop)] == rest
            if stop > resumed.first_step:
                with pytest.raises(StateError, match="dealt together"):
                    each.check_regrouped(stop, each.world * (each.batch_size or 1), start)


@law
@given(plan=balanced(), data=st.data())
def test_an_order_may_change_only_behind_all_samples_that_were_dealt(plan: BalancedPlan, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, plan.steps(0)))
    position, step = plan.first_open(0, done)
    assert done <= step < done + plan.accumulate
    if position < plan.order.size(0):
        before = [replace(plan, rank=rank).keys(0, at) for rank in range(plan.world) for at in range(step)]
        assert Counter(np.concatenate([[], *before])) == Counter(plan.order.at(0, np.arange(position)).tolist())


def test_dealing_by_squares_makes_the_sums_of_squares_even() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(5.8, 1.1, 64).astype(np.int64), 1, 4096)
    spread = {}
    for power in (1, 2):
        plan = BalancedPlan(Sequential(64), 16, world=4, lengths=LengthTable(lengths), power=power)
        sums = [int((lengths[replace(plan, rank=rank).keys(0, 0)] ** 2).sum()) for rank in range(4)]
        spread[power] = max(sums) - min(sums)
    assert spread[2] * 10 < spread[1]


def test_costs_are_even_at_64_ranks() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        costs = np.clip(rng.lognormal(5.8, 1.1, 64 * 32).astype(np.int64), 1, 4096) ** 2
        by_rank = costs[deal(costs, 64, 32)].sum(axis=1)
        assert by_rank.max() <= 1.05 * by_rank.mean()


def test_squared_lengths_beyond_64_bits_are_dealt_evenly() -> None:
    lengths = np.random.default_rng(1).integers(1, 1 << 33, 256)
    plan = BalancedPlan(Sequential(256), 64, world=4, lengths=LengthTable(lengths), power=2)
    shares = [replace(plan, rank=rank).keys(0, 0) for rank in range(4)]
    costs = [sum(int(length) ** 2 for length in lengths[share]) for share in shares]
    assert max(costs) * 4 < sum(costs) * 1.001
