"""What `loader.stats()` says of loaders whose times are known."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock._measure.gauges import Counts, Gauge, Gauges, Slow, TracedTask
from penstock._measure.histogram import BUCKETS, bounds, bucket, buckets, quantile
from penstock._measure.meter import Meter
from penstock._wire.task import Task

# Workers that end with the epoch do nothing for the next one ahead of time.
BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {},
    "thread": {"num_workers": 2, "backend": "thread"},
    "process": {"num_workers": 2, "persistent_workers": False},
}


@pytest.fixture(params=BACKENDS, name="settings")
def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return BACKENDS[request.param]


class Rows:
    def __init__(self, length: int = 100, seconds: float = 0.0, slow: int = -1) -> None:
        self.length, self.seconds, self.slow = length, seconds, slow

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> np.ndarray:
        if self.seconds:
            time.sleep(self.seconds * (400 if key == self.slow else 1))
        return np.full(4, key)


def test_batches_samples_and_bytes_are_those_that_were_handed_out(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(Rows(), batch_size=8, seed=1, **settings) as loader:
        for step, batch in enumerate(loader, 1):
            if step in (1, 5, 12):
                stats = loader.stats()
                assert (stats.epoch.batches, stats.epoch.samples) == (step, 8 * step)
                assert stats.memory.lent >= batch.nbytes
        assert list(loader)
        stats = loader.stats()
    assert (stats.epoch.batches, stats.epoch.samples) == (13, 100)
    assert (stats.life.batches, stats.life.samples) == (26, 200)
    assert stats.life.nbytes >= 200 * 4 * 8
    assert stats.life.waits.count == stats.life.works.count == 26
    assert stats.epoch_number == 1


def test_the_steps_of_a_bundle_count_one_by_one() -> None:
    with penstock.DataLoader(Rows(64_000), batch_size=64, seed=1, num_workers=1) as loader:
        assert sum(1 for _ in loader) == 1000
        life = loader.stats().life
        assert life.batches == 1000 and life.samples == 64_000
        assert life.tasks < 1000, "small steps travel together"
        assert 0 < life.ready <= 1000
        iterator = iter(loader)
        for handed_out in range(1, 40):
            next(iterator)
            assert loader.stats().epoch.batches == handed_out
        del iterator
        assert loader.stats().epoch.batches == 39, "what was not handed out does not count"


def test_waiting_and_working_add_up(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(Rows(20, seconds=0.002), batch_size=2, seed=1, **settings) as loader:
        for _ in loader:
            time.sleep(0.01)
        epoch = loader.stats().epoch
    assert epoch.works.total >= 10 * 0.01 and epoch.works.longest >= epoch.works.median >= 0.009
    assert epoch.seconds == pytest.approx(epoch.waits.total + epoch.works.total)
    assert 0 <= epoch.waiting < 1
    if settings == {}:
        assert epoch.waits.total >= 20 * 0.002 and epoch.waits.median >= 0.9 * 0.004


def test_a_worker_knows_where_its_time_went(settings: dict[str, Any]) -> None:
    def collate(samples: list[np.ndarray]) -> np.ndarray:
        time.sleep(0.008)
        return np.stack(samples)

    dataset = Rows(40, seconds=0.002)
    with penstock.DataLoader(dataset, batch_size=2, seed=1, collate_fn=collate, **settings) as loader:
        for _ in loader:
            pass
        workers = loader.stats().epoch.workers
    assert len(workers) == settings.get("num_workers", 1)
    assert sum(worker.steps for worker in workers) >= 20  # and perhaps some of the next epoch
    assert sum(worker.fetch for worker in workers) >= 40 * 0.002
    assert sum(worker.collate for worker in workers) >= 20 * 0.008
    assert all(0 <= worker.cpu < worker.busy for worker in workers)


def test_idle_workers_wait_for_room_while_the_caller_works() -> None:
    with penstock.DataLoader(Rows(64), batch_size=1, seed=1, num_workers=2, timeout=60) as loader:
        for _ in loader:
            time.sleep(0.005)
        assert sum(worker.waited_room for worker in loader.stats().epoch.workers) > 0.05


def test_an_idle_worker_wants_a_task_while_the_caller_waits_and_room_while_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 10**12
    monkeypatch.setattr(penstock._measure.gauges, "_clock", lambda: now)
    gauges = Gauges(None)
    gauge = Gauge(gauges, 0, 1, time.process_time_ns)
    gauge.ready()
    for waits, works in ((30, 50), (0, 20), (7, 0)):
        gauges.begin_wait(now)
        now += waits
        gauges.end_wait(now)
        now += works
    gauge.flush()
    assert (gauges.counts(0).waited_task, gauges.counts(0).waited_room) == (37, 70)


def test_idle_workers_wait_for_a_task_while_the_caller_waits() -> None:
    class OneAtATime(Rows):
        def __getitem__(self, key: int) -> np.ndarray:
            time.sleep(0.02 if key % 2 == 0 else 0.0)
            return super().__getitem__(key)

    # The window is full as long as an even key is at work, and the caller waits for just that.
    loader = penstock.DataLoader(OneAtATime(32), num_workers=2, prefetch_factor=1, seed=1, timeout=60)
    with loader:
        for _ in loader:
            pass
        workers = loader.stats().epoch.workers
    assert sum(worker.waited_task for worker in workers) > 0.05


def test_the_slowest_samples_are_named(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(Rows(64, seconds=0.0005, slow=41), batch_size=4, seed=1, **settings) as loader:
        for _ in range(2):
            assert list(loader)
        stats = loader.stats()
    for period in (stats.epoch, stats.life):
        # Others may have waited for a processor.
        assert any(slow.key == 41 and 0.2 <= slow.seconds < 60 for slow in period.slowest)
        assert [slow.seconds for slow in period.slowest] == sorted((s.seconds for s in period.slowest), reverse=True)
        assert len(period.slowest) <= 10
    assert {slow.epoch for slow in stats.epoch.slowest} == {1}
    assert sum(bucket.count for bucket in stats.life.sample_times) == 128


@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_the_slowest_samples_of_a_stream_are_named_by_their_position(settings: dict[str, Any]) -> None:
    class Numbers(penstock.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for number in range(60):
                time.sleep(0.2 if number == 41 else 0.001)
                yield number

    with penstock.DataLoader(Numbers(), batch_size=4, seed=1, **settings) as loader:
        assert [number for batch in loader for number in batch.tolist()] == list(range(60))
        slowest = loader.stats().epoch.slowest
    assert any((slow.key, slow.step) == (41, 10) and 0.2 <= slow.seconds < 60 for slow in slowest)


def test_the_parts_of_the_first_batch_add_up(settings: dict[str, Any]) -> None:
    def slow_start(seat: int) -> None:
        time.sleep(0.05)

    given = {**settings, "worker_init_fn": slow_start} if settings else settings
    with penstock.DataLoader(Rows(8, seconds=0.02), batch_size=2, seed=1, **given) as loader:
        assert loader.stats().first_batch is None
        next(iter(loader))
        first = loader.stats().first_batch
        assert first is not None
        assert first.total == pytest.approx(first.start + first.boot + first.sample + first.rest, abs=1e-3)
        assert first.total >= 2 * 0.02 + (0.05 if settings else 0)
        assert first.boot + first.sample + first.rest > 0
        assert list(loader)
        assert loader.stats().first_batch == first


def test_a_killed_worker_counts_and_its_figures_go_on() -> None:
    class Deadly(Rows):
        def __getitem__(self, key: int) -> np.ndarray:
            info = penstock.get_worker_info()
            if key == 11 and info is not None and not os.path.exists(self.flag):
                open(self.flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(key)

        flag = ""

    dataset = Deadly(40, seconds=0.001)
    dataset.flag = f"/tmp/penstock-stats-{os.getpid()}"
    try:
        # Without steps of the next epoch, which a persistent worker does early.
        with penstock.DataLoader(dataset, 2, seed=1, num_workers=1, persistent_workers=False) as loader:
            assert len(list(loader)) == 20
            epoch = loader.stats().epoch
    finally:
        os.unlink(dataset.flag)
    assert epoch.replaced == 1 and epoch.repeated >= 1
    assert [worker.seat for worker in epoch.workers] == [0]
    assert epoch.workers[0].steps == 20, "the step that killed its worker was done once"


def test_skipped_samples_count(settings: dict[str, Any]) -> None:
    class Bad(Rows):
        def __getitem__(self, key: int) -> np.ndarray:
            if key % 10 == 3:
                raise ValueError(key)
            return super().__getitem__(key)

    with penstock.DataLoader(Bad(50), batch_size=5, on_error="skip", seed=1, **settings) as loader:
        assert list(loader)
        epoch = loader.stats().epoch
    assert epoch.skipped == 5 and epoch.samples == 45


def test_updates_and_resizing_keep_the_figures(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(Rows(80), batch_size=2, seed=1, **settings) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        loader.update(seconds=0.0001)
        if settings:
            loader.num_workers = 3
        assert len(list(iterator)) == 35
        stats = loader.stats()
    assert stats.epoch.batches == 40 and stats.epoch.samples == 80


def test_figures_outlive_the_workers_and_say_so() -> None:
    loader = penstock.DataLoader(Rows(40), batch_size=2, num_workers=2, seed=1)
    with loader:
        assert list(loader)
        assert all(worker.alive for worker in loader.stats().life.workers)
    stats = loader.stats()
    assert not any(worker.alive for worker in stats.life.workers)
    assert sum(worker.steps for worker in stats.life.workers) >= 20
    assert stats.memory.pooled == 0


def test_another_thread_may_ask_while_the_caller_reads() -> None:
    found: list[penstock.stats.Stats] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            found.append(loader.stats())

    with penstock.DataLoader(Rows(2000), batch_size=2, num_workers=2, seed=1) as loader:
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            assert len(list(loader)) == 1000
        finally:
            done.set()
            thread.join()
    counts = [stats.life.batches for stats in found]
    # What is just being handed out may be missing, or there twice.
    assert all(later >= earlier - 32 for earlier, later in pairwise(counts))
    assert loader.stats().life.batches == 1000


def test_nothing_grows_with_the_length_of_an_epoch() -> None:
    with penstock.DataLoader(Rows(24_000), batch_size=16, seed=1, num_workers=1) as loader:
        loader._session.measures.meter.next_tick = 0
        for step, _ in enumerate(loader):
            if step % 100 == 0:
                loader._session.measures.tick()
        for _ in range(2000):
            loader._session.measures.tick()
        assert len(loader.stats().history) <= 512
        assert len(loader._session.measures.meter._kept) <= 1025
        at = [moment.at for moment in loader.stats().history]
        assert at == sorted(at)


def test_stats_are_plain_json(settings: dict[str, Any]) -> None:
    import json

    with penstock.DataLoader(Rows(20), batch_size=2, seed=1, **settings) as loader:
        assert list(loader)
        loader._session.measures.tick()
        plain = json.loads(json.dumps(loader.stats().to_dict()))
    assert plain["epoch"]["batches"] == 10
    assert plain["settings"]["batch_size"] == 2


# The parts.


def test_a_duration_is_in_the_bucket_that_spans_it() -> None:
    for ns in (1, 999, 1024, 5_000, 123_456, 10**9, 10**12, 10**15):
        at = bucket(ns)
        low, high = bounds(at)
        assert low <= ns * 1e-9 <= high or at in (0, BUCKETS - 1)
        assert buckets(np.array([ns]))[at] == 1


def test_quantiles_are_right_within_ten_per_cent() -> None:
    random = np.random.default_rng(1)
    ns = (random.lognormal(11, 2, 10_000) + 2000).astype(np.int64)
    counts = buckets(ns).tolist()
    for share in (0.1, 0.5, 0.95):
        assert quantile(counts, share) == pytest.approx(np.quantile(ns, share) * 1e-9, rel=0.12)


@pytest.mark.parametrize(("microseconds", "timed"), [(5, False), (50, True)])
def test_only_slow_samples_are_timed_one_by_one(microseconds: int, timed: bool) -> None:
    gauges = Gauges(None)
    gauge = Gauge(gauges, 0, 1, time.process_time_ns)
    gauge.begin()
    assert gauge.detailed and gauge.times, "nothing is known yet"
    for _ in range(64):
        assert gauge.sample(1000 * microseconds) is timed
    gauge.fetched = gauge._began + 64 * 1000 * microseconds
    gauge.stepped(64)
    assert gauge.times is timed
    assert np.frombuffer(gauges.copy(0).times(), np.int64).sum() == 64


@pytest.mark.parametrize(("microseconds", "detailed"), [(100, 10), (2500, 250), (20_000, 1000)])
def test_one_step_in_ten_milliseconds_is_timed_in_parts_and_all_tasks_count(
    microseconds: int, detailed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10**12
    monkeypatch.setattr(penstock._measure.gauges, "_clock", lambda: now)
    gauges = Gauges(None)
    gauge = Gauge(gauges, 0, 1, time.process_time_ns)
    timed = 0
    for _ in range(1000):
        now += 1000
        gauge.begin()
        now += 1000 * microseconds
        gauge.fetched, gauge.made = now - 500 * microseconds, now - 250 * microseconds
        if gauge.detailed:
            timed += 1
            gauge.stepped(1)
        gauge.end(None)
        assert gauges.counts(0).tasks == gauges.counts(0).steps
    assert timed == pytest.approx(detailed, rel=0.02)
    gauge.flush()
    counts = gauges.counts(0)
    assert (counts.tasks, counts.busy, counts.since) == (1000, 10**6 * microseconds, 0)
    assert (counts.fetch, counts.collate, counts.write) == (counts.busy // 2, counts.busy // 4, counts.busy // 4)
    assert counts.waited_task + counts.waited_room == 1000 * 1000


def test_a_period_in_which_no_step_was_timed_is_all_fetching() -> None:
    counts = Counts(busy=7).minus(Counts())
    assert (counts.fetch, counts.collate, counts.write) == (7, 0, 0)


def test_a_row_has_the_ten_slowest_of_each_epoch() -> None:
    gauges = Gauges(None)
    gauge = Gauge(gauges, 3, 77, time.process_time_ns)
    random = np.random.default_rng(2)
    given: dict[int, list[int]] = {}
    for epoch in (0, 1, 2, 1):
        gauge.begin_epoch(epoch)
        for ns in random.integers(1, 10**9, 50).tolist():
            given.setdefault(epoch, []).append(ns)
            if gauge.sample(ns):
                gauge.note(Slow(ns, epoch, 0, repr(ns)))
    for epoch in (1, 2):
        assert sorted(slow.ns for slow in gauges.slowest(3, epoch)) == sorted(given[epoch])[-10:]
    replaced = Gauge(gauges, 3, 78, time.process_time_ns)
    replaced.begin_epoch(2)
    replaced.note(Slow(2 * 10**9, 2, 0, "last"))
    assert max(gauges.slowest(3, 2)).key == "last"
    assert len(gauges.slowest(3, 2)) == 10
    assert gauges.counts(3).pid == 78


def test_a_closed_loader_has_figures_although_its_iterator_is_kept(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(Rows(), batch_size=8, seed=1, **settings) as loader:
        iterator = iter(loader)
        next(iterator)
    stats = loader.stats()
    assert (stats.epoch.batches, stats.memory.pooled) == (1, 0)
    del iterator


class Forbidden:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"np.{name} inside a finalizer")


def test_a_loader_ends_without_numpys_arithmetic(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # The garbage collector may end it while a context variable of numpy's is changed: see Meter.keep.
    loader = penstock.DataLoader(Rows(), batch_size=8, seed=1, **settings)
    iterator = iter(loader)
    next(iterator)
    monkeypatch.setattr("penstock._measure.meter.np", Forbidden())
    monkeypatch.setattr("penstock._measure.histogram.np", Forbidden())
    iterator.close()
    loader.close()
    monkeypatch.undo()
    assert loader.stats().epoch.batches == 1


# The other loaders.


def test_prefetch_has_figures() -> None:
    def batches() -> Any:
        for step in range(10):
            time.sleep(0.004)
            yield np.full(8, step)

    with penstock.prefetch(batches, depth=2) as ahead:
        for _ in range(2):
            for _ in ahead:
                time.sleep(0.001)
        stats = ahead.stats()
    assert (stats.epoch.batches, stats.life.batches) == (10, 20)
    assert stats.epoch.nbytes >= 10 * 64
    assert stats.epoch.works.total >= 10 * 0.001
    (worker,) = stats.epoch.workers
    assert worker.name == "the reading thread"
    assert worker.fetch >= 0.9 * 10 * 0.004


@pytest.mark.imports_torch
@pytest.mark.parametrize(
    "settings",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 0, "seed": 1},
        {"num_workers": 2, "seed": 1},
    ],
)
def test_torch_loaders_have_figures(settings: dict[str, Any]) -> None:
    import penstock.torch

    loader = penstock.torch.DataLoader(Rows(40, seconds=0.001, slow=7), batch_size=4, **settings)
    for _ in range(2):
        for _ in loader:
            time.sleep(0.001)
    stats = loader.stats()
    assert (stats.epoch.batches, stats.epoch.samples) == (10, 40)
    assert (stats.life.batches, stats.life.samples) == (20, 80)
    assert stats.epoch.works.total >= 10 * 0.001
    assert stats.settings["face"] == "penstock.torch"
    if settings["num_workers"]:
        assert sum(worker.fetch for worker in stats.epoch.workers) >= 40 * 0.001
        assert 7 in {slow.key for slow in stats.epoch.slowest}
    else:
        assert stats.epoch.waits.total >= 40 * 0.001


@pytest.mark.imports_torch
def test_loaders_of_torchs_own_class_have_figures_too() -> None:
    import torch.utils.data

    import penstock.torch

    loader = torch.utils.data.DataLoader(Rows(40), batch_size=4, num_workers=1)
    with penstock.torch.enable():
        assert len(list(loader)) == 10
        assert penstock.torch.stats(loader).epoch.batches == 10


def test_an_engine_may_end_while_its_workers_are_looked_at() -> None:
    gauges, meter = Gauges(None), Meter()
    gauges.seats |= {0, 1}
    for seat in gauges.seats:  # as in a garbage collection meanwhile
        meter.keep(gauges)
        assert seat in (0, 1)
    assert set(meter.snapshot([gauges]).workers()) == {0, 1}


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 5)), max_size=30),
    st.integers(-(10**15), 10**15),
    st.booleans(),
)
def test_a_row_that_was_told_elsewhere_is_the_same_here(
    tasks: list[tuple[int, int]], shift: int, tracing: bool
) -> None:
    """Workers on other machines share no memory: their rows travel, and moments are shifted to the caller's clock."""
    there, here = Gauges(None), Gauges(None)
    there.hear_caller(7, tracing)
    gauge = Gauge(there, 3, 811, int)
    gauge.ready()
    known = 0
    for ns, step in tasks:
        gauge.begin()
        if gauge.sample(ns):
            gauge.note(Slow(ns, 0, step, f"key {step}"))
        gauge.stepped(1)
        gauge.end(Task(step, 0, 0, step, []))
        here.hear(3, there.tell(3, since=known), shift)
        known = there.recorded(3)
    here.hear(3, there.tell(3), shift)
    told, heard = there.counts(3), here.counts(3)
    for name in Counts._fields:
        moment = name in ("born", "ready", "first", "since") and getattr(told, name)
        assert getattr(heard, name) == getattr(told, name) + (shift if moment else 0), name
    assert here.copy(3).times() == there.copy(3).times() and here.slowest(3) == there.slowest(3)
    moments = TracedTask._fields[1:5]
    expected = [one._replace(**{name: getattr(one, name) + shift for name in moments}) for one in there.records(3)]
    assert here.records(3) == expected and len(expected) == (len(tasks) if tracing else 0)
