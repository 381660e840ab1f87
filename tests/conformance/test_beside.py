"""What comes in between, replayed: other threads, Ctrl-C, no descriptors left. Found by a review."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance import sources
from penstock import DataLoader, Dataset
from penstock._engine import pace
from penstock._engine.engine import Engine
from penstock._engine.turn import Turn
from penstock._schedule.course import Course
from penstock._wire.updates import Setting, encode
from penstock.backends._process import backend as processes


def in_a_bundle(loader: DataLoader[Any], after: int = 300) -> Any:
    """An iterator that has more of a bundle to hand out."""
    batches: Any = iter(loader)
    for step, _ in enumerate(batches):
        if step >= after and len(batches._engine._course.ready) > 1:
            return batches
    raise AssertionError("there was no bundle")


@pytest.fixture(autouse=True)
def every_step_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SECONDS", 10.0)


def test_close_in_another_thread_ends_the_workers_when_next_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    unwrap = Engine._unwrap

    def closed_meanwhile(engine: Engine) -> Any:
        thread = threading.Thread(target=engine.close)
        thread.start()
        thread.join()
        return unwrap(engine)

    with DataLoader(range(4000), num_workers=1) as loader:
        batches = in_a_bundle(loader)
        engine = batches._engine
        monkeypatch.setattr(Engine, "_unwrap", closed_meanwhile)
        next(batches)
        assert not engine._finalizer.alive
        with pytest.raises(RuntimeError, match="was closed"):
            next(batches)


@pytest.mark.parametrize("during", ["update", "cancel"])
def test_close_in_another_thread_ends_the_workers_when_they_are_free(
    monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    real = {name: getattr(Course, name) for name in ("redo", "cancel")}

    def closed_meanwhile(course: Any) -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=engine.close)
        thread.start()
        thread.join()
        return real["redo" if during == "update" else "cancel"](course)

    with DataLoader(sources.Slow(4000, {}), num_workers=1) as loader:
        batches = in_a_bundle(loader)
        engine = batches._engine
        monkeypatch.setattr(Course, "redo" if during == "update" else "cancel", closed_meanwhile)
        if during == "update":
            engine.held(lambda: engine.update(encode(Setting({"slow": {}}))))
        else:
            engine.cancel()
        assert not engine._finalizer.alive


class Gated(Dataset[Any]):
    """Sample 2 waits until there is a file."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate
        self.times = 0

    def __len__(self) -> int:
        return 30

    def __getitem__(self, key: int) -> Any:
        while key == 2 and not self.gate.exists():
            time.sleep(0.001)
        return key, self.times


def once_more(dataset: Any) -> None:
    dataset.times += 1


class AtTheGate:
    """A loader with one thread that waits for sample 2 of it, and others in update(), which wait for that thread."""

    def __init__(self, gate: Path, *changes: Any) -> None:
        self.loader: Any = DataLoader(Gated(gate), num_workers=1, multiprocessing_context="fork")
        self.batches: Any = iter(self.loader)
        self.engine: Engine = self.batches._engine
        self.found: list[tuple[int, int]] = []
        next(self.batches), next(self.batches)
        self.reading = self._began(self._read)
        while self.engine._turn.holder is None:
            time.sleep(0.001)
        self.changing = [self._began(self.loader.update, change) for change in changes]
        while not self.engine._turn.waiting:
            time.sleep(0.001)

    def _began(self, *what: Any) -> threading.Thread:
        thread = threading.Thread(target=what[0], args=what[1:])
        thread.start()
        return thread

    def _read(self) -> None:
        with suppress(RuntimeError):  # it was closed
            self.found.extend((int(key[0]), int(times[0])) for key, times in self.batches)

    def end(self) -> None:
        for thread in (self.reading, *self.changing):
            thread.join()
        self.loader.close()


def test_a_worker_that_is_forked_while_update_waits_makes_the_change_once(tmp_path: Path) -> None:
    there = AtTheGate(tmp_path / "gate", once_more)
    assert there.loader.dataset.times == 0
    os.kill(there.loader.workers[0].pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    there.end()
    assert there.found == [(2, 0), *((key, 1) for key in range(3, 30))]


def test_update_comes_before_a_thread_that_asks_without_pause_and_all_in_one_order(tmp_path: Path) -> None:
    changes = [partial(_append, number) for number in range(8)]
    there = AtTheGate(tmp_path / "gate", *changes)
    (tmp_path / "gate").touch()
    there.end()
    assert there.found[0] == (2, 0)
    assert there.found[1][1] > 0
    made = str(there.loader.dataset.times)  # how many of them the thread saw before its epoch was over, is luck
    assert sorted(made) == [*"12345678"] and all(made.startswith(str(times)) for _, times in there.found[1:])


def _append(number: int, dataset: Any) -> None:
    dataset.times = dataset.times * 10 + number + 1


def test_an_engine_that_is_closed_while_update_waits_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = AtTheGate(tmp_path / "gate", once_more)
    wrote: list[bytes] = []
    monkeypatch.setattr(there.engine.backend, "update", wrote.append)
    there.loader.close()
    there.end()
    assert not wrote
    assert there.loader.dataset.times == 1


def test_an_engine_that_is_closed_just_before_it_is_cancelled_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = Turn.take_if_free

    def closed_meanwhile(turn: Turn, hold: Any) -> bool:
        monkeypatch.undo()
        thread = threading.Thread(target=engine.close)
        thread.start()
        thread.join()
        monkeypatch.setattr(engine, "_cancel", lambda: pytest.fail("its descriptors are somebody else's"))
        return take(turn, hold)

    with DataLoader(range(40), num_workers=1) as loader:
        batches: Any = iter(loader)
        engine = batches._engine
        monkeypatch.setattr(Turn, "take_if_free", closed_meanwhile)
        engine.cancel()
        assert not engine._finalizer.alive


@pytest.mark.parametrize("where", ["open", "passed"])
def test_an_interrupt_in_a_bundle_ends_the_iterator_and_skips_nothing(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with DataLoader(range(4000), num_workers=1) as loader:
        batches = in_a_bundle(loader)
        monkeypatch.setattr(batches._engine.backend if where == "open" else batches.position, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        with pytest.raises(RuntimeError, match=r"was (ended by KeyboardInterrupt|closed)"):
            next(batches)


def test_after_an_update_steps_are_not_bundled_until_it_is_known_how_long_they_take() -> None:
    with DataLoader(sources.Slow(4000, {}), num_workers=1) as loader:
        batches = in_a_bundle(loader)
        loader.update(slow={})
        assert {task.steps for task in batches._engine._course._out.values()} == {1}
        assert batches._engine._pace.bundle == 1


def test_update_beside_consumers_that_read() -> None:
    with DataLoader(sources.Slow(3000, {}), num_workers=1) as loader:
        found: list[list[int]] = [[], []]
        consumers = loader.share(2)
        threads = [
            threading.Thread(target=lambda at=at: found[at].extend(int(batch[0]) for batch in consumers[at]))  # type: ignore[misc]
            for at in range(2)
        ]
        for thread in threads:
            thread.start()
        for _ in range(20):
            loader.update(slow={})
        for thread in threads:
            thread.join()
        assert sorted(found[0] + found[1]) == list(range(3000))


def test_an_iterator_may_be_closed_while_another_thread_waits_in_it() -> None:
    caught: list[BaseException] = []

    def read(batches: Any) -> None:
        try:
            next(batches)
        except RuntimeError as error:
            caught.append(error)

    with DataLoader(sources.Slow(10, {0: 60.0}), num_workers=1) as loader:
        batches: Any = iter(loader)
        engine = batches._engine
        thread = threading.Thread(target=read, args=(batches,))
        thread.start()
        while not engine._scheduler.ask_is_open:
            time.sleep(0.001)
        batches.close()
        thread.join()
    assert "was closed" in str(caught[0])


def test_who_is_woken_before_it_waits_does_not_wait() -> None:
    with DataLoader(sources.Slow(10, {0: 60.0}), num_workers=1) as loader:
        batches: Any = iter(loader)
        batches._engine.backend.wake()
        assert batches._engine.backend.poll(None) == []
        batches.close()


class OnlyThere:
    """A part of a batch that this process cannot receive."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __reduce__(self) -> Any:
        return OnlyThere.receive, (self.parent,)

    @staticmethod
    def receive(parent: int) -> Any:
        if os.getpid() == parent:
            raise ImportError("there is no such module here")
        return OnlyThere(parent)

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnlyThere)


class Keyed(Dataset[Any]):
    """Samples whose structure has such a part: it is the key of a dict."""

    def __init__(self) -> None:
        self.parent = os.getpid()

    def __len__(self) -> int:
        return 5

    def __getitem__(self, key: int) -> Any:
        return {OnlyThere(self.parent): np.arange(3)}


def test_a_structure_that_cannot_be_received_is_an_error_of_each_batch() -> None:
    with DataLoader(Keyed(), num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(5):
            with pytest.raises(ImportError, match="no such module here"):
                next(batches)
        assert next(batches, None) is None


@pytest.mark.parametrize("left", range(8))
def test_too_few_descriptors_leave_nothing_open(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    calls = 0

    def scarce(call: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > left:
                raise OSError(errno.EMFILE, "Too many open files")
            return call(*arguments, **named)

        return counted

    monkeypatch.setattr(os, "memfd_create", scarce(os.memfd_create))
    monkeypatch.setattr(os, "pipe", scarce(os.pipe))
    monkeypatch.setattr(socket, "socketpair", scarce(socket.socketpair))
    loader = DataLoader(range(4), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(OSError, match="Too many open files"):
        list(loader)


class Growing(Dataset[Any]):
    def __len__(self) -> int:
        return 1200

    def __getitem__(self, key: int) -> Any:
        return np.full(1 if key < 600 else 20_000, key)


def test_batches_that_outgrow_their_bundle_fill_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waited for room to send what the parent read only with the reply to all of the bundle."""
    pair = socket.socketpair

    def narrow(*arguments: Any) -> Any:
        ends = pair(*arguments)
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return ends

    monkeypatch.setattr(processes.socket, "socketpair", narrow)
    with DataLoader(Growing(), num_workers=1, multiprocessing_context="fork") as loader:
        kept = list(loader)
    assert all((batch == step).all() for step, batch in enumerate(kept))


class Collecting(Dataset[Any]):
    """Collects garbage in the worker once the caller has dropped the loader."""

    def __init__(self) -> None:
        self.dropped, self.collected = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        if key == 1:
            assert self.dropped.wait(20)
            gc.collect()
            self.collected.set()
        return key


def test_an_engine_that_is_collected_in_a_thread_of_its_own_ends() -> None:
    dataset = Collecting()
    before = {*threading.enumerate()}  # a slow sample of another test may be at work in a thread of its loader
    gc.disable()
    try:
        batches = iter(DataLoader(dataset, num_workers=1, backend="thread"))
        (thread,) = [one for one in {*threading.enumerate()} - before if one.name == "penstock-0"]
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        del batches, cycle
        dataset.dropped.set()
        assert dataset.collected.wait(20)
    finally:
        gc.enable()
    thread.join(20)
    assert not thread.is_alive()
