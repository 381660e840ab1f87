"""A state of any moment resumes to what comes without stopping, whoever has it: samplers, streams, their iterators.

Without `seed=`. The caller's own generators are saved and restored with it, as a caller would.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, get_worker_info

from parity.test_state import ShareIterator
from penstock.errors import StateError
from penstock.torch import DataLoader

# With these, the last batch is a short one, or a full one, after which the end is not known yet.
SIZES = (7, 6)

SHAPES: dict[str, dict[str, Any]] = {
    "none": {},
    "one worker": {"num_workers": 1},
    "one that stays": {"num_workers": 1, "persistent_workers": True},
    "two workers": {"num_workers": 2},
    "two that stay": {"num_workers": 2, "persistent_workers": True},
}


def order(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(n).tolist()


def share(n: int) -> int:
    """How many items the stream has here: the second worker has fewer, and the first ends later."""
    info = get_worker_info()
    return n if info is None else n - 2 * info.id


class Anew:
    """It begins anew in its generator, but for the first time after a state was loaded."""

    at = begin = 0

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        self.at, self.begin = self.begin, 0
        while self.at < share(self.n):
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["at"]


class Counts(Anew):
    """Its order is that of its epoch. At the end of one it is before the next."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        keys = order(share(self.n), self.epoch)
        while self.at < len(keys):
            self.at += 1
            yield keys[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class CountsLate(Counts):
    """The same, but at the end of an epoch until somebody begins the next."""

    resumed = False

    def __iter__(self) -> Iterator[int]:
        if not self.resumed:
            self.at, self.epoch = 0, self.epoch + 1
        self.resumed = False
        keys = order(share(self.n), self.epoch)
        while self.at < len(keys):
            self.at += 1
            yield keys[self.at - 1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


class ByIterator:
    """Only its iterator has a state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return ShareIterator(list(range(share(self.n))))


class Both(ByIterator):
    """It knows the epoch, and its iterator the place."""

    epoch = 0
    resumed = False

    def __iter__(self) -> Iterator[int]:
        self.epoch += not self.resumed
        self.resumed = False
        return ShareIterator(order(share(self.n), self.epoch))

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.resumed = state["epoch"], True


class Itself(Counts):
    """It is its own iterator, and counts its epochs when one has ended."""

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self

    def __next__(self) -> int:
        keys = order(share(self.n), self.epoch)
        if self.at == len(keys):
            self.epoch += 1
            raise StopIteration
        self.at += 1
        return keys[self.at - 1]


class Drawing(ShareIterator):
    """As torchdata's: it draws its order when it is made, and its state is what it drew that from."""

    def __init__(self, n: int, generator: torch.Generator) -> None:
        self.n, self.generator = n, generator
        self._draw()

    def _draw(self) -> None:
        self.drawn_from = self.generator.get_state()
        super().__init__(torch.randperm(self.n, generator=self.generator).tolist())

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "drawn_from": self.drawn_from.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(torch.tensor(state["drawn_from"], dtype=torch.uint8))
        self._draw()
        self.at = state["at"]


class Draws(ByIterator):
    def __init__(self, n: int, own: str = "generator") -> None:
        super().__init__(n)
        setattr(self, own, torch.Generator().manual_seed(5))
        self._own = own

    def __iter__(self) -> Iterator[int]:
        return Drawing(share(self.n), getattr(self, self._own))


class DrawsBatches(Draws):
    def __iter__(self) -> Iterator[Any]:
        return Pairs(self.n, self.generator)


class Pairs(Drawing):
    def __next__(self) -> Any:
        if self.at == self.n:
            raise StopIteration
        keys = self.share[self.at : self.at + 2]
        self.at += len(keys)
        return keys


class DrawsGlobally(ByIterator):
    """Its iterator keeps a number that comes from torch's own generator when it is iterated."""

    def __iter__(self) -> Iterator[int]:
        return Seeded(self.n, int(torch.randint(1 << 30, ())))


class Seeded(ShareIterator):
    def __init__(self, n: int, seed: int) -> None:
        super().__init__(order(n, seed))
        self.seed = seed

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__init__(len(self.share), state["seed"])  # type: ignore[misc]
        self.at = state["at"]


class Shuffles(Anew):
    """It has a generator that it was given, and keeps only its place."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[int]:
        keys = torch.randperm(self.n, generator=self.generator).tolist()
        return map(keys.__getitem__, super().__iter__())


class ShufflesLate(Shuffles):
    """The same, when it is asked for the first key."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()


class OwnBatches(BatchSampler):
    """It has no state, and what it was given is in the sampler inside."""


class Kind(NamedTuple):
    make: Callable[[int], dict[str, Any]]
    # Whether it begins an epoch in the same way after one that was left in the middle.
    forgets: bool = False
    is_stream: bool = False


def sampler(kind: Callable[[int], Any], *, forgets: bool = False) -> Kind:
    return Kind(lambda n: {"dataset": range(n), "sampler": kind(n), "batch_size": 2}, forgets)


def batch_sampler(kind: Callable[[int], Any]) -> Kind:
    return Kind(lambda n: {"dataset": range(n), "batch_sampler": kind(n)}, forgets=True)


def stream(kind: type, *, forgets: bool = False) -> Kind:
    streamed = type(kind.__name__, (kind, IterableDataset), {"__len__": None})
    return Kind(lambda n: {"dataset": streamed(n), "batch_size": 2}, forgets, is_stream=True)


def torchdatas(name: str, **settings: Any) -> Any:
    theirs = pytest.importorskip("torchdata.stateful_dataloader.sampler", reason="torchdata is not installed")
    return lambda n: getattr(theirs, name)(range(n), **settings)


def their_random(n: int) -> Any:
    return torchdatas("RandomSampler", generator=torch.Generator().manual_seed(5))(n)


def their_batches(n: int) -> Any:
    theirs = pytest.importorskip("torchdata.stateful_dataloader.sampler", reason="torchdata is not installed")
    return theirs.BatchSampler(their_random(n), 2, False)


def own_batches(n: int) -> Any:
    generator = torch.Generator().manual_seed(5)
    return OwnBatches(RandomSampler(range(n), generator=generator), 2, False)


KINDS: dict[str, Kind] = {
    "a sampler that begins anew": sampler(Anew, forgets=True),
    "a sampler that counts": sampler(Counts),
    "a sampler that counts late": sampler(CountsLate),
    "a sampler's iterator": sampler(ByIterator, forgets=True),
    "a sampler and its iterator": sampler(Both),
    "a sampler that is its own iterator": sampler(Itself, forgets=True),
    "a sampler whose iterator draws": sampler(Draws, forgets=True),
    "a sampler whose iterator draws, in secret": sampler(lambda n: Draws(n, "_secret")),
    "a sampler whose iterator draws globally": sampler(DrawsGlobally, forgets=True),
    "a sampler that shuffles": sampler(Shuffles, forgets=True),
    "a sampler that shuffles late": sampler(ShufflesLate, forgets=True),
    "a batch sampler whose iterator draws": batch_sampler(DrawsBatches),
    "a batch sampler around a generator": batch_sampler(own_batches),
    "torchdata's distributed sampler": sampler(
        lambda n: torchdatas("StatefulDistributedSampler", num_replicas=1, rank=0)(n), forgets=True
    ),
    "torchdata's random sampler": sampler(their_random, forgets=True),
    "torchdata's batch sampler": batch_sampler(their_batches),
    "a stream that begins anew": stream(Anew, forgets=True),
    "a stream that counts": stream(Counts),
    "a stream that counts late": stream(CountsLate),
    "a stream's iterator": stream(ByIterator, forgets=True),
    "a stream and its iterator": stream(Both),
    "a stream that is its own iterator": stream(Itself),
    "a stream whose iterator draws": stream(Draws),
}


class Moment(NamedTuple):
    """A state, when this many batches of this epoch were handed out, and the caller's generators then."""

    epoch: int
    steps: int
    name: str
    state: Any
    rngs: Any


def seed_all(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)


def saved(loader: Any) -> Any:
    """The state, by way of a file where it can."""
    state = loader.state_dict()
    try:
        return json.loads(json.dumps(state))
    except TypeError:  # torchdata's has tensors in it
        return copy.deepcopy(state)


def epoch(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def text(state: Any) -> str:
    return json.dumps(state, default=torch.Tensor.tolist)


def now(loader: Any, number: int, steps: int, name: str) -> Moment:
    return Moment(number, steps, name, saved(loader), (random.getstate(), torch.get_rng_state()))


def put_back(moment: Moment) -> None:
    random.setstate(moment.rngs[0])
    torch.set_rng_state(moment.rngs[1])


def moments(loader: Any) -> Iterator[Moment]:
    """All the moments of two epochs."""
    yield now(loader, 0, 0, "before iter()")
    for number in range(2):
        batches = iter(loader)
        yield now(loader, number, 0, "after iter()")
        for steps, _ in enumerate(batches, 1):
            yield now(loader, number, steps, "in the loop")
        yield now(loader, number + 1, 0, "after the loop")


def check_goes_on(make: Callable[[], Any], moment: Moment, expected: list[Any]) -> None:
    loader = make()
    loader.load_state_dict(moment.state)
    put_back(moment)
    where = f"{moment.name}, after {moment.steps} steps of epoch {moment.epoch}: {text(moment.state)[:500]}"
    assert [epoch(loader) for _ in expected] == expected, where


def whole_run(make: Callable[[], Any], epochs: int) -> list[Any]:
    seed_all(1)
    loader = make()
    return [epoch(loader) for _ in range(epochs)]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_a_state_of_any_moment_goes_on_as_without_stopping(kind: str, n: int) -> None:
    def make() -> Any:
        return DataLoader(**KINDS[kind].make(n))

    whole = whole_run(make, 4)
    seed_all(1)
    found = list(moments(make()))
    assert [one.steps for one in found if one.epoch == 1] == [0, 0, *range(1, len(whole[1]) + 1)]
    for one in found:
        expected = [whole[one.epoch][one.steps :], whole[one.epoch + 1]]
        check_goes_on(make, one, expected)
        again = make()
        again.load_state_dict(one.state)
        assert text(saved(again)) == text(one.state), "right after it was loaded"
        put_back(one)
        batches = iter(again)
        check_goes_on(make, now(again, one.epoch, one.steps, f"{one.name}, and before anything more"), expected)
        del batches


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *((kind, "none") for kind in KINDS if KINDS[kind].forgets),
        ("a sampler that begins anew", "one worker"),
        ("a batch sampler whose iterator draws", "one that stays"),
        ("a stream that begins anew", "one that stays"),
    ],
)
def test_after_a_break_a_new_epoch_is_a_whole_one(kind: str, shape: str) -> None:
    def make() -> Any:
        return DataLoader(**KINDS[kind].make(6), **SHAPES[shape])

    seed_all(1)
    loader = make()
    for _ in loader:
        break
    left = now(loader, 0, 1, "after a break")
    batches = iter(loader)
    begun = now(loader, 1, 0, "after iter()")
    expected = [epoch(batches), epoch(loader)]
    check_goes_on(make, begun, expected)
    assert len(expected[0]) == 3
    check_goes_on(make, left, [whole_run(make, 1)[0][1:]])


# A sampler is read by the caller; torch iterates it twice where there are new workers. A stream is read by workers.
SHAPED = [
    *((kind, "one worker") for kind in KINDS if not KINDS[kind].is_stream),
    ("a sampler whose iterator draws", "two that stay"),
    *((kind, "two that stay") for kind in KINDS if KINDS[kind].is_stream),
    ("a stream that begins anew", "one that stays"),
    ("a stream and its iterator", "two workers"),
]


SHAPED_TOO = [
    *((kind, "two that stay") for kind in KINDS if "draws" in kind),
    *((kind, "one that stays") for kind in KINDS if KINDS[kind].is_stream),
    ("a stream that begins anew", "two workers"),
]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*SHAPED, *(pytest.param(*each, marks=pytest.mark.wide) for each in SHAPED_TOO if each not in SHAPED)],
)
def test_with_workers_a_state_goes_on_as_without_stopping(kind: str, shape: str) -> None:
    def make() -> Any:
        return DataLoader(**KINDS[kind].make(7), **SHAPES[shape])

    seed_all(1)
    loader = make()
    found = [one for one in moments(loader) if one.epoch == 1]
    whole = whole_run(make, 3)
    after, begun, _, middle, *_, last = found
    for one in (after, begun, middle):
        check_goes_on(make, one, [whole[1][one.steps :]])
    check_goes_on(make, last, [[], whole[2]])


class FirstHasAll(ByIterator, IterableDataset[Any]):
    """One worker has nothing to read, in any epoch."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return ShareIterator(list(range(self.n if info is None or info.id == 0 else 0)))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    __len__ = None  # type: ignore[assignment]


def test_a_worker_without_a_share_leaves_nothing_to_its_next_epoch() -> None:
    def make() -> Any:
        return DataLoader(FirstHasAll(5), 2, num_workers=2, persistent_workers=True)

    loader = make()
    whole = epoch(loader)
    check_goes_on(make, now(loader, 1, 0, "after the loop"), [whole, whole])


def test_an_iterator_has_ended_though_there_is_more_to_read_since() -> None:
    loader = DataLoader(range(6), sampler=ByIterator(4), batch_size=2)  # type: ignore[arg-type]
    epoch(loader)
    other = DataLoader(range(6), sampler=ByIterator(6), batch_size=2)  # type: ignore[arg-type]
    other.load_state_dict(saved(loader))
    assert epoch(other) == [[0, 1], [2, 3], [4, 5]]


def test_what_has_nothing_to_give_after_its_epochs_end_says_so() -> None:
    class Stubborn(Anew):
        def __iter__(self) -> Iterator[int]:
            begin = self.begin
            yield from super().__iter__()
            self.begin = begin

    def make() -> Any:
        return DataLoader(range(6), sampler=Stubborn(6), batch_size=2)  # type: ignore[arg-type]

    loader, other = make(), make()
    assert len(epoch(loader)) == len(epoch(loader)) == 3
    other.load_state_dict(saved(loader))
    with pytest.raises(StateError, match="Stubborn yields no items, though iterated twice"):
        epoch(other)


def test_a_gap_in_the_steps_has_the_mark_of_an_earlier_step() -> None:
    def make() -> Any:
        settings: Any = {"num_workers": 1, "prefetch_factor": 1, "in_order": False}
        return DataLoader(range(8), sampler=Anew(8), batch_size=2, **settings)  # type: ignore[arg-type]

    loader = make()
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    state["beyond"] = [[2, 2]]  # as if step 2 had come before step 1
    again = make()
    again.load_state_dict(state)
    batches = iter(again)
    assert next(batches).tolist() == [2, 3]
    gap = saved(again)
    assert gap["steps"] == 3 and gap["mark"]["read"] <= 3
    last = make()
    last.load_state_dict(gap)
    assert epoch(last) == epoch(batches) == [[6, 7]]


def test_a_dataset_that_grows_leaves_the_length_of_the_epoch_in_its_state() -> None:
    data = list(range(4))
    loader = DataLoader(data, batch_size=2)  # type: ignore[arg-type]
    iter(loader)
    data.append(4)
    assert saved(loader)["about"]["length"] == 4
