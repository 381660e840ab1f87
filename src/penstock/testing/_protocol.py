"""The laws of the protocol itself: what `hire`, `post`, `poll` and the others of a `Backend` promise the engine."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock._wire.task import Task
from penstock.backends import Backend, Bundle, Failed, Filled, Left, Lost, Outcome
from penstock.testing import _sources as sources
from penstock.testing._faults import Raising
from penstock.testing._laws import Laws, outcomes, raises, same, until


def task(seq: int, steps: int = 1) -> Task:
    """The step `seq` of epoch 0: two keys, seq * 2 and the next; or as many such steps from there on."""
    return Task(seq, 0, 0, seq, np.arange(2 * seq, 2 * (seq + steps)), steps)


def post(backend: Backend, *seqs: int, seat: int = -1) -> None:
    """Posts these steps, each into the slab of its number."""
    for seq in seqs:
        backend.post(task(seq), seq, seat)
    backend.flush()


def seqs(found: Sequence[Outcome]) -> list[int]:
    """The seqs of what was reported; -1 for a loss without one."""
    told = (-1 if one.seq is None else one.seq for one in found if not isinstance(one, Left))
    return sorted(told)


def opened(backend: Backend, outcome: Any) -> list[list[int]]:
    assert isinstance(outcome, Filled), f"a batch was expected, and {outcome} came"
    return [column.tolist() for column in backend.open(outcome)]  # type: ignore[attr-defined]


class ProtocolLaws(Laws):
    def test_every_posted_task_is_reported_once(self) -> None:
        with self.crew(sources.Numbers()) as backend:
            post(backend, *range(9))
            found = outcomes(backend, lambda found: len(found) == 9)
            assert seqs(found) == list(range(9))
            assert backend.poll(0) == []
            for one in found:
                assert isinstance(one, Filled) and one.rows == 2 and one.nbytes > 0
                assert opened(backend, one)[0] == [2 * one.seq, 2 * one.seq + 1]

    def test_tasks_that_are_posted_before_a_worker_is_hired_wait_for_it(self) -> None:
        with self.crew(sources.Numbers(), hired=0) as backend:
            post(backend, 0, 1)
            backend.hire(0, 0)
            assert seqs(outcomes(backend, lambda found: len(found) == 2)) == [0, 1]

    def test_the_root_of_an_outcome_is_what_its_arrays_keep_alive(self) -> None:
        with self.crew(np.arange(40)) as backend:
            post(backend, 3)
            (one,) = outcomes(backend, len)
            assert isinstance(one, Filled)
            batch: Any = backend.open(one)
            assert np.shares_memory(batch, one.root) and batch[1:].base is one.root

    def test_an_exception_is_an_outcome_and_the_next_task_is_done(self) -> None:
        with self.crew(Raising(sources.Numbers(), {3}, LookupError)) as backend:
            post(backend, 1, 2)
            found = {one.seq: one for one in outcomes(backend, lambda found: len(found) == 2)}  # type: ignore[union-attr]
            bad = found[1]
            assert isinstance(bad, Failed) and type(bad.error) is LookupError
            assert "sample 3 (row 1), step 1 of epoch 0" in bad.error.__notes__[0]
            assert isinstance(found[2], Filled)

    def test_a_task_that_no_worker_has_begun_can_be_rescinded(self) -> None:
        with self.crew(sources.Numbers(), hired=0) as backend:
            post(backend, 0, 1, 2)
            assert backend.rescind(1) is True
            backend.hire(0, 0)
            assert seqs(outcomes(backend, lambda found: len(found) == 2)) == [0, 2]
            assert backend.poll(0) == []

    def test_a_task_is_either_rescinded_or_reported(self) -> None:
        with self.crew(sources.Numbers(400)) as backend:
            rescinded: list[int] = []
            reported: list[int] = []
            for begin in range(0, 180, 20):
                post(backend, *range(begin, begin + 20))
                reported += seqs(outcomes(backend, len))
                left = [seq for seq in range(begin, begin + 20) if seq not in reported]
                rescinded += [seq for seq in left if backend.rescind(seq)]
            while found := backend.poll(0.2):
                reported += seqs(found)
            assert sorted(reported + rescinded) == list(range(180)), f"{reported} and {rescinded}"

    def test_poll_with_no_time_does_not_wait_and_poll_with_some_waits_no_longer(self) -> None:
        with self.crew(sources.Numbers()) as backend:
            assert backend.poll(0) == []
            began = backend.clock()
            assert backend.poll(0.05) == []
            assert backend.clock() - began < 30

    def test_poll_that_was_woken_before_it_waits_does_not_wait(self) -> None:
        with self.crew(sources.Numbers()) as backend:
            backend.wake()
            assert backend.poll(None) == []

    def test_poll_is_woken_by_another_thread(self) -> None:
        with self.crew(sources.Numbers()) as backend:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(backend.poll(None)))
            thread.start()

            def woken() -> bool:
                backend.wake()
                return bool(found)

            until(woken, "poll() comes back after wake()")
            thread.join()
            assert found == [[]]

    def test_a_slab_that_was_cooled_can_be_posted_again(self) -> None:
        with self.crew(np.arange(4000).reshape(40, 100)) as backend:
            for seq in range(8):
                backend.post(task(seq), 0, -1)
                (one,) = outcomes(backend, len)
                assert isinstance(one, Filled)
                same(backend.open(one), np.arange(200 * seq, 200 * seq + 200).reshape(2, 100), f"task {seq}")
                del one
                backend.cool(0)
            backend.cool(77)  # a slab that was never posted

    def test_what_is_posted_after_an_update_has_it_and_every_change_once_and_in_order(self) -> None:
        dataset = sources.Numbers()
        with self.crew(dataset) as backend:
            for seq in range(8):
                change = sources.once_more if seq % 2 else sources.Numbers.double
                encoded = backend.encode(change)
                change(dataset)
                backend.update(encoded)
                post(backend, seq)
                (one,) = outcomes(backend, len)
                assert opened(backend, one) == [[2 * seq, 2 * seq + 1], [1, 1], [dataset.times] * 2]

    def test_a_change_that_cannot_be_sent_raises_and_changes_nothing(self) -> None:
        with self.crew(sources.Numbers()) as backend:
            self.needs(backend.copies_dataset, "workers have the caller's dataset")
            with raises(LookupError):
                backend.encode(sources.Unsendable())
            post(backend, 0)
            assert opened(backend, outcomes(backend, len)[0])[1] == [1, 1]

    def test_keys_that_cannot_be_sent_raise_and_nothing_is_posted(self) -> None:
        with self.crew(sources.Numbers()) as backend:
            self.needs(backend.copies_dataset, "keys are not sent")
            with raises(LookupError):
                backend.post(Task(0, 0, 0, 0, [sources.Unsendable()]), 0, -1)
            post(backend, 1)
            assert seqs(outcomes(backend, len)) == [1]

    def test_a_task_of_several_steps_is_reported_as_one(self) -> None:
        with self.crew(Raising(np.arange(80), {9})) as backend:
            self.needs(backend.most_steps > 1, "a task has one step")
            backend.post(task(3, 4), 0, -1)
            (one,) = outcomes(backend, len)
            assert isinstance(one, Bundle) and one.seq == 3 and len(one.steps) == 4
            for step, each in enumerate(one.steps, 3):
                if step == 4:
                    assert isinstance(each, Failed) and each.seq == 4
                else:
                    assert isinstance(each, Filled) and each.seq == step
                    batch: Any = backend.open(each)
                    assert batch.tolist() == [2 * step, 2 * step + 1] and batch[1:].base is one.root

    def test_a_task_for_a_seat_is_done_by_the_worker_in_it(self) -> None:
        self.needs_workers()
        self.needs(self.seats, "tasks go to whichever worker is free")
        with self.crew(sources.Numbers(), assigned=True) as backend:
            for seq in range(8):
                post(backend, seq, seat=seq % self.workers)
            found = outcomes(backend, lambda found: len(found) == 8)
            assert {(one.seq, one.worker) for one in found} == {(seq, seq % self.workers) for seq in range(8)}  # type: ignore[union-attr]

    def test_one_worker_leaves_for_each_retire_and_no_task_with_it(self) -> None:
        self.needs_workers()
        with self.crew(sources.Numbers(), hired=3) as backend:
            post(backend, *range(8))
            backend.retire()
            backend.retire()
            found = outcomes(backend, lambda found: len(found) == 10)
            left = [one.worker for one in found if isinstance(one, Left)]
            assert len(left) == len(set(left)) == 2
            assert seqs(found) == list(range(8))
            post(backend, 8)
            (one,) = outcomes(backend, len)
            assert isinstance(one, Filled) and one.worker in {0, 1, 2} - set(left)

    def test_a_crew_may_leave_and_another_be_hired(self) -> None:
        self.needs_workers()
        with self.crew(sources.Numbers(), hired=1) as backend:
            backend.retire()
            assert outcomes(backend, len) == [Left(0)]
            post(backend, 0)
            for worker in range(1, 6):  # in more seats than at first
                backend.hire(worker, worker - 1)
            assert seqs(outcomes(backend, len)) == [0]

    def test_a_lost_worker_is_reported_and_others_do_what_it_has_not_begun(self) -> None:
        self.needs_workers()
        self.needs(self.loses_workers, "workers cannot be lost")
        with self.crew(sources.Numbers()) as backend:
            post(backend, 0)
            outcomes(backend, len)
            self.kill(backend)
            (lost,) = outcomes(backend, len)
            assert isinstance(lost, Lost) and lost.seq is None and lost.who and lost.how
            assert len(backend.workers) == self.workers - 1
            backend.hire(9, lost.worker)
            post(backend, *range(1, 9))
            assert seqs(outcomes(backend, lambda found: len(found) == 8)) == list(range(1, 9))

    def test_close_at_any_time_ends_the_workers_and_may_be_called_again(self) -> None:
        for tasks in (0, 1, 8):
            with self.crew(sources.Numbers()) as backend:
                post(backend, *range(tasks))
                if tasks == 8:
                    outcomes(backend, len)
                backend.close()
                assert backend.workers == []
                backend.close()
