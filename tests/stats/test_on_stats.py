"""Functions that get the figures of loaders: when they are called, and what becomes of those that fail."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from figures import stats as figures

import penstock
from penstock._measure import meter
from penstock.stats import Stats
from penstock.stats import _hooks as hooks


@pytest.fixture(autouse=True)
def no_hook_is_left() -> Iterator[None]:
    yield
    assert not hooks._hooks
    hooks._hooks.clear()


class SlowRange:
    """Numbers that take long enough to travel one by one."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        time.sleep(0.001)
        return key


def read(loader: Any) -> None:
    for _ in loader:
        pass


# When.


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 1}])
def test_a_function_is_called_at_the_end_of_each_epoch(settings: dict[str, Any]) -> None:
    seen: list[Stats] = []
    with penstock.on_stats(seen.append), penstock.DataLoader(range(30), batch_size=3, **settings) as loader:
        read(loader)
        assert [stats.epoch.batches for stats in seen] == [10]
        read(loader)
    counts = [(stats.epoch_number, stats.epoch.batches, stats.life.batches) for stats in seen]
    assert counts == [(0, 10, 10), (1, 10, 20)]


def test_a_function_is_called_at_the_end_of_what_is_prefetched() -> None:
    seen: list[Stats] = []
    with penstock.on_stats(seen.append), penstock.prefetch(list(range(10))) as ahead:
        read(ahead)
        read(ahead)
    assert [(stats.epoch.batches, stats.life.batches) for stats in seen] == [(10, 10), (10, 20)]


@pytest.mark.imports_torch
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"num_workers": 1, "seed": 3}])
def test_a_function_is_called_at_the_end_of_each_epoch_of_torch_s(settings: dict[str, Any]) -> None:
    from penstock.torch import DataLoader

    seen: list[Stats] = []
    loader = DataLoader(SlowRange(10), **settings)
    with penstock.on_stats(seen.append):
        iterator = iter(loader)
        for _ in range(13):
            next(iterator, None)
        read(loader)
    assert [(stats.epoch.batches, stats.life.batches) for stats in seen] == [(10, 10), (10, 20)]


def test_a_function_is_called_in_the_thread_that_reads_the_loader() -> None:
    threads = []
    with penstock.on_stats(lambda stats: threads.append(threading.get_ident())):
        reader = threading.Thread(target=read, args=[penstock.DataLoader(range(30))])
        reader.start()
        reader.join()
    assert threads == [reader.ident]


def test_a_function_is_called_while_a_long_epoch_is_read() -> None:
    seen: list[Stats] = []
    with penstock.on_stats(seen.append, every=0.05):
        batches = iter(penstock.DataLoader(range(10**9)))
        deadline = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < deadline:
            next(batches)
        del batches
    first, second = (stats.epoch.batches for stats in seen)
    assert 0 < first < second


def test_a_closed_function_is_not_called() -> None:
    seen: list[Stats] = []
    hook = penstock.on_stats(seen.append)
    hook.close()
    hook.close()
    read(penstock.DataLoader(range(30)))
    assert seen == []


class Clock:
    """One loader whose time is chosen."""

    def __init__(self) -> None:
        self.turns = hooks.Turns()
        self.asked = 0

    def _stats(self) -> Stats:
        self.asked += 1
        return figures()

    def tick(self, now: float) -> None:
        self.turns.tick(now, self._stats)

    def end_epoch(self, now: float) -> None:
        self.turns.epoch_ended(now, self._stats)


def test_each_function_has_its_own_interval() -> None:
    clock, now, fast, slow = Clock(), 0.0, [], []
    with (
        penstock.on_stats(lambda stats: fast.append(now), every=1),
        penstock.on_stats(lambda stats: slow.append(now), every=2.5),
    ):
        while now <= 6:
            clock.tick(now)
            now += 0.5
    assert fast == [1, 2, 3, 4, 5, 6]
    assert slow == [2.5, 5]


def test_each_loader_has_its_own_time() -> None:
    now, calls = 0.0, 0

    def count(stats: Stats) -> None:
        nonlocal calls
        calls += 1

    with penstock.on_stats(count, every=10):
        loaders = [Clock(), Clock()]
        for now in range(31):
            for clock in loaders:
                clock.tick(now)
    assert calls == 2 * 3


def test_the_end_of_an_epoch_counts_as_a_turn() -> None:
    clock, seen = Clock(), []
    with penstock.on_stats(seen.append, every=10):
        clock.tick(0)
        clock.end_epoch(9)
        clock.tick(18.5)
        assert len(seen) == 1
        clock.tick(19)
        assert len(seen) == 2


def test_without_a_function_no_figures_are_made() -> None:
    clock = Clock()
    clock.tick(100)
    clock.end_epoch(200)
    assert clock.asked == 0


# What goes wrong.


def test_a_function_that_raises_is_removed_with_one_warning() -> None:
    def fails(stats: Stats) -> None:
        raise ValueError("no such file")

    seen: list[Stats] = []
    loader = penstock.DataLoader(range(30))
    with penstock.on_stats(fails), penstock.on_stats(seen.append):
        with pytest.warns(UserWarning, match="fails was given .* raised ValueError: no such file"):
            read(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(loader)
    assert len(seen) == 2, "the other function is still called"


def test_a_stop_iteration_of_a_function_ends_no_epoch() -> None:
    def fails(stats: Stats) -> None:
        raise StopIteration

    with penstock.on_stats(fails, every=1e-9), pytest.warns(UserWarning, match="StopIteration"):
        assert len(list(penstock.DataLoader(range(30)))) == 30


def interrupted(loader: Any) -> list[int]:
    """All batches, of a loop that goes on after each interrupt from a function."""
    interrupts = 0

    def interrupt(stats: Stats) -> None:
        nonlocal interrupts
        interrupts += 1
        raise KeyboardInterrupt

    batches: list[int] = []
    with penstock.on_stats(interrupt, every=1e-9):
        iterator = iter(loader)
        while True:
            try:
                batches.append(int(np.asarray(next(iterator)).item()))
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
    assert interrupts > 10
    return batches


@pytest.fixture(name="at_every_batch")
def _at_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "TICK", 0)


@pytest.mark.usefixtures("at_every_batch")
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 1}])
def test_an_interrupt_in_a_function_loses_no_batch(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(SlowRange(30), **settings) as loader:
        assert interrupted(loader) == list(range(30))


@pytest.mark.usefixtures("at_every_batch")
def test_an_interrupt_in_a_function_loses_nothing_that_is_prefetched() -> None:
    with penstock.prefetch(list(range(30))) as ahead:
        assert interrupted(ahead) == list(range(30))


@pytest.mark.imports_torch
@pytest.mark.usefixtures("at_every_batch")
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"num_workers": 1, "seed": 3}])
def test_an_interrupt_in_a_function_loses_no_batch_of_torch_s(settings: dict[str, Any]) -> None:
    from penstock.torch import DataLoader

    assert interrupted(DataLoader(SlowRange(30), **settings)) == list(range(30))


def test_a_function_may_read_a_loader_itself() -> None:
    inner: list[int] = []

    def reads(stats: Stats) -> None:
        inner.append(len(list(penstock.DataLoader(range(3)))))

    with penstock.on_stats(reads):
        read(penstock.DataLoader(range(30)))
    assert inner == [3]


def test_a_forked_process_does_not_call_the_functions_of_its_parent() -> None:
    seen: list[Stats] = []
    with penstock.on_stats(seen.append):
        pid = os.fork()
        if not pid:
            read(penstock.DataLoader(range(30)))
            os._exit(len(seen))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("every", [0, -1, float("nan"), "1", True])
def test_the_interval_must_be_positive(every: Any) -> None:
    with pytest.raises(ValueError, match="every must be a positive number of seconds"):
        penstock.on_stats(print, every=every)


def test_the_function_must_be_callable() -> None:
    with pytest.raises(TypeError, match="function must be callable, got int"):
        penstock.on_stats(3)  # type: ignore[arg-type]


# The log.


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name} {record.getMessage()}")


@pytest.fixture(name="lines")
def _lines() -> Iterator[list[str]]:
    logger, handler, level = logging.getLogger("penstock"), Lines(), logging.getLogger("penstock").level
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_each_epoch_has_a_line_in_the_log(lines: list[str]) -> None:
    logging.getLogger("penstock").setLevel(logging.INFO)
    loader = penstock.DataLoader(range(30), batch_size=3)
    read(loader)
    read(loader)
    assert [line.split(" batches in ")[0] for line in lines] == [
        "INFO penstock DataLoader(range): epoch 0: 10",
        "INFO penstock DataLoader(range): epoch 1: 10",
    ]
    assert "waited for data" in lines[0]


def test_the_line_ends_with_the_verdict(lines: list[str]) -> None:
    logging.getLogger("penstock").setLevel(logging.INFO)
    Clock().end_epoch(0)
    assert lines[0].endswith(f"of the time. {figures().verdict}")


def test_without_the_level_nothing_is_logged_and_no_figures_are_made(lines: list[str]) -> None:
    logging.getLogger("penstock").setLevel(logging.WARNING)
    clock = Clock()
    clock.end_epoch(0)
    assert lines == [] and clock.asked == 0
