"""Defects that were found once, each with the smallest program that showed it."""

from __future__ import annotations

import copy
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import descriptors

from conformance import sources
from penstock import (
    ArrayDataset,
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    UnshippableDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from penstock._engine import pace
from penstock._system.interrupts import LiveObjects
from penstock._system.threads import has_gil


class Late(IterableDataset[Any]):
    """The first sample takes a while, so that the steps after it wait on the board."""

    def __iter__(self) -> Iterator[Any]:
        time.sleep(0.1)
        yield from range(12)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_token_of_an_abandoned_epoch_claims_nothing_of_the_next(method: str) -> None:
    with DataLoader(Late(), num_workers=1, prefetch_factor=4, multiprocessing_context=method) as loader:
        for _ in range(3):
            abandoned: Any = iter(loader)
            abandoned.close()
        assert [batch.item() for batch in loader] == list(range(12))


def test_a_short_stream_is_in_order_in_every_epoch() -> None:
    """What is prefetched beyond the end of a stream is rescinded, and left its tokens behind."""
    with DataLoader(sources.Countdown(3), num_workers=1, prefetch_factor=8) as loader:
        for _ in range(300):
            assert [batch.item() for batch in loader] == [3, 2, 1]


class Blocks(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for value in range(130):
            yield np.full(1 << 20, value, np.uint8)


def test_a_batch_that_fills_its_slab_to_the_last_byte_arrives() -> None:
    with DataLoader(Blocks(), batch_size=64, num_workers=1) as loader:
        for step, batch in enumerate(loader):
            assert (batch[:, 0] == np.arange(64 * step, 64 * step + len(batch))).all()


class Powers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(2, 8))

    def load(self, item: Any) -> Any:
        assert type(item) is int
        return item**70 % 1_000_003


def test_items_of_a_stream_keep_their_type(make: Any) -> None:
    expected = [item**70 % 1_000_003 for item in range(2, 8)]
    assert [value for batch in make(Powers(), batch_size=2) for value in batch.tolist()] == expected


class Echo:
    """Gives back the type and the value of the key that it is asked for."""

    def __getitem__(self, key: Any) -> Any:
        return type(key).__name__, key


@pytest.mark.parametrize(
    "key",
    [7, np.int64(7), -1, 2**70, 3.5, ("a", 1), "name", [1, 2], np.array([1, 2], np.int32), np.array([[1.5]])],
    ids=repr,
)
def test_a_key_keeps_its_type_and_value(make: Any, key: Any) -> None:
    ((kind, value),) = list(make(Echo(), batch_size=None, sampler=[key]))
    assert kind == type(key).__name__ and np.array_equal(value, key)


def test_bulk_loading_through_a_batch_sampler_gives_lists(make: Any) -> None:
    sampler = BatchSampler(SequentialSampler(range(4)), 2, False)
    assert list(make(Echo(), batch_size=None, sampler=sampler)) == [("list", [0, 1]), ("list", [2, 3])]


def stop(*_: Any) -> Any:
    raise StopIteration


def test_stop_iteration_out_of_collate_is_an_error(make: Any) -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(make([1, 2], collate_fn=stop))


def test_stop_iteration_out_of_worker_init_fn_is_an_error(make_concurrent: Any) -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(make_concurrent([1, 2], worker_init_fn=stop))


def test_closing_from_another_thread_wakes_the_one_that_waits(make_concurrent: Any) -> None:
    loader = make_concurrent(sources.Slow(4, {1: 2.0}))
    batches = iter(loader)
    next(batches)
    threading.Timer(0.1, loader.close).start()
    with pytest.raises(RuntimeError, match=r"was closed. Call iter\(loader\)"):
        next(batches)


def test_two_threads_on_one_iterator_are_told(make_concurrent: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bar")
    loader = make_concurrent(sources.Barred(str(tmp_path / "bar")))
    batches = iter(loader)
    next(batches)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(next, batches) for _ in range(2)]
        wait(futures, return_when=FIRST_COMPLETED)  # one is told at once, the other waits for the sample
        (tmp_path / "bar").write_bytes(b"")
        errors = [str(future.exception()) for future in futures if future.exception()]
    assert len(errors) == 1 and "Two threads" in errors[0]


def leave(worker: int) -> None:
    sys.exit(3)


def test_a_worker_thread_that_leaves_at_birth_is_reported() -> None:
    with (
        DataLoader([1], num_workers=1, backend="thread", worker_init_fn=leave) as loader,
        pytest.raises(SystemExit),
    ):
        next(iter(loader))


def test_a_start_that_fails_leaves_no_descriptors() -> None:
    loader = DataLoader([1], num_workers=1, multiprocessing_context="spawn", collate_fn=threading.Lock().acquire)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(UnshippableDataset):
            iter(loader)
    assert len(os.listdir("/proc/self/fd")) == before
    assert loader.epoch == 0


class Pooled:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> Any:
        with ThreadPoolExecutor(1) as pool:
            info = pool.submit(get_worker_info).result()
        return -1 if info is None else info.id


def test_threads_of_a_worker_process_know_their_worker() -> None:
    with DataLoader(Pooled(), num_workers=1) as loader:
        assert [batch.item() for batch in loader] == [0, 0]


@pytest.mark.imports_torch
def test_a_tensor_is_a_dataset(make: Any) -> None:
    torch = pytest.importorskip("torch")
    batches = list(make(torch.arange(6).reshape(3, 2), batch_size=2, multiprocessing_context=None))
    assert [batch.tolist() for batch in batches] == [[[0, 1], [2, 3]], [[4, 5]]]


def test_ragged_and_negative_keys_have_no_index(make: Any) -> None:
    data = {("a", 1): 1, ("b", (2, 3)): 2}
    assert [batch.index for batch in make(data, batch_sampler=[list(data)]).batches()] == [None]
    assert [batch.index for batch in make([5, 6], sampler=[-1]).batches()] == [None]


def test_a_batch_sampler_stands_alone() -> None:
    loader = DataLoader([1, 2], batch_sampler=iter([[0], [1]]))
    assert loader.sampler is None
    with pytest.raises(TypeError, match="list_iterator has no len"):
        len(loader)


def test_any_timeout_can_be_waited_for(make_concurrent: Any) -> None:
    for timeout in (float("inf"), 1e10):
        assert len(list(make_concurrent([1, 2], timeout=timeout))) == 2


@pytest.mark.parametrize("epoch", [2**70, -1, 1.9, "1"])
def test_an_impossible_epoch_is_refused(epoch: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to"):
        DataLoader([1]).set_epoch(epoch)


def test_interrupted_twice_while_closing_leaves_no_worker(tmp_path: Any) -> None:
    program = """
import gc, os, signal, time
import penstock
class Slow:
    def __len__(self): return 9
    def __getitem__(self, key): time.sleep(30 if key else 0); return os.getpid()
loader = penstock.DataLoader(Slow(), num_workers=2)
batches = iter(loader)
pids = {next(batches).item()}
backend = next(iter(loader._session.engines.live)).backend
workers = [os.pidfd_open(process.pid) for process in backend._workers.values()]
assert len(workers) == 2
interrupts = [1, 2]
def close():
    interrupts.pop()
    if not interrupts:
        del backend.close
    raise KeyboardInterrupt
backend.close = close
try:
    loader.close()
except KeyboardInterrupt:
    assert not interrupts
    print("interrupted")
import select
for fd in workers:
    poller = select.poll(); poller.register(fd, select.POLLIN)
    assert poller.poll(5000)
print("gone")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("interrupted\ngone\n", "")


class Trainer:
    """Holds its loader, whose job holds it."""

    def __init__(self, make: Any) -> None:
        self.loader = make([1, 2, 3], collate_fn=self.collate)

    def collate(self, samples: list[int]) -> list[int]:
        return samples


def test_a_loader_that_its_own_job_refers_to_is_freed() -> None:
    for workers, method in ((0, None), (1, "fork"), (1, "spawn")):
        trainer = Trainer(partial(DataLoader, num_workers=workers, multiprocessing_context=method))
        next(iter(trainer.loader))
        gone = weakref.ref(trainer.loader)
        del trainer
        gc.collect()
        assert gone() is None  # and the fixture finds nothing left behind


def test_an_interrupt_right_after_the_iterator_was_taken_does_not_lock_it(make: Any) -> None:
    iterator = iter(make(list(range(9)), batch_size=1))
    turn = iterator._engine._turn

    def interrupted(hold: Any) -> None:
        del turn.take
        turn.take(hold)
        raise KeyboardInterrupt

    turn.take = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator)[0] == 0


def test_a_close_that_was_interrupted_can_be_done_again(make_processes: Any) -> None:
    loader = make_processes(list(range(9)))
    iterator = iter(loader)
    next(iterator)
    backend = iterator._engine.backend
    real = backend._launchers[0].close

    def interrupted() -> None:
        backend._launchers[0].close = real
        raise KeyboardInterrupt

    backend._launchers[0].close = interrupted
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    loader.close()


def test_a_state_with_many_steps_beyond_can_be_resumed() -> None:
    loader = DataLoader(range(5000), seed=1)
    loader.load_state_dict({**loader.state_dict(), "beyond": [[1, 4000]]})
    assert len(list(loader)) == 1 + 999


def test_steps_are_not_bundled_where_they_have_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SECONDS", 10.0)
    with DataLoader(range(200), num_workers=1, timeout=50) as loader:
        iterator = iter(loader)
        for _ in iterator:
            assert not iterator._engine._course.ready  # type: ignore[attr-defined]


def test_an_array_may_be_a_batch_sampler_of_a_loader_with_a_state() -> None:
    loader = DataLoader(range(9), batch_sampler=np.array([[1, 2], [3, 4]]))
    assert loader.state_dict()["about"]["order"] == "ndarray"


def test_a_batch_that_a_forked_child_has_too_is_not_used_again(make_processes: Any) -> None:
    go, told = os.pipe()
    answer, answered = os.pipe()
    loader = make_processes([np.full(1000, i) for i in range(200)], batch_size=2)
    batches = iter(loader)
    batch = next(batches)
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.read(go, 1)
        os.write(answered, b"y" if batch[:, 0].tolist() == [0, 1] else b"n")
        os._exit(0)
    del batch
    for _ in batches:
        pass
    os.write(told, b"x")
    assert os.read(answer, 1) == b"y"
    os.waitpid(pid, 0)
    for fd in (go, told, answer, answered):
        os.close(fd)


def test_memory_that_a_forked_child_had_too_is_used_again_when_the_child_has_ended(make_processes: Any) -> None:
    loader = make_processes([np.full(125_000, i) for i in range(8)], batch_size=1)
    for _ in range(100):
        batches = iter(loader)
        batch = next(batches)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        for other in batches:
            del other
        del batch
    assert loader.stats().memory.pooled < 50_000_000  # 20 MB without a fork; each round would take 1 MB for good
    loader.close()


def test_memory_is_not_used_again_while_a_grandchild_may_read_it(make_processes: Any) -> None:
    (go, told), (answer, answered) = os.pipe(), os.pipe()
    loader = make_processes([np.full(1000, i) for i in range(200)], batch_size=2)
    batches = iter(loader)
    batch = next(batches)
    pid = os.fork()
    if pid == 0:
        os.close(told)
        if os.fork() == 0:
            os.read(go, 1)
            os.write(answered, b"y" if batch[:, 0].tolist() == [0, 1] else b"n")
        os._exit(0)
    os.waitpid(pid, 0)
    del batch
    for _ in batches:
        pass
    os.write(told, b"x")
    assert os.read(answer, 1) == b"y"
    for fd in (go, told, answer, answered):
        os.close(fd)


@pytest.mark.parametrize(
    "order", [("fork", "close"), ("close", "fork"), ("drop", "fork", "close"), ("fork", "drop", "close")]
)
def test_a_closed_loader_keeps_no_descriptor_for_a_fork(order: tuple[str, ...], make_processes: Any) -> None:
    before = descriptors()
    loader = make_processes(range(8))
    batches = iter(loader)
    held = [next(batches)]
    for act in order:
        if act == "drop":
            held.clear()
        elif act == "close":
            loader.close()
        elif (pid := os.fork()) == 0:
            os._exit(0)
        else:
            os.waitpid(pid, 0)
    assert descriptors() == before
    with pytest.raises(RuntimeError, match="was closed"):
        next(batches)


def watch_with(live: LiveObjects[Any], engines: Any) -> None:
    """Makes `live` the set of live engines. Keeps no reference to them."""
    for engine in engines.live:
        live.add(engine)
    engines.live = live


def test_a_reader_that_is_freed_while_the_loader_closes_brings_nothing_back(make_concurrent: Any) -> None:
    """A collection of garbage may run at any line of close(), and free the reader of an epoch that was left."""
    loader = make_concurrent(range(8))
    readers = [iter(loader)]
    next(readers[0])

    class Live(LiveObjects[Any]):
        def __iter__(self) -> Any:
            readers.clear()  # as the collection would
            return super().__iter__()

    watch_with(Live(), loader._session.engines)
    loader.close()
    assert not loader._session.engines._idle


class Own:
    """A sampler as users write them."""

    def __iter__(self) -> Iterator[int]:
        keys = list(range(12))
        random.shuffle(keys)
        return iter(keys)

    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize(
    "order",
    [
        {"sampler": Own(), "batch_size": 3},
        {"sampler": WeightedRandomSampler([1.0] * 12, 12, replacement=False), "batch_size": 3},
        {"sampler": SubsetRandomSampler(np.arange(12, dtype=np.uint32)), "batch_size": 3},
        {"sampler": SubsetRandomSampler(list(np.arange(12))), "batch_size": 3},
        {"batch_sampler": BatchSampler(RandomSampler(range(12)), 3, False)},
    ],
    ids=["own", "weighted", "unsigned", "numpy's integers", "batches"],
)
def test_what_a_sampler_draws_is_a_function_of_the_seed(make: Any, order: dict[str, Any]) -> None:
    def epochs(loader: Any, count: int) -> list[list[list[int]]]:
        return [[batch.tolist() for batch in loader] for _ in range(count)]

    random.seed(1)
    whole = epochs(make(range(12), seed=5, **order), 2)
    random.seed(2)
    stopped = make(range(12), seed=5, **order)
    stopped.set_epoch(1)
    next(iter(stopped))
    resumed = make(range(12), seed=5, **order)
    resumed.load_state_dict(stopped.state_dict())
    assert epochs(resumed, 1) == [whole[1][1:]]
    assert whole[0] != whole[1]


class Bumped:
    count = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> int:
        return self.count

    def bump(self) -> None:
        self.count += 1


def test_a_worker_that_dies_before_an_update_is_replaced_by_one_that_has_it_once(make_processes: Any) -> None:
    loader = make_processes(Bumped(), batch_size=2)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 0]
    for worker in loader.workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    loader.update(Bumped.bump)
    assert {value for batch in batches for value in batch.tolist()} == {1}


def test_an_update_that_cannot_be_sent_changes_nothing(make_processes: Any) -> None:
    dataset = Bumped()
    loader = make_processes(dataset, batch_size=4)
    batches = iter(loader)
    next(batches)
    with pytest.raises(TypeError):
        loader.update(count=threading.Lock())
    assert dataset.count == 0
    assert [batch.tolist() for batch in batches] == [[0] * 4] * 2


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_keys_may_be_of_classes_that_only_the_program_itself_has(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import dataclasses, penstock
@dataclasses.dataclass(frozen=True)
class Key:
    number: int
class Drawn(penstock.Dataset):
    def __getitem__(self, key):
        return key.number + float(penstock.rng().random())
if __name__ == "__main__":
    keys = [Key(i) for i in range(4)]
    inline = [batch.tolist() for batch in penstock.DataLoader(Drawn(), 2, sampler=keys, seed=1)]
    workers = {{"num_workers": 1, "multiprocessing_context": {method!r}}}
    with penstock.DataLoader(Drawn(), 2, sampler=keys, seed=1, **workers) as loader:
        assert [batch.tolist() for batch in loader] == inline
""")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("closed", "method"),
    [
        *((closed, "fork") for closed in range(3)),
        (0, "spawn"),
        # Its template has its streams as a worker of spawn has them.
        (2, "forkserver"),
        *(
            pytest.param(closed, method, marks=pytest.mark.wide)
            for closed, method in [(1, "spawn"), (2, "spawn"), (0, "forkserver"), (1, "forkserver")]
        ),
    ],
)
def test_a_standard_stream_that_is_closed_is_no_memory_of_ours(tmp_path: Path, closed: int, method: str) -> None:
    """A slab got its number, which a new process has for its input, and a C library writes its warnings to."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, sys
import numpy as np
import penstock
class Warns:
    def __len__(self): return 40
    def __getitem__(self, key):
        if {closed}: os.write({closed}, b"Corrupt JPEG data")
        return np.full(8, key)
if __name__ == "__main__":
    with penstock.DataLoader(Warns(), batch_size=4, num_workers=1, multiprocessing_context="{method}") as loader:
        batches = [batch.copy() for batch in loader]
    right = np.array_equal(np.concatenate(batches), np.repeat(np.arange(40), 8).reshape(40, 8))
    os._exit(0 if right else 1)
""")
    sign = "<&-" if closed == 0 else f"{closed}>&-"
    done = subprocess.run(["sh", "-c", f'exec "$0" "$1" {sign}', sys.executable, program])
    assert done.returncode == 0


class Half:
    """A wrapper: samples of its own, and whatever else it is asked for is the inner dataset's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: int) -> Any:
        return self.inner[key] / 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


@pytest.mark.parametrize("wrap", [ArrayDataset, lambda rows: Subset(rows, range(8))])
def test_a_wrapper_is_not_passed_by(wrap: Any) -> None:
    wrapped = Half(wrap(np.arange(0, 80, 10.0)))
    for dataset in (wrapped, Subset(wrapped, range(8))):
        (batch,) = DataLoader(dataset, batch_size=8)
        assert batch.tolist() == [key * 5.0 for key in range(8)]


def test_a_copy_of_a_loader_goes_on_by_itself() -> None:
    loader: DataLoader[Any] = DataLoader(range(8), shuffle=True, seed=1)
    list(loader)
    twin = copy.copy(loader)
    batches = iter(twin)
    next(batches)
    assert (loader.epoch, twin.epoch) == (0, 1)
    assert loader.state_dict()["steps"] == 0 and twin.state_dict()["steps"] == 1
    stream: DataLoader[Any] = DataLoader(sources.Countdown(3), num_workers=1, backend="thread")
    other = copy.copy(stream)
    other.num_workers = 2
    assert (stream.num_workers, other.num_workers) == (1, 2)


def test_a_number_of_workers_that_is_refused_changes_nothing() -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            with pytest.raises(RuntimeError, match="from inside of its own next"):
                loader.num_workers = 3
            yield from range(4)

    class Late:
        def __iter__(self) -> Iterator[int]:
            yield from range(8)
            yield from Sampler()

    loader: DataLoader[Any] = DataLoader(range(8), sampler=Late(), num_workers=2, backend="thread")
    with loader:
        assert len(list(loader)) == 12
        assert loader.num_workers == 2


class Held:
    """Each worker waits for its own event."""

    def __init__(self) -> None:
        self.go = [threading.Event(), threading.Event()]
        self.busy = threading.Semaphore(0)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, key: int) -> int:
        info = get_worker_info()
        assert info is not None
        self.busy.release()
        self.go[info.id].wait()
        return key


def test_a_thread_may_leave_while_the_loader_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())  # a slow sample of an earlier test may still be at work
    dataset = Held()
    loader: DataLoader[Any] = DataLoader(dataset, num_workers=2, backend="thread")
    batches = iter(loader)
    for _ in range(2):
        dataset.busy.acquire()
    loader.num_workers = 1
    join = threading.Thread.join

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        dataset.go[int(thread.name[-1])].set()
        join(thread, 10)

    monkeypatch.setattr(threading.Thread, "join", joined)
    loader.close()
    assert set(threading.enumerate()) <= before
    del batches


@pytest.fixture
def no_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name == "penstock-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)


@pytest.mark.usefixtures("no_second_thread")
def test_a_thread_that_could_not_be_started_is_not_waited_for() -> None:
    loader: DataLoader[Any] = DataLoader(range(8), num_workers=1, backend="thread")
    batches = iter(loader)
    next(batches)
    loader.num_workers = 2
    with pytest.warns(RuntimeWarning, match="can't start new thread"):
        assert [batch.item() for batch in batches] == list(range(1, 8))
    loader.close()
    first: DataLoader[Any] = DataLoader(range(8), num_workers=2, backend="thread")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        iter(first)


@pytest.mark.usefixtures("no_second_thread")
def test_an_engine_whose_worker_could_not_be_started_needs_no_garbage_collector() -> None:
    gc.disable()
    try:
        loader: DataLoader[Any] = DataLoader(range(8), num_workers=1, backend="thread")
        batches = iter(loader)
        next(batches)
        loader.num_workers = 2
        (engine,) = map(weakref.ref, loader._session.engines.all())
        del loader, batches
        assert engine() is None
    finally:
        gc.enable()


class Broken(Exception):
    pass


class Gathered:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> int:
        return key

    def __gather__(self, keys: Any, empty: Any) -> Any:
        raise Broken


class Listed(Gathered):
    __gather__ = None  # type: ignore[assignment]

    def __getitems__(self, keys: Any) -> Any:
        raise Broken


@pytest.mark.skipif(not has_gil(), reason="without the GIL, a thread that runs again frees what it has made")
@pytest.mark.parametrize("dataset", [Gathered, Listed])
def test_an_error_of_a_batch_needs_no_garbage_collector(dataset: Any) -> None:
    gc.disable()
    try:
        with DataLoader(dataset(), num_workers=1, backend="thread") as loader:
            batches = iter(loader)
            error = None
            try:
                next(batches)
            except Broken as broken:
                error = weakref.ref(broken)
            assert error is not None and error() is None
    finally:
        gc.enable()


def test_an_epoch_of_a_known_order_leaves_nothing_to_the_garbage_collector() -> None:
    loader: DataLoader[Any] = DataLoader(range(4))
    for _ in range(3):
        list(loader)
        loader._session.measures.tick()  # twice a second; the first ones import what they need
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            list(loader)
        loader._session.measures.tick()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_forked_child_drops_a_loader_that_another_thread_was_using() -> None:
    """That thread is not there in the child, and lets go of nothing."""
    loader: DataLoader[Any] = DataLoader(range(8), num_workers=1, backend="thread")
    batches = iter(loader)
    next(batches)
    (engine,) = loader._session.engines.all()
    has_it, end = threading.Event(), threading.Event()

    def use() -> None:
        with engine._turn.changes.lock:
            has_it.set()
            end.wait()

    thread = threading.Thread(target=use)
    thread.start()
    has_it.wait()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        del engine, batches, loader
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    end.set()
    thread.join()
    loader.close()


def test_update_and_close_while_another_thread_begins_an_epoch() -> None:
    loader: DataLoader[Any] = DataLoader(range(8))
    batches = iter(loader)

    class Live(LiveObjects[Any]):
        def __iter__(self) -> Any:
            for number, engine in enumerate(super().__iter__()):
                if not number and len(begun) < 2:
                    begun.append(True)  # first: an epoch that is begun looks here too
                    others.append(iter(loader))  # as another thread would
                yield engine

    begun: list[bool] = []
    others: list[Any] = []
    watch_with(Live(), loader._session.engines)
    loader.update(lambda dataset: None)
    assert len(others) == 2 and next(batches).item() == 0
    loader.close()


def test_ctrl_c_while_a_thread_starts_is_no_failure_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        start(thread)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as threading.Condition does between two of its lines
            raise RuntimeError("cannot release un-acquired lock") from None

    with DataLoader(range(8), num_workers=1, backend="thread") as loader:
        batches: Any = iter(loader)
        next(batches)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", started)
            with pytest.raises(KeyboardInterrupt):
                loader.num_workers = 2
        with pytest.raises(RuntimeError, match="was ended by KeyboardInterrupt"):
            next(batches)
        assert [batch.item() for batch in loader] == list(range(8))


class Refusing:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, key: int) -> Any:
        if key == 33:
            raise ValueError("bad")
        return np.full(7, key + self.more, np.float32)

    more = 0


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "backend": "thread"}, {"num_workers": 1}], ids=repr)
def test_an_iterator_that_the_garbage_collector_frees_leaves_its_loader_sound(settings: dict[str, Any]) -> None:
    """Its error's traceback and the iterator are a cycle: weak references are called before `__del__`."""
    with DataLoader(Refusing(), seed=1, **settings) as loader:
        for number in range(6):
            batches = iter(loader)
            loader.update(more=number)
            got = []
            try:
                for batch in batches:
                    got.append(batch)  # noqa: PERF402 - what came before the error is kept
            except ValueError as error:
                kept: Any = error
                kept.cycle = [batches, kept]
            found = np.concatenate(got)
            del batches, kept, got, batch
            gc.collect()
            assert np.array_equal(found, [np.full(7, key + number) for key in range(33)])
            idle = [*loader._session.engines._idle]
            assert all(engine in loader._session.engines.live for engine in idle)  # so that an update reaches it
            del idle
