"""Mixtures: several datasets, each with a share of the samples. The order of a mixture is in `plan/_mixture.py`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import among
from penstock._fill.cast import FieldMemory
from penstock.plan._grouping import Grouping
from penstock.plan._mixture import EqualEpochs, MixtureOrder, Stage, Stop, whole_weights
from penstock.plan._order import ENDLESS
from penstock.random import each
from penstock.source._dataset import Dataset, fetch, is_stream, mistaken, mistaken_keys, not_missing
from penstock.source._nested import (
    Lengths,
    Views,
    foresee_of,
    gathers_numpy,
    grouping_of,
    is_of_numpy,
    keys_in_order,
    lengths_within,
    method_of,
    shown,
)
from penstock.source._stages import SameKeys, dataset, noted

Unit = Literal["samples", "tokens"]


class MixtureDataset(Dataset[Any]):
    """Several datasets, mixed by weight: see `penstock.mix`."""

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float],
        *,
        unit: Unit = "samples",
        stop: Stop | int = "never",
        shuffle: bool = True,
        seed: int | None = None,
        field: str | None = None,
    ) -> None:
        _check_options(sources, unit, stop)
        # By name, so that the order of the samples does not depend on the order in which sources are listed.
        self.names = tuple(sorted(sources))
        self.sources = tuple(_source(name, sources[name]) for name in self.names)
        self.unit, self.shuffled, self.field = unit, bool(shuffle), field
        self.stop: Stop | int = stop if isinstance(stop, str) else operator.index(stop)
        self.seed = None if seed is None else operator.index(seed)
        self.lengths = tuple(len(source) for source in self.sources)
        self._firsts = np.array([0, *accumulate(self.lengths)], np.int64)
        self.weights = self.checked(weights)
        self._tokens: dict[str, int] = {}
        self._summed: tuple[NDArray[np.int64], dict[str, int]] | None = None  # lengths, with the sum of each source

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_summed": None}

    @property
    def endless(self) -> bool:
        return self.stop == "never"

    def __len__(self) -> int:
        """Raises TypeError, because samplers of other libraries would mistake a length for the end of the keys."""
        raise TypeError(
            "a mixture has no len(), because its keys are no positions. len(loader) is the number of batches; for "
            "torch's own DataLoader use penstock.torch.DataLoader with seed=."
        )

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, keys_in_order(self))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            raise TypeError(
                "a mixture has no slices, because a key is no position. stop=1000 makes epochs of 1,000 samples."
            )
        ((part, _, (index,)),) = self._divided([key])
        return self._named(part, self._one(part, index))

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        samples: list[Any] = [None] * len(keys)
        for part, rows, inner in self._divided(keys):
            with among(rows, len(keys)):
                if method_of(self.sources[part], "__getitems__"):
                    found = self._noting(part, inner, lambda: fetch(self.sources[part], inner))  # noqa: B023
                else:
                    found = [self._one(part, key) for key in each(inner)]
            for row, sample in zip(rows, found, strict=True):
                samples[row] = self._named(part, sample)
        return samples

    def _named(self, part: int, sample: Any) -> Any:
        if self.field is None:
            return sample
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"field={self.field!r} needs samples that are dicts, but source {self.names[part]!r} gives "
                f"{type(sample).__name__}. Leave field= out: Batch.sources has the names, too."
            )
        if self.field in sample:
            raise ValueError(
                f"field={self.field!r} is the name of a field that the samples of source {self.names[part]!r} have "
                "already, which would be lost. Choose another name."
            )
        return {**sample, self.field: self.names[part]}

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """Gathers a batch from all sources.

        The attribute is missing if a source has no `__gather__`, or if the mixture adds a `field` to the samples.
        """
        if self.field is not None:
            raise AttributeError("a mixture that adds a field to its samples has no __gather__")
        gathers = [not_missing(method_of(source, "__gather__"), "__gather__") for source in self.sources]

        def gather(keys: Any, empty: Any) -> Any:
            return self._gather(gathers, keys, empty)

        return gathers_numpy(gather) if all(map(is_of_numpy, gathers)) else gather

    def _gather(self, gathers: Sequence[Callable[[Any, Any], Any]], keys: Any, empty: Any) -> Any:
        divided = self._divided(keys)
        if len(divided) == 1:
            ((part, _, inner),) = divided
            return gathers[part](np.array(inner, np.int64), empty)
        parts = [(rows, gathers[part](np.array(inner, np.int64), np.empty)) for part, rows, inner in divided]
        # Fields that are converted are converted afterwards, all sources together.
        return (
            _woven(parts, len(keys), np.empty if type(empty) is FieldMemory else empty) if parts else NotImplemented
        )

    @property
    def __views__(self) -> Views:
        """Returns views of samples from all sources.

        The attribute is missing if a source has no `__views__`, or if the mixture adds a `field` to the samples.
        """
        if self.field is not None:
            raise AttributeError("a mixture that adds a field to its samples has no __views__")
        return partial(self._views, [not_missing(method_of(each, "__views__"), "__views__") for each in self.sources])

    def _views(self, views: Sequence[Views], keys: Sequence[int]) -> dict[str, list[NDArray[Any]]] | None:
        parts = [(rows, views[part](inner)) for part, rows, inner in self._divided(keys)]
        found: dict[str, list[Any]] = {name: [None] * len(keys) for name in (parts and parts[0][1]) or ()}
        for rows, its in parts:
            if its is None or list(its) != list(found):
                return None
            for name, column in found.items():
                for row, array in zip(rows, its[name], strict=True):
                    column[row] = array
        return found

    @property
    def __foresee__(self) -> Callable[[Any], Any]:
        return not_missing(foresee_of(self))

    @property
    def __lengths__(self) -> Lengths:
        """Returns the lengths of all n samples, source by source. The length of key k is at index k % n.

        The attribute is missing if a source has no lengths.
        """
        return not_missing(lengths_within(self), "__lengths__")

    def names_of(self, keys: Any) -> list[str]:
        return [self.names[part] for part in self._parts(_checked_keys(keys))[0].tolist()]

    def locate(self, key: int) -> tuple[int, int]:
        """Returns the number of the source that the key belongs to, and the key of the sample in this source."""
        part, index = self._parts(_checked_keys([key]))
        return part.item(), index.item()

    @property
    def __mixture__(self) -> MixtureDataset:
        """The mixture itself. Datasets that wrap a mixture pass this attribute on."""
        return self

    def __order__(self, seed: int, window: int) -> MixtureOrder | EqualEpochs:
        """Returns the order of the keys under the mixture's initial weights."""
        return self.order(seed, window, (Stage(0, 0, self.shares(self.weights)),))

    def order(self, seed: int, window: int, stages: tuple[Stage, ...]) -> MixtureOrder | EqualEpochs:
        """Returns the order of the keys. If the mixture has its own seed, that seed replaces the loader's."""
        blocks = tuple(map(_grouping, self.sources)) if self.shuffled else ()
        own = seed if self.seed is None else self.seed
        labels = tuple(map(_label, self.names))
        stop: Stop = self.stop if isinstance(self.stop, str) else "never"
        order = MixtureOrder(self.lengths, stages, own, stop, self.shuffled, blocks, window, labels)
        return order if isinstance(self.stop, str) else EqualEpochs(order, self.stop)

    # For the history of the weights: see `WeightHistory`.

    def place(self, epoch: int, position: int) -> tuple[int, int]:
        """Converts an epoch and a position to the corresponding epoch and position in the `MixtureOrder`.

        If `stop` is a number, the `MixtureOrder` has a single epoch.
        """
        return (epoch, position) if isinstance(self.stop, str) else (0, epoch * self.stop + position)

    @property
    def has_blocks(self) -> bool:
        """True if the order of any source depends on its blocks."""
        return self.shuffled and any(_grouping(source) is not None for source in self.sources)

    def set_tokens(self, tokens: Mapping[str, int]) -> None:
        """Sets the token counts of sources whose lengths are not available."""
        self._tokens.update(tokens)

    def counts_of(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns how many of these keys belong to each source."""
        return np.bincount(self._parts(keys)[0], minlength=len(self.names))

    def mean_lengths(self, lengths: NDArray[np.int64] | None) -> list[float | None]:
        """Returns the mean length of the samples of each source. An unknown mean length is None.

        `lengths` has the lengths of all samples. If `lengths` is None, mean lengths are known only if `unit` is
        "tokens".
        """
        tokens = self._tokens
        if lengths is not None:
            summed = self._summed
            if summed is None or summed[0] is not lengths:
                parts = np.split(lengths, self._firsts[1:-1])
                summed = lengths, {name: int(part.sum()) for name, part in zip(self.names, parts, strict=True)}
                self._summed = summed
            tokens = summed[1]
        pairs = zip(self.names, self.lengths, strict=True)
        return [tokens[name] / length if name in tokens and length else None for name, length in pairs]

    def checked(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Checks the weights and returns them as floats, in the given order."""
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights must be a dict from names to numbers, but it is a {type(weights).__name__}.")
        lengths = dict(zip(self.names, self.lengths, strict=True))
        for name in weights:
            if name not in lengths:
                near = get_close_matches(str(name), self.names, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"They are {', '.join(map(repr, self.names))}."
                raise ValueError(f"weights has {name!r}, but the mixture has no source of this name. {hint}")
        missing = [name for name in self.names if name not in weights]
        if missing:
            raise ValueError(
                f"weights has nothing for source {missing[0]!r}. Give each source a weight, which may be 0."
            )
        for name, weight in weights.items():
            if not hasattr(weight, "__float__") and not hasattr(weight, "__index__"):  # such as "1"
                raise TypeError(f"a weight is a number of 0 or more, but that of source {name!r} is {weight!r}.")
        found = {name: float(weight) for name, weight in weights.items()}
        for name, weight in found.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"a weight is a number of 0 or more, but that of source {name!r} is {weight}.")
            if weight and not lengths[name]:
                raise ValueError(f"source {name!r} has no samples, but the weight {weight:g}. Give it weight 0.")
        if not any(found.values()):
            raise ValueError("all weights of the mixture are 0. At least one must be above 0.")
        return found

    def shares(self, weights: dict[str, float]) -> tuple[int, ...]:
        """Returns each source's share of the samples as an integer that is the same on all machines."""
        shares = [Fraction(weights[name]) for name in self.names]
        if self.unit == "tokens":
            # share of the tokens / mean length
            pairs = zip(shares, self.names, self.lengths, strict=True)
            shares = [share * length / self.tokens_of(name) if share else share for share, name, length in pairs]
        return whole_weights(shares)

    def tokens_of(self, name: str) -> int:
        if name not in self._tokens:
            source = self.sources[self.names.index(name)]
            lengths = lengths_within(source)
            if lengths is None:
                raise TypeError(
                    f'unit="tokens" needs the lengths of the samples, which are not known for source {name!r}, '
                    f"{shown(source)}. Give them, or a function that returns the length of a sample: "
                    f"penstock.dataset(source).with_lengths(len)."
                )
            total = int(np.sum(lengths(), dtype=np.int64))
            if not total:
                raise ValueError(
                    f'all samples of source {name!r} have the length 0, so unit="tokens" cannot be used.'
                )
            self._tokens[name] = total
        return self._tokens[name]

    # Keys.

    def _parts(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns, for each key, the number of its source and the key of the sample in that source."""
        inside = keys % self._firsts[-1]
        part = self._firsts.searchsorted(inside, "right") - 1
        return part, inside - self._firsts[part]

    def _divided(self, keys: Any) -> list[tuple[int, list[int], list[int]]]:
        """Groups the keys by source.

        For each source, returns (number of the source, rows of its samples, their keys in the source).
        """
        part, index = self._parts(_checked_keys(keys))
        rows = part.argsort(kind="stable")
        parts = part[rows]
        edges = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(rows)]
        found = []
        for begin, end in pairwise(edges if len(rows) else ()):
            some = rows[begin:end]
            found.append((part.item(some[0]), some.tolist(), index[some].tolist()))
        return found

    def _one(self, part: int, key: int) -> Any:
        return self._noting(part, [key], lambda: self.sources[part][key])

    def _noting(self, part: int, keys: list[int], read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            which = f"sample {keys[0]}" if len(keys) == 1 else f"one of the samples {keys!r:.200}"
            failed = noted(error, f"In {which} of source {self.names[part]!r}, {shown(self.sources[part])}.")
        try:
            raise failed
        finally:
            del failed  # its traceback refers to this frame

    def __repr__(self) -> str:
        options = [f"{name}={weight:g}" for name, weight in self.weights.items()]
        if self.unit == "tokens":
            options.append('unit="tokens"')
        return f"mix({', '.join(options)})"


def _check_options(sources: Any, unit: Any, stop: Any) -> None:
    if not isinstance(sources, Mapping):
        raise TypeError(f"mix() takes a dict from names to datasets, but got a {type(sources).__name__}.")
    if not sources:
        raise ValueError("mix() needs at least one source, but got none.")
    for name in sources:
        if not isinstance(name, str):
            raise TypeError(f"the name of a source is a str, but got {name!r}.")
    if unit not in ("samples", "tokens"):
        raise ValueError(f'unit must be "samples" or "tokens", got {unit!r}.')
    if isinstance(stop, str):
        is_right = stop in ("never", "first", "all")
    else:
        is_right = hasattr(stop, "__index__") and not isinstance(stop, bool) and 0 < operator.index(stop) < ENDLESS
    if not is_right:
        raise ValueError(
            f'stop must be "never", "first", "all", or the number of samples in an epoch (1 or more), got {stop!r}.'
        )


def _source(name: str, given: Any) -> Any:
    mistake = mistaken(given) or mistaken_keys(given)
    if mistake is not None:
        raise TypeError(f"source {name!r} {mistake}")
    found = dataset(given)
    if is_stream(found):
        raise TypeError(
            f"source {name!r}, a {type(given).__name__}, is a stream, and a mixture needs datasets with keys. Read "
            "the data by key (penstock.open), or collect the samples in a list."
        )
    found = found.dataset if type(found) is SameKeys else found
    if method_of(found, "__order__"):
        raise TypeError(
            f"source {name!r}, {shown(found)}, is a mixture, which cannot be inside another. Give all sources "
            "to one mix(), with the products of their weights."
        )
    if getattr(found, "endless", False):
        raise TypeError(
            f"source {name!r}, {shown(found)}, has no end. Give it without repeat(): the mixture repeats it."
        )
    if not hasattr(found, "__len__"):
        raise TypeError(f"source {name!r}, {shown(found)}, has no len(), which a mixture needs.")
    return found


def _grouping(source: Any) -> Grouping | None:
    try:
        return grouping_of(source)
    except AttributeError:
        return None


def _label(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _checked_keys(keys: Any) -> NDArray[np.int64]:
    found = np.asarray(keys)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"the keys of a mixture are integers, but got {found.dtype}.")
    if found.size and found.min() < 0:
        raise IndexError(f"key {found.min()} is not in a mixture, whose keys are 0 or more.")
    return found.astype(np.int64, copy=False)


def _woven(parts: Sequence[tuple[list[int], Any]], size: int, empty: Any) -> Any:
    """Merges (rows, batch) pairs into one batch. Returns NotImplemented if fields or dtypes differ."""
    batches = [batch for _, batch in parts]
    kinds = set(map(type, batches))
    if len(kinds) > 1:
        return NotImplemented
    kind = kinds.pop()
    if kind in (dict, tuple):
        names = list(batches[0]) if kind is dict else range(len(batches[0]))
        if any((list(batch) if kind is dict else range(len(batch))) != names for batch in batches):
            return NotImplemented
        fields = [_woven([(rows, batch[name]) for rows, batch in parts], size, empty) for name in names]
        if any(field is NotImplemented for field in fields):
            return NotImplemented
        return dict(zip(names, fields, strict=True)) if kind is dict else tuple(fields)
    if kind is list:
        found: list[Any] = [None] * size
        for rows, batch in parts:
            for row, value in zip(rows, batch, strict=True):
                found[row] = value
        return found
    if kind is not np.ndarray or len({(batch.dtype, batch.shape[1:]) for batch in batches}) > 1:
        return NotImplemented
    out = empty((size, *batches[0].shape[1:]), batches[0].dtype)
    for rows, batch in parts:
        out[rows] = batch
    return cast("NDArray[Any]", out)
