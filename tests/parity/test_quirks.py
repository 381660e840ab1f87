"""Where we do it otherwise than torch, on purpose. What torch does is said beside each."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import programs
from torch.utils.data import IterableDataset

from parity import sources
from parity.compare import difference
from parity.pair import Ours, Tape, epoch, forget_frames, run
from penstock import LoaderTimeout


def stop(key: int) -> int:
    if key == 3:
        raise StopIteration("from a sample")
    return key


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_stop_iteration_from_a_sample_is_an_error_and_no_end(workers: int) -> None:
    """torch ends the epoch there, silently."""

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Made(6, stop), None, num_workers=workers), tape)

    tape = run(program, Ours)
    assert [batch for kind, batch in tape if kind == "batch"] == [0, 1, 2, 4, 5]
    (error,) = [error for kind, error in tape if kind == "raised"]
    assert isinstance(error, RuntimeError) and "StopIteration" in str(error)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_soon_an_error_that_names_it(workers: int, how: signal.Signals) -> None:
    """torch: with one worker most often a ConnectionResetError or EOFError that says nothing."""
    took = 5.0
    for _ in range(5):  # on a busy machine more than one may be late; torch looks every five seconds, so all would be
        if took < 4:
            break
        batches = iter(
            Ours(sources.Made(50, sources.tell_pid), None, num_workers=workers, collate_fn=sources.identity)
        )
        worker, pid = next(batches)
        begun = time.monotonic()
        os.kill(pid, how)
        seen, error = [], None
        try:
            seen.extend(batches)
        except RuntimeError as caught:
            error = forget_frames(caught)
        assert error is not None, f"an epoch of {1 + len(seen)} batches without worker {worker}, and no error"
        assert f"pid(s) {pid}" in str(error) or f"pid {pid}" in str(error)
        assert how.name in str(error) or str(signal.strsignal(how)) in str(error)
        took = time.monotonic() - begun
    assert took < 4


def test_a_worker_that_exits_by_itself_is_an_error_that_names_it() -> None:
    batches = iter(Ours(sources.Made(4, leave), None, num_workers=1))
    pid = batches._workers[0].pid
    with pytest.raises(RuntimeError, match=rf"pid\(?s?\)? {pid}\b(?s:.*)\b7\b"):
        list(batches)


def leave(key: int) -> int:
    if key == 1:
        os._exit(7)
    return key


def test_settings_that_pass_the_constructor_and_cannot_work_are_refused_at_the_latest_by_iter() -> None:
    """torch's constructor lets them pass, and its iterators assert."""
    with pytest.raises((AssertionError, ValueError), match="timeout"):
        iter(Ours(range(3), timeout=1))
    with pytest.raises((AssertionError, ValueError), match="prefetch_factor"):
        iter(Ours(range(3), num_workers=1, prefetch_factor=0))


def test_every_batch_of_a_worker_that_could_not_begin_is_that_error() -> None:
    """torch: the first only, and then an UnboundLocalError of its own."""

    def init(worker: int) -> None:
        if worker == 0:
            raise LookupError("nothing found")

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(range(6), None, num_workers=2, worker_init_fn=init), tape)

    tape = run(program, Ours)
    assert [batch for kind, batch in tape if kind == "batch"] == [1, 3, 5]
    errors = [error for kind, error in tape if kind == "raised"]
    assert len(errors) == 3
    assert all(type(error) is LookupError and "nothing found" in str(error) for error in errors)


class SecondTime(IterableDataset[int]):
    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        if self.begun == 2:
            raise LookupError("not a second time")
        return iter(range(2))


def test_a_stream_that_cannot_begin_again_is_an_error_of_its_own() -> None:
    """torch: the worker dies of it, and the error says that a worker exited."""
    loader = Ours(SecondTime(), None, num_workers=1, persistent_workers=True, timeout=30)
    assert list(loader) == [0, 1]
    with pytest.raises(LookupError, match="not a second time"):
        list(loader)


def test_an_epoch_that_could_not_begin_in_time_begins_when_its_worker_is_free() -> None:
    """torch takes the worker's late answer for one to the second try, and fails at the other."""
    gate, key = os.pipe()

    def make(number: int) -> Any:
        if number == 1:
            os.read(gate, 1)
        return number, os.getpid()

    loader = Ours(
        sources.Made(3, make), 1, num_workers=1, timeout=1, persistent_workers=True, collate_fn=sources.identity,
        multiprocessing_context="fork",
    )  # fmt: skip
    batches = iter(loader)
    ((_, worker),) = next(batches)
    for _ in range(2):
        with pytest.raises(LoaderTimeout):
            iter(loader)
    os.write(key, b"x")  # for the step of the epoch that was left
    os.write(key, b"x")
    assert list(loader) == [[(number, worker)] for number in range(3)]
    os.close(gate)
    os.close(key)


UNSENDABLE: dict[str, Callable[[int], Any]] = {
    "a lock": lambda key: threading.Lock(),
    "a tensor in the middle of a graph": lambda key: torch.ones(2, requires_grad=True) * key,
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_a_batch_that_cannot_be_sent_is_an_error_and_the_stream_goes_on(name: str) -> None:
    """torch waits for it for ever."""

    def make(key: int) -> Any:
        return UNSENDABLE[name](key) if key == 1 else key

    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(sources.Made(3, make), 1, num_workers=1, collate_fn=sources.identity, timeout=10)
        epoch(loader, tape, 4)

    tape = run(program, Ours)
    assert [batch for kind, batch in tape if kind == "batch"] == [[0], [2]]
    (error,) = [error for kind, error in tape if kind == "raised"]
    assert "timed out" not in str(error)


def test_an_exception_that_cannot_be_sent_is_an_error_and_the_stream_goes_on() -> None:
    """torch waits for it for ever."""

    class LocalError(Exception):
        pass

    def make(key: int) -> int:
        if key == 1:
            raise LocalError("of a class that only this test knows")
        return key

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(sources.Made(3, make), None, num_workers=1, timeout=10), tape, 4)

    tape = run(program, Ours)
    assert [batch for kind, batch in tape if kind == "batch"] == [0, 2]
    (error,) = [error for kind, error in tape if kind == "raised"]
    assert "of a class that only this test knows" in str(error)


def conjugate(key: int) -> torch.Tensor:
    return torch.tensor([complex(1, key + 1)]).conj()


WRONG_WITH_WORKERS: dict[str, Callable[[int], torch.Tensor]] = {
    "conjugate": conjugate,
    "negative": lambda key: conjugate(key).imag,
    "quantised": lambda key: torch.quantize_per_tensor(torch.arange(4.0) + key, 0.5, 1, torch.qint8),
}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("name", WRONG_WITH_WORKERS)
def test_workers_deliver_what_torch_delivers_without_them(name: str, batch_size: int | None) -> None:
    """torch's workers lose the conjugate and the negative bit silently (!), and fail at quantised tensors."""

    def program(workers: int) -> Any:
        def compared(loader_class: Any, tape: Tape) -> None:
            data = sources.Made(4, WRONG_WITH_WORKERS[name])
            tape.extend(loader_class(data, batch_size, num_workers=workers))

        return compared

    expected = run(program(0), Ours)
    assert (problem := difference(run(program(1), Ours), expected)) is None, problem


def test_tensors_of_unequal_dtypes_are_never_cut_to_the_first_ones() -> None:
    """torch promotes them without workers, and refuses them with workers. Either is good; 1.5 -> 1 is not."""
    data = sources.Made(2, lambda key: torch.tensor([1]) if key == 0 else torch.tensor([1.5]))
    try:
        (batch,) = Ours(data, 2, num_workers=1)
    except TypeError as error:
        forget_frames(error)
    else:
        assert batch.tolist() == [[1.0], [1.5]]


def test_two_hundred_batches_can_be_kept_with_a_hundred_descriptors(
    torch_forge: socket.socket, tmp_path: Path
) -> None:
    """torch keeps a descriptor for every tensor of a batch that came from a worker."""
    text = """
    import resource, torch
    from penstock.torch import DataLoader
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    loader = DataLoader(torch.arange(200 * 64).reshape(200, 64), num_workers=2)
    for _ in range(2):
        kept = list(loader)
        print(sum(batch[0, 0].item() for batch in kept))
    """
    with programs(torch_forge, tmp_path) as begin:
        total = 64 * 199 * 200 // 2
        assert begin(text).end() == (0, f"{total}\n{total}\n", "")


def test_lambdas_and_local_classes_travel_under_spawn() -> None:
    """torch cannot pickle them."""

    class Local:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, key: int) -> int:
            return 10 * key

    loader = Ours(Local(), 2, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda samples: sum(samples))
    assert list(loader) == [10, 50]


def test_a_sample_named_in_the_error() -> None:
    """torch says which worker it was, and nothing of the sample."""
    loader = Ours(sources.Noisy(9, frozenset({7})), 4, num_workers=2)
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 1") as caught:
        list(loader)
    said = str(caught.value) + "\n".join(getattr(caught.value, "__notes__", []))
    assert "sample 7" in said.replace("bad sample 7", "")
