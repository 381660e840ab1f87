"""Laws of datasets made of others: any chain of stages gives what a plain loop gives, however it is read."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import ArrayDataset, DataLoader, Dataset
from penstock.plan import OrderPlan, Sequential, Shuffled
from penstock.plan._forecast import Forecast
from penstock.plan._order import Passes
from penstock.source._nested import blocks_of, foresee_of, lengths_within, origin

law = settings(deadline=None, max_examples=60)


class Rows(Dataset[int]):
    """Samples are their keys. Blocks have three samples each. Forecasts are kept."""

    forecast: Forecast | None = None

    def __init__(self, n: int) -> None:
        self.n = n
        self.blocks = np.append(np.arange(0, n, 3), n)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: Any) -> int:
        return range(self.n)[key]

    def __foresee__(self, forecast: Forecast) -> None:
        self.forecast = forecast

    def __getstate__(self) -> dict[str, Any]:
        return {"n": self.n, "blocks": self.blocks}

    def __lengths__(self) -> Any:
        return np.arange(self.n) + 100


class Many(Rows):
    def __getitems__(self, keys: list[int]) -> list[int]:
        return [range(self.n)[key] for key in keys]


def plus(x: Any) -> Any:
    return np.asarray(x) + 10_000


def with_key(x: Any, key: int) -> Any:
    return np.asarray(x) + 100_000 * (key + 1)


def is_even(x: Any) -> bool:
    return int(np.sum(x)) % 2 == 0


Chain = tuple[Any, list[Any]]  # a dataset, and its samples
STAGES = ("map", "with_key", "filter", "select", "slice", "concat", "repeat", "shuffle", "lengths", "wrapped")


def leaf(kind: str, n: int) -> Any:
    if kind == "array":
        return ArrayDataset(np.arange(n))
    return penstock.dataset(list(range(n))) if kind == "list" else Rows(n) if kind == "rows" else Many(n)


def staged(chain: Chain, stage: str, draw: Any) -> Chain:
    data, samples = chain
    n = len(samples)
    if stage == "map":
        return data.map(plus), list(map(plus, samples))
    if stage == "with_key":
        return data.map(with_key, with_key=True), [with_key(x, key) for key, x in enumerate(samples)]
    if stage == "filter":
        return data.filter(is_even), list(filter(is_even, samples))
    if stage == "select":
        keys = draw(st.lists(st.integers(-n, n - 1), max_size=8)) if n else []
        return data.select(np.array(keys, np.int64)), [samples[key] for key in keys]
    if stage == "slice" and not isinstance(data, (ArrayDataset, Rows)):
        part = draw(st.slices(n))
        return data[part], samples[part]
    if stage == "concat":
        return data + Many(2), [*samples, 0, 1]
    if stage == "repeat":
        times = draw(st.integers(0, 3))
        return data.repeat(times), samples * times
    if stage == "shuffle":
        shuffled = data.shuffle(draw(st.integers(0, 9)))
        order = np.asarray(shuffled.indices).tolist()
        assert sorted(order) == [*range(n)]
        return shuffled, [samples[key] for key in order]
    if stage == "lengths":
        return data.with_lengths(np.arange(n)), samples
    return penstock.dataset(data), samples


@st.composite
def chains(
    draw: Any, kinds: tuple[str, ...] = ("array", "list", "rows", "many"), stages: tuple[str, ...] = STAGES
) -> Chain:
    n = draw(st.integers(0, 9))
    chain: Chain = leaf(draw(st.sampled_from(kinds)), n), list(range(n))
    for stage in draw(st.lists(st.sampled_from(stages), max_size=4)):
        chain = staged(chain, stage, draw)
    return chain


def as_ints(samples: Any) -> list[int]:
    return [int(sample) for sample in samples]


@law
@given(chains())
def test_any_chain_gives_what_a_plain_loop_gives(chain: Chain) -> None:
    data, samples = chain
    n, expected = len(samples), as_ints(samples)
    assert len(data) == n
    assert as_ints(data) == expected
    assert as_ints(data[key] for key in range(-n, 0)) == expected
    again = pickle.loads(pickle.dumps(data))
    assert as_ints(again[key] for key in range(n)) == expected
    keys = list(range(n))[::-1] + list(range(n))
    many = penstock.source._nested.method_of(data, "__getitems__")
    if many is not None and keys:
        assert as_ints(many(keys)) == expected[::-1] + expected
        assert as_ints(many(np.array(keys).tolist())) == expected[::-1] + expected
    gather = penstock.source._nested.method_of(data, "__gather__")
    if gather is not None and keys:
        found = gather(np.array(keys), np.empty)
        assert found is NotImplemented or found.tolist() == expected[::-1] + expected
    with pytest.raises((IndexError, ValueError)):
        data[n]


@law
@given(chains(("array",), ("filter", "select", "repeat", "shuffle", "lengths", "wrapped")))
def test_what_is_gathered_is_what_is_read(chain: Chain) -> None:
    data, samples = chain
    if samples:
        assert data.__gather__(np.arange(len(samples))[::-1], np.empty).tolist() == as_ints(samples)[::-1]


@settings(deadline=None, max_examples=25)
@given(chains(), st.sampled_from([{}, {"num_workers": 2, "backend": "thread"}]))
def test_a_loader_gives_the_same(chain: Chain, options: dict[str, Any]) -> None:
    data, samples = chain
    with DataLoader(data, batch_size=3, **options) as loader:
        assert [x for batch in loader for x in batch.tolist()] == as_ints(samples)


@law
@given(chains(), chains(("list", "many")))
def test_a_zip_gives_tuples_and_dicts(one: Chain, other: Chain) -> None:
    n = min(len(one[1]), len(other[1]))
    (a, xs), (b, ys) = ((data.select(np.arange(n)), samples[:n]) for data, samples in (one, other))
    assert [tuple(as_ints(x)) for x in a.zip(b)] == list(zip(as_ints(xs), as_ints(ys), strict=True))
    named = a.zip(x=a, y=b)
    assert [int(named[key]["y"]) for key in range(n)] == as_ints(ys)
    batches = list(DataLoader(named, batch_size=n)) if n else []
    assert [batch["x"].tolist() for batch in batches] == [as_ints(xs)] * len(batches)


SEEN = ("map", "select", "repeat", "shuffle", "lengths", "wrapped", "slice")


@st.composite
def seen(draw: Any) -> tuple[Rows, Any]:
    inner = Many(draw(st.integers(0, 12)))
    chain: Chain = inner, list(range(len(inner)))
    for stage in draw(st.lists(st.sampled_from(SEEN), max_size=4)):
        chain = staged(chain, stage, draw)
    return inner, chain[0]


@law
@given(seen(), st.sampled_from("snb"), st.integers(0, 9))
def test_the_innermost_dataset_is_told_its_own_keys(chain: tuple[Rows, Any], kind: str, seed: int) -> None:
    inner, data = chain
    n = len(data)
    orders: dict[str, Any] = {"s": Shuffled(n, seed), "n": Sequential(n), "b": blocks_of(data).order(2, seed)}
    order, foresee = orders[kind], foresee_of(data)
    assert foresee is not None
    foresee(Forecast(OrderPlan(order), 0, lambda: 0))
    asked = [key for epoch in range(2) for key in order.at(epoch, np.arange(n)).tolist()]
    own = [origin(data, key) for key in asked]
    assert all(leaf is inner for leaf, _ in own)
    assert inner.forecast is not None
    assert inner.forecast.keys(0, 2 * n).tolist() == [key % len(inner) for _, key in own]


@law
@given(seen())
def test_samples_of_one_block_are_of_one_block_of_the_innermost_dataset(chain: tuple[Rows, Any]) -> None:
    inner, data = chain
    blocks = blocks_of(data)
    keys = np.arange(len(data)) if blocks.keys is None else blocks.keys
    assert sorted(keys.tolist()) == [*range(len(data))]
    for first, stop in itertools.pairwise(blocks.edges.tolist()):
        of = {origin(data, key)[1] % len(inner) // 3 for key in keys[first:stop].tolist()}
        assert len(of) == (first < stop)


@law
@given(seen())
def test_lengths_are_those_of_the_samples(chain: tuple[Rows, Any]) -> None:
    inner, data = chain
    lengths = lengths_within(data)
    if lengths is None:
        assert "map" in repr(data)
    elif "with_lengths" not in repr(data):
        assert lengths().tolist() == [100 + origin(data, key)[1] % len(inner) for key in range(len(data))]


@law
@given(st.integers(1, 9), st.integers(0, 50), st.integers(0, 3), st.none() | st.integers(0, 9))
def test_each_pass_of_an_endless_order_has_every_key_once(n: int, start: int, epoch: int, seed: int | None) -> None:
    order = Passes(n, seed)
    keys = order.at(epoch, np.arange(start * n, (start + 3) * n)).reshape(3, n)
    assert np.sort(keys).tolist() == np.arange(start * n, (start + 3) * n).reshape(3, n).tolist()


@law
@given(chains(("list", "many")).filter(lambda chain: len(chain[1]) > 0), st.booleans(), st.integers(0, 9))
def test_an_endless_dataset_resumes_anywhere(chain: Chain, shuffle: bool, steps: int) -> None:
    data, samples = chain
    n = len(samples)

    def loader() -> Any:
        return DataLoader(data.repeat().map(with_key, with_key=True), batch_size=3, seed=2, shuffle=shuffle)

    whole = loader()
    found = [x for batch in itertools.islice(whole, 12) for x in batch.tolist()]
    keys = [x // 100_000 - 1 for x in found] if max(as_ints(samples)) < 100_000 else None
    if keys is not None:
        assert sorted(keys[: len(keys) // n * n]) == [*range(len(keys) // n * n)]
    with pytest.raises(TypeError, match="has no end"):
        len(whole)
    stopped, resumed = loader(), loader()
    before = [x for batch in itertools.islice(stopped, steps) for x in batch.tolist()]
    resumed.load_state_dict(stopped.state_dict())
    assert before + [x for batch in itertools.islice(resumed, 12 - steps) for x in batch.tolist()] == found


class Dice(Dataset[float]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> float:
        return float(penstock.rng().random())


def noisy(x: float) -> Any:
    return np.array([x, penstock.rng().random()])


def batches(data: Any, **options: Any) -> Iterator[Any]:
    with DataLoader(data, batch_size=4, seed=5, **options) as loader:
        yield from (batch.tolist() for batch in loader)


def test_random_numbers_belong_to_the_sample_in_every_stage() -> None:
    data = Dice().map(noisy).map(lambda x: x + penstock.rng().random())
    inline = list(batches(data))
    assert inline == list(batches(data, num_workers=2))
    assert len({x for batch in inline for row in batch for x in row}) == 12
    twice = [row for batch in batches(data.repeat(2)) for row in batch]
    assert len({x for row in twice for x in row}) == 24
    selected = Dice().select(np.arange(6)).map(noisy)  # with __getitems__
    assert list(batches(selected)) == list(batches(Dice().map(noisy)))
