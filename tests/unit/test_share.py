"""share: one epoch, several consumers, each batch to one of them."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from penstock import DataLoader, Dataset, IterableDataset, LoaderTimeout
from penstock._session.share import Consumer


class Counted(Dataset[Any]):
    """Counts how often each sample is read; raises for some; waits at others until it may go on."""

    def __init__(self, n: int, bad: tuple[int, ...] = ()) -> None:
        self.n, self.bad = n, bad
        self.reads: Counter[int] = Counter()
        self.gates: dict[int, threading.Event] = {}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        self.reads[key] += 1
        if key in self.gates:
            assert self.gates[key].wait(20)
        if key in self.bad:
            raise LookupError(f"sample {key}")
        return key


class Threads:
    """Threads that are joined, and whose errors are the test's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def run(self, function: Callable[..., object], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                function(*args)
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._threads.append(thread)
        return thread

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self._errors:
            raise self._errors[0]


def first(batch: Any) -> int:
    return int(batch[0])


SETTINGS = [
    {"num_workers": 0},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 2, "multiprocessing_context": "fork"},
]
everywhere = pytest.mark.parametrize("settings", SETTINGS, ids=["inline", "thread", "fork"])
both = pytest.mark.parametrize("in_turn", [False, True], ids=["first", "turn"])


@everywhere
@both
@pytest.mark.parametrize("consumers", [1, 2, 5])
def test_every_batch_goes_to_exactly_one_of_many_threads(
    settings: dict[str, Any], in_turn: bool, consumers: int
) -> None:
    got: list[list[int]] = [[] for _ in range(consumers)]

    def consume(part: Any, mine: list[int]) -> None:
        for batch in part:
            mine.append(first(batch))
            assert (batch == np.arange(mine[-1], mine[-1] + 2)).all()

    with DataLoader(np.arange(400), 2, **settings) as loader:
        for epoch in range(2):
            threads = Threads()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Python's, for a fork beside threads
                parts = loader.share(consumers, in_turn=in_turn)
                for part, mine in zip(parts, got, strict=True):
                    mine.clear()
                    threads.run(consume, part, mine)
                threads.join()
            assert sorted(chain.from_iterable(got)) == list(range(0, 400, 2))
            assert all(mine == sorted(mine) for mine in got)
            if in_turn:
                assert got == [list(range(2 * number, 400, 2 * consumers)) for number in range(consumers)]
            assert loader.epoch == epoch
            assert loader.state_dict()["epoch"] == epoch + 1


def test_each_sample_is_read_once() -> None:
    dataset = Counted(60)
    with DataLoader(dataset, 4, num_workers=2, backend="thread") as loader:
        threads = Threads()
        for part in loader.share(3):
            threads.run(list, part)
        threads.join()
    assert dataset.reads == Counter(range(60))


@everywhere
def test_replicas_in_one_thread_take_turns(settings: dict[str, Any]) -> None:
    with DataLoader(np.arange(11), 2, **settings) as loader:
        pairs = [tuple(map(first, pair)) for pair in zip(*loader.share(3, in_turn=True), strict=True)]
    assert pairs == [(0, 2, 4), (6, 8, 10)]


def test_a_slow_consumer_holds_nobody_back_where_whoever_asks_first_is_served() -> None:
    with DataLoader(np.arange(50)) as loader:
        slow, quick = loader.share(2)
        mine = [first(next(slow))]
        assert list(map(first, quick)) == list(range(1, 50))
        assert mine == [0] and next(slow, None) is None


def test_in_turn_a_slow_consumer_holds_others_back_after_the_window() -> None:
    with DataLoader(np.arange(50), num_workers=2, prefetch_factor=3, backend="thread") as loader:
        slow, quick = loader.share(2, in_turn=True)
        got = [first(next(quick)) for _ in range(6)]  # six wait for the other: 2 * 3
        threads, more = Threads(), threading.Event()

        def go_on() -> None:
            got.append(first(next(quick)))
            more.set()

        assert got == [1, 3, 5, 7, 9, 11]
        threads.run(go_on)
        waiting = loader_epoch(quick)
        while not waiting._changes._bells:  # until it waits for the other
            pass
        assert not more.is_set()
        assert first(next(slow)) == 0
        threads.join()
        assert got[-1] == 13
        slow.close()


def loader_epoch(part: Any) -> Any:
    return part._shared


def test_a_batch_that_is_here_is_not_kept_waiting_by_one_that_is_not() -> None:
    dataset = Counted(6)
    dataset.gates[2] = threading.Event()
    with DataLoader(dataset, num_workers=1, backend="thread") as loader:
        one, other = loader.share(2, in_turn=True)
        assert first(next(other)) == 1  # and 0 waits for the first
        threads, got = Threads(), []
        threads.run(lambda: got.append(first(next(other))))  # reads 2, and then 3
        while loader_epoch(one)._reading is None:
            pass
        assert first(next(one)) == 0
        dataset.gates[2].set()
        threads.join()
        assert got == [3] and first(next(one)) == 2


@both
def test_an_error_arrives_at_the_consumer_whose_batch_it_is(in_turn: bool) -> None:
    with DataLoader(Counted(12, bad=(5,))) as loader:
        parts = loader.share(3, in_turn=in_turn)
        got: list[list[Any]] = [[], [], []]
        for _ in range(4):
            for part, mine in zip(parts, got, strict=True):
                try:
                    mine.append(first(next(part)))
                except LookupError as error:
                    mine.append(str(error))
        assert got == [[0, 3, 6, 9], [1, 4, 7, 10], [2, "sample 5", 8, 11]]
        assert [next(part, None) for part in parts] == [None] * 3


@both
@pytest.mark.parametrize("forget", [False, True])
def test_the_share_of_one_that_is_closed_goes_to_the_others(in_turn: bool, forget: bool) -> None:
    with DataLoader(np.arange(60), num_workers=2, prefetch_factor=4, backend="thread") as loader:
        parts = loader.share(3, in_turn=in_turn)
        got = [first(next(parts[2])) for _ in range(3)]  # in turn: batches wait for the other two
        if not forget:
            parts[1].close()
            assert next(parts[1], None) is None
        else:
            del parts[1]
            gc.collect()
        threads = Threads()
        for part in (parts[0], parts[-1]):
            threads.run(lambda part=part: got.extend(map(first, part)))
        threads.join()
    assert sorted(got) == list(range(60))


def test_one_that_has_ended_gets_nothing_of_what_others_leave() -> None:
    with DataLoader(np.arange(9), num_workers=1, prefetch_factor=6, backend="thread") as loader:
        one, two, three = loader.share(3, in_turn=True)
        assert list(map(first, three)) == [2, 5, 8]  # to the end of the epoch
        two.close()
        assert sorted(map(first, one)) == [0, 1, 3, 4, 6, 7]
        assert loader.state_dict()["epoch"] == 1


def test_when_all_are_closed_the_workers_are_free_for_the_next_epoch() -> None:
    with DataLoader(np.arange(40), num_workers=2, backend="thread") as loader:
        parts = loader.share(2)
        next(parts[0])
        (engine,) = loader._session.engines.live
        for part in parts:
            part.close()
        assert list(map(first, loader)) == list(range(40))
        assert list(loader._session.engines.live) == [engine]


def test_one_that_is_closed_while_another_reads_leaves_the_reader_alone() -> None:
    dataset = Counted(5)
    dataset.gates[0] = threading.Event()
    with DataLoader(dataset, num_workers=1, backend="thread") as loader:
        (part,) = loader.share(1)
        threads = Threads()
        ended: list[Any] = []
        threads.run(lambda: ended.append(next(part, None)))
        while loader_epoch(part)._reading is None:
            pass
        part.close()
        dataset.gates[0].set()
        threads.join()
        assert ended == [None]
        dataset.gates.clear()
        assert list(map(first, loader)) == list(range(5))


@pytest.mark.parametrize("taken", [(0, 0), (1, 0), (0, 1), (3, 1), (2, 4), (10, 10)])
def test_the_state_counts_what_was_handed_out_to_all(taken: tuple[int, int]) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(np.arange(20), seed=1, shuffle=True, num_workers=2, prefetch_factor=6, backend="thread")

    with make() as loader:
        parts = loader.share(2, in_turn=True)
        pairs = zip(parts, taken, strict=True)
        seen = [first(next(part)) for part, count in pairs for _ in range(count)]
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        rest = list(map(first, loader))
    assert sorted(seen + rest) == list(range(20))


class Stateful(IterableDataset[Any]):
    """A stream that knows where it is, and goes on from there."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 20:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("taken", [(1, 0), (0, 1), (2, 1), (1, 3), (3, 3), (10, 10)])
def test_the_state_of_a_stream_is_that_of_what_was_handed_out(taken: tuple[int, int]) -> None:
    loader = DataLoader(Stateful(), num_workers=1, prefetch_factor=12, backend="thread")
    with loader:
        parts = loader.share(2, in_turn=True)
        pairs = zip(parts, taken, strict=True)
        seen = [first(next(part)) for part, count in pairs for _ in range(count)]
        state = loader.state_dict()
    after = DataLoader(Stateful())
    after.load_state_dict(state)
    rest = list(map(first, after))
    assert sorted(seen + rest) == list(range(20))
    assert after.state_dict()["epoch"] == 1


def patiently(part: Any) -> Any:
    """The next batch, however often the machine is too busy for it."""
    while True:
        try:
            return first(next(part))
        except LoaderTimeout:
            continue


def test_a_timeout_is_nobodys_batch() -> None:
    dataset = Counted(4)
    dataset.gates[1] = threading.Event()
    with DataLoader(dataset, num_workers=1, backend="thread", timeout=0.05) as loader:
        one, other = loader.share(2, in_turn=True)
        assert patiently(one) == 0
        with pytest.raises(LoaderTimeout):
            next(one)  # which reads the other's
        dataset.gates[1].set()
        assert [patiently(part) for part in (other, one, other)] == [1, 2, 3]


def test_closing_the_loader_ends_every_consumer() -> None:
    dataset = Counted(4)
    dataset.gates[0] = threading.Event()
    loader = DataLoader(dataset, num_workers=1, backend="thread")
    errors: list[BaseException] = []

    def consume(part: Any) -> None:
        try:
            next(part)
        except RuntimeError as error:
            errors.append(error)

    threads, parts = Threads(), loader.share(3)
    for part in parts:
        threads.run(consume, part)
    while len(loader_epoch(parts[0])._changes._bells) < 2:
        pass
    loader.close()
    dataset.gates[0].set()
    threads.join()
    assert len(errors) == 3 and all("was closed" in str(error) for error in errors)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_a_bad_number_of_consumers_is_refused(n: Any) -> None:
    loader = DataLoader(range(3))
    with pytest.raises(ValueError, match="the number of consumers, an integer of at least 1"):
        loader.share(n)
    assert loader.epoch == 0


def test_an_empty_epoch_ends_for_all() -> None:
    assert [list(part) for part in DataLoader([]).share(3)] == [[], [], []]


def test_a_loader_that_was_shared_ends_with_its_last_reference() -> None:
    loader = DataLoader(range(4))
    for consumer in loader.share(2):
        consumer.close()
    gone = weakref.ref(loader)
    gc.collect()
    gc.disable()
    try:
        del loader, consumer
        assert gone() is None, "a cycle keeps it until the garbage collector runs"
    finally:
        gc.enable()


def test_a_consumer_whose_finalizer_was_interrupted_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(np.arange(6)) as loader:
        one, other = loader.share(2, in_turn=True)
        assert first(next(other)) == 1
        with monkeypatch.context() as patch:
            patch.setattr(type(one), "__del__", lambda self: None)  # interrupted at its entry: Python ignores it
            del one
        assert list(map(first, other)) == [0, 2, 3, 4, 5]


def test_a_consumer_whose_constructor_was_interrupted_is_dropped_in_silence() -> None:
    Consumer.__new__(Consumer).close()
