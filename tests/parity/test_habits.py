"""What programs rely on although no documentation of torch's promises it: handles, words, moments."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch.utils.data import Dataset, IterableDataset

from parity import sources
from parity.pair import Ours, Tape, Theirs, begin, both, forget_frames, take

Seeded = partial(Ours, seed=1)
LOADERS = {"torch": Theirs, "penstock.torch": Ours, "penstock.torch with a seed": Seeded}


@pytest.fixture(autouse=True)
def torch_puts_its_queues_away() -> Iterator[None]:
    yield
    if any(thread.name == "QueueFeederThread" for thread in threading.enumerate()):
        gc.collect()
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":
                thread.join(10)


@pytest.mark.parametrize("loader_class", LOADERS.values(), ids=LOADERS)
def test_handles_tell_of_workers_that_have_ended(loader_class: Any) -> None:
    batches = iter(loader_class(range(8), num_workers=2))
    next(batches)
    children = {child.pid for child in multiprocessing.active_children()}
    assert {worker.pid for worker in batches._workers} <= children
    before = [worker.pid for worker in batches._workers]
    for _ in batches:
        pass
    assert len(batches._workers) == 2
    for worker, pid in zip(batches._workers, before, strict=True):
        assert worker.join(20) is None
        assert (worker.pid, worker.ident, worker.exitcode, worker.is_alive()) == (pid, pid, 0, False)
        assert worker.daemon and "Process-" in worker.name and worker.name in repr(worker)
        assert worker.authkey == multiprocessing.current_process().authkey
        assert wait([worker.sentinel], 0) == [worker.sentinel]
        assert worker not in multiprocessing.active_children()
        assert isinstance(worker, multiprocessing.process.BaseProcess)
        worker.terminate()  # of a dead process these do nothing
        worker.kill()
        worker.close()


@pytest.mark.parametrize("loader_class", LOADERS.values(), ids=LOADERS)
def test_a_worker_that_runs_can_be_watched_and_not_closed(loader_class: Any) -> None:
    batches = iter(loader_class(range(8), num_workers=2, persistent_workers=True))
    list(batches)
    [first, second] = batches._workers
    assert wait([first.sentinel, second.sentinel], 0) == []
    with pytest.raises(ValueError, match=r"while it (is still running|runs)"):
        first.close()
    second.terminate()
    assert wait([first.sentinel, second.sentinel], 20) == [second.sentinel]
    second.join()
    assert first.exitcode is None and second.exitcode in (0, -signal.SIGTERM)  # torch's exit quietly
    assert first in multiprocessing.active_children() and second not in multiprocessing.active_children()


class Told(Dataset[Any]):
    """Tells of the process that it is in."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        process, parent = multiprocessing.current_process(), multiprocessing.parent_process()
        assert process.pid == os.getpid() and process.name != "MainProcess" and parent is not None
        key_is_ours = process.authkey == multiprocessing.process.AuthenticationString(process.authkey)
        return process.daemon, process.is_alive(), parent.pid, parent.name, parent.is_alive(), key_is_ours


def test_a_worker_knows_that_it_is_one() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        take(begin(loader_class(Told(), None, num_workers=2, collate_fn=sources.identity), tape), tape)

    assert any(event == ("batch", (True, True, os.getpid(), "MainProcess", True, True)) for event in both(program))


# A worker that dies


class Deadly(Dataset[Any]):
    def __init__(self, death: int) -> None:
        self.death = death

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> int:
        if key == 3:
            faulthandler.disable()  # pytest's
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(self.death) if self.death >= 0 else os.kill(os.getpid(), -self.death)
        return key


DEATHS = [7, *(-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGKILL, signal.SIGABRT))]


def lost(loader_class: Any, death: int) -> tuple[list[int], RuntimeError]:
    batches = iter(loader_class(Deadly(death), num_workers=2))
    pids = [worker.pid for worker in batches._workers]
    with pytest.raises(RuntimeError) as caught:
        list(batches)
    return pids, caught.value


def words(pid: int, death: int) -> list[str]:
    """torch's first line, and the line that its signal handler raises."""
    said = f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {death}."
    if death < 0:
        said = f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(-death)}."
    if death == -signal.SIGBUS:
        said += " It is possible that dataloader's workers are out of shared memory."
    return [f"DataLoader worker (pid(s) {pid}) exited unexpectedly", said]


@pytest.mark.wide  # afterwards torch waits for five seconds
def test_torch_says_these_words() -> None:
    pids, error = lost(Theirs, -signal.SIGSEGV)
    said = f"{error}\n{error.__cause__}\n{error.__context__}"
    assert any(word in said for pid in pids for word in words(pid, -signal.SIGSEGV))
    forget_frames(error)


@pytest.mark.parametrize("death", DEATHS)
def test_the_message_of_a_dead_worker_has_torchs_words(death: int) -> None:
    pids, error = lost(Ours, death)
    assert str(error).startswith(words(pids[1], death)[0])
    assert all(word in str(error) for word in words(pids[1], death)), error
    assert "worker 1" in str(error) and "[3]" in str(error)
    forget_frames(error)


def test_with_a_seed_a_step_that_kills_every_worker_is_reported_in_the_same_words() -> None:
    _, error = lost(Seeded, -signal.SIGSEGV)
    last = str(error).split("(pid ")[1].split(")")[0]
    assert all(word in str(error) for word in words(int(last), -signal.SIGSEGV)), error
    forget_frames(error)


class Gated(Dataset[Any]):
    """The samples of a key from `first` on wait for a byte in the pipe."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.gate = os.pipe()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> int:
        if key >= self.first:
            os.read(self.gate[0], 1)
        return key


@pytest.fixture
def gated() -> Iterator[Callable[[int], Gated]]:
    made: list[Gated] = []

    def make(first: int) -> Gated:
        made.append(Gated(first))
        return made[-1]

    yield make
    for one in made:
        for fd in one.gate:
            os.close(fd)


def end(worker: Any) -> None:
    """Kills it, and waits until it is dead, without its handle."""
    pidfd = os.pidfd_open(worker.pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    select.select([pidfd], [], [], 20)
    os.close(pidfd)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_in_the_training_step_is_told_by_the_next_call_although_batches_are_ready(
    gated: Callable[[int], Gated], victim: int
) -> None:
    batches = iter(Ours(gated(100), num_workers=2, prefetch_factor=4))
    for _ in range(3):
        next(batches)
    end(batches._workers[victim])
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        next(batches)


def test_a_death_is_told_by_a_call_that_waits_for_another_worker(gated: Callable[[int], Gated]) -> None:
    batches = iter(Ours(gated(2), num_workers=2, prefetch_factor=1))
    next(batches), next(batches)
    end(batches._workers[1])  # the other one is in sample 2 for ever
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        next(batches)


def test_the_death_of_a_persistent_worker_between_epochs_is_told_by_iter() -> None:
    loader = Ours(range(8), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    list(batches)
    end(batches._workers[1])
    with pytest.raises(RuntimeError, match="is killed by signal: Killed"):
        iter(loader)
    assert len(list(loader)) == 8  # with new workers


# Streams that end one after the other


class Uneven(IterableDataset[Any]):
    """Worker 0 has one batch, the others wait for a byte before each of theirs."""

    def __init__(self, gate: tuple[int, int]) -> None:
        self.gate = gate

    def __iter__(self) -> Iterator[int]:
        if sources.whoami() == 0:
            yield 0
            return
        for key in range(4):
            os.read(self.gate[0], 1)
            yield key


@pytest.mark.parametrize("loader_class", [Theirs, Ours], ids=["torch", "penstock.torch"])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_worker_of_a_stream_that_has_ended_goes_while_others_work(loader_class: Any, persistent: bool) -> None:
    gate = os.pipe()
    batches = iter(loader_class(Uneven(gate), None, num_workers=2, persistent_workers=persistent))
    os.write(gate[1], b"..")
    got = [next(batches) for _ in range(3)]  # the third was waited for after the first stream's end
    assert len(got) == 3
    first, second = batches._workers
    first.join(0.2 if persistent else 20)
    assert (first.exitcode, first.is_alive()) == ((None, True) if persistent else (0, False))
    assert second.is_alive()
    os.write(gate[1], b"..")
    assert [int(key) for key in batches] == [2, 3]
    assert len(batches._workers) == 2 and batches._workers[0] is first
    del batches, first, second
    for fd in gate:
        os.close(fd)


def test_a_worker_that_is_killed_while_it_goes_disturbs_nobody() -> None:
    gate = os.pipe()
    batches = iter(Ours(Uneven(gate), None, num_workers=2))
    os.write(gate[1], b"..")
    assert sorted(int(next(batches)) for _ in range(3)) == [0, 0, 1]
    batches._workers[0].kill()
    os.write(gate[1], b"..")
    assert [int(key) for key in batches] == [2, 3]
    for fd in gate:
        os.close(fd)


# Shared memory


def shown(batch: Any) -> list[torch.Tensor]:
    return [*batch[0].values(), batch[1], batch[2]]


class Kinds(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        return {"x": torch.full((3,), float(key)), "n": key}, torch.ones(2, dtype=torch.bfloat16), np.arange(3)


@pytest.mark.parametrize("loader_class", LOADERS.values(), ids=LOADERS)
def test_tensors_from_workers_are_shared(loader_class: Any) -> None:
    for workers in (1, 0):
        batch = next(iter(loader_class(Kinds(), 2, num_workers=workers)))
        assert [tensor.is_shared() for tensor in shown(batch)] == [workers > 0] * 4
    batch = next(iter(loader_class(Kinds(), 2, num_workers=1)))
    tensor = batch[0]["x"]
    assert tensor[0].is_shared() and tensor.T.is_shared() and tensor.untyped_storage().is_shared()
    assert not tensor.clone().is_shared() and not (tensor + 1).is_shared()
    tensor += 1
    assert tensor.tolist() == [[1, 1, 1], [2, 2, 2]]


def double(received: Any, told: Any) -> None:
    tensor = received.get()
    tensor *= 2
    told.put(tensor.sum().item())


@pytest.mark.parametrize("loader_class", LOADERS.values(), ids=LOADERS)
@pytest.mark.usefixtures("tensors_are_sent")
def test_a_batch_can_be_sent_on_and_both_processes_see_what_the_other_writes(loader_class: Any) -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, told = context.Queue(), context.Queue()
    process = context.Process(target=double, args=(queue, told))
    process.start()
    batches = iter(loader_class(Kinds(), 2, num_workers=1))
    batch = next(batches)
    tensor = batch[0]["x"]
    tensor += 1
    queue.put(tensor)
    assert told.get(timeout=20) == 18
    assert tensor.tolist() == [[2, 2, 2], [4, 4, 4]] and tensor.is_shared()
    process.join(20)
    queue.close(), told.close()
    queue.join_thread()
    assert next(batches)[0]["x"].tolist() == [[2, 2, 2], [3, 3, 3]]


# Errors before the first batch


def fail_in_worker(worker: int) -> None:
    if worker == 1:
        raise KeyError(f"worker {worker} does not like it")


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_in_worker_init_fn_comes_out_in_the_place_of_the_workers_first_batch(persistent: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        options: Any = {"num_workers": 2, "worker_init_fn": fail_in_worker, "persistent_workers": persistent}
        batches = begin(loader_class(range(4), **options), tape)
        take(batches, tape, 3)

    tape = both(program)
    assert [event[0] for event in tape if event[0] != "state"] == ["begun", "batch", "raised", "batch"]


def test_with_a_seed_an_error_in_worker_init_fn_comes_out_of_next() -> None:
    def fail(worker: int) -> None:
        fail_in_worker(1)

    batches = iter(Seeded(range(4), num_workers=1, worker_init_fn=fail))
    with pytest.raises(KeyError) as caught:
        next(batches)
    forget_frames(caught.value)
