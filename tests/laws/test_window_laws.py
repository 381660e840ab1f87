"""Laws of plans over windows: each item once, equal steps on all ranks, and any place continues on any ranks."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan._windows import ItemTable, Place, WindowPlan, item_keys

law = settings(deadline=None)


@dataclass(frozen=True)
class Counted:
    """Windows with these numbers of items. The parts of an item are (its number in the epoch, part, epoch)."""

    counts: tuple[int, ...]
    endless: bool = False
    window: int = 1

    def count(self, epoch: int) -> int | None:
        return None if self.endless else len(self.counts)

    def size(self, epoch: int, number: int) -> int:
        return self.counts[number % len(self.counts)]

    def table(self, epoch: int, number: int) -> ItemTable:
        turn, at = divmod(number, len(self.counts))
        first = turn * sum(self.counts) + sum(self.counts[:at])
        items = np.arange(first, first + self.counts[at])
        sizes = items % 3
        offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int64)
        parts = [(item, part, epoch) for item in items.tolist() for part in range(item % 3)]
        return ItemTable(offsets, np.array(parts, np.int64).reshape(-1, 3))


COUNTS = st.lists(st.integers(0, 12), max_size=8).map(tuple)


@st.composite
def window_plans(draw: st.DrawFn) -> WindowPlan:
    last = draw(st.sampled_from(["keep", "drop", "pad"]))
    world = draw(st.integers(1, 5))
    return WindowPlan(
        Counted(draw(COUNTS)),
        draw(st.integers(1, 7)),
        drop_last=last == "drop",
        padded=last == "pad",
        world=world,
    )


def ranks(plan: WindowPlan) -> list[WindowPlan]:
    return [replace(plan, rank=rank) for rank in range(plan.world)]


def items(keys: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    return [list(zip(*[iter(key)] * 3, strict=True)) for key in keys]


def whole(counts: tuple[int, ...], epoch: int) -> list[list[tuple[int, ...]]]:
    return [[(item, part, epoch) for part in range(item % 3)] for item in range(sum(counts))]


def dealt(plan: WindowPlan, epoch: int, first: int, last: int | None = None) -> list[list[tuple[int, ...]]]:
    """Returns the items of these steps of all ranks, without padding, in the order of the windows."""
    by_rank = [list(islice(each.draw(epoch, first), None if last is None else last - first)) for each in ranks(plan)]
    found = []
    for step in range(max(map(len, by_rank))):
        for rank, steps in enumerate(by_rank):
            if step < len(steps):
                rows = items(steps[step])
                found += rows[: len(rows) - replace(plan, rank=rank).pad(epoch, first + step)]
    return found


@law
@given(plan=window_plans(), epoch=st.integers(0, 3))
def test_each_item_comes_once_and_in_order(plan: WindowPlan, epoch: int) -> None:
    expected = whole(plan.windows.counts, epoch)  # type: ignore[attr-defined]
    if plan.drop_last:
        stride = plan.batch_size * plan.world
        expected = expected[: len(expected) // stride * stride]
    assert dealt(plan, epoch, 0) == expected


@law
@given(plan=window_plans(), data=st.data())
def test_a_state_may_be_at_any_item_that_is_to_come_and_at_no_other(plan: WindowPlan, data: st.DataObject) -> None:
    counts = plan.windows.counts  # type: ignore[attr-defined]
    window = data.draw(st.integers(0, len(counts)))
    size = counts[window] if window < len(counts) else 0
    item = data.draw(st.sampled_from([0, max(0, size - 1), size, size + 1]))
    exists = window < len(counts) and item < max(1, size)
    place = Place(window, item)
    assert (plan.fault(0, place.code, int(place.code > 0)) is None) == (exists or place == (len(counts), 0, 0))


@law
@given(plan=window_plans(), epoch=st.integers(0, 3))
def test_all_ranks_have_as_many_steps_as_they_say(plan: WindowPlan, epoch: int) -> None:
    drawn = [list(each.draw(epoch)) for each in ranks(plan)]
    assert [len(steps) for steps in drawn] == [each.steps(epoch) for each in ranks(plan)]
    if plan.padded or plan.drop_last:
        assert len({len(steps) for steps in drawn}) == 1
        assert all(len(keys) == plan.batch_size for steps in drawn for keys in steps)
    for steps, each in zip(drawn, ranks(plan), strict=True):
        assert steps == [each.keys(epoch, s) for s in range(len(steps))]
        with pytest.raises(IndexError):
            each.keys(epoch, len(steps))


@law
@given(plan=window_plans(), data=st.data())
def test_any_place_continues_on_any_ranks_with_each_item_that_is_left(plan: WindowPlan, data: st.DataObject) -> None:
    plan = replace(plan, drop_last=False)
    steps = max(each.steps(1) or 0 for each in ranks(plan))
    done, seen, shape = 0, [], plan
    for _ in range(2):
        last = data.draw(st.integers(done, max(done, steps)))
        seen += dealt(shape, 1, done, last)
        place = shape.consumed(1, last)
        world, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
        shape = replace(shape, start=place, first_step=last, world=world, batch_size=size)
        done, steps = last, max(each.steps(1) or 0 for each in ranks(shape))
    assert seen + dealt(shape, 1, done) == whole(plan.windows.counts, 1)  # type: ignore[attr-defined]


@law
@given(plan=window_plans(), data=st.data())
def test_the_same_shape_continues_as_if_it_had_not_stopped(plan: WindowPlan, data: st.DataObject) -> None:
    steps = min(each.steps(0) or 0 for each in ranks(plan))
    stop = data.draw(st.integers(0, steps))
    for each in ranks(plan):
        resumed = replace(each, start=each.consumed(0, stop), first_step=stop)
        assert list(resumed.draw(0, stop)) == list(islice(each.draw(0), stop, None))
        assert resumed.steps(0) == each.steps(0)
        assert [resumed.pad(0, s) for s in range(stop, steps)] == [each.pad(0, s) for s in range(stop, steps)]
        assert resumed.after() == each
        assert pickle.loads(pickle.dumps(each)) == each


@law
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=5), steps=st.integers(0, 30))
def test_an_epoch_without_end_has_steps_as_long_as_they_are_drawn(counts: list[int], steps: int) -> None:
    plan = WindowPlan(Counted(tuple(counts), endless=True), 2, padded=True, world=3)
    assert plan.steps(0) is None
    drawn = dealt(plan, 0, 0, steps)
    assert [row[0][0] for row in drawn if row] == [number for number in range(steps * 6) if number % 3]
    place = plan.consumed(0, steps)
    assert len(list(islice(replace(plan, start=place, first_step=steps).draw(0, steps), 3))) == 3


@given(window=st.integers(0, 1 << 40), item=st.integers(0, (1 << 32) - 1), of=st.integers(0, (1 << 16) - 1))
def test_a_place_is_one_number(window: int, item: int, of: int) -> None:
    assert Place.of(Place(window, item, of).code) == Place(window, item, of)


@law
@given(counts=COUNTS, data=st.data())
def test_the_keys_of_items_hold_their_parts(counts: tuple[int, ...], data: st.DataObject) -> None:
    tables = [Counted(counts).table(0, number) for number in range(len(counts))]
    slices = []
    for table in tables:
        last = data.draw(st.integers(0, len(table)))
        slices.append((table, data.draw(st.integers(0, last)), last))
    expected = [
        [tuple(part) for part in table.parts[table.offsets[i] : table.offsets[i + 1]].tolist()]
        for table, first, last in slices
        for i in range(first, last)
    ]
    assert items(item_keys(slices)) == expected
