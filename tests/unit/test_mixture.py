"""Mixtures as datasets: keys, batches, states and messages."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weights import changed, first, load, state_of

import penstock
from penstock.errors import StateError
from penstock.plan import OrderPlan
from penstock.plan._forecast import Forecast
from penstock.source._history import WeightHistory
from penstock.source._mixture import MixtureDataset
from penstock.source._nested import fingerprint_of, foresee_of, leaves_of, lengths_within, origin


def letters(**options: Any) -> MixtureDataset:
    return penstock.mix({"b": list("xyz"), "a": list("uv")}, {"b": 0.5, "a": 0.5}, **options)


def arrays(dtype: Any = np.int64) -> MixtureDataset:
    one, other = np.arange(10), np.arange(100, 130).astype(dtype)
    return penstock.mix({"one": one, "other": other}, {"one": 1, "other": 3})


def test_a_key_says_source_pass_and_index() -> None:
    data = letters()
    assert [data[key] for key in (0, 1, 2, 4, 5, 9)] == ["u", "v", "x", "z", "u", "z"]
    assert data.__getitems__([9, 0, 2]) == ["z", "u", "x"]
    assert data.names_of([9, 0, 2]) == ["b", "a", "b"]
    assert origin(data.map(str.upper), 9) == (list("xyz"), 2)
    assert list(leaves_of(data)) == [list("uv"), list("xyz")]


def test_the_order_of_the_names_makes_no_difference() -> None:
    other = penstock.mix({"a": list("uv"), "b": list("xyz")}, {"a": 0.5, "b": 0.5})
    assert list(islice(letters(), 30)) == list(islice(other, 30))


def test_a_source_of_weight_0_changes_nothing() -> None:
    more = penstock.mix({"b": list("xyz"), "a": list("uv"), "aa": list("!")}, {"b": 0.5, "a": 0.5, "aa": 0})
    assert list(islice(letters(), 30)) == list(islice(more, 30))


@pytest.mark.parametrize("stop", ["never", "first", "all"])
def test_a_mixture_has_no_length_whether_it_ends_or_not(stop: Any) -> None:
    data = letters(stop=stop)
    for each in (data, data.map(str.upper)):
        with pytest.raises(TypeError, match=r"no len.*keys are no positions.*with seed="):
            len(each)


def test_iterating_over_a_mixture_that_ends_gives_one_epoch() -> None:
    data = letters(stop="all")
    assert set(data) == set("uvxyz")
    assert len(list(data)) == len(list(data.map(str.upper))) == data.__order__(0, 16).size(0)


def test_a_batch_of_several_sources_is_gathered() -> None:
    data = arrays()
    assert data.__gather__(np.array([10, 0, 12, 49]), np.empty).tolist() == [100, 0, 102, 9]
    assert arrays(np.float32).__gather__(np.array([10, 0]), np.empty) is NotImplemented
    assert not hasattr(letters(), "__gather__")


def test_fields_are_gathered_by_name() -> None:
    parts = [penstock.ArrayDataset(x=np.arange(3) + n, s=np.array(["a", "b", "c"])) for n in (0, 10)]
    data = penstock.mix({"a": parts[0], "b": parts[1]}, {"a": 1, "b": 1})
    batch = data.__gather__(np.array([5, 0, 4]), np.empty)
    assert (batch["x"].tolist(), batch["s"]) == ([12, 0, 11], ["c", "a", "b"])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_in_the_order_of_the_mixture(workers: int) -> None:
    data = arrays()
    keys = data.__order__(5, 16).at(0, np.arange(40)).tolist()
    with penstock.DataLoader(data, batch_size=8, seed=5, num_workers=workers, dtype="float32") as loader:
        found = np.concatenate(list(islice(loader, 5)))
    assert found.dtype == np.float32
    assert found.tolist() == [data[key] for key in keys]


def test_a_seed_of_its_own_takes_the_place_of_the_loaders() -> None:
    orders = [letters(seed=own).__order__(seed, 16) for own, seed in ((7, 1), (7, 2), (None, 7))]
    assert len({order.seed for order in orders}) == 1


def test_shares_of_tokens_follow_from_the_lengths() -> None:
    short = penstock.dataset(["ab"] * 10).with_lengths(len)
    long = penstock.dataset(["abcdef"] * 10).with_lengths(len)
    data = penstock.mix({"s": short, "l": long}, {"s": 1, "l": 1}, unit="tokens")
    assert "".join(islice(data, 80)).count("c") == 20
    assert lengths_within(data)().tolist() == [6] * 10 + [2] * 10  # type: ignore[misc]
    assert state_of(data)["tokens"] == {"l": 60, "s": 20}
    few = penstock.mix({"s": short[:5], "l": long}, {"s": 1, "l": 1}, unit="tokens")
    assert "".join(islice(few, 80)).count("c") == 20
    with pytest.raises(TypeError, match=r"source 'a'.*\.with_lengths\(len\)"):
        letters(unit="tokens").__order__(0, 16)


def noisy(number: int) -> Any:
    return np.array([number, penstock.rng().random()])


@pytest.mark.parametrize("kind", [list, np.array])  # samples are read one by one, or all together
def test_random_numbers_do_not_depend_on_the_sources_of_the_other_samples(kind: Any) -> None:
    sources = {name: penstock.dataset(kind(range(first, first + 9))) for name, first in (("a", 0), ("b", 100))}
    weights = {"a": 2.0, "b": 1.0}
    inside = penstock.mix({name: source.map(noisy) for name, source in sources.items()}, weights)
    outside = penstock.mix(sources, weights).map(noisy)
    one, other = (next(iter(penstock.DataLoader(data, batch_size=9, seed=3))) for data in (inside, outside))
    assert one.tolist() == other.tolist()


class Told(penstock.Dataset[int]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, key: int) -> int:
        return key

    def __foresee__(self, forecast: Forecast) -> None:
        self.forecast = forecast


def test_each_source_is_told_its_own_keys() -> None:
    told = Told()
    data = penstock.mix({"a": list("xyz"), "b": told}, {"a": 1, "b": 1})
    order = data.__order__(1, 16)
    foresee = foresee_of(data.map(str))
    assert foresee is not None
    foresee(Forecast(OrderPlan(order), 0, lambda: 0))
    keys = order.at(0, np.arange(40)).tolist()
    expected = [data[key] if name == "b" else -1 for key, name in zip(keys, data.names_of(keys), strict=True)]
    assert told.forecast.keys(0, 40).tolist() == expected


def test_new_weights_are_foreseen() -> None:
    data = penstock.mix({"a": Told(), "b": Told()}, {"a": 1, "b": 1})
    loader = penstock.DataLoader(data, batch_size=4, seed=1)
    batches = iter(loader)
    next(batches)
    assert max(data.sources[1].forecast.keys(4, 20)) >= 0
    loader.update(weights={"a": 1, "b": 0})
    assert max(data.sources[1].forecast.keys(4, 20)) == -1
    assert next(batches).tolist() == data.sources[0].forecast.keys(4, 8).tolist()


def test_an_error_names_the_source_and_its_sample() -> None:
    data = penstock.mix({"good": [1], "bad": penstock.dataset(["1", "x"]).map(int)}, {"good": 1, "bad": 1})
    for read in (lambda: data[1], lambda: data.__getitems__([2, 1])):
        with pytest.raises(ValueError, match="invalid literal") as caught:
            read()
        notes = "\n".join(caught.value.__notes__)
        assert "of source 'bad'" in notes and "of sample 1 of list(2 samples)" in notes


@pytest.mark.parametrize("weight", ["1", b"1", None])
def test_a_weight_that_is_no_number_is_refused_with_its_source(weight: Any) -> None:
    with pytest.raises(TypeError, match=f"that of source 'b' is {weight!r}"):
        penstock.mix({"a": [1], "b": [2]}, {"a": 1, "b": weight})


# States.


def test_a_state_has_the_history_of_the_weights() -> None:
    data = letters(seed=3)
    history = changed(data, (0, 10, {"a": 1, "b": 0}), (0, 20, {"a": 1, "b": 3}), (0, 20, {"a": 1, "b": 7}))
    state = json.loads(json.dumps(pickle.loads(pickle.dumps(history)).as_dict()))
    other = WeightHistory.of(letters(seed=3)).loaded(state, 5)
    assert first(other, 60) == first(history, 60) != list(islice(letters(seed=3), 60))
    assert [history.weights_at(0, place)["b"] for place in (0, 9, 10, 19, 20)] == [0.5, 0.5, 0, 0, 7]
    assert repr(data) == "mix(b=0.5, a=0.5)"


def test_a_change_of_weights_replaces_the_changes_after_it() -> None:
    weights = {"a": 1, "b": 2}
    history = changed(letters(), *((*place, weights) for place in ((0, 10), (0, 20), (1, 5), (0, 15))))
    assert [(stage["epoch"], stage["position"]) for stage in history.as_dict()["stages"]] == [
        (0, 0),
        (0, 10),
        (0, 15),
    ]


def test_two_loaders_of_a_mixture_share_no_weights() -> None:
    data = letters()
    one, other = (penstock.DataLoader(data, batch_size=10, seed=1) for _ in range(2))
    expected = list(islice(penstock.DataLoader(letters(), batch_size=10, seed=1), 3))
    one.update(weights={"a": 1, "b": 0})
    assert {*next(iter(one))} == {"u", "v"}
    assert list(islice(other, 3)) == expected
    assert [each["weights"] for each in other.state_dict()["dataset"]["stages"]] == [{"a": 0.5, "b": 0.5}]
    copy = pickle.loads(pickle.dumps(one))
    copy.update(weights={"a": 0, "b": 1})
    assert one.state_dict()["dataset"]["stages"][0]["weights"] == {"a": 1, "b": 0}


def test_a_state_without_a_history_of_weights_is_refused() -> None:
    loader = penstock.DataLoader(letters(), batch_size=10, seed=1)
    loader.update(weights={"a": 1, "b": 0})
    state = loader.state_dict()
    for damage in (None, 3, []):
        with pytest.raises(StateError, match="no history of weights"):
            loader.load_state_dict({**state, "dataset": damage})
    assert loader.state_dict() == state


def committing(stop: Any) -> Any:
    data = penstock.mix({"a": np.arange(6), "b": np.arange(6)}, {"a": 1, "b": 1}, stop=stop)
    return penstock.DataLoader(data, batch_size=2, seed=1, commit=True)


def test_weights_change_behind_batches_that_were_committed_early() -> None:
    one, other = committing("never"), committing("never")
    batches = list(islice(one.batches(), 4))
    one.commit(batches[0])
    one.commit(batches[3])
    other.load_state_dict(one.state_dict())
    rest = other.batches()
    assert next(rest).step == 1
    other.update(weights={"a": 1, "b": 0})
    assert [batch.step for batch in islice(rest, 3)] == [2, 4, 5]
    assert other.state_dict()["dataset"]["stages"][-1]["position"] == 8


def test_weights_change_behind_batches_of_a_later_epoch_that_were_committed() -> None:
    one, other = committing("all"), committing("all")
    for batch in [*one.batches(), next(one.batches())]:
        if (batch.epoch, batch.step) != (0, 1):
            one.commit(batch)
    other.load_state_dict(one.state_dict())
    assert next(other.batches()).step == 1
    other.update(weights={"a": 2, "b": 1})
    last = other.state_dict()["dataset"]["stages"][-1]
    assert (last["epoch"], last["position"]) == (1, 2)


def test_a_state_of_the_last_weights_is_taken_too() -> None:
    history = changed(letters(), (0, 10, {"a": 1, "b": 2}))
    other = penstock.mix({"b": list("xyz"), "a": list("uv")}, {"b": 2, "a": 1})
    assert WeightHistory.of(other).loaded(history.as_dict(), 0).weights_at(0, 0) == {"a": 0.5, "b": 0.5}


def test_a_new_source_has_weight_0_until_the_state_is_loaded() -> None:
    def wider(weight: float) -> MixtureDataset:
        return penstock.mix({"b": list("xyz"), "a": list("uv"), "aa": list("!")}, {"b": 0.5, "a": 0.5, "aa": weight})

    history = WeightHistory.of(wider(0)).loaded(state_of(letters()), 0)
    history = history.changed(0, 10, {"a": 1, "b": 1, "aa": 2}, 0, 16)
    assert "!" not in first(history, 10)
    assert first(history, 30).count("!") == 10
    with pytest.raises(StateError, match=r"knows no source 'aa'.*weight 0 for it"):
        load(wider(1), state_of(letters()))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: penstock.mix({"a": list("uv")}, {"a": 1}), "a source 'b', but this one has only 'a'"),
        (
            lambda: penstock.mix({"a": list("uvw"), "b": list("xyz")}, {"a": 0.5, "b": 0.5}),
            "'a' had 2 samples .* now has 3",
        ),
        (lambda: letters(stop="all"), "stop='never', but this one has stop='all'"),
        (lambda: letters(shuffle=False), "shuffle=True, but this one has shuffle=False"),
        (lambda: letters(unit="tokens"), "unit='samples', but this one has unit='tokens'"),
        (
            lambda: penstock.mix({"a": list("uv"), "b": list("xyz")}, {"a": 1, "b": 3}),
            "has the weights .* but the state was",
        ),
    ],
)
def test_a_state_of_another_mixture_is_refused(other: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        load(other(), state_of(letters()))


@pytest.mark.parametrize("name", ["sources", "stages", "unit"])
def test_a_damaged_state_is_refused(name: str) -> None:
    for value in (None, [], 3):
        with pytest.raises(StateError):
            load(letters(), {**state_of(letters()), name: value})


@pytest.mark.parametrize(
    "damage",
    [
        {"position": 1.5},
        {"epoch": "1"},
        {"epoch": True},
        {"position": 1 << 63},
        {"weights": {"a": -1.0, "b": 1.0}},
        {"weights": {"a": float("nan"), "b": 1.0}},
        {"weights": {"a": float("inf"), "b": 1.0}},
        {"weights": {"a": "much", "b": 1.0}},
        {"weights": {"a": 0.0, "b": 0.0}},
        {"given": {"a": 4, "b": 1}},
        {"given": {"a": 3, "b": 3}},
        {"given": {"a": 2}},
        {"given": {"a": 2.0, "b": 3}},
        {"given": {"a": True, "b": 4}},
        {"given": {"a": 2, "b": 2, "c": 1}},
        {"given": {}},
        {"given": [2, 3]},
    ],
)
def test_a_damaged_stage_is_refused(damage: dict[str, Any]) -> None:
    state = changed(letters(), (0, 5, {"a": 1, "b": 2})).as_dict()
    load(letters(), state)
    state["stages"][-1] |= damage
    with pytest.raises(StateError, match="damaged"):
        load(letters(), state)


@pytest.mark.parametrize("damage", [{"c": 9}, {"a": "many"}, {"a": -1}])
def test_damaged_numbers_of_tokens_are_refused(damage: dict[str, Any]) -> None:
    def data() -> MixtureDataset:
        lengths = {name: penstock.dataset(name).with_lengths([1]) for name in "ab"}
        return penstock.mix(lengths, {"a": 1, "b": 1}, unit="tokens")

    with pytest.raises(StateError, match="damaged"):
        load(data(), {**state_of(data()), "tokens": damage})


def test_an_order_is_made_of_a_state_alone_also_of_files() -> None:
    class Filed(Told):
        def __fingerprint__(self) -> str:
            return "files"

    data = penstock.mix({"a": Filed(), "b": Filed()}, {"a": 2, "b": 1})
    history = changed(data, (0, 10, {"a": 1, "b": 2}))
    made = WeightHistory.of_state(history.as_dict(), 0)
    assert made is not None
    orders = [each.order(0, 16).at(0, np.arange(40)).tolist() for each in (history, made)]
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    "damage", [{"sources": {"a": 1 << 70, "b": 3}}, {"sources": {"a": 1 << 62, "b": 1 << 62}}, {"unit": "tokens"}]
)
def test_no_order_is_made_of_a_damaged_state(damage: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="damaged"):
        WeightHistory.of_state({**state_of(letters()), **damage}, 0)


def test_other_files_of_a_source_are_named() -> None:
    class Marked(Told):
        mark = "one"

        def __fingerprint__(self) -> str:
            return self.mark

    source = Marked()
    data = penstock.mix({"a": source}, {"a": 1})
    state = state_of(data)
    assert state["files"] == {"a": "one"} and fingerprint_of(data) is None
    source.mark = "two"
    with pytest.raises(StateError, match="source 'a' has other files"):
        load(data, state)


# Messages.


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"code": 1, "wbe": 1}, "Did you mean 'web'"),
        ({"code": 1}, "nothing for source 'web'"),
        ({"code": 1, "web": -1}, "'web' is -1"),
        ({"code": 1, "web": float("nan")}, "'web' is nan"),
        ({"code": 0, "web": 0}, "all weights of the mixture are 0"),
    ],
)
def test_wrong_weights_are_named(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        penstock.mix({"code": [1], "web": [2]}, weights)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (penstock.dataset([1]).repeat(), "without repeat"),
        (letters(), "cannot be inside another"),
        (penstock.dataset(iter([1])), "is a stream"),
        ((i for i in range(9)), "a generator, is a stream.*in a list"),
        ("data/web.parquet", r"is a path.*penstock\.open"),
        (Path("data/web.parquet"), r"is a path.*penstock\.open"),
        ({"train": [1]}, "is a dict with the keys"),
        (Told, r"is the class Told.*Told\(\.\.\.\)"),
    ],
)
def test_a_source_that_cannot_be_mixed_is_named(source: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"source 'a'.*{message}"):
        penstock.mix({"a": source}, {"a": 1})


def test_an_empty_source_may_only_have_weight_0() -> None:
    assert list(penstock.mix({"a": [], "b": [1]}, {"a": 0, "b": 1}, stop="all")) == [1]
    with pytest.raises(ValueError, match="'a' has no samples"):
        penstock.mix({"a": [], "b": [1]}, {"a": 1, "b": 1})


def test_methods_that_need_positions_are_refused() -> None:
    data = letters(stop="all")
    for use in (lambda: data.select([0]), lambda: data.map(str).repeat(), lambda: data.concat([1]), lambda: data[:2]):
        with pytest.raises(TypeError, match="mixture"):
            use()


def test_a_negative_key_is_refused() -> None:
    with pytest.raises(IndexError, match="key -1"):
        letters()[-1]


def test_keys_beyond_62_bits_are_refused() -> None:
    data = penstock.mix({"few": [1], "many": range(1 << 40)}, {"few": 1, "many": 1})
    with pytest.raises(OverflowError, match="less weight"):
        data.__order__(0, 16).at(0, np.array([1 << 50]))


def test_batches_name_the_sources_of_their_samples_and_so_does_a_field() -> None:
    records = {name: [{"x": i} for i in range(5)] for name in "ab"}
    data = penstock.mix(records, {"a": 1, "b": 1}, field="source")
    with penstock.DataLoader(data, 4, seed=1) as loader:
        batch = next(loader.batches())
    assert batch.sources == batch.data["source"]
    assert sorted(batch.sources or []) == ["a", "a", "b", "b"]
    with pytest.raises(TypeError, match="needs samples that are dicts"):
        penstock.mix({"a": [1]}, {"a": 1}, field="source")[0]


def test_a_field_that_samples_have_already_is_refused() -> None:
    data = penstock.mix({"a": [{"id": 1}], "b": [{"x": 1}]}, {"a": 1, "b": 1}, field="id")
    assert data[1] == {"x": 1, "id": "b"}
    for read in (lambda: data[0], lambda: next(iter(penstock.DataLoader(data, 2, seed=1)))):
        with pytest.raises(ValueError, match=r"field='id'.*of source 'a' have already"):
            read()


def test_packed_batches_name_the_sources_of_their_documents() -> None:
    parts = {name: penstock.dataset([np.full(3, i) for i in range(9)]).with_lengths(len) for name in "ab"}
    rows = penstock.pack(penstock.mix(parts, {"a": 2, "b": 1}), length=9, window=18)
    with penstock.DataLoader(rows, 2, seed=1) as loader:
        batch = next(loader.batches())
    assert [len(row) for row in batch.sources or []] == [3, 3]
    assert {name for row in batch.sources or [] for name in row} == {"a", "b"}


def test_figures_have_the_shares_that_were_asked_and_given_and_the_steps_of_changes() -> None:
    parts = {
        "short": penstock.dataset([np.zeros(2, np.int64)] * 10).with_lengths(len),
        "long": penstock.dataset([np.zeros(6, np.int64)] * 10).with_lengths(len),
    }
    data = penstock.mix(parts, {"short": 3, "long": 1}, unit="tokens")
    with penstock.DataLoader(data, 10, seed=1, collate_fn=len) as loader:
        assert loader.stats().mixture is None
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        before = loader.stats().mixture
        loader.update(weights={"short": 0, "long": 1})
        next(batches)
        after = loader.stats().mixture
        table = str(loader.stats())
    assert before is not None
    assert after is not None
    short = {each.name: each for each in before.sources}["short"]
    assert (short.asked, short.samples, short.share, short.passes) == (0.75, 36, 0.9, 3.6)
    assert (short.tokens, short.token_share) == (72.0, 0.75)
    assert (before.changed, after.changed) == ((), ((0, 4),))
    assert {each.name: each.samples for each in after.sources} == {"short": 36, "long": 14}
    assert "long 28.00% (100.00% asked, 1.40 passes)" in table


def test_a_packed_mixture_changes_its_weights_at_the_next_window() -> None:
    parts = {name: penstock.dataset([np.full(4, i) for i in range(50)]).with_lengths(len) for name in "ab"}
    rows = penstock.pack(penstock.mix(parts, {"a": 1, "b": 0}), length=8, window=12)  # six rows in a window
    with penstock.DataLoader(rows, 2, seed=1) as loader:
        batches = loader.batches()
        seen = [{name for row in next(batches).sources or [] for name in row}]
        loader.update(weights={"a": 0, "b": 1})
        seen += [{name for row in next(batches).sources or [] for name in row} for _ in range(4)]
        figures = loader.stats().mixture
    assert seen == [{"a"}, {"a"}, {"a"}, {"b"}, {"b"}]
    assert figures is not None
    assert figures.changed == ((0, 3),)


@pytest.mark.parametrize("kind", ["packed", "budget"])
def test_the_figures_of_a_mixture_count_what_was_handed_out(kind: str) -> None:
    lengths = {"a": [4] * 50, "b": [1, 2, 3, 8] * 20}
    parts = {name: penstock.dataset([[0] * n for n in found]).with_lengths(len) for name, found in lengths.items()}
    data = penstock.mix(parts, {"a": 1, "b": 2}, stop="first" if kind == "budget" else "never")
    settings: dict[str, Any] = {"batch_tokens": 24, "collate_fn": penstock.pad()}
    if kind == "packed":
        data, settings = penstock.pack(data, length=8, window=40), {"batch_size": 2}
    with penstock.DataLoader(data, seed=1, **settings) as loader:
        seen: dict[str, set[int]] = {"a": set(), "b": set()}
        for batch in islice(loader.batches(), 40):
            keys = (
                batch.index.tolist()
                if kind == "budget"
                else [key for row in batch.data["documents"].tolist() for key in row if key >= 0]
            )
            inner = data.documents if kind == "packed" else data
            for key, name in zip(keys, inner.names_of(keys), strict=True):
                seen[name].add(key)
            figures = loader.stats().mixture
            assert figures is not None
            assert {each.name: each.samples for each in figures.sources} == {n: len(keys) for n, keys in seen.items()}


def test_batches_by_tokens_of_a_mixture_have_new_weights_after_32768_samples() -> None:
    parts = {name: penstock.dataset([[i] * n for n in (1, 2, 3)]).with_lengths(len) for i, name in enumerate("ab")}
    data = penstock.mix(parts, {"a": 1, "b": 1})
    with penstock.DataLoader(data, batch_tokens=8192, collate_fn=penstock.pad(), seed=1) as loader:
        batches = iter(loader)
        seen = [next(batches).values[:, 0]]
        loader.update(weights={"a": 0, "b": 1})
        while sum(map(len, seen)) < 1 << 15:
            seen.append(next(batches).values[:, 0])
        assert sum(map(len, seen)) == 1 << 15
        assert np.bincount(np.concatenate(seen)).tolist() == [1 << 14, 1 << 14]
        assert set(next(batches).values[:, 0].tolist()) == {1}
        figures = loader.stats().mixture
    assert figures is not None
    assert figures.changed == ((0, len(seen)),)
