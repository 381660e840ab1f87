"""What a program sees of the loader itself: arguments, refusals, attributes, lengths, warnings, workers."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import pickle
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from conftest import children
from torch.utils.data import IterableDataset

import penstock.torch
from parity import sources
from parity.pair import Ours, Tape, Theirs, begin, both, epoch, take
from penstock import _options
from penstock.torch._core import core_of


def test_it_is_a_torch_loader() -> None:
    assert issubclass(Ours, Theirs)


def test_it_takes_torchs_arguments_and_ours() -> None:
    """The declarations say which settings it takes although torch's class does not."""
    ours, theirs = (dict(inspect.signature(kind).parameters) for kind in (Ours, Theirs))
    declared = {name: one.default for name, one in _options.OPTIONS.items() if one.face is _options.Face.OURS}
    declared |= {"ray_options": None, "backend_options": None, "snapshot_every_n_steps": 1}
    assert {name: ours.pop(name).default for name in declared} == declared
    assert {name: (p.kind, p.default) for name, p in ours.items()} == {
        name: (p.kind, p.default) for name, p in theirs.items()
    }


def test_the_declarations_say_which_settings_are_torchs() -> None:
    declared = {name for name, one in _options.OPTIONS.items() if one.face.is_theirs}
    assert declared == inspect.signature(Theirs).parameters.keys() - {"dataset", "multiprocessing_context"}


def test_what_people_import_beside_it_is_there_and_torchs_own() -> None:
    beside = importlib.import_module("penstock.torch")
    for name in torch.utils.data.__all__:
        if name != "DataLoader":
            assert getattr(beside, name) is getattr(torch.utils.data, name)


def test_it_is_generic() -> None:
    assert Ours[int].__origin__ is Ours  # type: ignore[attr-defined]
    assert [batch.tolist() for batch in Ours[int](range(2))] == [[0], [1]]


class Stream(IterableDataset[int]):
    def __init__(self, n: int, told: int | None = None) -> None:
        self.n = n
        self.told = n if told is None else told

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))

    def __len__(self) -> int:
        return self.told

    def __repr__(self) -> str:
        return "Stream"


class Unsized(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


DATA = range(10)
REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "E1 negative workers": (DATA, {"num_workers": -1}),
    "E2 negative timeout": (DATA, {"timeout": -1}),
    "E3 prefetch without workers": (DATA, {"prefetch_factor": 2}),
    "E4 negative prefetch": (DATA, {"num_workers": 1, "prefetch_factor": -1}),
    "E5 persistent without workers": (DATA, {"persistent_workers": True}),
    "E6 context without workers": (DATA, {"multiprocessing_context": "fork"}),
    "E7 unknown start method": (DATA, {"num_workers": 1, "multiprocessing_context": "spoon"}),
    "E8 context of another type": (DATA, {"num_workers": 1, "multiprocessing_context": 3}),
    "E9 stream shuffled": (Stream(3), {"shuffle": True}),
    "E10 stream with sampler": (Stream(3), {"sampler": [0]}),
    "E11 stream with batch_sampler": (Stream(3), {"batch_sampler": [[0]]}),
    "E12 sampler and shuffle": (DATA, {"sampler": [0], "shuffle": True}),
    "E13 batch_sampler and batch_size": (DATA, {"batch_sampler": [[0]], "batch_size": 2}),
    "E13 batch_sampler and batch_size None": (DATA, {"batch_sampler": [[0]], "batch_size": None}),
    "E13 batch_sampler and shuffle": (DATA, {"batch_sampler": [[0]], "shuffle": True}),
    "E13 batch_sampler and sampler": (DATA, {"batch_sampler": [[0]], "sampler": [0]}),
    "E13 batch_sampler and drop_last": (DATA, {"batch_sampler": [[0]], "drop_last": True}),
    "E14 batch_size None and drop_last": (DATA, {"batch_size": None, "drop_last": True}),
    "E15 batch_size 0": (DATA, {"batch_size": 0}),
    "E15 batch_size True": (DATA, {"batch_size": True}),
    "E15 batch_size a float": (DATA, {"batch_size": 2.0}),
    "E15 batch_size of numpy": (DATA, {"batch_size": np.int64(2)}),
    "E16 drop_last an int": (DATA, {"drop_last": 1}),
    "E17 nothing to shuffle": ([], {"shuffle": True}),
    "no such argument": (DATA, {"wrokers": 1}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_refused_as_torch_refuses_them(name: str) -> None:
    data, arguments = REFUSED[name]

    def program(loader_class: Any, tape: Tape) -> None:
        with pytest.raises((ValueError, TypeError)) as caught:
            loader_class(data, **arguments)
        tape.append(caught.value)

    both(program)


def test_batch_size_1_beside_a_batch_sampler_is_accepted() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(DATA, batch_size=1, batch_sampler=[[0, 2]]), tape)

    both(program)


GUARDED = ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]


@pytest.mark.parametrize("name", GUARDED)
def test_e21_an_attribute_that_shaped_the_loader_cannot_be_set(name: str) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(DATA)
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, 2)
        tape.append(getattr(loader, name) is not None)

    both(program)


CHANGES: dict[str, Any] = {
    "collate_fn": str,
    "worker_init_fn": sources.seed_python,
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "num_workers": 2,
    "timeout": 50,
    "in_order": False,
}


# With persistent workers and no seed, num_workers is refused: see below.
@pytest.mark.parametrize(
    ("name", "persistent"), [(name, each) for name in CHANGES for each in (False, name != "num_workers")]
)
def test_an_attribute_that_may_be_set_works_from_the_next_iterator_on(name: str, persistent: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        if name == "generator":
            CHANGES[name].manual_seed(4)
        sampler = sources.Asked(list(range(9)), tape)
        loader = loader_class(sources.Noisy(9), 2, sampler=sampler, num_workers=1, persistent_workers=persistent)
        epoch(loader, tape, 1)
        setattr(loader, name, CHANGES[name])
        epoch(loader, tape)

    both(program)


@dataclass
class Augmented(torch.utils.data.Dataset[Any]):
    """Random numbers from all three global generators, beside the key."""

    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor([key, random.random(), np.random.random(), torch.rand(()).item()])


def alive(loader: Any) -> int:
    """The number of worker processes of a loader with a seed."""
    return sum(worker.is_alive() for worker in core_of(loader).workers)


def wait_for_workers(loader: Any, number: int) -> None:
    """A worker that is not needed leaves after its present step, while the loader runs."""
    deadline = time.monotonic() + 30
    while alive(loader) != number:
        assert time.monotonic() < deadline, f"{alive(loader)} workers instead of {number}"
        time.sleep(0.01)


@pytest.mark.parametrize("persistent", [False, True])
def test_with_a_seed_the_number_of_workers_changes_at_once_and_no_batch_changes(persistent: bool) -> None:
    settings: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 5}
    inline = Ours(Augmented(60), **settings)
    expected = [[batch.tolist() for batch in inline] for _ in range(4)]
    loader = Ours(Augmented(60), num_workers=1, persistent_workers=persistent, **settings)
    found = []
    for before, during in ((1, 3), (3, 1), (2, 2), (3, 2)):
        loader.num_workers = before  # between epochs
        batches = iter(loader)
        begun = [next(batches).tolist() for _ in range(3)]
        assert alive(loader) == before
        loader.num_workers = during  # in one
        assert loader.num_workers == during
        if during > before:
            wait_for_workers(loader, during)
        found.append(begun + [batch.tolist() for batch in batches])
        if persistent:
            wait_for_workers(loader, during)
    assert found == expected


def test_with_a_seed_workers_may_be_set_to_none_and_back_between_epochs() -> None:
    inline, loader = (Ours(Augmented(12), 2, seed=5, num_workers=number) for number in (0, 2))
    for number in (2, 0, 3):
        loader.num_workers = number
        assert torch.equal(torch.cat(list(loader)), torch.cat(list(inline)))


@pytest.mark.parametrize("number", [-1, "2", True])
def test_with_a_seed_a_wrong_number_of_workers_is_refused_and_changes_nothing(number: Any) -> None:
    loader = Ours(range(8), 2, num_workers=2, seed=5)
    batches = iter(loader)
    with pytest.raises(ValueError, match=f"num_workers is 2 and cannot be set to {number!r}"):
        loader.num_workers = number
    assert loader.num_workers == 2
    assert torch.cat(list(batches)).tolist() == list(range(8))


@pytest.mark.parametrize("persistent", [False, True])
def test_without_a_seed_the_number_of_workers_cannot_change_while_they_run(persistent: bool) -> None:
    loader = Ours(range(8), 2, num_workers=1, persistent_workers=persistent)
    batches = iter(loader)
    with pytest.raises(ValueError, match=r"from 1 to 2 while workers run: without seed= the batches depend on it"):
        loader.num_workers = 2
    assert loader.num_workers == 1
    loader.num_workers = 1  # no change
    assert torch.cat(list(batches)).tolist() == list(range(8))
    if persistent:
        with pytest.raises(ValueError, match="while workers run"):
            loader.num_workers = 2
        loader._iterator = None  # torch's way to end persistent workers
        del batches
    loader.num_workers = 2
    batches = iter(loader)
    assert len(batches._workers) == 2
    assert torch.cat(list(batches)).tolist() == list(range(8))


def test_a_copy_of_a_loader_does_not_know_of_its_workers() -> None:
    loader = Ours(range(8), 2, num_workers=1)
    batches = iter(loader)
    other = copy.copy(loader)
    other.num_workers = 2
    assert torch.cat(list(other)).tolist() == torch.cat(list(batches)).tolist() == list(range(8))


def test_after_enable_a_loader_of_torchs_can_be_copied_while_its_workers_run() -> None:
    with penstock.torch.enable():
        loader = Theirs(range(8), 2, num_workers=1)
        batches = iter(loader)
        other = pickle.loads(pickle.dumps(loader))
        assert torch.cat(list(other)).tolist() == torch.cat(list(batches)).tolist() == list(range(8))


def test_attributes_are_torchs() -> None:
    names = [name for name in inspect.signature(Theirs.__init__).parameters if name not in ("self", "shuffle")]

    def program(loader_class: Any, tape: Tape) -> None:
        for arguments in (
            {},
            {"batch_size": None},
            {"batch_sampler": [[1]]},
            {"num_workers": 2, "shuffle": True},
        ):
            loader = loader_class(DATA, **arguments)
            tape.extend((name, repr(getattr(loader, name)).partition(" at 0x")[0]) for name in names)

    both(program)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 4, None])
def test_len_is_torchs(batch_size: int | None, drop_last: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        for data in (range(8), Stream(8), []):
            arguments = {} if batch_size is None else {"batch_size": batch_size, "drop_last": drop_last}
            loader = loader_class(data, **arguments)
            tape.append(len(loader))
            if not isinstance(data, Stream):
                tape.append(len(iter(loader)))

    both(program)


@pytest.mark.parametrize("arguments", [{}, {"batch_size": None}])
def test_e22_what_has_no_length_has_none(arguments: dict[str, Any]) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        for loader in (
            loader_class(Unsized(), **arguments),
            loader_class(range(4), sampler=iter([1, 2]), **arguments),
            iter(loader_class(Stream(4), **arguments)),
        ):
            with pytest.raises(TypeError) as caught:
                len(loader)
            tape.append(caught.value)

    both(program)


def test_a_loader_is_not_asked_for_its_length_to_be_iterated() -> None:
    class Deceiver(sources.Noisy):
        def __len__(self) -> int:
            raise AssertionError("nobody needs to know")

    def program(loader_class: Any, tape: Tape) -> None:
        for workers in (0, 1):
            epoch(loader_class(Deceiver(5), 2, sampler=[1, 2, 3], num_workers=workers), tape)

    both(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_gives_more_than_it_said_is_warned_of(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(Stream(6, told=4), num_workers=workers)
        epoch(loader, tape)  # nobody asked for the length: no warning
        tape.append(len(loader))
        epoch(loader, tape)

    warned = [event for event in both(program) if isinstance(event, tuple) and event[0] == "warned"]
    assert len(warned) == (8 if workers else 2)  # every worker has the whole stream


def test_more_workers_than_cpus_are_warned_of_at_construction_and_at_every_start() -> None:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:

        def program(loader_class: Any, tape: Tape) -> None:
            for persistent in (False, True):
                loader = loader_class(range(4), num_workers=2, persistent_workers=persistent)
                epoch(loader, tape)
                epoch(loader, tape)

        assert sum(event[0] == "warned" for event in both(program)) == 3 + 2
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="says what happens where nothing can be pinned")
def test_a_device_to_pin_for_is_warned_of() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(range(2), pin_memory=True, pin_memory_device="cuda"), tape)

    assert sum(event[0] == "warned" for event in both(program)) == 2


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_start_with_the_first_iterator_and_can_be_watched(persistent: bool) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        before = set(children())
        loader = loader_class(
            sources.Made(8, sources.tell_pid),
            None,
            num_workers=2,
            persistent_workers=persistent,
            collate_fn=sources.identity,
        )
        assert set(children()) == before
        batches = iter(loader)
        workers = batches._workers
        for worker in workers:
            os.kill(worker.pid, 0)  # it is there
        tape.append([(worker.is_alive(), worker.exitcode) for worker in workers])
        for worker, pid in batches:
            assert workers[worker].pid == pid
            tape.append(worker)
        if persistent:
            tape.append([worker.is_alive() for worker in workers])
        else:
            assert [worker.join(20) for worker in workers] == [None, None]
            tape.append([(worker.is_alive(), worker.exitcode) for worker in workers])

    both(program)


def test_a_stream_whose_worker_has_ended_goes_on_with_the_others() -> None:
    class Uneven(sources.NoisyStream):
        def keys(self) -> range:
            return range(100 * sources.whoami(), 101 * sources.whoami() + 1 + 4 * (sources.whoami() == 1))

    def program(loader_class: Any, tape: Tape) -> None:
        for persistent in (False, True):
            loader = loader_class(Uneven(0), 2, num_workers=3, persistent_workers=persistent)
            epoch(loader, tape)
            epoch(loader, tape)

    both(program)


DATASETS: dict[str, Any] = {
    "TensorDataset": lambda: torch.utils.data.TensorDataset(torch.arange(10), torch.eye(10)),
    "StackDataset": lambda: torch.utils.data.StackDataset(x=torch.arange(10), y=list("abcdefghij")),
    "Subset": lambda: torch.utils.data.Subset(sources.NoisyMany(10), [9, 3, 1, 1, 5]),
    "random_split": lambda: torch.utils.data.random_split(sources.Noisy(10), [7, 3])[0],
    "ConcatDataset": lambda: torch.utils.data.ConcatDataset([sources.Noisy(3), sources.Noisy(6)]),
    "ChainDataset": lambda: torch.utils.data.ChainDataset([sources.NoisyStream(3), sources.NoisyShards(4)]),
    "a list": lambda: [float(i) for i in range(9)],
    "a dict": lambda: {i: str(i) for i in range(9)},
    "a tensor": lambda: torch.arange(18).reshape(9, 2),
    "an array": lambda: np.arange(18.0).reshape(9, 2),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_torchs_own_datasets_and_plain_containers_work(name: str, workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = DATASETS[name]()
        shuffle = not isinstance(data, IterableDataset)
        loader = loader_class(data, 2, shuffle, num_workers=workers)
        epoch(loader, tape)
        epoch(loader, tape)

    if name == "a datapipe" and workers:
        with pytest.warns(UserWarning, match="DataPipes are seeded and sharded by torch's own engine"):
            iter(Ours(DATASETS[name](), 2, num_workers=workers))
    both(program)  # it has been said, so it is not said again


@pytest.mark.parametrize("workers", [0, 1])
def test_the_profiler_sees_the_range_that_torch_names(workers: int) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        batches = begin(loader_class(range(3), num_workers=workers), tape)
        with torch.autograd.profiler.profile() as profile:
            take(batches, tape)
        tape.append([event.name for event in profile.function_events if "DataLoader" in event.name])

    assert len(both(program)[-1]) == 4


def test_an_iterator_is_its_own_iterator() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        for workers in (0, 1):
            batches = iter(loader_class(range(3), num_workers=workers))
            tape.append(iter(batches) is batches)
            tape.append([*batches])

    both(program)


class Own(Theirs):
    """A loader of somebody's, with an attribute that happens to be called seed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seed = "mine"


def test_enable_reads_no_seed_from_loaders_that_are_not_ours() -> None:
    with penstock.torch.enable():
        assert [int(batch) for batch in Own(range(4), None, num_workers=1)] == [0, 1, 2, 3]


def test_warnings_point_to_the_line_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_options, "_has_warned", False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="every rank gets the same batches") as said:
        list(Ours(range(4), seed=1))
    assert [one.filename for one in said] == [__file__]
