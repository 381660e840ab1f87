"""The scheduler, sentence by sentence: events in, commands out."""

from __future__ import annotations

import pytest

from penstock._schedule.assigned import Assigned
from penstock._schedule.commands import (
    Break,
    Command,
    Cool,
    Deliver,
    DeliverLost,
    Fail,
    Finish,
    GiveUp,
    Hire,
    Post,
    Rescind,
    Retire,
)
from penstock._schedule.events import (
    Asked,
    Bounded,
    Cancelled,
    Changed,
    Closed,
    Event,
    Exhausted,
    Opened,
    Rescinded,
    Resized,
    SlabReturned,
    StepEnded,
    StepFilled,
    WorkerLeft,
    WorkerLost,
)
from penstock._schedule.onereader import OneReader
from penstock._schedule.scheduler import Scheduler
from penstock.errors import InternalError


class Log:
    """Handles events one by one, checking after each, and keeps what the last one commanded."""

    def __init__(
        self, *, window: int = 2, workers: int = 2, retries: int = 1, in_order: bool = True,
        spare: int | None = None, room: int = 1, scheduler: Scheduler | None = None,
    ) -> None:  # fmt: skip
        self.scheduler = scheduler or Scheduler(
            window=window, workers=workers, retries=retries, in_order=in_order, spare=spare, spacing=room
        )
        self.commands: list[Command] = []

    def after(self, *events: Event) -> Log:
        for event in events:
            self.commands = self.scheduler.handle(event)
            self.scheduler.check()
        return self

    def are(self, *commands: Command) -> bool:
        """Compares by repr: as tuples, Finish() and Retire() are equal."""
        assert [repr(command) for command in self.commands] == [repr(command) for command in commands]
        return True


# What comes next


@pytest.mark.parametrize("in_order", [True, False])
def test_the_next_batches_are_known_as_far_as_they_are_done(in_order: bool) -> None:
    log = Log(window=6, workers=3, in_order=in_order).after(Opened())
    assert log.scheduler.deliverable(3) == []
    log.after(StepFilled(1, 1))
    assert log.scheduler.deliverable(3) == ([] if in_order else [1])
    log.after(StepFilled(0, 0), StepFilled(3, 0))
    assert log.scheduler.deliverable(3) == ([0, 1] if in_order else [1, 0, 3])
    assert log.scheduler.deliverable(1) == ([0] if in_order else [1])
    assert log.scheduler.deliverable(0) == []
    log.after(Bounded(1))  # the others belong to the next run
    assert log.scheduler.deliverable(3) == [0]


# Runs


def test_opening_fills_the_window_and_hires_a_crew() -> None:
    assert Log().after(Opened()).are(Post(0, 0), Post(1, 1), Hire(0, 0), Hire(1, 1))


def test_a_batch_is_delivered_when_asked_for_and_its_place_is_filled() -> None:
    assert Log().after(Opened(), StepFilled(0, 1), Asked()).are(Deliver(0, 0), Post(2, 2))


def test_an_ask_waits_for_its_batch() -> None:
    log = Log().after(Opened(), Asked())
    assert log.are()
    assert log.after(StepFilled(0, 0)).are(Deliver(0, 0), Post(2, 2))


def test_nothing_is_delivered_before_it_is_asked_for() -> None:
    assert Log().after(Opened(), StepFilled(0, 0), StepFilled(1, 1)).are()


def test_in_order_a_later_batch_waits_for_an_earlier_one() -> None:
    log = Log().after(Opened(), Asked(), StepFilled(1, 1))
    assert log.are()
    assert log.after(StepFilled(0, 0)).are(Deliver(0, 0), Post(2, 2))


def test_out_of_order_batches_are_delivered_as_they_come() -> None:
    log = Log(in_order=False).after(Opened(), StepFilled(1, 1), StepFilled(0, 0))
    assert log.after(Asked()).are(Deliver(1, 1), Post(2, 2))
    assert log.after(Asked()).are(Deliver(0, 0), Post(3, 3))


def test_a_run_is_finished_when_all_before_its_bound_is_delivered() -> None:
    log = Log(window=1).after(Opened(), Bounded(1), StepFilled(0, 0), Asked())
    assert log.are(Deliver(0, 0), Post(1, 1))
    assert log.after(Asked()).are(Finish())


def test_a_run_that_is_over_stays_over() -> None:
    assert Log().after(Opened(), Bounded(0), Asked(), Asked()).are(Finish())


def test_a_bound_far_ahead_does_not_finish_the_run() -> None:
    assert Log().after(Opened(), Bounded(10), StepFilled(0, 0), Asked(), Asked()).are()


def test_steps_beyond_the_bound_wait_for_the_next_run() -> None:
    log = Log().after(Opened(), Bounded(1), StepFilled(1, 1), Asked())
    assert log.are()
    assert log.after(StepFilled(0, 0)).are(Deliver(0, 0), Post(2, 2))
    assert log.after(Asked()).are(Finish())
    assert log.after(Opened(), Asked()).are(Deliver(1, 1), Post(3, 3))


def test_out_of_order_a_step_of_the_next_run_is_passed_over() -> None:
    log = Log(in_order=False).after(Opened(), Bounded(1), StepFilled(1, 1), Asked())
    assert log.are()
    assert log.after(StepFilled(0, 0)).are(Deliver(0, 0), Post(2, 2))


def test_the_next_run_may_be_opened_without_asking_for_the_end() -> None:
    log = Log().after(Opened(), Bounded(1), StepFilled(0, 0), Asked())
    assert log.scheduler.run_is_over
    assert log.after(Opened(), StepFilled(1, 0), Asked()).are(Deliver(1, 1), Post(3, 3))


def test_where_nothing_can_be_drawn_nothing_more_is_posted_until_the_next_run() -> None:
    log = Log(window=3).after(Opened(), Bounded(1), Exhausted(1), Exhausted(2))
    assert log.after(StepFilled(0, 0), Asked()).are(Deliver(0, 0))
    assert log.after(Asked()).are(Finish())
    assert log.after(Opened()).are(Post(3, 2), Post(4, 1), Post(5, 3))


def test_an_empty_run_is_finished_at_once() -> None:
    assert Log().after(Opened(), Bounded(0), Exhausted(0), Exhausted(1), Asked()).are(Finish())


def test_a_draw_that_fails_without_a_bound_ends_the_run_there() -> None:
    log = Log().after(Opened(), Exhausted(1), StepFilled(0, 0), Asked())
    assert log.are(Deliver(0, 0))
    assert log.after(Asked()).are(Finish())


# Streams


def test_a_stream_that_ran_dry_ends_the_run_before_that_step() -> None:
    log = Log().after(Opened(), StepEnded(1, 1), StepFilled(0, 0), Asked())
    assert log.are(Deliver(0, 0))
    assert log.after(Asked()).are(Finish())


def test_later_steps_of_a_dry_stream_are_taken_back() -> None:
    assert Log(window=3).after(Opened(), StepEnded(0, 0)).are(Rescind(1), Rescind(2))


def test_the_late_end_of_a_dry_stream_does_not_end_the_next_run() -> None:
    # Both workers have a step of the dry stream in hand, and one is slow to say so.
    log = Log().after(Opened(), StepEnded(0, 0), Asked(), Opened(), StepEnded(1, 1), Asked())
    assert log.are()
    assert log.after(StepFilled(2, 0)).are(Deliver(2, 0), Post(4, 1))


def test_a_step_lost_beyond_the_end_of_a_stream_is_not_reported() -> None:
    log = Log(retries=0).after(Opened(), WorkerLost(1, 1), StepEnded(0, 0), Asked())
    assert log.are(Finish())
    assert log.after(Opened(), StepFilled(2, 0), Asked()).are(Deliver(2, 1), Post(4, 2))


def test_a_stream_that_ends_early_leaves_the_next_run_alone() -> None:
    log = Log(window=4).after(Opened(), Bounded(2), StepEnded(1, 1))
    assert log.after(StepFilled(0, 0), StepFilled(2, 1), Asked()).are(Deliver(0, 0))
    assert log.after(Asked()).are(Finish())
    assert log.after(Opened(), Asked()).are(Deliver(2, 2), Post(6, 5))


# Lost workers


def test_a_lost_step_keeps_its_slab() -> None:
    assert Log().after(Opened(), WorkerLost(0, 0)).are(Post(0, 0), Hire(2, 0))


def test_a_replacement_has_the_seat_of_the_dead_and_a_name_of_its_own() -> None:
    log = Log().after(Opened(), WorkerLost(1, None))
    assert log.are(Hire(2, 1))
    assert log.after(WorkerLost(2, None)).are(Hire(3, 1))


def test_the_death_of_a_worker_after_its_last_result_costs_nothing() -> None:
    log = Log().after(Opened(), StepFilled(0, 0), WorkerLost(0, None), Asked())
    assert log.are(Deliver(0, 0), Post(2, 2))


def test_a_step_is_given_up_after_its_retries_and_reported_in_its_turn() -> None:
    log = Log(retries=1).after(Opened(), WorkerLost(1, 1), WorkerLost(2, 1), Asked())
    assert log.are()
    assert log.after(StepFilled(0, 0), Asked()).are(DeliverLost(1, 1, 2), Post(3, 1))


def test_out_of_order_a_loss_is_reported_when_it_comes() -> None:
    log = Log(retries=0, in_order=False).after(Opened(), Asked(), WorkerLost(1, 1))
    assert log.are(Hire(2, 1), DeliverLost(1, 1, 1), Post(2, 1))


def test_the_run_goes_on_after_a_lost_step() -> None:
    log = Log(retries=0).after(Opened(), WorkerLost(0, 0), Asked(), StepFilled(1, 1), Asked())
    assert log.are(Deliver(1, 1), Post(3, 2))


def test_steps_that_kill_are_no_sign_of_a_crew_that_dies_at_birth() -> None:
    deaths = [WorkerLost(worker, worker // 2) for worker in range(8)]
    log = Log(window=4, workers=1, retries=1).after(Opened(), *deaths)
    assert log.are(Hire(8, 0))


def test_a_crew_that_dies_at_birth_is_not_replaced_for_ever() -> None:
    log = Log(window=2, workers=1, retries=1)
    log.after(Opened(), WorkerLost(0, None), WorkerLost(1, None))
    assert log.are(Hire(2, 0))
    assert log.after(WorkerLost(2, None)).are(Rescind(0), Rescind(1))
    assert log.after(Rescinded(0), Rescinded(1), Asked()).are(DeliverLost(0, 0, 2))
    assert log.after(Asked()).are(DeliverLost(1, 1, 2))


def test_asking_on_after_the_crew_was_given_up_hires_a_new_one() -> None:
    log = Log(window=1, workers=1, retries=0).after(Opened(), WorkerLost(0, None), WorkerLost(1, None))
    assert log.after(Rescinded(0), Asked()).are(DeliverLost(0, 0, 1))
    assert log.after(Asked()).are(Hire(2, 0), Post(1, 0))
    assert log.after(StepFilled(1, 2)).are(Deliver(1, 0), Post(2, 1))


def test_opening_hires_again_for_the_empty_seats() -> None:
    log = Log(window=1, workers=1, retries=0).after(Opened(), WorkerLost(0, None), WorkerLost(1, None))
    assert log.after(Rescinded(0), Cancelled(), Opened()).are(Post(1, 0), Hire(2, 0))


def test_while_one_of_the_crew_lives_it_does_all_the_work() -> None:
    log = Log(window=2, workers=2, retries=0).after(Opened(), WorkerLost(1, None))
    assert log.are(Hire(2, 1))
    assert log.after(WorkerLost(2, None)).are(GiveUp(1, 2))
    assert log.after(StepFilled(0, 0), Asked()).are(Deliver(0, 0), Post(2, 2))
    assert log.after(WorkerLost(0, 1)).are(Hire(3, 0))


def test_what_the_others_do_does_not_keep_a_seat_filled_where_all_die_at_birth() -> None:
    log = Log(window=4, workers=2, retries=0).after(Opened(), WorkerLost(1, None), StepFilled(0, 0))
    assert log.after(WorkerLost(2, None)).are(GiveUp(1, 2))


def test_a_seat_where_a_step_was_done_is_filled_again() -> None:
    log = Log(window=4, workers=2, retries=0).after(Opened(), WorkerLost(1, None), StepFilled(0, 2))
    assert log.after(WorkerLost(2, None)).are(Hire(3, 1))


def test_killing_workers_that_have_nothing_to_do_loses_no_step() -> None:
    log = Log(window=1, workers=1, retries=0).after(Opened(), StepFilled(0, 0))
    log.after(*[WorkerLost(worker, None) for worker in range(2)])
    assert log.after(Asked()).are(Deliver(0, 0))
    assert log.after(Asked()).are(Hire(2, 0), Post(1, 1))


# Bundles


def test_a_bundle_of_a_dead_worker_becomes_single_steps_of_which_one_is_blamed() -> None:
    log = Log(window=1, workers=1, retries=0, room=3).after(Opened(), WorkerLost(0, 0, 3, 1))
    assert log.are(Post(0, 1), Post(2, 2), Hire(1, 0))
    log.after(StepFilled(0, 1), StepFilled(2, 1), Asked())
    assert log.are(Deliver(0, 1))
    assert log.after(Asked()).are(DeliverLost(1, 0, 0))
    assert log.after(Asked()).are(Deliver(2, 2), Post(3, 0))


def test_if_it_is_unknown_which_step_of_a_bundle_killed_the_worker_none_is_blamed() -> None:
    log = Log(window=1, workers=1, retries=0, room=3).after(Opened(), WorkerLost(0, 0, 3, None))
    assert log.are(Post(0, 0), Post(1, 1), Post(2, 2), Hire(1, 0))


def test_a_bundle_that_is_split_holds_back_the_next_one() -> None:
    log = Log(window=2, workers=1, room=2).after(Opened(), WorkerLost(0, 0, 2, 0))
    assert log.after(StepFilled(0, 1), StepFilled(1, 1), Asked()).are(Deliver(0, 0))
    assert log.after(Asked()).are(Deliver(1, 2), Post(4, 3))


# Changes of the dataset


def test_a_change_takes_everything_back_and_posts_it_under_other_numbers() -> None:
    log = Log().after(Opened(), StepFilled(0, 0), Changed())
    assert log.are(Rescind(1), Post(2, 0), Post(3, 2))
    assert log.after(Rescinded(1), StepFilled(2, 0), Asked()).are(Deliver(2, 0), Post(4, 1))


def test_a_step_in_hand_over_a_change_is_void() -> None:
    log = Log(window=1).after(Opened(), Asked(), Changed())
    assert log.are(Rescind(0), Post(1, 1))
    assert log.after(StepFilled(0, 0)).are()
    assert log.after(StepFilled(1, 1)).are(Deliver(1, 1), Post(2, 0))


def test_after_a_change_the_end_is_found_anew() -> None:
    log = Log().after(Opened(), Bounded(1), Exhausted(1), StepFilled(0, 0), Changed())
    assert log.are(Post(2, 0), Post(3, 1))
    assert log.after(Bounded(3), Exhausted(3), StepFilled(2, 0), Asked()).are(Deliver(2, 0))
    assert log.after(Asked()).are(Finish())


def test_a_change_between_runs_does_nothing() -> None:
    assert Log().after(Changed()).are()
    assert Log().after(Opened(), Cancelled(), Rescinded(0), Rescinded(1), Changed()).are()


# Resizing


def test_more_workers_are_hired_at_once_and_more_steps_posted() -> None:
    assert Log().after(Opened(), Resized(3, 4)).are(Hire(2, 2), Post(2, 2), Post(3, 3))


def test_as_many_workers_as_are_too_many_are_asked_to_leave() -> None:
    log = Log(workers=3).after(Opened(), Resized(1, 2))
    assert log.are(Retire(), Retire())
    assert log.after(WorkerLeft(2)).are()
    assert log.after(WorkerLeft(0)).are()


def test_a_worker_that_dies_while_others_leave_is_replaced() -> None:
    log = Log(workers=2).after(Opened(), Resized(1, 2), WorkerLost(0, 0))
    assert log.are(Post(0, 0), Hire(2, 0))
    assert log.after(WorkerLeft(1)).are()


def test_workers_hired_while_others_leave_sit_in_new_seats() -> None:
    log = Log(workers=2).after(Opened(), Resized(1, 2), Resized(2, 2))
    assert log.are(Hire(2, 2))
    assert log.after(WorkerLeft(0), Resized(3, 2)).are(Hire(3, 0))


def test_workers_that_may_stay_after_all_are_kept_before_others_are_hired() -> None:
    log = Log(workers=3).after(Opened(), Resized(1, 2), Resized(3, 2, retained=1))
    assert log.are(Hire(3, 3)), "one worker has taken its leave"
    assert log.after(Resized(2, 2)).are(Retire())
    assert log.after(WorkerLeft(0), WorkerLeft(1)).are()


def test_fewer_workers_again_are_asked_to_leave_again() -> None:
    log = Log(workers=3).after(Opened(), Resized(2, 2), Resized(1, 2, retained=1))
    assert log.are(Retire(), Retire())


def test_a_number_of_workers_set_before_the_first_run_counts_from_its_beginning() -> None:
    log = Log().after(Resized(1, 1))
    assert log.are()
    assert log.after(Opened()).are(Post(0, 0), Hire(0, 0))


def test_between_runs_workers_are_hired_and_leave_too() -> None:
    log = Log().after(Opened(), Cancelled(), Rescinded(0), Rescinded(1))
    assert log.after(Resized(3, 2)).are(Hire(2, 2))
    assert log.after(Resized(2, 2)).are(Retire())


def test_a_narrower_window_takes_effect_as_steps_are_delivered() -> None:
    log = Log(window=3).after(Opened(), Resized(2, 1), StepFilled(0, 0), Asked())
    assert log.are(Deliver(0, 0))
    assert log.after(StepFilled(1, 0), Asked()).are(Deliver(1, 1))
    assert log.after(StepFilled(2, 0), Asked()).are(Deliver(2, 2), Post(3, 3))


def test_a_seat_that_was_given_up_is_tried_again_when_the_crew_is_resized() -> None:
    log = Log(retries=0).after(Opened(), WorkerLost(1, None), WorkerLost(2, None))
    assert log.are(GiveUp(1, 2))
    assert log.after(Resized(2, 2)).are(Hire(3, 1))


# Found by the model


def test_replay_a_narrower_window_cools_the_slabs_that_are_too_many() -> None:
    filled = [StepFilled(seq, 0) for seq in range(3)]
    log = Log(window=3).after(Opened(), Bounded(3), *filled, Asked(), Asked())
    log.after(Exhausted(3), Exhausted(4), SlabReturned(0), SlabReturned(1), Asked(), SlabReturned(2))
    assert log.after(Resized(1, 2)).are(Cool(3), Retire())


def test_replay_the_last_worker_leaves_while_the_other_seat_is_given_up() -> None:
    log = Log(retries=0).after(Opened(), Bounded(2), Asked(), Resized(1, 2))
    log.after(WorkerLost(0, None), WorkerLost(2, None))
    assert log.are(GiveUp(0, 2))
    assert log.after(WorkerLeft(1)).are(Hire(3, 0))


def test_replay_out_of_order_a_seat_has_a_share_in_a_window_of_one() -> None:
    log = Log(scheduler=Assigned(window=1, workers=2, in_order=False)).after(Opened(1))
    assert log.are(Hire(0, 0), Hire(1, 1), Post(0, 0, 1))


# Slabs


def test_the_slab_returned_last_is_used_next() -> None:
    log = Log(window=1).after(Opened(), StepFilled(0, 0), Asked(), StepFilled(1, 0), Asked())
    log.after(StepFilled(2, 0), SlabReturned(0), SlabReturned(1))
    assert log.after(Asked()).are(Deliver(2, 2), Post(3, 1))


def test_a_consumer_that_keeps_everything_gets_new_slabs() -> None:
    log = Log(window=1).after(Opened())
    for seq in range(100):
        assert log.after(StepFilled(seq, 0), Asked()).are(Deliver(seq, seq), Post(seq + 1, seq + 1))


def test_of_too_many_free_slabs_the_one_unused_for_longest_is_cooled() -> None:
    log = Log(window=1, spare=1).after(Opened())
    for seq in range(3):
        log.after(StepFilled(seq, 0), Asked())
    assert log.after(SlabReturned(1)).are()
    assert log.after(SlabReturned(0)).are(Cool(1))
    assert log.after(SlabReturned(2)).are(Cool(0))


def test_a_cold_slab_is_used_only_when_no_warm_one_is_left() -> None:
    log = Log(window=1, spare=1).after(Opened())
    for seq in range(3):
        log.after(StepFilled(seq, 0), Asked())
    log.after(SlabReturned(0), SlabReturned(1))
    assert log.after(StepFilled(3, 0), Asked()).are(Deliver(3, 3), Post(4, 1))
    assert log.after(StepFilled(4, 0), Asked()).are(Deliver(4, 1), Post(5, 0))


# Cancelling


def test_cancelling_takes_posted_steps_back_and_posts_no_more() -> None:
    log = Log().after(Opened(), StepFilled(0, 0), Cancelled())
    assert log.are(Rescind(1))
    assert log.after(Rescinded(1)).are()


def test_cancelling_drops_the_ask() -> None:
    log = Log().after(Opened(), Asked(), Cancelled())
    assert not log.scheduler.ask_is_open
    assert log.after(StepFilled(0, 0)).are()


def test_a_run_opened_after_a_cancelled_one_has_steps_of_its_own() -> None:
    log = Log().after(Opened(), Cancelled(), Rescinded(0), Rescinded(1))
    assert log.after(Opened()).are(Post(2, 1), Post(3, 0))


def test_a_cancelled_step_in_hand_keeps_its_slab_until_it_is_heard_of() -> None:
    log = Log(window=1).after(Opened(), Cancelled(), Opened())
    assert log.are(Post(1, 1))
    assert log.after(StepFilled(0, 0), StepFilled(1, 1), Asked()).are(Deliver(1, 1), Post(2, 0))


def test_a_cancelled_step_is_not_posted_again_when_its_worker_dies() -> None:
    log = Log(window=1, workers=1).after(Opened(), Cancelled(), WorkerLost(0, 0))
    assert log.are(Hire(1, 0))
    assert log.after(Opened()).are(Post(1, 0))


def test_a_cancelled_step_does_not_take_up_room_in_the_window() -> None:
    log = Log(window=3).after(Opened(), Cancelled(), Opened())
    assert log.are(Post(3, 3), Post(4, 4), Post(5, 5))


def test_cancelling_twice_or_between_runs_is_harmless() -> None:
    assert Log().after(Cancelled(), Opened(), Cancelled(), Cancelled()).are()


def test_an_end_found_for_a_cancelled_run_does_not_end_the_next() -> None:
    log = Log(window=1).after(Opened(), Cancelled(), Bounded(0), Exhausted(0), Opened())
    assert log.are(Post(1, 0))


# Closing


def test_after_closing_nothing_is_commanded_whatever_trickles_in() -> None:
    log = Log().after(Opened(), StepFilled(0, 0), Asked(), Closed())
    assert log.are()
    results: list[Event] = [SlabReturned(0), StepFilled(1, 1), WorkerLost(0, None), Rescinded(1)]
    for late in [*results, Asked(), Opened(), Cancelled(), Changed(), Resized(3, 3), WorkerLeft(1), Closed()]:
        assert log.after(late).are()


# Streams with one reader


def reader(window: int = 2, retries: int = 1) -> Log:
    return Log(scheduler=OneReader(window=window, retries=retries))


def test_the_first_step_of_a_stream_can_be_read_again_from_the_beginning() -> None:
    assert reader().after(Opened(), WorkerLost(0, 0)).are(Post(0, 0), Hire(1, 0))


def test_a_step_in_the_middle_of_a_stream_is_read_again_from_a_known_position() -> None:
    log = reader().after(Opened(), StepFilled(0, 0), WorkerLost(0, 1, resumable=True))
    assert log.are(Post(1, 1, resume=True), Hire(1, 0))


def test_a_stream_whose_position_is_lost_breaks_and_ends() -> None:
    log = reader(window=3).after(Opened(), StepFilled(0, 0), WorkerLost(0, 1))
    assert log.are(Break(1, 0, unknown=True), Rescind(2), Hire(1, 0))
    assert log.after(Rescinded(2), Asked()).are(Deliver(0, 0))
    assert log.after(Asked()).are(Finish())
    assert log.after(Opened()).are(Post(3, 2), Post(4, 1), Post(5, 3))


def test_a_stream_breaks_at_a_step_that_has_used_up_its_retries() -> None:
    log = reader(retries=0).after(Opened(), WorkerLost(0, 0))
    assert log.are(Break(0, 0, unknown=False), Rescind(1), Hire(1, 0))
    assert log.after(Rescinded(1), Asked()).are(Finish())


def test_a_task_that_the_dead_reader_had_not_claimed_is_replaced_before_the_next_reader_starts() -> None:
    log = reader().after(Opened(), StepFilled(0, 0), WorkerLost(0, None, resumable=True))
    assert log.are(Rescind(1), Post(1, 1, resume=True), Hire(1, 0))
    assert log.after(Rescinded(1)).are()
    assert log.after(StepFilled(1, 1), Asked(), Asked()).are(Deliver(1, 1), Post(3, 3))


def test_a_stream_of_which_nothing_was_posted_goes_on_with_the_next_step() -> None:
    log = reader(window=1).after(Opened(), StepFilled(0, 0), WorkerLost(0, None, resumable=True))
    assert log.are(Hire(1, 0))
    assert log.after(Asked()).are(Deliver(0, 0), Post(1, 1, resume=True))
    assert log.after(StepFilled(1, 1), Asked()).are(Deliver(1, 1), Post(2, 2))


def test_a_stream_of_which_nothing_was_posted_breaks_before_the_next_step() -> None:
    log = reader(window=1).after(Opened(), StepFilled(0, 0), WorkerLost(0, None))
    assert log.are(Break(1, 0, unknown=True), Hire(1, 0))
    assert log.after(Asked()).are(Deliver(0, 0))
    assert log.after(Asked()).are(Finish())


def test_a_stream_breaks_if_its_readers_crash_at_start_up() -> None:
    log = reader(retries=0).after(Opened(), WorkerLost(0, None))
    assert log.are(Rescind(0), Post(0, 0), Hire(1, 0))
    assert log.after(Rescinded(0), WorkerLost(1, None)).are(Break(0, 1, unknown=False), Rescind(0), Rescind(1))
    assert log.after(Rescinded(0), Rescinded(1), Asked()).are(Finish())
    assert log.after(Opened()).are(Post(2, 1), Post(3, 0), Hire(2, 0))


def test_a_stream_has_one_reader_whatever_the_number_of_workers() -> None:
    assert reader().after(Opened(), Resized(4, 3)).are(Post(2, 2))


def test_a_stream_that_a_worker_reads_cannot_be_changed() -> None:
    with pytest.raises(InternalError, match="cannot be read again"):
        reader().after(Opened(), Changed())


# Fixed seats


def test_steps_go_round_the_seats_from_the_first_on() -> None:
    log = Log(scheduler=Assigned(window=3, workers=2)).after(Opened(1))
    assert log.are(Hire(0, 0), Hire(1, 1), Post(0, 0, 1), Post(1, 1, 0), Post(2, 2, 1))


def test_a_worker_with_its_own_steps_cannot_be_replaced() -> None:
    log = Log(scheduler=Assigned(window=2, workers=2)).after(Opened(), WorkerLost(1, 1))
    assert log.are(Fail(1))


@pytest.mark.parametrize("event", [Changed(), Resized(2, 2)])
def test_with_fixed_seats_it_refuses(event: Event) -> None:
    with pytest.raises(InternalError, match="fixed assignment"):
        Log(scheduler=Assigned(window=2, workers=2)).after(Opened(), event)


def test_out_of_order_a_seat_has_no_more_than_its_share() -> None:
    log = Log(scheduler=Assigned(window=4, workers=2, in_order=False)).after(Opened(), StepFilled(0, 0), Asked())
    assert log.are(Deliver(0, 0), Post(4, 4, 0))
    assert log.after(StepFilled(2, 0), Asked()).are(Deliver(2, 2), Post(5, 5, 0))


# What is told of a step


def test_a_story_has_everything_that_happened_to_a_step() -> None:
    log = Log(retries=1).after(Opened(), WorkerLost(1, 1), StepFilled(0, 0), Asked())
    assert log.scheduler.story(1) == [
        "Post(seq=1, slab=1, seat=-1, resume=False)",
        "WorkerLost(worker=1, seq=1, steps=1, at=0, resumable=False)",
        "Post(seq=1, slab=1, seat=-1, resume=False)",
        "it is posted in slab 1",
    ]
    assert log.scheduler.story(0)[-2:] == ["Deliver(seq=0, slab=0)", "it is not known now"]
    assert log.scheduler.story(99) == ["it is not known now"]


def test_the_story_of_a_step_begins_with_the_bundle_that_it_was_in() -> None:
    log = Log(room=4).after(Opened(), WorkerLost(0, 0, 4, None))
    assert "WorkerLost(worker=0, seq=0, steps=4, at=None, resumable=False)" in log.scheduler.story(3)


def test_an_impossible_event_tells_the_story_of_its_step() -> None:
    log = Log().after(Opened(), StepFilled(0, 0))
    with pytest.raises(InternalError) as caught:
        log.after(StepFilled(0, 1))
    told = "Step 0: Post(seq=0, slab=0, seat=-1, resume=False), StepFilled(seq=0, worker=0), "
    assert told in str(caught.value)
    assert "it is filled in slab 0" in str(caught.value)


# Impossibilities

IMPOSSIBLE: dict[str, list[Event]] = {
    "an ask before any run": [Asked()],
    "an ask after a cancel": [Opened(), Cancelled(), Asked()],
    "two asks": [Opened(), Asked(), Asked()],
    "a run within a run": [Opened(), Opened()],
    "a run opened while the consumer waits": [Opened(), Bounded(1), Asked(), Opened()],
    "a result for a step never posted": [Opened(), StepFilled(9, 0)],
    "a second result": [Opened(), StepFilled(0, 0), StepFilled(0, 1)],
    "a result for a delivered step": [Opened(), StepFilled(0, 0), Asked(), StepFilled(0, 0)],
    "a result of a worker never hired": [Opened(), StepFilled(0, 9)],
    "a result of a dead worker": [Opened(), WorkerLost(0, None), StepFilled(0, 0)],
    "the end of a stream from a dead worker": [Opened(), WorkerLost(0, None), StepEnded(0, 0)],
    "the end of a stream before a filled step": [Opened(), StepFilled(1, 1), StepEnded(0, 0)],
    "the end of a stream at a filled step": [Opened(), StepFilled(0, 1), StepEnded(0, 0)],
    "nothing drawn for a filled step": [Opened(), StepFilled(0, 1), Exhausted(0)],
    "a second death": [Opened(), WorkerLost(0, None), WorkerLost(0, None)],
    "a death with a step that is done": [Opened(), StepFilled(0, 0), WorkerLost(0, 0)],
    "a slab never lent": [Opened(), SlabReturned(0)],
    "a slab returned twice": [Opened(), StepFilled(0, 0), Asked(), SlabReturned(0), SlabReturned(0)],
    "a worker that leaves unasked": [Opened(), WorkerLeft(0)],
    "a leave withdrawn that was not wanted": [Opened(), Resized(1, 2), Resized(2, 2, retained=2)],
    "a worker that leaves twice": [Opened(), Resized(1, 2), WorkerLeft(0), WorkerLeft(0)],
    "the leaving of a dead worker": [Opened(), Resized(1, 2), WorkerLost(0, None), WorkerLeft(0)],
    "a result of a worker that left": [Opened(), Resized(1, 2), WorkerLeft(0), StepFilled(0, 0)],
    "a filled step taken off the board": [Opened(), StepFilled(0, 0), Rescinded(0)],
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_it_refuses(what: str) -> None:
    *before, last = IMPOSSIBLE[what]
    log = Log().after(*before)
    with pytest.raises(InternalError):
        log.after(last)


def test_an_impossible_event_is_reported_with_the_recent_ones() -> None:
    log = Log(window=1).after(Opened())
    for seq in range(60):
        log.after(StepFilled(seq, 0), Asked())
    with pytest.raises(InternalError) as caught:
        log.after(SlabReturned(10_000))
    text = str(caught.value)
    assert "was told SlabReturned(slab=10000), but the slab is not lent" in text
    assert "Please report it" in text
    assert "The last events and commands" in text
    assert "StepFilled(seq=59, worker=0)" in text
    assert "StepFilled(seq=3, worker=0)" not in text
