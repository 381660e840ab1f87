"""Steps that belong to one worker each: they go round in turn, whatever happens, and come out in order.

A world of workers with queues of their own and a consumer is driven by a list of choices. What it must give
is known beforehand: it depends on the streams' lengths only, never on who was quick.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._schedule.assigned import Assigned
from penstock._schedule.commands import Deliver, Finish, Hire, Post, Rescind
from penstock._schedule.events import (
    Asked,
    Cancelled,
    Event,
    Exhausted,
    Opened,
    SlabReturned,
    StepEnded,
    StepFilled,
)
from penstock.errors import InternalError


class World:
    """`lengths`: how many steps each worker's own stream has; None: there are `steps` steps, dealt to all."""

    def __init__(
        self,
        workers: int,
        window: int,
        lengths: list[int] | None,
        steps: int,
        in_order: bool,
        first_seat: int = 0,
    ) -> None:
        self.scheduler = Assigned(window=window, workers=workers, in_order=in_order)
        self.workers = workers
        self.window = window
        self.lengths = lengths
        self.steps = steps
        self.first_seat = first_seat
        self.hired: dict[int, int] = {}  # seat -> worker
        self.begin()

    def begin(self) -> None:
        self.queues: list[deque[int]] = [deque() for _ in range(self.workers)]
        self.done = [0] * self.workers
        self.given: dict[int, tuple[int, int]] = {}  # seq -> seat, what number of the seat's
        self.slab_of: dict[int, int] = {}
        self.drawn = 0
        self.draws: list[int] = []  # how many had been delivered at each draw
        self.got: list[tuple[int, int]] = []
        self.over = False
        self.tell(Opened(self.first_seat))

    def tell(self, event: Event) -> None:
        events = deque([event])
        while events:
            commands = self.scheduler.handle(events.popleft())
            self.scheduler.check()
            for command in commands:
                match command:
                    case Hire(worker, seat):
                        assert seat not in self.hired, "a seat is filled once: nobody is replaced"
                        self.hired[seat] = worker
                    case Post(seq, slab, seat):
                        assert slab not in self.slab_of.values(), "a slab has one holder"
                        if self.lengths is None and self.drawn >= self.steps:
                            events.append(Exhausted(seq))
                            continue
                        self.slab_of[seq] = slab
                        self.given[seq] = seat, sum(s == seat for s, _ in self.given.values())
                        self.queues[seat].append(seq)
                        self.drawn += 1
                        self.draws.append(len(self.got))
                    case Deliver(seq, slab):
                        assert self.slab_of.pop(seq) == slab
                        self.got.append(self.given[seq])
                        events.append(SlabReturned(slab))
                    case Finish():
                        self.over = True
                    case Rescind():
                        raise AssertionError("what was posted is done: a worker's generators depend on it")
                    case other:
                        assert "Cool" in repr(other)

    def work(self, seat: int) -> None:
        seq = self.queues[seat].popleft()
        worker = self.hired[seat]
        if self.lengths is not None and self.done[seat] >= self.lengths[seat]:
            self.slab_of.pop(seq)
            self.tell(StepEnded(seq, worker))
            return
        self.done[seat] += 1
        if self.scheduler.phase.value == "idle":
            self.slab_of.pop(seq)
        self.tell(StepFilled(seq, worker))

    def run(self, choices: Any) -> None:
        """To the end of the run; a choice decides whether the consumer asks, or which worker works."""
        asked = False
        while not self.over:
            before = len(self.got)
            busy = [seat for seat, queue in enumerate(self.queues) if queue]
            which = choices(len(busy) + (not asked))
            if which == len(busy):
                asked = True
                self.tell(Asked())
            else:
                self.work(busy[which])
            asked = asked and len(self.got) == before and not self.over
            live = [seq for seq in self.slab_of if self.lengths is None or seq in self.scheduler._steps]
            assert len(live) <= self.window, "the window is respected"

    def in_turn(self) -> list[tuple[int, int]]:
        """What each seat has, in turns."""
        lengths = self.lengths
        if lengths is None:
            lengths = [len(range(seat, self.steps, self.workers)) for seat in range(self.workers)]
        longest = max(lengths, default=0)
        return [(seat, n) for n in range(longest) for seat in range(self.workers) if n < lengths[seat]]


def driver(data: st.DataObject) -> Any:
    return lambda count: data.draw(st.integers(0, count - 1)) if count > 1 else 0


worlds = st.fixed_dictionaries({"workers": st.integers(1, 4), "each": st.integers(1, 3)})


@settings(max_examples=150, deadline=None)
@given(worlds, st.integers(0, 12), st.data())
def test_a_step_goes_to_the_worker_whose_turn_it_is(world: Any, steps: int, data: st.DataObject) -> None:
    made = World(world["workers"], world["workers"] * world["each"], None, steps, True)
    for _ in range(2):
        made.run(driver(data))
        assert made.got == made.in_turn()
        window = world["workers"] * world["each"]
        assert made.draws == [max(0, n - window + 1) for n in range(steps)], "one draw for each delivery"
        made.begin()


@settings(max_examples=150, deadline=None)
@given(worlds, st.data())
def test_streams_of_any_length_are_read_in_turns(world: Any, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=world["workers"], max_size=world["workers"]))
    made = World(world["workers"], world["workers"] * world["each"], lengths, 0, True)
    made.run(driver(data))
    assert made.got == made.in_turn()


@settings(max_examples=150, deadline=None)
@given(worlds, st.data())
def test_streams_go_on_in_the_turns_that_they_were_in(world: Any, data: st.DataObject) -> None:
    workers, window = world["workers"], world["workers"] * world["each"]
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=workers, max_size=workers))
    whole = World(workers, window, lengths, 0, True).in_turn()
    at = data.draw(st.integers(0, len(whole)))
    taken = [sum(seat == s for s, _ in whole[:at]) for seat in range(workers)]
    rest = [length - done for length, done in zip(lengths, taken, strict=True)]
    made = World(workers, window, rest, 0, True, (whole[at - 1][0] + 1) % workers if at else 0)
    made.run(driver(data))
    assert [(seat, taken[seat] + n) for seat, n in made.got] == whole[at:]


@settings(max_examples=100, deadline=None)
@given(worlds, st.integers(0, 12), st.booleans(), st.data())
def test_out_of_order_each_step_comes_once(world: Any, steps: int, streams: bool, data: st.DataObject) -> None:
    lengths = [data.draw(st.integers(0, 5)) for _ in range(world["workers"])] if streams else None
    made = World(world["workers"], world["workers"] * world["each"], lengths, steps, False)
    made.run(driver(data))
    counts = [sorted(n for s, n in made.got if s == seat) for seat in range(world["workers"])]
    assert all(numbers == list(range(len(numbers))) for numbers in counts)
    assert len(made.got) == (steps if lengths is None else sum(lengths))


def test_a_cancelled_run_is_done_before_the_next_is_opened() -> None:
    made = World(2, 4, None, 10, True)
    made.tell(Asked())
    made.work(0)
    assert made.got == [(0, 0)]
    made.tell(Cancelled())
    assert made.scheduler.must_settle
    with pytest.raises(InternalError, match="not done yet"):
        made.scheduler.handle(Opened())
    for seat in (0, 1):
        while made.queues[seat]:
            made.work(seat)
    assert not made.scheduler.must_settle
    assert sum(made.done) == 5, "all that was posted: four, and one for the one that was delivered"
    made.begin()
    made.run(lambda count: 0)
    assert made.got == made.in_turn()
