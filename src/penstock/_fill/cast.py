"""Implements `dtype=`: converts numbers while they are written into the batch. Raises if a number does not fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.forms import MemoTable, is_namedtuple
from penstock._memory.guests import HANDLERS, LateLeaves
from penstock._memory.tree import Spec, flatten, unflatten
from penstock.batch import Batch
from penstock.errors import CastError

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""A function or `FieldMemory` that allocates a C-contiguous array, in the slab or with `np.empty`."""

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
"""Names that `dtype=` accepts. penstock.torch accepts more."""

# Bytes that are converted at once and then checked. During the check they are still in the processor's cache.
BYTES_AT_ONCE = 128 << 10

# Rows that are smaller than this (in bytes) are all written by one call, and checked afterwards.
_SMALL = 16 << 10

_NUMBERS = frozenset("iuf")  # numpy's codes for kinds of dtypes


@dataclass(frozen=True, slots=True)
class Cast:
    """The argument `dtype=` as plain data, which is sent to workers.

    `fields` has a pair for each field: the field's path and new dtype (None: unchanged). The path () means the whole
    batch. `named` is True if `dtype=` is a mapping. If `checked` is True, a value that does not fit raises CastError.
    """

    fields: tuple[tuple[tuple[str, ...], str | None], ...]
    named: bool
    checked: bool
    dtypes: tuple[np.dtype[Any], ...] = ()
    """Dtypes of another library, such as ml_dtypes, that `fields` may name in addition to those of numpy."""
    others: tuple[tuple[str, str], ...] = ()
    """Pairs of names (old dtype, new dtype) for arrays that `fields` does not convert."""
    why: str = ""
    """A sentence for error messages: why the loader converts fields that `dtype=` does not name."""

    @classmethod
    def of(cls, dtype: Any, casting: str, allowed: Sequence[str] = DTYPES, **more: Any) -> Cast | None:
        """Returns the cast for `dtype=` and `casting=`, or None if nothing is converted.

        `more` contains the other attributes of the cast.
        """
        if casting not in ("checked", "unsafe"):
            raise ValueError(f'casting must be "checked" or "unsafe", got {casting!r}.')
        if isinstance(dtype, Cast):  # from a face that accepts more names
            return dtype
        if dtype is None:
            return cls((), False, casting == "checked", **more) if more.get("others") else None
        if not isinstance(dtype, Mapping):
            return cls((((), _name(dtype, allowed)),), False, casting == "checked", **more)
        fields = {_path(key): None if one is None else _name(one, allowed) for key, one in dtype.items()}
        return cls(tuple(sorted(fields.items())), True, casting == "checked", **more)

    def describe(self) -> Any:
        """Returns the cast as plain data, for a resume state."""
        if not self.named:
            return self.fields[0][1] if self.fields else None
        return {".".join(path): name for path, name in self.fields}

    def root(self) -> FieldCast:
        return FieldCast((), self.fields, None, self, self.named)

    def named_dtype(self, name: str) -> np.dtype[Any] | None:
        """Returns the dtype with this name, or None if numpy arrays cannot have such a dtype."""
        return np.dtype(name) if name in _PLAIN else next((one for one in self.dtypes if one.name == name), None)


def _name(dtype: Any, allowed: Sequence[str]) -> str:
    try:
        name: str = np.dtype(dtype).name
    except TypeError:
        # A dtype of another library prints as its own name after the library's: library.float32.
        name = str(dtype) if isinstance(dtype, str) else str(dtype).rpartition(".")[2]
    if name not in allowed:
        raise ValueError(
            f"dtype must be None, one of {', '.join(allowed)}, or a mapping from fields to these, got {dtype!r}."
        )
    return name


def _path(key: Any) -> tuple[str, ...]:
    """Splits a key such as `"a.b"`, `("a", "b")` or `0`. A name that contains a dot must be given in a tuple."""
    if isinstance(key, tuple):
        return tuple(map(str, key))
    return tuple(key.split(".")) if isinstance(key, str) else (str(key),)


class FieldCast:
    """The conversion of one field of a batch, including the fields inside this field."""

    __slots__ = ("_cast", "_children", "_dtype", "_made", "_named", "_specs", "_targets", "checked", "path")

    def __init__(
        self,
        path: tuple[str, ...],
        fields: Iterable[tuple[tuple[str, ...], str | None]],
        dtype: str | None,
        cast: Cast,
        named: bool,
    ) -> None:
        here = [name for rest, name in fields if not rest]
        self.path = path
        self._dtype = here[0] if here else dtype
        self._named = named and bool(here)
        self._cast, self.checked = cast, cast.checked
        # The named fields inside this one, by the next key of their path.
        self._children: dict[str, list[tuple[tuple[str, ...], str | None]]] = {}
        for rest, name in fields:
            if rest:
                self._children.setdefault(rest[0], []).append((rest[1:], name))
        self._made = MemoTable(self._make, 256)
        self._specs = MemoTable(self._walk, 256)
        self._targets = MemoTable(self._target, 256)

    def __str__(self) -> str:
        return f"the field {'.'.join(self.path)!r}" if self.path else "the batch"

    def below(self, keys: Iterable[Any]) -> list[FieldCast]:
        """Returns the conversion for each key of a container. Raises CastError if `dtype=` names a missing key."""
        names = list(map(str, keys))
        missing = self._children.keys() - set(names)
        if missing:
            absent = ".".join((*self.path, min(missing)))
            raise CastError(f"dtype= names the field {absent!r}, but {self} has only {names[:12]}.")
        return [self._made[name] for name in names]

    def _make(self, name: str) -> FieldCast:
        return FieldCast((*self.path, name), self._children.get(name, ()), self._dtype, self._cast, True)

    def of(self, spec: Spec) -> list[FieldCast]:
        """Returns the conversion for each leaf of a tree. In a `Batch`, only the data is converted."""
        return self._specs[spec]

    def _walk(self, spec: Spec | None) -> list[FieldCast]:
        if spec is None or spec.kind is None:
            return [self]
        if spec.kind is list and spec.children is None and not self._children:
            return [self] * spec.count  # a column of text, in torch's batches, is a list
        names: Any = spec.names
        if spec.kind is Batch:
            fields = [self if name == "data" else _UNCHANGED for name in names]
        elif names is None and is_namedtuple(spec.kind):
            fields = self.below(spec.kind._fields)  # type: ignore[attr-defined]
        else:
            fields = self.below(range(len(spec.below)) if names is None else names)
        return [leaf for field, child in zip(fields, spec.below, strict=True) for leaf in field._walk(child)]

    def wanted(self, kind: str, what: str, of: object = "") -> str | None:
        """Returns the dtype that arrays of this numpy kind are converted to, or None if they stay unchanged.

        `what` and `of` describe the field in error messages.
        """
        if self._children:
            named = ".".join((*self.path, min(self._children)))
            raise CastError(f"dtype= names the field {named!r}, but {self} is {what}{of} and has no fields.")
        if kind in _NUMBERS or (kind == "b" and self._named):
            return self._dtype
        if self._named and self._dtype is not None:
            raise CastError(
                f"dtype= names {self}, which is {what}{of}: only arrays of numbers and bools can be converted. "
                "Convert the field in the dataset, or leave it out of dtype=."
            )
        return None

    def target(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """Returns the dtype that an array of this dtype is converted to, or None if the array stays unchanged."""
        return self._targets[dtype]

    def _target(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        name = self.wanted(_kind(dtype), "an array of ", dtype)
        if name is None:
            name = next((goal for source, goal in self._cast.others if source == dtype.name), None)
        goal = dtype if name is None else self._cast.named_dtype(name)
        if goal is None:
            raise CastError(f"{self} is a numpy array, and numpy has no {name}. Make it a tensor.")
        return None if goal == dtype else goal

    def write(self, out: NDArray[Any], source: NDArray[Any], first: int = 0) -> None:
        """Assigns `out[...] = source`, with checks unless `casting="unsafe"`.

        Row numbers in error messages start at `first`.
        """
        if _limits(source.dtype, out.dtype) is None:  # nothing can be lost, so numpy has nothing to warn about
            np.copyto(out, source, casting="unsafe")
            return
        with np.errstate(all="ignore"):
            self._write(out, source, first, source.size // len(source) if source.ndim and len(source) else 1)

    def stack(self, out: NDArray[Any], rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        """Assigns `out[i] = rows[i]` for every i, with the same checks as `write`.

        `dtype` must be able to hold the values of all rows. The caller ensures that all rows have the same length.
        Raises ValueError if other dimensions of the rows differ.
        """
        with np.errstate(all="ignore"):
            sure = not self.checked or _limits(dtype, out.dtype) is None
            if sure or rows[0].nbytes < _SMALL:
                np.concatenate(rows, out=out.reshape((-1, *out.shape[2:])), casting="unsafe")
                if sure or not out.size:
                    return
                if out.dtype.kind == "f" and -np.inf < out.min() and out.max() < np.inf:
                    return  # no value has become infinite
            if {row.shape for row in rows} != {out.shape[1:]}:
                raise ValueError("other shapes")
            for row, source in enumerate(rows):
                self._write(out[row], source, row, source.size or 1)

    def _write(self, out: NDArray[Any], source: NDArray[Any], first: int, per_row: int) -> None:
        """Writes and checks the array part by part. `per_row` is the number of elements in a row."""
        limits = _limits(source.dtype, out.dtype) if self.checked else None
        if limits is None or not source.size:
            np.copyto(out, source, casting="unsafe")
            return
        low, high = limits
        exact = _kind(source.dtype) == "f" and _kind(out.dtype) != "f"
        if source.flags.c_contiguous:
            out, source = out.reshape(-1), source.reshape(-1)
        unit = source.size // len(source)
        size = max(1, BYTES_AT_ONCE // (unit * source.itemsize))
        for at in range(0, len(source), size):
            here, part = out[at : at + size], source[at : at + size]
            np.copyto(here, part, casting="unsafe")
            # Comparisons with NaN are false, so NaN does not fit either.
            fits = low < part.min().item() and part.max().item() < high
            if not fits or (exact and not (here == part).all()):
                lost = np.flatnonzero(_lost(part, here, high))
                if lost.size:
                    row = first + (at * unit + int(lost[0])) // per_row
                    self.lose(part.flat[lost[0]].item(), out.dtype.name, row)

    def lose(self, value: Any, name: str, row: int) -> None:
        if "float" in name:
            why = f"it is outside the range of {name}"
        elif -(2**64) < value < 2**64 and value != int(value):
            why = f"{name} holds whole numbers only"
        else:  # NaN too
            bounds = _info(self._cast.named_dtype(name) or np.dtype(name))
            why = f"{name} holds {bounds.min} to {bounds.max}"
        chosen = self._dtype is None and bool(self._cast.why)  # by the loader, and not by dtype=
        error = CastError(
            f"{value!r} in {self} (row {row}) would be lost, because {why}. {self._cast.why if chosen else ''}"
            f"{' ' * chosen}Change the value, choose another dtype= for the field, or allow the loss with "
            'casting="unsafe".'
        )
        error.rows = (row,)
        raise error


_UNCHANGED = FieldCast((), (), None, Cast((), False, False), False)

_PLAIN = frozenset({*DTYPES, "int16", "uint16", "uint32", "uint64"})


@lru_cache(maxsize=256)
def _info(dtype: np.dtype[Any]) -> Any:
    """Returns the `finfo` or `iinfo` of a dtype, which may come from another library, such as ml_dtypes."""
    library: Any = sys.modules[dtype.type.__module__]  # numpy, or where the dtype comes from
    try:
        return library.finfo(dtype)
    except ValueError:
        return library.iinfo(dtype)


def _kind(dtype: np.dtype[Any]) -> str:
    """Returns numpy's code for the kind of a dtype. Dtypes of other libraries count as float or integer dtypes."""
    if dtype.type.__module__ == "numpy":
        return dtype.kind
    return "f" if hasattr(_info(dtype), "eps") else "i"


@lru_cache(maxsize=256)
def _limits(source: np.dtype[Any], goal: np.dtype[Any]) -> tuple[float, float] | None:
    """Returns exclusive bounds for the values that fit into `goal`, or None if every value of `source` fits.

    Rounding a float is allowed, as in numpy's "same_kind". A finite value that would become infinite does not fit.
    """
    if source == goal or source.kind == "b":
        return None
    bounds, given = _info(goal), _info(source)
    if _kind(goal) == "f":
        low, high = float(bounds.min), float(bounds.max)  # values a little beyond are rounded, but `_lost` is exact
        return None if low < float(given.min) and float(given.max) < high else (low, high)
    if _kind(source) != "f" and given.min >= bounds.min and given.max <= bounds.max:
        return None
    return int(bounds.min) - 1, int(bounds.max) + 1


def _lost(source: NDArray[Any], out: NDArray[Any], high: float) -> NDArray[np.bool_]:
    lost: NDArray[np.bool_]
    if _kind(out.dtype) == "f":
        lost = np.isfinite(source) & ~np.isfinite(out)
    else:
        lost = (out if out.dtype.kind != "V" else out.astype(np.int64)) != source
        if _kind(source.dtype) == "f":
            # Some processors convert 2.0**63 to the largest int64, and as floats the two are equal.
            lost |= source >= float(high)
    return lost


class FieldMemory:
    """Combines a `FieldCast` with `empty`, a function that allocates arrays. Calling this object calls `empty`."""

    __slots__ = ("empty", "field")

    def __init__(self, field: FieldCast, empty: Empty) -> None:
        self.field = field
        self.empty = empty

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.empty(shape, dtype)

    def below(self, keys: Iterable[Any]) -> list[FieldMemory]:
        return [FieldMemory(field, self.empty) for field in self.field.below(keys)]

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Allocates an array for converted values. `dtype` is the dtype before the conversion."""
        return self.empty(shape, self.field.target(dtype) or dtype)

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        out = self.allocate(array.shape, array.dtype)
        self.field.write(out, array)
        return out

    def stack(self, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Stacks and converts arrays of the same shape. `dtype` must be able to hold all values."""
        out = self.allocate((len(rows), *rows[0].shape), dtype)
        self.field.stack(out, rows, dtype)
        return out

    def gather(self, column: NDArray[Any], keys: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the rows at these keys, converted in parts that fit into the processor's cache."""
        out = self.allocate((len(keys), *column.shape[1:]), column.dtype)
        size = max(1, BYTES_AT_ONCE * len(column) // max(1, column.nbytes))
        # take is faster, but if a column is not contiguous, take first copies the whole column.
        take = column.take if column.flags.c_contiguous else None
        for at in range(0, len(keys), size):
            some = keys[at : at + size]
            rows = column[some] if take is None else take(some, 0, None, "clip")
            self.field.write(out[at : at + size], rows, at)
        return out

    def finish(self, tree: object, rows: int) -> Any:
        """Returns the batch with all arrays converted. `rows` is the number of samples."""
        if type(tree) is LateLeaves:
            return tree._replace(batch=self.finish(tree.batch, rows))
        leaves, spec = flatten(tree)
        made = []
        for leaf, field in zip(leaves, self.field.of(spec), strict=True):
            try:
                made.append(converted(leaf, field, self.empty))
            except CastError as error:
                if tuple(getattr(leaf, "shape", ())[:1]) != (rows,):
                    error.rows = ()  # the first axis does not count samples
                raise
        return tree if all(map(is_, made, leaves)) else unflatten(spec, made)


def converted(leaf: Any, field: FieldCast, empty: Empty) -> Any:
    """Returns the leaf itself if it needs no conversion, otherwise a converted copy in memory from `empty`."""
    kind = type(leaf)
    if kind is np.ndarray or kind is np.memmap:
        return leaf if field.target(leaf.dtype) is None else FieldMemory(field, empty).put(leaf)
    handler = HANDLERS[kind]
    if handler is not None and handler.cast is not None:
        return handler.cast(leaf, field, empty)
    field.wanted("O", "a ", kind.__name__)
    return leaf
