"""Implements the methods `map`, `filter`, `select`, `repeat`, `shuffle` and `with_lengths` of `Dataset`.

`Subset`, `ConcatDataset` and `StackDataset` are in `_dataset.py`. `_nested.py` maps the keys of a dataset to the keys
of the wrapped datasets.

Special methods that a dataset forwards to the wrapped dataset (`__getitems__`, `__gather__`, `__foresee__`,
`__lengths__`) are properties. Such a property raises AttributeError if the wrapped dataset lacks the method.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._system.interrupts import import_whole
from penstock._wire.failure import annotate, copied
from penstock.plan._permuted import Permuted
from penstock.random import each
from penstock.source._array import ArrayDataset, checked_keys
from penstock.source._dataset import (
    Dataset,
    Keyed,
    Subset,
    fetch,
    from_inside,
    in_sequence,
    is_stream,
    not_missing,
    sliced,
)
from penstock.source._nested import (
    Lengths,
    foresee_of,
    grouping_of,
    keys_in_order,
    lengths_within,
    method_of,
    origin,
    pass_of,
    shown,
)

if TYPE_CHECKING:
    from penstock.plan._mixture import Stop
    from penstock.source import _mixture

T_co = TypeVar("T_co", covariant=True)

Survey = Callable[["MappedDataset[Any]", Any, str], NDArray[Any]]
"""Reads each sample of a dataset of numbers once, and returns the samples as an array of the given dtype."""

_survey: Survey | None = None


def survey_by(survey: Survey) -> None:
    """Sets the `Survey` function.

    It is passed in from outside because it uses a loader, and this package cannot import loaders.
    """
    global _survey
    _survey = survey


def dataset(source: Any) -> Any:
    """Returns `source` as a dataset with the methods of `penstock.Dataset`: `map`, `filter`, `shuffle` and so on.

    `source` is anything that a `DataLoader` takes: a list, an array, a dataset of torch or Hugging Face, a reader of
    `penstock.formats`, or a stream (an iterable without `__getitem__`). A dataset that has these methods already is
    returned unchanged, and an array becomes an `ArrayDataset`. Samples, keys and speed stay the same.

    >>> import penstock
    >>> data = penstock.dataset(["a", "b", "c", "d"]).select([0, 2, 3]).map(str.upper)
    >>> list(data), data
    (['A', 'C', 'D'], list(4 samples).select(3 keys).map(upper))
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, (os.PathLike, type)):
        kind = "a class" if isinstance(source, type) else "a path"
        raise TypeError(
            f"penstock.dataset takes a dataset, but got {kind}, {source!r}. penstock.open(path) reads files, and "
            "Class(...) makes a dataset."
        )
    if isinstance(source, np.ndarray):
        return ArrayDataset(source)
    if is_stream(source) or (not hasattr(source, "__getitem__") and hasattr(source, "__iter__")):
        from penstock.source._streams import WrappedStream  # here, because it needs this module

        return WrappedStream(source)
    if not hasattr(source, "__getitem__"):
        raise TypeError(
            f"penstock.dataset takes a dataset, but a {type(source).__name__} has neither __getitem__ (samples by "
            "key) nor __iter__ (a stream)."
        )
    return SameKeys(source)


def mix(
    sources: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    unit: _mixture.Unit = "samples",
    stop: Stop | int = "never",
    shuffle: bool = True,
    seed: int | None = None,
    field: str | None = None,
) -> _mixture.MixtureDataset:
    """Returns a dataset that takes its samples from several datasets, in proportion to their weights.

    The shares are exact in every prefix: after n samples, each source has given its share of n within one sample,
    whatever its weight. Within that, the order is random. Each source is shuffled separately (by blocks if it has
    any), and begins another pass, in another order, when all of its samples have been given. A weight may be 0.

    - `unit`: weights are shares of the samples, or of the tokens. Tokens are counted by the lengths of the samples:
      see `Dataset.with_lengths`.
    - `stop`: "never" for a mixture without end; "first" if an epoch ends when the first source has given all of its
      samples; "all" if it ends when every source has done so (shorter sources repeat until then). If it is a number,
      an epoch has this number of samples, and the next epoch continues where it ended.
    - `shuffle`: if False, each source is read in its own order.
    - `seed`: the loader's seed if None.
    - `field`: the name of a field that is added to each sample, with the name of its source. Samples must be dicts.

    A loader takes the order from the mixture, and ignores its own `shuffle`. The key of a sample tells the source,
    the pass and the sample, but not the position in the mixture (docs/mixtures.md).

    >>> import penstock
    >>> data = penstock.mix({"small": range(100), "large": range(100, 900)}, {"small": 3, "large": 1})
    >>> data
    mix(small=3, large=1)
    >>> loader = penstock.DataLoader(data, batch_size=8, seed=0)
    >>> sum(sample < 100 for sample in next(iter(loader)).tolist())
    6
    """
    import_whole("penstock.source._mixture")
    from penstock.source._mixture import MixtureDataset  # late, because it derives from `Dataset` and few need it

    return MixtureDataset(sources, weights, unit=unit, stop=stop, shuffle=shuffle, seed=seed, field=field)


def name_of(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return "lambda" if name == "<lambda>" else str(name)


def noted(error: Exception, note: str) -> Exception:
    """Returns a copy of a caught exception, with a note added. Raise the copy after the `except` block."""
    # A copy, because the exception is the user's object: a program may raise it many times, for many samples.
    copy = annotate(copied(error), note)
    trace = copy.__traceback__
    return copy.with_traceback(trace and trace.tb_next)  # type: ignore[return-value]  # it is raised here again


def passed(name: str, inside: str = "dataset") -> Any:
    """Returns a property that forwards the attribute `name` of the wrapped dataset, if that attribute exists."""

    def get(self: Any) -> Any:
        inner = getattr(self, inside)
        found = method_of(inner, name) if name.startswith("__") else getattr(inner, name, None)
        if found is None:
            raise AttributeError(f"{type(inner).__name__} has no {name}")
        return found

    return property(get)


class SameKeys(Dataset[T_co]):
    """A wrapper that has the same keys as the wrapped dataset. Subclasses may change the samples."""

    def __init__(self, dataset: Keyed[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return sliced(self, key) if isinstance(key, slice) else self.dataset[key]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, keys_in_order(self))

    __getitems__ = passed("__getitems__")
    __gather__ = passed("__gather__")
    __views__ = passed("__views__")

    # Attributes of mixtures, endlessly repeated datasets and packed rows.
    __order__ = passed("__order__")
    documents = passed("documents")
    __windows__ = passed("__windows__")
    __mixture__ = passed("__mixture__")
    names_of = passed("names_of")
    state_dict = passed("state_dict")
    load_state_dict = passed("load_state_dict")

    @property
    def endless(self) -> bool:
        return bool(getattr(self.dataset, "endless", False))

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The first key of each block, and the end of the last block.

        The attribute is missing if the wrapped dataset has no blocks.
        """
        return in_sequence(grouping_of(self.dataset), "dataset")

    __foresee__ = from_inside(foresee_of, inside="dataset")
    __lengths__ = from_inside(lengths_within, "__lengths__", inside="dataset")

    def __repr__(self) -> str:
        return shown(self.dataset)


class MappedDataset(SameKeys[T_co]):
    """The samples of a dataset, each passed through a function: see `Dataset.map`.

    `called` names the method or argument through which the user gave the function, for messages. `convert`, if given,
    converts the results of the function.
    """

    def __init__(
        self,
        dataset: Keyed[Any],
        fn: Callable[..., Any],
        *,
        with_key: bool = False,
        keeps_lengths: bool = False,
        called: str = "map",
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(dataset)
        if not callable(fn):
            raise TypeError(f"{called}() takes a function, but got a {type(fn).__name__}.")
        self.fn, self.with_key, self.keeps_lengths = fn, with_key, keeps_lengths
        self._called, self._convert = called, convert

    def __getitem__(self, key: Any) -> Any:
        return sliced(self, key) if isinstance(key, slice) else self._applied(self.dataset[key], key)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Reads all samples, then calls the function on each sample.

        Accessing `__getitems__` raises AttributeError if the wrapped dataset does not have it.
        """
        if not method_of(self.dataset, "__getitems__"):
            raise AttributeError(f"{type(self.dataset).__name__} has no __getitems__")
        return self._get_many

    def _get_many(self, keys: Sequence[Any]) -> list[Any]:
        samples = fetch(self.dataset, keys)
        return [self._applied(sample, key) for key, sample in zip(each(keys), samples, strict=True)]

    __gather__ = __views__ = None

    @property
    def __lengths__(self) -> Lengths:
        """Returns the length of each sample. The attribute is missing unless `keeps_lengths` is True."""
        return not_missing(lengths_within(self.dataset) if self.keeps_lengths else None, "__lengths__")

    def _applied(self, sample: Any, key: Any) -> Any:
        try:
            made = self.fn(sample, self._from_start(key)) if self.with_key else self.fn(sample)
            return made if self._convert is None else self._convert(made)
        except Exception as error:
            failed = noted(error, self._where(key))
        try:
            raise failed
        finally:
            del failed  # its traceback refers to this frame

    def _from_start(self, key: Any) -> Any:
        return key + len(self) if isinstance(key, int) and key < 0 else key

    def _where(self, key: Any) -> str:
        inner, its = origin(self, key)
        return f"In {self._stage()}, of sample {its!r} of {shown(inner)}."

    def _stage(self) -> str:
        if self._called.endswith("="):  # an argument
            return f"{self._called}{name_of(self.fn)}"
        return f".{self._called}({name_of(self.fn)})"

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}{self._stage()}"


class MeasuredDataset(SameKeys[T_co]):
    """A dataset whose samples have known lengths: see `Dataset.with_lengths`."""

    def __init__(
        self, dataset: Keyed[Any], lengths: ArrayLike | Callable[[Any], int], called: str = "with_lengths"
    ) -> None:
        super().__init__(dataset)
        self._called = called
        self._measure = lengths if callable(lengths) else None
        self._lengths = None if callable(lengths) else _checked_lengths(lengths, dataset)

    def __lengths__(self) -> NDArray[np.int64]:
        """Returns the length of each sample as int64. If the user gave a function, only the first call runs it."""
        if self._lengths is None:
            assert self._measure is not None
            convert = partial(_length_in, self._called)
            measured: Any = MappedDataset(self.dataset, self._measure, called=self._called, convert=convert)
            self._lengths = _checked_lengths(_surveyed(measured, np.int64, "measuring lengths"), self.dataset)
        return self._lengths

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.with_lengths({name_of(self._measure) if self._measure else 'array'})"


def _length_in(called: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        given = called if called.endswith("=") else f"{called}()"
        hint = " Return its len." if hasattr(value, "__len__") else ""
        raise TypeError(
            f"the function of {given} has returned a {type(value).__name__}, but the length of a sample is an "
            f"integer.{hint}"
        ) from None


def _checked_lengths(lengths: ArrayLike, dataset: Any) -> NDArray[np.int64]:
    found = np.asarray(lengths)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(
            f"lengths must be integers along one axis, but they are {found.dtype} of shape {found.shape}."
        )
    n = pass_of(dataset)
    n = _length(dataset) if n is None else n
    if n is not None and n != len(found):
        raise ValueError(f"there must be one length for each sample, but {len(found)} are given for {n} samples.")
    if found.size and found.min() < 0:
        at = int(found.argmin())
        raise ValueError(f"the length of a sample is 0 or more, but that of sample {at} is {found[at]}.")
    return found.astype(np.int64, copy=False)


def _length(dataset: Any) -> int | None:
    is_finite = isinstance(dataset, Sized) and not getattr(dataset, "endless", False)
    return len(dataset) if is_finite else None


class RepeatedDataset(Dataset[T_co]):
    """A dataset that is repeated `times` times, or endlessly if `times` is None: see `Dataset.repeat`."""

    def __init__(self, dataset: Keyed[Any], times: int | None = None) -> None:
        if times is not None and (isinstance(times, bool) or not hasattr(times, "__index__") or times < 0):
            raise ValueError(f"times must be an integer of 0 or more, or None for no end, got {times!r}.")
        self.dataset, self.times = dataset, None if times is None else operator.index(times)
        if self.times is None and not len(dataset):  # type: ignore[arg-type]
            raise ValueError(f"{shown(dataset)} has no samples, so it cannot be repeated without end.")

    @property
    def endless(self) -> bool:
        return self.times is None

    def __len__(self) -> int:
        if self.times is None:
            raise TypeError(f"{self!r} has no end, and so no len(). repeat(times) has one.")
        return self.times * len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return sliced(self, key)
        return self.dataset[self._inner([key]).item()]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, count() if self.times is None else range(len(self)))

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]]:
        not_missing(method_of(self.dataset, "__getitems__"), "__getitems__")
        return lambda keys: fetch(self.dataset, self._inner(keys).tolist())

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        gather: Callable[[Any, Any], Any] = not_missing(method_of(self.dataset, "__gather__"), "__gather__")
        return lambda keys, empty: gather(self._inner(keys), empty)

    def _inner(self, keys: Any) -> NDArray[np.int64]:
        n: int = len(self.dataset)  # type: ignore[arg-type]
        return checked_keys(keys, (1 << 62) if self.times is None else len(self)) % n

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The blocks of all passes.

        The attribute is missing if the wrapped dataset has no blocks or is repeated endlessly.
        """
        return in_sequence(grouping_of(self), "dataset")

    __foresee__ = from_inside(foresee_of)
    __lengths__ = from_inside(lengths_within, "__lengths__")  # if endless, those of one pass: key k has entry k % n

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.repeat({'' if self.times is None else self.times})"


class ShuffledDataset(Subset[T_co]):
    """The samples of a dataset in random order: see `Dataset.shuffle`. The order is computed on demand."""

    def __init__(self, dataset: Keyed[Any], seed: int) -> None:
        super().__init__(dataset, Permuted(len(dataset), operator.index(seed)))  # type: ignore[arg-type]
        self.seed = seed

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.shuffle({self.seed})"


class FilteredDataset(Subset[T_co]):
    """The samples that `Dataset.filter` has kept. `indices` holds their keys in the wrapped dataset."""

    def __init__(self, dataset: Keyed[Any], indices: NDArray[np.int64], by: str) -> None:
        super().__init__(dataset, indices)
        self._by = by

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.filter({self._by})"


def filtered(dataset: Any, predicate: Callable[..., Any], with_key: bool) -> FilteredDataset[Any]:
    if getattr(dataset, "endless", False):
        raise TypeError(f"{dataset!r} has no end, so its samples cannot all be read. Use filter() before repeat().")
    judged: Any = MappedDataset(dataset, predicate, with_key=with_key, called="filter", convert=bool)
    kept = np.flatnonzero(_surveyed(judged, np.bool_, f"filter({name_of(predicate)})"))
    return FilteredDataset(dataset, kept, name_of(predicate))


def selected(dataset: Any, keys: ArrayLike) -> Subset[Any]:
    given = np.asarray(keys)
    if given.dtype == np.bool_:
        raise TypeError("select() takes keys, but got bools. np.flatnonzero(mask) makes keys of a mask.")
    n = _length(dataset)
    return Subset(dataset, checked_keys(given, 1 << 62 if n is None else n))


def _surveyed(judged: MappedDataset[Any], dtype: Any, what: str) -> NDArray[Any]:
    assert _survey is not None, "set when penstock is imported"
    return _survey(judged, dtype, what)
