"""Laws of loaders of mixtures: weights that change, ranks that change, and stops at any step leave one stream."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock

law = settings(deadline=None, max_examples=12)
STRIDE = 6  # samples of all ranks in a step: 1, 2 or 3 ranks have whole batches
WEIGHTS = st.tuples(*[st.sampled_from([0.0, 1e-3, 0.5, 1.0, 3.0])] * 3).filter(any)


def mixture(lengths: tuple[int, ...], weights: tuple[float, ...], stop: Any = "never") -> Any:
    sources = {name: np.arange(n) + 1000 * i for i, (name, n) in enumerate(zip("abc", lengths, strict=True))}
    return penstock.mix(sources, named(weights), stop=stop)


def named(weights: tuple[float, ...]) -> dict[str, float]:
    return dict(zip("abc", weights, strict=True))


def rows(lengths: tuple[int, ...], weights: tuple[float, ...]) -> Any:
    sources = {
        name: penstock.dataset([np.full(1 + (7 * k + i) % 9, 1000 * i + k) for k in range(n)]).with_lengths(len)
        for i, (name, n) in enumerate(zip("abc", lengths, strict=True))
    }
    return penstock.pack(penstock.mix(sources, named(weights)), length=12, window=40)


def loaders(data: Any, world: int, state: Any, **more: Any) -> list[Any]:
    made = []
    for rank in range(world):
        loader: Any = penstock.DataLoader(data(), STRIDE // world, shard=(rank, world), seed=3, **more)
        if state is not None:
            loader.load_state_dict(state)
        made.append(loader)
    return made


def stream(loader: Any) -> Any:
    while True:
        yield from loader


Script = list[tuple[int, int, tuple[float, ...]]]
"""Pieces of a run: steps to take, on how many ranks, and the weights that are set after them."""

scripts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3), WEIGHTS), min_size=1, max_size=4)


def played(data: Any, script: Script, restart: bool, old: bool = False, **more: Any) -> list[Any]:
    """Returns the batches of all ranks together, of a run that stops after each piece of the script, or does not.

    With `old`, the states have no counts, as those of an older version.
    """
    found: list[Any] = []
    state, running, batches = None, [], []  # type: ignore[var-annotated]
    for steps, world, weights in script:
        if restart or not running:
            running = loaders(data, world if restart else 1, state, **more)
            batches = [stream(loader) for loader in running] if steps else []
        elif steps and not batches:
            batches = [stream(loader) for loader in running]
        found += [np.concatenate([next(each) for each in batches]) for _ in range(steps)]
        for loader in running:
            loader.update(weights=named(weights))
        states = [json.loads(json.dumps(loader.state_dict())) for loader in running]
        assert all(each == states[0] for each in states)
        state = states[-1]
        for stage in state["dataset"]["stages"] if old else ():
            del stage["given"]
        if restart:
            batches = []
            for loader in running:
                loader.close()
    for loader in running:
        loader.close()
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@law
@given(lengths=st.tuples(*[st.integers(1, 12)] * 3), weights=WEIGHTS, script=scripts, old=st.booleans())
def test_stops_and_other_ranks_change_nothing_whenever_weights_change(
    lengths: tuple[int, ...], weights: tuple[float, ...], script: Script, old: bool
) -> None:
    def data() -> Any:
        return mixture(lengths, weights)

    assert same(played(data, script, restart=True, old=old), played(data, script, restart=False))


@law
@given(lengths=st.tuples(*[st.integers(1, 12)] * 3), weights=WEIGHTS, script=scripts, steps=st.integers(1, 7))
@pytest.mark.parametrize("restart", [False, True])
def test_epochs_of_a_given_size_are_the_pieces_of_one_endless_stream(
    lengths: tuple[int, ...], weights: tuple[float, ...], script: Script, steps: int, restart: bool
) -> None:
    endless = played(lambda: mixture(lengths, weights), script, restart=False)
    pieces = played(lambda: mixture(lengths, weights, steps * STRIDE), script, restart=restart)
    assert same(pieces, endless)


@law
@given(
    lengths=st.tuples(*[st.integers(1, 12)] * 3),
    weights=WEIGHTS,
    stop=st.sampled_from(["first", "all"]) | st.integers(1, 60),
    window=st.integers(1, 30),
)
def test_packed_rows_of_an_epoch_have_each_token_of_its_documents_once(
    lengths: tuple[int, ...], weights: tuple[float, ...], stop: Any, window: int
) -> None:
    weights = tuple(max(weight, 0.1) for weight in weights)
    sources = {
        name: [list(range(1000 * i + 10 * k + 1, 1000 * i + 10 * k + 2 + (7 * k + i) % 9)) for k in range(n)]
        for i, (name, n) in enumerate(zip("abc", lengths, strict=True))
    }
    data = penstock.mix(sources, named(weights), stop=stop)
    order = data.__order__(3, 16)
    with penstock.DataLoader(penstock.pack(data, length=12, lengths=len, window=window), 4, seed=3) as loader:
        for epoch in range(3):
            found = Counter(token for batch in loader for token in batch["tokens"].ravel().tolist() if token)
            keys = order.at(epoch, np.arange(order.size(epoch))).tolist()
            assert found == Counter(token for key in keys for token in data[key])


@law
@given(lengths=st.tuples(*[st.integers(1, 12)] * 3), weights=WEIGHTS, script=scripts)
def test_nothing_is_repeated_or_left_out_and_shares_are_exact(
    lengths: tuple[int, ...], weights: tuple[float, ...], script: Script
) -> None:
    seen = played(lambda: mixture(lengths, weights), script, restart=False)
    whole = np.concatenate([np.empty(0, np.int64), *seen])
    for i, n in enumerate(lengths):
        own = whole[whole // 1000 == i] - 1000 * i
        for first in range(0, len(own) - n + 1, n):
            assert sorted(own[first : first + n]) == list(range(n))  # each pass has each sample once
        assert len({*own[len(own) // n * n :].tolist()}) == len(own) % n
    begin, current = 0, weights
    for steps, _, following in script:
        part = whole[begin : begin + steps * STRIDE] // 1000
        total = sum(map(Fraction, current))
        for i, weight in enumerate(current):
            counts = np.cumsum(part == i).tolist()
            share = Fraction(weight) / total
            # Weights are rounded to multiples of 2**-60.
            assert all(abs(count - (n + 1) * share) < 1 + 1e-9 for n, count in enumerate(counts))
        begin, current = begin + steps * STRIDE, following


@law
@given(lengths=st.tuples(*[st.integers(1, 30)] * 3), weights=WEIGHTS, script=scripts)
def test_packed_rows_follow_the_same_history_on_any_ranks(
    lengths: tuple[int, ...], weights: tuple[float, ...], script: Script
) -> None:
    def data() -> Any:
        return rows(lengths, weights)

    def tokens(**how: Any) -> list[Any]:
        return played(data, script, collate_fn=stack, **how)

    assert same(tokens(restart=True), tokens(restart=False))


def stack(rows: list[Any]) -> Any:
    return np.stack([row["tokens"] for row in rows])


@pytest.mark.parametrize(
    "more", [{"num_workers": 2}, {"num_workers": 2, "backend": "thread"}], ids=["process", "thread"]
)
def test_workers_that_are_ahead_follow_new_weights(more: dict[str, Any]) -> None:
    script: Script = [(7, 1, (0.0, 1.0, 1.0)), (5, 1, (1.0, 0.0, 0.0)), (6, 1, (1.0, 1.0, 1.0))]

    def data() -> Any:
        return mixture((9, 5, 7), (1.0, 1.0, 0.0))

    assert same(played(data, script, restart=False, **more), played(data, script, restart=False))


def test_a_source_is_added_by_a_change_of_weights() -> None:
    with penstock.DataLoader(mixture((9, 5, 7), (2.0, 1.0, 1.0)), STRIDE, seed=3) as loader:
        batches = iter(loader)
        before = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        undisturbed = [next(batches) for _ in range(5)]
    more = {name: np.arange(n) + 1000 * i for i, (name, n) in enumerate({"a": 9, "b": 5, "c": 7, "d": 4}.items())}
    data = penstock.mix(more, {"a": 2.0, "b": 1.0, "c": 1.0, "d": 0.0})
    with penstock.DataLoader(data, STRIDE, seed=3) as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        assert same([next(batches) for _ in range(5)], undisturbed)
    data = penstock.mix(more, {"a": 2.0, "b": 1.0, "c": 1.0, "d": 0.0})
    with penstock.DataLoader(data, STRIDE, seed=3) as loader:
        loader.load_state_dict(state)
        loader.update(weights={"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0})
        after = np.concatenate([batch for batch, _ in zip(loader, range(4), strict=False)])
    assert np.bincount(after // 1000, minlength=4).tolist() == [12, 0, 0, 12]
    seen = np.concatenate(before)
    rest = 9 - len(seen[seen < 1000]) % 9
    assert not {*after[after < 1000][:rest]} & {*seen[seen < 1000][-(9 - rest) :].tolist()}


def test_wrong_weights_change_nothing() -> None:
    with penstock.DataLoader(mixture((9, 5, 7), (2.0, 1.0, 1.0)), STRIDE, seed=3) as loader:
        batches, state = iter(loader), loader.state_dict()
        first = next(batches)
        with pytest.raises(ValueError, match="no source of this name"):
            loader.update(weights={"a": 1.0, "b": 1.0, "z": 1.0})
        with pytest.raises(TypeError, match="and nothing else"):
            loader.update(weights={"a": 1.0, "b": 1.0, "c": 1.0}, other=2)
        second = next(batches)
        loader.load_state_dict(state)
        again = iter(loader)
        assert same([next(again), next(again)], [first, second])
