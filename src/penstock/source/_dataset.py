"""Map-style datasets, streams, and ways to combine them.

Any object with `__getitem__` and `__len__` is a dataset (a list, an array, a Hugging Face dataset). It need not
derive from a class of this module.
"""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import accumulate
from numbers import Integral
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._at_work import among
from penstock._fill.cast import FieldMemory
from penstock._printable import counted
from penstock._system.interrupts import import_whole
from penstock._system.warnings import warn_caller
from penstock._wire.task import shorten
from penstock.plan._grouping import Grouping, joined
from penstock.plan._order import Permutation
from penstock.plan._permuted import Permuted
from penstock.plan._seeds import check_generator, draw_key
from penstock.random import each
from penstock.source._nested import (
    Views,
    blocks_of_parts,
    blocks_of_stack,
    blocks_of_subset,
    foresee_of_parts,
    foresee_of_stack,
    foresee_of_subset,
    gathers_numpy,
    is_of_numpy,
    lengths_within,
    method_of,
    shown,
    side_by_side,
)

if TYPE_CHECKING:
    from penstock.source import _stages, _streams

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def is_stream(dataset: object) -> bool:
    """True if the dataset is iterated over rather than read by key."""
    # By the name of the class, so that torch's and Hugging Face's IterableDataset need not be imported to be
    # streams too. (torch's has a `__getitem__`, which only raises.)
    return any(cls.__name__ == "IterableDataset" for cls in type(dataset).__mro__)


def to_load_in_parallel(stream: object) -> str:
    """Returns advice: how all workers can load samples of a stream that only one of them iterates over."""
    kind = type(stream)
    if isinstance(stream, IterableDataset):
        return "Let the stream yield light items and define load(item): all workers call it in parallel"
    if kind.__name__ == "IterableDataset":  # a class of another library, such as Hugging Face's
        return (
            f"{kind.__module__.partition('.')[0]} makes its samples while it is read. Load the data by key, without "
            "streaming (penstock.formats.HuggingFace reads such a dataset), or open its files with penstock.open"
        )
    return "Derive the stream from penstock.IterableDataset, let it yield light items and define load(item)"


# The methods that return the samples of a batch, the most direct first. Each must agree with those after it.
_METHODS = ("__views__", "__gather__", "__getitems__", "__getitem__")


def _depth(cls: type, name: str) -> int:
    """Returns the index in the MRO of the first class that defines the name, or of `object` if none does."""
    found = (at for at, base in enumerate(cls.__mro__) if name in vars(base))
    return next(found, len(cls.__mro__) - 1)


def remove_bypass(cls: type, name: str, others: Sequence[str]) -> None:
    """Sets the batch method `name` to None if it would bypass a method in `others` that a subclass redefines."""
    depth = _depth(cls, name)
    is_ours = cls.__mro__[depth].__module__.startswith("penstock.")
    if is_ours and any(_depth(cls, other) < depth for other in others):
        setattr(cls, name, None)


def not_missing(found: Callable[..., T] | None, name: str = "__foresee__") -> Callable[..., T]:
    if found is None:
        raise AttributeError(f"no dataset inside has {name}")
    return found


def from_inside(find: Callable[[Any], Any], name: str = "__foresee__", inside: str = "") -> Any:
    """Returns a property for the method `name` of a wrapper. `find` makes the method from the wrapped datasets.

    `find` is called with the wrapper or, if `inside` is given, with the wrapper's attribute of this name. If `find`
    returns None, the wrapper does not have the method.
    """
    return property(lambda outer: not_missing(find(getattr(outer, inside) if inside else outer), name))


class Keyed(Protocol[T_co]):
    """Any object that can be part of a dataset: it returns a sample for a key, and usually has a length."""

    def __getitem__(self, key: Any, /) -> T_co: ...


class Dataset(Generic[T_co]):
    """Samples by key: `__getitem__(key)` returns one sample.

    - `__len__` is needed by the built-in orders and by `len(loader)`. There is no default, so that `len()` fails if
      it is missing.
    - `__getitems__(keys) -> list`, if defined, is called once for all keys of a batch. Define it if fetching many
      samples at once is cheaper than one by one (a database, a remote store, a compressed block).
    - `__foresee__(forecast)`, if defined, is told which keys a loader will ask for (docs/cache.md).
    - `__fingerprint__() -> str`, if defined, returns a text that is kept in resume states (docs/resume.md).
    - `__lengths__() -> array`, if defined, returns the length of each sample, such as its number of tokens.
    - `map`, `filter`, `select`, `concat` (or `a + b`), `zip`, `repeat`, `shuffle` and `with_lengths` return new
      datasets based on this one (docs/datasets.md). A subclass may use these names for something else.

    >>> class Squares(Dataset[int]):
    ...     def __getitem__(self, key: int) -> int:
    ...         return key * key
    ...     def __len__(self) -> int:
    ...         return 4
    >>> list(Squares() + [7, 8])
    [0, 1, 4, 9, 7, 8]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Removes penstock's batch methods if they would bypass a method that the subclass redefines.

        Example: a subclass of ArrayDataset adds a transform in `__getitem__`. With penstock's batch methods, batches
        would be read without the transform. Batch methods that the user defines stay.
        """
        super().__init_subclass__(**kwargs)
        for at, name in enumerate(_METHODS):
            remove_bypass(cls, name, _METHODS[at + 1 :])

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__, which returns a sample.")

    def __add__(self, other: Keyed[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])

    def map(
        self, fn: Callable[..., T], *, with_key: bool = False, keeps_lengths: bool = False
    ) -> _stages.MappedDataset[T]:
        """Returns a dataset of the results of `fn(sample)`, or of `fn(sample, key)` if `with_key` is True.

        `fn` is called every time a sample is read, in the worker that reads it, and may use `penstock.rng()`.
        Pass `keeps_lengths=True` if `fn` does not change the lengths that `__lengths__()` returns.

        >>> import penstock
        >>> list(penstock.dataset([1, 2, 3]).map(lambda x: x * 10))
        [10, 20, 30]
        """
        stages = _stages_of(self, "map")
        made: _stages.MappedDataset[T] = stages.MappedDataset(
            self, fn, with_key=with_key, keeps_lengths=keeps_lengths
        )
        return made

    def filter(self, predicate: Callable[..., Any], *, with_key: bool = False) -> Subset[T_co]:
        """Returns the samples for which `predicate(sample)` is true, or `predicate(sample, key)` with `with_key`.

        This call reads all samples once: in parallel and with a progress bar if that takes longer than a moment. The
        result is kept in the cache folder if the samples come from files, so that the same filter of the same files
        reads nothing the next time (docs/datasets.md).

        >>> import penstock
        >>> list(penstock.dataset([4, 7, 10]).filter(lambda x: x % 2 == 0))
        [4, 10]
        """
        made: Subset[T_co] = _stages_of(self, "filter").filtered(self, predicate, with_key)
        return made

    def select(self, keys: ArrayLike) -> Subset[T_co]:
        """Returns the samples with these keys, in this order. Negative keys count from the end.

        >>> import penstock
        >>> list(penstock.dataset("abcdef").select([4, 0, 4]))
        ['e', 'a', 'e']
        """
        made: Subset[T_co] = _stages_of(self, "select").selected(self, keys)
        return made

    def concat(self, *others: Keyed[Any]) -> ConcatDataset[Any]:
        """Returns this dataset and the others, one after the other. `a + b` is `a.concat(b)`.

        >>> import penstock
        >>> list(penstock.dataset([1, 2]).concat([3], [4]))
        [1, 2, 3, 4]
        """
        return ConcatDataset([self, *others])

    def zip(self, *others: Keyed[Any], **named: Keyed[Any]) -> StackDataset:
        """Returns this dataset and others of the same length side by side. A sample is a tuple of their samples.

        With names, a sample is a dict, and this dataset is given a name too: `a.zip(image=a, label=b)`.

        >>> import penstock
        >>> list(penstock.dataset("ab").zip([0, 1]))
        [('a', 0), ('b', 1)]
        """
        _stages_of(self, "zip")
        if named and not any(part is self for part in named.values()):
            names = ", ".join(f"{name}=..." for name in named)
            raise ValueError(f"zip by name names every dataset, this one too: data.zip(name=data, {names}).")
        return StackDataset(**named) if named and not others else StackDataset(self, *others, **named)

    def repeat(self, times: int | None = None) -> _stages.RepeatedDataset[T_co]:
        """Returns this dataset `times` times in a row, or without end if `times` is None.

        The key of a sample is `number of the pass * len(self) + key`. So random numbers differ in each pass. A loader
        with `shuffle=True` shuffles each pass of an endless dataset by itself.

        >>> import penstock
        >>> list(penstock.dataset("ab").repeat(2))
        ['a', 'b', 'a', 'b']
        """
        made: _stages.RepeatedDataset[T_co] = _stages_of(self, "repeat").RepeatedDataset(self, times)
        return made

    def shuffle(self, seed: int) -> Subset[T_co]:
        """Returns the samples in a random order that depends only on `seed`. It takes no time and no memory.

        The order is the same in each epoch. `DataLoader(shuffle=True)` shuffles anew in each epoch.

        >>> import penstock
        >>> list(penstock.dataset("abcd").shuffle(seed=1))
        ['a', 'c', 'b', 'd']
        """
        made: Subset[T_co] = _stages_of(self, "shuffle").ShuffledDataset(self, seed)
        return made

    def with_lengths(self, lengths: ArrayLike | Callable[[Any], int]) -> _stages.MeasuredDataset[T_co]:
        """Returns this dataset with a length for each sample, such as its number of tokens, for `__lengths__()`.

        `lengths` is an array, or a function that returns the length of a sample. The function is called for all
        samples when the lengths are first needed, and the result is kept in the cache folder, as for `filter`.

        >>> import penstock
        >>> penstock.dataset(["a", "bcd"]).with_lengths(len).__lengths__()
        array([1, 3])
        """
        made: _stages.MeasuredDataset[T_co] = _stages_of(self, "with_lengths").MeasuredDataset(self, lengths)
        return made


def _stages_of(dataset: object, method: str) -> Any:
    """Returns the module `_stages`. Raises TypeError if the dataset (such as a stream) does not support `method`."""
    if is_stream(dataset):
        raise TypeError(
            f"{type(dataset).__name__} is a stream, whose samples have no keys, and {method}() needs keys. Streams "
            "have map, filter, batch, shuffle and concat."
        )
    if method != "map":
        _check_no_order(dataset, f"{method}()")
    import_whole("penstock.source._stages")
    from penstock.source import _stages

    return _stages


def mistaken(given: Any) -> str | None:
    """Returns the rest of an error message if a path or a class was given as a dataset, otherwise None."""
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        return f"is a path, {path!r}. penstock.open({path!r}) makes a dataset of the files there."
    if isinstance(given, type):
        return f"is the class {given.__name__}, not an object of it. Pass {given.__name__}(...)."
    return None


def mistaken_keys(given: Any) -> str | None:
    """Returns the rest of an error message for a dict or table whose keys do not fit, or None for other datasets."""
    kind = type(given).__name__
    if isinstance(given, Mapping) and isinstance(next(iter(given), 0), str):
        return (
            f"is a {kind} with the keys {shorten(list(given))}, but the keys of samples are 0, 1, 2 and so on. If it "
            "holds columns of equal length, use penstock.ArrayDataset(**columns); if it holds samples, use a list of "
            "its values."
        )
    if hasattr(type(given), "__dataframe__"):
        return (
            f"is a {kind}, a table: a key gives a column of it, or another table, and not a sample. If its columns "
            "hold numbers, use penstock.ArrayDataset(**{name: table[name].to_numpy() for name in names}). The rows "
            "of any pyarrow.Table are samples of penstock.formats.Arrow(table); pyarrow.Table.from_pandas makes one."
        )
    return None


def _check_no_order(dataset: object, taker: str) -> None:
    if method_of(dataset, "__order__"):
        raise TypeError(
            f"{shown(dataset)} is a mixture, whose keys are not its positions, so {taker} cannot take it. Change its "
            "sources before they are mixed. map() takes a mixture."
        )


def sliced(dataset: Keyed[T], part: slice) -> Subset[T]:
    return Subset(dataset, range(*part.indices(len(dataset))))  # type: ignore[arg-type]


class IterableDataset(Dataset[T_co]):
    """A stream of samples. `__iter__` yields them in order and is called again for each epoch.

    A stream has one reader, whatever the number of workers, so no sample comes twice. If samples are costly to make,
    let `__iter__` yield light items (a path, an offset) and define `load(item)`. The workers then call `load` in
    parallel, and the order stays the same.

    `a + b` chains two streams, and `map`, `filter`, `batch` and `shuffle` return new streams based on this one
    (docs/datasets.md). They can be resumed exactly if this stream can.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__, which yields the samples.")

    def __add__(self, other: Iterable[Any]) -> ChainDataset[Any]:  # type: ignore[override]
        return ChainDataset([self, other])

    def concat(self, *others: Iterable[Any]) -> ChainDataset[Any]:  # type: ignore[override]
        """Returns this stream and the others, one after the other."""
        return ChainDataset([self, *others])

    def map(self, fn: Callable[[Any], T]) -> _streams.MappedStream[T]:  # type: ignore[override]
        """Returns the stream of `fn(sample)`.

        If this stream defines `load`, workers call `fn` in parallel. If not, its one reader does.

        >>> import penstock
        >>> list(penstock.dataset(iter([1, 2, 3])).map(lambda x: x * 10))
        [10, 20, 30]
        """
        made: _streams.MappedStream[T] = _streams_module().MappedStream(self, fn)
        return made

    def filter(self, predicate: Callable[[Any], Any]) -> _streams.FilteredStream[T_co]:  # type: ignore[override]
        """Returns the stream of the samples for which `predicate(sample)` is true."""
        made: _streams.FilteredStream[T_co] = _streams_module().FilteredStream(self, predicate)
        return made

    def batch(self, size: int, *, drop_last: bool = False) -> _streams.BatchedStream:
        """Returns the stream of lists of `size` samples. The last list may be shorter, unless `drop_last` is True.

        >>> import penstock
        >>> list(penstock.dataset(iter("abc")).batch(2))
        [['a', 'b'], ['c']]
        """
        made: _streams.BatchedStream = _streams_module().BatchedStream(self, size, drop_last)
        return made

    def shuffle(self, buffer: int, seed: int = 0) -> _streams.ShuffledStream[T_co]:  # type: ignore[override]
        """Returns the stream with its samples shuffled in groups of `buffer`. The order differs in each epoch.

        `buffer` samples are held in memory. The first sample is handed out after `buffer` samples were read. After
        that, one sample is read for each sample that is handed out.
        """
        made: _streams.ShuffledStream[T_co] = _streams_module().ShuffledStream(self, buffer, seed)
        return made


def _streams_module() -> Any:
    import_whole("penstock.source._streams")
    from penstock.source import _streams

    return _streams


class ConcatDataset(Dataset[T_co]):
    """Several datasets, one after the other, in one range of keys.

    If all of them have `blocks` (for `shuffle="blocks"`), the ConcatDataset has `blocks` too.

    >>> joined = ConcatDataset(["abc", [1, 2]])
    >>> len(joined), joined[2], joined[3], joined[-1]
    (5, 'c', 1, 2)
    """

    def __init__(self, datasets: Iterable[Keyed[T_co]]) -> None:
        self.datasets: list[Keyed[T_co]] = _listed("ConcatDataset", datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one dataset, but got none.")
        for position, dataset in enumerate(self.datasets):
            if is_stream(dataset):
                wrong = f"dataset {position} is a stream ({type(dataset).__name__}). Use ChainDataset to join streams"
                raise TypeError(f"ConcatDataset needs datasets with keys, but {wrong}.")
            _check_keyed("ConcatDataset", f"dataset {position}", dataset)
            _check_no_order(dataset, "ConcatDataset")
        self.cumulative_sizes: list[int] = list(accumulate(_lengths(self.datasets)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The first key of each block of the datasets, followed by the end of the last block."""
        return in_sequence(joined(blocks_of_parts(self)), "parts")

    __foresee__ = from_inside(foresee_of_parts)
    __lengths__ = from_inside(lengths_within, "__lengths__")

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """Gathers a batch from one dataset. Returns NotImplemented if the samples are in several datasets.

        Accessing `__gather__` raises AttributeError if none of the datasets has it.
        """
        if not any(method_of(dataset, "__gather__") for dataset in self.datasets):
            raise AttributeError("no dataset inside has __gather__")
        return self._gather

    def _gather(self, keys: NDArray[Any], empty: Any) -> Any:
        places = [self._locate(key) for key in _plain(keys)]
        parts = {part for part, _ in places}
        gather = method_of(self.datasets[parts.pop()], "__gather__") if len(parts) == 1 else None
        return NotImplemented if gather is None else gather(np.array([key for _, key in places], np.int64), empty)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return sliced(self, index)
        part, key = self._locate(index)
        return self.datasets[part][key]

    def __repr__(self) -> str:
        first, *others = map(shown, self.datasets)
        return f"{first}.concat({', '.join(others)})"

    def __getitems__(self, keys: Sequence[int]) -> list[T_co]:
        parts: dict[int, tuple[list[int], list[int]]] = {}  # rows and keys, by part
        for row, index in enumerate(_plain(keys)):
            part, key = self._locate(index)
            rows, local = parts.setdefault(part, ([], []))
            rows.append(row)
            local.append(key)
        samples: list[Any] = [None] * len(keys)
        for part, (rows, local) in parts.items():
            with among(rows, len(keys)):
                fetched = fetch(self.datasets[part], local)
            for row, sample in zip(rows, fetched, strict=True):
                samples[row] = sample
        return samples

    def _locate(self, index: int) -> tuple[int, int]:
        n = self.cumulative_sizes[-1]
        if not -n <= index < n:
            # As in torch: ValueError below the range; above it IndexError, which ends a plain iteration.
            error = ValueError if index < 0 else IndexError
            raise error(f"key {index} is outside a ConcatDataset of {counted(n, 'sample')}.")
        if index < 0:
            index += n
        part = bisect.bisect_right(self.cumulative_sizes, index)
        return part, index - self.cumulative_sizes[part - 1] if part else index


class ChainItem(NamedTuple):
    """An item of a ChainDataset that has not been loaded yet, and the index of its stream."""

    stream: int
    item: Any


class ChainDataset(IterableDataset[T_co]):
    """Several streams, one after the other. Each is opened when the previous one has ended.

    If one of them defines `load`, the chain defines it too. It then yields a `ChainItem` for each item, and the
    workers load the item with the stream that it came from.

    >>> list(ChainDataset(["ab", range(2)]))
    ['a', 'b', 0, 1]
    """

    def __init__(self, datasets: Iterable[Iterable[T_co]]) -> None:
        self.datasets: list[Iterable[T_co]] = _listed("ChainDataset", datasets)
        for position, dataset in enumerate(self.datasets):
            if not hasattr(dataset, "__iter__"):
                wrong = f"dataset {position} is a {type(dataset).__name__}. Use ConcatDataset for datasets with keys"
                raise TypeError(f"ChainDataset needs streams (anything with __iter__), but {wrong}.")

    def __iter__(self) -> Iterator[T_co]:
        linked = hasattr(self, "load")
        for position, stream in enumerate(self.datasets):
            yield from (cast(T_co, ChainItem(position, item)) for item in stream) if linked else stream

    @property
    def load(self) -> Callable[[ChainItem], Any]:
        if not any(hasattr(stream, "load") for stream in self.datasets):
            raise AttributeError("none of the chained streams defines load")
        return self._load

    def _load(self, link: ChainItem) -> Any:
        load = getattr(self.datasets[link.stream], "load", None)
        return link.item if load is None else load(link.item)

    def __len__(self) -> int:
        return sum(_lengths(self.datasets))


class Subset(Dataset[T_co]):
    """The samples of a dataset at the given indices, in the order of the indices.

    Indices in a numpy array are shared between workers, whereas a list of Python ints is copied into each worker.

    If the dataset has blocks (for `shuffle="blocks"`), the subset has blocks too. Samples from the same block of the
    dataset form one block, whatever the order of the indices.

    >>> list(Subset("abcdef", [4, 0, 4]))
    ['e', 'a', 'e']
    """

    def __init__(self, dataset: Keyed[T_co], indices: Sequence[Any] | NDArray[Any]) -> None:
        if not hasattr(dataset, "__getitem__"):
            raise TypeError(f"Subset needs a dataset with __getitem__, but got {_shown(dataset)}.")
        if not hasattr(indices, "__getitem__") or not hasattr(indices, "__len__"):
            raise TypeError(f"Subset needs a list or an array of indices, but got {_shown(indices)}.")
        _check_no_order(dataset, "Subset")
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return sliced(self, index)
        if isinstance(index, list):
            return self.dataset[self._underlying(index)]
        key = self.indices[index]
        return self.dataset[key.item() if isinstance(key, np.integer) else key]

    def __getitems__(self, keys: Sequence[int]) -> list[T_co]:
        return fetch(self.dataset, self._underlying(keys))

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """Gathers a batch from the wrapped dataset. The attribute is missing if that dataset has no `__gather__`."""
        gather = method_of(self.dataset, "__gather__")
        if gather is None:
            raise AttributeError(f"a {type(self.dataset).__name__} has no __gather__")

        def inner(keys: Any, empty: Any) -> Any:
            return gather(self._underlying(keys), empty)

        return gathers_numpy(inner) if is_of_numpy(gather) else inner

    @property
    def __views__(self) -> Views:
        """Returns views of samples. The attribute is missing if the wrapped dataset has no `__views__`."""
        views: Views = not_missing(method_of(self.dataset, "__views__"), "__views__")
        return lambda keys: views(self._underlying(keys))

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The first key of each block, and the end of the last block.

        The attribute is missing if the indices are not sorted by block.
        """
        return in_sequence(blocks_of_subset(self).outer, "indices")

    __foresee__ = from_inside(foresee_of_subset)
    __lengths__ = from_inside(lengths_within, "__lengths__")

    def __repr__(self) -> str:
        indices = self.indices
        if isinstance(indices, range) and min(indices.start, indices.stop, indices.step) >= 0:
            step = "" if indices.step == 1 else f":{indices.step}"
            return f"{shown(self.dataset)}[{indices.start}:{indices.stop}{step}]"
        return f"{shown(self.dataset)}.select({len(self):,} keys)"

    def _underlying(self, keys: Sequence[int] | NDArray[Any]) -> list[Any]:
        if isinstance(self.indices, np.ndarray):
            return cast("list[Any]", self.indices[keys].tolist())
        if isinstance(self.indices, Permuted):
            return cast("list[Any]", self.indices.at(keys).tolist())
        return [self.indices[key] for key in keys]


class StackDataset(Dataset[Any]):
    """Several datasets side by side. A sample is a tuple of their samples, or a dict if the datasets have names.

    >>> StackDataset(image="ab", label=[0, 1])[1]
    {'image': 'b', 'label': 1}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_either("StackDataset", "dataset", args, kwargs)
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        for name, dataset in kwargs.items() or enumerate(args):
            _check_keyed("StackDataset", f"dataset {name!r}", dataset)
        sizes = _lengths(self._parts())
        if len(set(sizes)) > 1:
            raise ValueError(f"StackDataset needs datasets of equal length, but their lengths are {sizes}.")
        self._length = sizes[0]

    def __len__(self) -> int:
        return self._length

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """Gathers from all datasets. The attribute is missing if one of them has no `__gather__`."""
        gathers = [method_of(dataset, "__gather__") for dataset in self._parts()]
        if None in gathers:
            raise AttributeError("not all datasets have __gather__")
        return lambda keys, empty: self._gather(gathers, keys, empty)

    def _gather(self, gathers: Sequence[Callable[[Any, Any], Any]], keys: NDArray[Any], empty: Any) -> Any:
        names = list(self.datasets) if isinstance(self.datasets, dict) else range(len(gathers))
        below = empty.below(names) if type(empty) is FieldMemory else [empty] * len(gathers)
        parts = [gather(keys, its) for gather, its in zip(gathers, below, strict=True)]
        return NotImplemented if any(part is NotImplemented for part in parts) else self._sample(parts)

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The blocks of the first dataset that has blocks. The attribute is missing if no dataset has any."""
        return in_sequence(blocks_of_stack(self), "parts")

    __foresee__ = from_inside(foresee_of_stack)
    __lengths__ = from_inside(lengths_within, "__lengths__")  # those of the only part that has lengths

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return sliced(self, index)
        return self._sample([dataset[index] for dataset in self._parts()])

    def __repr__(self) -> str:
        if isinstance(self.datasets, dict):
            return f"zip({', '.join(f'{name}={shown(part)}' for name, part in self.datasets.items())})"
        first, *others = map(shown, self.datasets)
        return f"{first}.zip({', '.join(others)})"

    def __getitems__(self, keys: Sequence[Any]) -> list[Any]:
        keys = _plain(keys)
        columns = [fetch(dataset, keys) for dataset in self._parts()]
        return [self._sample(parts) for parts in zip(*columns, strict=True)]

    def _parts(self) -> list[Any]:
        return side_by_side(self)

    def _sample(self, parts: Iterable[Any]) -> Any:
        named = isinstance(self.datasets, dict)
        return dict(zip(self.datasets, parts, strict=True)) if named else tuple(parts)


def check_either(taker: str, part: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises ValueError if there are no parts, or if some are given by position and others by name."""
    if args and kwargs:
        counts = f"{len(args)} by position and {sorted(kwargs)} by name"
        raise ValueError(f"{taker} takes {part}s either by position (tuples) or by name (dicts), not {counts}.")
    if not args and not kwargs:
        raise ValueError(f"{taker} needs at least one {part}, but got none.")


def random_split(
    dataset: Keyed[T], lengths: Sequence[float], generator: np.random.Generator | None = None
) -> list[Subset[T]]:
    """Splits a dataset at random into parts of the given lengths. Each sample is in exactly one part.

    Lengths may also be fractions, as floats that sum to 1. Samples left over by rounding go to the first parts, one
    each.

    >>> [len(part) for part in random_split(range(10), [0.75, 0.25])]
    [8, 2]
    """
    check_generator(generator)
    _check_keyed("random_split", "dataset", dataset)
    given = list(lengths) if isinstance(lengths, Iterable) else [None]
    if not all(hasattr(length, "__float__") for length in given):
        raise TypeError(
            f"random_split needs a list of lengths or of fractions, such as [0.9, 0.1], but got {_shown(lengths)}."
        )
    _check_no_order(dataset, "random_split")
    (n,) = _lengths([dataset])
    counts = _counts(given, n)
    if n == 0:
        return [Subset(dataset, np.empty(0, dtype=np.int64)) for _ in counts]
    indices = Permutation(n, draw_key(generator)).at(np.arange(n))
    stops = accumulate(counts)
    return [Subset(dataset, indices[stop - count : stop]) for stop, count in zip(stops, counts, strict=True)]


def _counts(lengths: Sequence[float], n: int) -> list[int]:
    if all(isinstance(length, Integral) for length in lengths):
        counts = [int(length) for length in lengths]
        if sum(counts) != n or min(counts, default=0) < 0:
            wrong = f"{counts} sum to {sum(counts)}. For fractions pass floats that sum to 1"
            raise ValueError(
                f"random_split needs lengths of 0 or more that sum to {counted(n, 'sample')}, but {wrong}."
            )
        return counts
    for position, fraction in enumerate(lengths):
        if not 0 <= fraction <= 1:
            raise ValueError(f"fractions of random_split are 0 to 1, but number {position} is {fraction}.")
    if not math.isclose(sum(lengths), 1):
        raise ValueError(f"random_split needs fractions that sum to 1, but {list(lengths)} sum to {sum(lengths)}.")
    counts = [math.floor(n * fraction) for fraction in lengths]
    for rest in range(n - sum(counts)):
        counts[rest % len(counts)] += 1
    for position, (count, fraction) in enumerate(zip(counts, lengths, strict=True)):
        if count == 0:
            warn_caller(
                f"part {position} of random_split is empty: {fraction} of {counted(n, 'sample')}", UserWarning
            )
    return counts


def fetch(dataset: Any, keys: Sequence[Any]) -> list[Any]:
    """Returns the samples of these keys, in order. Calls `__getitems__` once if the dataset has this method."""
    getitems = method_of(dataset, "__getitems__")
    if not getitems:
        return [dataset[key] for key in each(keys)]
    samples = getitems(keys)
    if len(samples) != len(keys):
        returned = f"{counted(len(samples), 'sample')} for {counted(len(keys), 'key')}"
        found = f"{type(dataset).__name__}.__getitems__ returned {returned}"
        raise ValueError(f"{found}. It must return one for each key, in the order of the keys.")
    return cast("list[Any]", samples)


def in_sequence(blocks: Grouping, what: str) -> NDArray[np.int64]:
    """Returns the edges of the blocks. Raises AttributeError if a block is not a range of consecutive keys."""
    if blocks.keys is not None:
        # A loader of the subset itself does not need them sorted.
        raise AttributeError(f"its keys are not sorted by block. Sort the indices of the {what} to wrap it")
    return blocks.edges


def _listed(taker: str, datasets: Any) -> list[Any]:
    if not isinstance(datasets, Iterable):
        raise TypeError(f"{taker} needs a list of datasets, but got {_shown(datasets)}.")
    return list(datasets)


def _check_keyed(taker: str, name: str, dataset: object) -> None:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"{taker} needs datasets with __getitem__ and __len__, but {name} is {_shown(dataset)}.")


def _shown(value: object) -> str:
    """Returns the repr of a number or None. For any other value, names only the type."""
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def _lengths(datasets: Sequence[object]) -> list[int]:
    return [len(dataset) for dataset in cast("Sequence[Sized]", datasets)]


def _plain(keys: Sequence[Any] | NDArray[Any]) -> list[Any]:
    return cast("list[Any]", keys.tolist()) if isinstance(keys, np.ndarray) else list(keys)
