"""Any exception, from any place of the user's code, on any backend: it comes out as itself, where it belongs.

Each test runs one epoch in which every other step raises another exception of the table in `thrown.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from thrown import SHARED, THROWN, comes_out_as, depth, notes, throw

import penstock
from penstock import DataLoader, Dataset, IterableDataset
from penstock.testing import simulate

NAMES = list(THROWN)
SECONDS = 60  # of the watchdog

# The last frames of the deep recursion come from the exception itself.
DEEP = {"RecursionError"}
NOT_CAUGHT = {name for name in NAMES if not issubclass(comes_out_as(name), Exception)}
STOPS = {name for name in NAMES if "StopIteration" in name}


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    def bark(*_: object) -> None:
        raise AssertionError(f"hangs for {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


BACKENDS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 2, "backend": "thread"},
    "simulated": {"num_workers": 2},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
}
WIDE = pytest.param("forkserver", marks=pytest.mark.wide)
HERE = ["inline", "simulated"]  # where the caller runs the code of the dataset


@pytest.fixture
def make() -> Iterator[Callable[..., DataLoader[Any]]]:
    with ExitStack() as stack:

        def make(backend: str, dataset: Any, kind: Any = DataLoader, **options: Any) -> DataLoader[Any]:
            settings = {**BACKENDS[backend], **options}
            if isinstance(dataset, IterableDataset) and not hasattr(dataset, "load"):
                settings["num_workers"] = min(1, settings["num_workers"])  # more would be too many
            if backend == "simulated":
                simulation = simulate.workers(choose=simulate.seeded(len(NAMES)), copies_dataset=False)
                settings["backend"] = stack.enter_context(simulation).name
            loader: DataLoader[Any] = stack.enter_context(kind(dataset, **settings))
            return loader

        yield make


# ---- the places ---------------------------------------------------------------------------------------


def raising(names: list[str], key: int) -> int:
    """The even keys raise, one exception each; the odd ones are samples."""
    return key if key % 2 else throw(names[key // 2])


class Item(Dataset[Any]):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return 2 * len(self.names)

    def __getitem__(self, key: int) -> Any:
        return raising(self.names, int(key))


class Items(Item):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [raising(self.names, key) for key in keys]

    def __getitem__(self, key: int) -> Any:
        raise AssertionError("not asked for")


class Gather(Item):
    def __gather__(self, keys: Any, empty: Any) -> Any:
        return np.array([raising(self.names, key) for key in keys.tolist()])


class Named:
    """A sample that raises when it is made an array."""

    def __init__(self, names: list[str], key: int) -> None:
        self.names, self.key = names, key

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(raising(self.names, self.key))


class Light(Item, IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(len(self)))

    def load(self, item: int) -> Any:
        return raising(self.names, item)


class Stream(IterableDataset[Any]):
    """Its own iterator, and no generator: its errors do not end it."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.at = names, -1

    def __iter__(self) -> Any:
        self.at = -1
        return self

    def __next__(self) -> Any:
        self.at += 1
        if self.at == 2 * len(self.names):
            raise StopIteration
        return raising(self.names, self.at)


class Collate:
    """A collate_fn."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, samples: list[int]) -> Any:
        return np.array([raising(self.names, int(sample)) for sample in samples])


class Nested(Item):
    """Samples from a loader inside the dataset."""

    def __getitem__(self, key: int) -> Any:
        with DataLoader(Item(self.names), sampler=[1, key]) as inner:
            batches = iter(inner)
            return [next(batches)[0] for _ in range(2)][1]


class Counting(IterableDataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return iter(range(self.n))


Place = Callable[[list[str]], tuple[Any, dict[str, Any]]]
PLACES: dict[str, tuple[Place, str]] = {
    "__getitem__": (lambda names: (Item(names), {}), "In sample {key} (row 0), step {key} of epoch 0, in "),
    "__getitem__, one by one": (
        lambda names: (Item(names), {"batch_size": None}),
        "In sample {key} (row 0), step {key} of epoch 0, in ",
    ),
    "__getitems__": (
        lambda names: (Items(names), {}),
        "In __getitems__ of samples [{key}], step {key} of epoch 0",
    ),
    "__gather__": (
        lambda names: (Gather(names), {}),
        "In __gather__ of samples [{key}], step {key} of epoch 0",
    ),
    "load": (lambda names: (Light(names), {}), "In sample {key} (row 0), step {key} of epoch 0, in "),
    "__next__": (lambda names: (Stream(names), {}), "In the stream's next 1 samples, step {key} of"),
    "collate_fn": (
        lambda names: (range(2 * len(names)), {"collate_fn": Collate(names)}),
        "In collate of step {key} of epoch 0",
    ),
    "collate_fn of a stream": (
        lambda names: (Counting(2 * len(names)), {"collate_fn": Collate(names)}),
        "In collate of step {key} of epoch 0",
    ),
    "a loader inside": (
        lambda names: (Nested(names), {}),
        "In sample {key} (row 0), step {key} of epoch 0, in ",
    ),
    "max_errors": (
        lambda names: (Item(names), {"on_error": "skip", "max_errors": 0}),
        "In sample {key} (row 0), step {key} of epoch 0, in ",
    ),
}


def taken(names: list[str], batches: Any, where: str, more: Callable[[str], int] = lambda name: 0) -> None:
    """Takes an epoch, and checks what comes out of each `next()`."""
    found: list[BaseException] = []
    for number, name in enumerate(names):
        with pytest.raises(BaseException) as caught:
            next(batches)
        found.append(caught.value)
        del caught
        good = next(batches)
        assert np.asarray(good).item() == 2 * number + 1, name
    with pytest.raises(StopIteration):
        next(batches)
    for number, (name, error) in enumerate(zip(names, found, strict=True)):
        check(name, error, where.format(key=2 * number), more(name))


def check(name: str, error: BaseException, where: str, more: int = 0) -> None:
    assert type(error) is comes_out_as(name), f"{name}: {type(error)}"
    if name in STOPS:
        assert "raised StopIteration, and not at its end" in str(error)
        assert isinstance(error.__cause__, (StopIteration, penstock.RemoteTraceback))
    said = notes(error)
    assert any(where in note for note in said), f"{name}: {said}"
    own = {"a note and a cause": 1, "what cannot be pickled": len(said) - 1 - more}.get(name, 0)
    assert len(said) == 1 + own + more, f"{name}: {said}"
    assert name in DEEP or depth(error) < 40, name
    assert error is not SHARED and not notes(SHARED), "the user's own object stays as it is"


@pytest.mark.parametrize("backend", ["inline", "thread", "simulated", "fork", WIDE])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_comes_out_of_its_own_step_and_the_epoch_goes_on(
    place: str, backend: str, make: Any
) -> None:
    build, where = PLACES[place]
    left_out = {"KeyboardInterrupt"} if backend in HERE else set()  # there it is the caller's own
    if place == "__next__":
        left_out |= STOPS  # there it is the end
    if place == "__gather__":
        left_out |= {"CollateError"}
    names = [name for name in NAMES if name not in left_out]
    dataset, options = build(names)

    def more(name: str) -> int:
        if place == "max_errors":
            return name not in NOT_CAUGHT
        if place == "a loader inside":
            return name != "KeyboardInterrupt"  # the inner loader's note; to it, this is the caller's own
        return 0

    taken(names, iter(make(backend, dataset, **options)), where, more)


@pytest.mark.parametrize("backend", ["inline", "simulated"])
@pytest.mark.parametrize("place", ["__getitem__", "collate_fn", "__next__"])
def test_an_interrupt_in_the_calling_process_is_the_callers_own(place: str, backend: str, make: Any) -> None:
    dataset, options = PLACES[place][0](["KeyboardInterrupt"])
    loader = make(backend, dataset, **options)
    begun: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        list(map(next, map(remembered, [begun], [loader])))  # simulated workers run inside iter()
    for batches in begun:
        with pytest.raises(RuntimeError, match="was ended by KeyboardInterrupt"):
            next(batches)


def remembered(begun: list[Any], loader: Any) -> Any:
    begun.append(iter(loader))
    return begun[-1]
