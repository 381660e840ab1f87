"""Law 5: a worker may be killed at any moment, and nobody notices; or else the error says who and what."""

from __future__ import annotations

import errno
import multiprocessing.context
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same import same

from penstock import DataLoader, Dataset, IterableDataset, WorkerLost, rng
from penstock.backends._process import launcher, methods
from penstock.testing import Dying, Raising

METHODS = ["fork", "spawn", "forkserver"]


class Deadly(Dataset[Any]):
    """The process dies at one key, as long as there is a life left to lose in the folder."""

    def __init__(self, n: int, deadly: int, lives: Path, how: str = "kill") -> None:
        self.n = n
        self.deadly = deadly
        self.lives = lives
        self.how = how

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key == self.deadly:
            for life in sorted(self.lives.iterdir()):
                life.unlink()
                if self.how == "exit":
                    os._exit(7)
                os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSEGV)
        return np.full(4, key)


def give_lives(folder: Path, count: int) -> Path:
    for life in range(count):
        (folder / str(life)).touch()
    return folder


# How a worker died is seen alike however it was started, and so is where a stream keeps its state.
def with_each_method(*values: Any) -> list[Any]:
    """Each value with fork, and the first of them with the methods that take long too: `make wide` has all."""
    return [
        pytest.param(method, value, marks=() if method == "fork" or value == values[0] else pytest.mark.wide)
        for value in values
        for method in METHODS
    ]


@pytest.mark.parametrize(("method", "how"), with_each_method("kill", "exit", "segv"))
def test_a_step_whose_worker_died_is_done_again(tmp_path: Path, method: str, how: str) -> None:
    dataset = Deadly(40, 13, give_lives(tmp_path, 2), how)
    with DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method) as loader:
        for _ in range(2):
            assert [batch[:, 0].tolist() for batch in loader] == np.arange(40).reshape(10, 4).tolist()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS)
def test_a_step_that_kills_every_worker_is_reported_once_and_the_rest_arrives(tmp_path: Path, method: str) -> None:
    dataset = Deadly(40, 13, give_lives(tmp_path, 3))
    with DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method) as loader:
        batches = iter(loader)
        rows = [next(batches)[:, 0].tolist() for _ in range(3)]
        with pytest.raises(WorkerLost, match=r"worker \d \(pid \d+\) died while filling step 3 of epoch 0") as caught:
            next(batches)
        text = str(caught.value)
        for part in ("signal 9 (SIGKILL)", "[12, 13, 14, 15]", "tried 3 times", "out-of-memory"):
            assert part in text
        said = r"\n  torch's DataLoader reports this as: DataLoader worker .* exited unexpectedly: .*Killed\.$"
        assert re.search(said, text) and text.count("\n") == 3, text
        rows += [batch[:, 0].tolist() for batch in batches]
    assert rows == [row for row in np.arange(40).reshape(10, 4).tolist() if 13 not in row]


def test_no_retries_means_the_first_death_is_reported(tmp_path: Path) -> None:
    dataset = Deadly(8, 2, give_lives(tmp_path, 1), "exit")
    with DataLoader(dataset, num_workers=1, retries=0) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        with pytest.raises(WorkerLost, match="exited with code 7") as caught:
            next(batches)
        assert "tried 1 time;" in str(caught.value)
        assert len(list(batches)) == 5


def dies_at_birth(worker: int) -> None:
    os._exit(3)


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_die_at_birth_are_reported_and_not_hired_for_ever(method: str) -> None:
    with (
        DataLoader(range(4), num_workers=2, worker_init_fn=dies_at_birth, multiprocessing_context=method) as loader,
        pytest.raises(WorkerLost, match="exited with code 3"),
    ):
        next(iter(loader))


class OneDiesAtBirth(Dataset[Any]):
    """Whoever has the second seat. The other waits, at each of the first steps, until one more was found dead."""

    def __init__(self, births: Path) -> None:
        births.touch()
        self.births = births

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> Any:
        while sum(not Path(f"/proc/{pid}").exists() for pid in self.born()) < min(key + 1, 4):
            time.sleep(1e-3)
        return key

    def begin(self, seat: int) -> None:
        if seat == 1:
            with self.births.open("a") as file:
                file.write(f"{os.getpid()}\n")
            os._exit(3)

    def born(self) -> list[str]:
        return self.births.read_text().split()


def test_a_seat_where_all_die_at_birth_is_left_empty_and_the_caller_is_told(tmp_path: Path) -> None:
    dataset = OneDiesAtBirth(tmp_path / "births")
    with DataLoader(dataset, num_workers=2, worker_init_fn=dataset.begin) as loader:
        with pytest.warns(RuntimeWarning, match=r"worker 1 \(pid \d+\) exited with code 3") as said:
            assert [batch.item() for batch in loader] == list(range(8))
        assert len(said) == 1
        assert "stays empty until the next epoch" in str(said[0].message)
        assert said[0].filename == __file__
        assert len(dataset.born()) == 4  # retries=2 more than two


def no_memory(**how: Any) -> int:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_where_no_other_can_be_started_those_who_live_do_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Deadly(40, 13, give_lives(tmp_path, 1))
    with DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork") as loader:
        batches = iter(loader)
        monkeypatch.setattr(launcher, "fork", no_memory)
        with pytest.warns(RuntimeWarning, match=r"SIGKILL.*Cannot allocate memory.*stays empty"):
            rows = [batch[:, 0].tolist() for batch in batches]
        assert rows == np.arange(40).reshape(10, 4).tolist()
        assert len(loader.workers) == 1
        monkeypatch.undo()
        assert len(list(loader)) == 10
        assert len(loader.workers) == 2


def test_where_no_other_can_be_started_and_nobody_lives_the_error_says_who_died_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Deadly(40, 13, give_lives(tmp_path, 1))
    with DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork") as loader:
        batches = iter(loader)
        (worker,) = loader.workers
        monkeypatch.setattr(launcher, "fork", no_memory)
        rows = [next(batches)[:, 0].tolist() for _ in range(3)]
        with pytest.raises(WorkerLost) as caught:
            next(batches)
        said = str(caught.value)
        assert said.startswith(
            f"worker 0 (pid {worker.pid}) was killed by signal 9 (SIGKILL), and no replacement could be "
            "started (OSError: [Errno 12] Cannot allocate memory), so no worker could fill step 3 of epoch 0."
        )
        assert "out-of-memory" in said
        assert isinstance(caught.value.__cause__, OSError)
        monkeypatch.undo()
        for _ in range(6):
            with suppress(WorkerLost):  # of a step that had been prefetched
                rows.append(next(batches)[:, 0].tolist())
        assert list(batches) == []
        assert len(list(loader)) == 10
    assert rows[:3] == np.arange(12).reshape(3, 4).tolist()


def test_a_crew_that_cannot_be_started_is_the_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "fork", no_memory)
    with (
        DataLoader(range(4), num_workers=2, multiprocessing_context="fork") as loader,
        pytest.raises(OSError, match="Cannot allocate memory"),
    ):
        iter(loader)


class Growing(Dataset[Any]):
    """Tells whether a change was made, and how often."""

    grown = 0
    lock: Any = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> Any:
        return 100 * self.grown + key


def grow(dataset: Growing) -> None:
    dataset.grown += 1


def test_beside_threads_that_came_later_a_replacement_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "survives_fork", lambda: True)
    with DataLoader(Growing(), num_workers=1, prefetch_factor=1) as loader:
        batches = iter(loader)
        seen = [next(batches).item()]
        loader.update(grow)
        seen.append(next(batches).item())
        monkeypatch.setattr(methods, "survives_fork", lambda: False)  # as beside a thread
        monkeypatch.setattr(launcher, "fork", no_memory)
        for _ in range(2):  # the second from the dataset that was sent for the first
            kill(loader)
            seen.append(next(batches).item())
            loader.update(grow)
            seen.append(next(batches).item())
        seen += [batch.item() for batch in batches]
    assert seen == [0, 101, 102, 203, 204, *range(305, 312)]


def test_a_dataset_that_cannot_be_sent_is_forked_beside_threads_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "survives_fork", lambda: True)
    dataset = Growing()
    dataset.lock = threading.Lock()
    with DataLoader(dataset, num_workers=1, prefetch_factor=1) as loader:
        batches = iter(loader)
        seen = [next(batches).item()]
        monkeypatch.setattr(methods, "survives_fork", lambda: False)
        kill(loader)
        with pytest.warns(RuntimeWarning, match=r"(?s)forked beside threads.*\.lock is a _thread\.lock"):
            seen += [batch.item() for batch in batches]
        kill(loader)
        assert [batch.item() for batch in loader] == seen == list(range(12))  # it is said once


def test_fork_that_was_asked_for_stays_fork_beside_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "survives_fork", lambda: False)
    dataset = Growing()
    dataset.lock = threading.Lock()
    with DataLoader(dataset, num_workers=1, prefetch_factor=1, multiprocessing_context="fork") as loader:
        batches = iter(loader)
        next(batches)
        kill(loader)
        assert len(list(batches)) == 11


class ForeignProcess(multiprocessing.context.ForkProcess):
    _start_method = "library"


class Foreign(multiprocessing.context.BaseContext):
    """Has a start method of its own, which penstock does not know."""

    _name = "library"
    Process = ForeignProcess


def test_fork_in_the_place_of_an_unknown_method_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "survives_fork", lambda: True)
    methods._warn.cache_clear()
    with pytest.warns(UserWarning, match="is not one of Python's own.*by fork") as said:
        loader = DataLoader(Growing(), num_workers=1, prefetch_factor=1, multiprocessing_context=Foreign())
    assert said[0].filename == __file__
    with loader:
        batches = iter(loader)
        seen = [next(batches).item()]
        monkeypatch.setattr(methods, "survives_fork", lambda: False)
        monkeypatch.setattr(launcher, "fork", no_memory)
        kill(loader)
        seen += [batch.item() for batch in batches]
    assert seen == list(range(12))


def pairs(samples: Any) -> Any:
    return samples


class DyingStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from range(4)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_a_stream_that_dies_with_its_reader_is_one_error_and_never_begins_again(prefetch_factor: int) -> None:
    with DataLoader(DyingStream(), batch_size=2, num_workers=1, prefetch_factor=prefetch_factor) as loader:
        for epoch in range(2):
            batches = iter(loader)
            assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
            with pytest.raises(WorkerLost, match=r"^worker 0 \(pid \d+\) died") as caught:
                next(batches)
            text = str(caught.value)
            assert f"filling step 2 of epoch {epoch}: it was killed by signal 9 (SIGKILL)" in text
            assert "the epoch ends here.\n  A stream with state_dict() and load_state_dict() continues" in text
            assert list(batches) == []


class DyingBefore(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield 0


def test_a_stream_that_kills_every_reader_before_its_first_item_is_one_error() -> None:
    with DataLoader(DyingBefore(), num_workers=1, retries=1) as loader:
        batches = iter(loader)
        with pytest.raises(WorkerLost, match=r"filling step 0 of epoch 0: (.|\n)*tried 2 times"):
            next(batches)
        assert list(batches) == []


class SelfishStream(IterableDataset[Any]):
    """Tells its reader's pid, so that it can be killed while idle."""

    def __iter__(self) -> Iterator[Any]:
        for item in range(100):
            yield os.getpid(), item


def test_a_stream_whose_reader_dies_idle_is_an_error_too() -> None:
    with DataLoader(SelfishStream(), batch_size=1, num_workers=1, collate_fn=pairs) as loader:
        batches = iter(loader)
        ((pid, item),) = next(batches)
        assert item == 0
        process = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        os.close(process)
        with pytest.raises(WorkerLost):  # the stream may not end silently
            list(batches)


class Restored(IterableDataset[Any]):
    """A stream with a state, which also draws; the process that reads it dies at some items."""

    def __init__(self, n: int, file: Path, deadly: tuple[int, ...], lives: int = 1) -> None:
        self.at = 0
        self.n = n
        self.deadly = Dying(range(n), deadly, file, lives)

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            self.at += 1
            yield self.deadly[self.at - 1], random.random(), rng().random()
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ByIterator(IterableDataset[Any]):
    """The same, where the state is the iterator's."""

    def __init__(self, n: int, file: Path, deadly: tuple[int, ...], lives: int = 1) -> None:
        self.of = n, file, deadly, lives
        self.home = os.getpid()

    def __iter__(self) -> Iterator[Any]:
        stream = Restored(*self.of)
        stream.deadly._home = self.home
        return Iterating(stream)


class Iterating:
    def __init__(self, stream: Restored) -> None:
        self.stream = stream
        self.items = iter(stream)

    def __iter__(self) -> Iterating:
        return self

    def __next__(self) -> Any:
        return next(self.items)

    def state_dict(self) -> dict[str, int]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.stream.load_state_dict(state)


@pytest.mark.parametrize(("method", "stream"), with_each_method(Restored, ByIterator))
def test_a_stream_with_a_state_goes_on_in_another_worker(tmp_path: Path, stream: Any, method: str) -> None:
    def make(**settings: Any) -> DataLoader[Any]:
        return DataLoader(stream(21, tmp_path / "deaths", (0, 7, 20)), 2, seed=3, **settings)

    with make(num_workers=1, multiprocessing_context=method) as loader, make() as inline:
        for _ in range(2):
            assert same(list(loader), list(inline))
    assert (tmp_path / "deaths").read_text().split() == ["0", "7", "20"]


class Forgetful(Restored):
    def state_dict(self) -> Any:
        raise LookupError("no state today")


def test_the_error_for_a_lost_stream_says_that_its_state_could_not_be_taken(tmp_path: Path) -> None:
    stream = Forgetful(20, tmp_path / "deaths", (7,))
    with DataLoader(stream, 2, seed=3, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(WorkerLost, match=r"(?s)the epoch ends here.*Forgetful .*LookupError: no state today"):
            next(batches)
        assert list(batches) == []


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_a_rank_s_stream_goes_on_in_another_worker(tmp_path: Path, last_batch: str) -> None:
    for rank in range(3):

        def make(rank: int = rank, **settings: Any) -> DataLoader[Any]:
            stream = Restored(32, tmp_path / f"deaths {rank}", (1, 8, 30))
            return DataLoader(stream, 2, seed=3, shard=(rank, 3), last_batch=last_batch, **settings)

        with make(num_workers=1) as loader, make() as inline:
            assert same(list(loader), list(inline))
        assert (tmp_path / f"deaths {rank}").read_text().split() == ["1", "8", "30"]


class Revealing(Restored):
    """Tells its reader's pid, so that it can be killed while idle."""

    def __iter__(self) -> Iterator[Any]:
        for item, *_ in super().__iter__():
            yield os.getpid(), item


def test_a_stream_with_a_state_goes_on_though_its_reader_died_idle(tmp_path: Path) -> None:
    stream = Revealing(40, tmp_path / "deaths", ())
    with DataLoader(stream, 1, num_workers=1, prefetch_factor=1, collate_fn=pairs) as loader:
        items, pids = [], set()
        for ((pid, item),) in loader:
            items.append(item)
            pids.add(pid)
            if item in (3, 20):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert items == list(range(40))
    assert len(pids) == 3


class Epochs(Restored):
    """Its items tell how often it was read before, and its reader dies in the second epoch."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.n:
            self.at += 1
            yield self.epoch, self.deadly[self.at - 1] if self.epoch == 1 else self.at - 1
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


@pytest.mark.parametrize(("method", "deadly"), [("fork", (0, 1, 5)), ("fork", (0,)), ("spawn", (1, 9))])
def test_what_a_stream_keeps_from_epoch_to_epoch_is_kept(
    tmp_path: Path, method: str, deadly: tuple[int, ...]
) -> None:
    stream = Epochs(11, tmp_path / "deaths", deadly)
    with DataLoader(stream, 2, seed=3, num_workers=1, multiprocessing_context=method) as loader:
        for epoch in range(4):
            rows = [row for batch in loader for row in zip(*(part.tolist() for part in batch), strict=True)]
            assert rows == [(epoch, item) for item in range(11)]
    assert (tmp_path / "deaths").read_text().split() == [str(item) for item in deadly]


def kill(loader: DataLoader[Any]) -> None:
    (worker,) = loader.workers
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(10)


def epochs_in(batches: Any) -> list[int]:
    return [epoch for batch in batches for epoch in batch[0].tolist()]


def test_what_a_stream_keeps_is_kept_though_its_reader_died_before_it_told_of_the_end(tmp_path: Path) -> None:
    stream = Epochs(5, tmp_path / "deaths", ())
    with DataLoader(stream, 2, seed=3, num_workers=1, prefetch_factor=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        kill(loader)
        assert epochs_in(batches) == []
        assert epochs_in(loader) == [1] * 5
        assert epochs_in(loader) == [2] * 5


def test_what_a_dead_reader_left_is_forgotten_by_one_that_is_told_where_to_begin(tmp_path: Path) -> None:
    def make(**settings: Any) -> DataLoader[Any]:
        return DataLoader(Epochs(4, tmp_path / "deaths", ()), 2, seed=3, **settings)

    other = make()
    for _ in range(5):
        list(other)
    next(iter(other))
    with make(num_workers=1) as loader:
        list(loader)
        kill(loader)
        loader.load_state_dict(other.state_dict())
        assert epochs_in(loader) == [5] * 2
        assert epochs_in(loader) == [6] * 4


def test_a_stream_that_was_resumed_goes_on_in_another_worker(tmp_path: Path) -> None:
    """Also where the worker dies before it has sent anything, and after it was left in the middle of an epoch."""

    def make(deadly: tuple[int, ...], **settings: Any) -> DataLoader[Any]:
        return DataLoader(Restored(30, tmp_path / "deaths", deadly), 2, seed=3, **settings)

    whole = list(make(()))
    with make((9, 12, 13), num_workers=1, prefetch_factor=1) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        for _ in range(2):
            loader.load_state_dict(state)
            batches = iter(loader)
            assert same([next(batches) for _ in range(3)], whole[4:7])
        loader.load_state_dict(state)
        assert same(list(loader), whole[4:])
    assert (tmp_path / "deaths").read_text().split() == ["9", "12", "13"]


def test_an_item_that_kills_every_reader_ends_the_epoch(tmp_path: Path) -> None:
    with DataLoader(Restored(20, tmp_path / "deaths", (7,), lives=9), 2, num_workers=1, retries=1) as loader:
        batches = iter(loader)
        seen = [next(batches)[0].tolist() for _ in range(3)]
        with pytest.raises(
            WorkerLost,
            match=r"died while filling step 3 of epoch 0: .*SIGKILL(.|\n)*the epoch ends here(.|\n)*tried 2 times",
        ):
            next(batches)
        assert list(batches) == []
    assert seen == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_lost_worker_takes_no_bad_sample_along(tmp_path: Path, on_error: str) -> None:
    def make(**settings: Any) -> DataLoader[Any]:
        dataset = Raising(Dying(range(60), {13, 30}, tmp_path / "deaths"), {12, 31, 32, 33})
        return DataLoader(dataset, batch_size=4, shuffle=True, seed=3, on_error=on_error, **settings)

    with make() as inline, make(num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in inline]
        assert [key for key, _ in loader.skipped] == [key for key, _ in inline.skipped]
    assert sorted((tmp_path / "deaths").read_text().split()) == ["13", "30"]


class Stumbling(IterableDataset[int]):
    """Its iterator has a state, raises in the place of some items, and goes on. Its reader tells its pid."""

    def __iter__(self) -> Iterator[int]:
        return StumblingIterator()


class StumblingIterator(Iterator[int]):
    at = 0

    def __next__(self) -> int:
        if self.at == 12:
            raise StopIteration
        self.at += 1
        if self.at in (1, 6):
            raise ValueError(f"item {self.at}")
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def outcomes(batches: Iterator[Any], then: Callable[[], object]) -> list[Any]:
    """What `next` gives until the end; `then` is called after each error."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(batches).tolist())
        except StopIteration:
            return found
        except ValueError as error:
            found.append(str(error))
            then()


def test_a_reader_that_is_killed_after_it_has_raised_is_replaced() -> None:
    with DataLoader(Stumbling(), 2, seed=3, num_workers=1, prefetch_factor=1) as loader:

        def kill() -> None:
            (reader,) = loader.workers
            reader.kill()
            reader.join()

        found = outcomes(iter(loader), kill)
    assert found == outcomes(iter(DataLoader(Stumbling(), 2, seed=3)), lambda: None)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_stream_that_goes_on_belongs_to_one_rank(workers: int) -> None:
    whole = outcomes(iter(DataLoader(Stumbling(), 2, seed=3)), lambda: None)
    for rank in range(2):
        settings: dict[str, Any] = {"shard": (rank, 2), "last_batch": "keep", "num_workers": workers}
        with DataLoader(Stumbling(), 2, seed=3, **settings) as loader:
            assert outcomes(iter(loader), lambda: None) == whole[rank::2]
