"""Numbers that a batch holds as another dtype: converted while they are written, and nothing lost unseen.

`dtype=` names a dtype for all numbers, or for single fields. A `Cast` is that, as it travels to workers; a `Field`
is what it means for one place of a batch; an `Into` is a field and the memory that is to be written to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._memory.leaves import CASTS
from penstock._memory.tree import Spec, flatten, is_namedtuple, unflatten
from penstock.batch import Batch
from penstock.errors import CastError

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
"""What `dtype=` may name. Those of torch beside them are added by penstock.torch."""

Empty = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]

# Bytes that are converted, and then looked at again, at once: they are still in the processor's cache then.
_BLOCK = 128 << 10

# Rows of fewer bytes are all written by one call, and looked at afterwards.
_SMALL = 16 << 10

_NUMBERS = frozenset("iuf")  # kinds, as numpy has them

_MOST_SPECS = 256  # structures that a Field remembers


@dataclass(frozen=True, slots=True)
class Cast:
    """Which fields become which dtype (None: as it is), by path; the path () is the whole batch."""

    fields: tuple[tuple[tuple[str, ...], str | None], ...]
    named: bool
    checked: bool

    @classmethod
    def of(cls, dtype: Any, casting: str, allowed: Sequence[str] = DTYPES) -> Cast | None:
        """The cast that `dtype=` and `casting=` ask for, or an error that says what is allowed."""
        if casting not in ("checked", "unsafe"):
            raise ValueError(f'casting must be "checked" or "unsafe", got {casting!r}.')
        if dtype is None or isinstance(dtype, Cast):  # of penstock.torch, which allows more
            return dtype
        if not isinstance(dtype, Mapping):
            return cls((((), _name(dtype, allowed)),), False, casting == "checked")
        fields = {
            _path(key): None if value is None else _name(value, allowed) for key, value in dtype.items()
        }
        return cls(tuple(sorted(fields.items())), True, casting == "checked")

    def describe(self) -> Any:
        """As plain data for a resume state."""
        if not self.named:
            return self.fields[0][1]
        return {".".join(path): name for path, name in self.fields}

    def root(self) -> Field:
        return Field((), self.fields, None, self.checked, self.named)


def _name(dtype: Any, allowed: Sequence[str]) -> str:
    try:
        # A torch dtype is no numpy one, but it has the same names.
        name = (
            str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else np.dtype(dtype).name
        )
    except TypeError:
        name = str(dtype)
    if name not in allowed:
        raise ValueError(
            f"dtype must be None, one of {', '.join(allowed)}, or a mapping from fields to these, got {dtype!r}."
        )
    return name


def _path(key: Any) -> tuple[str, ...]:
    """`"a.b"`, `("a", "b")` and `0` as keys in text. A key that has a dot in it can only be named by a tuple."""
    if isinstance(key, tuple):
        return tuple(map(str, key))
    return tuple(key.split(".")) if isinstance(key, str) else (str(key),)


class Field:
    """What becomes of the numbers at one place of a batch, and below it."""

    __slots__ = ("_children", "_dtype", "_made", "_named", "_specs", "_targets", "checked", "path")

    def __init__(
        self,
        path: tuple[str, ...],
        fields: Iterable[tuple[tuple[str, ...], str | None]],
        dtype: str | None,
        checked: bool,
        named: bool,
    ) -> None:
        here = [name for rest, name in fields if not rest]
        self.path = path
        self._dtype = here[0] if here else dtype
        self._named = named and bool(here)
        self.checked = checked
        # What is named below, by the next key.
        self._children: dict[str, list[tuple[tuple[str, ...], str | None]]] = {}
        for rest, name in fields:
            if rest:
                self._children.setdefault(rest[0], []).append((rest[1:], name))
        self._made: dict[str, Field] = {}
        self._specs: dict[Spec, list[Field]] = {}
        self._targets: dict[np.dtype[Any], np.dtype[Any] | None] = {}

    def __str__(self) -> str:
        return f"the field {'.'.join(self.path)!r}" if self.path else "the batch"

    def below(self, keys: Iterable[Any]) -> list[Field]:
        """The fields of a container, whose keys these are."""
        names = list(map(str, keys))
        missing = self._children.keys() - set(names)
        if missing:
            absent = ".".join((*self.path, min(missing)))
            raise CastError(f"dtype= names the field {absent!r}, but {self} has only {names[:12]}.")
        return [self._made.get(name) or self._make(name) for name in names]

    def _make(self, name: str) -> Field:
        if len(self._made) >= _MOST_SPECS:
            self._made.clear()
        made = Field((*self.path, name), self._children.get(name, ()), self._dtype, self.checked, True)
        self._made[name] = made
        return made

    def of(self, spec: Spec) -> list[Field]:
        """The field of each leaf of a tree. Beside its data, nothing of a `Batch` is converted."""
        known = self._specs.get(spec)
        if known is None:
            if len(self._specs) >= _MOST_SPECS:
                self._specs.clear()
            known = self._specs[spec] = self._walk(spec)
        return known

    def _walk(self, spec: Spec | None) -> list[Field]:
        if spec is None or spec.kind is None:
            return [self]
        size = spec.count if spec.children is None else len(spec.children)
        below = spec.children or (None,) * size
        fields = self._of_batch(spec) if spec.kind is Batch else self.below(_keys(spec, size))
        return [leaf for field, child in zip(fields, below, strict=True) for leaf in field._walk(child)]

    def _of_batch(self, spec: Spec) -> list[Field]:
        return [self if name == "data" else _AS_IT_IS for name in spec.keys]  # type: ignore[attr-defined]

    def wanted(self, kind: str, what: str, of: object = "") -> str | None:
        """The name of the dtype that an array of this kind (as numpy has them) becomes; None where it stays.

        `what`, and `of`, say what it is, for an error.
        """
        if self._children:
            named = ".".join((*self.path, min(self._children)))
            raise CastError(f"dtype= names the field {named!r}, but {self} is {what}{of} and has no fields.")
        if kind in _NUMBERS or (kind == "b" and self._named):
            return self._dtype
        if self._named and self._dtype is not None:
            raise CastError(
                f"dtype= names {self}, which is {what}{of}: only arrays of numbers and bools are converted. Convert "
                "it in the dataset, or leave it out of dtype=."
            )
        return None

    def target(self, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
        """What an array of this dtype becomes; None where it stays as it is."""
        if dtype in self._targets:
            return self._targets[dtype]
        if len(self._targets) >= _MOST_SPECS:
            self._targets.clear()
        name = self.wanted(dtype.kind, "an array of ", dtype)
        if name is None:
            self._targets[dtype] = None
            return None
        if name not in DTYPES:
            raise CastError(f"{self} is an array of numpy's, which has no {name}. Make it a tensor.")
        goal = np.dtype(name)
        self._targets[dtype] = None if goal == dtype else goal
        return self._targets[dtype]

    def write(self, out: NDArray[Any], source: NDArray[Any], first: int = 0) -> None:
        """`out[...] = source`; an error names a value that `out` cannot hold. Its rows are counted from `first`."""
        with np.errstate(all="ignore"):
            self._write(out, source, first, source.size // len(source) if source.ndim and len(source) else 1)

    def stack(self, out: NDArray[Any], rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        """`out[i] = rows[i]` for all, whose lengths are equal; a ValueError where their shapes are not.

        `dtype` is one that holds them all.
        """
        with np.errstate(all="ignore"):
            sure = not self.checked or _limits(dtype, out.dtype) is None
            if sure or rows[0].nbytes < _SMALL:
                np.concatenate(rows, out=out.reshape((-1, *out.shape[2:])), casting="unsafe")
                if sure or not out.size:
                    return
                if out.dtype.kind == "f" and -np.inf < out.min() and out.max() < np.inf:
                    return  # whatever they were, none has become infinite
            if {row.shape for row in rows} != {out.shape[1:]}:
                raise ValueError("other shapes")
            for row, source in enumerate(rows):
                self._write(out[row], source, row, source.size or 1)

    def _write(self, out: NDArray[Any], source: NDArray[Any], first: int, per_row: int) -> None:
        """In blocks, each of which is looked at before the next; a row has `per_row` elements."""
        limits = _limits(source.dtype, out.dtype) if self.checked else None
        if limits is None or not source.size:
            np.copyto(out, source, casting="unsafe")
            return
        low, high = limits
        exact = source.dtype.kind == "f" and out.dtype.kind != "f"
        if source.flags.c_contiguous:
            out, source = out.reshape(-1), source.reshape(-1)
        unit = source.size // len(source)
        size = max(1, _BLOCK // (unit * source.itemsize))
        for at in range(0, len(source), size):
            here, part = out[at : at + size], source[at : at + size]
            np.copyto(here, part, casting="unsafe")
            # Comparisons with NaN are false, so that one is found too.
            fits = low < part.min().item() and part.max().item() < high
            if not fits or (exact and not (here == part).all()):
                lost = np.flatnonzero(_lost(part, here, high))
                if lost.size:
                    row = first + (at * unit + int(lost[0])) // per_row
                    self.lose(part.flat[lost[0]].item(), out.dtype.name, row)

    def lose(self, value: Any, name: str, row: int) -> None:
        """Raises for a value that the dtype of this name does not hold."""
        if "float" in name:
            why = f"it is beyond all numbers of {name}"
        elif -(2**64) < value < 2**64 and value != int(value):
            why = f"{name} holds whole numbers only"
        else:  # NaN too
            why = f"{name} holds {np.iinfo(name).min} to {np.iinfo(name).max}"
        error = CastError(
            f"{value!r} in {self} (row {row}) would be lost, because {why}. Change the value, choose another dtype= "
            'for the field, or allow it with casting="unsafe".'
        )
        error.rows = (row,)
        raise error


_AS_IT_IS = Field((), (), None, False, False)


class Into:
    """The memory of a batch, for one field of it. Who does not know of fields may call it as any `empty`."""

    __slots__ = ("empty", "field")

    def __init__(self, field: Field, empty: Empty) -> None:
        self.field = field
        self.empty = empty

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.empty(shape, dtype)

    def below(self, keys: Iterable[Any]) -> list[Into]:
        return [Into(field, self.empty) for field in self.field.below(keys)]

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """As `empty`, for what is to be an array of `dtype` before it is converted."""
        return self.empty(shape, self.field.target(dtype) or dtype)

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array, there."""
        out = self.room(array.shape, array.dtype)
        self.field.write(out, array)
        return out

    def stack(self, rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Arrays of one shape, that `dtype` holds, one after the other."""
        out = self.room((len(rows), *rows[0].shape), dtype)
        self.field.stack(out, rows, dtype)
        return out

    def gather(self, column: NDArray[Any], keys: NDArray[np.int64]) -> NDArray[Any]:
        """The rows of a column that have these keys; no more of them at once than fit into the cache."""
        out = self.room((len(keys), *column.shape[1:]), column.dtype)
        size = max(1, _BLOCK * len(column) // max(1, column.nbytes))
        # take is quicker, but makes a contiguous copy of the whole column first where it is not one.
        take = column.take if column.flags.c_contiguous else None
        for at in range(0, len(keys), size):
            some = keys[at : at + size]
            rows = column[some] if take is None else take(some, 0, None, "clip")
            self.field.write(out[at : at + size], rows, at)
        return out

    def finish(self, tree: object, rows: int) -> Any:
        """The tree, with those of its arrays converted that were not yet. It is a batch of so many samples."""
        leaves, spec = flatten(tree)
        made = []
        for leaf, field in zip(leaves, self.field.of(spec), strict=True):
            try:
                made.append(converted(leaf, field, self.empty))
            except CastError as error:
                if tuple(getattr(leaf, "shape", ())[:1]) != (rows,):
                    error.rows = ()  # its first axis is not that of the samples
                raise
        return tree if all(map(is_, made, leaves)) else unflatten(spec, made)


def converted(leaf: Any, field: Field, empty: Empty) -> Any:
    """The leaf as the field's dtype, in memory of `empty`; itself where nothing is converted."""
    kind = type(leaf)
    if kind is np.ndarray or kind is np.memmap:
        return leaf if field.target(leaf.dtype) is None else Into(field, empty).put(leaf)
    if is_tensor(kind) and kind in CASTS:
        return CASTS[kind](leaf, field, empty)
    field.wanted("O", "a ", kind.__name__)
    return leaf


_tensors: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def is_tensor(kind: type) -> bool:
    """Whether it is torch's tensor, or derives from it. Then penstock.torch, which knows them, is imported."""
    known = _tensors.get(kind)
    if known is None:
        known = any((base.__module__, base.__name__) == ("torch", "Tensor") for base in kind.__mro__)
        if known:
            from penstock.torch import _tensors as tensors

            tensors.register()
        _tensors[kind] = known
    return known


def _keys(spec: Spec, size: int) -> Sequence[Any]:
    """The keys of a container's values."""
    if type(spec.keys) is tuple:
        return spec.keys[len(spec.keys) - size :]  # a defaultdict's begin with its factory
    assert spec.kind is not None
    if is_namedtuple(spec.kind):
        names: Sequence[Any] = spec.kind._fields  # type: ignore[attr-defined]
        return names
    return range(size)


@lru_cache(maxsize=256)
def _limits(source: np.dtype[Any], goal: np.dtype[Any]) -> tuple[float, float] | None:
    """What lies between the two has a place in `goal`; None where all of `source` has.

    A float that is rounded is not lost, as it is not in numpy's "same_kind"; one that becomes infinite is.
    """
    if source == goal or source.kind == "b":
        return None
    if goal.kind == "f":
        edge = float(np.finfo(goal).max)  # what is little more may still be rounded to it: `_lost` is exact
        most = np.finfo(source).max if source.kind == "f" else np.iinfo(source).max
        return None if most < edge else (-edge, edge)
    bounds = np.iinfo(goal)
    if source.kind != "f" and np.iinfo(source).min >= bounds.min and np.iinfo(source).max <= bounds.max:
        return None
    return int(bounds.min) - 1, int(bounds.max) + 1


def _lost(source: NDArray[Any], out: NDArray[Any], high: float) -> NDArray[np.bool_]:
    lost: NDArray[np.bool_]
    if out.dtype.kind == "f":
        lost = np.isinf(out) & np.isfinite(source)
    else:
        lost = out != source
        if source.dtype.kind == "f":
            # Some processors give the largest int64 for 2.0**63, and as floats the two are equal.
            lost |= source >= float(high)
    return lost
