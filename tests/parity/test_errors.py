"""Errors: the type, the text that programs look for, the place in the stream; and the stream goes on."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock.torch
from parity import sources
from parity.pair import Tape, begin, both, epoch, take


class Plain(Exception):
    pass


class TwoArguments(Exception):
    def __init__(self, first: int, second: str) -> None:
        super().__init__(f"{first} and {second}")


class WithMessage(Exception):
    message = "has one"

    def __init__(self, code: int = 0, message: str = "") -> None:
        super().__init__(message or f"code {code}")


def chained() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        raise Plain("cannot read the sample") from error


def thrower(error: BaseException) -> Callable[[], None]:
    def throw() -> None:
        raise error

    return throw


ERRORS: dict[str, Callable[[], Any]] = {
    "a value": thrower(ValueError("bad value")),
    "a key": thrower(KeyError("missing")),
    "a key of another type": thrower(KeyError((1, "two"))),
    "an index": lambda: [].pop(),
    "input": lambda: os.open("/nowhere/at/all", os.O_RDONLY),
    "our own": thrower(Plain("own error")),
    "nothing said": thrower(Plain()),
    "two arguments": thrower(TwoArguments(3, "four")),
    "a message attribute": thrower(WithMessage(5)),
    "several lines": thrower(Plain("first line\n\nand a last line")),
    "unicode": lambda: b"\xff".decode(),
    "json": lambda: json.loads("{"),
    "a process": thrower(subprocess.CalledProcessError(3, "true")),
    "chained": chained,
    "assertion": thrower(AssertionError("assert this")),
    "stop async": thrower(StopAsyncIteration("odd")),
    "memory": thrower(MemoryError("no more")),
    "not implemented": thrower(NotImplementedError()),
    "recursion": thrower(RecursionError("too deep")),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ERRORS)
def test_a_failing_sample_raises_once_in_its_place_and_the_stream_goes_on(name: str, workers: int) -> None:
    def make(key: int) -> int:
        return ERRORS[name]() if key == 3 else key

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Made(7, make), 2, num_workers=workers), tape)

    (error,) = [what for event, what in both(program) if event == "raised"]
    if workers:
        assert "in DataLoader worker process 0." in str(error) and "in __getitem__" in str(error)


def test_the_cause_of_an_error_is_in_the_text_too() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Made(1, lambda key: chained()), num_workers=1), tape)

    (error,) = [what for event, what in both(program) if event == "raised"]
    for part in ("JSONDecodeError", "direct cause", "cannot read the sample"):
        assert part in str(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_collate_fn_is_like_one_of_a_sample(workers: int) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 3 in samples:
            raise TypeError("cannot collate three")
        return samples

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(range(8), 2, num_workers=workers, collate_fn=collate), tape)

    both(program)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_raised_has_ended(workers: int, batch_size: int | None) -> None:
    def make() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the stream broke")

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.MadeStream(make), batch_size, num_workers=workers), tape)

    both(program)


class Resuming:
    """No generator: its error does not end it."""

    def __init__(self) -> None:
        self.at = -1

    def __iter__(self) -> Resuming:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at % 4 == 2:
            raise KeyError(self.at)
        if self.at == 11:
            raise StopIteration
        return self.at


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_can_go_on_after_an_error_goes_on(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.MadeStream(Resuming), 2, num_workers=workers), tape)

    both(program)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_cannot_begin(workers: int) -> None:
    def make() -> Iterator[int]:
        raise OSError(5, "no such stream")

    def program(loader_class: Any, tape: Tape) -> None:
        batches = begin(loader_class(sources.MadeStream(make), num_workers=workers), tape)
        if batches is not None:
            take(batches, tape, workers)  # one error from each; what torch says later is no model

    both(program)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_error_of_worker_init_fn_is_the_first_result_of_each_worker(workers: int) -> None:
    def init(worker: int) -> None:
        raise LookupError(f"worker {worker} finds nothing")

    def program(loader_class: Any, tape: Tape) -> None:
        batches = begin(loader_class(range(9), num_workers=workers, worker_init_fn=init), tape)
        take(batches, tape, workers)

    both(program)


def test_one_worker_that_could_not_begin_does_not_stop_the_other() -> None:
    def init(worker: int) -> None:
        if worker == 0:
            raise LookupError("not me")

    def program(loader_class: Any, tape: Tape) -> None:
        batches = begin(loader_class(range(9), num_workers=2, worker_init_fn=init), tape)
        take(batches, tape, 2)

    both(program)


def test_a_batch_that_does_not_come_in_time_is_an_error_and_may_still_come() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        with sources.gated(4, 1) as (dataset, let_go):
            loader = loader_class(dataset, None, num_workers=1, timeout=1, multiprocessing_context="fork")
            batches = begin(loader, tape)
            take(batches, tape, 2)
            let_go()
            take(batches, tape)

    both(program)


def test_an_epoch_that_cannot_begin_in_time_is_an_error() -> None:
    """The worker is still at a step of the epoch that was left."""

    def program(loader_class: Any, tape: Tape) -> None:
        how = {"timeout": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
        with sources.gated(4, 1) as (dataset, let_go):
            loader = loader_class(dataset, None, num_workers=1, **how)
            batches = begin(loader, tape)
            take(batches, tape, 2)
            assert begin(loader, tape) is None
            take(batches, tape)
            let_go()  # torch waits for its workers at their end

    both(program)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_timeout_shows_the_users_code_and_not_ours(seed: int | None) -> None:
    how: dict[str, Any] = {"timeout": 1, "multiprocessing_context": "fork", "seed": seed}
    with sources.gated(3, 1) as (dataset, let_go):
        batches = iter(penstock.torch.DataLoader(dataset, num_workers=1, **how))
        assert next(batches).item() == 0
        with pytest.raises(RuntimeError, match="timed out after 1 seconds") as caught:
            next(batches)
        frames = re.findall(r'File "(.*)", line \d+ in (\w+)', str(caught.value))
        assert [name for _, name in frames] == ["make", "__getitem__"]
        let_go()
        assert next(batches).item() == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_cannot_be_pickled(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        batches = iter(loader_class(range(3), num_workers=workers))
        with pytest.raises(NotImplementedError):
            pickle.dumps(batches)
        take(batches, tape)

    both(program)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_end_stays_the_end(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        batches = begin(loader_class(range(3), num_workers=workers), tape)
        for _ in range(3):
            take(batches, tape)

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_dataset_ends_at_once(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class([], 2, num_workers=workers)
        tape.append(len(loader))
        epoch(loader, tape)
        epoch(loader_class(sources.MadeStream(lambda: iter([])), 2, num_workers=workers), tape)

    both(program)
