"""Laws that no test held a loader to until bugs were planted (see tests/planted): each of these found one."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same import same

from penstock import DataLoader, Dataset, IterableDataset, rng
from penstock._system.threads import has_gil


class Arrays(Dataset[Any]):
    """Sample i is an array full of i, too large to be bundled. Every `bad`-th sample raises."""

    def __init__(self, n: int, bad: int = 0) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if self.bad and key % self.bad == 0:
            raise ValueError(key)
        return np.full(600_000, key)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def mapped(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(f"memfd:{name}")


@pytest.mark.parametrize("make", ["inline", "thread-2", "fork-2"], indirect=True)
def test_memory_of_steps_that_failed_is_used_again(make: Any) -> None:
    loader = make(Arrays(80, bad=2))
    batches, places, failed = iter(loader), set(), 0
    while True:
        try:
            places.add(address(next(batches)))
        except ValueError:
            failed += 1
        except StopIteration:
            break
    assert failed == 40
    assert len(places) <= (2 if has_gil() else 6) * loader.num_workers + 4  # without the GIL: see decision 0057


def test_memory_that_is_lent_while_a_worker_is_forked_comes_back() -> None:
    with DataLoader(Arrays(160), num_workers=2, multiprocessing_context="fork") as loader:
        pids, places = set(), set()
        for step, batch in enumerate(loader):
            places.add(address(batch))
            pids.update(worker.pid for worker in loader.workers)
            if step % 10 == 5:
                loader.workers[step // 10 % 2].kill()
    assert len(pids) > 10  # so many were replaced, while a batch was lent
    assert len(places) <= 2 * 2 + 4


class Stepped(Dataset[Any]):
    """Small samples first, and then large ones."""

    def __init__(self, n: int, small: int, sizes: tuple[int, int]) -> None:
        self.n = n
        self.small = small
        self.sizes = sizes

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return np.full(self.sizes[key >= self.small], key)


def test_memory_grows_with_the_batches() -> None:
    # With a timeout nothing is bundled: each batch has a slab of its own.
    dataset = Stepped(240, 100, (1000, 100_000))
    with DataLoader(dataset, num_workers=2, multiprocessing_context="fork", timeout=60) as loader:
        batches = iter(loader)
        kept = [next(batches) for _ in range(60)]  # in as many slabs, which have room for small batches
        kept.clear()
        for step, batch in enumerate(batches, 60):
            assert (batch == step).all()
            if step >= 180:
                assert not mapped("penstock-stray"), "a batch that has no room in its slab"


def test_a_batch_that_has_no_room_in_its_slab_holds_no_descriptor() -> None:
    dataset = Stepped(1200, 600, (1, 20_000))  # small enough to be bundled, until they grow
    with DataLoader(dataset, num_workers=1, multiprocessing_context="fork") as loader:
        kept = list(loader)
        assert all((batch == step).all() for step, batch in enumerate(kept))
        assert mapped("penstock-stray")
        targets = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
        assert not [target for target in targets if "penstock-stray" in target]


class Deadly(Stepped):
    """Its worker dies at these samples, once at each: in a bundle of which batches without room were sent already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1200, 600, (1, 20_000))
        self.folder = folder

    def __getitem__(self, key: int) -> Any:
        if key in (602, 640, 650) and not (self.folder / str(key)).exists():
            (self.folder / str(key)).touch()
            os._exit(1)
        return super().__getitem__(key)


def test_what_a_dead_worker_sent_of_its_bundle_is_closed_with_the_loader(tmp_path: Path) -> None:
    with DataLoader(Deadly(tmp_path), num_workers=1, multiprocessing_context="fork") as loader:
        kept = list(loader)  # so that slabs are new, and have room for small batches only
        assert [int(batch[0, 0]) for batch in kept] == list(range(1200))
    assert len(list(tmp_path.iterdir())) == 3  # and the fixture finds nothing left behind


_LAST_WORDS = """
import os, signal, sys, time
from pathlib import Path
import penstock

PARENT, ASKED, DIED = os.getpid(), *map(Path, sys.argv[1:])

def wait_for_parent(state):
    while Path(f"/proc/{PARENT}/stat").read_text().split()[2] != state:
        time.sleep(0.001)

class Numbers:
    def __len__(self):
        return 40
    def __getitem__(self, key):
        if key == 19 and not DIED.exists():
            os.write = last_words  # for the reply of the next step: a worker looks it up before it begins a step
        if key == 20 and not DIED.exists():
            DIED.touch()
            while not ASKED.exists():
                time.sleep(0.001)
            wait_for_parent("S")
        return key

def last_words(fd, reply, write=os.write):
    os.kill(PARENT, signal.SIGSTOP)
    wait_for_parent("T")
    write(fd, reply)
    worker = os.getpid()
    if os.fork() == 0:
        while os.getppid() == worker:
            time.sleep(0.001)
        os.kill(PARENT, signal.SIGCONT)
    os._exit(0)

found = []
# With a timeout nothing is bundled: each step has a reply of its own.
with penstock.DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork", timeout=60) as loader:
    batches = iter(loader)
    while len(found) < 40:
        if len(found) == 20:
            ASKED.touch()
        found.append(next(batches).item())
print(found == list(range(40)), DIED.exists())
"""


def test_the_last_reply_of_a_dead_worker_counts(tmp_path: Path) -> None:
    """The consumer, which waits for it, is stopped meanwhile: it learns of the reply and of the death at once."""
    command = [sys.executable, "-c", _LAST_WORDS, str(tmp_path / "asked"), str(tmp_path / "died")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True True\n", "")


@pytest.mark.parametrize("make", ["inline", "fork-2"], indirect=True)
def test_steps_that_were_handed_out_early_do_not_come_again_in_bundles(make: Any) -> None:
    n = 3000
    loader = make(range(n), seed=1)
    early = list(range(1, n, 3))
    loader.load_state_dict({**loader.state_dict(), "beyond": [[step, step] for step in early]})
    assert [batch.step for batch in loader.batches()] == sorted({*range(n)} - {*early})


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> Any:
        return key, rng().random()


@pytest.mark.parametrize("make", ["inline", "thread-2", "fork-2"], indirect=True)
def test_workers_have_the_seed_of_the_state_that_was_loaded(make: Any) -> None:
    first = DataLoader(Drawn(), 4, shuffle=True)
    batches = iter(first)
    next(batches)
    state, rest = first.state_dict(), list(batches)
    second = make(Drawn(), 4, shuffle=True)
    assert not same(list(second), rest)  # its workers live, and have another seed
    second.load_state_dict(state)
    assert same(list(second), rest)


class Buffered(IterableDataset[Any]):
    """Shuffles in a buffer: what it draws for one sample decides which samples come later."""

    def __iter__(self) -> Iterator[Any]:
        buffer: list[int] = []
        for item in range(40):
            buffer.append(item)
            if len(buffer) == 8:
                yield buffer.pop(random.randrange(8))
        yield from buffer


@pytest.mark.parametrize("make", ["inline", "fork-2"], indirect=True)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_stream_that_shuffles_in_a_buffer_is_one_stream_for_all_ranks(make: Any, world: int) -> None:
    alone = [batch.tolist() for batch in DataLoader(Buffered(), 2, seed=3)]
    items = [item for batch in alone for item in batch]
    assert sorted(items) == list(range(40)) != items
    for rank in range(world):
        loader = make(Buffered(), 2, seed=3, shard=(rank, world), last_batch="keep")
        assert [batch.tolist() for batch in loader] == alone[rank::world]


@pytest.mark.parametrize("make", ["inline", "fork-2"], indirect=True)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_stream_that_shuffles_in_a_buffer_is_resumed(make: Any) -> None:
    whole = [batch.tolist() for batch in DataLoader(Buffered(), 2, seed=3)]
    loader = make(Buffered(), 2, seed=3)
    for stop in (1, 2, 9):
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in loader] == whole[stop:]


def close_interrupted(method: str, times: int) -> None:
    """Ctrl-C comes each of the first `times` times that the end of the worker is waited for."""
    loader = DataLoader(list(range(9)), num_workers=1, multiprocessing_context=method)
    batches = iter(loader)
    next(batches)
    (worker,) = loader.workers
    left = list(range(times))

    def interrupted(timeout: float | None = None) -> None:
        left.pop()
        if not left:
            del worker.join
        raise KeyboardInterrupt

    worker.join = interrupted
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    del batches, loader
    gc.collect()
    assert not left and not worker.is_alive()  # and the fixture finds nothing left behind


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_a_loader_whose_close_was_interrupted(method: str) -> None:
    close_interrupted(method, 1)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("times", [2, 3, 4])
def test_workers_end_with_a_loader_whose_close_was_interrupted_again(method: str, times: int) -> None:
    close_interrupted(method, times)


@pytest.mark.parametrize("make", ["fork-2", "forkserver-2"], indirect=True)
@pytest.mark.parametrize("whole", [True, False])
def test_workers_that_are_not_persistent_end_with_their_epoch(make: Any, whole: bool) -> None:
    loader = make(list(range(9)), persistent_workers=False)
    batches = iter(loader)
    next(batches)
    workers = loader.workers
    assert len(workers) == 2
    if whole:
        assert len(list(batches)) == 8
    else:
        batches.close()
    assert not loader.workers and not any(worker.is_alive() for worker in workers)


def test_worker_threads_end_with_their_loader() -> None:
    before = set(threading.enumerate())
    with DataLoader(list(range(9)), num_workers=2, backend="thread") as loader:
        assert len(list(loader)) == 9
        workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
