"""The laws (tests) that every loader must pass, with any backend."""

from __future__ import annotations

import functools
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock import DataLoader
from penstock._engine import pace
from penstock.errors import LoaderTimeout, WorkerLost
from penstock.testing import _sources as sources
from penstock.testing._laws import Laws, raises, same, until
from penstock.testing._same import assert_resumes_everywhere
from penstock.testing._sources import Countdown, FunctionDataset, Light, Numbers, Raising, Stateful

_SHUFFLED: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5}
_ROWS = np.arange(230, dtype=np.int32).reshape(46, 5)


def _bundled_or_not(law: Callable[[Any], None]) -> Callable[[Any], None]:
    """Runs a law twice: with one step in each task, and with bundles of several steps."""

    @functools.wraps(law)
    def checked(self: Any) -> None:
        for seconds in (0.0, 10.0):
            with patch.object(pace, "_SECONDS", seconds):
                law(self)

    return checked


class LoaderLaws(Laws):
    # Law 1: every backend gives the batches of the plain loop.

    def test_batches_are_those_of_the_plain_loop(self) -> None:
        rows: tuple[Any, ...] = (
            (Numbers(10), {}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}),
            (Numbers(10), {"batch_size": 3, "sampler": [5, 1, 1, 8]}, {"batch_size": 4, "dtype": "float32"}),
            (Numbers(10), {"batch_sampler": [[1], [2, 3], (4, 5, 6)]}),
            (Numbers(3), {"batch_size": 7}),
            (Numbers(0), {"batch_size": 2}),
            (Numbers(40), _SHUFFLED),
            (FunctionDataset(23, sources.rich), {"batch_size": 4}, {"batch_size": None}),
            (sources.ragged([1, 5, 100, 1000, 0, 3]), {}),
            (_ROWS, _SHUFFLED),
            (["a", "bc", "def"], {"batch_size": 2}),
            ({"x": 1.5, "y": 2.5}, {"batch_size": 2, "sampler": ["y", "x", "y"]}),
            (Countdown(10), {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}),
            (Countdown(0), {"batch_size": 2}),
            (Light(10), {"batch_size": 4}, {"batch_size": None}),
            (Stateful(9), {"batch_size": 2, "seed": 1}),
        )
        for dataset, *settings in rows:
            for given in settings:
                self.equal(dataset, **given)[0].close()

    def test_large_batches_among_small_ones_arrive_whole(self) -> None:
        sizes = [10, 9_000_000, 3, 10, 12_000_000, 5, 0, 10]
        for key, batch in enumerate(self.loader(sources.ragged(sizes))):
            assert batch.shape == (1, sizes[key]) and (batch == key).all(), f"batch {key}"

    def test_functions_and_classes_that_cannot_be_imported_can_be_sent(self) -> None:
        class Local(Numbers):
            def __getitem__(self, key: int) -> Any:
                return -key

        loader = self.loader(Local(5), batch_size=2, collate_fn=lambda samples: sum(samples))
        same(list(loader), [-1, -5, -4])

    def test_a_key_keeps_its_type_and_value(self) -> None:
        keys: list[Any] = [7, np.int64(7), -1, 2**70, 3.5, ("a", 1), "name", [1, 2], np.array([[1.5]])]
        dataset = FunctionDataset(0, lambda key: (type(key).__name__, key))
        for key, found in zip(keys, self.loader(dataset, batch_size=None, sampler=keys), strict=True):
            assert found[0] == type(key).__name__ and np.array_equal(found[1], key), f"{key!r}: {found}"

    def test_batches_say_which_samples_they_hold(self) -> None:
        for epoch in range(2):
            loader = self.loader(Numbers(), **_SHUFFLED)
            loader.set_epoch(epoch)
            for step, batch in enumerate(loader.batches()):
                assert (batch.epoch, batch.step, batch.pad) == (epoch, step, 0)
                assert batch.index.tolist() == batch.data[0].tolist()

    # Law 3: randomness belongs to the sample.

    def test_random_numbers_belong_to_the_sample(self) -> None:
        for make in (sources.drawn, sources.drawn_everywhere)[: 1 + self.own_generators]:
            self.equal(FunctionDataset(20, make), **_SHUFFLED)

    def test_the_generators_of_the_caller_are_left_alone(self) -> None:
        self.needs("own_generators")
        before = np.random.get_state()[1].tolist()  # type: ignore[index]
        list(self.loader(FunctionDataset(20, sources.drawn_everywhere), seed=1))
        assert np.random.get_state()[1].tolist() == before  # type: ignore[index]

    # Law 7: an error names its sample.

    def test_an_error_keeps_its_type_and_names_its_sample_and_the_rest_arrives(self) -> None:
        batches = iter(self.loader(Raising(Numbers(12), {3, 7}, LookupError), batch_size=2))
        for step in range(6):
            key = 2 * step + 1
            if key in (3, 7):
                where = f"In sample {key} (row 1), step {step} of epoch 0, in "
                with raises(LookupError, f"{key} is bad", where):
                    next(batches)
            else:
                assert next(batches)[0].tolist() == [key - 1, key]
        assert next(batches, None) is None

    def test_samples_that_fail_are_skipped_or_replaced_as_in_the_plain_loop(self) -> None:
        for on_error in ("skip", "replace"):
            dataset = Raising(Numbers(), {1, 2, 3, 17, 39})
            loader, plain = self.equal(dataset, epochs=1, on_error=on_error, **_SHUFFLED)
            assert [key for key, _ in loader.skipped] == [key for key, _ in plain.skipped]

    def test_an_error_in_worker_init_fn_is_the_error_of_each_step(self) -> None:
        self.needs("workers")

        def broken(worker: int) -> None:
            raise LookupError("no such file")

        batches = iter(self.loader(Numbers(3), worker_init_fn=broken))
        for _ in range(3):
            with raises(LookupError, "no such file", "In worker_init_fn, called before step"):
                next(batches)
        assert next(batches, None) is None

    def test_keys_that_cannot_be_sent_end_the_epoch_with_an_error(self) -> None:
        self.needs("workers")
        batches = iter(self.loader(FunctionDataset(0, str), batch_size=None, sampler=[1, 2, sources.Unsendable(), 4]))
        found = [next(batches), next(batches)]
        self.skip_unless(batches._engine.backend.copies_dataset, "keys are not sent")
        with raises(LookupError, "could not be sent to a worker"):
            next(batches)
        assert found == ["1", "2"] and next(batches, None) is None

    # Epochs.

    def test_out_of_order_every_batch_comes_once(self) -> None:
        loader = self.loader(Numbers(), in_order=False, **_SHUFFLED)
        for _ in range(2):
            found = [(batch.step, batch.data[0].tolist()) for batch in loader.batches()]
            assert sorted(step for step, _ in found) == list(range(14))
            assert sorted(key for _, keys in found for key in keys) == list(range(40))

    def test_an_epoch_that_is_left_leaves_no_trace_in_the_next(self) -> None:
        for dataset, given in ((Numbers(), _SHUFFLED), (Light(40), {}), (Countdown(40), {})):
            loader, plain = self.pair(dataset, **{"batch_size": 3} | given)
            for left_at in (0, 1, 2, 3, 7, 13, None):
                same(list(islice(loader, left_at)), list(islice(plain, left_at)), f"left at {left_at}")

    def test_two_iterators_are_independent(self) -> None:
        loader, plain = self.pair(Numbers(), **_SHUFFLED)
        one, two = list(plain), list(plain)
        same(list(zip(loader, loader, strict=True)), list(zip(one, two, strict=True)))

    # Changing the dataset.

    @_bundled_or_not
    def test_an_update_reaches_the_next_batch_and_is_made_once(self) -> None:
        self.equal(Numbers(), _change, epochs=3, **_SHUFFLED)

    def test_light_items_are_loaded_again_after_an_update(self) -> None:
        self.equal(Light(30), _change, batch_size=2)

    def test_an_update_that_cannot_be_sent_changes_nothing(self) -> None:
        loader = self.loader(Numbers(6), 2)
        batches: Any = iter(loader)
        next(batches)
        self.skip_unless(batches._engine.backend.copies_dataset, "workers have the caller's dataset")
        with raises(LookupError):
            loader.update(sources.Unsendable())
        assert _rows(batches) == [([2, 3], [1, 1], [0, 0]), ([4, 5], [1, 1], [0, 0])]
        assert loader.dataset.size == 1

    # Changing the number of workers.

    @_bundled_or_not
    def test_more_or_fewer_workers_give_the_same_batches(self) -> None:
        self.needs("workers")

        def resize(loader: Any, step: int) -> None:
            if step < 0:
                loader.set_epoch(0)
            if loader.num_workers and (step < 0 or step % 10 == 0):  # the first time before there are workers
                loader.num_workers = (1, 4, 2, 1, 1, 5, 3)[step // 10 % 7]

        self.equal(Numbers(400), resize, **_SHUFFLED)

    def test_light_items_and_streams_do_not_depend_on_the_number_of_workers(self) -> None:
        self.needs("workers")

        def resize(loader: Any, step: int) -> None:
            if loader.num_workers:
                loader.num_workers = 1 + step % 3

        for make in (Light, Stateful):
            self.equal(make(60), resize, batch_size=2, seed=1)

    # Law 5: workers are replaceable.

    @_bundled_or_not
    def test_a_lost_worker_is_not_noticed(self) -> None:
        self._with_losses(Numbers(200), 0, 5, 6, 40, **_SHUFFLED)

    def test_a_stream_with_a_state_goes_on_in_another_worker(self) -> None:
        self._with_losses(Stateful(40), 0, 7, 12, batch_size=2, seed=1)

    def test_workers_may_be_lost_while_their_number_changes(self) -> None:
        self._with_losses(Numbers(200), 3, 9, 20, 30, resize=True, **_SHUFFLED)

    def _with_losses(self, dataset: Any, *steps: int, resize: bool = False, **given: Any) -> None:
        """Checks that the batches stay the same if a worker is killed at each of the given steps.

        If `resize` is True, the number of workers also changes at each of them.
        """
        self.needs("workers", "loses_workers")

        def lose(loader: Any, step: int) -> None:
            if loader.num_workers and step in steps:
                if resize:
                    loader.num_workers = 1 if step % 2 else 3
                self.kill(loader)

        self.equal(dataset, lose, epochs=3, retries=9, **given)

    def test_a_stream_without_a_state_ends_with_an_error_if_its_reader_is_lost(self) -> None:
        self.needs("workers", "loses_workers")
        batches = iter(loader := self.loader(Countdown(200), prefetch_factor=1))
        next(batches)
        self.kill(loader)
        with raises(WorkerLost, "the epoch ends here"):
            list(batches)
        assert list(batches) == []

    def test_a_worker_that_replaces_another_has_every_update_once(self) -> None:
        self.needs("workers", "loses_workers")
        batches = iter(loader := self.loader(Numbers(), 2, retries=9))
        found = _rows([next(batches)])
        for _ in range(3):
            self.kill(loader)
            loader.update(sources.once_more)
            found += _rows([next(batches)])
            self.kill(loader)
        found += _rows(batches)
        same(found, [([key, key + 1], [1, 1], [min(key // 2, 3)] * 2) for key in range(0, 40, 2)])

    # Law 4: memory is lent.

    def test_batches_that_are_kept_stay_unchanged(self) -> None:
        for size in (100, 60_000):
            loader = self.loader(sources.ragged([size] * 60), batch_size=2)
            kept = list(loader)
            views = [batch[1, 3:9:2] for step, batch in enumerate(loader) if step % 7 == 0]
            for _ in loader:
                pass
            assert all((batch == [[2 * step], [2 * step + 1]]).all() for step, batch in enumerate(kept)), size
            assert [view.tolist() for view in views] == [[14 * at + 1] * 3 for at in range(len(views))], size

    def test_batches_that_are_dropped_do_not_disturb_later_ones(self) -> None:
        for key, batch in enumerate(self.loader(sources.ragged([1000] * 300))):
            assert (batch == key).all(), f"batch {key}"
            batch[:] = -1  # no other batch may show what the caller writes

    def test_batches_outlive_their_loader(self) -> None:
        loader = self.loader(sources.ragged([50] * 8))
        kept = list(loader)
        loader.close()
        assert all((batch == key).all() for key, batch in enumerate(kept))

    # Law 6: nothing is left behind.

    def test_close_at_any_point_leaves_nothing_and_a_later_epoch_begins_anew(self) -> None:
        for dataset in (Numbers(12), Light(12), Countdown(12)):
            loader = self.loader(dataset, 2)
            for taken in (0, 1, 3, 7):
                batches = iter(loader)
                assert len(list(islice(batches, taken))) == min(taken, 6)
                loader.close()
                assert loader.workers == []
                self.nothing_is_left()
                if taken < 6 and self.workers:
                    with raises(RuntimeError, "was closed"):
                        next(batches)

    def test_close_wakes_another_thread_that_waits_for_a_batch(self) -> None:
        self.needs("workers", "blocks")
        with _gated() as (dataset, open_gate):
            batches: Any = iter(loader := self.loader(dataset))
            next(batches)
            seen: list[bool] = []

            def read() -> None:
                with raises(RuntimeError, "was closed"):
                    next(batches)
                seen.append(True)

            thread = threading.Thread(target=read)
            thread.start()
            scheduler = batches._engine._scheduler
            until(lambda: scheduler.ask_is_open, "another thread waits in next()")
            loader.close()
            thread.join(60)
            open_gate()
            assert seen, "the thread that waited was not told"

    def test_a_timeout_says_who_has_the_step_and_may_be_waited_out(self) -> None:
        self.needs("workers", "blocks")
        with _gated() as (dataset, open_gate):
            batches = iter(self.loader(dataset, timeout=0.2))
            found: list[int] = []
            said = [""]

            def read() -> bool:
                try:
                    found.extend(next(batches).tolist())
                except LoaderTimeout as error:  # workers may be slow to start
                    said.append(str(error))
                return "is working on it" in said[-1]

            until(read, "a timeout says who has the step")
            assert found == [0] and "Step 1 of epoch 0 is not done; worker " in said[-1], said
            assert "Samples in the step: [1]" in said[-1], said
            open_gate()
            until(lambda: read() and len(found) == 6, "the rest arrives")
            assert found == list(range(6)) and next(batches, None) is None

    # Stopping and resuming.

    def test_a_loader_that_was_stopped_resumes_at_every_step(self) -> None:
        inline = {"num_workers": 0}
        for make in (Numbers, Light, Countdown, Stateful):
            given = _SHUFFLED if make is Numbers else {"batch_size": 3, "seed": 1}

            def made(make: Any = make, given: Any = given, **setting: Any) -> Any:
                return (DataLoader if setting == inline else self.loader)(make(20), **given | setting)

            assert_resumes_everywhere(made, [{}, inline])

    # Small steps share a task.

    @_bundled_or_not
    def test_steps_that_travel_together_are_those_of_the_plain_loop(self) -> None:
        for given in ({"shuffle": True}, {"batch_size": None}, {"in_order": False}):
            loader, plain = self.pair(Raising(Numbers(200), {0, 77, 78, 199}), seed=1, **given)
            found, expected = _told(loader), _told(plain)
            if "in_order" in given:
                found, expected = sorted(found), sorted(expected)
            same(found, expected, f"{given}")


def _change(loader: Any, step: int) -> None:
    if step in (-1, 0, 3, 4, 12, 13, 14):  # the first time before there are workers
        loader.update(size=step)
        loader.update(sources.once_more)


def _rows(batches: Iterable[Any]) -> list[Any]:
    """Converts batches of `Numbers` to tuples of lists, because batches would keep the loader's memory in use."""
    return [tuple(column.tolist() for column in batch) for batch in batches]


@contextmanager
def _gated() -> Iterator[tuple[FunctionDataset, Callable[[], None]]]:
    """Yields a dataset whose sample 1 waits at a gate, and a function that opens the gate."""
    with tempfile.TemporaryDirectory() as folder:  # deleting the folder opens the gate: no worker waits forever
        gate = Path(folder) / "gate"
        gate.touch()

        def sample(key: int) -> int:
            while key == 1 and gate.exists():
                time.sleep(0.001)
            return key

        yield FunctionDataset(6, sample), gate.unlink


def _told(loader: Any) -> list[str]:
    found = []
    for _ in range(2):
        batches = loader.batches()
        while True:
            try:
                batch = next(batches)
                parts = [(part.dtype.str, part.tolist()) for part in map(np.asarray, batch.data)]
                found.append(f"{batch.epoch} {batch.step:3} {batch.index.tolist()} {parts}")
            except ValueError as error:
                found.append(str(error))
            except StopIteration:
                break
    return found
