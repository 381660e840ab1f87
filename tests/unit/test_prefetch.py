"""prefetch: any iterable of batches, in its order, by one thread, in memory that is lent and used again."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from same import same

from penstock import Batch, CastError, DataLoader, StateError, prefetch
from penstock._system.threads import running


class Pair(NamedTuple):
    x: Any
    y: Any


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


class Source:
    """Batches 0, 1, ... n-1, each in the one buffer that the source has; counts what was asked of it."""

    def __init__(self, n: int, shape: tuple[int, ...] = (4,)) -> None:
        self.n = n
        self.buffer = np.empty(shape)
        self.opened = 0
        self.made = 0
        self.closed = 0
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        self.opened += 1
        try:
            for step in range(self.n):
                self.threads.add(threading.get_ident())
                self.buffer[...] = step
                self.made += 1
                yield self.buffer
        finally:
            self.closed += 1


class Gated:
    """An endless source that says when it is asked, and waits until it may answer."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.may = threading.Semaphore(0)

    def __iter__(self) -> Iterator[Any]:
        for step in range(1_000_000):
            self.asked.release()
            self.may.acquire()
            yield np.full(3, step)


class Failing:
    """An iterator that raises at some steps and goes on after them."""

    def __init__(self, n: int, bad: dict[int, BaseException]) -> None:
        self.n, self.bad = n, bad

    def __iter__(self) -> Iterator[Any]:
        return _FailingIterator(self)


class _FailingIterator:
    def __init__(self, source: Failing) -> None:
        self.source, self.step = source, -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.step += 1
        if self.step >= self.source.n:
            raise StopIteration
        if self.step in self.source.bad:
            raise self.source.bad[self.step]
        return np.array([self.step])


def values(batches: Any) -> list[int]:
    return [int(batch.flat[0]) for batch in batches]


# What arrives.


def test_a_source_that_overwrites_its_buffer_gives_every_batch_intact() -> None:
    with prefetch(Source(50)) as ahead:
        kept = list(ahead)
    assert values(kept) == list(range(50))
    assert all((batch == batch[0]).all() for batch in kept)


@pytest.mark.parametrize(
    "tree",
    [
        np.arange(6.0),
        np.array(3),
        (np.arange(3), np.ones((2, 2), np.uint8)),
        [np.arange(3), [np.arange(2), "text"]],
        {"x": np.arange(3), "y": {"z": np.array([True, False])}, "n": 3, "none": None},
        Pair(np.arange(3), "label"),
        {"when": np.array(["2026-01-01"], "M8[D]"), "name": np.array(["a", "bc"])},
        np.arange(24).reshape(4, 6)[::2, ::-3],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array([{"any": "object"}, None]),
        {},
        "nothing to copy",
        np.zeros((0, 3)),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
    ],
    ids=str,
)
def test_a_batch_arrives_as_it_was(tree: Any) -> None:
    with prefetch([tree, tree]) as ahead:
        first, second = ahead
    assert same(first, tree) and same(second, tree)


def test_index_and_pad_of_a_batch_travel_along_and_are_not_converted() -> None:
    index = np.arange(3, dtype=np.uint64)
    given = Batch(np.arange(3.0), index, epoch=2, step=5, pad=1)
    with prefetch([given], dtype="float16") as ahead:
        (got,) = ahead
    assert got.data.dtype == np.float16
    assert same(got.index, index)
    assert (got.epoch, got.step, got.pad) == (2, 5, 1)
    index[:] = 9
    assert got.index.tolist() == [0, 1, 2]


def test_shapes_and_structures_may_change_between_batches() -> None:
    trees = [np.full((size, 1 + size % 3), size) for size in (1, 5, 300, 2, 100_000, 1, 7)]
    given = [*trees, {"a": trees[1]}, (trees[2], trees[0])]
    with prefetch(given, depth=2) as ahead:
        assert same(list(ahead), given)


def test_a_batch_larger_than_the_first_guess_arrives() -> None:
    with prefetch([np.arange(9 << 20), np.arange(10)]) as ahead:  # 72 MB
        first, second = ahead
    assert first[-1] == (9 << 20) - 1 and second[-1] == 9


def test_tensors_that_do_not_fit_into_their_slab_are_copied_too() -> None:
    torch = pytest.importorskip("torch")
    large = torch.arange(9 << 20)  # 72 MB, more than the first guess

    def batches() -> Iterator[Any]:
        yield {"x": torch.zeros(3), "large": large, "turned": large.reshape(2, -1).t(), "y": np.arange(4)}
        large.zero_()
        yield {"x": torch.ones(3)}

    with prefetch(batches) as ahead:
        first, second = ahead
    assert torch.equal(first["large"], torch.arange(9 << 20)) and first["y"].tolist() == [0, 1, 2, 3]
    assert torch.equal(first["turned"], first["large"].reshape(2, -1).t())
    assert first["x"].tolist() == [0, 0, 0] and second["x"].tolist() == [1, 1, 1]


def test_numbers_are_converted_and_what_would_be_lost_is_an_error_in_its_place() -> None:
    given = [{"a": np.array([1.0, 2.0])}, {"a": np.array([3.0, 300.0])}, {"a": np.array([5.0])}]
    with prefetch(given, dtype={"a": "uint8"}) as ahead:
        assert next(ahead)["a"].tolist() == [1, 2]
        with pytest.raises(CastError, match=r"300\.0 in the field 'a' \(row 1\).*uint8 holds 0 to 255"):
            next(ahead)
        assert next(ahead)["a"].dtype == np.uint8
    with prefetch(given, dtype="uint8", casting="unsafe") as ahead:
        assert [batch["a"].tolist() for batch in ahead] == [[1, 2], [3, 44], [5]]


def test_tensors_arrive_as_tensors_in_memory_that_is_used_again() -> None:
    torch = pytest.importorskip("torch")
    tensor, channels_last = torch.zeros(5), torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)

    def batches() -> Iterator[Any]:
        for step in range(40):
            tensor.fill_(step)
            channels_last.fill_(step)
            yield {
                "t": tensor,
                "half": tensor.bfloat16(),
                "image": channels_last,
                "p": torch.nn.Parameter(tensor),
            }

    with prefetch(batches, depth=2, hold=2) as ahead:
        kept = list(ahead)
        for step, batch in enumerate(kept):
            assert all((leaf == step).all() for leaf in batch.values())
        assert batch["half"].dtype is torch.bfloat16
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        kept.clear()
        del batch
        seen = {batch["t"].data_ptr() for batch in ahead}
    assert len(seen) <= 40 / 2


def test_tensors_are_converted_too() -> None:
    torch = pytest.importorskip("torch")
    given = {"i": torch.arange(3), "b": torch.ones(2, dtype=torch.bfloat16), "ok": torch.tensor([True])}
    with prefetch([given], dtype="float16") as ahead:
        (got,) = ahead
    assert {name: leaf.dtype for name, leaf in got.items()} == {
        "i": torch.float16,
        "b": torch.float16,
        "ok": torch.bool,
    }
    lossy = [torch.tensor([1.0, 1e30], dtype=torch.bfloat16)]
    for dtype, words in (("float16", "outside the range of float16"), ("int8", "int8 holds -128 to 127")):
        with prefetch([lossy], dtype=dtype) as ahead, pytest.raises(CastError, match=words):
            next(ahead)


@pytest.mark.parametrize(
    ("leaf", "what"),
    [(np.ma.zeros(3), "a MaskedArray"), (np.array([1, None]), "an array of object")],
    ids=["masked", "object"],
)
def test_what_is_not_converted_may_not_be_named(leaf: Any, what: str) -> None:
    with prefetch([{"a": leaf}], dtype="float16") as ahead:
        assert same(list(ahead), [{"a": leaf}])
    ahead = prefetch([{"a": leaf}], dtype={"a": "float16"})
    with ahead, pytest.raises(CastError, match=f"names the field 'a', which is {what}"):
        next(ahead)


def test_pinning_has_no_effect_without_an_accelerator() -> None:
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with pytest.warns(UserWarning, match="pin_memory=True has no effect"):
        ahead = prefetch([np.arange(3)], pin_memory=True)
    assert values(ahead) == [0]
    ahead.close()


def test_another_loader_is_read_ahead_with_what_it_knows_of_its_batches() -> None:
    with DataLoader(np.arange(100), 8, num_workers=2, seed=1, shuffle=True) as loader:
        plain = list(loader.batches())
        loader.set_epoch(0)
        with prefetch(loader.batches) as ahead:
            assert same(list(ahead), plain)
            assert {batch.epoch for batch in ahead} == {1}


def test_one_prefetch_may_read_another() -> None:
    with prefetch(Source(20)) as inner, prefetch(inner) as outer:
        assert values(outer) == list(range(20))
        next(iter(outer))
        outer.reset()
        assert values(outer) == list(range(20))


# Epochs.


def test_each_iter_after_the_end_is_the_next_epoch() -> None:
    source = Source(5)
    with prefetch(source) as ahead:
        assert [values(ahead) for _ in range(3)] == [list(range(5))] * 3
        assert next(ahead, None) is None
    assert source.opened == 3


def test_iter_in_the_middle_goes_on() -> None:
    with prefetch(Source(5)) as ahead:
        assert int(next(ahead)[0]) == 0
        assert values(ahead) == [1, 2, 3, 4]


def test_nothing_is_read_before_it_is_wanted() -> None:
    source = Source(5)
    with prefetch(source) as ahead:
        assert ahead._thread is None
    assert source.opened == 0


def test_reset_begins_anew_wherever_it_was() -> None:
    source = Source(30)
    with prefetch(source, depth=4) as ahead:
        for taken in (0, 1, 7, 30):
            got = [int(next(ahead)[0]) for _ in range(taken)]
            assert got == list(range(taken))
            ahead.reset()
        assert values(ahead) == list(range(30))
    assert source.closed == source.opened
    assert len(source.threads) == 1 and threading.get_ident() not in source.threads


def test_a_reset_before_the_first_batch_reads_nothing_twice() -> None:
    source = Source(3)
    with prefetch(source) as ahead:
        for _ in range(4):  # as MXNet's users write it
            ahead.reset()
            assert values(ahead) == [0, 1, 2]
    assert source.opened == 4


def test_batches_of_before_a_reset_stay_as_they_are() -> None:
    with prefetch(Source(60, (50_000,)), depth=3, hold=1) as ahead:
        kept = [next(ahead) for _ in range(10)]
        ahead.reset()
        assert values(ahead) == list(range(60))
        assert all((batch == step).all() for step, batch in enumerate(kept))


def test_a_reset_does_not_wait_for_the_source() -> None:
    source = Gated()
    with prefetch(source, depth=1) as ahead:
        iter(ahead)
        source.asked.acquire()
        ahead.reset()  # while the source is at its first batch
        source.may.release(2)
        assert int(next(ahead)[0]) == 0
        source.may.release(10)


def test_batches_that_are_made_while_a_reset_is_under_way_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Gated()
    with prefetch(source, depth=2) as ahead:
        iter(ahead)
        source.asked.acquire()
        before, kind = ahead._producer.wanted, type(ahead._gate)
        drain = kind.drain

        def drain_late(self: Any) -> Any:
            if ahead._producer.wanted is not before:  # then the thread may be quicker
                source.may.release(2)  # for the batch of before, and the first of the new run
                while self.made.qsize() < 2:
                    time.sleep(0.001)
            return drain(self)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "drain", drain_late)
            ahead.reset()
        source.may.release(100)
        assert [int(next(ahead)[0]) for _ in range(3)] == [0, 1, 2]


def test_resets_without_a_batch_between_keep_no_more_than_before() -> None:
    source = Gated()
    source.may.release(1000)
    with prefetch(source, depth=3) as ahead:
        for _ in range(20):
            ahead.reset()
            while ahead._gate.made.qsize() < 3:
                time.sleep(0.001)
            assert ahead._gate.made.qsize() <= 2 * 3
        assert int(next(ahead)[0]) == 0


def test_a_generator_function_begins_anew_and_a_generator_cannot() -> None:
    def batches() -> Iterator[Any]:
        yield from map(np.array, range(3))

    with prefetch(batches) as ahead:
        assert [values(ahead), values(ahead)] == [[0, 1, 2]] * 2
    with prefetch(batches()) as ahead:
        assert int(next(ahead)) == 0
        with pytest.raises(TypeError, match="generator, is an iterator without a reset"):
            ahead.reset()
        assert [values(ahead), values(ahead)] == [[1, 2], []]
        with pytest.raises(TypeError, match="generator, is an iterator without a reset"):
            ahead.reset()


class Rewinding:
    """The loader class that many write: it is its own iterator, and iter() begins it anew."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Rewinding:
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at == 3:
            raise StopIteration
        self.at += 1
        return np.array(self.at)


def test_after_its_end_an_iterator_is_asked_for_the_next_epoch_as_a_loop_would() -> None:
    with prefetch(Rewinding()) as ahead:
        assert [values(ahead) for _ in range(3)] == [[1, 2, 3]] * 3
        ahead.reset()
        assert int(next(ahead)) == 1
        with pytest.raises(TypeError, match="Rewinding, is an iterator without a reset"):
            ahead.reset()
        assert values(ahead) == [2, 3]


def test_len_is_that_of_the_source() -> None:
    assert len(prefetch(Source(7))) == 7
    with pytest.raises(TypeError, match="has no len"):
        len(prefetch(iter([])))


def test_it_is_true_whether_its_source_has_a_length_or_not() -> None:
    assert prefetch([]) and prefetch(iter([])) and prefetch(Gated().__iter__)


def test_what_it_was_given_can_be_read_and_not_changed() -> None:
    given = {"depth": 3, "hold": 2, "dtype": {"a": "int8"}, "casting": "unsafe", "pin_memory": False}
    ahead = prefetch([], **given)  # type: ignore[arg-type]
    assert {name: getattr(ahead, name) for name in given} == given
    with pytest.raises(AttributeError):
        ahead.depth = 4


@pytest.mark.parametrize("depth", [1, 2, 16])
def test_the_source_is_at_most_depth_batches_ahead(depth: int) -> None:
    source = Gated()
    with prefetch(source, depth=depth) as ahead:
        iter(ahead)
        source.may.release(1000)
        for _ in range(depth):
            assert source.asked.acquire(timeout=20)
        for taken in range(20):
            next(ahead)
            assert source.asked.acquire(timeout=20)  # exactly one more, as one was taken
            assert not source.asked.acquire(blocking=False), taken


# Errors.


def test_an_error_of_the_source_arrives_in_its_place_and_the_source_goes_on() -> None:
    bad = {2: LookupError("two"), 5: SystemExit(3)}
    with prefetch(Failing(8, bad)) as ahead:
        assert [int(next(ahead)[0]) for _ in range(2)] == [0, 1]
        with pytest.raises(LookupError, match="two") as caught:
            next(ahead)
        assert caught.value.__notes__ == ["While batch 2 of the source was read ahead."]
        assert [int(next(ahead)[0]) for _ in range(2)] == [3, 4]
        with pytest.raises(SystemExit):
            next(ahead)
        assert values(ahead) == [6, 7]
        ahead.reset()
        assert [int(next(ahead)[0]) for _ in range(2)] == [0, 1]


def test_after_an_error_a_generator_has_ended_and_can_be_reset() -> None:
    def batches() -> Iterator[Any]:
        yield np.array(1)
        raise OSError("torn")

    with prefetch(batches) as ahead:
        for _ in range(2):
            assert int(next(ahead)) == 1
            with pytest.raises(OSError, match="torn"):
                next(ahead)
            assert next(ahead, None) is None
            ahead.reset()


def test_an_error_of_iter_arrives_and_ends_the_epoch() -> None:
    class Broken:
        tries = 0

        def __iter__(self) -> Iterator[Any]:
            Broken.tries += 1
            if Broken.tries == 1:
                raise ConnectionError("not yet")
            return iter([np.array(1)])

    with prefetch(Broken()) as ahead:
        with pytest.raises(ConnectionError, match="not yet"):
            next(ahead)
        assert next(ahead, None) is None
        assert values(ahead) == [1]


def stops_early() -> Any:
    return [next(iter([]))]


class StopsInIter:
    def __iter__(self) -> Iterator[Any]:
        return iter(stops_early())


class StopsInState(Source):
    """Its state cannot be had after the first batch."""

    def state_dict(self) -> Any:
        return stops_early() if self.made else {}

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("source", [stops_early, StopsInIter(), StopsInState(1)], ids=["call", "iter", "state"])
def test_a_stop_iteration_that_is_not_the_end_is_an_error(source: Any) -> None:
    with prefetch(source) as ahead:
        with pytest.raises(RuntimeError, match="raised StopIteration, and not at its end") as caught:
            next(ahead)
        assert isinstance(caught.value.__cause__, StopIteration)
        assert caught.value.__notes__ == ["While batch 0 of the source was read ahead."]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"depth": 0}, ValueError, "depth must be an integer of at least 1"),
        ({"hold": 0}, ValueError, "hold must be an integer of at least 1"),
        ({"depth": True}, ValueError, "depth must be"),
        ({"dtype": "complex64"}, ValueError, "float16, float32, float64, int8, uint8, int32, int64"),
        ({"casting": "same_kind"}, ValueError, '"checked" or "unsafe"'),
        ({"pin_memory": 1}, ValueError, "pin_memory must be True or False"),
        ({"source": 3}, TypeError, "an iterable of batches, or a function that returns one, got int"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        prefetch(**{"source": [], **kwargs})


# Memory.


def test_the_steady_state_uses_its_memory_again_and_faults_nothing() -> None:
    source = Source(400, (80_000,))  # 640 KB a batch: 160 pages
    with prefetch(source, depth=3, hold=2) as ahead:
        for _ in ahead:
            pass
        batches, seen = iter(ahead), set()
        for _ in range(50):
            next(batches)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(200):
            seen.add(address(next(batches)))
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert len(seen) <= 3 + 2
    assert faults < 400  # a fault for every page would be 32,000


def test_a_caller_that_keeps_as_many_as_hold_says_has_no_new_memory() -> None:
    with prefetch(Source(300, (80_000,)), depth=2, hold=6) as ahead:
        kept: deque[Any] = deque(maxlen=5)  # and one in hand
        seen, before = set(), 0
        for step, batch in enumerate(ahead):
            seen.add(address(batch))
            kept.append(batch)
            del batch
            if step == 100:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert len(seen) <= 2 + 6
    assert faults < 400


def test_a_caller_that_keeps_more_gets_new_memory_and_later_the_system_has_it_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    with prefetch(Source(100, (125_000,)), depth=2, hold=2) as ahead:  # 1 MB each
        next(iter(ahead))
        before = resident()
        kept = list(ahead)
        assert all((batch == step + 1).all() for step, batch in enumerate(kept))
        assert resident() - before > 80e6
        kept.clear()
        for _ in ahead:
            pass
        assert resident() - before < 30e6


def test_batches_outlive_what_made_them() -> None:
    ahead = prefetch(Source(20, (1000,)))
    kept = list(ahead)
    ahead.close()
    del ahead
    gc.collect()
    for step, batch in enumerate(kept):
        assert (batch == step).all()
        batch += 1


# The beginning.


class starting:
    """Has the threads of prefetch() begin by a function, which is given the thread and how it is started."""

    def __init__(self, instead: Any) -> None:
        self.instead, self.patch = instead, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        plain, instead = threading.Thread.start, self.instead

        def start(thread: threading.Thread) -> None:
            if thread.name == "penstock-prefetch":
                instead(thread, plain)
            else:
                plain(thread)

        self.patch.setattr(threading.Thread, "start", start)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
@pytest.mark.parametrize("ask", [next, iter, lambda ahead: ahead.reset()], ids=["next", "iter", "reset"])
def test_a_thread_that_cannot_start_is_tried_again(make: Any, ask: Any) -> None:
    def fail(thread: threading.Thread, plain: Any) -> None:
        raise RuntimeError("can't start new thread")

    with prefetch(make([np.array(1), np.array(2)])) as ahead:
        for _ in range(2):
            with starting(fail), pytest.raises(RuntimeError, match="can't start new thread"):
                ask(ahead)
        assert int(next(ahead)) == 1
        assert values(ahead) == [2]
    with starting(fail), pytest.raises(RuntimeError, match="can't start new thread"), prefetch([]) as ahead:
        next(ahead)
    assert all(thread.ident for thread in running)  # exit joins them


@pytest.mark.parametrize("runs", [False, True])
def test_ctrl_c_while_the_thread_starts_leaves_nothing_begun(runs: bool) -> None:
    left: list[threading.Thread] = []

    def torn(thread: threading.Thread, plain: Any) -> None:
        if runs:
            plain(thread)
            left.append(thread)
        raise KeyboardInterrupt

    source = Source(5)
    with prefetch(iter(source)) as ahead:
        with starting(torn), pytest.raises(KeyboardInterrupt):
            next(ahead)
        for thread in left:
            thread.join(20)
            assert not thread.is_alive()
        assert source.opened == 0
        assert [int(next(ahead)[0]) for _ in range(5)] == list(range(5))
    assert len(source.threads) == 1


def test_two_threads_that_begin_at_once_begin_one_reading() -> None:
    started, second = [], threading.Event()

    def slow(thread: threading.Thread, plain: Any) -> None:
        started.append(thread)
        if len(started) == 2:
            second.set()
        else:
            other.start()
            assert not second.wait(0.1)
        plain(thread)

    with prefetch(Source(2)) as ahead:
        got: list[int] = []
        other = threading.Thread(target=lambda: got.append(int(next(ahead)[0])))
        with starting(slow):
            got.append(int(next(ahead)[0]))
            other.join(20)
    assert len(started) == 1 and sorted(got) == [0, 1]


def test_a_reset_does_not_end_a_thread_that_waits_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    source, got = Gated(), []
    with prefetch(source, depth=1) as ahead:
        kind, waits = type(ahead._gate), threading.Semaphore(0)
        take, drain = kind.take, kind.drain

        def noted(self: Any) -> Any:
            waits.release()
            return take(self)

        def consume() -> None:
            try:
                got.append(int(next(ahead)[0]))
            except BaseException as error:
                got.append(error)
            waits.release()

        def in_the_middle(self: Any) -> None:
            drain(self)
            source.may.release()  # the batch of before, which wakes it
            waits.acquire()  # until it waits again

        other = threading.Thread(target=consume)
        monkeypatch.setattr(kind, "take", noted)
        other.start()
        waits.acquire()
        source.asked.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(kind, "drain", in_the_middle)
            ahead.reset()
        source.may.release(10)
        other.join(20)
        assert got == [0]


# The end.


def thread_of(ahead: Any) -> threading.Thread:
    thread = ahead._thread
    assert thread.is_alive()
    return thread  # type: ignore[no-any-return]


def test_close_ends_the_thread_and_the_iterator_of_the_source() -> None:
    source = Source(1000)
    ahead = prefetch(source)
    next(ahead)
    thread = thread_of(ahead)
    ahead.close()
    ahead.close()
    assert not thread.is_alive()
    assert source.closed == 1 and source.made <= 17
    for ask in (ahead.reset, lambda: next(ahead), lambda: iter(ahead)):
        with pytest.raises(RuntimeError, match="was closed"):
            ask()


def test_after_close_the_source_is_not_asked_again() -> None:
    source = Gated()
    ahead = prefetch(source, depth=16)
    iter(ahead)
    source.asked.acquire()
    closer = threading.Thread(target=ahead.close)
    closer.start()
    while not ahead._gate.stopped:
        pass
    source.may.release(100)
    closer.join(20)
    assert not closer.is_alive() and not source.asked.acquire(blocking=False)


@pytest.mark.parametrize("taken", [0, 3, 10])
def test_one_that_is_forgotten_ends_its_thread(taken: int) -> None:
    source = Source(10)
    ahead = prefetch(source)
    iter(ahead)
    for _ in range(taken):
        next(ahead)
    thread, gone = thread_of(ahead), weakref.ref(ahead)
    del ahead
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive() and source.closed == source.opened


def test_one_that_is_forgotten_while_the_source_is_at_a_batch_ends_after_it() -> None:
    source = Gated()
    ahead = prefetch(source)
    iter(ahead)
    source.asked.acquire()
    thread, gone = thread_of(ahead), weakref.ref(ahead)
    del ahead
    assert gone() is None  # the thread does not keep it
    source.may.release(100)
    thread.join(20)
    assert not thread.is_alive()


def test_a_source_that_knows_its_prefetch_is_forgotten_with_it() -> None:
    class Owner:
        def __init__(self) -> None:
            self.ahead = prefetch(self.batches, depth=2)

        def batches(self) -> Iterator[Any]:
            while True:
                yield np.arange(3)

    owner = Owner()
    next(owner.ahead)
    thread, gone = thread_of(owner.ahead), weakref.ref(owner)
    del owner
    while gone() is not None:  # until the thread waits, and holds nothing
        gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_close_wakes_a_thread_that_waits_for_a_batch() -> None:
    source = Gated()
    ahead = prefetch(source, depth=1)
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            next(ahead)
        except RuntimeError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    source.asked.acquire()
    closer = threading.Thread(target=ahead.close)
    closer.start()
    consumer.join(20)
    source.may.release(10)
    closer.join(20)
    assert len(errors) == 1 and "was closed" in str(errors[0])


def test_two_threads_may_take_from_one() -> None:
    with prefetch(Source(500), depth=1) as ahead:
        got: list[list[int]] = [[], []]

        def take(mine: list[int]) -> None:
            while (batch := next(ahead, None)) is not None:
                mine.append(int(batch[0]))

        takers = [threading.Thread(target=take, args=(mine,)) for mine in got]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(20)
            assert not taker.is_alive()
    assert sorted(got[0] + got[1]) == list(range(500))


def test_ctrl_c_while_it_waits_ends_it_until_it_begins_anew() -> None:
    source = Gated()

    def interrupt() -> None:
        source.asked.acquire()
        os.kill(os.getpid(), signal.SIGINT)

    with prefetch(source, depth=1) as ahead:
        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            next(ahead)
        helper.join()
        source.may.release(10)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"was ended by KeyboardInterrupt.*reset\(\) or iter"):
                next(ahead)
        assert int(next(iter(ahead))[0]) == 0


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A `next()` that Ctrl-C reaches when it has just taken a batch."""

    def run(ahead: Any) -> None:
        take = type(ahead._gate).take

        def torn(self: Any) -> Any:
            take(self)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(ahead._gate), "take", torn)
            with pytest.raises(KeyboardInterrupt):
                next(ahead)

    return run


@pytest.mark.parametrize("begin", [iter, lambda ahead: ahead.reset()], ids=["iter", "reset"])
def test_ctrl_c_loses_neither_batches_unseen_nor_the_right_to_read_ahead(begin: Any, interrupted: Any) -> None:
    with prefetch(Source(6), depth=2) as ahead:
        for _ in range(3):  # more often than depth
            assert int(next(ahead)[0]) == 0
            interrupted(ahead)
            with pytest.raises(RuntimeError, match="was ended by KeyboardInterrupt"):
                next(ahead)
            begin(ahead)
        assert values(ahead) == list(range(6))


def test_ctrl_c_ends_other_threads_that_wait_too(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, errors = threading.Event(), []
    with prefetch(Gated(), depth=1) as ahead:
        take = type(ahead._gate).take

        def consume() -> None:
            try:
                next(ahead)
            except RuntimeError as error:
                errors.append(str(error))

        def torn(self: Any) -> Any:
            if threading.current_thread() in others:
                waits.set()
                return take(self)
            raise KeyboardInterrupt

        others = [threading.Thread(target=consume) for _ in range(2)]
        monkeypatch.setattr(type(ahead._gate), "take", torn)
        for other in others:
            other.start()
            waits.wait()
            waits.clear()
        with pytest.raises(KeyboardInterrupt):
            next(ahead)
        for other in others:
            other.join(20)
        assert ["was ended by KeyboardInterrupt" in error for error in errors] == [True, True]
        ahead._source.may.release(10)


def test_an_iterator_that_ctrl_c_has_ended_stays_so(interrupted: Any) -> None:
    with prefetch(iter([np.array(1), np.array(2)])) as ahead:
        interrupted(ahead)
        with pytest.raises(RuntimeError, match="was ended by KeyboardInterrupt"):
            list(ahead)


def test_a_forked_child_has_the_batches_and_not_the_thread() -> None:
    with prefetch(Source(1000, (1000,)), depth=2, hold=2) as ahead:
        kept = [next(ahead) for _ in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python's, for a fork beside threads
            child = os.fork()
        if not child:
            code = 1
            try:
                next(ahead)
            except RuntimeError as error:
                code = 2 * ("forked" not in str(error))
            ahead.close()
            if not all((batch == step).all() for step, batch in enumerate(kept)):
                code = 3
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        del kept
        assert values(ahead) == list(range(3, 1000))


ENDINGS = ("del ahead", "raise SystemExit(0)", "next(ahead); blocked.wait()")


@pytest.mark.parametrize(
    "ending",
    ["", *(pytest.param(each, marks=pytest.mark.wide) for each in ENDINGS)],
)
def test_the_interpreter_exits_in_the_middle_of_an_epoch(ending: str) -> None:
    program = f"""
import threading, numpy as np, penstock
blocked = threading.Event()
def batches():
    for _ in range(21):
        yield np.zeros(1000)
    blocked.set()
    threading.Event().wait()
ahead = penstock.prefetch(batches)
for _ in range(20):
    next(ahead)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# A source with a state.


@pytest.mark.parametrize("taken", [0, 1, 5, 12, 13])
def test_the_state_is_that_of_the_batch_that_was_handed_out_last(taken: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(np.arange(100), 8, shuffle=True, seed=3)

    whole = [batch.tolist() for batch in make()]
    with prefetch(make()) as ahead:
        iter(ahead)
        seen = [next(ahead).tolist() for _ in range(taken)]
        state = ahead.state_dict()
    with prefetch(make()) as after:
        after.load_state_dict(state)
        rest = [batch.tolist() for batch in after]
    assert seen + rest == whole


def shuffled() -> DataLoader[Any]:
    return DataLoader(np.arange(40), 8, shuffle=True, seed=3)


@pytest.mark.parametrize("begin", [iter, lambda ahead: ahead.reset()], ids=["iter", "reset"])
@pytest.mark.parametrize("taken", [0, 2, 6])
def test_the_state_after_a_new_beginning_is_that_of_the_new_epoch(begin: Any, taken: int) -> None:
    with prefetch(shuffled()) as ahead:
        for _ in range(taken):
            next(ahead, None)
        begin(ahead)
        state = ahead.state_dict()
        rest = [batch.tolist() for batch in ahead]
    with prefetch(shuffled()) as after:
        after.load_state_dict(state)
        assert [batch.tolist() for batch in after] == rest


@pytest.mark.parametrize("left", [0, 2, 5])
def test_the_first_state_is_of_the_epoch_that_is_read_and_not_of_the_one_left_before(left: int) -> None:
    loader = shuffled()
    before = iter(loader)
    for _ in range(left):
        next(before)
    del before
    with prefetch(loader) as ahead:
        iter(ahead)
        state = ahead.state_dict()
        assert (state["epoch"], state["steps"]) == (1, 0)
        read = [batch.tolist() for batch in ahead]
    after = shuffled()
    after.load_state_dict(state)
    assert [batch.tolist() for batch in after] == read


def test_the_state_after_an_error_is_behind_it() -> None:
    with prefetch(DataLoader([1, 2, 3, "x", 5, 6], 2, collate_fn=sum, seed=0)) as ahead:
        assert next(ahead) == 3
        with pytest.raises(TypeError):
            next(ahead)
        state = ahead.state_dict()
    with prefetch(DataLoader([1, 2, 3, "x", 5, 6], 2, collate_fn=sum, seed=0)) as after:
        after.load_state_dict(state)
        assert list(after) == [11]


def test_the_state_after_close_is_that_of_the_batch_that_was_handed_out_last() -> None:
    with prefetch(shuffled()) as ahead:
        next(ahead)
        state = ahead.state_dict()
    assert ahead.state_dict() == state


def test_a_state_is_loaded_whatever_was_asked_before() -> None:
    class Counter:
        """An iterator that can be sent anywhere."""

        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Counter:
            return self

        def __next__(self) -> Any:
            self.at += 1
            return np.array(self.at)

        def state_dict(self) -> Any:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    with prefetch(Counter(), depth=3) as ahead:
        for at in (100, 7, 7, 50):
            ahead.load_state_dict({"at": at})
            assert ahead.state_dict() == {"at": at}
            assert [int(next(ahead)) for _ in range(2)] == [at + 1, at + 2]
            assert ahead.state_dict() == {"at": at + 2}


def test_a_state_that_the_source_refuses_changes_nothing() -> None:
    whole = [batch.tolist() for batch in shuffled()]
    with prefetch(shuffled(), depth=2) as ahead:
        for taken in range(6):
            before = ahead.state_dict()
            with pytest.raises(StateError):
                ahead.load_state_dict({"x": 1})
            assert ahead.state_dict() == before
            if taken < 5:
                assert next(ahead).tolist() == whole[taken]
        assert next(ahead, None) is None


@pytest.mark.parametrize("seed", [3, None])
def test_a_state_is_loaded_in_the_middle_of_an_epoch(seed: int | None) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(np.arange(40), 8, shuffle=True, seed=seed)

    with prefetch(make(), depth=2) as first:
        next(first)
        state = first.state_dict()
        rest = [batch.tolist() for batch in first]
    with prefetch(make(), depth=2) as ahead:
        for taken in range(6):
            iter(ahead)
            for _ in range(taken):
                next(ahead)
            ahead.load_state_dict(state)
            assert [batch.tolist() for batch in ahead] == rest


def test_a_state_is_loaded_when_the_source_is_between_batches() -> None:
    class Stateful(Gated):
        def __init__(self) -> None:
            super().__init__()
            self.at, self.busy = 0, False

        def __iter__(self) -> Iterator[Any]:
            while True:
                self.busy = True
                self.asked.release()
                self.may.acquire()
                self.at += 1
                self.busy = False
                yield np.array(self.at)

        def state_dict(self) -> Any:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            assert not self.busy
            self.at = state["at"]

    source = Stateful()
    with prefetch(source, depth=3) as ahead:
        iter(ahead)
        source.asked.acquire()
        loads = threading.Thread(target=ahead.load_state_dict, args=({"at": 50},))
        loads.start()
        source.may.release(100)
        loads.join(20)
        assert [int(next(ahead)) for _ in range(3)] == [51, 52, 53]


def test_ctrl_c_while_a_state_is_loaded_ends_it_until_it_begins_anew() -> None:
    class Torn(Source):
        def state_dict(self) -> Any:
            return {}

        def load_state_dict(self, state: Any) -> None:
            raise KeyboardInterrupt

    with prefetch(Torn(3)) as ahead:
        next(ahead)
        with pytest.raises(KeyboardInterrupt):
            ahead.load_state_dict({})
        with pytest.raises(RuntimeError, match="was ended by KeyboardInterrupt"):
            next(ahead)
        assert values(ahead) == [0, 1, 2]


def test_the_state_of_a_beginning_that_ctrl_c_has_torn_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Torn:
        def __init__(self, permits: Any) -> None:
            self.get = permits.get  # the thread goes on

        def put(self, run: Any) -> None:
            raise KeyboardInterrupt

    with prefetch(shuffled()) as ahead:
        next(ahead)
        with monkeypatch.context() as patch:
            patch.setattr(ahead._gate, "permits", Torn(ahead._gate.permits))
            with pytest.raises(KeyboardInterrupt):
                ahead.reset()
        for ask in (ahead.state_dict, lambda: next(ahead)):
            with pytest.raises(RuntimeError, match="was ended by KeyboardInterrupt"):
                ask()
        assert len(list(ahead)) == 5


def test_a_source_without_a_state_has_none() -> None:
    assert not hasattr(prefetch([]), "state_dict")


def test_which_epoch_is_read_after_a_reset_does_not_depend_on_the_threads_timing() -> None:
    for waits in (True, False):
        loader = DataLoader(np.arange(4), 2, shuffle=True, seed=1)
        epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        with prefetch(loader) as ahead:
            if waits:
                next(ahead)
            else:
                iter(ahead)
            ahead.reset()
            assert [batch.tolist() for batch in ahead] == epochs[1]


def test_a_loaded_state_is_not_used_up_by_a_start_that_came_before_it() -> None:
    loader = DataLoader(np.arange(8), 2, seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    for _ in range(20):
        with prefetch(loader) as ahead:
            iter(ahead)
            ahead.reset()
            ahead.load_state_dict(state)
            assert [batch.tolist() for batch in ahead] == [[2, 3], [4, 5], [6, 7]]
