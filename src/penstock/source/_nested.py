"""Maps keys between a dataset and the datasets inside it: for blocks, forecasts, lengths, fingerprints and errors.

This module handles mixtures, the stages of `_stages.py`, and `Subset`, `ConcatDataset` and `StackDataset` (both
penstock's and torch's).
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._system.interrupts import import_whole
from penstock._wire.failure import safe_text
from penstock.plan._blocks import WINDOW
from penstock.plan._forecast import Forecast, InnerForecast
from penstock.plan._grouping import Grouping, InnerBlocks, KeyArray, chosen, joined
from penstock.plan._permuted import Permuted

Foresee = Callable[[Forecast], Any]
Gather = TypeVar("Gather", bound=Callable[..., Any])
Lengths = Callable[[], NDArray[np.int64]]


def method_of(dataset: object, name: str) -> Any:
    """Returns the dataset's special method of this name, such as `__getitems__`, or None if its class has none."""
    # Looked up on the class, as Python does for special methods: a wrapper that forwards missing attributes to a
    # wrapped dataset would otherwise be bypassed, and the wrapped dataset's samples used instead of its own.
    return getattr(dataset, name, None) if hasattr(type(dataset), name) else None


Views = Callable[[Sequence[int]], dict[str, list[NDArray[Any]]] | None]
"""The type of a dataset's `__views__`, which returns arrays of samples, by field, without copying.

Fields without arrays are left out. The result is None if views are impossible, for example if samples must be read
first, or if only the samples show which fields are arrays. The arrays must not be changed. `__views__` is private to
penstock.
"""


_NUMPY = "_gathers_numpy"


def gathers_numpy(gather: Gather) -> Gather:
    """Marks a `__gather__` whose samples are numpy arrays or scalars, str, bytes, or a dict or tuple of these.

    Unless the `__gather__` returns NotImplemented, all samples have the same types and dtypes. So the batch alone
    shows what another library's collate function would return, and `penstock.torch` makes tensors from the batch.
    """
    setattr(gather, _NUMPY, True)
    return gather


def is_of_numpy(gather: object) -> bool:
    return getattr(gather, _NUMPY, False) is True


# Recognised by the names of the class and its attributes, so that other libraries need not be imported.
_ATTRIBUTES = {
    "Subset": ("dataset", "indices"),
    "ConcatDataset": ("datasets", "cumulative_sizes"),
    "StackDataset": ("datasets",),
    "SameKeys": ("dataset",),
    "RepeatedDataset": ("dataset", "times"),
    "MixtureDataset": ("sources", "locate"),
}


def _kind(dataset: object, name: str = "") -> str:
    """Returns the kind of a dataset that wraps others (see `_ATTRIBUTES`), or "" for any other dataset.

    Also returns "" if a subclass redefines the method `name`.
    """
    for cls in type(dataset).__mro__:
        attributes = _ATTRIBUTES.get(cls.__name__)
        if attributes is not None and all(hasattr(dataset, each) for each in attributes):
            return cls.__name__
        if name in vars(cls):
            return ""
    return ""


def side_by_side(stack: Any) -> list[Any]:
    """Returns the parts of a StackDataset, ConcatDataset or mixture."""
    if _kind(stack) == "MixtureDataset":
        return list(stack.sources)
    return list(stack.datasets.values() if isinstance(stack.datasets, dict) else stack.datasets)


def leaves_of(dataset: Any) -> Iterator[Any]:
    """Yields the innermost datasets."""
    match _kind(dataset):
        case "":
            yield dataset
        case "Subset" | "SameKeys" | "RepeatedDataset":
            yield from leaves_of(dataset.dataset)
        case _:
            for part in side_by_side(dataset):
                yield from leaves_of(part)


# Names in messages.


def origin(dataset: Any, key: Any) -> tuple[Any, Any]:
    """Returns the innermost dataset that the sample comes from, and the sample's key there."""
    while True:
        match _kind(dataset):
            case "SameKeys":
                dataset = dataset.dataset
            case "RepeatedDataset":
                dataset, key = dataset.dataset, key % len(dataset.dataset)
            case "Subset":
                dataset, key = dataset.dataset, dataset.indices[key]
                key = key.item() if isinstance(key, np.integer) else key
            case "ConcatDataset":
                key += dataset.cumulative_sizes[-1] if key < 0 else 0
                part = bisect.bisect_right(dataset.cumulative_sizes, key)
                dataset, key = dataset.datasets[part], key - (0, *dataset.cumulative_sizes)[part]
            case "MixtureDataset":
                part, key = dataset.locate(key)
                dataset = dataset.sources[part]
            case _:
                return dataset, key


_MOST_SHOWN = 200  # characters


def shown(dataset: Any) -> str:
    """Returns a short description of a dataset: its repr if that is short, otherwise its class and length."""
    plain = type(dataset).__repr__ in _LONG
    text = "" if plain else safe_text(dataset, repr)
    if text and len(text) <= _MOST_SHOWN and "\n" not in text:
        return text
    try:
        n = len(dataset)
        return f"{type(dataset).__name__}({n:,} sample{'' if n == 1 else 's'})"
    except Exception:
        return type(dataset).__name__


_LONG: list[Any] = [kind.__repr__ for kind in (object, list, tuple, str, bytes, dict, np.ndarray)]


# Blocks.


def blocks_of(dataset: Any) -> Grouping:
    """Returns the blocks (groups of keys that are read together). Raises TypeError if the dataset has none."""
    try:
        return grouping_of(dataset)
    except AttributeError as error:
        raise TypeError(
            f'shuffle="blocks" needs a dataset that knows its blocks, but {type(dataset).__name__} has none: '
            f"{error}. Define a property `blocks` that returns the first key of each block, and the end: "
            "np.array([0, 100, 200]). If the dataset wraps one of penstock.formats and has the same keys, return the "
            "`blocks` of that. Or use shuffle=True."
        ) from error


def grouping_of(dataset: Any) -> Grouping:
    """Returns the blocks of a dataset. Raises AttributeError if the dataset, or a wrapped one, has no blocks."""
    match _kind(dataset, "blocks"):
        case "Subset":
            return blocks_of_subset(dataset).outer
        case "ConcatDataset":
            return joined(blocks_of_parts(dataset))
        case "SameKeys":
            return grouping_of(dataset.dataset)
        case "StackDataset":
            return blocks_of_stack(dataset)
        case "MixtureDataset":
            raise AttributeError("a mixture shuffles its sources itself, by blocks if they have some")
        case "RepeatedDataset":
            if dataset.times is None:
                raise AttributeError("a dataset that is repeated without end has no list of blocks")
            return joined([grouping_of(dataset.dataset)] * dataset.times)
    blocks = np.asarray(dataset.blocks)
    n, end = len(dataset), blocks.reshape(-1)[-1:].tolist()
    if end != [n]:
        raise ValueError(
            f"The blocks of {type(dataset).__name__} must end with its length, {n}, but they end with "
            f"{end[0] if end else 'nothing'}. `blocks` is the first key of each block, and the end."
        )
    return Grouping(blocks)


# Sorting 10^7 indices takes a second, and a loader asks for the order in each epoch, and for its length.
_known: weakref.WeakKeyDictionary[Any, tuple[Any, InnerBlocks]] = weakref.WeakKeyDictionary()


def blocks_of_subset(subset: Any) -> InnerBlocks:
    """Returns the blocks of a Subset. Samples from the same block of the wrapped dataset form one block."""
    try:
        inner = grouping_of(subset.dataset)
    except AttributeError as error:
        raise AttributeError(f"the dataset of the Subset has none: {error}") from error
    indices, is_hashable = subset.indices, type(subset).__hash__ is not None
    known = _known.get(subset) if is_hashable else None
    if known is not None and known[0] is indices and known[1].inner == inner:
        return known[1]
    keys = _keys(indices, inner.edges.item(-1))
    if keys is None or len(keys) != len(subset):
        raise AttributeError("the indices of the Subset are not integers, or their number is not its length")
    found = chosen(inner, keys)
    if is_hashable:
        _known[subset] = indices, found
    return found


def blocks_of_parts(joint: Any) -> list[Grouping]:
    """Returns the blocks of each part of a ConcatDataset. Raises AttributeError if a part has none."""
    found = []
    for number, part in enumerate(joint.datasets):
        try:
            found.append(grouping_of(part))
        except AttributeError as error:
            what = f"part {number} of the ConcatDataset, a {type(part).__name__}, has no `blocks`"
            raise AttributeError(what) from error
    return found


def blocks_of_stack(stack: Any) -> Grouping:
    """Finds the first part of a StackDataset that has blocks, and returns its blocks.

    Raises AttributeError if no part has blocks.
    """
    for part in side_by_side(stack):
        try:
            return grouping_of(part)
        except AttributeError:
            continue
    raise AttributeError("none of the datasets of the StackDataset has `blocks`")


def _keys(indices: Any, length: int) -> KeyArray | None:
    """Returns the indices of a Subset as an array of non-negative keys, or None if they are not integers."""
    if isinstance(indices, range):  # numpy would iterate over it
        indices = np.arange(indices.start, indices.stop, indices.step)
    found: NDArray[Any] = np.asarray(indices)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        return None
    keys = found.astype(np.int64, copy=False)
    return np.where(keys < 0, keys + length, keys) if keys.size and keys.min() < 0 else keys


# Fingerprints.


def fingerprint_of(dataset: Any) -> str | None:
    """Returns a string that identifies the samples and does not depend on the location of their files.

    The string may appear in messages. Returns None if the dataset has no fingerprint.
    """
    match _kind(dataset, "__fingerprint__"):
        case "Subset" | "SameKeys" | "RepeatedDataset":
            inner = fingerprint_of(dataset.dataset)
            indices = getattr(dataset, "indices", None)
            return f"{inner}, shuffled by {indices.seed}" if inner and isinstance(indices, Permuted) else inner
        case "MixtureDataset":
            return None  # its own state has those of its sources
        case "ConcatDataset" | "StackDataset":
            found = [fingerprint_of(part) for part in side_by_side(dataset)]
            if len(found) > 1 and any(found):
                return f"{len(found)} datasets, {blake2b(repr(found).encode(), digest_size=8).hexdigest()}"
            return found[0]
    method = method_of(dataset, "__fingerprint__")
    return None if method is None else method()


# Forecasts.


def foresee_of(dataset: Any) -> Foresee | None:
    """Returns a function that passes a forecast to the dataset, or to the datasets that it wraps.

    Returns None if no dataset takes forecasts.
    """
    match _kind(dataset, "__foresee__"):
        case "Subset":
            return foresee_of_subset(dataset)
        case "ConcatDataset":
            return foresee_of_parts(dataset)
        case "SameKeys":
            return foresee_of(dataset.dataset)
        case "StackDataset":
            return foresee_of_stack(dataset)
        case "RepeatedDataset":
            return foresee_of_repeated(dataset)
        case "MixtureDataset":
            return foresee_of_mixture(dataset)
    found: Foresee | None = method_of(dataset, "__foresee__")
    return found


def foresee_of_subset(subset: Any) -> Foresee | None:
    foresee = foresee_of(subset.dataset)
    if foresee is None:
        return None
    if isinstance(subset.indices, Permuted):
        take: Callable[[KeyArray], KeyArray] = subset.indices.at  # computed when needed: no array of all keys
    else:
        keys = _keys(subset.indices, len(subset.dataset))
        if keys is None:
            return None
        take = keys.__getitem__
    n = len(subset.indices)

    def inner(outer: KeyArray) -> KeyArray:
        return np.where(outer < 0, -1, take(outer.clip(0))) if n else outer

    return lambda forecast: foresee(InnerForecast(forecast, inner, partial(_or_none, blocks_of_subset, subset)))


def foresee_of_repeated(repeated: Any) -> Foresee | None:
    foresee, n = foresee_of(repeated.dataset), len(repeated.dataset)
    if foresee is None:
        return None

    def inner(outer: KeyArray) -> KeyArray:
        return np.where(outer < 0, -1, outer % n) if n else outer

    # A block is needed in each pass, so its span cannot be computed from the blocks alone.
    return lambda forecast: foresee(InnerForecast(forecast, inner, lambda: None))


def foresee_of_stack(stack: Any) -> Foresee | None:
    parts = [foresee_of(part) for part in side_by_side(stack)]
    return partial(_told, [part for part in parts if part]) if any(parts) else None


def foresee_of_parts(joint: Any) -> Foresee | None:
    parts = [foresee_of(part) for part in joint.datasets]
    if not any(parts):
        return None
    found = [partial(_tell_part, joint, number, part) for number, part in enumerate(parts) if part is not None]
    return partial(_told, found)


def foresee_of_mixture(mixture: Any) -> Foresee | None:
    parts = [(number, foresee_of(part)) for number, part in enumerate(mixture.sources)]
    found = [partial(_tell_source, mixture, number, part) for number, part in parts if part is not None]
    return partial(_told, found) if found else None


def _tell_source(mixture: Any, number: int, foresee: Foresee, forecast: Forecast) -> Any:
    lengths = [len(source) for source in mixture.sources]
    total, first, stop = sum(lengths), sum(lengths[:number]), sum(lengths[: number + 1])

    def inner(outer: KeyArray) -> KeyArray:
        inside = outer % max(total, 1)
        return np.where((outer >= 0) & (first <= inside) & (inside < stop), inside - first, -1)

    # As for a dataset that is repeated, the span of a block cannot be computed from the blocks alone.
    return foresee(InnerForecast(forecast, inner, lambda: None))


def _told(parts: Sequence[Foresee], forecast: Forecast) -> Any:
    import_whole("penstock._cache.watches")
    from penstock._cache.watches import Watches  # late, because few loaders need it and its imports

    watches = Watches()
    try:
        for foresee in parts:
            watches.add(foresee(forecast))
    except BaseException:
        watches.close()
        raise
    return watches


def _tell_part(joint: Any, number: int, foresee: Foresee, forecast: Forecast) -> Any:
    return foresee(_of_part(forecast, joint, number))


def _of_part(forecast: Forecast, joint: Any, number: int) -> InnerForecast:
    first, stop = (0, *joint.cumulative_sizes)[number : number + 2]

    def inner(outer: KeyArray) -> KeyArray:
        return np.where((first <= outer) & (outer < stop), outer - first, -1)

    def inside() -> InnerBlocks:
        groupings = blocks_of_parts(joint)
        before = sum(map(len, groupings[:number]))
        numbers = np.arange(sum(map(len, groupings))) - before
        numbers[numbers >= len(groupings[number])] = -1
        return InnerBlocks(joined(groupings), groupings[number], numbers.clip(-1))

    return InnerForecast(forecast, inner, partial(_or_none, inside))


def _or_none(blocks: Callable[..., InnerBlocks], *args: Any) -> InnerBlocks | None:
    try:
        return blocks(*args)
    except AttributeError:
        return None


# Lengths.

TOKENS = ("tokens", "input_ids")
"""The fields that may hold a sample's tokens. If a sample has none of them, its first field of integers is used."""


def lengths_within(dataset: Any) -> Lengths | None:
    """Returns a function that computes the length of each sample. Returns None if the lengths are unknown."""
    match _kind(dataset, "__lengths__"):
        case "Subset":
            inner = lengths_within(dataset.dataset)
            return None if inner is None else partial(_lengths_of_subset, dataset, inner)
        case "ConcatDataset" | "MixtureDataset":
            parts = [lengths_within(part) for part in side_by_side(dataset)]
            return None if None in parts else partial(_lengths_in_turn, parts)
        case "StackDataset":
            some = [found for found in map(lengths_within, side_by_side(dataset)) if found is not None]
            return some[0] if len(some) == 1 else None
        case "RepeatedDataset":
            inner, times = lengths_within(dataset.dataset), dataset.times
            return None if inner is None else partial(_lengths_in_turn, [inner] * (1 if times is None else times))
        case "SameKeys":
            return lengths_within(dataset.dataset)
    found: Lengths | None = method_of(dataset, "__lengths__")
    return found


def _lengths_of_subset(subset: Any, lengths: Lengths) -> NDArray[np.int64]:
    found = lengths()
    keys = _keys(subset.indices, len(found))
    if keys is None:
        raise TypeError(
            f"the indices of {shown(subset)} are not integers, so the lengths of its samples are unknown."
        )
    return found[keys]


def _lengths_in_turn(parts: Sequence[Any]) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(lengths(), np.int64) for lengths in parts] or [np.empty(0, np.int64)])


# Endless datasets.


def pass_of(dataset: Any) -> int | None:
    """Returns the number of samples in one pass of an endless dataset or a mixture, or None for other datasets."""
    match _kind(dataset, "endless"):
        case "SameKeys":
            return pass_of(dataset.dataset)
        case "MixtureDataset":
            return sum(map(len, dataset.sources))
        case "RepeatedDataset":
            return len(dataset.dataset) if dataset.times is None else None
    return None


_AT_ONCE = 512


def keys_in_order(dataset: Any) -> Iterator[int]:
    """Yields the keys of the first epoch of an unshuffled loader with seed 0."""
    order = method_of(dataset, "__order__")
    if order is None:
        yield from count() if getattr(dataset, "endless", False) else range(len(dataset))
        return
    found = order(0, WINDOW)
    for first in range(0, found.size(0), _AT_ONCE):
        yield from found.at(0, np.arange(first, min(first + _AT_ONCE, found.size(0)))).tolist()
