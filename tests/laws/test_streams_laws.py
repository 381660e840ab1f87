"""Laws of streams made of others: they give what a plain loop gives, and nothing is lost or repeated by a resume."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import DataLoader, IterableDataset

law = settings(deadline=None)


class Plain(IterableDataset[int]):
    """Has no state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        yield from range(self.n)

    def __len__(self) -> int:
        return self.n


class Stateful(Plain):
    """Keeps its position itself, as streams for torchdata do: it continues from a loaded state at the next iter()."""

    at = 0
    epoch = -1
    loaded = False

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.at, self.epoch = 0, self.epoch + 1
        self.loaded = False
        while self.at < self.n:
            self.at += 1
            yield self.at - 1 + 3000 * self.epoch  # `is_kept` keeps the same in each epoch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch, self.loaded = state["at"], state["epoch"], True


class Cursor:
    def __init__(self, n: int) -> None:
        self.n, self.at = n, 0

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> int:
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class ByIterator(Plain):
    """Its iterators have states."""

    def __iter__(self) -> Iterator[int]:
        return Cursor(self.n)


class Light(Plain):
    """Light items, loaded by workers."""

    def load(self, item: int) -> int:
        return item * 7


STAGES = st.lists(
    st.sampled_from(["map", "filter", "batch"]) | st.tuples(st.just("shuffle"), st.integers(1, 5)), max_size=4
)
KINDS = st.sampled_from([Plain, Stateful, ByIterator, Light])


def flat(item: Any) -> int:
    return sum(map(flat, item)) if isinstance(item, (list, tuple)) else item


def twice(item: Any) -> Any:
    return 2 * flat(item) + 1


def is_kept(item: Any) -> bool:
    return flat(item) % 3 != 0


def built(stream: Any, stages: list[Any]) -> Any:
    for stage in stages:
        if stage == "map":
            stream = stream.map(twice)
        elif stage == "filter":
            stream = stream.filter(is_kept)
        elif stage == "batch":
            stream = stream.batch(2)
        else:
            stream = stream.shuffle(stage[1], seed=3)
    return stream.map(flat) if stages else stream


def loader_of(kind: Any, n: int, stages: list[Any], **options: Any) -> Any:
    return DataLoader(built(kind(n), stages), batch_size=2, seed=1, **options)


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@law
@given(st.integers(0, 20), STAGES)
def test_any_chain_gives_what_a_plain_loop_gives(n: int, stages: list[Any]) -> None:
    stages = [stage for stage in stages if isinstance(stage, str)]
    items: list[Any] = list(range(n))
    for stage in stages:
        if stage == "map":
            items = list(map(twice, items))
        elif stage == "filter":
            items = list(filter(is_kept, items))
        else:
            items = [items[at : at + 2] for at in range(0, len(items), 2)]
    for kind in (Plain, Stateful, ByIterator):
        assert list(map(flat, built(kind(n), stages))) == list(map(flat, items))


@law
@given(st.integers(0, 9), st.lists(st.sampled_from(["map", "filter", "batch"]), max_size=4))
def test_light_items_are_loaded_before_any_function_is_called(n: int, stages: list[Any]) -> None:
    class Heavy(Plain):
        def __iter__(self) -> Iterator[int]:
            return (item * 7 for item in super().__iter__())

    assert lists(loader_of(Light, n, stages)) == lists(loader_of(Heavy, n, stages))


@law
@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 5), st.sampled_from([Plain, ByIterator]))
def test_a_shuffle_moves_samples_only_within_their_window(n: int, buffer: int, seed: int, kind: Any) -> None:
    shuffled = kind(n).shuffle(buffer, seed)
    first, second = list(shuffled), list(shuffled)
    for found in (first, second):
        assert [item // buffer for item in found] == [item // buffer for item in range(n)]
        assert sorted(found) == [*range(n)]
    assert list(kind(n).shuffle(buffer, seed)) == first


@settings(deadline=None, max_examples=40)
@given(KINDS, st.integers(0, 9), STAGES)
def test_a_resume_after_any_step_loses_and_repeats_nothing(kind: Any, n: int, stages: list[Any]) -> None:
    whole = loader_of(kind, n, stages)
    epochs = [lists(whole) for _ in range(3)]
    for epoch, steps in itertools.product(range(2), range(len(epochs[0]) + 1)):
        if steps > len(epochs[epoch]):
            continue
        stopped = loader_of(kind, n, stages)
        for _ in range(epoch):
            lists(stopped)
        iterator = iter(stopped)
        before = lists(itertools.islice(iterator, steps))
        state = json.loads(json.dumps(stopped.state_dict()))
        resumed = loader_of(kind, n, stages)
        resumed.load_state_dict(state)
        assert before + lists(resumed) == epochs[epoch]
        assert lists(resumed) == epochs[epoch + 1]


@law
@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 2), st.data())
def test_an_iterator_of_a_shuffle_resumes_without_a_loader(n: int, buffer: int, epoch: int, data: Any) -> None:
    stream = ByIterator(n).shuffle(buffer)
    stream.set_epoch(epoch)
    items = iter(stream)
    before = list(itertools.islice(items, data.draw(st.integers(0, n))))
    again = iter(ByIterator(n).shuffle(buffer))
    again.load_state_dict(json.loads(json.dumps(items.state_dict())))
    rest = list(again)
    assert sorted(before + rest) == [*range(n)]
    assert rest == list(items)


def test_a_shuffle_of_a_shuffle_has_an_order_of_its_own() -> None:
    once = list(Plain(50).shuffle(50))
    assert list(Plain(50).shuffle(50).shuffle(50)) != [once[at] for at in once]


@settings(deadline=None, max_examples=10)
@given(KINDS, st.integers(0, 12), STAGES)
def test_workers_give_the_same(kind: Any, n: int, stages: list[Any]) -> None:
    inline, threads = (
        loader_of(kind, n, stages, **options) for options in ({}, {"num_workers": 1, "backend": "thread"})
    )
    with threads:
        assert [lists(threads) for _ in range(2)] == [lists(inline) for _ in range(2)]


def test_an_error_names_the_stage_and_the_stream_goes_on() -> None:
    def broken(item: int) -> int:
        if item == 3:
            raise ValueError("no")
        return item

    stream = penstock.dataset(iter(Cursor(6))).map(broken)
    items = iter(stream)
    assert list(itertools.islice(items, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="no") as caught:
        next(items)
    assert caught.value.__notes__ == ["In the stream Cursor.map(broken)."]
    assert list(items) == [4, 5]


def test_what_needs_keys_says_that_a_stream_has_none() -> None:
    for method in ("select", "repeat", "with_lengths", "zip"):
        with pytest.raises(TypeError, match=f"Plain is a stream, whose samples have no keys, and {method}"):
            getattr(Plain(3), method)(*[[1]] * (method != "zip"))
    assert list(Plain(2).concat([5])) == [0, 1, 5]


def test_the_state_of_a_shuffle_is_small_whatever_its_buffer_holds() -> None:
    loader = DataLoader(ByIterator(1000).shuffle(100).map(lambda item: item * 2.5), batch_size=10, seed=1)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 1000
