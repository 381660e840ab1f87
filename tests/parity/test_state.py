"""Stopping and going on without `seed=`: order and randomness are torch's, and a state knows where they came from.

The last part runs the same calls on torchdata's StatefulDataLoader, where that is installed.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper

import penstock.torch
from parity import sources
from parity.pair import randomness
from penstock.errors import StateError
from penstock.formats import TextLines
from penstock.torch import DataLoader

N = 23
SHAPES: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


class Keys(Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, key: int) -> int:
        return int(key)


class LazyBatches(Sampler[list[int]]):
    """As people write them: an order from Python's generator, drawn when the first batch is asked for."""

    def __iter__(self) -> Iterator[list[int]]:
        keys = list(range(N))
        random.shuffle(keys)
        for at in range(0, N, 4):
            yield keys[at : at + 4]


class EagerBatches(Sampler[list[int]]):
    """The same from numpy's and torch's, drawn as soon as somebody calls iter()."""

    def __iter__(self) -> Iterator[list[int]]:
        keys = np.random.permutation(N)[torch.randperm(N).numpy()].tolist()
        return iter([keys[at : at + 4] for at in range(0, N, 4)])


class GivenBatches(Sampler[list[int]]):
    """The same, from a generator that was given to it."""

    def __init__(self) -> None:
        self.generator = generator()

    def __iter__(self) -> Iterator[list[int]]:
        keys = torch.randperm(N, generator=self.generator).tolist()
        return iter([keys[at : at + 4] for at in range(0, N, 4)])


class Foreign(Sampler[int]):
    """A sampler of one's own, which draws from torch's generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N).tolist())

    def __len__(self) -> int:
        return N


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def distributed(data: Any) -> dict[str, Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=1)
    sampler.set_epoch(3)
    return {"sampler": sampler, "batch_size": 4}


ORDERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in sequence": lambda data: {"batch_size": 4},
    "shuffled": lambda data: {"batch_size": 4, "shuffle": True},
    "shuffled, one by one": lambda data: {"batch_size": None, "shuffle": True},
    "shuffled, none incomplete": lambda data: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "from a generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "with replacement": lambda data: {
        "sampler": RandomSampler(data, replacement=True, num_samples=70, generator=generator()),
        "batch_size": 4,
        "generator": generator(),
    },
    "with replacement, from nowhere": lambda data: {
        "sampler": RandomSampler(data, replacement=True, num_samples=70),
        "batch_size": 9,
    },
    "more than once": lambda data: {"sampler": RandomSampler(data, num_samples=40), "batch_size": 7},
    "a subset": lambda data: {"sampler": SubsetRandomSampler(range(3, 20)), "batch_size": 4},
    "weighted": lambda data: {"sampler": WeightedRandomSampler([1.0] * N, 20), "batch_size": 4},
    "weighted, from a generator": lambda data: {
        "sampler": WeightedRandomSampler([1.0] * N, 20, generator=generator()),
        "batch_size": 4,
    },
    "distributed": distributed,
    "a list": lambda data: {"sampler": [5, 3, 3, 1, 9, 2, 7], "batch_size": 2},
    "a batch sampler of torch's": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 4, True)},
    "one's own": lambda data: {"sampler": Foreign(), "batch_size": 4},
    "batches of one's own": lambda data: {"batch_sampler": LazyBatches()},
    "batches drawn at once": lambda data: {"batch_sampler": EagerBatches()},
    "batches drawn at once, from a generator": lambda data: {
        "batch_sampler": (given := GivenBatches()),
        "generator": given.generator,
    },
}


def seed_all(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Rngs:
    """The caller's own generators, which a caller saves and restores where that matters."""

    def __init__(self) -> None:
        self.states = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def put_back(self) -> None:
        random.setstate(self.states[0])
        np.random.set_state(self.states[1])
        torch.set_rng_state(self.states[2])


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def epoch(loader: Any) -> list[Any]:
    return [plain(batch) for batch in loader]


def saved(loader: Any) -> Any:
    """The state, by way of a file."""
    return json.loads(json.dumps(loader.state_dict()))


def resume(make: Callable[[], Any], state: Any, epochs: int) -> list[list[Any]]:
    loader = make()
    loader.load_state_dict(state)
    batches = iter(loader)
    if state["steps"] > 0:
        assert saved(loader) == state, "nothing was handed out since"
    return [epoch(batches)] + [epoch(loader) for _ in range(epochs - 1)]


def check_every_step(make: Callable[[], Any], epochs: int = 2) -> None:
    """A state taken at any step of an epoch resumes to the rest of it, and to the epochs that follow it."""
    for at in range(len(run(make, epochs)[0]) + 1):
        seed_all(1)
        loader = make()
        epoch(loader)  # the one before
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        state, rngs = saved(loader), Rngs()
        expected = [epoch(batches)] + [epoch(loader) for _ in range(epochs - 1)]
        del batches
        rngs.put_back()
        assert resume(make, state, epochs) == expected, at


def run(make: Callable[[], Any], epochs: int) -> list[list[Any]]:
    seed_all(1)
    loader = make()
    epoch(loader)
    return [epoch(loader) for _ in range(epochs)]


@pytest.mark.parametrize("order", ORDERS)
def test_the_rest_of_an_epoch_comes_in_its_order_and_the_next_epochs_too(order: str) -> None:
    data = Keys()
    check_every_step(lambda: DataLoader(data, **ORDERS[order](data)))


@pytest.mark.parametrize(
    ("order", "shape"),
    [
        ("shuffled", "workers"),
        ("shuffled", "persistent"),
        ("with replacement", "persistent"),
        ("weighted", "workers"),
        ("one's own", "workers"),
        ("batches drawn at once", "workers"),
    ],
)
def test_prefetched_steps_were_not_handed_out(order: str, shape: str) -> None:
    data = Keys()

    def make() -> Any:
        return DataLoader(data, **ORDERS[order](data), **SHAPES[shape])

    for at in (0, 4):
        seed_all(1)
        loader = make()
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        state, rngs = saved(loader), Rngs()
        expected = [epoch(batches), epoch(loader)]
        del batches
        rngs.put_back()
        assert resume(make, state, 2) == expected, at


@pytest.mark.parametrize("shape", SHAPES)
def test_states_are_taken_without_a_draw_from_any_generator(shape: str) -> None:
    def seen(takes: bool) -> list[Any]:
        seed_all(1)
        given = generator()
        loader = DataLoader(sources.Noisy(N), 4, True, generator=given, **SHAPES[shape])
        found = []
        for _ in range(2):
            for batch in loader:
                if takes:
                    loader.state_dict()
                found.append((batch["key"].tolist(), batch["noise"].tolist()))
            if takes:
                loader.state_dict()
            found.append(randomness(given))
        return found

    assert seen(True) == seen(False)


@pytest.mark.parametrize("order", ["in sequence", "shuffled", "distributed"])
def test_a_state_of_an_order_without_a_generator_is_small(order: str) -> None:
    data = Keys()
    loader = DataLoader(data, **ORDERS[order](data), num_workers=2)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 1024


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_keys_are_the_same_with_another_number_of_workers(workers: int) -> None:
    loader = DataLoader(Keys(), 4, True, num_workers=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert resume(lambda: DataLoader(Keys(), 4, True, num_workers=workers), state, 1)[0] == epoch(batches)


def test_a_batch_goes_to_the_worker_that_it_would_have_gone_to_and_that_has_its_seed() -> None:
    def who(key: int) -> tuple[int, int, int]:
        info = get_worker_info()
        assert info is not None
        return key, info.id, info.seed

    def make() -> Any:
        return DataLoader(sources.Made(9, who), None, collate_fn=sources.identity, num_workers=2)

    loader = make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, expected = loader.state_dict(), list(batches)
    assert resume(make, state, 1)[0] == expected
    assert [worker for _, worker, _ in expected] == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_ends_of_an_epoch(shape: str) -> None:
    def make() -> Any:
        return DataLoader(Keys(), 8, **SHAPES[shape])

    whole = epoch(make())
    loader = make()
    assert resume(make, saved(loader), 1) == [whole]  # before the first iter()
    for _ in loader:
        last = saved(loader)
    assert resume(make, last, 2) == [[], whole]  # in the last turn of a loop
    assert resume(make, saved(loader), 1) == [whole]  # after it
    loader.load_state_dict(last)
    assert saved(loader) == last  # right after it was loaded
    assert [epoch(loader), epoch(loader)] == [[], whole]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_state_that_is_loaded_in_a_loop_applies_at_the_next(shape: str) -> None:
    loader = DataLoader(Keys(), 4, **SHAPES[shape])
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    next(batches)
    loader.load_state_dict(state)
    assert plain(next(batches)) == [8, 9, 10, 11]  # this one goes on
    assert saved(loader) == state
    del batches
    assert epoch(loader) == epoch(DataLoader(Keys(), 4))[1:]


def test_a_state_can_be_taken_after_a_break() -> None:
    def make() -> Any:
        return DataLoader(Keys(), 4, True, num_workers=2)

    loader, seen = make(), []
    for batch in loader:
        seen.append(plain(batch))
        if len(seen) == 3:
            break
    ((*rest,),) = resume(make, saved(loader), 1)
    assert sorted(key for keys in (*seen, *rest) for key in keys) == list(range(N))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_that_raised_counts_as_handed_out(workers: int) -> None:
    def make() -> Any:
        return DataLoader(sources.Noisy(8, frozenset({3})), 2, num_workers=workers)

    loader = make()
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="bad sample 3"):
        next(batches)
    assert [batch["key"].tolist() for batch in resume(make, saved(loader), 1)[0]] == [[4, 5], [6, 7]]


@pytest.mark.parametrize("dataset", [Keys(), sources.MadeStream(lambda: iter(range(12)))], ids=["map", "stream"])
def test_out_of_order_each_batch_still_comes_once(dataset: Any) -> None:
    def make() -> Any:
        return DataLoader(dataset, 2, num_workers=2, in_order=False)

    whole = Counter(map(tuple, epoch(make())))
    for at in (1, 4):
        loader = make()
        batches = iter(loader)
        seen = [plain(next(batches)) for _ in range(at)]
        state = saved(loader)
        del batches
        assert Counter(map(tuple, [*seen, *resume(make, state, 1)[0]])) == whole


class SlowFirst(Keys):
    """Its first sample waits until the file exists, so that later batches overtake the first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, key: int) -> int:
        while key == 0 and not self.path.exists():
            time.sleep(0.01)
        return int(key)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("has_state", [False, True])
def test_batches_that_came_early_do_not_come_again_with_another_number_of_workers(
    tmp_path: Path, workers: int, has_state: bool
) -> None:
    dataset = SlowFirst(tmp_path / "go")

    def make(workers: int) -> Any:
        sampler = Positions() if has_state else None
        return DataLoader(dataset, 1, sampler=sampler, num_workers=workers, in_order=not workers)

    loader = make(2)
    batches = iter(loader)
    seen = [*next(batches), *next(batches)]
    assert 0 not in seen
    state = saved(loader)
    dataset.path.touch()
    del batches
    resumed = make(workers)
    resumed.load_state_dict(state)
    rest = iter(resumed)
    seen += [*next(rest)]
    again = make(0)
    again.load_state_dict(saved(resumed))
    assert sorted(torch.stack([*seen, *torch.cat(list(rest))]).tolist()) == list(range(N))
    assert sorted(torch.stack([*seen, *torch.cat(list(again))]).tolist()) == list(range(N))


def test_the_epoch_of_a_distributed_sampler_is_part_of_the_state() -> None:
    def make() -> Any:
        return DataLoader(Keys(), 4, sampler=DistributedSampler(Keys(), num_replicas=2, rank=0))

    loader = make()
    loader.sampler.set_epoch(7)
    batches = iter(loader)
    next(batches)
    state, rest = saved(loader), epoch(batches)
    assert resume(make, state, 1)[0] == rest  # without another word


# ---- what has a state of its own ------------------------------------------------------------------------


class Positions(Sampler[int]):
    """A sampler that can go on in the middle, and counts what it was asked for."""

    def __init__(self) -> None:
        self.at = 0
        self.asked: list[int] = []
        self._resumed = False

    def __iter__(self) -> Iterator[int]:
        self.at = self.at if self._resumed else 0
        self._resumed = False
        while self.at < N:
            self.at += 1
            self.asked.append(self.at - 1)
            yield (self.at - 1) * 5 % N

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self._resumed = state["at"], True


class PositionBatches(Sampler[list[int]]):
    """One whose iterator has the state."""

    def __iter__(self) -> Iterator[list[int]]:
        return PositionIterator()


class PositionIterator:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return [self.at, self.at + 10]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


STATEFUL: dict[str, Callable[[], dict[str, Any]]] = {
    "a sampler": lambda: {"sampler": Positions(), "batch_size": 4},
    "none incomplete": lambda: {"sampler": Positions(), "batch_size": 4, "drop_last": True},
    "one by one": lambda: {"sampler": Positions(), "batch_size": None},
    "an iterator": lambda: {"batch_sampler": PositionBatches()},
}


@pytest.mark.parametrize("order", STATEFUL)
def test_a_sampler_with_a_state_goes_on_from_it(order: str) -> None:
    check_every_step(lambda: DataLoader(Keys(), **STATEFUL[order]()))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sampler_with_a_state_goes_on_from_the_step_that_was_not_handed_out(shape: str) -> None:
    loader = DataLoader(Keys(), sampler=Positions(), batch_size=4, **SHAPES[shape])
    batches = iter(loader)
    next(batches)
    next(batches)
    state, rest = saved(loader), epoch(batches)
    resumed = Positions()
    assert resume(lambda: DataLoader(Keys(), sampler=resumed, batch_size=4, **SHAPES[shape]), state, 1)[0] == rest
    assert resumed.asked[0] == 8  # and was not asked for what had been


class Stream(IterableDataset[Any]):
    """Each worker has its share, one of them a shorter one. The others have a state, here or in their iterators."""

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.read: list[int] = []

    def share(self) -> list[int]:
        info = get_worker_info()
        if info is None:
            return list(range(self.n))
        share = list(range(info.id, self.n, info.num_workers))
        return share[: len(share) // 2] if info.id == 0 else share

    def __iter__(self) -> Iterator[Any]:
        return iter(self.share())


class StatefulStream(Stream):
    at = 0

    def __iter__(self) -> Iterator[Any]:
        share = self.share()
        while self.at < len(share):
            self.at += 1
            yield share[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class StatefulIterator(Stream):
    def __iter__(self) -> Iterator[Any]:
        return ShareIterator(self.share())


class ShareIterator:
    def __init__(self, share: list[int]) -> None:
        self.share, self.at = share, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        if self.at == len(self.share):
            raise StopIteration
        self.at += 1
        return self.share[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class OwnIterator(StatefulStream):
    """A stream that is its own iterator."""

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == len(self.share()):
            raise StopIteration
        self.at += 1
        return self.share()[self.at - 1]


STREAMS = [Stream, StatefulStream, StatefulIterator, OwnIterator]
HOW: list[dict[str, Any]] = [{"batch_size": 3}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_goes_on_where_it_was(kind: type[Stream], how: dict[str, Any]) -> None:
    check_every_step(lambda: DataLoader(kind(), **how))


@pytest.mark.parametrize(
    ("kind", "shape"), [*((kind, "workers") for kind in STREAMS), (StatefulStream, "persistent")]
)
def test_each_workers_copy_of_a_stream_goes_on_where_it_was(kind: type[Stream], shape: str) -> None:
    def make() -> Any:
        return DataLoader(kind(), 3, snapshot_every_n_steps=1, **SHAPES[shape])

    whole = epoch(make())
    assert len({len(keys) for keys in whole}) > 1 and len(whole) == 6  # worker 0 ends early, with a short batch
    for at in (0, 3, 5, 6):
        loader = make()
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        state = saved(loader)
        del batches
        assert resume(make, state, 2) == [whole[at:], whole], at


@pytest.mark.parametrize("every", [0, None, 2, 100])
def test_states_are_exact_however_often_workers_send_them(every: int | None) -> None:
    def make() -> Any:
        return DataLoader(StatefulStream(40), 3, num_workers=2, snapshot_every_n_steps=every)

    loader = make()
    assert loader.snapshot_every_n_steps == every
    whole = epoch(make())
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    assert resume(make, saved(loader), 1)[0] == whole[5:]


def test_a_worker_that_sends_its_state_less_often_reads_less_again_than_all() -> None:
    loader = DataLoader(StatefulStream(60), 2, num_workers=1, snapshot_every_n_steps=3)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    (copied,) = saved(loader)["torch"]["workers"]
    assert copied == {"more": 1, "states": {"iterable": {"at": 12}}, "kept": None}


def test_states_reach_workers_that_are_spawned() -> None:
    loader = DataLoader(StatefulStream(), 3, num_workers=1)
    batches = iter(loader)
    next(batches)
    state, rest = saved(loader), epoch(batches)

    def make() -> Any:
        return DataLoader(StatefulStream(), 3, num_workers=1, multiprocessing_context="spawn")

    assert resume(make, state, 1)[0] == rest


def test_a_stream_has_as_many_readers_as_it_had() -> None:
    state = DataLoader(Stream(), num_workers=2).state_dict()
    with pytest.raises(StateError, match="num_workers was 2 when it was taken, and is 1 here"):
        DataLoader(Stream(), num_workers=1).load_state_dict(state)


class Failing(Stream):
    def __iter__(self) -> Iterator[Any]:
        return FailingIterator(self.share())


class FailingIterator(ShareIterator):
    def __next__(self) -> int:
        key = super().__next__()
        if key == 7:
            raise ValueError("bad sample 7")
        return key


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_goes_on_after_an_error(workers: int) -> None:
    def make() -> Any:
        return DataLoader(Failing(), 3, num_workers=workers)

    loader = make()
    batches = iter(loader)
    for at in range(3):
        if at == 2:
            with pytest.raises(ValueError, match="bad sample 7"):
                next(batches)
        else:
            next(batches)
    state, rest = saved(loader), epoch(batches)
    assert rest
    assert resume(make, state, 1)[0] == rest


class Diary:
    """Counts its epochs, and is at the next one when one has ended."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 6:
            self.at += 1
            yield (self.epoch * 7 + self.at) % N
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class LateDiary(Diary):
    """The same, but at the end of one until somebody begins the next."""

    resumed = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.epoch, self.at = self.epoch + 1, 0
        self.resumed = False
        while self.at < 6:
            self.at += 1
            yield (self.epoch * 7 + self.at) % N

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.resumed = True


class DiaryStream(Diary, IterableDataset[Any]):
    pass


class LateDiaryStream(LateDiary, IterableDataset[Any]):
    pass


class Log(Stream):
    """Where it is, is known again only when it is asked for the first item."""

    at = begin = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.begin = self.begin, 0
        while self.at < self.n:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_was_resumed_and_not_yet_asked_has_the_state_that_was_loaded(workers: int) -> None:
    def make() -> Any:
        return DataLoader(Log(), 4, num_workers=workers)

    whole, loader = epoch(make()), make()
    batches = iter(loader)
    next(batches), next(batches)
    resumed = make()
    resumed.load_state_dict(saved(loader))
    rest = iter(resumed)
    assert resume(make, saved(resumed), 1)[0] == whole[2:]
    assert epoch(rest) == whole[2:]


def test_an_epoch_that_was_left_in_the_middle_does_not_shorten_the_next() -> None:
    def make() -> Any:
        return DataLoader(Log(), 4, num_workers=1, persistent_workers=True)

    loader = make()
    whole = epoch(loader)
    for _, _ in zip(range(2), loader, strict=False):
        pass
    begun = iter(loader)
    assert resume(make, saved(loader), 1)[0] == whole
    assert epoch(begun) == whole


DIARIES: dict[str, Callable[[], Any]] = {
    "a sampler": lambda: DataLoader(Keys(), sampler=Diary(), batch_size=4),
    "a late one": lambda: DataLoader(Keys(), sampler=LateDiary(), batch_size=4, num_workers=1),
    "a stream": lambda: DataLoader(DiaryStream(), batch_size=4),
    "a late stream": lambda: DataLoader(LateDiaryStream(), batch_size=3),
    "in a worker": lambda: DataLoader(DiaryStream(), batch_size=4, num_workers=1, persistent_workers=True),
    "late in a worker": lambda: DataLoader(LateDiaryStream(), batch_size=3, num_workers=1, persistent_workers=True),
    "in two workers, the rest dropped": lambda: DataLoader(
        DiaryStream(), batch_size=4, drop_last=True, num_workers=2, persistent_workers=True
    ),
    "late in a worker, the rest dropped": lambda: DataLoader(
        LateDiaryStream(), batch_size=4, drop_last=True, num_workers=1, persistent_workers=True
    ),
    "in a worker, asked seldom": lambda: DataLoader(
        DiaryStream(), batch_size=2, num_workers=1, persistent_workers=True, snapshot_every_n_steps=2
    ),
}


@pytest.mark.parametrize("kind", DIARIES)
def test_what_counts_its_epochs_goes_on_counting(kind: str) -> None:
    make = DIARIES[kind]
    loader = make()
    epochs = [epoch(loader) for _ in range(4)]
    assert len({str(one) for one in epochs}) == 4
    loader = make()
    assert epoch(loader) == epochs[0]
    after = saved(loader)
    for _ in loader:
        last = saved(loader)
    assert resume(make, after, 2) == epochs[1:3]
    assert resume(make, last, 3) == [[], *epochs[2:4]]
    other = make()
    other.load_state_dict(last)
    assert epoch(other) == []
    assert resume(make, saved(other), 2) == epochs[2:4]


class Counting(Dataset[Any]):
    """A map-style dataset with a state: how many samples this copy of it has given."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> Any:
        self.given += 1
        return key, self.given

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_copy_of_a_dataset_with_a_state_has_its_own(shape: str) -> None:
    def make() -> Any:
        return DataLoader(Counting(), 2, collate_fn=sources.identity, **SHAPES[shape])

    loader = make()
    for at in (0, 5, 10, 11):
        batches = iter(loader)
        for _ in range(min(at, 10)):
            next(batches)
        if at == 11:
            next(batches, None)
        state = saved(loader)
        expected = [*([epoch(batches)] if at < 11 else []), epoch(loader)]
        del batches
        assert resume(make, state, len(expected)) == expected, at


class Layers(torch.nn.Module):
    """A dataset with parameters, which are no position in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Buffer(torch.arange(20))

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> Any:
        return self.table[key]


class CountingLayers(Counting, Layers):
    def __init__(self) -> None:
        Layers.__init__(self)
        self.given = 0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_parameters_of_a_module_are_not_its_state(shape: str) -> None:
    def make() -> Any:
        return DataLoader(Layers(), 4, **SHAPES[shape])  # type: ignore[arg-type]

    loader = make()
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    assert state["torch"]["workers"] == []
    assert resume(make, state, 1)[0] == epoch(batches)


class LayersStream(torch.nn.Module, Stream):
    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        Stream.__init__(self)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_that_is_a_module_is_read_again(shape: str) -> None:
    def make() -> Any:
        return DataLoader(LayersStream(), 2, **SHAPES[shape])

    loader = make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = saved(loader)
    assert resume(make, state, 1)[0] == epoch(batches)


def test_with_a_seed_the_parameters_of_a_module_are_not_its_state_either() -> None:
    assert DataLoader(Layers(), seed=1).state_dict()["dataset"] is None  # type: ignore[arg-type]
    loader = DataLoader(LayersStream(), 2, seed=1)
    next(iter(loader))
    assert loader.state_dict()["mark"] is None


def test_a_module_may_have_a_state_of_its_own() -> None:
    loader = DataLoader(CountingLayers(), 4)
    next(iter(loader))
    assert saved(loader)["torch"]["workers"] == [{"more": 0, "states": {"iterable": {"given": 4}}, "kept": None}]


def test_the_states_of_copies_need_as_many_copies() -> None:
    state = DataLoader(Counting(), num_workers=2).state_dict()
    with pytest.raises(StateError, match="num_workers was 2 when it was taken, and is 0 here"):
        DataLoader(Counting()).load_state_dict(state)


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
def test_a_state_of_torchdatas_is_named(seed: int | None) -> None:
    for theirs in ({"_snapshot": {}, "_steps_since_snapshot": 0}, {"_num_yielded": 3}):
        with pytest.raises(StateError, match="torchdata's StatefulDataLoader"):
            DataLoader(Keys(), seed=seed).load_state_dict(theirs)


def test_a_seed_is_missing_or_one_too_many() -> None:
    seeded, unseeded = DataLoader(Keys(), seed=3), DataLoader(Keys())
    with pytest.raises(StateError, match="with seed=3, and this one has no seed"):
        unseeded.load_state_dict(seeded.state_dict())
    with pytest.raises(StateError, match="without a seed, and this one has seed="):
        seeded.load_state_dict(unseeded.state_dict())
    with pytest.raises(StateError, match='the way samples are read was "torch\'s, by key"'):
        penstock.DataLoader(range(N)).load_state_dict(unseeded.state_dict())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("batch_size", {"batch_size": 5, "shuffle": True}),
        ("drop_last", {"batch_size": 4, "shuffle": True, "drop_last": True}),
        ("order", {"batch_size": 4}),
        (
            "the number of generators given to it",
            {"batch_size": 4, "shuffle": True, "generator": generator()},
        ),
    ],
)
def test_what_differs_is_named(name: str, settings: dict[str, Any]) -> None:
    state = DataLoader(Keys(), 4, True).state_dict()
    with pytest.raises(StateError, match=f"{name} was"):
        DataLoader(Keys(), **settings).load_state_dict(state)
    with pytest.raises(StateError, match="length was 23"):
        DataLoader(range(20), 4, True).load_state_dict(state)  # type: ignore[arg-type]


def damaged(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The state with one thing in it missing or of another kind."""
    for part in ((), ("torch",), ("torch", "origin"), ("torch", "workers", 0)):
        at: Any = state
        for name in part:
            at = at[name] if at and (isinstance(name, int) or name in at) else None
        for name in at or ():
            if name in ("about", "epoch"):
                continue
            for junk in (None, -1, True, "junk", [1], {"a": 1}):
                broken = copy.deepcopy(state)
                inner: Any = broken
                for step in part:
                    inner = inner[step]
                inner.pop(name) if junk is None else inner.update({name: junk})
                yield broken


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Keys(), 4, True),
        lambda: DataLoader(Keys(), 4, True, generator=generator()),
        lambda: DataLoader(Keys(), 4, sampler=SubsetRandomSampler(range(8))),
        lambda: DataLoader(Keys(), batch_sampler=LazyBatches()),
        lambda: DataLoader(Keys(), 4, sampler=Positions()),
        lambda: DataLoader(StatefulStream(), 4),
        lambda: DataLoader(Stream(), 4),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(make: Callable[[], Any]) -> None:
    loader = make()
    next(iter(loader))
    state = saved(loader)
    seed_all(2)
    before = randomness(loader.generator)
    refused = []
    for broken in damaged(state):
        other = make()
        fresh = saved(other)
        try:
            other.load_state_dict(broken)
        except StateError as error:
            refused.append(str(error))
            assert saved(other) == fresh
    assert len(refused) > 20
    assert all("Take another checkpoint" in said for said in refused if "damaged" in said)
    assert randomness(loader.generator) == before


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_loader_of_pipes_says_that_it_has_no_state() -> None:
    loader = DataLoader(IterableWrapper(range(4)))  # type: ignore[no-untyped-call]
    next(iter(loader))
    with pytest.warns(UserWarning, match="this state is empty"):
        assert loader.state_dict() == {}
    loader.load_state_dict({})
    assert len(epoch(loader)) == 4


def test_a_loader_without_a_state_asks_nobody_for_one() -> None:
    class Refuses(Positions):
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError("nobody wants to know")

    class RefusingStream(StatefulStream):
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError("nobody wants to know")

    with penstock.torch.enable():
        assert len(epoch(torch.utils.data.DataLoader(Keys(), 4, sampler=Refuses(), num_workers=1))) == 6
        assert len(epoch(torch.utils.data.DataLoader(RefusingStream(), 4, num_workers=1))) == 3


def test_an_empty_state_begins_anew() -> None:
    """As torchdata's loader has it."""
    loader = DataLoader(Keys(), 4)
    next(iter(loader))
    loader.load_state_dict({})
    assert len(epoch(loader)) == 6


@pytest.mark.parametrize("every", [-1, True, "1", 1.5])
def test_how_often_is_a_number(every: Any) -> None:
    with pytest.raises(ValueError, match="snapshot_every_n_steps must be an int"):
        DataLoader(Keys(), snapshot_every_n_steps=every)


# ---- the rest ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_was_iterated_can_still_be_copied(workers: int) -> None:
    loader = DataLoader(Keys(), 4, True, num_workers=workers)
    next(iter(loader))
    for twin in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        assert len(epoch(twin)) == 6


def test_a_copy_has_the_state_that_was_loaded() -> None:
    loader = DataLoader(Keys(), 4, True)
    next(iter(loader))
    state = saved(loader)
    loader.load_state_dict(state)
    twin = pickle.loads(pickle.dumps(loader))
    assert epoch(twin) == epoch(loader)
    assert len(epoch(twin)) == 6


class Promises(Stream):
    def __len__(self) -> int:
        return 6


def test_a_resumed_stream_that_gives_more_than_it_promised_is_noticed() -> None:
    loader = DataLoader(Promises(8), 1)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    other = DataLoader(Promises(8), 1)
    assert len(other) == 6
    other.load_state_dict(loader.state_dict())
    resumed = iter(other)
    next(resumed)
    with pytest.warns(UserWarning, match=r"but 7 samples have been fetched"):
        next(resumed)


# ---- beside torchdata's --------------------------------------------------------------------------------


class EndsForGood(StatefulStream):
    """One that begins again after its end would be read again by a worker of torchdata's whose share has ended."""

    def __iter__(self) -> Iterator[Any]:
        for key in self.share()[self.at :]:
            self.at += 1
            yield key


def distributed_with_a_state(torchdata: Any) -> dict[str, Any]:
    sampler = torchdata.sampler.StatefulDistributedSampler(Keys(), num_replicas=2, rank=1)
    return {"dataset": Keys(), "sampler": sampler, "batch_size": 4}


PROGRAMS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in sequence": lambda torchdata: {"dataset": Keys(), "batch_size": 4},
    "a sampler with a state": distributed_with_a_state,
    "a dataset with a state": lambda torchdata: {
        "dataset": Counting(),
        "batch_size": 2,
        "collate_fn": sources.identity,
    },
    "a stream": lambda torchdata: {"dataset": Stream(), "batch_size": 3},
    "a stream with a state": lambda torchdata: {"dataset": EndsForGood(), "batch_size": 3},
    "an iterator with a state": lambda torchdata: {"dataset": StatefulIterator(), "batch_size": None},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata 0.11 calls
def test_torchdatas_loader_resumes_to_the_same(program: str, workers: int) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def make(loader_class: Any) -> Any:
        return loader_class(**PROGRAMS[program](torchdata), num_workers=workers, snapshot_every_n_steps=1)

    def resumed(loader_class: Any, at: int) -> Any:
        loader = make(loader_class)
        batches = iter(loader)
        for _ in range(at):
            next(batches)
        state = loader.state_dict()
        del batches, loader
        other = make(loader_class)
        other.load_state_dict(state)
        return epoch(other)

    whole = epoch(make(DataLoader))
    for at in (0, 1, len(whole) - 1):
        ours = resumed(DataLoader, at)
        assert ours == resumed(torchdata.StatefulDataLoader, at), at
        assert len(ours) == len(whole) - at


def test_a_state_of_other_files_is_refused(tmp_path: Path) -> None:
    def data(name: str, text: str) -> TextLines:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "some.txt").write_text(text)
        return TextLines(tmp_path / name)

    loader = DataLoader(data("one", "a\nbb\n"), batch_size=1)
    next(iter(loader))
    state = loader.state_dict()
    DataLoader(data("copy", "a\nbb\n"), batch_size=1).load_state_dict(state)
    with pytest.raises(StateError, match="taken with other files"):
        DataLoader(data("other", "bb\na\n"), batch_size=1).load_state_dict(state)
