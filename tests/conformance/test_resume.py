"""A state taken anywhere goes on from there, on another number of workers, and nothing is read twice or lost."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from same import same

from penstock import (
    BatchSampler,
    BlockSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    StateError,
    SubsetRandomSampler,
    WeightedRandomSampler,
    rng,
)

N = 23


class Noisy(Dataset[Any]):
    """What is in a sample depends on the generators, so a step that is not itself shows.

    Threads share those of the process: there it draws only from the sample's own.
    """

    def __init__(self, n: int = N, bad: int = -1, alone: bool = True) -> None:
        self.n = n
        self.bad = bad
        self.alone = alone

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key == self.bad:
            raise KeyError(key)
        return key, rng().random(), *((random.random(), np.random.random()) if self.alone else ())


class Stream(IterableDataset[Any]):
    def __init__(self, alone: bool = True) -> None:
        self.alone = alone

    def __iter__(self) -> Iterator[Any]:
        for item in range(N):
            yield item + rng().random() + (random.random() if self.alone else 0)


class Light(Stream):
    def load(self, item: float) -> Any:
        return item, rng().random(), random.random() if self.alone else 0


class Backwards:
    """A sampler of the user's. `asked` counts its keys, over the life of the process."""

    asked = 0

    def __iter__(self) -> Iterator[int]:
        for key in range(N - 1, -1, -1):
            type(self).asked += 1
            yield key


class Kept:
    """What has a state: `__iter__` begins anew, but for the first time after `load_state_dict`."""

    at = 0
    begin = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["at"]

    def positions(self) -> Iterator[int]:
        self.at, self.begin = self.begin, 0
        while self.at < N:
            self.at += 1
            yield self.at - 1


class KeptSampler(Kept):
    def __iter__(self) -> Iterator[int]:
        for at in self.positions():
            Backwards.asked += 1
            yield N - 1 - at


class KeptBatches(Kept):
    def __iter__(self) -> Iterator[list[int]]:
        for at in self.positions():
            Backwards.asked += 1
            yield [at, N - 1 - at]


class KeptIterator(Kept):
    """It is the iterator that has the state."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.at == N:
            raise StopIteration
        self.at += 1
        return self.items(self.at - 1)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class ByIterator:
    def __iter__(self) -> Iterator[int]:
        return KeptIterator(lambda at: N - 1 - at)


class KeptStream(Kept, Stream):
    def __iter__(self) -> Iterator[Any]:
        rng().random()  # drawn when it is opened, so it must not count where it is opened again
        return (at + rng().random() + (random.random() if self.alone else 0) for at in self.positions())


class KeptLight(KeptStream, Light):
    pass


class Epochs(Kept):
    """Its order is another in each epoch, by what it remembers of those before."""

    epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin, self.epoch = state["at"], state["epoch"]

    def positions(self) -> Iterator[int]:
        for at in super().positions():
            yield at * 5 % N if self.epoch == 0 else (at * 7 + self.epoch) % N
        self.at, self.epoch = 0, self.epoch + 1


class EpochsSampler(Epochs, KeptSampler):
    pass


class EpochsStream(Epochs, KeptStream):
    pass


class EpochsLight(Epochs, KeptLight):
    pass


class Rewinding(KeptStream):
    """At its end, its state is that of its beginning."""

    def positions(self) -> Iterator[int]:
        yield from super().positions()
        self.at = 0


class StreamByIterator(Stream):
    def __iter__(self) -> Iterator[Any]:
        return KeptIterator(lambda at: at + rng().random() + (random.random() if self.alone else 0))


SOURCES: dict[str, Any] = {
    "shuffled": lambda alone: (Noisy(alone=alone), {"batch_size": 4, "shuffle": True}),
    "in sequence, the rest dropped": lambda alone: (Noisy(alone=alone), {"batch_size": 4, "drop_last": True}),
    "not batched": lambda alone: (Noisy(alone=alone), {"batch_size": None, "shuffle": True}),
    "a sampler": lambda alone: (Noisy(alone=alone), {"batch_size": 4, "sampler": Backwards()}),
    "a batch sampler": lambda alone: (
        Noisy(alone=alone),
        {"batch_sampler": [[3, 1], [2], [5, 6, 7], [0]]},
    ),
    "a stream": lambda alone: (Stream(alone), {"batch_size": 4}),
    "a stream of light items": lambda alone: (Light(alone), {"batch_size": 4}),
    "a stream, not batched": lambda alone: (Stream(alone), {"batch_size": None}),
}

# Those that have a state of their own.
KEPT: dict[str, Any] = {
    "a sampler": lambda alone: (Noisy(alone=alone), {"batch_size": 4, "sampler": KeptSampler()}),
    "a sampler, not batched": lambda alone: (
        Noisy(alone=alone),
        {"batch_size": None, "sampler": KeptSampler()},
    ),
    "a batch sampler": lambda alone: (Noisy(alone=alone), {"batch_sampler": KeptBatches()}),
    "a sampler's iterator": lambda alone: (Noisy(alone=alone), {"batch_size": 4, "sampler": ByIterator()}),
    "a stream": lambda alone: (KeptStream(alone), {"batch_size": 4}),
    "a sampler that counts epochs": lambda alone: (
        Noisy(alone=alone),
        {"batch_size": 4, "sampler": EpochsSampler()},
    ),
    "a stream that counts epochs": lambda alone: (EpochsStream(alone), {"batch_size": 4}),
    "light items that count epochs": lambda alone: (EpochsLight(alone), {"batch_size": 4}),
    "a stream that is rewound": lambda alone: (Rewinding(alone), {"batch_size": 4}),
    "a stream that comes out even": lambda alone: (KeptStream(alone), {"batch_size": N}),
    "a stream, the rest dropped": lambda alone: (KeptStream(alone), {"batch_size": 4, "drop_last": True}),
    "a stream, not batched": lambda alone: (KeptStream(alone), {"batch_size": None}),
    "a stream's iterator": lambda alone: (StreamByIterator(alone), {"batch_size": 4}),
    "a stream of light items": lambda alone: (KeptLight(alone), {"batch_size": 4}),
    "a rank's sampler": lambda alone: (
        Noisy(alone=alone),
        {"batch_size": 2, "sampler": KeptSampler(), "shard": (1, 3), "last_batch": "keep"},
    ),
    "a rank's stream": lambda alone: (
        KeptStream(alone),
        {"batch_size": 2, "shard": (1, 3), "last_batch": "drop"},
    ),
    "a rank's light items": lambda alone: (
        KeptLight(alone),
        {"batch_size": 2, "shard": (2, 3), "last_batch": "drop"},
    ),
}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 1024
    return json.loads(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_from_any_step_on_the_rest_is_the_same(make: Any, name: str) -> None:
    stop_everywhere(make, SOURCES[name])


# What a state says is said by the caller, or by a reader in one way whatever started it: one of each is enough.
@pytest.mark.parametrize(
    ("make", "name"),
    [(make, name) for make in ("inline", "thread-2", "fork-2") for name in KEPT] + [("spawn-2", "a stream")],
    indirect=["make"],
)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_from_any_step_on_what_has_a_state_goes_on_with_it(make: Any, name: str) -> None:
    for state in stop_everywhere(make, KEPT[name]):
        assert (state["mark"] is not None) or state["steps"] == 0


def stop_everywhere(make: Any, source: Any) -> list[dict[str, Any]]:
    alone = make([]).backend != "thread"

    def fresh(make: Any = make) -> DataLoader[Any]:
        dataset, settings = source(alone)
        return make(dataset, seed=3, **settings)  # type: ignore[no-any-return]

    def read(loader: DataLoader[Any]) -> tuple[list[Any], list[Any]]:
        batches, states = [], []
        for _ in range(2):
            states.append(through_a_file(loader.state_dict()))
            for batch in loader:
                batches.append(batch)
                states.append(through_a_file(loader.state_dict()))
        return batches, states

    whole, states = read(fresh())
    assert same((whole, states), read(fresh(DataLoader))), "the batches of the plain loop, and its states"
    per_epoch = len(whole) // 2
    other = fresh()
    for index, state in enumerate(states):
        other.load_state_dict(state)
        assert other.state_dict() == state, "right after it was loaded"
        in_second = index > per_epoch  # each epoch has one state more than batches: that before its first
        assert same(list(other), whole[index - in_second : per_epoch * (1 + in_second)])
        if not in_second:
            assert same(list(other), whole[per_epoch:]), "and the next epoch"
    return states


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_state_is_loaded_by_a_loader_with_other_workers(workers: int) -> None:
    whole = list(DataLoader(Noisy(), 4, shuffle=True, seed=3))
    taken = DataLoader(Noisy(), 4, shuffle=True, seed=3, num_workers=1)
    with taken, DataLoader(Noisy(), 4, shuffle=True, seed=3, num_workers=workers) as loader:
        batches = iter(taken)
        for _ in range(3):
            next(batches)
        loader.load_state_dict(through_a_file(taken.state_dict()))
        assert same(list(loader), whole[3:])
        assert loader.epoch == 0
        assert [batch.step for batch in taken.batches()] == list(range(6))


def test_steps_keep_their_numbers() -> None:
    loader = DataLoader(Noisy(), 4, seed=3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader.load_state_dict(state)
    found = list(loader.batches())
    assert [batch.step for batch in found] == [1, 2, 3, 4, 5]
    index = found[0].index
    assert index is not None and index.tolist() == [4, 5, 6, 7]


def test_without_a_seed_the_one_that_was_drawn_is_in_the_state() -> None:
    first = DataLoader(Noisy(), 4, shuffle=True)
    batches = iter(first)
    next(batches)
    state = through_a_file(first.state_dict())
    rest = list(batches)
    second = DataLoader(Noisy(), 4, shuffle=True)
    second.load_state_dict(state)
    assert same(list(second), rest)
    assert second.seed == first.seed


def test_out_of_order_each_step_comes_exactly_once(make_concurrent: Any) -> None:
    loader = make_concurrent(Noisy(), batch_size=2, seed=1, in_order=False)
    for stop in (1, 4, 7):
        loader.set_epoch(0)
        seen = []
        for batch in loader.batches():
            seen.append(batch.step)
            if len(seen) == stop:
                break
        loader.load_state_dict(through_a_file(loader.state_dict()))
        seen += [batch.step for batch in loader.batches()]
        assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("make_concurrent", ["thread-2", "fork-2"], indirect=True)
def test_out_of_order_a_sampler_with_a_state_is_asked_for_each_step_once_more_at_most(
    make_concurrent: Any,
) -> None:
    for stop in (1, 4, 9):
        loader = make_concurrent(Noisy(), batch_size=2, seed=1, in_order=False, sampler=KeptSampler())
        seen = []
        for batch in loader.batches():
            seen += batch.index.tolist()
            if batch.step == stop:
                break
        state = through_a_file(loader.state_dict())
        loader.close()
        Backwards.asked = 0
        loader = make_concurrent(Noisy(), batch_size=2, seed=1, in_order=False, sampler=KeptSampler())
        loader.load_state_dict(state)
        seen += [key for batch in loader.batches() for key in batch.index.tolist()]
        assert sorted(seen) == list(range(N))
        assert Backwards.asked <= max(0, N - 2 * state["steps"])


@pytest.mark.parametrize(("sampler", "asked"), [(Backwards, N), (KeptSampler, N - 16)])
def test_a_sampler_with_a_state_is_not_asked_again(sampler: Any, asked: int) -> None:
    first = DataLoader(Noisy(), 4, seed=1, sampler=sampler())
    batches = iter(first)
    for _ in range(4):
        next(batches)
    second = DataLoader(Noisy(), 4, seed=1, sampler=sampler())
    second.load_state_dict(through_a_file(first.state_dict()))
    Backwards.asked = 0
    rest = list(second)
    assert Backwards.asked == asked
    assert same(rest, list(batches))


@pytest.mark.parametrize("make", ["inline", "thread-2", "fork-2"], indirect=True)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
@pytest.mark.parametrize(("stream", "read"), [(Stream, N), (KeptStream, N - 16)])
def test_a_stream_with_a_state_is_not_read_again(stream: Any, read: int, make: Any) -> None:
    class Counted(stream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return ((item, count) for count, item in enumerate(super().__iter__(), 1))

    loader = make(Counted(alone=False), batch_size=4, seed=1)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    loader.load_state_dict(through_a_file(loader.state_dict()))
    assert [int(batch[1][-1]) for batch in loader][-1] == read


@pytest.mark.parametrize("name", ["a rank's sampler", "a rank's stream", "a rank's light items"])
def test_the_state_of_any_rank_does_for_all(name: str) -> None:
    def rank(number: int) -> DataLoader[Any]:
        dataset, given = KEPT[name](True)
        return DataLoader(dataset, seed=3, **{**given, "shard": (number, 3)})

    for taken in range(3):
        loader = rank(taken)
        batches = iter(loader)
        next(batches), next(batches)
        state = through_a_file(loader.state_dict())
        for resumed in range(3):
            other = rank(resumed)
            other.load_state_dict(state)
            assert same(list(other), list(rank(resumed))[2:])


def test_new_workers_know_what_a_stream_keeps_from_epoch_to_epoch() -> None:
    plain = DataLoader(EpochsStream(), 4, seed=3)
    with DataLoader(EpochsStream(), 4, seed=3, num_workers=1, persistent_workers=False) as loader:
        for _ in range(3):
            assert same(list(loader), list(plain))
        loader.close()
        assert same(list(loader), list(plain))


def test_the_worker_that_read_the_last_epoch_reads_the_next() -> None:
    plain = DataLoader(EpochsStream(), 4, seed=3)
    for _ in range(5):
        list(plain)
    batches = iter(plain)
    next(batches)
    with DataLoader(EpochsStream(), 4, seed=3, num_workers=1) as loader:
        first = iter(loader)
        next(first)
        loader.load_state_dict(plain.state_dict())
        second = iter(loader)  # on workers of its own
        first.close()
        assert same(list(second), list(batches))
        for _ in range(2):
            assert same(list(loader), list(plain))


class KeptKeys(Noisy):
    """A dataset with keys and a state, which is in every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1

    def __getitem__(self, key: int) -> Any:
        return key, self.size

    def state_dict(self) -> dict[str, int]:
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.size = state["size"]


def test_the_state_of_a_dataset_with_keys_is_the_callers_and_reaches_every_worker(make: Any) -> None:
    loader = make(KeptKeys(), batch_size=4, seed=1)
    batches = iter(loader)
    next(batches)
    loader.update(size=7)
    state = through_a_file(loader.state_dict())
    other = make(KeptKeys(), batch_size=4, seed=1)
    for _ in range(2):  # without workers yet, and with those of an epoch that was left
        other.load_state_dict(state)
        batches = iter(other)
        assert next(batches)[1].tolist() == [7] * 4
        other.update(size=1)
        assert next(batches)[1].tolist() == [1] * 4
        batches.close()  # type: ignore[attr-defined]


class KeptArray(KeptSampler):
    """JSON cannot carry its state."""

    def state_dict(self) -> Any:
        return np.array([self.at])

    def load_state_dict(self, state: Any) -> None:
        self.begin = int(state[0])


@pytest.mark.parametrize("make", ["inline", "thread-2", "fork-2"], indirect=True)
def test_a_state_that_json_cannot_carry_is_in_the_state_as_it_is(make: Any) -> None:
    loader = make(Noisy(alone=False), batch_size=4, seed=1, sampler=KeptArray())
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    assert state["mark"]["states"]["iterable"].tolist() == [8]
    rest = list(batches)
    loader.load_state_dict(state)
    assert same(list(loader), rest)


class Live(KeptSampler):
    """Its state is what it works with, and changes under the hands of whoever has it."""

    def __init__(self) -> None:
        self.of = {"at": 0}

    def __iter__(self) -> Iterator[int]:
        for at in self.positions():
            self.of["at"] = at + 1
            yield at

    def state_dict(self) -> dict[str, int]:
        return self.of


@pytest.mark.parametrize("make_concurrent", ["thread-2", "fork-2"], indirect=True)
def test_a_state_is_what_it_was_when_the_step_was_drawn(make_concurrent: Any) -> None:
    loader = make_concurrent(Noisy(alone=False), batch_size=4, seed=1, sampler=Live())
    next(iter(loader))
    assert loader.state_dict()["mark"] == {"read": 1, "states": {"iterable": {"at": 4}}, "kept": None}


class Forgetful:
    def state_dict(self) -> Any:
        raise LookupError("no state today")

    def load_state_dict(self, state: Any) -> None:
        raise LookupError("nor will it be loaded")


class ForgetfulStream(Forgetful, KeptStream):
    pass


class ForgetfulLight(Forgetful, KeptLight):
    pass


class ForgetfulSampler(Forgetful, KeptSampler):
    pass


class ForgetfulKeys(Forgetful, Noisy):
    pass


FORGETFUL: dict[str, Any] = {
    "ForgetfulStream": lambda: {"dataset": ForgetfulStream(alone=False)},
    "ForgetfulLight": lambda: {"dataset": ForgetfulLight(alone=False)},
    "ForgetfulSampler": lambda: {"dataset": Noisy(alone=False), "sampler": ForgetfulSampler()},
    "ForgetfulKeys": lambda: {"dataset": ForgetfulKeys(alone=False)},
}


@pytest.mark.parametrize("name", FORGETFUL)
@pytest.mark.parametrize("persistent", [None, False])
@pytest.mark.parametrize("make", ["inline", "thread-2", "fork-2"], indirect=True)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_state_that_cannot_be_taken_is_an_error_only_for_who_asks_for_it(
    make: Any, name: str, persistent: bool | None
) -> None:
    loader = make(**FORGETFUL[name](), batch_size=4, seed=1, persistent_workers=persistent)
    why = rf"{name} .*cannot be taken \(LookupError: no state today\)"
    for _ in range(2):
        assert [len(batch.index) for batch in loader.batches()] == [4, 4, 4, 4, 4, 3]
        with pytest.raises(StateError, match=why):
            loader.state_dict()
    batches = iter(loader)
    next(batches)
    with pytest.raises(StateError, match=why):
        loader.state_dict()
    assert len(list(batches)) == 5


def test_a_step_that_failed_has_been_handed_out(make: Any) -> None:
    loader = make(Noisy(bad=5), batch_size=4, seed=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    assert [batch.step for batch in loader.batches()] == [2, 3, 4, 5]


class Stumbling(KeptIterator):
    """Raises in the place of some items, and goes on with the next."""

    def __next__(self) -> Any:
        item = super().__next__()
        if item in (5, 13):
            raise ValueError(f"bad item {item}")
        return item


class StumblingStream(IterableDataset[Any]):
    """The same; without a state, it is read from its beginning where it is resumed."""

    def __init__(self, stateful: bool) -> None:
        self.stateful = stateful

    def __iter__(self) -> Iterator[Any]:
        items = Stumbling(lambda at: at)
        return items if self.stateful else map(next, itertools.repeat(items))


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_stream_goes_on_with_the_item_after_the_one_that_it_raised_for(make: Any, stateful: bool) -> None:
    loader = make(StumblingStream(stateful), batch_size=4, seed=1)
    expected: list[Any] = [[0, 1, 2, 3], "bad item 5", [6, 7, 8, 9], "bad item 13", [14, 15, 16, 17]]
    found: list[Any] = []
    for _ in range(5):
        loader.load_state_dict(loader.state_dict())  # all that was raised before is passed over
        try:
            found.append(next(iter(loader)).tolist())
        except ValueError as error:
            found.append(str(error))
    assert found == expected
    rest = iter(loader)
    assert next(rest).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="bad item 5"):
        next(rest)
    assert next(rest).tolist() == [6, 7, 8, 9]


def test_in_the_last_turn_of_a_loop_nothing_is_left_of_the_epoch() -> None:
    loader = DataLoader(Noisy(), 4, seed=1)
    for _ in loader:
        last = loader.state_dict()
    after = loader.state_dict()
    assert (last["epoch"], last["steps"]) == (0, 6)
    assert (after["epoch"], after["steps"]) == (1, 0)
    loader.load_state_dict(last)
    assert list(loader) == []
    assert loader.state_dict() == after
    loader.load_state_dict(after)
    assert len(list(loader)) == 6


def test_a_new_epoch_forgets_a_state() -> None:
    loader = DataLoader(Noisy(), 4, seed=1)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(0)
    assert len(list(loader)) == 6


GOOD = DataLoader(Noisy(), 4, shuffle=True, seed=3).state_dict()

BROKEN: dict[str, tuple[Any, str]] = {
    "no dict": ([1], "not a list"),
    "nothing": (None, "not a NoneType.* to start without a state, load nothing"),
    "text": (json.dumps(GOOD), r"not a str\. If it was saved as JSON, pass json\.loads\(text\)"),
    "torchdata's": ({"_snapshot": 1}, "a state of torchdata's StatefulDataLoader"),
    "a checkpoint": (
        {"model": {}, "loader": GOOD},
        r"lacks the field 'penstock', and has 'loader', 'model'\. .* the part that state_dict\(\) returned",
    ),
    "empty": ({}, "and has no other"),
    "a later version": ({**GOOD, "penstock": 99}, "version 99"),
    "a truncated one": ({"penstock": 1, "epoch": 0}, "lacks 'steps', 'beyond'"),
    "a negative step": ({**GOOD, "steps": -1}, "'steps' is -1"),
    "a step that is none": ({**GOOD, "steps": "3"}, "'steps' is '3'"),
    "a bool": ({**GOOD, "epoch": True}, "'epoch' is True"),
    "steps beyond that are none": ({**GOOD, "beyond": 7}, "'beyond' is 7"),
    "steps beyond that overlap": ({**GOOD, "beyond": [[2, 4], [3, 5]]}, "'beyond' is"),
    "nothing about the loader": ({**GOOD, "about": None}, "'about' is None"),
    "another length": ({**GOOD, "about": {**GOOD["about"], "length": 5}}, "length was 5 .* and is 23"),
    "another order": ({**GOOD, "about": {**GOOD["about"], "order": "x"}}, "order was 'x'"),
    "another batch size": ({**GOOD, "about": {**GOOD["about"], "batch_size": 8}}, "batch_size was 8"),
    "another seed": ({**GOOD, "seed": 4}, "seed was 4 .* and is 3"),
    "what was consumed is not the steps": (
        {**GOOD, "consumed": 9},
        "'steps' is 0, but by 'consumed', which is 9, it would be 3",
    ),
    "more consumed than there is": (
        {**GOOD, "steps": 6, "consumed": 24},
        "'consumed' is 24, of an order of 23",
    ),
    "a step of the end too much": ({**GOOD, "steps": 8, "consumed": 23}, "which is 23, it would be 6"),
    "an epoch that cannot be": ({**GOOD, "epoch": 1 << 62}, "'epoch' is 4611686018427387904"),
    "steps that cannot be": ({**GOOD, "steps": 1 << 62}, "'steps' is 4611686018427387904"),
    "more steps beyond than can be": ({**GOOD, "beyond": [[1, 10**10]]}, "at most 1000000 steps after 0"),
    "steps beyond the end": ({**GOOD, "beyond": [[2, 6]]}, "it has 7 steps, but epoch 0 has 6"),
    "what was consumed is no number": ({**GOOD, "consumed": "all"}, "'consumed' is 'all'"),
    "an order of which nothing was consumed": ({**GOOD, "steps": 2, "consumed": None}, "'consumed' is None"),
    "a world that is none": ({**GOOD, "about": {**GOOD["about"], "world": "x"}}, "'world' is 'x'"),
    "no world": ({**GOOD, "about": {**GOOD["about"], "world": 0}}, "'world' is 0"),
    "no seed": ({**GOOD, "seed": None}, "'seed' is None"),
    "an array": ({**GOOD, "penstock": np.arange(2)}, "version array"),
    "an array in it": ({**GOOD, "about": {**GOOD["about"], "order": np.arange(2)}}, "order was array"),
    "a mark without states": (
        {**GOOD, "steps": 2, "consumed": 8, "mark": {"read": 2, "states": {}, "kept": None}},
        "'mark' is",
    ),
    "a mark that is none": ({**GOOD, "mark": {"read": 1}}, "'mark' is"),
    "a mark of nothing": ({**GOOD, "mark": {"read": -1, "states": {}, "kept": None}}, "'read' is -1"),
    "a mark of what is to come": (
        {**GOOD, "mark": {"read": 1, "states": {"iterable": 1}, "kept": None}},
        "'mark' is after batch 1, but 'steps' is only 0",
    ),
    "a mark, and nothing about the loader": (
        {**GOOD, "mark": {"read": 0, "states": {}, "kept": None}, "about": {}},
        "the way samples are read was None .* and is 'by key, in batches'",
    ),
    "a mark of something else": (
        {**GOOD, "mark": {"read": 1, "states": {"x": 1}, "kept": None}},
        "'mark' is",
    ),
    "a state for a dataset that has none": (
        {**GOOD, "dataset": {"x": 1}},
        r"Noisy has no load_state_dict\(\)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_does_not_fit_says_why_and_changes_nothing(name: str) -> None:
    state, why = BROKEN[name]
    loader = DataLoader(Noisy(), 4, shuffle=True, seed=3)
    whole = list(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    with pytest.raises(StateError, match=why) as caught:
        loader.load_state_dict(state)
    assert re.search(r"\. (Take|Make|Give|Load|If|From|Finish) [^.]*", str(caught.value)), "what is to be done?"
    assert loader.state_dict() == before
    assert same(list(batches), whole[1:])


class Unsized(list[int]):
    """A sampler of which nothing can be told before it is read."""

    def __len__(self) -> int:
        raise NotImplementedError


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "batch size": (
        {"batch_sampler": BatchSampler(range(12), 4, False)},
        {"batch_sampler": BatchSampler(range(12), 3, False)},
        "sampler was '3 batches of 4' .* and is '4 batches of 3'",
    ),
    "keys of a subset": (
        {"sampler": SubsetRandomSampler(range(6))},
        {"sampler": SubsetRandomSampler(range(6, 12))},
        "sampler was '6 keys, .* and is '6 keys, ",
    ),
    "number": (
        {"sampler": RandomSampler(range(12), num_samples=6)},
        {"sampler": RandomSampler(range(12), num_samples=9)},
        "sampler was '6 keys, .* and is '9 keys, ",
    ),
    "replacement": (
        {"sampler": RandomSampler(range(12), True)},
        {"sampler": RandomSampler(range(12), False)},
        "sampler was '12 keys, .* and is None",
    ),
    "weights": (
        {"sampler": WeightedRandomSampler([1] * 12, 12)},
        {"sampler": WeightedRandomSampler([1] + [0] * 11, 12)},
        "sampler was '12 keys, .* and is '12 keys, ",
    ),
    "window of blocks": (
        {"sampler": BlockSampler([0, 4, 8, 12], 2)},
        {"sampler": BlockSampler([0, 4, 8, 12], 1)},
        "sampler was '12 keys in 3 blocks, window 2, .* and is '12 keys in 3 blocks, window 1",
    ),
    "blocks": (
        {"sampler": BlockSampler([0, 4, 8, 12])},
        {"sampler": BlockSampler([0, 4, 12])},
        "sampler was '12 keys in 3 blocks, .* and is '12 keys in 2 blocks",
    ),
    "length of a sampler of the user's": (
        {"sampler": list(range(8))},
        {"sampler": list(range(9))},
        "sampler was '8 keys' .* and is '9 keys'",
    ),
    "length that is not known": ({"sampler": Unsized([1, 2])}, {"sampler": [1, 2]}, "order was 'Unsized'"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_in_mid_epoch_a_sampler_with_another_content_is_refused(name: str) -> None:
    first, other, why = OTHERS[name]
    loader = DataLoader(range(12), seed=1, **first)
    batches = iter(loader)
    next(batches)
    state = through_a_file(loader.state_dict())
    assert len(json.dumps(state)) < 1000
    with pytest.raises(StateError, match=why):
        DataLoader(range(12), seed=1, **other).load_state_dict(state)
    again = DataLoader(range(12), seed=1, **first)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert same(list(again), list(batches))


def test_between_two_epochs_a_sampler_may_have_another_content() -> None:
    loader = DataLoader(range(12), seed=1, sampler=SubsetRandomSampler(range(6)))
    list(loader)
    other = DataLoader(range(12), seed=1, sampler=SubsetRandomSampler(range(6, 12)))
    other.load_state_dict(loader.state_dict())
    assert sorted(int(key) for (key,) in other) == list(range(6, 12))


def test_a_sampler_that_changes_before_a_state_goes_on_is_refused() -> None:
    sampler = SubsetRandomSampler(list(range(6)))
    loader = DataLoader(range(12), seed=1, sampler=sampler)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    sampler.indices = list(range(6, 12))
    with pytest.raises(StateError, match="sampler was '6 keys, "):
        iter(loader)


def test_a_dataset_that_grows_in_mid_epoch_leaves_the_length_of_the_epoch_in_its_state() -> None:
    loader = DataLoader(Noisy(12), 3, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches)
    loader.update(n=16)
    state = loader.state_dict()
    assert state["about"]["length"] == 12
    with pytest.raises(StateError, match=r"length was 12 .* and is 16"):
        DataLoader(Noisy(16), 3, shuffle=True, seed=1).load_state_dict(state)
    again = DataLoader(Noisy(12), 3, shuffle=True, seed=1)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert same(list(again), list(batches))


def test_a_dataset_that_grows_before_a_state_goes_on_is_refused() -> None:
    loader = DataLoader(Noisy(12), 3, shuffle=True, seed=1)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.update(n=16)
    with pytest.raises(StateError, match=r"length was 12 .* and is 16"):
        iter(loader)


def test_between_two_epochs_a_dataset_may_grow() -> None:
    loader = DataLoader(Noisy(12), 3, shuffle=True, seed=1)
    list(loader)
    loader.load_state_dict(loader.state_dict())
    loader.update(n=16)
    assert loader.state_dict()["about"]["length"] == 16
    assert len(list(loader)) == 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"consumed": 4}, "'consumed' is 4, .* dealt from its beginning"),
        ({"consumed": None, "steps": 6}, "it has 6 steps, but epoch 0 has 5"),
    ],
)
def test_with_rollover_too_a_damaged_state_says_so(change: dict[str, Any], why: str) -> None:
    loader = DataLoader(Noisy(), 4, seed=3, last_batch="rollover")
    state = loader.state_dict()
    with pytest.raises(StateError, match=why):
        loader.load_state_dict({**state, **change})
    assert loader.state_dict() == state


class Phased(KeptKeys):
    """As long as its state says."""

    def __len__(self) -> int:
        return 8 * self.size


@pytest.mark.parametrize("make", ["inline", "thread-2", "fork-2"], indirect=True)
def test_a_dataset_may_be_as_long_as_its_own_state_says(make: Any) -> None:
    loader = make(Phased(), 4, seed=3)
    loader.update(size=3)
    batches = iter(loader)
    next(batches)
    state = through_a_file(loader.state_dict())
    other = make(Phased(), 4, seed=3)
    assert len(other) == 2
    with pytest.raises(StateError, match=r"length was 24 .* and is 16"):
        other.load_state_dict({**state, "dataset": {"size": 2}})
    with pytest.raises(KeyError, match="size"):
        other.load_state_dict({**state, "dataset": {}})
    assert len(other) == 2
    other.load_state_dict(state)
    assert same(list(other), list(batches))


@pytest.mark.parametrize("kind", ["sampler", "items", "pulled"])
@pytest.mark.parametrize("make", ["inline", "fork-2"], indirect=True)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_what_ends_before_the_place_of_a_state_says_so(make: Any, kind: str) -> None:
    given: Any = {"dataset": Noisy(alone=False), "sampler": list(range(8))}
    if kind != "sampler":
        given = {"dataset": (Light if kind == "items" else Stream)(alone=False)}
    loader = make(**given, batch_size=4, seed=1)
    batches = iter(loader)
    next(batches)
    state = {**loader.state_dict(), "steps": 40}
    loader.load_state_dict(state)
    with pytest.raises(
        StateError, match=r"after 40 batches, but now there are only \d+: the sampler or the stream has"
    ):
        next(iter(loader))


def test_another_thread_may_take_a_state_at_any_moment() -> None:
    loader = DataLoader(range(6_000), 2, shuffle=True, seed=1)
    found: list[str] = []
    done = threading.Event()

    def watch() -> None:
        other = DataLoader(range(6_000), 2, shuffle=True, seed=1)
        while not done.is_set():
            try:
                other.load_state_dict(loader.state_dict())
            except StateError as error:
                found.append(str(error))

    watcher = threading.Thread(target=watch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    watcher.start()
    try:
        for _ in range(2):
            for _ in loader:
                pass
    finally:
        sys.setswitchinterval(interval)
        done.set()
        watcher.join(30)
    assert found == []


def test_a_damaged_state_leaves_the_dataset_as_it_is() -> None:
    loader = DataLoader(KeptKeys(), 4, seed=3)
    state = loader.state_dict()
    assert state["dataset"] is not None
    with pytest.raises(StateError, match="'epoch' is"):
        loader.load_state_dict({**state, "epoch": 1 << 63, "dataset": "nothing that it could take"})
    assert loader.state_dict() == state


class Stubborn(KeptSampler):
    """Its state stays in force: once at its end, it gives nothing more."""

    def __iter__(self) -> Iterator[int]:
        begin = self.begin
        yield from super().__iter__()
        self.begin = begin


def test_what_has_nothing_to_give_after_its_epochs_end_says_so() -> None:
    loader = DataLoader(Noisy(), 4, seed=3, sampler=Stubborn())
    assert len(list(loader)) == len(list(loader)) == 6
    other = DataLoader(Noisy(), 4, seed=3, sampler=Stubborn())
    other.load_state_dict(through_a_file(loader.state_dict()))
    with pytest.raises(StateError, match=r"Stubborn yields no items, though iterated twice(.|\n)*set_epoch"):
        list(other)


def test_a_sampler_that_cannot_take_its_state_back_says_so() -> None:
    loader = DataLoader(Noisy(), 4, seed=3, sampler=KeptSampler())
    next(iter(loader))
    state = loader.state_dict()

    class KeptSampler2(Backwards):
        pass

    KeptSampler2.__name__ = "KeptSampler"
    other = DataLoader(Noisy(), 4, seed=3, sampler=KeptSampler2())
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"a state for KeptSampler, which has no load_state_dict\(\) here"):
        iter(other)


def test_resuming_late_costs_no_more_than_beginning() -> None:
    """Positions are drawn, not the steps before them: far out in an epoch nothing is slower."""
    asked: list[int] = []

    class Counted(Noisy):
        def __getitem__(self, key: int) -> Any:
            asked.append(key)
            return key

    loader = DataLoader(Counted(10**9), 4, seed=3)
    loader.load_state_dict({**loader.state_dict(), "steps": 200_000_000, "consumed": 800_000_000})
    assert next(iter(loader)).tolist() == [800_000_000 + i for i in range(4)]
    assert len(asked) == 4


# ---- what an epoch leaves to the next ------------------------------------------------------------------


class EpochsIterator(KeptIterator):
    """Its end is the end of the epoch of what it belongs to."""

    def __init__(self, epoch: int) -> None:
        super().__init__(lambda at: (at * 7 + epoch) % N)


class Both:
    """It knows the epoch, and its iterator the place."""

    epoch = 0
    resumed = False

    def __iter__(self) -> Iterator[int]:
        self.epoch += not self.resumed
        self.resumed = False
        return EpochsIterator(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.resumed = state["epoch"], True


class BothStream(Both, IterableDataset[Any]):
    pass


class BothLight(Both, Light):
    pass


class Drawing(KeptIterator):
    """It goes on drawing where the one before it ended, from a source that only iterators know the state of."""

    def __init__(self, draws: random.Random) -> None:
        self.draws = draws
        self._draw()

    def _draw(self) -> None:
        self.seed = self.draws.getrandbits(16)
        super().__init__(lambda at: (at * 7 + self.seed) % N)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws.seed(state["seed"])
        self.at, self.seed = state["at"], state["seed"]


class Draws:
    """Each epoch is drawn from a generator that the one before has seeded."""

    def __init__(self) -> None:
        self.draws = random.Random(5)

    def __iter__(self) -> Iterator[int]:
        drawing = Drawing(self.draws)
        self.draws.seed(drawing.seed)
        return drawing


class DrawsStream(Draws, IterableDataset[Any]):
    pass


class DrawsGlobally:
    """It draws when it is iterated, from what the loader has seeded; its iterator has a state."""

    def __iter__(self) -> Iterator[int]:
        shift = random.randrange(N)
        return KeptIterator(lambda at: (at * 7 + shift) % N)


class DrawsLate(Epochs):
    """It draws when it is asked for its first key, and is before the next epoch when one has ended."""

    def __iter__(self) -> Iterator[int]:
        keys = random.sample(range(N), N)
        yield from map(keys.__getitem__, self.positions())


LEFT: dict[str, Any] = {
    "a sampler and its iterator": lambda alone: (range(N), {"batch_size": 4, "sampler": Both()}),
    "a stream and its iterator": lambda alone: (BothStream(), {"batch_size": 4}),
    "a stream and its iterator, even": lambda alone: (BothStream(), {"batch_size": N}),
    "light items and their iterator": lambda alone: (BothLight(alone), {"batch_size": 4}),
    "a sampler's iterator that draws": lambda alone: (range(N), {"batch_size": 4, "sampler": Draws()}),
    "a stream's iterator that draws": lambda alone: (DrawsStream(), {"batch_size": 4}),
}


@pytest.mark.parametrize(
    ("make", "name"), [(make, name) for make in ("inline", "fork-2") for name in LEFT], indirect=["make"]
)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_an_iterator_leaves_its_state_to_the_next_epoch(make: Any, name: str) -> None:
    stop_everywhere(make, LEFT[name])


@pytest.mark.parametrize("sampler", [DrawsGlobally, DrawsLate])
def test_the_next_epoch_draws_as_if_nobody_had_looked_for_the_end_of_the_one_before(sampler: Any) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(range(N), 4, seed=3, sampler=sampler())

    loader = make()
    epochs = [list(loader), list(loader)]
    assert not same(*epochs)
    loader = make()
    list(loader)
    other = make()
    other.load_state_dict(through_a_file(loader.state_dict()))
    assert same(list(other), epochs[1])


def test_a_dataset_that_grows_before_the_first_batch_leaves_the_length_of_the_epoch_in_its_state() -> None:
    loader = DataLoader(Noisy(12), 3, shuffle=True, seed=1)
    batches = iter(loader)
    loader.update(n=16)
    state = loader.state_dict()
    again = DataLoader(Noisy(12), 3, shuffle=True, seed=1)
    again.load_state_dict(state)
    assert same(list(again), list(batches))


class Empty(IterableDataset[int]):
    """A stream with a state, and without samples."""

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def state_dict(self) -> Any:
        return {"at": 0}

    def load_state_dict(self, state: Any) -> None:
        pass


class EmptyIterator(Empty):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise StopIteration


@pytest.mark.parametrize("kind", [Empty, EmptyIterator])
@pytest.mark.parametrize("shard", [None, (1, 2)])
@pytest.mark.parametrize("when", ["before its first epoch", "after it"])
def test_an_empty_stream_is_empty_when_it_is_resumed(kind: Any, shard: Any, when: str) -> None:
    settings: dict[str, Any] = {"seed": 1, "shard": shard, "last_batch": "keep"}
    loader = DataLoader(kind(), 4, **settings)
    if when == "after it":
        assert list(loader) == []
    other = DataLoader(kind(), 4, **settings)
    other.load_state_dict(through_a_file(loader.state_dict()))
    assert list(other) == list(other) == []
