"""Makes blocks, forecasts and fingerprints work through `Subset` and `ConcatDataset`, both penstock's and torch's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._system.interrupts import import_whole
from penstock.plan._forecast import Forecast, InnerForecast
from penstock.plan._grouping import Grouping, InnerBlocks, KeyArray, chosen, joined

Foresee = Callable[[Forecast], Any]
Gather = TypeVar("Gather", bound=Callable[..., Any])


def method_of(dataset: object, name: str) -> Any:
    """Returns the dataset's special method of this name, such as `__getitems__`, or None if its class has none."""
    # Looked up on the class, as Python does for special methods: a wrapper that forwards missing attributes to an
    # inner dataset would otherwise be bypassed, and the inner dataset's samples used instead of its own.
    return getattr(dataset, name, None) if hasattr(type(dataset), name) else None


_NUMPY = "_gathers_numpy"


def gathers_numpy(gather: Gather) -> Gather:
    """Marks a `__gather__` whose samples are numpy arrays or scalars, str, bytes, or one dict or tuple of these.

    Their types and dtypes do not differ between samples, except where `__gather__` returns NotImplemented. So another
    library's collate function can be told from the batch alone, and `penstock.torch` makes tensors of the batch.
    """
    setattr(gather, _NUMPY, True)
    return gather


def is_of_numpy(gather: object) -> bool:
    return getattr(gather, _NUMPY, False) is True


# Recognised by the names of the class and its attributes, so that other libraries need not be imported.
_ATTRIBUTES = {"Subset": ("dataset", "indices"), "ConcatDataset": ("datasets", "cumulative_sizes")}


def _is(kind: str, dataset: object, name: str) -> bool:
    """True for an instance of `kind` ("Subset" or "ConcatDataset"), unless a subclass of it defines `name` itself."""
    for cls in type(dataset).__mro__:
        if cls.__name__ == kind:
            return all(hasattr(dataset, each) for each in _ATTRIBUTES[kind])
        if name in vars(cls):
            return False
    return False


# Blocks.


def blocks_of(dataset: Any) -> Grouping:
    """Returns the blocks (groups of keys that are read together). Raises TypeError if the dataset has none."""
    try:
        return _grouping(dataset)
    except AttributeError as error:
        raise TypeError(
            f'shuffle="blocks" needs a dataset that knows its blocks, but {type(dataset).__name__} has none: '
            f"{error}. Define a property `blocks` that returns the first key of each block, and the end: "
            "np.array([0, 100, 200]). If the dataset wraps one of penstock.formats and has the same keys, return the "
            "`blocks` of that. Or use shuffle=True."
        ) from error


def _grouping(dataset: Any) -> Grouping:
    """Returns the blocks of a dataset. Raises AttributeError if the dataset, or one inside it, has none."""
    if _is("Subset", dataset, "blocks"):
        return blocks_of_subset(dataset).outer
    if _is("ConcatDataset", dataset, "blocks"):
        return joined(blocks_of_parts(dataset))
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
    """Returns the blocks of a Subset. Samples from the same block of the inner dataset form one block."""
    try:
        inner = _grouping(subset.dataset)
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
            found.append(_grouping(part))
        except AttributeError as error:
            what = f"part {number} of the ConcatDataset, a {type(part).__name__}, has no `blocks`"
            raise AttributeError(what) from error
    return found


def _keys(indices: Any, length: int) -> KeyArray | None:
    """Returns the indices of a Subset as an array of non-negative keys, or None if they are not integers."""
    found: NDArray[Any] = np.asarray(indices)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        return None
    keys = found.astype(np.int64, copy=False)
    return np.where(keys < 0, keys + length, keys) if keys.size and keys.min() < 0 else keys


# Fingerprints.


def fingerprint_of(dataset: Any) -> str | None:
    """Returns a string from `__fingerprint__()` that identifies the samples, or None if no dataset defines it.

    It may be shown in error messages, and does not depend on where the files are.
    """
    if _is("Subset", dataset, "__fingerprint__"):
        return fingerprint_of(dataset.dataset)
    if _is("ConcatDataset", dataset, "__fingerprint__"):
        found = [fingerprint_of(part) for part in dataset.datasets]
        if len(found) > 1 and any(found):
            return f"{len(found)} datasets, {blake2b(repr(found).encode(), digest_size=8).hexdigest()}"
        return found[0]
    method = method_of(dataset, "__fingerprint__")
    return None if method is None else method()


# Forecasts.


def foresee_of(dataset: Any) -> Foresee | None:
    """Returns a function that passes a forecast to the dataset and nested ones; None if none accepts it."""
    if _is("Subset", dataset, "__foresee__"):
        return foresee_of_subset(dataset)
    if _is("ConcatDataset", dataset, "__foresee__"):
        return foresee_of_parts(dataset)
    found: Foresee | None = method_of(dataset, "__foresee__")
    return found


def foresee_of_subset(subset: Any) -> Foresee | None:
    foresee = foresee_of(subset.dataset)
    keys = None if foresee is None else _keys(subset.indices, len(subset.dataset))
    if foresee is None or keys is None:
        return None

    def inner(outer: KeyArray) -> KeyArray:
        return np.where(outer < 0, -1, keys[outer]) if len(keys) else outer

    return lambda forecast: foresee(InnerForecast(forecast, inner, partial(_or_none, blocks_of_subset, subset)))


def foresee_of_parts(joint: Any) -> Foresee | None:
    parts = [foresee_of(part) for part in joint.datasets]
    if not any(parts):
        return None

    def foresee(forecast: Forecast) -> Any:
        import_whole("penstock._cache.watches")
        from penstock._cache.watches import Watches  # late, because few loaders need it and its imports

        watches = Watches()
        try:
            for number, each in enumerate(parts):
                if each is not None:
                    watches.add(each(_of_part(forecast, joint, number)))
        except BaseException:
            watches.close()
            raise
        return watches

    return foresee


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
