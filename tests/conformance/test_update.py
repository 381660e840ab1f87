"""A dataset that is changed by `update()`: the next batch has it, on every backend, as it would inline."""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same import same

from penstock import ArrayDataset, DataLoader, Dataset, IterableDataset, Subset, mix
from penstock._engine import pace
from penstock._session import engines
from penstock._wire.updates import Setting, UpdateLog, encode


class Sized(Dataset[Any]):
    def __init__(self, n: int = 60) -> None:
        self.n = n
        self.size = 1
        self.times = 0
        self.bank: Any = None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return key, self.size, self.times


class Light(IterableDataset[Any]):
    size = 1

    def __iter__(self) -> Any:
        return iter(range(60))

    def load(self, item: int) -> Any:
        return item, self.size


def once_more(dataset: Any) -> None:
    dataset.times += 1


@pytest.fixture(params=[False, True], ids=["step by step", "in bundles"])
def bundled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SECONDS", 10.0 if request.param else 0.0)


@pytest.mark.usefixtures("bundled")
def test_the_next_batch_has_the_change(make: Any) -> None:
    loader = make(Sized(), batch_size=2, shuffle=True, seed=1)
    plain = DataLoader(Sized(), batch_size=2, shuffle=True, seed=1)
    found: list[list[Any]] = [[], []]
    for which, one in enumerate((loader, plain)):
        one.update(size=2)
        for epoch in range(2):
            for at, batch in enumerate(one):
                found[which].append(batch)
                if at in (0, 7, 8, 20, 29):
                    one.update(size=at)
                    one.update(once_more)
            one.update(size=100 + epoch)
    assert same(found[0], found[1])
    assert loader.dataset.times == plain.dataset.times == 10


def test_light_items_are_loaded_again(make: Any) -> None:
    loader = make(Light(), batch_size=2)
    sizes = []
    for at, batch in enumerate(loader):
        sizes.append(batch[1].tolist())
        if at == 3:
            loader.update(size=7)
    assert sizes == [[1, 1]] * 4 + [[7, 7]] * 26


def test_out_of_order_each_step_still_comes_once(make_concurrent: Any) -> None:
    loader = make_concurrent(Sized(), batch_size=2, in_order=False)
    seen = []
    for at, batch in enumerate(loader):
        seen += batch[0].tolist()
        assert set(batch[1].tolist()) == {1 if at <= 5 else 9}
        if at == 5:
            loader.update(size=9)
    assert sorted(seen) == list(range(60))


def test_an_iterator_that_is_left_and_an_idle_crew_have_it_too(make: Any) -> None:
    loader = make(Sized(), batch_size=2)
    next(iter(loader))
    loader.update(size=3)
    assert {int(size) for batch in loader for size in batch[1]} == {3}
    loader.update(size=4)
    assert {int(size) for batch in loader for size in batch[1]} == {4}


class Mortal(Sized):
    def __init__(self, lives: Path) -> None:
        super().__init__()
        self.lives = lives

    def __getitem__(self, key: int) -> Any:
        if key == 30:
            for life in self.lives.iterdir():
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


def test_a_worker_that_takes_the_place_of_another_has_it(make_processes: Any, tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    loader = make_processes(Mortal(tmp_path), batch_size=2)
    batches = iter(loader)
    next(batches)
    loader.update(size=5)
    loader.update(once_more)
    rest = [tuple(column.tolist() for column in batch) for batch in batches]
    assert rest == [([key, key + 1], [5, 5], [1, 1]) for key in range(2, 60, 2)]
    assert not list(tmp_path.iterdir())


def test_a_longer_dataset_is_longer_in_the_next_epoch(make: Any) -> None:
    loader = make(Sized(4), batch_size=2)
    assert len(list(loader)) == 2
    loader.update(n=6)
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_a_state_counts_what_was_handed_out(make: Any) -> None:
    loader = make(Sized(), batch_size=2, seed=1)
    batches = iter(loader)
    next(batches)
    loader.update(size=2)
    assert loader.state_dict()["steps"] == 1
    next(batches)
    assert loader.state_dict()["steps"] == 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(9))


def test_what_cannot_be_read_again_is_refused() -> None:
    with DataLoader(Stream(), num_workers=1) as loader, pytest.raises(ValueError, match=r"load\(item\)"):
        loader.update(size=1)
    loader = DataLoader(Sized())
    with pytest.raises(TypeError, match="takes either a function"):
        loader.update()
    with pytest.raises(TypeError, match="takes either a function"):
        loader.update(once_more, size=1)
    with pytest.raises(TypeError, match="takes either a function"):
        loader.update(416)  # type: ignore[arg-type]


def test_an_attribute_that_the_dataset_does_not_have_is_refused_before_anything_changes() -> None:
    loader = DataLoader(Sized(), batch_size=2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(AttributeError, match=r"Sized has no attribute 'sizes'\. Did you mean 'size'\?"):
        loader.update(n=3, sizes=2)
    with pytest.raises(AttributeError, match="To add an attribute, pass a function"):
        loader.update(zyx=2)
    with pytest.raises(AttributeError, match="Sized, is no mixture"):
        loader.update(weights={"a": 1})
    with pytest.raises(AttributeError, match="list, is no mixture"):
        DataLoader([1, 2]).update(weights={"a": 1})
    assert loader.dataset.n == 60 and len(list(batches)) == 29


def test_a_misspelled_weights_is_refused() -> None:
    mixture = mix({"a": [1, 2], "b": [3]}, {"a": 1, "b": 1})
    for dataset in (mixture, mixture.map(str)):
        with pytest.raises(AttributeError, match="Did you mean 'weights'"):
            DataLoader(dataset).update(weight={"a": 0, "b": 1})


def half(dataset: Any) -> None:
    dataset.size = 10
    raise LookupError("the other half")


def test_a_change_that_fails_half_way_ends_the_iterators_and_the_next_have_what_the_caller_has(
    make: Any,
) -> None:
    loader = make(Sized(4), batch_size=2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(LookupError):
        loader.update(half)
    with pytest.raises(RuntimeError, match="was ended by LookupError"):
        next(batches)
    assert loader.state_dict()["steps"] == 1
    assert [batch[1].tolist() for batch in loader] == [[10, 10], [10, 10]]


def test_a_change_from_inside_of_next_is_refused_and_not_made(make: Any) -> None:
    refused: list[str] = []

    class Meddling:
        def __iter__(self) -> Any:
            for key in range(20):
                if key == 19:
                    try:
                        loader.update(size=10)
                    except RuntimeError as error:
                        refused.append(str(error))
                yield key

    loader = make(Sized(), sampler=Meddling())
    assert [int(batch[1][0]) for batch in loader] == [1] * 20
    assert "from inside of its own next" in refused[0]
    assert loader.dataset.size == 1


class Here:
    """A change that calls a function in this process, and does nothing in workers."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, dataset: Any) -> None:
        self.function()

    def __reduce__(self) -> Any:
        return Setting, ({},)


def test_neither_a_change_nor_a_batch_comes_from_inside_of_a_change(make: Any) -> None:
    loader = make(Sized(4), batch_size=2)
    batches = iter(loader)
    next(batches)

    def meddle() -> None:
        for deed in (lambda: loader.update(size=10), lambda: next(batches)):
            with pytest.raises(RuntimeError, match="from inside of its own next"):
                deed()

    loader.update(Here(meddle))
    assert [batch[1].tolist() for batch in batches] == [[1, 1]]


def test_an_epoch_that_another_thread_begins_meanwhile_has_the_change(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(Sized(4), batch_size=2)
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.extend(batch[1].tolist() for batch in loader))
    changing, waits = loader._session.engines.changing, threading.Event()

    def noted() -> Any:
        if threading.current_thread() is other:
            waits.set()
        return changing()

    monkeypatch.setattr(loader._session.engines, "changing", noted)

    def begin() -> None:
        other.start()
        assert waits.wait(30)
        loader.dataset.size = 10

    loader.update(Here(begin))
    other.join()
    assert found == [[10, 10], [10, 10]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_child_that_is_forked_meanwhile_waits_for_nobody() -> None:
    loader = DataLoader(Sized(4), batch_size=2)
    ended: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if not pid:
            os._exit(7 if len(list(loader)) == 2 else 1)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def beside() -> None:
        other = threading.Thread(target=fork)
        other.start()
        other.join()

    loader.update(Here(beside))
    assert ended == [7]


def test_another_dataset_in_a_subset_is_gathered_from(make: Any) -> None:
    loader = make(Subset(ArrayDataset(np.arange(8)), np.arange(8)), batch_size=2)
    batches = iter(loader)
    next(batches)
    loader.update(dataset=ArrayDataset(np.arange(8) + 100))
    assert [batch.tolist() for batch in batches] == [[102, 103], [104, 105], [106, 107]]


class Loading(IterableDataset[Any]):
    def __init__(self) -> None:
        self.load: Any = int

    def __iter__(self) -> Any:
        return iter("12345678")


def test_another_load_is_loaded_with(make: Any) -> None:
    loader = make(Loading(), batch_size=2)
    batches = iter(loader)
    next(batches)
    loader.update(load=float)
    assert [batch.dtype for batch in batches] == [np.float64] * 3


class Bad(Sized):
    def __getitem__(self, key: int) -> Any:
        if key == 2:
            raise LookupError("sample 2 is bad")
        return super().__getitem__(key)


class OnlyHere:
    """A change that raises in every process but this one."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __call__(self, dataset: Any) -> None:
        if os.getpid() != self.home:
            raise OSError("no such file here")


def test_a_change_that_fails_in_a_worker_is_the_error_of_all_that_it_does(make_processes: Any) -> None:
    loader = make_processes(Bad(6))
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(LookupError):
        next(batches)
    loader.update(OnlyHere())
    loader.update(size=3)
    for step in range(3, 6):
        with pytest.raises(OSError, match="no such file here") as caught:
            next(batches)
        (note,) = caught.value.__notes__
        assert note.startswith(f"In update(), made before step {step} of epoch 0, in worker ")


class Key(str):
    """A key that arrives only where it was made, or if it is a good one."""

    def __reduce__(self) -> Any:
        return _key, (str(self), os.getpid())


def _key(name: str, home: int) -> Key:
    if name == "c" and os.getpid() != home:
        raise OSError("no database here")
    return Key(name)


class Named(Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        if key == "b":
            raise LookupError("b is bad")
        return str(key)


def test_keys_that_do_not_arrive_are_not_blamed_on_the_sample_before(make_processes: Any) -> None:
    batches = iter(make_processes(Named(), batch_sampler=[[Key("a")], [Key("b")], [Key("c")]]))
    assert next(batches) == ["a"]
    with pytest.raises(LookupError):
        next(batches)
    with pytest.raises(OSError, match="no database here") as caught:
        next(batches)
    (note,) = caught.value.__notes__
    assert note.startswith("In the keys of step 2 of epoch 0, as they arrived in worker ")


def test_a_change_of_any_size_is_written_and_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes 2 GiB a call at most."""
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, start: pwrite(fd, data[:7], start))
    monkeypatch.setattr(os, "preadv", lambda fd, to, start: preadv(fd, [to[0][:7]], start))
    fd = os.memfd_create("log")
    try:
        wrote, reads, dataset = UpdateLog(), UpdateLog(), Sized()
        for size in (5, 6):
            wrote.write(fd, encode(Setting({"size": size})))
        for change in reads.read(fd, wrote.end):
            change(dataset)
    finally:
        os.close(fd)
    assert dataset.size == 6
    assert reads.end == wrote.end


def of_main(monkeypatch: pytest.MonkeyPatch, cls: Any) -> Any:
    """The class, as if the program that is run had defined it."""
    cls.__module__, cls.__qualname__ = "__main__", cls.__name__
    monkeypatch.setattr(sys.modules["__main__"], cls.__name__, cls, raising=False)
    return cls


def new_mode(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Mode(enum.Enum):
        TRAIN = 1
        EVAL = 2

    return of_main(monkeypatch, Mode)


def new_scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Scale:
        def __init__(self, by: int) -> None:
            self.by = by

    return of_main(monkeypatch, Scale)


class Scaled(Dataset[Any]):
    def __init__(self, mode: Any, scale: Any) -> None:
        self.evaluates, self.mode = mode.EVAL, mode.TRAIN
        self.scales, self.scale = scale, scale(1)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> Any:
        return self.mode is self.evaluates, isinstance(self.scale, self.scales), self.scale.by


def test_a_class_of_the_program_is_the_same_class_in_workers(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, scale = new_mode(monkeypatch), new_scale(monkeypatch)
    loader = make(Scaled(mode, scale))
    batches = iter(loader)
    assert [column.item() for column in next(batches)] == [False, True, 1]
    loader.update(mode=mode.EVAL, scale=scale(10))
    assert [column.item() for column in next(batches)] == [True, True, 10]
    loader.update(lambda dataset: setattr(dataset, "scale", scale(20)))
    assert [column.item() for column in next(batches)] == [True, True, 20]


def test_a_class_that_the_program_has_defined_anew_is_another_class(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, scale = new_mode(monkeypatch), new_scale(monkeypatch)
    loader = make(Scaled(mode, scale))
    batches = iter(loader)
    next(batches)
    loader.update(scale=new_scale(monkeypatch)(10))
    assert [column.item() for column in next(batches)] == [False, False, 10]


def test_a_crew_with_a_long_log_of_updates_is_not_used_again(
    make_processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_MOST_UPDATES", 10_000)
    loader = make_processes(Sized(4), batch_size=2)
    pids = []
    for size in (2, 3, 4):
        batches = iter(loader)
        pids.append({worker.pid for worker in loader.workers})
        next(batches)
        loader.update(size=size, bank=np.full(6000, size, np.uint8))
        assert [batch[1].tolist() for batch in batches] == [[size, size]]
    assert pids[0] == pids[1]
    assert not pids[1] & pids[2]


class Signalled(Sized):
    """A signal comes while its length is asked for."""

    comes = False

    def __len__(self) -> int:
        if self.comes:
            signal.raise_signal(signal.SIGUSR1)
        return self.n


@pytest.mark.parametrize("what", ["update", "resize"])
def test_a_signal_handler_inside_of_iter_changes_nothing(what: str) -> None:
    """The engine that is being made would have the old number of workers, or the old dataset."""
    dataset = Signalled()
    with DataLoader(dataset, num_workers=1, multiprocessing_context="fork") as loader:

        def handler(*signal: object) -> None:
            dataset.comes = False
            if what == "update":
                loader.update(size=2)
            else:
                loader.num_workers = 2

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            dataset.comes = True
            with pytest.raises(RuntimeError, match=r"cannot be changed from inside of its own next\(\), iter"):
                iter(loader)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert dataset.size == loader.num_workers == 1
        handler()
        assert len(list(loader)) == 60 and dataset.size + loader.num_workers == 3
