"""Random walks through worlds too wide to be walked completely, with the laws of `model/world.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.world import ASKED, OUT, Setting, World, new_scheduler, state_of

from penstock._schedule.assigned import Assigned
from penstock._schedule.events import Closed
from penstock._schedule.onereader import OneReader

SIZES: dict[str, st.SearchStrategy[Any]] = {
    "runs": st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple),
    "window": st.integers(1, 9),
    "in_order": st.booleans(),
    "hold": st.integers(0, 5),
    "crashes": st.sampled_from([0, 2, 12]),
    "cancels": st.integers(0, 2),
    "unread": st.integers(0, 3),
}
CREW: dict[str, st.SearchStrategy[Any]] = {
    "ahead": st.booleans(),
    "workers": st.integers(1, 4),
    "retries": st.integers(0, 2),
    "spare": st.none() | st.integers(0, 3),
    "refusals": st.sampled_from([0, 2, 12]),
    "resizes": st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=4).map(tuple),
}
KEYED = st.builds(
    Setting, **SIZES, **CREW, ends=st.just("found"), changes=st.integers(0, 3), bundle=st.integers(1, 4)
)
KNOWN = st.builds(Setting, **SIZES, **CREW, ends=st.sampled_from(["known", "stream"]))
ONE_READER = st.builds(
    Setting,
    **SIZES,
    rule=st.just(OneReader),
    ends=st.just("stream"),
    workers=st.just(1),
    retries=st.integers(0, 2),
    refusals=st.sampled_from([0, 2, 12]),
    tells=st.frozensets(st.integers(0, 11)),
    resizes=CREW["resizes"],
)
FIXED = {**SIZES, "crashes": st.sampled_from([0, 0, 1]), "rule": st.just(Assigned), "retries": st.just(0)}
SEATS = st.builds(
    Setting,
    **FIXED,
    ends=st.just("found"),
    ahead=st.just(False),
    workers=st.integers(2, 4),
    seat=st.integers(0, 1),
)
STREAMS = st.integers(1, 4).flatmap(
    lambda workers: st.builds(
        Setting,
        **FIXED,
        ends=st.just("stream"),
        workers=st.just(workers),
        seat=st.integers(0, workers - 1),
        lengths=st.lists(st.integers(0, 5), min_size=workers, max_size=workers).map(tuple),
    )
)
WORLDS = st.one_of(KEYED, KEYED, KNOWN, ONE_READER, SEATS, STREAMS)


def can(*names: str) -> Callable[[ARandomWalk], bool]:
    return lambda walk: any(name in names for name, _ in walk.world.actions())


class ARandomWalk(RuleBasedStateMachine):
    world: World

    @initialize(setting=WORLDS)
    def begin(self, setting: Setting) -> None:
        self.world = World(setting)

    def one_of(self, names: str, pick: int) -> None:
        possible = [action for action in self.world.actions() if action[0] in names.split()]
        self.world.act(possible[pick % len(possible)])

    @precondition(can("open", "ask", "take", "give_back"))
    @rule(pick=st.integers(0, 20))
    def the_consumer_moves(self, pick: int) -> None:
        self.one_of("open ask take give_back", pick)

    @precondition(can("claim", "fill", "leave"))
    @rule(pick=st.integers(0, 20))
    def a_worker_works(self, pick: int) -> None:
        self.one_of("claim fill leave", pick)

    @precondition(can("hear", "notice"))
    @rule(pick=st.integers(0, 20))
    def a_worker_is_heard_of(self, pick: int) -> None:
        self.one_of("hear notice notice_only_the_death", pick)

    @precondition(can("die", "refuse"))
    @rule(pick=st.integers(0, 20))
    def a_worker_dies(self, pick: int) -> None:
        self.one_of("die refuse", pick)

    @precondition(can("cancel"))
    @rule(pick=st.integers(0, 20))
    def the_consumer_cancels(self, pick: int) -> None:
        self.one_of("cancel", pick)

    @precondition(can("resize"))
    @rule(pick=st.integers(0, 20))
    def the_number_of_workers_changes(self, pick: int) -> None:
        self.one_of("resize", pick)

    @precondition(can("change"))
    @rule()
    def the_dataset_changes(self) -> None:
        self.world.act(("change", 0))

    @precondition(lambda walk: not any(walk.world.actions()))
    @rule()
    def nothing_is_left_to_do(self) -> None:
        self.world.laws_of_the_end()

    @invariant()
    def whoever_waits_is_worked_for(self) -> None:
        if hasattr(self, "world"):
            self.world.laws_of_rest()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.read_to_the_end()
            self.close()
            self.replay()

    def read_to_the_end(self) -> None:
        """From wherever it is, and with no more accidents, the world comes to its end."""
        world = self.world
        for _ in range(3000):
            act = next(world.progress(), None)
            usual = [action for action in world.actions() if action[0] in ("give_back", "take", "ask", "open")]
            if act is None and world.mode != ASKED:
                # First what makes room; an end that need not be asked for is asked for all the same.
                act = next((action for action in usual if action[0] != "open" or world.mode == OUT), None)
            if act is None:
                break
            world.act(act)
        world.laws_of_rest()
        world.laws_of_the_end()
        if not world.failed:
            assert world.mode == OUT
            assert world.run + 1 == len(world.setting.runs)

    def close(self) -> None:
        self.world.tell(Closed())

    def replay(self) -> None:
        """The list of events is all there is to know: it leads a new scheduler to the same end."""
        setting = self.world.setting
        again = new_scheduler(setting, setting.rule)
        for event in self.world.events():
            again.handle(event)
        assert state_of(again) == state_of(self.world.scheduler)


TestARandomWalk = ARandomWalk.TestCase
TestARandomWalk.settings = settings(
    max_examples=100 if "PENSTOCK_WIDE" in os.environ else 50,
    stateful_step_count=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
