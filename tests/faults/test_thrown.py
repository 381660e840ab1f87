"""Any exception, from any place of the user's code, on any backend: it comes out as itself, where it belongs.

Each test runs one epoch in which every other step raises another exception of the table in `thrown.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import pytest
from thrown import SHARED, THROWN, comes_out_as, depth, notes, throw, watchdog  # noqa: F401 - a fixture

import penstock
from penstock import DataLoader, Dataset, IterableDataset, get_worker_info
from penstock.testing import simulate

NAMES = list(THROWN)

# The last frames of the deep recursion come from the exception itself.
DEEP = {"RecursionError"}
# Python's own contextlib cannot pass it on: it sets an attribute of the exception.
REFUSED_BY_CONTEXTLIB = {"a frozen class"}
NOT_CAUGHT = {name for name in NAMES if not issubclass(comes_out_as(name), Exception)}
STOPS = {name for name in NAMES if "StopIteration" in name}


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
    "__next__": (lambda names: (Stream(names), {}), "In the stream's next sample, step {key} of"),
    "collate_fn": (
        lambda names: (range(2 * len(names)), {"collate_fn": Collate(names)}),
        "In collate_fn of samples [{key}], step {key} of epoch 0",
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
def test_an_exception_comes_out_of_its_own_step_and_the_epoch_goes_on(place: str, backend: str, make: Any) -> None:
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


@pytest.mark.parametrize("backend", ["inline", "thread", "simulated", "fork"])
def test_an_object_that_is_raised_many_times_does_not_grow(backend: str, make: Any) -> None:
    names = ["one object"] * 30
    batches, found = iter(make(backend, Item(names))), []
    for _ in names:
        found.append(outcome(batches.__next__))
        next(batches)
    for number, error in enumerate(found):  # at the end: none has changed since
        check("one object", error, f"In sample {2 * number} (row 0), step {2 * number} of epoch 0")
    depths = [depth(error) for error in found]
    assert max(depths) - min(depths) <= 1  # a sample that is timed has one call more (Python 3.12 and later)
    assert len({len(str(error.__cause__)) for error in found}) == 1
    assert depth(SHARED) < 20


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


# ---- what the calling process runs: samplers, iter(), len(), states, updates, delivery --------------------


class Sampler:
    """Gives two keys, and raises for the third; or raises in another of its methods."""

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place, self.at = name, place, -1

    def __iter__(self) -> Any:
        self.at = -1
        return throw(self.name) if self.place == "__iter__" else self

    def __next__(self) -> Any:
        self.at += 1
        if self.at == 2 and self.place == "__next__":
            throw(self.name)
        if self.at >= 2:
            raise StopIteration
        return [self.at] if self.place == "batch" else self.at

    def __len__(self) -> int:
        throw(self.name) if self.place == "__len__" else None
        return 2


class BatchSampler(Sampler):
    def __next__(self) -> Any:
        return [super().__next__()]


class Stateful(Sampler):
    """A sampler whose state cannot be taken."""

    def state_dict(self) -> Any:
        throw(self.name)

    def load_state_dict(self, state: Any) -> None:
        throw(self.name)


def outcome(call: Callable[[], Any]) -> Any:
    """What the call returns, or the exception that it raises."""
    try:
        return call()
    except BaseException as error:
        return error


def is_as_itself(name: str, error: Any) -> bool:
    return type(error) is comes_out_as(name) and (name not in STOPS or isinstance(error.__cause__, StopIteration))


CALLERS = [name for name in NAMES if name not in REFUSED_BY_CONTEXTLIB]
LOCAL = ["inline", "thread", "simulated"]


@pytest.mark.parametrize("backend", [*LOCAL, pytest.param("fork", marks=pytest.mark.wide)])
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_an_error_of_a_sampler_comes_after_what_it_gave(kind: str, backend: str, make: Any) -> None:
    for name in CALLERS:
        sampler = (Sampler if kind == "sampler" else BatchSampler)(name, "__next__")
        loader = make(backend, range(2), **{kind: sampler})
        batches = outcome(lambda: iter(loader))  # noqa: B023 - called at once
        if name in NOT_CAUGHT:  # a signal handler may have raised it: it comes out at once, and ends the workers
            begun = not isinstance(batches, BaseException)
            found = [outcome(batches.__next__) for _ in "012"] if begun else [batches]
            errors = [error for error in found if isinstance(error, BaseException)]
            assert type(errors[0]) is comes_out_as(name)
            assert all("was ended by" in str(error) for error in errors[1:])
            continue
        assert [outcome(batches.__next__).tolist() for _ in range(2)] == [[0], [1]]
        error = outcome(batches.__next__)
        if name not in STOPS:
            assert is_as_itself(name, error), name
            assert notes(error)[-1] == "While the sampler was asked for step 2 of epoch 0."
            error = outcome(batches.__next__)
        assert type(error) is StopIteration
        loader.close()


@pytest.mark.parametrize("backend", LOCAL)
def test_what_iter_and_len_raise_comes_out_as_itself(backend: str, make: Any) -> None:
    class Long(Item):
        failing = False

        def __len__(self) -> int:
            return throw(self.names[0]) if self.failing else 2

    for name in CALLERS:
        for kind in (Sampler, BatchSampler):
            given = {"sampler" if kind is Sampler else "batch_sampler": kind(name, "__iter__")}
            assert is_as_itself(name, outcome(lambda: iter(make(backend, range(2), **given)))), name  # noqa: B023
        dataset = Long([name])
        loader = make(backend, dataset)
        dataset.failing = True
        for call in (iter, len, DataLoader.batches, DataLoader.state_dict, lambda loader: loader.share(2)):
            assert is_as_itself(name, outcome(lambda: call(loader))), (name, call)  # noqa: B023


@pytest.mark.parametrize("backend", LOCAL)
def test_a_stream_that_cannot_begin(backend: str, make: Any) -> None:
    class Unbegun(IterableDataset[Any]):
        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self) -> Any:
            throw(self.name)

    class UnbegunLight(Unbegun):
        def load(self, item: Any) -> Any:
            return item

    for name in CALLERS:
        for kind in (Unbegun, UnbegunLight):
            if name == "KeyboardInterrupt" or (name in NOT_CAUGHT and kind is UnbegunLight):
                continue
            batches = iter(make(backend, kind(name)))
            error = outcome(batches.__next__)
            if kind is UnbegunLight and name in STOPS:  # inside a generator of ours, Python converts it
                assert type(error) is RuntimeError
            else:
                assert is_as_itself(name, error), name
            assert "step 0 of epoch 0" in notes(error)[-1]
            assert type(outcome(batches.__next__)) is StopIteration


@pytest.mark.parametrize("backend", LOCAL)
def test_a_state_that_cannot_be_taken_fails_no_step(backend: str, make: Any) -> None:
    for name in CALLERS:
        if name in NOT_CAUGHT:
            continue
        loader = make(backend, range(2), sampler=Stateful(name, ""))
        batches = iter(loader)
        assert next(batches).tolist() == [0]
        error = outcome(loader.state_dict)
        assert type(error) is penstock.StateError
        assert type(THROWN[name]()).__name__ in str(error)
        assert next(batches).tolist() == [1]
        assert type(outcome(batches.__next__)) is StopIteration


@pytest.mark.parametrize("backend", LOCAL)
def test_an_update_that_raises_here_ends_the_iterators(backend: str, make: Any) -> None:
    for name in CALLERS:
        loader = make(backend, [1, 2])
        batches = iter(loader)
        assert is_as_itself(name, outcome(lambda: loader.update(lambda dataset: throw(name)))), name  # noqa: B023
        assert "was ended by" in str(outcome(batches.__next__))


@pytest.mark.parametrize("backend", ["thread", "simulated", "fork"])
def test_each_step_of_a_worker_that_could_not_begin_raises_an_error_of_its_own(backend: str, make: Any) -> None:
    names = NAMES if backend != "fork" else ["StopIteration", "SystemExit", "one object"]
    for name in names:
        if name == "KeyboardInterrupt" and backend in HERE:
            continue  # the caller's own
        loader = make(backend, range(4), worker_init_fn=lambda worker: throw(name), num_workers=1)  # noqa: B023
        batches = iter(loader)
        found = [outcome(batches.__next__) for _ in range(4)]
        for step, error in enumerate(found):
            check(name, error, f"In worker_init_fn, called before step {step} of epoch 0")
        assert len({depth(error) for error in found}) == 1, name
        assert type(outcome(batches.__next__)) is StopIteration
        loader.close()


def test_an_update_that_raises_in_the_workers_is_the_error_of_each_step(make: Any) -> None:
    def change(dataset: Any) -> None:
        if get_worker_info() is not None:
            throw(dataset.names[0])

    for name in ("StopIteration", "one object", "SystemExit", "a __str__ that raises"):
        loader = make("fork", Item([name, name]), sampler=[1, 3, 1, 3], num_workers=1)
        batches = iter(loader)
        assert next(batches).tolist() == [1]
        loader.update(change)
        for step in (1, 2, 3):
            check(name, outcome(batches.__next__), f"In update(), made before step {step} of epoch 0")
        assert type(outcome(batches.__next__)) is StopIteration
        loader.close()


class Delivering(DataLoader[Any]):
    names: ClassVar = NAMES

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._session.deliver = lambda batch: raising(self.names, int(batch[0]))


@pytest.mark.parametrize("how", ["iter", "batches", "share"])
def test_what_delivery_raises_comes_out_as_itself(how: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a shared epoch nothing tells the others from an interrupt, which ends it if a batch is lost.
    names = [name for name in NAMES if name not in NOT_CAUGHT] if how == "share" else NAMES
    monkeypatch.setattr(Delivering, "names", names)
    loader = make("inline", range(2 * len(names)), kind=Delivering)
    batches = loader.share(1)[0] if how == "share" else getattr(loader, "__iter__" if how == "iter" else how)()
    for number, name in enumerate(names):
        assert is_as_itself(name, outcome(batches.__next__)), name
        good = next(batches)
        assert (good.data if how == "batches" else good) == 2 * number + 1
    assert type(outcome(batches.__next__)) is StopIteration


@pytest.mark.parametrize("backend", ["inline", "thread", "fork"])
@pytest.mark.parametrize("how", ["batches", pytest.param("share", marks=pytest.mark.wide), "share in turn", "skip"])
def test_other_iterators_raise_the_same(how: str, backend: str, make: Any) -> None:
    names = [name for name in NAMES if name != "KeyboardInterrupt"]
    where = PLACES["__getitem__"][1]
    if how == "skip":
        # A lack of memory is never skipped: tests/unit/test_shortage.py.
        names = [name for name in names if name not in NOT_CAUGHT and not isinstance(THROWN[name](), MemoryError)]
        loader = make(backend, Item(names), on_error="skip")
        assert [batch.item() for batch in loader] == list(range(1, 2 * len(names), 2))
        for number, (key, error) in enumerate(loader.skipped):
            assert key == 2 * number
            assert type(error) is type(THROWN[names[number]]())
            assert where.format(key=key) in notes(error)[-1]
        return
    loader = make(backend, Item(names))
    batches = Turns([loader.batches()] if how == "batches" else loader.share(2, in_turn=how != "share"))
    taken(names, batches, where)


class Turns:
    """Asks several iterators in turn, in one thread."""

    def __init__(self, iterators: list[Any]) -> None:
        self.iterators, self.at = iterators, -1

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> Any:
        self.at += 1
        batch = next(self.iterators[self.at % len(self.iterators)])
        return batch.data if isinstance(batch, penstock.Batch) else batch


# ---- on the way to the caller -------------------------------------------------------------------------------


class Bomb:
    """Raises where it is unpickled, if that is in the calling process."""

    def __init__(self, name: str, maker: int) -> None:
        self.name, self.maker = name, maker

    def __reduce__(self) -> Any:
        return arm, (self.name, os.getpid())

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bomb)


def arm(name: str, maker: int) -> Any:
    return throw(name) if maker != os.getpid() else Bomb(name, maker)


class Armed:
    """A collate_fn: every other batch has something in it that cannot be received."""

    def __init__(self, names: list[str], in_structure: bool) -> None:
        self.names, self.in_structure = names, in_structure

    def __call__(self, samples: list[int]) -> Any:
        (key,) = samples
        if key % 2:
            return np.array([key])
        bomb = Bomb(self.names[key // 2], -1)
        return {bomb: np.array(key)} if self.in_structure else [bomb]


@pytest.mark.parametrize("in_structure", [False, True])
def test_a_batch_that_cannot_be_received_is_an_error_of_its_step(in_structure: bool, make: Any) -> None:
    names = ["StopIteration", "EOFError", "a __str__ that raises", "one object", "one object", "a group"]
    if in_structure:
        names = ["StopIteration"] * 3  # the layout is remembered, with its error
    collate_fn = Armed(names, in_structure)
    loader = make("fork", range(2 * len(names)), collate_fn=collate_fn, num_workers=1)
    where = "While the batch of step {key} of epoch 0 was received."
    taken(names, iter(loader), where, lambda name: int(in_structure))


class Key:
    """A key that cannot be sent, nor shown."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        throw(self.name)

    __repr__ = __reduce__


def test_keys_that_cannot_be_sent_end_the_epoch(make: Any) -> None:
    for name in ("StopIteration", "Empty", "one object"):
        loader = make("fork", range(3), sampler=[0, 1, Key(name)], num_workers=1)
        batches = iter(loader)
        assert [next(batches).item() for _ in range(2)] == [0, 1]
        error = outcome(batches.__next__)
        assert is_as_itself(name, error)
        assert "of step 2 could not be sent to a worker." in notes(error)[-1]
        assert type(outcome(batches.__next__)) is StopIteration
        loader.close()


@pytest.mark.parametrize("backend", ["inline", "thread", "fork"])
def test_a_key_that_cannot_be_shown_does_not_hide_the_error(backend: str, make: Any) -> None:
    class Unshown(int):
        def __repr__(self) -> str:
            raise StopIteration("from the key")

        __str__ = __repr__

    names = ["StopIteration", "IndexError"]
    loader = make(backend, Item(names), sampler=[Unshown(key) for key in range(4)])
    taken(names, iter(loader), "(row 0), step {key} of epoch 0")


# ---- prefetch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["__next__", "__iter__", "call", "state_dict", "reset", "__len__"])
def test_prefetch_raises_what_its_source_raises(place: str) -> None:
    class Source(Stream):
        failing = ""

        def __iter__(self) -> Any:
            return throw(self.failing) if place == "__iter__" else self

        def __len__(self) -> int:
            return throw(self.failing)

    class Resettable(Source):
        def reset(self) -> None:
            self.at = -1
            if place == "reset":
                throw(self.failing)

    class WithState(Source):
        def state_dict(self) -> Any:
            return throw(self.failing) if self.at >= 0 else {}

        def load_state_dict(self, state: Any) -> None:
            pass

    if place == "__next__":
        names = [name for name in NAMES if name not in STOPS]
        with penstock.prefetch(Source(names)) as ahead:
            taken(names, Turns([ahead]), "While batch {key} of the source was read ahead.")
        return
    for name in NAMES:
        source = (WithState if place == "state_dict" else Resettable if place == "reset" else Source)(["KeyError"])
        source.at, source.failing = 0, name  # the next item is a sample
        if place == "state_dict":
            source.at = -1
            source.names = []
        with penstock.prefetch((lambda: throw(name)) if place == "call" else source) as ahead:  # noqa: B023
            if place == "__len__":
                error = outcome(lambda: len(ahead))
            elif place == "reset":
                assert next(ahead) == 1
                ahead.reset()
                error = outcome(ahead.__next__)
            else:
                error = outcome(ahead.__next__)
            assert is_as_itself(name, error), name
