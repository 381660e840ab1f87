"""Samplers with the names that torch users know, for programs that compose samplers by hand.

`DataLoader(shuffle=True)` uses an order instead (see `_order.py`), which can be resumed at any step. If a sampler of
this module has no generator, the loader replaces it with such an order, based on the loader's seed (see `order_of`).
No sampler builds a list of all keys: every sampler computes `KEYS_AT_ONCE` keys at a time, during iteration.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.plan._blocks import WINDOW, BlockOrder
from penstock.plan._order import Drawn, Order, Permutation, Selected, Sequential, Shuffled, Weighted
from penstock.plan._seeds import check_generator, draw_key, mix

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Keys computed in one numpy call. A call costs as much as some 500 keys, so small steps share one.
KEYS_AT_ONCE = 4096


class Sampler(Generic[T_co]):
    """The base class of samplers. `__iter__` yields keys, or lists of keys for a batch sampler.

    Deriving from it is optional, because a loader takes any iterable. There is no default `__len__`; without one,
    `len(loader)` raises TypeError.

    >>> import penstock
    >>> class EveryOther(penstock.Sampler):
    ...     def __iter__(self):
    ...         return iter(range(0, 6, 2))
    >>> [batch.item() for batch in penstock.DataLoader(range(10, 16), sampler=EveryOther())]
    [10, 12, 14]
    """

    def __init__(self, data_source: object = None) -> None:
        # Older torch programs pass the data source to super().__init__; it is not used.
        pass

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__, which yields the keys.")


class SequentialSampler(Sampler[int]):
    """The keys 0 to n-1 in order. Each `iter()` reads n again.

    >>> list(SequentialSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        _check_sized("SequentialSampler", "data_source", data_source)
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Keys in random order. Each `iter()` gives a new order.

    Without replacement, every key is drawn once before any key is drawn again, until there are `num_samples` keys.
    With replacement, each draw is from all keys. `num_samples` is `len(data_source)` by default. Each `iter()` draws
    a seed from `generator`, or from numpy's global state if there is no generator. (A `DataLoader` uses its own seed
    in place of a missing generator.)

    >>> sorted(RandomSampler("abcd", generator=np.random.default_rng(0)))
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, but it is {replacement!r}.")
        check_generator(generator)
        _check_sized("RandomSampler", "data_source", data_source)
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = None if num_samples is None else positive("num_samples", num_samples)
        if self.num_samples == 0:
            cause = "by default it is len(data_source), and the data source is empty. Check that the data was found"
            raise ValueError(f"num_samples must be a positive integer, but it is 0: {cause}.")

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n, count = len(self.data_source), self.num_samples
        if n == 0 and count:
            raise ValueError(f"{count} samples cannot be drawn from an empty data source.")
        if self.replacement:
            generator = _generator(self.generator)
            return _one_by_one(generator.integers(0, n, size=positions.size) for positions in _positions(count))
        return _one_by_one(self._without_replacement(n, count, draw_key(self.generator)))

    @staticmethod
    def _without_replacement(n: int, count: int, key: int) -> Iterator[NDArray[np.int64]]:
        for turn, first in enumerate(range(0, count, max(n, 1))):
            permutation = Permutation(n, mix(key, turn))
            yield from (permutation.at(block) for block in _positions(min(n, count - first)))

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[T]):
    """The given indices in random order. Each `iter()` gives a new order.

    >>> sorted(SubsetRandomSampler([3, 5, 8]))
    [3, 5, 8]
    """

    def __init__(self, indices: Sequence[T], generator: np.random.Generator | None = None) -> None:
        check_generator(generator)
        _check_sized("SubsetRandomSampler", "indices", indices)
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[T]:
        n, indices = len(self.indices), self.indices
        permutation = Permutation(max(n, 1), draw_key(self.generator))
        at = (permutation.at(positions) for positions in _positions(n))
        if isinstance(indices, np.ndarray):
            return _one_by_one(indices[positions] for positions in at)
        return (indices[i] for i in _one_by_one(at))

    def __len__(self) -> int:
        return len(self.indices)


class BlockSampler(Sampler[int]):
    """Keys in a random order that needs few blocks at a time. Each `iter()` gives a new order.

    `blocks` has the first key of each block, and the end of the last block. `window` is the number of blocks that a
    reader holds at a time. For a dataset that has `blocks` itself, `DataLoader(dataset, shuffle="blocks")` does the
    same. `generator` is used as in `RandomSampler`.

    >>> keys = list(BlockSampler(range(0, 101, 10), window=3, generator=np.random.default_rng(0)))
    >>> sorted(keys) == list(range(100)), len({key // 10 for key in keys[:10]})
    (True, 2)
    """

    def __init__(self, blocks: ArrayLike, window: int = WINDOW, generator: np.random.Generator | None = None) -> None:
        check_generator(generator)
        self.window, self.generator = positive("window", window), generator
        self.blocks = BlockOrder(np.asarray(blocks), self.window, seed=0).edges  # checks them

    def __iter__(self) -> Iterator[int]:
        order = BlockOrder(self.blocks, self.window, draw_key(self.generator))
        return _one_by_one(order.at(0, positions) for positions in _positions(len(self)))

    def __len__(self) -> int:
        return self.blocks.item(-1)


class WeightedRandomSampler(Sampler[int]):
    """Keys drawn with a probability proportional to their weight.

    Without replacement, a key is drawn at most once, and each draw is among the remaining keys. Each `iter()` reads
    the weights, which costs O(n). The weights need not sum to one.

    >>> set(WeightedRandomSampler([0, 1, 3], num_samples=20)) <= {1, 2}
    True
    """

    def __init__(
        self,
        weights: ArrayLike,
        num_samples: int,
        replacement: bool = True,
        generator: np.random.Generator | None = None,
    ) -> None:
        if not isinstance(replacement, bool):
            # ValueError here and TypeError in RandomSampler, as in torch: programs catch them by type.
            raise ValueError(f"replacement must be True or False, but it is {replacement!r}.")
        check_generator(generator)
        self.weights: NDArray[np.float64] = np.asarray(weights, dtype=np.float64)
        self.num_samples = positive("num_samples", num_samples)
        self.replacement, self.generator = replacement, generator
        self._check()

    def _check(self) -> None:
        weights = self.weights
        if weights.ndim != 1:
            raise ValueError(f"weights must have one axis, but their shape is {weights.shape}.")
        bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if bad.size:
            raise ValueError(
                f"weights must be finite and not negative, but weight {bad[0]} is {weights[bad[0]]} "
                f"({bad.size} of {weights.size} are wrong)."
            )
        positives = np.count_nonzero(weights)
        if positives == 0:
            raise ValueError(f"at least one of the {weights.size} weights must be above zero.")
        if not self.replacement and positives < self.num_samples:
            raise ValueError(
                f"num_samples={self.num_samples} keys cannot be drawn without replacement: only {positives} "
                f"of {weights.size} weights are above zero. Draw fewer, or pass replacement=True."
            )

    def __iter__(self) -> Iterator[int]:
        self._check()
        generator = _generator(self.generator)
        if self.replacement:
            return self._with_replacement(generator)
        return iter(self._without_replacement(generator).tolist())

    def _with_replacement(self, generator: np.random.Generator) -> Iterator[int]:
        edges = np.cumsum(self.weights)
        # With weights near the smallest float the product can round up to the last edge, which has no key.
        last = np.flatnonzero(self.weights)[-1]
        points = (generator.random(block.size) * edges[-1] for block in _positions(self.num_samples))
        return _one_by_one(np.minimum(np.searchsorted(edges, at, side="right"), last) for at in points)

    def _without_replacement(self, generator: np.random.Generator) -> NDArray[np.int64]:
        # Exponential waiting times with the weights as rates: the shortest is a draw by weight, and so is
        # the next among the remaining keys.
        keys = np.flatnonzero(self.weights)
        waiting = generator.standard_exponential(keys.size) / self.weights[keys]
        first: NDArray[np.int64] = np.argpartition(waiting, self.num_samples - 1)[: self.num_samples]
        return keys[first[np.argsort(waiting[first])]]

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[T]]):
    """Lists of `batch_size` keys from any iterable of keys, which is read only when a list is needed.

    >>> list(BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[T], batch_size: int, drop_last: bool) -> None:
        # One of them is enough for iter().
        if not hasattr(sampler, "__iter__") and not hasattr(sampler, "__getitem__"):
            raise TypeError(f"BatchSampler needs an iterable of keys, but sampler is {sampler!r}.")
        self.batch_size = positive("batch_size", batch_size)
        self.drop_last = check_drop_last(drop_last)
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[T]]:
        return group(iter(self.sampler), self.batch_size, self.drop_last)

    def __len__(self) -> int:
        # Raises TypeError if the sampler has no length, as len() does.
        return batches(len(self.sampler), self.batch_size, self.drop_last)  # type: ignore[arg-type]


class DistributedSampler(Sampler[int]):
    """The keys of one rank: every `num_replicas`-th key of an order that is the same on all ranks.

    All ranks get the same number of keys. If the keys do not divide evenly, the first keys are repeated or, with
    `drop_last`, the last keys are left out. The order is determined by (seed, epoch), so call `set_epoch` before each
    epoch. `num_replicas` and `rank` default to the environment variables WORLD_SIZE and RANK, which launchers set.

    >>> [list(DistributedSampler(range(5), num_replicas=2, rank=r, shuffle=False)) for r in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        num_replicas = _given("num_replicas", num_replicas, "WORLD_SIZE")
        rank = _given("rank", rank, "RANK")
        self.num_replicas = positive("num_replicas", num_replicas)
        if not 0 <= rank < self.num_replicas:
            raise ValueError(f"rank must be 0 to {num_replicas - 1} (num_replicas - 1), but it is {rank}.")
        _check_sized("DistributedSampler", "dataset", dataset)
        self.rank, self.dataset, self.shuffle = rank, dataset, shuffle
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    @property
    def num_samples(self) -> int:
        """The number of keys that each rank gets."""
        return batches(len(self.dataset), self.num_replicas, self.drop_last)

    @property
    def total_size(self) -> int:
        """The number of keys for all ranks together. A repeated key counts each time."""
        return self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch for the next `iter()`. With `shuffle`, each epoch has another order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        n, epoch = len(self.dataset), self.epoch
        order: Order = Shuffled(n, self.seed) if self.shuffle else Sequential(n)
        at = ((positions * self.num_replicas + self.rank) % n for positions in _positions(self.num_samples))
        return _one_by_one(order.at(epoch, positions) for positions in at)

    def __len__(self) -> int:
        return self.num_samples


def order_of(sampler: object, seed: int) -> Order | None:
    """Returns the order that replaces a penstock sampler, or None if the sampler must be iterated over."""
    # A subclass may yield anything, and a generator is the caller's own randomness: both must be iterated.
    if type(sampler) is SequentialSampler:
        return Sequential(len(sampler))
    if getattr(sampler, "generator", None) is not None:
        return None
    if type(sampler) is RandomSampler:
        n, count = len(sampler.data_source), sampler.num_samples
        if n == 0:
            return None
        if sampler.replacement:
            return Drawn(n, count, seed)
        return Shuffled(n, seed, None if count == n else count)
    if type(sampler) is BlockSampler:
        return BlockOrder(sampler.blocks, sampler.window, seed)
    if type(sampler) is WeightedRandomSampler and sampler.replacement:
        sampler._check()
        return Weighted.by(sampler.weights, sampler.num_samples, seed)
    if type(sampler) is SubsetRandomSampler:
        keys = _as_keys(sampler.indices)
        return None if keys is None else Selected(Shuffled(len(keys), seed), keys)
    return None


def _as_keys(indices: object) -> NDArray[np.int64] | range | None:
    """Returns the indices as keys, or None if they are not all non-negative integers."""
    if isinstance(indices, range):
        ends = (indices[0], indices[-1]) if indices else (0,)
        return indices if min(ends) >= 0 and max(ends) < 1 << 62 else None
    try:
        found = np.asarray(indices)  # a list of numpy integers, or a tensor, too
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            return None
        keys = found.astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    return keys if not keys.size or keys.min() >= 0 else None


def positive(name: str, value: object) -> int:
    if not isinstance(value, (bool, np.bool_)) and hasattr(value, "__index__"):
        number = operator.index(value)
        if number > 0:
            return number
    raise ValueError(f"{name} must be a positive integer, but it is {value!r}.")


def _check_sized(taker: str, name: str, value: object) -> None:
    if not hasattr(value, "__len__"):
        kind = f"{value!r}, which has no length"
        raise TypeError(
            f"{taker} needs a dataset or another sequence, but {name} is {kind}. Pass range(n) for n keys."
        )


def check_drop_last(value: object) -> bool:
    """Returns the value if it is a bool. Otherwise raises ValueError: a misplaced batch size would count as True."""
    if not isinstance(value, bool):
        raise ValueError(f"drop_last must be True or False, but it is {value!r}.")
    return value


def batches(n: int, size: int, drop_last: bool) -> int:
    """Returns the number of batches that n samples make. An incomplete last batch counts unless it is dropped."""
    return n // size if drop_last else -(-n // size)


def group(keys: Iterator[T], size: int, drop_last: bool) -> Iterator[list[T]]:
    while (batch := list(islice(keys, size))) and (len(batch) == size or not drop_last):
        yield batch


def _positions(count: int) -> Iterator[NDArray[np.int64]]:
    return (np.arange(start, min(start + KEYS_AT_ONCE, count)) for start in range(0, count, KEYS_AT_ONCE))


def _one_by_one(blocks: Iterable[NDArray[Any]]) -> Iterator[Any]:
    return chain.from_iterable(block.tolist() for block in blocks)


def _generator(generator: np.random.Generator | None) -> np.random.Generator:
    return np.random.default_rng(draw_key(None)) if generator is None else generator


def _given(name: str, number: int | None, variable: str) -> int:
    """Returns `number` or, if it is None, the value of the environment variable `variable`."""
    if number is not None:
        return number
    value = os.environ.get(variable)
    if value is None:
        raise RuntimeError(
            f"DistributedSampler does not know {name}: it was not given, and the environment variable {variable} is "
            f"not set. Pass {name}=, or start the program with a launcher that sets it (torchrun does)."
        )
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} is the environment variable {variable}, but {value!r} is not an integer.") from None
