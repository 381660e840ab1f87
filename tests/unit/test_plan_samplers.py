"""Samplers under torch's names, held beside torch's own where the two can be compared."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import pytest

from penstock.plan._blocks import BlockOrder
from penstock.plan._order import Drawn, Order, Selected, Sequential, Shuffled, Weighted
from penstock.plan._samplers import (
    BatchSampler,
    BlockSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    order_of,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Sized:
    """A data source with a length and nothing else."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


RANDOM: dict[str, Callable[[np.random.Generator | None], Sampler[int]]] = {
    "random": lambda g: RandomSampler(range(50), generator=g),
    "with replacement": lambda g: RandomSampler(range(50), replacement=True, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(50), generator=g),
    "blocks": lambda g: BlockSampler(range(0, 51, 5), 3, generator=g),
    "weighted": lambda g: WeightedRandomSampler(np.ones(50), 50, generator=g),
    "weighted without replacement": lambda g: WeightedRandomSampler(np.ones(50), 50, False, generator=g),
}


class TestEverySampler:
    def test_the_base_class_has_neither_an_iterator_nor_a_length(self) -> None:
        class Mine(Sampler[int]):
            pass

        with pytest.raises(NotImplementedError, match="Mine must define __iter__"):
            iter(Mine())
        with pytest.raises(TypeError):
            len(Mine())  # type: ignore[arg-type]

    def test_old_programs_may_hand_the_data_source_to_the_base_class(self) -> None:
        class Mine(Sampler[int]):
            def __init__(self, source: list[int]) -> None:
                super().__init__(source)

        Mine([1])

    @pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
    def test_each_iter_draws_anew(self, make: Callable[..., Sampler[int]]) -> None:
        sampler = make(rng())
        assert list(sampler) != list(sampler)

    @pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
    def test_equal_generators_give_equal_keys(self, make: Callable[..., Sampler[int]]) -> None:
        one, other = make(rng(4)), make(rng(4))
        assert [list(one), list(one)] == [list(other), list(other)]
        assert list(make(rng(5))) != list(make(rng(4)))

    @pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
    def test_without_a_generator_numpys_global_seed_decides(self, make: Callable[..., Sampler[int]]) -> None:
        state = np.random.get_state()
        try:
            np.random.seed(3)
            first, second = list(make(None)), list(make(None))
            np.random.seed(3)
            assert [list(make(None)), list(make(None))] == [first, second]
            assert first != second
        finally:
            np.random.set_state(state)

    @pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
    def test_keys_are_python_ints(self, make: Callable[..., Sampler[int]]) -> None:
        assert {type(key) for key in make(rng())} == {int}

    @pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
    def test_a_foreign_generator_is_refused(self, make: Callable[[Any], Sampler[int]]) -> None:
        with pytest.raises(TypeError, match=r"numpy\.random\.default_rng"):
            make(np.random.RandomState(0))

    @pytest.mark.parametrize(
        "make",
        [
            lambda source: SequentialSampler(source),
            lambda source: RandomSampler(source),
            lambda source: RandomSampler(source, replacement=True),
            lambda source: DistributedSampler(source, 2, 1),
            lambda source: BatchSampler(RandomSampler(source), 64, False),
        ],
    )
    def test_ten_billion_keys_are_not_listed(self, make: Callable[..., Any]) -> None:
        tracemalloc.start()
        try:
            sampler = make(Sized(10**10))
            assert len(list(islice(sampler, 3))) == 3
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


class TestSequentialSampler:
    def test_it_follows_a_source_that_grows(self) -> None:
        source = [1, 2]
        sampler = SequentialSampler(source)
        source.append(3)
        assert len(sampler) == 3
        assert list(sampler) == [0, 1, 2]


class TestRandomSampler:
    @pytest.mark.parametrize("n", [1, 2, 100, 9000])
    def test_every_key_comes_once(self, n: int) -> None:
        assert sorted(RandomSampler(range(n))) == list(range(n))

    @pytest.mark.parametrize("num_samples", [3, 10, 25])
    def test_more_samples_than_keys_repeat_whole_permutations(self, num_samples: int) -> None:
        sampler = RandomSampler(range(10), num_samples=num_samples, generator=rng())
        keys = list(sampler)
        assert len(keys) == len(sampler) == num_samples
        turns = [keys[at : at + 10] for at in range(0, num_samples, 10)]
        assert all(len(set(turn)) == len(turn) for turn in turns)
        assert len(set(map(tuple, turns))) == len(turns)

    def test_with_replacement_every_key_is_equally_likely(self) -> None:
        sampler = RandomSampler(range(10), replacement=True, num_samples=20_000, generator=rng())
        counts = Counter(sampler)
        assert set(counts) == set(range(10))
        assert all(abs(each - 2000) < 200 for each in counts.values())

    def test_it_follows_a_source_that_grows(self) -> None:
        source = [1, 2]
        sampler = RandomSampler(source)
        source.append(3)
        assert sampler.num_samples == len(sampler) == 3
        assert sorted(sampler) == [0, 1, 2]

    def test_the_source_may_shrink_to_nothing(self) -> None:
        source = [1]
        sampler = RandomSampler(source)
        source.clear()
        assert list(sampler) == []

    def test_replacement_must_be_a_bool(self) -> None:
        with pytest.raises(TypeError, match="replacement must be True or False, but it is 1"):
            RandomSampler([1], replacement=1)  # type: ignore[arg-type]

    @pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", True])
    def test_num_samples_must_be_a_positive_integer(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match="num_samples must be a positive integer"):
            RandomSampler([1], num_samples=wrong)

    def test_an_empty_source_fails_at_once_and_says_so(self) -> None:
        with pytest.raises(ValueError, match=r"num_samples .* is 0.*data source is empty"):
            RandomSampler([])

    @pytest.mark.parametrize("replacement", [False, True])
    def test_samples_out_of_nothing_are_an_error(self, replacement: bool) -> None:
        with pytest.raises(ValueError, match="3 samples cannot be drawn from an empty"):
            iter(RandomSampler([], replacement, num_samples=3))


class TestSubsetRandomSampler:
    @pytest.mark.parametrize("indices", [[7, 3, 9], (7, 3, 9), np.array([7, 3, 9])])
    def test_each_index_comes_once(self, indices: Any) -> None:
        sampler = SubsetRandomSampler(indices)
        keys = list(sampler)
        assert len(sampler) == 3
        assert sorted(keys) == [3, 7, 9]
        assert {type(key) for key in keys} == {int}

    def test_indices_may_be_anything_and_none(self) -> None:
        assert sorted(SubsetRandomSampler(["b", "a"])) == ["a", "b"]
        assert list(SubsetRandomSampler([])) == []


class TestWeightedRandomSampler:
    def test_keys_come_as_often_as_their_weight_says(self) -> None:
        weights = [0.0, 1.0, 2.0, 0.0, 7.0, 0.0]
        counts = Counter(WeightedRandomSampler(weights, 20_000, generator=rng()))
        assert set(counts) == {1, 2, 4}
        for key, expected in ((1, 2000), (2, 4000), (4, 14_000)):
            assert abs(counts[key] - expected) < 300

    def test_without_replacement_no_key_comes_twice(self) -> None:
        sampler = WeightedRandomSampler([1, 5, 0, 2, 9], 4, replacement=False, generator=rng())
        for _ in range(20):
            assert sorted(sampler) == [0, 1, 3, 4]

    def test_without_replacement_the_next_is_drawn_by_the_weights_left(self) -> None:
        sampler = WeightedRandomSampler([1, 2, 5], 2, replacement=False, generator=rng())
        counts = Counter(tuple(sampler) for _ in range(8000))
        for (first, second), chance in {
            (0, 1): 1 / 8 * 2 / 7,
            (0, 2): 1 / 8 * 5 / 7,
            (1, 0): 2 / 8 * 1 / 6,
            (1, 2): 2 / 8 * 5 / 6,
            (2, 0): 5 / 8 * 1 / 3,
            (2, 1): 5 / 8 * 2 / 3,
        }.items():
            assert abs(counts[first, second] - 8000 * chance) < 4 * (8000 * chance) ** 0.5

    def test_the_smallest_weight_there_is_draws_its_key(self) -> None:
        assert list(WeightedRandomSampler([0.0, 5e-324, 0.0], 100)) == [1] * 100

    def test_weights_changed_between_epochs_count(self) -> None:
        sampler = WeightedRandomSampler([1.0, 0.0], 5)
        sampler.weights[:] = [0.0, 1.0]
        assert list(sampler) == [1] * 5

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([1.0], 0), "num_samples must be a positive integer"),
            (([1.0], True), "num_samples must be a positive integer"),
            (([1.0], 2.0), "num_samples must be a positive integer"),
            (([1.0], 1, 1), "replacement must be True or False"),
            (([[1.0]], 1), r"shape is \(1, 1\)"),
            (([1.0, -2.0, -3.0], 1), r"weight 1 is -2\.0 \(2 of 3 are wrong\)"),
            (([1.0, float("nan")], 1), "weight 1 is nan"),
            (([0.0, 0.0], 1), "at least one of the 2 weights"),
            (([], 1), "at least one of the 0 weights"),
            (([1.0, 0.0], 2, False), "only 1 of 2 weights are above zero"),
        ],
    )
    def test_wrong_arguments_are_refused(self, arguments: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            WeightedRandomSampler(*arguments)


class TestBatchSampler:
    def test_the_inner_sampler_is_read_no_further_than_asked(self) -> None:
        read = []

        def keys() -> Iterator[int]:
            for key in count():
                read.append(key)
                yield key

        batches = iter(BatchSampler(keys(), 3, False))
        assert read == []
        assert next(batches) == [0, 1, 2]
        assert read == [0, 1, 2]

    def test_what_has_only_getitem_is_a_sampler(self) -> None:
        class Old:
            def __getitem__(self, at: int) -> str:
                return "abc"[at]

        assert list(BatchSampler(Old(), 2, False)) == [["a", "b"], ["c"]]  # type: ignore[arg-type]

    def test_it_has_a_length_only_where_the_inner_sampler_has_one(self) -> None:
        assert len(BatchSampler(range(5), 2, False)) == 3
        with pytest.raises(TypeError):
            len(BatchSampler(iter(range(5)), 2, False))

    @pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
    def test_the_batch_size_must_be_a_positive_integer(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match=f"batch_size must be a positive integer, but it is {wrong}"):
            BatchSampler(range(5), wrong, False)

    def test_numpy_integers_are_integers(self) -> None:
        assert list(BatchSampler(range(3), np.int64(2), False)) == [[0, 1], [2]]  # type: ignore[arg-type]

    @pytest.mark.parametrize("wrong", [0, 1, None])
    def test_drop_last_must_be_a_bool(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match="drop_last must be True or False"):
            BatchSampler(range(5), 2, wrong)


class TestDistributedSampler:
    def test_ranks_agree_on_one_order(self) -> None:
        ranks = [list(DistributedSampler(range(100), 4, rank, seed=5)) for rank in range(4)]
        together = [key for keys in zip(*ranks, strict=True) for key in keys]
        assert sorted(together) == list(range(100))
        assert together != list(range(100))

    def test_another_epoch_and_another_seed_give_another_order(self) -> None:
        sampler = DistributedSampler(range(100), 2, 0)
        first = list(sampler)
        assert list(sampler) == first
        sampler.set_epoch(1)
        assert list(sampler) != first
        assert list(DistributedSampler(range(100), 2, 0, seed=1)) != first

    def test_an_empty_dataset_has_nothing_for_anyone(self) -> None:
        assert list(DistributedSampler([], 2, 1)) == []

    def test_it_follows_a_dataset_that_grows(self) -> None:
        source = [1, 2]
        sampler = DistributedSampler(source, 2, 1, shuffle=False)
        source += [3, 4]
        assert list(sampler) == [1, 3]
        assert (sampler.num_samples, sampler.total_size) == (2, 4)

    def test_launchers_variables_are_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "3")
        monkeypatch.setenv("RANK", "2")
        assert list(DistributedSampler(range(6), shuffle=False)) == [2, 5]

    @pytest.mark.parametrize(("given", "missing"), [({"rank": 0}, "WORLD_SIZE"), ({"num_replicas": 2}, "RANK")])
    def test_without_them_the_error_names_the_variable(
        self, given: dict[str, Any], missing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        monkeypatch.delenv("RANK", raising=False)
        with pytest.raises(RuntimeError, match=f"environment variable {missing} is not set"):
            DistributedSampler(range(6), **given)

    def test_a_variable_that_is_no_number_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "two")
        with pytest.raises(ValueError, match="WORLD_SIZE, but 'two' is not an integer"):
            DistributedSampler(range(6), rank=0)

    @pytest.mark.parametrize("rank", [-1, 2])
    def test_a_rank_outside_of_the_world_is_refused(self, rank: int) -> None:
        with pytest.raises(ValueError, match=f"rank must be 0 to 1 .* but it is {rank}"):
            DistributedSampler(range(6), 2, rank)


@pytest.mark.imports_torch
class TestBesideTorch:
    @pytest.fixture
    def theirs(self) -> Any:
        pytest.importorskip("torch")
        import torch.utils.data

        return torch.utils.data

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_batches_are_equal(self, theirs: Any, drop_last: bool) -> None:
        for n in range(9):
            for size in range(1, 5):
                ours = BatchSampler(range(n), size, drop_last)
                other = theirs.BatchSampler(range(n), size, drop_last)
                assert (list(ours), len(ours)) == (list(other), len(other))

    @pytest.mark.parametrize("drop_last", [False, True])
    def test_shares_of_ranks_are_equal(self, theirs: Any, drop_last: bool) -> None:
        for n in range(12):
            for world in range(1, 6):
                for rank in range(world):
                    settings = (range(n), world, rank, False, 0, drop_last)
                    ours, other = DistributedSampler(*settings), theirs.DistributedSampler(*settings)
                    assert list(ours) == list(other)
                    assert (len(ours), ours.total_size) == (len(other), other.total_size)

    @pytest.mark.parametrize("replacement", [False, True])
    @pytest.mark.parametrize("num_samples", [None, 3, 7, 20])
    def test_random_lengths_are_equal(self, theirs: Any, replacement: bool, num_samples: int | None) -> None:
        ours = RandomSampler(range(7), replacement, num_samples)
        other = theirs.RandomSampler(range(7), replacement, num_samples)
        assert len(ours) == len(other) == len(list(ours)) == len(list(other))

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("BatchSampler", (range(3), 0, False)),
            ("BatchSampler", (range(3), True, False)),
            ("BatchSampler", (range(3), 2.0, False)),
            ("BatchSampler", (range(3), 2, 1)),
            ("RandomSampler", ([],)),
            ("RandomSampler", ([1], 1)),
            ("RandomSampler", ([1], False, -1)),
            ("RandomSampler", ([1], False, 1.5)),
            ("WeightedRandomSampler", ([1.0], 0)),
            ("WeightedRandomSampler", ([1.0], True)),
            ("WeightedRandomSampler", ([1.0], 1, 1)),
            ("WeightedRandomSampler", ([[1.0]], 1)),
            ("DistributedSampler", (range(3), 2, 2)),
            ("DistributedSampler", (range(3), 2, -1)),
        ],
    )
    def test_wrong_arguments_raise_the_same_type(self, theirs: Any, name: str, arguments: Any) -> None:
        with pytest.raises(Exception) as raised:  # whatever torch raises is the answer
            getattr(theirs, name)(*arguments)
        with pytest.raises(raised.type):
            globals()[name](*arguments)


class TestOrdersOfSamplers:
    """A sampler of ours without a generator means an order, which a loader uses in its place."""

    @pytest.mark.parametrize(
        ("sampler", "order"),
        [
            (SequentialSampler(range(5)), Sequential(5)),
            (RandomSampler(range(5)), Shuffled(5, 7)),
            (RandomSampler(range(5), num_samples=5), Shuffled(5, 7)),
            (RandomSampler(range(5), num_samples=12), Shuffled(5, 7, 12)),
            (RandomSampler(range(5), replacement=True), Drawn(5, 5, 7)),
            (RandomSampler(range(5), replacement=True, num_samples=12), Drawn(5, 12, 7)),
            (WeightedRandomSampler([1, 2, 3], 9), Weighted.by([1, 2, 3], 9, 7)),
            (SubsetRandomSampler([4, 2, 4]), Selected(Shuffled(3, 7), np.array([4, 2, 4]))),
            (SubsetRandomSampler((4, 2)), Selected(Shuffled(2, 7), np.array([4, 2]))),
            (SubsetRandomSampler(range(9, 0, -3)), Selected(Shuffled(3, 7), range(9, 0, -3))),
            (SubsetRandomSampler(np.array([4, 2], np.int16)), Selected(Shuffled(2, 7), np.array([4, 2]))),
            (SubsetRandomSampler([np.int64(4), 2]), Selected(Shuffled(2, 7), np.array([4, 2]))),
            (SubsetRandomSampler(np.array([4, 2], np.uint8)), Selected(Shuffled(2, 7), np.array([4, 2]))),
            (BlockSampler([0, 3, 5], 2), BlockOrder(np.array([0, 3, 5]), 2, 7)),
            (BlockSampler(np.array([0, 3, 5], np.uint8)), BlockOrder(np.array([0, 3, 5]), 16, 7)),
            (SubsetRandomSampler([]), Selected(Shuffled(0, 7), np.array([], np.int64))),
        ],
    )
    def test_a_sampler_without_a_generator_is_an_order(self, sampler: object, order: Order) -> None:
        assert order_of(sampler, 7) == order

    @pytest.mark.parametrize(
        "sampler",
        [
            *(make(rng()) for make in RANDOM.values()),
            WeightedRandomSampler([1, 2], 2, replacement=False),
            SubsetRandomSampler(["a", "b"]),
            SubsetRandomSampler([1, -1]),
            SubsetRandomSampler([True, False]),
            SubsetRandomSampler([1, 2**63]),
            SubsetRandomSampler(np.array([0.5])),
            DistributedSampler(range(5), 1, 0),
            BatchSampler(range(5), 2, False),
            range(5),
            [3, 4],
            type("Mine", (RandomSampler,), {})(range(5)),
        ],
    )
    def test_any_other_is_read(self, sampler: object) -> None:
        assert order_of(sampler, 7) is None

    def test_an_order_keeps_what_its_sampler_had(self) -> None:
        indices = np.array([1, 2, 3])
        sampler = SubsetRandomSampler(indices)
        order = order_of(sampler, 7)
        assert order == order_of(sampler, 7)
        indices[0] = 9
        assert order is not None
        assert sorted(order.at(0, np.arange(3)).tolist()) == [1, 2, 3]
        assert order != order_of(sampler, 7)

    def test_weights_that_were_spoilt_are_refused(self) -> None:
        sampler = WeightedRandomSampler([1, 2], 2)
        sampler.weights[0] = -1
        with pytest.raises(ValueError, match="weight 0 is -1"):
            order_of(sampler, 7)
