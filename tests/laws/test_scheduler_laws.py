"""Random walks through worlds too wide to be walked completely, with the laws of `model/world.py`."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from model.world import ASKED, IN, OUT, Setting, World

from penstock._schedule.events import Closed
from penstock._schedule.scheduler import Scheduler

WORLDS = st.builds(
    Setting,
    runs=st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple),
    course=st.sampled_from(["known", "found", "stream"]),
    ahead=st.booleans(),
    window=st.integers(1, 9),
    workers=st.integers(1, 4),
    retries=st.integers(0, 2),
    in_order=st.booleans(),
    spare=st.none() | st.integers(0, 3),
    hold=st.integers(0, 5),
    crashes=st.sampled_from([0, 2, 12]),
    refusals=st.sampled_from([0, 2, 12]),
    cancels=st.integers(0, 2),
    unread=st.integers(0, 3),
)


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

    @precondition(can("open", "ask", "give_back"))
    @rule(pick=st.integers(0, 20))
    def the_consumer_moves(self, pick: int) -> None:
        self.one_of("open ask give_back", pick)

    @precondition(can("claim", "fill"))
    @rule(pick=st.integers(0, 20))
    def a_worker_works(self, pick: int) -> None:
        self.one_of("claim fill", pick)

    @precondition(can("hear", "notice"))
    @rule(pick=st.integers(0, 20))
    def a_worker_is_heard_of(self, pick: int) -> None:
        self.one_of("hear notice", pick)

    @precondition(can("die", "refuse"))
    @rule(pick=st.integers(0, 20))
    def a_worker_dies(self, pick: int) -> None:
        self.one_of("die refuse", pick)

    @precondition(can("cancel"))
    @rule(pick=st.integers(0, 20))
    def the_consumer_cancels(self, pick: int) -> None:
        self.one_of("cancel", pick)

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
        for _ in range(2000):
            act = next(world.progress(), None)
            if act is None and world.held and world.mode != ASKED:
                act = ("give_back", next(iter(world.held)))
            if act is None and world.mode == IN:
                act = ("ask", 0)
            if act is None and world.mode == OUT and world.run + 1 < len(world.setting.runs):
                act = ("open", 0)
            if act is None:
                break
            world.act(act)
        world.laws_of_rest()
        world.laws_of_the_end()
        assert world.mode == OUT
        assert world.run + 1 == len(world.setting.runs)

    def close(self) -> None:
        self.world.tell(Closed())
        assert self.world.stopped

    def replay(self) -> None:
        """The list of events is all there is to know: it leads a new scheduler to the same end."""
        setting = self.world.setting
        again = Scheduler(
            window=setting.window,
            workers=setting.workers,
            retries=setting.retries,
            in_order=setting.in_order,
            spare=setting.spare,
        )
        for event in self.world.events():
            again.handle(event)
        mine, its = vars(again), vars(self.world.scheduler)
        assert {k: repr(v) for k, v in mine.items()} == {k: repr(v) for k, v in its.items()}


TestARandomWalk = ARandomWalk.TestCase
TestARandomWalk.settings = settings(
    max_examples=100,
    stateful_step_count=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
