"""What threads share, used by many threads at once. Without the GIL (`make group NAME=free`), each test fails if a
guard of decision 0057 is missing. With it, the tests take a moment, and mostly show that they are right."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

import penstock
from penstock._at_work import working_at
from penstock._cache.lru import LruCache
from penstock._engine.turn import CHANGE, NEXT, Turn
from penstock._measure.cached import CacheCounts, Counting, counting
from penstock._measure.gauges import Gauge, Gauges
from penstock._measure.meter import Meter, Stopwatch
from penstock._memory.slabs import Arena, Leases, Region
from penstock._remote.client import Client, WebServer
from penstock._resume.commits import Commits
from penstock._resume.state import State
from penstock._session.engines import Engines
from penstock._wire.task import Ended, Failed, Filled, Task
from penstock._work.job import Job
from penstock.backends._local import ThreadBackend

# Seconds of each race. With the GIL, it would take far longer to find anything by chance.
FREE = not getattr(sys, "_is_gil_enabled", lambda: True)()
SECONDS = 1.0 if FREE else 0.1


def race(*works: Callable[[], object], seconds: float = SECONDS) -> None:
    """Calls each function again and again, each in a thread of its own, and raises the first error of any."""
    errors: list[BaseException] = []
    started, until = threading.Barrier(len(works)), time.monotonic() + seconds

    def repeat(work: Callable[[], object]) -> None:
        started.wait()
        try:
            while not errors and time.monotonic() < until:
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def kept(work: Callable[[], object], errors: list[BaseException]) -> None:
    try:
        work()
    except BaseException as error:
        errors.append(error)


# Memory.

_ARENA = """
import sys
import numpy as np
from penstock._memory.slabs import Arena, Region
from tests.free.test_races import race

arena, region = Arena(None), Region(0, 1 << 20, 0, 4096)
arena.root(region)[:] = 1

def use():
    for _ in range(1000):
        arena.root(region)

race(*[use] * 4, seconds=float(sys.argv[1]))
assert arena.root(region).all()
"""


def test_the_memory_of_batches_stays_mapped_while_threads_drop_views_of_it() -> None:
    """Several threads drop the batches of one loader while others are made."""
    done = subprocess.run([sys.executable, "-c", _ARENA, str(SECONDS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_two_threads_make_or_drop_views_of_one_memoryview() -> None:
    """CPython counts such views without a lock. The test above sees it now and then, and never with the GIL."""
    arena, gauges = Arena(None), Gauges(None)
    roots = [arena.root(Region(0, 1 << 20, 0, 4096)) for _ in range(2)]
    assert not any(isinstance(root.base, memoryview) for root in roots)
    views = [gauges.words, *(Gauge(gauges, 0, 1, time.thread_time_ns)._memory for _ in range(2))]
    assert len({id(view.obj) for view in views}) == 3


def test_threads_that_drop_batches_give_back_each_slab_once() -> None:
    arena, leases = Arena(None), Leases(shared=False)
    dropping: list[Any] = []
    ended = threading.Event()

    def drop() -> None:
        while not ended.is_set():
            while dropping:
                try:
                    dropping.pop()
                except IndexError:  # the other thread has taken it
                    break

    def look() -> None:
        while not ended.is_set():
            assert leases.nbytes <= 64

    errors: list[BaseException] = []
    threads = [threading.Thread(target=kept, args=(work, errors)) for work in (drop, drop, look)]
    for thread in threads:
        thread.start()
    free, lent = set(range(64)), set[int]()
    until = time.monotonic() + SECONDS
    try:
        while time.monotonic() < until:
            for slab in leases.collect():
                lent.remove(slab)  # raises if it comes back twice
                free.add(slab)
            if free:
                slab = free.pop()
                lent.add(slab)
                root = arena.root(Region(0, 1 << 20, 4096 * slab, 4096))
                leases.lend(slab, root, 1)
                dropping.append({"x": root[:16], "y": [root[16:]]})
                del root
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    dropping.clear()
    gc.collect()
    lent.difference_update(leases.collect())
    assert not lent
    assert not errors, errors


# Counters.


def test_workers_count_in_their_rows_while_any_thread_reads_all_of_them() -> None:
    gauges = Gauges(None)
    gauges.seats = frozenset(range(4))

    def work(seat: int) -> None:
        gauge = Gauge(gauges, seat, seat + 1, time.thread_time_ns)
        gauge.ready()
        for _ in range(20):
            gauge.begin()
            gauge.stepped(1)
            gauge.end(None)
        gauge.flush()

    def read() -> None:
        for seat in range(4):
            assert gauges.copy(seat).counts().pid in (0, seat + 1)
            gauges.slowest(seat)
        gauges.outage(range(4))

    race(*(partial(work, seat) for seat in range(4)), read, read)


def test_no_count_of_a_cache_is_lost_or_read_twice() -> None:
    counts, done = CacheCounts(5, *[0] * 8), [0] * 3

    def count(at: int) -> None:
        with working_at(Counting(counts)):
            for _ in range(100):
                counting().hits += 1
        done[at] += 100

    race(*(partial(count, at) for at in range(3)))
    assert counts.hits == 5 + sum(done)


def test_a_cache_in_memory_may_be_used_by_many_threads() -> None:
    cache, keys = LruCache[int, int](50), itertools.count()

    def use() -> None:
        key = next(keys) * 7 % 100
        assert cache.get(key, lambda key: (key, 1)) == key
        cache.found((key + 50) % 100)
        if key == 0:
            cache.drop(range(10))

    race(*[use] * 4)
    assert cache._nbytes == len(cache._values) <= 50


def test_a_hit_stays_a_hit_while_other_threads_hit_the_same_value() -> None:
    cache = LruCache[int, int](1)
    cache.get(0, lambda key: (key, 1))

    def hit() -> None:
        for _ in range(100):
            assert cache.found(0) is not None

    race(*[hit] * 4)


# Backend and engine.


class Squares(penstock.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, key: int) -> Any:
        return np.full(16, key * key)


def job() -> Job:
    loader = penstock.DataLoader(Squares(), batch_size=4, num_workers=1, backend="thread", seed=0)
    return loader._session.job()


def test_a_task_is_either_done_once_or_rescinded() -> None:
    backend = ThreadBackend(job())
    for worker in range(2):
        backend.hire(worker, worker)
    posted = itertools.count()
    until = time.monotonic() + SECONDS
    try:
        while time.monotonic() < until:
            seqs = [next(posted) for _ in range(20)]
            for seq in seqs:
                backend.post(Task(seq, 0, 0, 0, np.arange(4)), seq % 40, -1)
            taken_back = {seq for seq in reversed(seqs) if backend.rescind(seq)}
            done: list[int] = []
            while len(done) + len(taken_back) < len(seqs):
                for outcome in backend.poll(10):
                    assert isinstance(outcome, Filled), outcome
                    done.append(outcome.seq)
            assert sorted([*done, *taken_back]) == seqs
            assert isinstance(backend.doing(None), list)
    finally:
        backend.close()
    assert not any(isinstance(each, (Failed, Ended)) for each in backend.poll(0))


def test_a_turn_is_held_by_one_thread_at_a_time() -> None:
    turn = Turn()
    inside: list[object] = []

    def use(what: str) -> None:
        hold = threading.get_ident(), what
        try:
            turn.take(hold)
        except RuntimeError as error:  # the other thread asks for a batch too
            assert "at the same time" in str(error)  # noqa: PT017
            return
        inside.append(hold)
        assert len(inside) == 1
        inside.pop()
        assert turn.holder is hold
        turn.holder = None
        if turn.waiting:
            turn.changes.tell()

    race(*(partial(use, NEXT) for _ in range(2)), *(partial(use, CHANGE) for _ in range(2)))


# Loaders.


def test_the_counters_of_crews_that_end_together_are_all_kept() -> None:
    """As if two threads read epochs at the same time, each with a crew of its own."""
    meter, ended = Meter(), [0, 0]

    def end(at: int) -> None:
        gauges = Gauges(None)
        gauges.seats = frozenset([at])
        gauge = Gauge(gauges, at, 1, time.thread_time_ns)
        gauge.begin()
        gauge.end(None)
        meter.keep(gauges)
        ended[at] += 1

    race(partial(end, 0), partial(end, 1))
    kept = meter.snapshot([]).workers()
    assert [kept[at].steps for at in range(2)] == ended


def test_threads_read_epochs_of_one_loader_side_by_side() -> None:
    loader = penstock.DataLoader(Squares(), batch_size=4, num_workers=2, backend="thread", persistent_workers=True)
    expected = [batch.tolist() for batch in penstock.DataLoader(Squares(), batch_size=4)]

    def read() -> None:
        assert [batch.tolist() for batch in loader] == expected

    def look() -> None:
        loader.stats()
        str(loader.stats())

    with loader:
        race(read, read, look, seconds=2 * SECONDS)


class SilentTracer:
    def __getattr__(self, name: str) -> Any:
        return lambda *about: None


def test_a_tracer_may_go_while_it_is_told() -> None:
    watch = Stopwatch(Meter())

    def change() -> None:
        watch.tracer = SilentTracer()
        watch.tracer = None

    def tell() -> None:
        for _ in range(100):
            watch.resized(1)

    race(change, tell, tell)


class Crew:
    """Stands for an idle engine."""

    def __init__(self) -> None:
        self.closed = self.in_use = False
        self.job = SimpleNamespace(log=SimpleNamespace(end=0))

    def reference(self) -> Crew:
        return self

    def is_ours(self) -> bool:
        return True

    def close(self) -> None:
        assert not self.in_use, "another thread uses it"
        self.closed = True


def test_an_idle_crew_is_taken_by_one_thread_and_never_closed_under_it() -> None:
    engines: Any = Engines()

    def use() -> None:
        with engines.changing():
            crew = engines.take() or Crew()
            assert not crew.in_use
            assert not crew.closed
            crew.in_use = True
        crew.in_use = False
        engines.put(crew)

    race(*[use] * 3)


def test_a_trace_may_begin_and_end_in_any_thread(tmp_path: Path) -> None:
    loader = penstock.DataLoader(Squares(), batch_size=4, num_workers=2, backend="thread")
    numbers = itertools.count()

    def trace() -> None:
        with loader.trace(tmp_path / f"{next(numbers)}.json"):
            pass

    with loader:
        race(lambda: [*loader], trace)


def test_every_batch_is_committed_once_whatever_thread_commits_it() -> None:
    loader = penstock.DataLoader(range(400), batch_size=1, seed=0, commit=True)
    total = 0
    for _ in range(20 if FREE else 2):
        batches = [*loader.batches()]
        works = [iter(batches), iter(reversed(batches))] * 2

        def commit(batches: Any) -> None:
            for batch in batches:
                loader.commit(batch)

        threads = [threading.Thread(target=commit, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total += len(batches)
        commits = loader.stats().commits
        assert commits is not None
        assert (commits.committed, commits.open) == (total, 0)
        assert commits.committed + commits.twice == 2 * total
        assert loader.state_dict()["epoch"] == total // 400


class OneStep:
    def steps(self, epoch: int) -> int:
        return 1


def test_an_epoch_is_not_complete_before_its_last_batch_is_committed() -> None:
    plan: Any = OneStep()
    now = [Commits(State(0, 0), plan)]
    finished: dict[int, None] = {}  # by the number of the epoch

    def read() -> None:
        epoch = Commits(State(0, 0), plan)
        now[0] = epoch
        epoch.passed(0, None)
        epoch.hold()
        for _ in range(10):
            assert not epoch.is_complete
        finished[epoch.number] = None
        epoch.commit(0)
        assert epoch.is_complete

    def look() -> None:
        epoch = now[0]
        for _ in range(100):
            assert not epoch.is_complete or epoch.number in finished

    race(read, look, look)


def test_a_state_has_each_batch_that_was_not_committed() -> None:
    """While one thread reads and another commits, a third takes states: none of them counts an open batch as done."""
    loader = penstock.DataLoader(range(300), batch_size=1, seed=0, commit=True)
    handed_out: list[Any] = []
    committed: list[int] = []
    ended = threading.Event()
    errors: list[BaseException] = []

    def commit() -> None:
        while not ended.is_set() or handed_out:
            if handed_out:
                batch = handed_out.pop(0)
                committed.append(batch.step)  # before it is committed: a state may already have it
                loader.commit(batch)

    def look() -> None:
        try:
            while not ended.is_set():
                state = loader.state_dict()
                done = {*range(state["steps"]), *(at for a, b in state["beyond"] for at in range(a, b + 1))}
                known = {*committed}
                if state["epoch"] == epoch:
                    assert done <= known, sorted(done - known)[:5]
        except BaseException as error:
            errors.append(error)

    for epoch in range(10 if FREE else 2):  # noqa: B007 - `look` reads it
        committed.clear()
        ended.clear()
        threads = [threading.Thread(target=work) for work in (commit, look)]
        for thread in threads:
            thread.start()
        for batch in loader.batches():
            handed_out.append(batch)  # noqa: PERF402 - one by one, while the others work
        ended.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


# Remote.


class Server(WebServer):
    """A server whose answers cost nothing."""

    def _connection(self) -> Any:
        return object()

    def _asked(self, connection: Any, *request: Any) -> Any:
        assert connection not in self.used, "one thread at a time uses a connection"
        self.used[connection] = None
        del self.used[connection]
        self._idle.append(connection)

    used: ClassVar[dict[Any, None]] = {}


def test_threads_share_the_connections_to_a_server() -> None:
    url = "http://127.0.0.1:80"
    server = Server(url, Client(url, "", {}))
    race(*[lambda: server.ask("GET", "/", {})] * 4)
    server._idle.clear()  # they are no connections
