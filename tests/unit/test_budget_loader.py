"""Loaders that make batches by the lengths of samples: settings that do not fit, lengths, forecasts and figures."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import DataLoader, IterableDataset
from penstock.errors import CollateError
from penstock.plan import Shuffled
from penstock.plan._budget import BudgetPlan, BudgetWindows, LengthTable
from penstock.plan._forecast import Forecast

LENGTHS = [3, 9, 1, 4, 4, 2]
SAMPLES = [np.full(length, key) for key, length in enumerate(LENGTHS)]
PAD = penstock.pad()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(SAMPLES)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batch_tokens": 0}, ValueError, "batch_tokens must be an integer of at least 1"),
        ({"lengths": LENGTHS}, ValueError, "lengths= has a meaning only with batch_tokens= or balance="),
        ({"max_length": 4}, ValueError, "max_length=4 has a meaning only with batch_tokens="),
        ({"buckets": [8]}, ValueError, "buckets=.8. has a meaning only with batch_tokens="),
        ({"batch_multiple": 8}, ValueError, "batch_multiple=8 has a meaning only with batch_tokens="),
        ({"accumulate": 2}, ValueError, "accumulate=2 has a meaning only with balance= and batch_size="),
        ({"batch_tokens": 20, "accumulate": 2}, ValueError, "accumulate=2 has a meaning only with balance="),
        ({"batch_tokens": 20, "batch_size": 2}, ValueError, "both decide the batches"),
        ({"batch_tokens": 20, "last_batch": "pad"}, ValueError, "no fixed number of samples. Leave it out"),
        ({"batch_tokens": 20, "last_batch": "rollover"}, ValueError, "no fixed number of samples"),
        ({"batch_tokens": 20, "batch_sampler": [[0]]}, ValueError, "batch_sampler= are mutually exclusive"),
        ({"batch_tokens": 20, "sampler": [0]}, ValueError, "sampler= are mutually exclusive"),
        ({"batch_tokens": 20, "lengths": [0.5]}, TypeError, "an array of float64"),
        ({"batch_tokens": 20, "buckets": [16, 8]}, ValueError, "increasing lengths"),
        ({"batch_tokens": 20, "buckets": [16]}, ValueError, "the default collate function does not pad"),
        (
            {"batch_tokens": 20, "buckets": [16], "collate_fn": penstock.pad(multiple=8)},
            ValueError,
            "mutually exclusive",
        ),
        (
            {"batch_tokens": 20, "max_length": 8, "collate_fn": penstock.pad(max_length=4)},
            ValueError,
            "max_length=8 was given to the loader, and max_length=4 to penstock.pad",
        ),
        ({"balance": "cost"}, ValueError, 'balance must be None, "tokens" or "quadratic"'),
        ({"balance": "tokens", "batch_size": None}, ValueError, "dealt within complete batches"),
        ({"balance": "tokens", "last_batch": "rollover"}, ValueError, "dealt within complete batches"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DataLoader(SAMPLES, **settings)


def test_a_stream_has_no_budget() -> None:
    with pytest.raises(ValueError, match="needs a dataset with keys"):
        DataLoader(Stream(), batch_tokens=20)


@pytest.mark.parametrize("setting", [{"batch_tokens": 20}, {"balance": "tokens"}])
def test_a_dataset_without_lengths_is_refused_with_the_remedy(setting: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"has no __lengths__. Pass lengths=: an array"):
        len(DataLoader(SAMPLES, **setting))


def lengths_of(loader: Any) -> list[int]:
    return sorted(length for values, lengths, _ in loader for length in lengths.tolist())


@pytest.mark.parametrize("lengths", [LENGTHS, np.array(LENGTHS, np.uint8), len])
def test_lengths_are_numbers_or_a_function_or_those_of_the_dataset(lengths: Any) -> None:
    given = DataLoader(SAMPLES, batch_tokens=12, lengths=lengths, collate_fn=PAD)
    measured: Any = DataLoader(penstock.dataset(SAMPLES).with_lengths(lengths), batch_tokens=12, collate_fn=PAD)
    assert lengths_of(given) == lengths_of(measured) == sorted(LENGTHS)
    assert len(given) == len(list(given)) == len(measured)


def test_lengths_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="5 are given for 6 samples"):
        len(DataLoader(SAMPLES, batch_tokens=12, lengths=LENGTHS[:5]))
    with pytest.raises(ValueError, match="5 are given for 6 samples"):
        iter(DataLoader(penstock.dataset(SAMPLES).repeat(), batch_tokens=12, lengths=LENGTHS[:5]))


@pytest.mark.parametrize("called", ["lengths=", "with_lengths()"])
@pytest.mark.parametrize("begin", ["loader", "pack"])
def test_a_function_that_returns_no_length_is_named_with_its_argument_and_sample(called: str, begin: str) -> None:
    def wrong(sample: Any) -> Any:
        return sample if sample[0] == 2 else len(sample)

    data, lengths = (
        (SAMPLES, wrong) if called == "lengths=" else (penstock.dataset(SAMPLES).with_lengths(wrong), None)
    )
    made: Any = penstock.pack if begin == "pack" else DataLoader
    settings = {"length": 10} if begin == "pack" else {"batch_tokens": 20, "collate_fn": PAD}
    with pytest.raises(TypeError, match=f"the function of {re.escape(called)} has returned a ndarray") as raised:
        iter(made(data, lengths=lengths, **settings))
    where = "lengths=wrong" if called == "lengths=" else ".with_lengths(wrong)"
    assert f"In {where}, of sample 2 of list(6 samples)" in raised.value.__notes__[0]


def test_a_sample_that_is_too_long_is_named_before_the_first_batch() -> None:
    with pytest.raises(ValueError, match="sample 1 has 9 tokens, but a batch has at most 8"):
        iter(DataLoader(SAMPLES, batch_tokens=8, lengths=LENGTHS, collate_fn=PAD))
    with pytest.raises(ValueError, match="sample 1 has 9 tokens, but max_length is 8"):
        iter(DataLoader(SAMPLES, batch_tokens=20, max_length=8, lengths=LENGTHS, collate_fn=PAD))


def test_the_padding_cuts_samples_if_it_has_max_length() -> None:
    loader: Any = DataLoader(SAMPLES, batch_tokens=8, lengths=LENGTHS, collate_fn=penstock.pad(max_length=4))
    assert max(lengths_of(loader)) == 4


def test_the_loader_passes_buckets_on_to_the_padding() -> None:
    loader: Any = DataLoader(SAMPLES, batch_tokens=24, lengths=LENGTHS, buckets=[4, 12], collate_fn=PAD)
    assert {values.shape[1] for values, _, _ in loader} == {4, 12}
    assert loader.collate_fn.buckets == loader.buckets == (4, 12)
    taken: Any = DataLoader(SAMPLES, batch_tokens=24, lengths=LENGTHS, collate_fn=penstock.pad(buckets=[4, 12]))
    assert taken.buckets == (4, 12)


def test_a_sample_beyond_the_last_bucket_is_an_error_of_the_padding() -> None:
    with pytest.raises(CollateError, match="has 9 elements, but the largest bucket is 8"):
        penstock.pad(buckets=[4, 8])(SAMPLES)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("loaders", ["penstock", "penstock.torch"])
@pytest.mark.parametrize("samples", [[{"ids": [1] * n, "labels": [1] * n} for n in LENGTHS], SAMPLES])
def test_lengths_that_are_too_small_are_an_error_of_the_padding(samples: Any, loaders: str, ragged: bool) -> None:
    loader = pytest.importorskip(loaders).DataLoader(
        samples, batch_tokens=20, lengths=[1] * 6, collate_fn=penstock.pad(ragged=ragged), seed=0
    )
    cost, said = 23 if ragged else 54, r"batch_tokens is 20\. .*in row 1, has 9 elements.*lengths="
    with pytest.raises(CollateError, match=f"the batch has {cost} tokens, but {said}") as raised:
        next(iter(loader))
    assert "row 1 is sample 1" in "".join(raised.value.__notes__)


def test_one_padded_field_keeps_the_budget_and_others_may_exceed_it() -> None:
    samples = [{"audio": [0] * 100 * length, "text": [1] * length} for length in LENGTHS]
    loader: Any = DataLoader(samples, batch_tokens=20, lengths=LENGTHS, collate_fn=penstock.pad())
    assert max(batch["text"].size for batch in loader) <= 20 < max(batch["audio"].size for batch in loader)


def test_the_budget_of_a_loader_ends_with_the_loader() -> None:
    loader: Any = DataLoader(SAMPLES, batch_tokens=20, lengths=LENGTHS, collate_fn=PAD)
    (batch,) = DataLoader(SAMPLES, batch_size=6, collate_fn=loader.collate_fn)
    assert batch.values.size == 54


def test_an_endless_dataset_has_batches_without_end_and_no_len() -> None:
    loader: Any = DataLoader(
        penstock.dataset(SAMPLES).repeat(), batch_tokens=1 << 16, lengths=LENGTHS, collate_fn=PAD, seed=1
    )
    with pytest.raises(TypeError, match="has no end"):
        len(loader)
    steps = loader.batches()
    first = [next(steps).index for _ in range(3)]
    assert all(values is not None for values in first)
    state = loader.state_dict()
    after = next(steps)
    loader.load_state_dict(state)
    assert next(loader.batches()).index.tolist() == after.index.tolist()


def test_a_budget_that_has_changed_is_refused_with_its_name() -> None:
    loader: Any = DataLoader(SAMPLES, batch_tokens=12, lengths=LENGTHS, collate_fn=PAD, seed=1)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(penstock.StateError, match="batch_tokens was 12 when it was taken, and is 16 here"):
        DataLoader(SAMPLES, batch_tokens=16, lengths=LENGTHS, collate_fn=PAD, seed=1).load_state_dict(state)
    with pytest.raises(penstock.StateError, match="belongs to another loader"):
        DataLoader(SAMPLES, batch_tokens=12, lengths=LENGTHS[::-1], seed=1).load_state_dict(state)


def test_what_frameworks_read_from_the_loader() -> None:
    loader: Any = DataLoader(SAMPLES, batch_tokens=12, lengths=LENGTHS, collate_fn=PAD, shuffle=True, seed=1)
    assert loader.batch_size is None
    assert len(loader.batch_sampler) == len(loader)
    assert list(loader.batch_sampler) == [batch.index.tolist() for batch in loader.batches()]
    assert sorted(loader.sampler) == list(range(6)) and len(loader.sampler) == 6


def test_a_replacement_is_from_the_same_batch_so_that_the_budget_holds() -> None:
    class Broken(penstock.Dataset[Any]):
        def __len__(self) -> int:
            return len(SAMPLES)

        def __getitem__(self, key: int) -> Any:
            if key == 2:
                raise ValueError("broken")
            return SAMPLES[key]

    loader: Any = DataLoader(
        Broken(), batch_tokens=12, lengths=LENGTHS, collate_fn=PAD, on_error="replace", seed=1, shuffle=True
    )
    assert all(values.size <= 12 for values, _, _ in loader)
    assert [key for key, _ in loader.skipped] == [2]


def test_stats_say_how_full_the_batches_are() -> None:
    loader: Any = DataLoader(SAMPLES, batch_tokens=12, lengths=LENGTHS, collate_fn=PAD)
    assert loader.stats().budget is None
    sizes = [values.size for values, _, _ in loader]
    figures = loader.stats().budget
    assert (figures.batches, figures.samples, figures.tokens) == (len(sizes), 6, sum(LENGTHS))
    assert figures.padding == pytest.approx(1 - sum(LENGTHS) / sum(sizes))
    assert figures.used == pytest.approx(sum(sizes) / (12 * len(sizes)))
    assert "token budget" in str(loader.stats())


def test_a_forecast_has_the_samples_in_the_order_of_the_batches_of_all_ranks() -> None:
    windows = BudgetWindows(Shuffled(200, 3), LengthTable(np.arange(200) % 17), batch_tokens=40, seed=3, window=64)
    plans = [BudgetPlan(windows, rank=rank, world=3) for rank in range(3)]
    done = 0
    forecast = Forecast(plans[0], epoch=0, steps=lambda: done)
    assert sorted(forecast.keys(0, 200).tolist()) == list(range(200))
    for done in range(1, (plans[0].steps(0) or 0) + 1):
        handed_out = np.concatenate([plan.keys(0, done - 1) for plan in plans])
        assert set(handed_out.tolist()) <= set(forecast.keys(0, forecast.position).tolist())
    assert forecast.position == 200


def test_batches_by_blocks_need_few_blocks_at_a_time() -> None:
    class Blocks(penstock.Dataset[int]):
        blocks = np.arange(0, 3001, 100)

        def __len__(self) -> int:
            return 3000

        def __getitem__(self, key: int) -> int:
            return key

    loader: Any = DataLoader(
        Blocks(), batch_tokens=64, lengths=np.arange(3000) % 13, shuffle="blocks", window=4, seed=1, collate_fn=list
    )
    batches = list(loader)
    assert sorted(key for batch in batches for key in batch) == list(range(3000))
    near = [{key // 100 for batch in batches[at : at + 5] for key in batch} for at in range(len(batches) - 5)]
    assert max(map(len, near)) <= 12
