"""Laws of the backend protocol, and tools for writing laws. A law is a test that every backend must pass.

The laws of the protocol are the guarantees that the methods of a `Backend` give to the engine.
"""

from __future__ import annotations

import copy
import functools
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import zip_longest
from typing import Any
from unittest import SkipTest

import numpy as np

from penstock import DataLoader
from penstock._feed.keys import KeyFetch
from penstock._wire.task import Task
from penstock._work.job import Job
from penstock.backends import Backend, Bundle, Failed, Filled, Left, Lost, Outcome, make
from penstock.backends._base import INLINE, registered
from penstock.testing import _sources as sources
from penstock.testing._same import difference
from penstock.testing._sources import Numbers, Raising

# How many seconds to wait for something that should happen.
_PATIENCE = 60.0

# By name of a property: why a law that needs the property is skipped if the backend does not have it.
_WITHOUT = {
    "workers": "there are no workers",
    "loses_workers": "workers cannot be lost",
    "own_generators": "workers draw from the caller's generators",
    "blocks": "a dataset that waits keeps the caller waiting",
    "seats": "tasks go to whichever worker is free",
}

_Act = Callable[[Any, int], object]


class BrokenLaw(AssertionError):
    """Raised if a backend or a format breaks a law. The message says which law was broken, and how.

    >>> issubclass(BrokenLaw, AssertionError)  # so a test that meets it fails
    True
    """


def check_each(suite: type[Any], only: str) -> list[str]:
    """Checks the laws whose names contain `only`. Returns the skipped laws, each with its reason.

    Raises BrokenLaw if a law is broken.
    """
    broken: list[BaseException] = []
    skipped: list[str] = []
    for name in sorted(name for name in dir(suite) if name.startswith("test_") and only in name):
        one = suite()
        one.setup_method()
        try:
            getattr(one, name)()
        except SkipTest as reason:
            skipped.append(f"{sentence(getattr(suite, name))}: {reason}")
        except Exception as error:
            broken.append(error)
        finally:
            one.teardown_method()
    if broken:
        said = "\n".join(f"  {type(one).__name__}: {one} {' '.join(getattr(one, '__notes__', ()))}" for one in broken)
        raise BrokenLaw(f"{len(broken)} laws are broken:\n{said}") from broken[0]
    return skipped


def sentence(method: Callable[..., Any]) -> str:
    return method.__name__.removeprefix("test_").replace("_", " ")


def law(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def checked(self: Any) -> None:
        broken = f"{self.named()} breaks the law that {sentence(method)}."
        try:
            method(self)
        except AssertionError as error:
            raise BrokenLaw(f"{broken} {error}") from error
        except Exception as error:
            if not isinstance(error, SkipTest):
                error.add_note(broken)
            raise

    return checked


class Stated:
    """Base class for test suites that consist of laws.

    A law is a test method whose name, after `test_`, is a sentence.
    """

    def __init_subclass__(cls) -> None:
        for name, value in list(vars(cls).items()):
            if name.startswith("test_") and callable(value):
                setattr(cls, name, law(value))


class Laws(Stated):
    """Base class for test suites of laws for backends, with their settings and with tools for writing laws."""

    backend: str = ""
    settings: Mapping[str, Any] = {}
    workers = 2
    loses_workers = own_generators = blocks = seats = True

    # The author of a backend may override these.

    def kill(self, loader: Any) -> None:
        """Kills one worker of a loader (or of a `Backend`), and returns when the worker is dead."""
        for worker in loader.workers[:1]:  # the last one may be dead and not replaced yet
            worker.kill()
            worker.join(10)

    def nothing_is_left(self) -> None:
        """Override to check that no worker, file or memory is left. Called once the loaders of a law are closed."""

    def setup_method(self) -> None:
        self._made = ExitStack()

    def teardown_method(self) -> None:
        self._made.close()
        gc.collect()
        self.nothing_is_left()

    # Tools for writing laws. Loaders and backends are closed after the law.

    def named(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f'backend="{self.backend}"{more}' if self.backend else "num_workers=0"

    def loader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        given: dict[str, Any] = {"num_workers": self.workers, **self.settings}
        if self.backend:
            given["backend"] = self.backend
        with warnings.catch_warnings():  # about more workers than processors, or than a stream has readers
            warnings.simplefilter("ignore")
            return self._made.enter_context(closing(DataLoader(dataset, *args, **given | kwargs)))

    def pair(self, dataset: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Returns two loaders, one on the backend and one without workers. Each has its own copy of the dataset."""
        return self.loader(dataset, *args, **kwargs), DataLoader(copy.deepcopy(dataset), *args, **kwargs)

    def equal(self, dataset: Any, act: _Act = lambda *_: None, epochs: int = 2, **given: Any) -> Any:
        """Checks that the backend gives the same batches as a loader without workers.

        `act(loader, step)` is called after each step, and with step -1 at the start of each epoch.
        """
        both = self.pair(dataset, **given)
        for epoch in range(epochs):
            for loader in both:
                act(loader, -1)
            for step, (found, expected) in enumerate(zip_longest(*both)):
                same(found, expected, f"{type(dataset).__name__}, {given}: step {step} of epoch {epoch}")
                for loader in both:
                    act(loader, step)
        return both

    def crew(self, dataset: Any, hired: int | None = None, **job: Any) -> Backend:
        """Returns the backend with `hired` workers (default: `self.workers`). Worker i is in seat i."""
        number = max(1, self.workers)
        # The job is kept here, as the engine keeps it, because a backend may have only a weak reference to it.
        self._job = Job(dataset, KeyFetch, None, None, number, seed=1, drop_last=False, **job)
        name = self.backend or INLINE
        backend = make(name, self._job, registered(name).given_in(self.settings))
        self._made.callback(backend.close)
        for worker in range(number if hired is None else hired):
            backend.hire(worker, worker)
        return backend

    def needs(self, *traits: str) -> None:
        for trait in traits:
            self.skip_unless(getattr(self, trait), _WITHOUT[trait])

    def skip_unless(self, what: object, why: str) -> None:
        if not what:
            raise SkipTest(f"{self.named()}: {why}")


def same(found: Any, expected: Any, where: str = "") -> None:
    differs = difference(found, expected)
    assert differs is None, f"{where}: it differs from the plain loop{differs}"


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """Checks that the block raises exactly this type of error, and that its message or notes contain all `parts`."""
    try:
        yield
    except kind as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        missing = [part for part in parts if part not in said]
        if type(error) is not kind or missing:
            raise AssertionError(f"{type(error).__name__} came without {missing}: {said}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"this has not happened: {what}"
        time.sleep(0.001)


def outcomes(backend: Backend, count: int = 1) -> list[Outcome]:
    found: list[Outcome] = []
    deadline = backend.clock() + _PATIENCE
    while len(found) < count:
        backend.flush()
        found += backend.poll(deadline - backend.clock())
        assert backend.clock() < deadline, f"after {_PATIENCE:.0f} seconds poll() has returned only {found}"
    return found


def task(seq: int, steps: int = 1) -> Task:
    """Returns a task for `steps` steps of epoch 0, starting at step `seq`. Step i has keys 2 * i and 2 * i + 1."""
    return Task(seq, 0, 0, seq, np.arange(2 * seq, 2 * (seq + steps)), steps)


def post(backend: Backend, *seqs: int) -> None:
    """Posts a task of one step for each number in `seqs`. Task i uses slab i."""
    for seq in seqs:
        backend.post(task(seq), seq, -1)
    backend.flush()


def done(backend: Backend, *seqs: int) -> list[Any]:
    post(backend, *seqs)
    return outcomes(backend, len(seqs))


def seqs(found: Sequence[Outcome]) -> list[int]:
    """Returns the sorted task numbers (`seq`) of the outcomes. A lost worker that had no task counts as -1."""
    return sorted(-1 if one.seq is None else one.seq for one in found if not isinstance(one, Left))


def opened(backend: Backend, outcome: Any) -> Any:
    assert isinstance(outcome, Filled), f"expected a batch, but got {outcome}"
    return backend.open(outcome)


class ProtocolLaws(Laws):
    def test_it_has_every_attribute_and_method_of_the_protocol(self) -> None:
        backend = self.crew(Numbers(), hired=0)
        members = {name for name in {*vars(Backend), *Backend.__annotations__} if not name.startswith("_")}
        missing = sorted(name for name in members if not hasattr(backend, name))
        assert not missing, f"it has no {', '.join(missing)}: derive it from penstock.backends.Backend"

    def test_every_posted_task_is_reported_once(self) -> None:
        backend = self.crew(Numbers())
        found = done(backend, *range(9))
        assert seqs(found) == list(range(9)) and backend.poll(0) == []
        for one in found:
            assert opened(backend, one)[0].tolist() == [2 * one.seq, 2 * one.seq + 1]
            assert one.rows == 2 and one.nbytes > 0

    def test_tasks_that_are_posted_before_a_worker_is_hired_wait_for_it(self) -> None:
        backend = self.crew(Numbers(), hired=0)
        post(backend, 0, 1)
        backend.hire(0, 0)
        assert seqs(outcomes(backend, 2)) == [0, 1]

    def test_the_root_of_an_outcome_is_what_its_arrays_keep_alive(self) -> None:
        backend = self.crew(np.arange(40))
        (one,) = done(backend, 3)
        batch = opened(backend, one)
        assert np.shares_memory(batch, one.root) and batch[1:].base is one.root

    def test_an_exception_is_an_outcome_and_the_next_task_is_done(self) -> None:
        backend = self.crew(Raising(Numbers(), {3}, LookupError))
        bad, good = sorted(done(backend, 1, 2), key=lambda one: one.seq)
        assert isinstance(bad, Failed) and bad.seq == 1 and type(bad.error) is LookupError
        assert "sample 3 (row 1), step 1 of epoch 0" in bad.error.__notes__[0]
        assert isinstance(good, Filled)

    def test_a_task_that_no_worker_has_begun_can_be_rescinded(self) -> None:
        backend = self.crew(Numbers(), hired=0)
        post(backend, 0, 1, 2)
        assert backend.rescind(1) is True
        backend.hire(0, 0)
        assert seqs(outcomes(backend, 2)) == [0, 2] and backend.poll(0) == []

    def test_a_task_is_either_rescinded_or_reported(self) -> None:
        backend = self.crew(Numbers(400))
        ended: list[int] = []
        for begin in range(0, 180, 20):
            posted = range(begin, begin + 20)
            post(backend, *posted)
            ended += seqs(outcomes(backend))
            ended += [seq for seq in posted if seq not in ended and backend.rescind(seq)]
        while found := backend.poll(0.2):
            ended += seqs(found)
        assert sorted(ended) == list(range(180)), ended

    def test_poll_with_no_time_does_not_wait_and_poll_with_some_waits_no_longer(self) -> None:
        backend = self.crew(Numbers())
        assert backend.poll(0) == []
        began = backend.clock()
        assert backend.poll(0.05) == []
        assert backend.clock() - began < 30

    def test_poll_that_was_woken_before_it_waits_does_not_wait(self) -> None:
        backend = self.crew(Numbers())
        backend.wake()
        assert backend.poll(None) == []

    def test_poll_is_woken_by_another_thread(self) -> None:
        backend: Any = self.crew(Numbers())
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(backend.poll(None)))
        thread.start()
        until(lambda: backend.wake() or found, "poll() comes back after wake()")
        thread.join()
        assert found == [[]]

    def test_a_slab_that_was_cooled_can_be_posted_again(self) -> None:
        backend = self.crew(np.arange(4000).reshape(40, 100))
        for seq in range(8):
            backend.post(task(seq), 0, -1)
            batch = opened(backend, *outcomes(backend))
            same(batch, np.arange(200 * seq, 200 * seq + 200).reshape(2, 100), f"task {seq}")
            del batch
            backend.cool(0)
        backend.cool(77)  # a slab that was never posted

    def test_what_is_posted_after_an_update_has_it_and_every_change_once_and_in_order(self) -> None:
        dataset = Numbers()
        backend = self.crew(dataset)
        for seq in range(8):
            change = sources.once_more if seq % 2 else Numbers.double
            encoded = backend.encode(change)
            change(dataset)
            backend.update(encoded)
            found = [column.tolist() for column in opened(backend, *done(backend, seq))]
            assert found == [[2 * seq, 2 * seq + 1], [1, 1], [dataset.times] * 2]

    def test_a_change_that_cannot_be_sent_raises_and_changes_nothing(self) -> None:
        backend = self.crew(Numbers())
        self.skip_unless(backend.copies_dataset, "workers have the caller's dataset")
        with raises(LookupError):
            backend.encode(sources.Unsendable())
        assert opened(backend, *done(backend, 0))[1].tolist() == [1, 1]

    def test_keys_that_cannot_be_sent_raise_and_nothing_is_posted(self) -> None:
        backend = self.crew(Numbers())
        self.skip_unless(backend.copies_dataset, "keys are not sent")
        with raises(LookupError):
            backend.post(Task(0, 0, 0, 0, [sources.Unsendable()]), 0, -1)
        assert seqs(done(backend, 1)) == [1]

    def test_a_task_of_several_steps_is_reported_as_one(self) -> None:
        backend = self.crew(Raising(np.arange(80), {9}))
        self.skip_unless(backend.most_steps > 1, "a task has one step")
        backend.post(task(3, 4), 0, -1)
        (one,) = outcomes(backend)
        assert isinstance(one, Bundle) and one.seq == 3 and [each.seq for each in one.steps] == [3, 4, 5, 6]
        assert isinstance(one.steps.pop(1), Failed)
        for each in one.steps:
            batch = opened(backend, each)
            assert batch.tolist() == [2 * each.seq, 2 * each.seq + 1] and batch[1:].base is one.root

    def test_a_task_for_a_seat_is_done_by_the_worker_in_it(self) -> None:
        self.needs("workers", "seats")
        backend = self.crew(Numbers(), assigned=True)
        for seq in range(8):
            backend.post(task(seq), seq, seq % self.workers)
        found: list[Any] = outcomes(backend, 8)
        assert seqs(found) == list(range(8)) and all(one.worker == one.seq % self.workers for one in found)

    def test_one_worker_leaves_for_each_retire_and_no_task_with_it(self) -> None:
        self.needs("workers")
        backend = self.crew(Numbers(), hired=3)
        post(backend, *range(8))
        backend.retire()
        backend.retire()
        found = outcomes(backend, 10)
        left = {one.worker for one in found if isinstance(one, Left)}
        assert len(left) == 2 and seqs(found) == list(range(8))
        (one,) = done(backend, 8)
        assert isinstance(one, Filled) and one.worker in {0, 1, 2} - left

    def test_a_withdrawn_request_to_leave_is_not_taken(self) -> None:
        self.needs("workers")
        backend = self.crew(Numbers(), hired=1)
        backend.retire()
        backend.retire()  # one worker cannot take both requests
        retained = backend.retain()
        if retained < 2:  # the worker has taken one, or is about to
            assert outcomes(backend) == [Left(0)] and retained + backend.retain() == 1
            backend.hire(1, 0)
        assert backend.retain() == 0
        assert seqs(done(backend, *range(4))) == list(range(4))

    def test_a_crew_may_leave_and_another_be_hired(self) -> None:
        self.needs("workers")
        backend = self.crew(Numbers(), hired=1)
        backend.retire()
        assert outcomes(backend) == [Left(0)]
        post(backend, 0)
        for worker in range(1, 6):  # in more seats than at first
            backend.hire(worker, worker - 1)
        assert seqs(outcomes(backend)) == [0]

    def test_a_lost_worker_is_reported_and_others_do_what_it_has_not_begun(self) -> None:
        self.needs("workers", "loses_workers")
        backend = self.crew(Numbers())
        done(backend, 0)
        self.kill(backend)
        (lost,) = outcomes(backend)
        assert isinstance(lost, Lost) and lost.seq is None and lost.who and lost.how
        assert len(backend.workers) == self.workers - 1
        backend.hire(9, lost.worker)
        assert seqs(done(backend, *range(1, 9))) == list(range(1, 9))

    def test_close_at_any_time_ends_the_workers_and_may_be_called_again(self) -> None:
        for tasks in (0, 1, 8):
            backend = self.crew(Numbers())
            post(backend, *range(tasks))
            if tasks == 8:
                outcomes(backend)
            backend.close()
            assert backend.workers == []
            backend.close()
