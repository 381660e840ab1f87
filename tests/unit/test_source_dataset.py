"""Datasets with keys, streams, and what is put together from them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from penstock.source._array import ArrayDataset
from penstock.source._dataset import (
    ChainDataset,
    ChainItem,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    random_split,
)


def items(dataset: Any) -> list[Any]:
    """All samples, by the IndexError that ends a plain iteration."""
    return list(dataset)


class Tens(Dataset[int]):
    """Key times ten, one by one."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if not -self.n <= index < self.n:
            raise IndexError(index)
        return index % self.n * 10


class Bulk(Tens):
    """The same, many at once; it notes what it was asked for."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.asked: list[Any] = []

    def __getitems__(self, keys: Sequence[int]) -> list[int]:
        self.asked.append(keys)
        return [self[key] for key in keys]


class Short(Tens):
    """A dataset whose __getitems__ forgets one."""

    def __getitems__(self, keys: Sequence[int]) -> list[int]:
        return [self[key] for key in keys[1:]]


class Stream(IterableDataset[int]):
    def __init__(self, *items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


class Heavy(Stream):
    def load(self, item: int) -> str:
        return f"loaded {item}"


class SizedStream(Stream):
    def __len__(self) -> int:
        return len(self.items)


class TestDataset:
    def test_getitem_and_iter_must_be_defined(self) -> None:
        class Mine(Dataset[int]):
            pass

        class Mystream(IterableDataset[int]):
            pass

        with pytest.raises(NotImplementedError, match="Mine must define __getitem__"):
            Mine()[0]
        with pytest.raises(NotImplementedError, match="Mystream must define __iter__"):
            iter(Mystream())

    def test_there_is_no_default_length_and_no_default_shortcut(self) -> None:
        for plain in (Dataset[int](), IterableDataset[int]()):
            with pytest.raises(TypeError):
                len(plain)  # type: ignore[arg-type]
            for name in ("__getitems__", "__gather__", "load"):
                assert not hasattr(plain, name)

    def test_plus_puts_one_after_the_other(self) -> None:
        joined = Tens(2) + Tens(1) + [7]
        assert isinstance(joined, ConcatDataset)
        assert items(joined) == [0, 10, 0, 7]
        chained = Stream(1) + Stream(2, 3)
        assert isinstance(chained, ChainDataset)
        assert list(chained) == [1, 2, 3]


class TestConcatDataset:
    def test_keys_run_on_through_all_parts_empty_ones_too(self) -> None:
        parts: list[Any] = [[], Tens(3), [], np.array([7, 8]), "x", []]
        joined = ConcatDataset(parts)
        assert len(joined) == 6
        assert joined.cumulative_sizes == [0, 3, 3, 5, 6, 6]
        assert [joined[key] for key in range(6)] == [0, 10, 20, 7, 8, "x"]
        assert [joined[key] for key in range(-6, 0)] == [0, 10, 20, 7, 8, "x"]

    def test_a_key_outside_is_an_error_that_names_it(self) -> None:
        joined = ConcatDataset([[1], [2]])
        with pytest.raises(IndexError, match="key 2 is outside a ConcatDataset of 2"):
            joined[2]
        with pytest.raises(ValueError, match="key -3 is outside a ConcatDataset of 2"):
            joined[-3]
        with pytest.raises(IndexError, match="key 5"):
            joined.__getitems__([0, 5])

    def test_each_part_is_asked_once_with_its_own_keys(self) -> None:
        parts = [Bulk(3), Tens(3), Bulk(3), Bulk(3)]
        joined = ConcatDataset(parts)
        assert joined.__getitems__([7, 0, 4, 2, 6, -4, 0]) == [10, 0, 10, 20, 0, 20, 0]
        assert parts[0].asked == [[0, 2, 0]]  # type: ignore[attr-defined]
        assert parts[2].asked == [[1, 0, 2]]  # type: ignore[attr-defined]
        assert parts[3].asked == []  # type: ignore[attr-defined]

    def test_an_array_of_keys_reaches_the_parts_as_python_ints(self) -> None:
        part = Bulk(3)
        assert ConcatDataset([part]).__getitems__(np.array([2, 1])) == [20, 10]  # type: ignore[arg-type]
        assert {type(key) for key in part.asked[0]} == {int}

    def test_nothing_and_streams_are_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            ConcatDataset([])
        with pytest.raises(TypeError, match=r"dataset 1 is a stream .Stream.* ChainDataset"):
            ConcatDataset[int]([[1], Stream(1)])

    def test_a_part_that_returns_too_few_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"Short.__getitems__ returned 1 sample for 2 keys"):
            ConcatDataset([Short(3)]).__getitems__([0, 1])


class TestChainDataset:
    def test_streams_are_opened_when_their_turn_comes(self) -> None:
        opened = []

        class Noting(Stream):
            def __iter__(self) -> Iterator[int]:
                opened.append(self.items)
                return super().__iter__()

        chain = iter(ChainDataset([Noting(1), Noting(2)]))
        assert next(chain) == 1
        assert opened == [(1,)]
        assert list(chain) == [2]

    def test_every_epoch_reads_all_again_also_when_given_as_a_generator(self) -> None:
        chain = ChainDataset(Stream(n) for n in range(3))
        assert list(chain) == list(chain) == [0, 1, 2]

    def test_its_length_is_the_sum_where_all_have_one(self) -> None:
        assert len(ChainDataset([SizedStream(1), SizedStream(2, 3)])) == 3
        with pytest.raises(TypeError):
            len(ChainDataset([SizedStream(1), Stream(2)]))

    def test_what_cannot_be_iterated_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"dataset 1 is a Tens.*ConcatDataset"):
            ChainDataset([Stream(1), Tens(3)])  # type: ignore[arg-type]

    def test_it_loads_only_where_one_of_its_streams_does(self) -> None:
        assert not hasattr(ChainDataset([Stream(1)]), "load")
        assert hasattr(ChainDataset([Stream(1), Heavy(2)]), "load")

    def test_each_item_is_loaded_by_the_stream_it_came_from(self) -> None:
        class Other(Heavy):
            def load(self, item: int) -> str:
                return f"other {item}"

        chain = ChainDataset([Heavy(1), Stream(2), Other(3), ChainDataset([Heavy(4)])])
        links: list[Any] = list(chain)
        assert links[:2] == [ChainItem(0, 1), ChainItem(1, 2)]
        shipped = pickle.loads(pickle.dumps(links))
        assert [chain.load(item) for item in shipped] == ["loaded 1", 2, "other 3", "loaded 4"]


class TestSubset:
    @pytest.mark.parametrize("indices", [[4, 0, 4], (4, 0, 4), np.array([4, 0, 4]), range(4, -1, -2)])
    def test_samples_come_in_the_order_of_the_indices(self, indices: Any) -> None:
        subset = Subset(Tens(5), indices)
        expected = [index * 10 for index in indices]
        assert items(subset) == expected
        assert subset.__getitems__([0, 1, 2]) == expected
        assert subset[-1] == expected[-1]

    def test_a_nested_subset_asks_the_innermost_dataset_once(self) -> None:
        inner = Bulk(10)
        subset = Subset(Subset(inner, [9, 8, 7, 6]), np.array([3, 0]))
        assert subset.__getitems__([1, 0]) == [90, 60]
        assert inner.asked == [[9, 6]]

    @pytest.mark.parametrize("indices", [[2, 1], np.array([2, 1])])
    def test_the_dataset_is_asked_with_python_ints(self, indices: Any) -> None:
        seen = []

        class Noting(Tens):
            def __getitem__(self, index: int) -> int:
                seen.append(type(index))
                return super().__getitem__(index)

        subset = Subset(Noting(3), indices)
        subset[0]
        subset.__getitems__([0, 1])
        assert set(seen) == {int}

    def test_a_list_of_keys_is_handed_to_a_dataset_that_takes_lists(self) -> None:
        assert Subset(np.arange(10) * 10, [5, 6, 7])[[0, 2]].tolist() == [50, 70]

    def test_keys_need_not_be_integers(self) -> None:
        assert items(Subset({"a": 1, "b": 2}, ["b", "a"])) == [2, 1]

    def test_it_gathers_where_its_dataset_does(self) -> None:
        columns = ArrayDataset(np.arange(10) * 10)
        nested = Subset(Subset(columns, np.arange(9, -1, -1)), [3, 4, 5])
        assert nested.__gather__(np.array([2, 0]), np.empty).tolist() == [40, 60]
        assert not hasattr(Subset(Tens(3), [0]), "__gather__")


class Doubled(Subset[int]):
    """Redefines the way to one sample, and nothing else."""

    def __getitem__(self, index: Any) -> int:
        return super().__getitem__(index) * 2


class TestRedefinedGetitem:
    """A transform in `__getitem__` must not be passed by through a shortcut of the base class."""

    def test_it_switches_our_shortcuts_off(self) -> None:
        doubled = Doubled(ArrayDataset(np.arange(5)), [3, 4])
        assert doubled[0] == 6
        assert doubled.__getitems__ is None
        assert doubled.__gather__ is None
        # and so does a dataset built on it
        assert not hasattr(Subset(doubled, [0]), "__gather__")
        assert Subset(doubled, [1]).__getitems__([0]) == [8]
        assert ConcatDataset([doubled]).__getitems__([0]) == [6]
        assert StackDataset(doubled).__getitems__([0]) == [(6,)]

    def test_it_does_so_from_a_mixin_too(self) -> None:
        class Negative:
            def __getitem__(self, index: int) -> Any:
                return -super().__getitem__(index)  # type: ignore[misc]

        class Mine(Negative, ArrayDataset):
            pass

        mine = Mine(np.arange(5))
        assert mine[2] == -2
        assert mine.__getitems__ is None
        assert mine.__gather__ is None

    def test_a_redefined_getitems_switches_gather_off(self) -> None:
        class Mine(ArrayDataset):
            def __getitems__(self, keys: Sequence[int]) -> list[Any]:
                return [0 for _ in keys]

        assert Mine(np.arange(5)).__gather__ is None
        assert Mine(np.arange(5)).__getitems__([1]) == [0]

    def test_shortcuts_that_the_user_wrote_stay(self) -> None:
        class Louder(Bulk):
            def __getitem__(self, index: int) -> int:
                return super().__getitem__(index) + 1

        class Own(ArrayDataset):
            def __getitem__(self, index: Any) -> Any:
                return 1

            def __gather__(self, keys: Any, empty: Any) -> Any:
                return np.ones(len(keys), dtype=np.int64)

        assert Louder(3).__getitems__([1]) == [11]
        assert Own(np.arange(3)).__gather__([0], np.empty).tolist() == [1]

    def test_a_subclass_that_redefines_neither_keeps_them(self) -> None:
        class Mine(ArrayDataset):
            def __len__(self) -> int:
                return 2

        assert Mine(np.arange(5)).__gather__([1], np.empty).tolist() == [1]


class TestStackDataset:
    def test_samples_are_tuples_or_dicts(self) -> None:
        assert StackDataset(Tens(2), "ab")[1] == (10, "b")
        assert StackDataset(x=Tens(2), y="ab")[1] == {"x": 10, "y": "b"}
        assert len(StackDataset(Tens(2), "ab")) == 2

    def test_many_keys_ask_each_part_once(self) -> None:
        bulk = Bulk(5)
        assert StackDataset(bulk, "abcde").__getitems__([3, 1]) == [(30, "d"), (10, "b")]
        assert StackDataset(n=bulk, c="abcde").__getitems__([3, 1])[1] == {"n": 10, "c": "b"}
        assert bulk.asked == [[3, 1], [3, 1]]

    def test_a_part_that_returns_too_few_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"Short.__getitems__ returned 1 sample for 2 keys"):
            StackDataset(Tens(3), Short(3)).__getitems__([0, 1])

    @pytest.mark.parametrize(
        ("args", "kwargs", "message"),
        [
            ((), {}, "at least one dataset"),
            (("a",), {"y": "b"}, r"1 by position and \['y'\] by name"),
            (("ab", "abc"), {}, r"equal length, but their lengths are \[2, 3\]"),
            ((), {"x": "ab", "y": "abc"}, r"equal length, but their lengths are \[2, 3\]"),
        ],
    )
    def test_wrong_parts_are_refused(self, args: Any, kwargs: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            StackDataset(*args, **kwargs)


class TestRandomSplit:
    def test_every_sample_is_in_one_part(self) -> None:
        parts = random_split(Tens(10), [3, 7])
        assert [len(part) for part in parts] == [3, 7]
        assert sorted(sample for part in parts for sample in items(part)) == list(range(0, 100, 10))

    def test_equal_generators_split_equally(self) -> None:
        def split(seed: int) -> list[list[int]]:
            return [items(part) for part in random_split(range(50), [0.5, 0.5], np.random.default_rng(seed))]

        assert split(1) == split(1) != split(2)

    def test_without_a_generator_it_differs_each_time(self) -> None:
        splits = [items(random_split(range(50), [25, 25])[0]) for _ in range(2)]
        assert splits[0] != splits[1]

    def test_an_empty_part_of_a_fraction_is_warned_about(self) -> None:
        with pytest.warns(UserWarning, match="part 2 of random_split is empty: 0.1 of 3") as caught:
            parts = random_split(range(3), [0.5, 0.4, 0.1])
        assert [len(part) for part in parts] == [2, 1, 0]
        assert caught[0].filename == __file__

    def test_an_empty_dataset_splits_into_empty_parts(self) -> None:
        assert [len(part) for part in random_split("", [0, 0])] == [0, 0]

    def test_a_sum_of_fractions_that_rounding_made_too_large_is_accepted(self) -> None:
        fractions = [0.7000000000000002, 0.3]
        assert sum(fractions) > 1
        assert [len(part) for part in random_split(range(10), fractions)] == [7, 3]

    @pytest.mark.parametrize(
        ("lengths", "message"),
        [
            ([3, 6], r"10 samples, but \[3, 6\] sum to 9"),
            ([12, -2], "lengths of 0 or more"),
            ([0.5, 0.4], "sum to 0.9"),
            ([1.5, -0.5], "number 0 is 1.5"),
            ([1], "sum to 1. For fractions pass floats"),
            ([], "sum to 0"),
        ],
    )
    def test_wrong_lengths_are_refused(self, lengths: list[float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            random_split(range(10), lengths)

    def test_a_foreign_generator_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"penstock\.torch"):
            random_split(range(10), [10], np.random.RandomState(0))  # type: ignore[arg-type]


@pytest.mark.imports_torch
class TestBesideTorch:
    @pytest.fixture
    def theirs(self) -> Any:
        pytest.importorskip("torch")
        import torch.utils.data

        return torch.utils.data

    @pytest.mark.filterwarnings("ignore:Length of split", "ignore:part . of random_split")
    @pytest.mark.parametrize("lengths", [[0.5, 0.5], [0.3, 0.3, 0.4], [0.9, 0.1], [1 / 3, 1 / 3, 1 / 3]])
    def test_fractions_give_equal_lengths(self, theirs: Any, lengths: list[float]) -> None:
        for n in range(1, 40):
            ours, other = random_split(range(n), lengths), theirs.random_split(range(n), lengths)
            assert [len(part) for part in ours] == [len(part) for part in other]

    def test_concatenated_keys_are_equal(self, theirs: Any) -> None:
        parts = [[], [1, 2], [], [3], []]
        ours, other = ConcatDataset(parts), theirs.ConcatDataset(parts)
        assert ours.cumulative_sizes == other.cumulative_sizes
        for key in range(-5, 5):
            assert outcome(ours, key) == outcome(other, key)

    def test_stacks_and_subsets_are_equal(self, theirs: Any) -> None:
        for args, kwargs in (((Bulk(5), "abcde"), {}), ((), {"x": Tens(5), "y": "abcde"})):
            ours, other = StackDataset(*args, **kwargs), theirs.StackDataset(*args, **kwargs)
            assert ours.__getitems__([3, 1]) == other.__getitems__([3, 1])
            assert ours[2] == other[2]
            chosen, chosen_there = Subset(ours, [4, 2]), theirs.Subset(other, [4, 2])
            assert chosen.__getitems__([1, 0]) == chosen_there.__getitems__([1, 0])
            assert chosen[-1] == chosen_there[-1]

    def test_a_torch_stream_is_a_stream_here_too(self, theirs: Any) -> None:
        class Theirs(theirs.IterableDataset):  # type: ignore[misc]
            def __iter__(self) -> Iterator[int]:
                return iter((1, 2))

        with pytest.raises(TypeError, match="is a stream"):
            ConcatDataset([Theirs()])
        assert list(ChainDataset[int]([Theirs(), Stream(3)])) == [1, 2, 3]


def outcome(dataset: Any, key: int) -> Any:
    try:
        return dataset[key]
    except (IndexError, ValueError) as error:
        return type(error)


law = settings(deadline=None)
PARTS = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=5)


@law
@given(parts=PARTS, data=st.data())
def test_many_keys_of_a_concatenation_equal_one_by_one(parts: list[tuple[bool, int]], data: st.DataObject) -> None:
    joined = ConcatDataset([(Bulk if bulk else Tens)(n) for bulk, n in parts])
    n = len(joined)
    keys = data.draw(st.lists(st.integers(-n, n - 1), max_size=20)) if n else []
    assert joined.__getitems__(keys) == [joined[key] for key in keys]


@law
@given(n=st.integers(1, 20), as_array=st.booleans(), bulk=st.booleans(), data=st.data())
def test_many_keys_of_a_subset_equal_one_by_one(n: int, as_array: bool, bulk: bool, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=20))
    subset = Subset((Bulk if bulk else Tens)(n), np.array(indices) if as_array else indices)
    keys = data.draw(st.lists(st.integers(-len(indices), len(indices) - 1), max_size=20))
    assert subset.__getitems__(keys) == [subset[key] for key in keys]


@law
@given(n=st.integers(0, 200), weights=st.lists(st.integers(1, 9), min_size=1, max_size=6))
@pytest.mark.filterwarnings("ignore:part . of random_split is empty")
def test_a_split_is_a_partition_whose_parts_are_off_by_less_than_the_number_of_parts(
    n: int, weights: list[int]
) -> None:
    fractions = [weight / sum(weights) for weight in weights]
    parts = random_split(range(n), fractions)
    assert sorted(sample for part in parts for sample in items(part)) == list(range(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - n * fraction) < len(parts)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ConcatDataset([[1], 2]), "ConcatDataset needs datasets with .*, but dataset 1 is 2"),  # type: ignore[list-item]
        (lambda: ConcatDataset(5), "ConcatDataset needs a list of datasets, but got 5"),  # type: ignore[arg-type]
        (lambda: ChainDataset(None), "ChainDataset needs a list of datasets, but got None"),  # type: ignore[arg-type]
        (lambda: StackDataset(1, 2), "StackDataset needs datasets with .*, but dataset 0 is 1"),
        (lambda: StackDataset(a=object()), "dataset 'a' is a value of type object"),
        (lambda: Subset(5, [0]), "Subset needs a dataset with __getitem__, but got 5"),  # type: ignore[arg-type]
        (lambda: Subset("ab", 1), "Subset needs a list or an array of indices, but got 1"),  # type: ignore[arg-type]
        (lambda: random_split(5, [1]), "random_split needs datasets with .*, but dataset is 5"),  # type: ignore[arg-type]
        (lambda: random_split("ab", 2), "needs a list of lengths or of fractions, .* got 2"),  # type: ignore[arg-type]
        (lambda: random_split("ab", ["a"]), "needs a list of lengths"),  # type: ignore[list-item]
        (lambda: RandomSampler(5), r"RandomSampler needs a dataset .* is 5, which has no length\. Pass range"),  # type: ignore[arg-type]
        (lambda: SequentialSampler(None), "SequentialSampler needs a dataset"),  # type: ignore[arg-type]
        (lambda: SubsetRandomSampler(5), "SubsetRandomSampler needs .* indices is 5"),  # type: ignore[arg-type]
        (lambda: DistributedSampler(5, 2, 0), "DistributedSampler needs .* dataset is 5"),  # type: ignore[arg-type]
        (lambda: BatchSampler(5, 2, False), "BatchSampler needs an iterable of keys, but sampler is 5"),  # type: ignore[arg-type]
        (lambda: penstock.open(None), "penstock.open takes a path .* but got None"),  # type: ignore[arg-type]
        (lambda: penstock.open([None]), "penstock.open takes a path .* but got None"),  # type: ignore[list-item]
        (lambda: penstock.formats.Megatron(5), "Megatron takes a path .* but got 5"),  # type: ignore[arg-type]
        (lambda: list(DataLoader([1, 2], batch_sampler=[[0], 1])), "batch_sampler must yield lists .* batch 1 is 1"),  # type: ignore[list-item]
    ],
)
def test_a_wrong_argument_is_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()
