"""Laws of ranks: their steps are cut out of one order, and nothing is lost, doubled or out of its place."""

from __future__ import annotations

import time
import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StateError
from penstock.plan._order import Drawn, Order, Selected, Sequential, Shuffled, Weighted
from penstock.plan._plan import OrderPlan, SamplerPlan

ENDS: dict[str, dict[str, bool]] = {"keep": {}, "drop": {"drop_last": True}, "pad": {"padded": True}}

# No deadline: another test on the same cores must not fail this one.
law = settings(deadline=None, max_examples=60)


def plans(order: Order, size: int | None, end: str, world: int, start: int = 0) -> list[OrderPlan]:
    """One plan for each rank."""
    return [OrderPlan(order, size, **ENDS[end], rank=rank, world=world, start=start) for rank in range(world)]


def together(ranks: list[OrderPlan], epoch: int) -> list[list[list[int]]]:
    """The steps of all ranks, one after the other: for each the keys of every rank that has it, without padding."""
    steps = []
    for step in range(ranks[0].first_step, ranks[0].steps(epoch)):
        steps.append([])
        for plan in ranks:
            if step < plan.steps(epoch):
                keys = np.atleast_1d(plan.keys(epoch, step)).tolist()
                steps[-1].append(keys[: len(keys) - plan.pad(epoch, step)])
    return steps


def flat(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else [each for part in value for each in flat(part)]


def whole(order: Order, epoch: int) -> list[int]:
    return order.at(epoch, np.arange(order.size(epoch))).tolist()


@st.composite
def orders(draw: st.DrawFn) -> Order:
    n, seed, count = draw(st.integers(1, 60)), draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 90))
    return draw(
        st.sampled_from(
            [
                Sequential(n),
                Shuffled(n, seed),
                Shuffled(n, seed, count),
                Drawn(n, count, seed),
                Weighted.by(np.arange(1, n + 1), count, seed),
                Selected(Shuffled(n, seed), np.arange(n) * 3),
            ]
        )
    )


SIZES = st.one_of(st.none(), st.integers(1, 9))
WORLDS = st.integers(1, 12)
EPOCHS = st.integers(0, 3)


@pytest.mark.parametrize("end", ENDS)
def test_shards_of_small_worlds_are_the_order_cut_into_blocks(end: str) -> None:
    """All of them: every size, world and batch size up to these."""
    for n, size, world in product(range(13), range(1, 4), range(1, 6)):
        ranks = plans(Sequential(n), size, end, world)
        steps = together(ranks, 0)
        stride = size * world
        used = n // stride * stride if end == "drop" else n
        assert flat(steps) == list(range(used))
        for number, blocks in enumerate(steps):
            assert [block for block in blocks if block] == [
                list(range(at, min(at + size, used)))
                for at in range(number * stride, min((number + 1) * stride, used), size)
            ]


@law
@given(order=orders(), size=SIZES, world=WORLDS, epoch=EPOCHS, end=st.sampled_from(sorted(ENDS)))
def test_ranks_together_have_the_order(order: Order, size: int | None, world: int, epoch: int, end: str) -> None:
    if end == "drop" and size is None and world == 1:
        return
    have = flat(together(plans(order, size, end, world), epoch))
    n, stride = order.size(epoch), (size or 1) * world
    assert have == whole(order, epoch)[: n // stride * stride if end == "drop" else n]


@law
@given(order=orders(), size=SIZES, world=WORLDS, epoch=EPOCHS, end=st.sampled_from(["drop", "pad"]))
def test_every_rank_has_as_many_full_steps(order: Order, size: int | None, world: int, epoch: int, end: str) -> None:
    if end == "drop" and size is None and world == 1:
        return
    ranks = plans(order, size, end, world)
    assert len({plan.steps(epoch) for plan in ranks}) == 1
    assert {np.size(keys) for plan in ranks for keys in plan.draw(epoch)} <= {size or 1}


@law
@given(order=orders(), size=SIZES, world=WORLDS, epoch=EPOCHS)
def test_where_all_is_kept_a_rank_has_at_most_one_step_less(
    order: Order, size: int | None, world: int, epoch: int
) -> None:
    steps = [plan.steps(epoch) for plan in plans(order, size, "keep", world)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] - steps[-1] <= 1


@law
@given(order=orders(), size=SIZES, world=WORLDS, epoch=EPOCHS)
def test_padding_repeats_the_beginning_of_the_order(order: Order, size: int | None, world: int, epoch: int) -> None:
    ranks = plans(order, size, "pad", world)
    rows = [
        plan.keys(epoch, step) if size is None else plan.keys(epoch, step).tolist()  # type: ignore[union-attr]
        for step in range(ranks[0].steps(epoch))
        for plan in ranks
    ]
    order_twice = whole(order, epoch) * (1 + len(flat(rows)))
    assert flat(rows) == order_twice[: len(flat(rows))]


@law
@given(order=orders(), size=SIZES, world=WORLDS, epoch=EPOCHS)
def test_a_metric_over_padded_shards_is_that_of_one_process(
    order: Order, size: int | None, world: int, epoch: int
) -> None:
    """Each rank counts and sums over the rows that are not extra, as a user would by `Batch.pad`."""
    count = total = 0
    for plan in plans(order, size, "pad", world):
        for step, keys in enumerate(plan.draw(epoch)):
            rows = np.atleast_1d(keys)
            real = rows[: rows.size - plan.pad(epoch, step)]
            count, total = count + real.size, total + int((real**2).sum())
    assert (count, total) == (order.size(epoch), sum(key**2 for key in whole(order, epoch)))


@law
@given(
    order=orders(),
    shapes=st.lists(st.tuples(SIZES, WORLDS, st.integers(0, 4)), min_size=1, max_size=5),
    epoch=EPOCHS,
    last=st.sampled_from(["keep", "pad"]),
)
def test_the_order_goes_on_in_another_shape(
    order: Order, shapes: list[tuple[int | None, int, int]], epoch: int, last: str
) -> None:
    """Some steps in one world, some in another, and so on: every position once, in its turn."""
    seen: list[int] = []
    for size, world, count in shapes:
        ranks = plans(order, size, last, world, start=len(seen))
        seen += flat(together(ranks, epoch)[:count])
        done = min(ranks[0].first_step + count, ranks[0].steps(epoch))
        assert {plan.consumed(epoch, done) for plan in ranks} == {len(seen)}
    seen += flat(together(plans(order, 4, last, 3, start=len(seen)), epoch))
    assert seen == whole(order, epoch)


@law
@given(order=orders(), size=SIZES, world=WORLDS, epoch=EPOCHS, end=st.sampled_from(sorted(ENDS)), data=st.data())
def test_going_on_in_the_same_shape_changes_nothing(
    order: Order, size: int | None, world: int, epoch: int, end: str, data: st.DataObject
) -> None:
    if end == "drop" and size is None and world == 1:
        return
    rank = data.draw(st.integers(0, world - 1))
    plan = plans(order, size, end, world)[rank]
    done = data.draw(st.integers(0, plan.steps(epoch)))
    rest = plans(order, size, end, world, start=plan.consumed(epoch, done))[rank]
    assert (rest.first_step, rest.steps(epoch)) == (done, max(done, plan.steps(epoch)))
    assert [np.atleast_1d(keys).tolist() for keys in rest.draw(epoch)] == [
        np.atleast_1d(keys).tolist() for keys in plan.draw(epoch, done)
    ]
    for step in range(done, plan.steps(epoch)):
        assert np.array_equal(rest.keys(epoch, step), plan.keys(epoch, step))
        assert rest.pad(epoch, step) == plan.pad(epoch, step)
    assert rest.after() == plan


@law
@given(
    order=orders(),
    size=st.integers(1, 9),
    world=WORLDS,
    start=st.integers(0, 40),
    end=st.sampled_from(sorted(ENDS)),
    takes=st.lists(st.integers(1, 8), min_size=1, max_size=20),
)
def test_several_steps_at_once_are_equal_shares_of_what_is_taken(
    order: Order, size: int, world: int, start: int, end: str, takes: list[int]
) -> None:
    plan = plans(order, size, end, world, start)[world // 2]
    draw, step = plan.draw(1), plan.first_step
    for most in takes:
        try:
            keys, count = draw.take(most)
        except StopIteration:
            assert step == plan.steps(1)
            return
        assert 1 <= count <= most
        share = len(keys) // count
        assert len(keys) == share * count
        for part in range(count):
            assert np.array_equal(keys[part * share : (part + 1) * share], plan.keys(1, step + part))
        step += count


@law
@given(
    n=st.integers(0, 60),
    size=SIZES,
    world=WORLDS,
    drop_last=st.booleans(),
    batched=st.booleans(),
    start=st.integers(0, 5),
)
def test_a_foreign_sampler_is_dealt_step_by_step(
    n: int, size: int | None, world: int, drop_last: bool, batched: bool, start: int
) -> None:
    if drop_last and size is None and world == 1 and not batched:
        return
    sampler: Any = [[key, key] for key in range(n)] if batched else range(n)
    ranks = [SamplerPlan(sampler, size, drop_last, batched, rank, world) for rank in range(world)]
    shares = [list(plan.draw(0)) for plan in ranks]
    assert [len(share) for share in shares] == [plan.steps(0) for plan in ranks]
    alone = SamplerPlan(sampler, size, drop_last and size is not None and not batched, batched)
    steps = list(alone.draw(0))
    reached = start * world - len(steps) < world
    if drop_last:
        steps = steps[: len(steps) // world * world]
    assert shares == [steps[rank::world] for rank in range(world)]
    if reached:
        assert [list(plan.draw(0, start)) for plan in ranks] == [share[start:] for share in shares]
        return
    for plan in ranks:
        with pytest.raises(StateError, match="the sampler or the stream has changed"):
            next(plan.draw(0, start))


# A rank has the position p of a world of w ranks and batches of b if p // b % w is its number: any rank's block
# is checked against that, for worlds that nobody could start here.
@pytest.mark.parametrize("world", [1, 2, 7, 64, 1000, 4096])
@pytest.mark.parametrize("end", ENDS)
def test_shards_of_large_worlds_are_disjoint_and_complete(world: int, end: str) -> None:
    size, n = 64, 10**10 + 19
    ranks = dict(enumerate(plans(Sequential(n), size, end, world)))
    rng = np.random.default_rng(world)
    for rank in {0, world // 2, world - 1, *rng.integers(0, world, 5).tolist()}:
        plan = ranks[rank]
        steps = plan.steps(0)
        for step in {0, steps - 1, *rng.integers(0, steps, 5).tolist()}:
            keys = plan.keys(0, step)
            assert isinstance(keys, np.ndarray)
            real = keys[: keys.size - plan.pad(0, step)]
            assert (real // size % world == rank).all() and (real // (size * world) == step).all()
            assert np.array_equal(real, np.unique(real))
    used = n // (size * world) * size * world if end == "drop" else n
    rows = [plan.steps(0) * size for plan in ranks.values()]
    last = [plan.keys(0, plan.steps(0) - 1).size - size for plan in ranks.values()]  # type: ignore[union-attr]
    pads = [plan.pad(0, plan.steps(0) - 1) for plan in ranks.values()]
    assert sum(rows) + sum(last) - sum(pads) == used


def test_shuffled_shards_of_4096_ranks_meet_nowhere() -> None:
    """A whole step of all ranks, in the middle and at the end, of ten billion samples."""
    ranks = plans(Shuffled(10**10, 5), 16, "pad", 4096)
    for step in (70_000, ranks[0].steps(3) - 1):
        real = np.concatenate(
            [plan.keys(3, step)[: 16 - plan.pad(3, step)] for plan in ranks]  # type: ignore[index]
        )
        assert len(np.unique(real)) == len(real)
        assert len(real) == min(4096 * 16, 10**10 - step * 4096 * 16)


def test_any_step_of_any_rank_of_ten_billion_samples_costs_nothing() -> None:
    def ask(rank: int) -> float:
        begun = time.thread_time()
        plan = OrderPlan(Shuffled(10**10, 3), 256, padded=True, rank=rank, world=4096)
        assert np.size(plan.keys(rank, plan.steps(rank) - 1)) == np.size(plan.keys(rank, 5000)) == 256
        return time.thread_time() - begun

    assert min(ask(rank) for rank in (0, 1, 77, 2048, 4095)) < 0.010  # two steps, 5 ms each
    tracemalloc.start()
    try:
        ask(9)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"rank": 2, "world": 2}, r"rank must be 0 to 1 \(world - 1\), but it is 2"),
        ({"rank": -1, "world": 2}, "but it is -1"),
        ({"world": 0}, "world must be a positive integer"),
        ({"start": -1}, "start must be 0 or more, but it is -1"),
        ({"drop_last": True, "padded": True}, "mutually exclusive"),
    ],
)
def test_what_is_no_plan_is_refused(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderPlan(Sequential(5), 2, **given_)


def test_a_step_before_the_start_is_an_error() -> None:
    plan = OrderPlan(Sequential(10), 2, start=5)
    assert [keys.tolist() for keys in plan.draw(0)] == [[5, 6], [7, 8], [9]]
    with pytest.raises(IndexError, match="step 2 is outside epoch 0"):
        plan.keys(0, 2)
    assert plan.keys(0, 3).tolist() == [5, 6]  # type: ignore[union-attr]
