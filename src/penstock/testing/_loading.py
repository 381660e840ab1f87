"""The laws that every loader keeps, whatever its backend."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from penstock._epoch import pace
from penstock.errors import LoaderTimeout, WorkerLost
from penstock.testing import _sources as sources
from penstock.testing._faults import Raising
from penstock.testing._laws import Laws, raises, rows, same, until
from penstock.testing._resumed import assert_resumes_everywhere

_SHUFFLED: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5}
_ROWS = np.arange(230, dtype=np.int32).reshape(46, 5)


class LoaderLaws(Laws):
    # Law 1: inline is the meaning.

    def test_batches_are_those_of_the_plain_loop(self) -> None:
        numbers = sources.Numbers
        for dataset, given in (
            (numbers(10), {}),
            (numbers(10), {"batch_size": 4}),
            (numbers(10), {"batch_size": 4, "drop_last": True}),
            (numbers(3), {"batch_size": 7}),
            (numbers(0), {"batch_size": 2}),
            (numbers(10), {"batch_size": None}),
            (numbers(40), _SHUFFLED),
            (numbers(10), {"batch_size": 3, "sampler": [5, 1, 1, 8]}),
            (numbers(10), {"batch_sampler": [[1], [2, 3], (4, 5, 6)]}),
            (sources.Rich(), {"batch_size": 4}),
            (sources.Rich(), {"batch_size": None}),
            (sources.Ragged([1, 5, 100, 1000, 0, 3]), {}),
            (_ROWS, _SHUFFLED),
            (["a", "bc", "def"], {"batch_size": 2}),
            ({"x": 1.5, "y": 2.5}, {"batch_size": 2, "sampler": ["y", "x", "y"]}),
            (sources.Countdown(10), {"batch_size": 4}),
            (sources.Countdown(10), {"batch_size": 4, "drop_last": True}),
            (sources.Countdown(5), {"batch_size": None}),
            (sources.Countdown(0), {"batch_size": 2}),
            (sources.Light(10), {"batch_size": 4}),
            (sources.Light(5), {"batch_size": None}),
            (sources.Stateful(9), {"batch_size": 2, "seed": 1}),
            (numbers(10), {"batch_size": 4, "dtype": "float32"}),
        ):
            what = f"{type(dataset).__name__}, {given}"
            plain, loader = self.plain(dataset, **given), self.loader(dataset, **given)
            if type(dataset) is sources.Stateful:  # which the plain loop advances
                plain = self.plain(sources.Stateful(9), **given)
            for epoch in range(2):
                same(list(loader), list(plain), f"{what}, epoch {epoch}")
            loader.close()

    def test_large_batches_among_small_ones_arrive_whole(self) -> None:
        sizes = [10, 9_000_000, 3, 10, 12_000_000, 5, 0, 10]
        for key, batch in enumerate(self.loader(sources.Ragged(sizes))):
            assert batch.shape == (1, sizes[key]) and (batch == key).all(), f"batch {key}"

    def test_functions_and_classes_that_cannot_be_imported_can_be_sent(self) -> None:
        class Local(sources.Numbers):
            def __getitem__(self, key: int) -> Any:
                return -key

        loader = self.loader(Local(5), batch_size=2, collate_fn=lambda samples: sum(samples))
        same(list(loader), [-1, -5, -4])

    def test_a_key_keeps_its_type_and_value(self) -> None:
        keys: list[Any] = [7, np.int64(7), -1, 2**70, 3.5, ("a", 1), "name", [1, 2], np.array([[1.5]])]
        for key, (kind, value) in zip(
            keys, self.loader(sources.Echo(), batch_size=None, sampler=keys), strict=True
        ):
            assert kind == type(key).__name__ and np.array_equal(value, key), f"{key!r} came as {kind} {value!r}"

    def test_batches_say_which_samples_they_hold(self) -> None:
        for epoch in range(2):
            loader = self.loader(sources.Numbers(), **_SHUFFLED)
            loader.set_epoch(epoch)
            for step, batch in enumerate(loader.batches()):
                assert (batch.epoch, batch.step, batch.pad) == (epoch, step, 0)
                assert batch.index.tolist() == batch.data[0].tolist()

    # Law 3: randomness belongs to the sample.

    def test_random_numbers_belong_to_the_sample(self) -> None:
        for everywhere in (False, True)[: 1 + self.own_generators]:
            dataset = sources.Drawn(everywhere)
            plain, loader = self.plain(dataset, **_SHUFFLED), self.loader(dataset, **_SHUFFLED)
            for epoch in range(2):
                same(list(loader), list(plain), f"epoch {epoch}")

    def test_the_generators_of_the_caller_are_left_alone(self) -> None:
        self.needs(self.own_generators, "workers draw from the caller's generators")
        before = np.random.get_state()[1].tolist()  # type: ignore[index]
        list(self.loader(sources.Drawn(True), seed=1))
        assert np.random.get_state()[1].tolist() == before  # type: ignore[index]

    # Law 7: an error names its sample.

    def test_an_error_keeps_its_type_and_names_its_sample_and_the_rest_arrives(self) -> None:
        batches = iter(self.loader(Raising(sources.Numbers(12), {3, 7}, LookupError), batch_size=2))
        for step in range(6):
            key = 2 * step + 1
            if key in (3, 7):
                with raises(LookupError, f"{key} is bad", f"In sample {key} (row 1), step {step} of epoch 0, in "):
                    next(batches)
            else:
                assert next(batches)[0].tolist() == [key - 1, key]
        assert next(batches, None) is None

    def test_samples_that_fail_are_skipped_or_replaced_as_in_the_plain_loop(self) -> None:
        dataset = Raising(sources.Numbers(), {1, 2, 3, 17, 39})
        for on_error in ("skip", "replace"):
            plain = self.plain(dataset, on_error=on_error, **_SHUFFLED)
            loader = self.loader(dataset, on_error=on_error, **_SHUFFLED)
            same(list(loader), list(plain), on_error)
            assert [key for key, _ in loader.skipped] == [key for key, _ in plain.skipped]

    def test_an_error_in_worker_init_fn_is_the_error_of_each_step(self) -> None:
        self.needs_workers()

        def broken(worker: int) -> None:
            raise LookupError("no such file")

        batches = iter(self.loader(sources.Numbers(3), worker_init_fn=broken))
        for _ in range(3):
            with raises(LookupError, "no such file", "In worker_init_fn, called before step"):
                next(batches)
        assert next(batches, None) is None

    def test_keys_that_cannot_be_sent_end_the_epoch_with_an_error(self) -> None:
        self.needs_workers()
        loader = self.loader(sources.Echo(), batch_size=None, sampler=[1, 2, sources.Unsendable(), 4])
        batches = iter(loader)
        found = [next(batches)[1], next(batches)[1]]
        self.needs(batches._engine.backend.copies_dataset, "keys are not sent")
        with raises(LookupError, "could not be sent to a worker"):
            next(batches)
        assert found == [1, 2] and next(batches, None) is None

    # Epochs.

    def test_out_of_order_every_batch_comes_once(self) -> None:
        loader = self.loader(sources.Numbers(), in_order=False, **_SHUFFLED)
        for _ in range(2):
            found = [(batch.step, batch.data[0].tolist()) for batch in loader.batches()]
            assert sorted(step for step, _ in found) == list(range(14))
            assert sorted(key for _, keys in found for key in keys) == list(range(40))

    def test_an_epoch_that_is_left_leaves_no_trace_in_the_next(self) -> None:
        for make in (sources.Numbers(), sources.Light(40), sources.Countdown(40)):
            given = {"batch_size": 3} if hasattr(make, "__iter__") else _SHUFFLED
            plain, loader = self.plain(make, **given), self.loader(make, **given)
            for left_at in (0, 1, 2, 3, 7, 13):
                same(list(islice(loader, left_at)), list(islice(plain, left_at)))
            same(list(loader), list(plain), "the epoch after those that were left")

    def test_two_iterators_are_independent(self) -> None:
        plain, loader = self.plain(sources.Numbers(), **_SHUFFLED), self.loader(sources.Numbers(), **_SHUFFLED)
        expected = [rows(plain), rows(plain)]
        one, two = iter(loader), iter(loader)
        found = [rows(pair) for pair in zip(one, two, strict=True)]
        assert found == [list(pair) for pair in zip(*expected, strict=True)]

    # A dataset that changes.

    def test_an_update_reaches_the_next_batch_and_is_made_once(self) -> None:
        for bundled in (False, True):
            with _bundles(bundled):
                found: list[Any] = []
                for make in (self.loader, self.plain):
                    loader = make(sources.Numbers(), **_SHUFFLED)
                    found.append([])
                    loader.update(size=2)
                    for epoch in range(2):
                        for step, batch in enumerate(loader):
                            found[-1] += rows([batch])
                            if step in (0, 4, 5, 12, 13):
                                loader.update(size=step)
                                loader.update(sources.once_more)
                        loader.update(size=100 + epoch)
                same(found[0], found[1], f"bundles: {bundled}")

    def test_light_items_are_loaded_again_after_an_update(self) -> None:
        found: list[Any] = []
        for loader in (self.loader(sources.Light(30), 2), self.plain(sources.Light(30), 2)):
            loader.update(size=1)
            found.append([])
            for step, batch in enumerate(loader):
                found[-1] += rows([batch])
                if step in (3, 4, 14):
                    loader.update(size=step)
        same(found[0], found[1])

    def test_an_update_that_cannot_be_sent_changes_nothing(self) -> None:
        loader = self.loader(sources.Numbers(6), 2)
        batches: Any = iter(loader)
        next(batches)
        self.needs(batches._engine.backend.copies_dataset, "workers have the caller's dataset")
        with raises(LookupError):
            loader.update(sources.Unsendable())
        assert rows(batches) == [([2, 3], [1, 1], [0, 0]), ([4, 5], [1, 1], [0, 0])]
        assert loader.dataset.size == 1

    # A number of workers that changes.

    def test_more_or_fewer_workers_give_the_same_batches(self) -> None:
        self.needs_workers()
        for bundled in (False, True):
            with _bundles(bundled):
                expected = rows(self.plain(sources.Numbers(400), **_SHUFFLED))
                loader = self.loader(sources.Numbers(400), **_SHUFFLED)
                loader.num_workers = 3  # before there are any
                for _ in range(2):
                    loader.set_epoch(0)
                    found = []
                    for step, batch in enumerate(loader):
                        found += rows([batch])
                        if step % 10 == 0:
                            loader.num_workers = (1, 4, 2, 1, 1, 5, 3)[step // 10 % 7]
                    same(found, expected, f"bundles: {bundled}")
                    loader.num_workers = 1

    def test_light_items_and_streams_do_not_depend_on_the_number_of_workers(self) -> None:
        self.needs_workers()
        for make in (sources.Light, sources.Stateful):
            loader, plain = self.loader(make(60), 2, seed=1), self.plain(make(60), 2, seed=1)
            for _ in range(2):
                found = []
                for step, batch in enumerate(loader):
                    found += rows([batch])
                    loader.num_workers = 1 + step % 3
                same(found, rows(plain), make.__name__)

    # Law 5: workers are replaceable.

    def test_a_lost_worker_is_not_noticed(self) -> None:
        self._can_lose()
        for bundled in (False, True):
            with _bundles(bundled):
                plain = self.plain(sources.Numbers(200), **_SHUFFLED)
                loader = self.loader(sources.Numbers(200), retries=9, **_SHUFFLED)
                for _ in range(2):
                    found = []
                    for step, batch in enumerate(loader):
                        found += rows([batch])
                        if step in (0, 5, 6, 40):
                            self.kill(loader)
                    same(found, rows(plain), f"bundles: {bundled}")

    def test_a_stream_with_a_state_goes_on_in_another_worker(self) -> None:
        self._can_lose()
        loader = self.loader(sources.Stateful(40), 2, seed=1, retries=9)
        plain = self.plain(sources.Stateful(40), 2, seed=1)
        for _ in range(3):
            found = []
            for step, batch in enumerate(loader):
                found += rows([batch])
                if step in (0, 7, 12):
                    self.kill(loader)
            same(found, rows(plain))

    def test_a_stream_without_a_state_ends_with_an_error_if_its_reader_is_lost(self) -> None:
        self._can_lose()
        batches = iter(loader := self.loader(sources.Countdown(200), prefetch_factor=1))
        next(batches)
        self.kill(loader)
        with raises(WorkerLost, "the epoch ends here"):
            list(batches)
        assert list(batches) == []

    def test_a_worker_that_replaces_another_has_every_update_once(self) -> None:
        self._can_lose()
        batches = iter(loader := self.loader(sources.Numbers(), 2, retries=9))
        found = rows([next(batches)])
        for _ in range(3):
            self.kill(loader)
            loader.update(sources.once_more)
            found += rows([next(batches)])
            self.kill(loader)
        found += rows(batches)
        same(found, [([key, key + 1], [1, 1], [min(key // 2, 3)] * 2) for key in range(0, 40, 2)])

    def test_workers_may_be_lost_while_their_number_changes(self) -> None:
        self._can_lose()
        plain = self.plain(sources.Numbers(200), **_SHUFFLED)
        loader = self.loader(sources.Numbers(200), retries=9, **_SHUFFLED)
        found = []
        for step, batch in enumerate(loader):
            found += rows([batch])
            if step in (3, 9, 20, 30):
                loader.num_workers = 1 if step % 2 else 3
                self.kill(loader)
        same(found, rows(plain))

    def _can_lose(self) -> None:
        self.needs_workers()
        self.needs(self.loses_workers, "workers cannot be lost")

    # Law 4: memory is lent.

    def test_batches_that_are_kept_stay_unchanged(self) -> None:
        for size in (100, 60_000):
            loader = self.loader(sources.Ragged([size] * 60), batch_size=2)
            kept = list(loader)
            views = [batch[1, 3:9:2] for step, batch in enumerate(loader) if step % 7 == 0]
            for _ in loader:
                pass
            assert all((batch == [[2 * step], [2 * step + 1]]).all() for step, batch in enumerate(kept)), size
            assert [view.tolist() for view in views] == [[14 * at + 1] * 3 for at in range(len(views))], size

    def test_batches_that_are_dropped_do_not_disturb_later_ones(self) -> None:
        loader = self.loader(sources.Ragged([1000] * 300))
        for key, batch in enumerate(loader):
            assert (batch == key).all(), f"batch {key}"
            batch[:] = -1  # what the caller writes is nobody else's to see

    def test_batches_outlive_their_loader(self) -> None:
        loader = self.loader(sources.Ragged([50] * 8))
        kept = list(loader)
        loader.close()
        assert all((batch == key).all() for key, batch in enumerate(kept))

    # Law 6: nothing is left behind.

    def test_close_at_any_point_leaves_nothing_and_a_later_epoch_begins_anew(self) -> None:
        for dataset in (sources.Numbers(12), sources.Light(12), sources.Countdown(12)):
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
        self._can_block()
        with tempfile.TemporaryDirectory() as folder:
            loader = self.loader(sources.Gated(os.path.join(folder, "gate"), 1))
            batches: Any = iter(loader)
            next(batches)
            seen: list[bool] = []

            def read() -> None:
                with raises(RuntimeError, "was closed"):
                    next(batches)
                seen.append(True)

            thread = threading.Thread(target=read)
            thread.start()
            engine = batches._engine
            until(lambda: engine._scheduler.ask_is_open, "another thread waits in next()")
            loader.close()
            thread.join(60)
            open(os.path.join(folder, "gate"), "x").close()
            assert seen, "the thread that waited was not told"

    def test_a_timeout_says_who_has_the_step_and_may_be_waited_out(self) -> None:
        self._can_block()
        with tempfile.TemporaryDirectory() as folder:
            batches = iter(self.loader(sources.Gated(os.path.join(folder, "gate"), 1), timeout=0.2))
            found: list[int] = []
            said = ""

            def read() -> bool:
                nonlocal said
                try:
                    found.extend(next(batches).tolist())
                except LoaderTimeout as error:  # workers may be slow to start
                    said = str(error)
                return "has it" in said

            until(read, "a timeout says who has the step")
            assert found == [0] and "Step 1 of epoch 0 is not done; worker " in said, said
            assert "Samples in the step: [1]" in said, said
            open(os.path.join(folder, "gate"), "x").close()
            said = ""
            until(lambda: read() or len(found) == 6, "the rest arrives")
            assert found == list(range(6)) and next(batches, None) is None

    def _can_block(self) -> None:
        self.needs_workers()
        self.needs(self.blocks, "a dataset that waits keeps the caller waiting")

    # Stopping and resuming.

    def test_a_loader_that_was_stopped_resumes_at_every_step(self) -> None:
        inline = {"num_workers": 0}
        for make, given in (
            (sources.Numbers, _SHUFFLED),
            (sources.Light, {"batch_size": 3, "seed": 1}),
            (sources.Countdown, {"batch_size": 3, "seed": 1}),
            (sources.Stateful, {"batch_size": 3, "seed": 1}),
        ):

            def made(make: Any = make, given: Any = given, **setting: Any) -> Any:
                return (self.plain if setting == inline else self.loader)(make(20), **given | setting)

            assert_resumes_everywhere(made, [{}, inline])

    # Small steps travel together.

    def test_steps_that_travel_together_are_those_of_the_plain_loop(self) -> None:
        dataset = Raising(sources.Numbers(400), {0, 77, 78, 399})
        for given in ({"seed": 1, "shuffle": True}, {"seed": 1, "batch_size": None}, {"seed": 1, "in_order": False}):
            with _bundles(True):
                found, expected = _told(self.loader(dataset, **given)), _told(self.plain(dataset, **given))
            if "in_order" in given:
                found, expected = sorted(found), sorted(expected)
            same(found, expected, f"{given}")


@contextmanager
def _bundles(wanted: bool) -> Iterator[None]:
    """For the block, every step counts as small enough to travel with others, or none does."""
    before, pace._SECONDS = pace._SECONDS, 10.0 if wanted else 0.0
    try:
        yield
    finally:
        pace._SECONDS = before


def _told(loader: Any) -> list[str]:
    """Two epochs, each batch or error as text."""
    found = []
    for _ in range(2):
        batches = loader.batches()
        while True:
            try:
                batch = next(batches)
                found.append(f"{batch.epoch} {batch.step:3} {batch.index.tolist()} {batch.data}")
            except ValueError as error:
                found.append(str(error))
            except StopIteration:
                break
    return found
