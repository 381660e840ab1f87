"""Any exception, from any place of the user's code, in torch's face: as torch raises it, except StopIteration.

Each test runs one epoch in which every other step raises another exception of the table in `thrown.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from thrown import THROWN, comes_out_as, notes, throw, watchdog  # noqa: F401 - a fixture

from penstock.torch import DataLoader

NAMES = list(THROWN)
NOT_CAUGHT = {name for name in NAMES if not issubclass(comes_out_as(name), Exception)}
STOPS = {name for name in NAMES if "StopIteration" in name}


def raising(names: list[str], key: int) -> int:
    """The even keys raise, one exception each; the odd ones are samples."""
    return key if key % 2 else throw(names[key // 2])


class Item(torch.utils.data.Dataset[Any]):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return 2 * len(self.names)

    def __getitem__(self, key: int) -> Any:
        return raising(self.names, key)


class Items(Item):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [raising(self.names, key) for key in keys]


class Stream(torch.utils.data.IterableDataset[Any]):
    """Its own iterator, and no generator: its errors do not end it."""

    def __init__(self, names: list[str], raises: bool) -> None:
        self.names, self.raises, self.at = names, raises, -1

    def __iter__(self) -> Any:
        self.at = -1
        return self

    def __next__(self) -> Any:
        self.at += 1
        if self.at == 2 * len(self.names):
            raise StopIteration
        return raising(self.names, self.at) if self.raises else self.at


class Collate:
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, samples: Any) -> Any:
        return torch.tensor([raising(self.names, sample) for sample in samples])


PLACES: dict[str, Any] = {
    "__getitem__": lambda names: (Item(names), {}),
    "one by one": lambda names: (Item(names), {"batch_size": None}),
    "__getitems__": lambda names: (Items(names), {}),
    "__next__": lambda names: (Stream(names, raises=True), {}),
    "__next__, one by one": lambda names: (Stream(names, raises=True), {"batch_size": None}),
    "collate_fn": lambda names: (range(2 * len(names)), {"collate_fn": Collate(names)}),
    "collate_fn of a stream": lambda names: (Stream(names, raises=False), {"collate_fn": Collate(names)}),
    "max_errors": lambda names: (Item(names), {"on_error": "skip", "max_errors": 0}),
}
MODES: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "workers": {"num_workers": 1, "multiprocessing_context": "fork"},
    "seeded": {"num_workers": 0, "seed": 1},
    "seeded workers": {"num_workers": 1, "multiprocessing_context": "fork", "seed": 1},
}


def epoch(loader: Any, names: list[str]) -> list[BaseException]:
    """The errors of an epoch, each in its place; between them come the samples."""
    batches, found = iter(loader), []
    for number, name in enumerate(names):
        with pytest.raises(BaseException) as caught:
            next(batches)
        found.append(caught.value)
        del caught
        assert int(next(batches)) == 2 * number + 1, name
    with pytest.raises(StopIteration):
        next(batches)
    return found


def theirs(name: str) -> type[BaseException]:
    """The type that torch's workers make of it."""
    if name in STOPS:
        return RuntimeError
    made = THROWN[name]()
    try:
        raise torch._utils.ExceptionWrapper((type(made), made, None), where="").reraise()
    except BaseException as error:
        return type(error)


def cells() -> Iterator[Any]:
    for place in PLACES:
        for mode, settings in MODES.items():
            if place != "max_errors" or "seed" in settings:
                wide = [pytest.mark.wide] if "one by one" in place and "workers" in mode else []
                yield pytest.param(place, mode, marks=wide)


@pytest.mark.parametrize(("place", "mode"), list(cells()))
def test_an_exception_comes_out_of_its_own_step_and_the_epoch_goes_on(place: str, mode: str) -> None:
    settings = MODES[mode]
    left_out = set[str]()
    if place.startswith("__next__"):
        left_out |= STOPS  # there it is the end
    if not settings["num_workers"]:
        left_out |= {"KeyboardInterrupt"}  # there it is the caller's own
    if mode == "workers":
        left_out |= NOT_CAUGHT  # torch's workers end
    names = [name for name in NAMES if name not in left_out]
    dataset, options = PLACES[place](names)
    found = epoch(DataLoader(dataset, **settings, **options), names)
    for number, (name, error) in enumerate(zip(names, found, strict=True)):
        kind = theirs(name) if mode == "workers" else comes_out_as(name)
        assert type(error) is kind, f"{name}: {type(error)}"
        if name in STOPS:
            assert "raised StopIteration, and not at its end" in str(error)
        said = notes(error)
        if mode == "workers":
            assert f"step {2 * number}, in worker 0" in said[-1]
            text = f"{error.args[0]} {error.__cause__}"  # torch's own error about a group has no such text
            assert "in DataLoader worker process 0." in text or name in STOPS
        elif mode != "inline":
            assert any(f"step {2 * number} of epoch 0" in note for note in said), (name, said)
    if mode == "workers":  # one object, raised twice
        first, second = (found[names.index(name)] for name in ("one object", "the same object again"))
        # The traceback of the first does not come again with the second. (A step that is timed has one line more.)
        assert [str(error).count(", in throw\n") for error in (first, second)] == [1, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_torch_raises_the_same(workers: int) -> None:
    names = [name for name in NAMES if name not in STOPS | NOT_CAUGHT]
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    expected, found = (
        epoch(kind(Item(names), **settings), names) for kind in (torch.utils.data.DataLoader, DataLoader)
    )
    for name, one, other in zip(names, expected, found, strict=True):
        assert type(one) is type(other), name
        if workers:
            assert outcome(one)[:40] == outcome(other)[:40]


def outcome(error: BaseException) -> str:
    """Its text, or the fact that it has none."""
    try:
        return str(error)
    except BaseException:
        return "none"


class Keys(torch.utils.data.Sampler[Any]):
    """Gives two keys, and raises for the third; or raises in `__iter__`; or in `__len__`."""

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place = name, place

    def __iter__(self) -> Any:
        if self.place == "__iter__":
            throw(self.name)
        self.at = -1
        return self

    def __next__(self) -> Any:
        self.at += 1
        if self.at == 2:
            throw(self.name) if self.place == "__next__" else None
            raise StopIteration
        return [self.at]

    def __len__(self) -> int:
        return throw(self.name) if self.place == "__len__" else 2


@pytest.mark.parametrize("mode", ["inline", "seeded"])
def test_what_a_sampler_raises_comes_out_as_itself(mode: str) -> None:
    for name in NAMES:
        loaders = {
            place: DataLoader(range(2), batch_sampler=Keys(name, place), **MODES[mode])
            for place in ("__iter__", "__next__", "__len__")
        }
        if name not in ("a frozen class", "KeyboardInterrupt"):  # which Python's contextlib cannot pass on
            for place, call in (("__iter__", iter), ("__len__", len)):
                with pytest.raises(comes_out_as(name)) as caught:
                    call(loaders[place])
                assert type(caught.value) is comes_out_as(name)
                assert name not in STOPS or isinstance(caught.value.__cause__, StopIteration)
            if mode == "seeded" and name in NOT_CAUGHT:
                continue  # a signal handler may have raised it: it comes out at once
            batches = iter(loaders["__next__"])
            assert [int(next(batches)) for _ in range(2)] == [0, 1]
            with pytest.raises(StopIteration if name in STOPS else comes_out_as(name)):
                next(batches)


@pytest.mark.parametrize("mode", MODES)
def test_the_length_of_an_iterator_is_not_its_end(mode: str) -> None:
    batches = iter(DataLoader(range(2), batch_sampler=Keys("StopIteration", "__len__"), **MODES[mode]))
    with pytest.raises(RuntimeError, match="raised StopIteration, and not at its end"):
        len(batches)


class Pinned:
    """A batch whose `pin_memory` raises."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pin_memory(self) -> Any:
        throw(self.name)


@pytest.mark.parametrize("mode", MODES)
def test_what_pinning_raises_comes_out_as_itself(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    names = ["StopIteration", "EOFError", "SystemExit"]
    loader = DataLoader(names, None, collate_fn=Pinned, pin_memory=True, **MODES[mode])
    batches = iter(loader)
    for name in names:
        with pytest.raises(comes_out_as(name)) as caught:
            next(batches)
        assert name not in STOPS or isinstance(caught.value.__cause__, StopIteration)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("mode", ["workers", "seeded workers"])
def test_each_step_of_a_worker_that_could_not_begin_raises_the_same(mode: str) -> None:
    for name in ("StopIteration", "one object", "a __str__ that raises"):
        loader = DataLoader(range(3), worker_init_fn=lambda worker: throw(name), **MODES[mode])  # noqa: B023
        batches, found = iter(loader), []
        for step in range(3):
            with pytest.raises(comes_out_as(name)) as caught:
                next(batches)
            assert f"step {step}" in notes(caught.value)[-1]
            found.append(len(caught.value.args[0]) if caught.value.args else 0)
        assert len(set(found)) == 1, "the traceback in the text does not grow"
        with pytest.raises(StopIteration):
            next(batches)
