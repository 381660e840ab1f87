"""`penstock.pack`, which packs documents into rows of equal length. Rows are planned from document lengths alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._at_work import parts_of_samples
from penstock._fill.cast import Empty, FieldMemory
from penstock._printable import counted
from penstock.plan._budget import LengthTable
from penstock.plan._order import Order, Passes, Sequential
from penstock.plan._packing import PACKED_TOGETHER, PackingFigures, PackWindows
from penstock.plan._samplers import positive
from penstock.plan._windows import ItemKey, WindowPlan
from penstock.source._dataset import Dataset, fetch, from_inside, is_stream, sliced
from penstock.source._nested import (
    TOKENS,
    Views,
    fingerprint_of,
    foresee_of,
    gathers_numpy,
    lengths_within,
    method_of,
    pass_of,
    shown,
)
from penstock.source._stages import MeasuredDataset, dataset, passed

Array = NDArray[Any]
Part = tuple[int, int, int]
GivenLengths = ArrayLike | Callable[[Any], int] | None

_OWN = ("positions", "segments", "documents")


def pack(
    documents: Any,
    length: int | Mapping[str, int] = 4096,
    lengths: GivenLengths | Mapping[str, GivenLengths] = None,
    method: Literal["best_fit", "concat"] = "best_fit",
    overflow: Literal["split", "truncate", "drop", "error"] = "split",
    window: int = PACKED_TOGETHER,
    eos: int | None = None,
) -> PackedRows:
    """Returns a dataset of rows of `length` tokens. A row has several documents, and padding only at its end.

    A document is an array or a list of token ids, or a dict with such a field: `tokens`, `input_ids`, or else the
    first field with integers along one axis. A row is a dict of arrays of `length` elements:

    - `tokens`: the ids. Padding is 0.
    - `positions`: 0, 1, 2, ... from the beginning of each part of a document, also if the part continues a document.
    - `segments`: 1 for the tokens of the first part, 2 for those of the second, and so on; 0 for padding.
    - `documents`: the key of the document of each token; -1 for padding.
    - every other field of the documents with one number or array for each token, such as `loss_mask`. All documents
      need it.

    The rows are planned in windows of `window` documents, in the order of the loader, from the lengths alone, and
    anew in each epoch. So they do not depend on the number of workers and ranks, and a loader can resume at any row.
    `method="best_fit"` fills rows best. `"concat"` puts the documents one after the other, and cuts them where a row
    is full. If `overflow` is not "split", a document that does not fit into the rest of a row begins the next one.

    `overflow` says what happens to a document that is longer than `length`: it is divided among several rows
    ("split"), cut to `length` ("truncate"), left out ("drop"), or a ValueError ("error"). Documents without tokens
    take no room. `figures()` counts all of these.

    `eos` is a token that is appended to each document, but not to its parts: it counts as the last token of the
    document. At this position, the other fields repeat their last value.

    `lengths` has the number of tokens of each document, without `eos`: an array, or a function that measures a
    document (all are read once, and the result is kept for files). By default, the dataset must know its lengths, as
    `Megatron`, `Arrow` and `with_lengths` do.

    For several kinds of cost, `length={"text": 4096, "images": 8}` with `lengths={"text": ..., "images": ...}` keeps
    within all of them, and needs `overflow="drop"` or `"error"`. The first kind counts the tokens. A field with the
    name of another kind, such as `images`, is packed along its first axis.

    >>> import penstock
    >>> rows = penstock.pack([[1, 2, 3], [4, 5], [6]], length=4, lengths=len)
    >>> len(rows), rows[0]["tokens"], rows[0]["segments"], rows[1]["tokens"]
    (2, array([1, 2, 3, 6]), array([1, 1, 1, 2], dtype=int32), array([4, 5, 0, 0]))
    """
    inside = dataset(documents)
    if is_stream(inside):
        raise TypeError(
            f"pack plans rows from the lengths of documents with keys, but {shown(inside)} is a stream. Read the "
            "data by key (penstock.open), or collect the stream in a list."
        )
    capacities = _capacities(length)
    tables = _tables(inside, list(capacities), lengths)
    if eos is not None and (isinstance(eos, bool) or not hasattr(eos, "__index__")):
        raise TypeError(f"eos must be the id of a token, or None, got {eos!r}.")
    how = Packing(
        tuple(capacities),
        tuple(capacities.values()),
        method,
        overflow,
        positive("window", window),
        None if eos is None else operator.index(eos),
    )
    return PackedRows(inside, tables, how)


@dataclass(frozen=True, slots=True)
class Packing:
    """The arguments of `pack`. `kinds` names the kinds of cost, and `capacities` has a row's limit for each kind."""

    kinds: tuple[str, ...]
    capacities: tuple[int, ...]
    method: str
    overflow: str
    window: int
    eos: int | None

    def __str__(self) -> str:
        length: Any = self.capacities[0]
        if len(self.kinds) > 1:
            length = dict(zip(self.kinds, self.capacities, strict=True))
        text = f"length={length}"
        for name, default in (
            ("method", "best_fit"),
            ("overflow", "split"),
            ("window", PACKED_TOGETHER),
            ("eos", None),
        ):
            value = getattr(self, name)
            text += "" if value == default else f", {name}={value!r}"
        return text


class PackedRows(Dataset[dict[str, Array]]):
    """Rows that are packed from documents: see `penstock.pack`.

    A loader plans the rows of each epoch. The key of a planned row lists the parts of documents in the row:
    `(document, begin, end, document, begin, end, ...)`.

    A key may also be an integer: the number of a row when the documents are packed in their own order. To find that
    row, all windows before it are planned. `len()` plans all windows.
    """

    def __init__(self, documents: Any, lengths: Sequence[LengthTable], how: Packing) -> None:
        self.documents, self.how = documents, how
        self._tables = tuple(lengths)
        self._rows = _RowMaker(how, self._tables)
        self.__windows__(Sequential(0), None)  # raises if the options are wrong

    def __windows__(self, order: Order, seed: int | None) -> PackWindows:
        """Plans the rows for documents in this order. Without a seed, the rows are not shuffled."""
        how = self.how
        extra = int(how.eos is not None)
        return PackWindows(order, self._tables, how.capacities, how.method, how.overflow, extra, how.window, seed)

    __mixture__ = passed("__mixture__", "documents")
    state_dict = passed("state_dict", "documents")
    load_state_dict = passed("load_state_dict", "documents")

    __foresee__ = from_inside(foresee_of, inside="documents")

    @property
    def endless(self) -> bool:
        return bool(getattr(self.documents, "endless", False))

    @property
    def names_of(self) -> Callable[[Sequence[Any]], list[tuple[Any, ...]]]:
        """Returns the names of the sources in each row, one name for each part.

        The attribute is missing if the documents have no `names_of`.
        """
        names = method_of(self.documents, "names_of")
        if names is None:
            raise AttributeError(f"{type(self.documents).__name__} has no names_of")
        return lambda keys: [tuple(names([part[0] for part in self.parts_of(key)])) for key in keys]

    def __fingerprint__(self) -> str:
        lengths = blake2b(digest_size=8)
        for table in self._tables:
            lengths.update(table.numbers.astype("<i8", copy=False).tobytes())
        inner = fingerprint_of(self.documents)
        return f"{inner + ', ' if inner else ''}packed with {self.how}, lengths {lengths.hexdigest()}"

    # Rows by number.

    @cached_property
    def _plan(self) -> WindowPlan:
        order = method_of(self.documents, "__order__")
        if order is not None:
            return WindowPlan(self.__windows__(order(0, self.how.window), None))
        once = pass_of(self.documents)
        return WindowPlan(self.__windows__(Sequential(len(self.documents)) if once is None else Passes(once), None))

    def __len__(self) -> int:
        rows = self._plan.steps(0)
        if rows is None:
            raise TypeError(f"{self!r} has no end, and so no len().")
        return rows

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self[key] for keys in self._plan.draw(0) for key in keys)

    def parts_of(self, key: Any) -> list[Part]:
        """Returns the parts of a row: tuples (document's key, begin, end), where begin and end are token indices."""
        if isinstance(key, tuple):
            return list(zip(key[::3], key[1::3], key[2::3], strict=True))
        return self.parts_of(self._item(operator.index(key)))

    def _item(self, number: int) -> ItemKey:
        at = number + len(self) if number < 0 else number
        try:
            found: ItemKey = self._plan.keys(0, at)[0]
        except IndexError:
            raise IndexError(f"row {number} is not in a dataset with {len(self):,} rows.") from None
        return found

    def figures(self) -> PackingFigures:
        """Counts documents, rows, tokens and padding, for the documents in their own order.

        Plans all rows, but reads no documents. In another order, each window has different documents, so the number
        of rows may differ slightly.
        """
        windows = self._plan.windows
        assert isinstance(windows, PackWindows)
        count = windows.count(0)
        if count is None:
            raise TypeError(f"{self!r} has no end, so its rows cannot be counted.")
        found = PackingFigures()
        for number in range(count):
            found = found.plus(windows.figures(0, number))
        return found

    # Samples.

    def __getitem__(self, key: Any) -> Any:
        return sliced(self, key) if isinstance(key, slice) else self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Any]) -> list[dict[str, Array]]:
        rows, documents = self._read(keys)
        return [self._rows.columns([row], documents, np.empty, single=True) for row in rows]

    @gathers_numpy
    def __gather__(self, keys: Sequence[Any], empty: Empty) -> Any:
        """Returns the rows as a batch, or NotImplemented if the loader must collate them."""
        rows, documents = self._read(keys)
        if documents.form is None:
            forms = [self._rows.form(row, documents) for row in rows]
            if any(form != forms[0] for form in forms):
                return NotImplemented
        return self._rows.columns(rows, documents, empty)

    def _read(self, keys: Sequence[Any]) -> tuple[list[list[Part]], _Documents]:
        """Reads all documents of these rows together. Returns the parts of each row, and the documents."""
        rows = [self.parts_of(tuple(key) if isinstance(key, (list, np.ndarray)) else key) for key in keys]
        names = list(dict.fromkeys(part[0] for row in rows for part in row))
        views: Views | None = method_of(self.documents, "__views__")
        arrays = None if views is None else views(names)
        documents = None if arrays is None else self._rows.alike(names, arrays)
        if documents is None:
            with parts_of_samples(names):
                samples = fetch(self.documents, names)
            documents = self._rows.alike(names, _array_fields(samples)) or self._rows.opened(names, samples)
        return rows, documents

    def __repr__(self) -> str:
        return f"pack({shown(self.documents)}, {self.how})"


class _PackedField(NamedTuple):
    """A field of a document. It has one element for each token, or for each unit of another kind of cost."""

    kind: int
    values: Array


_Fields = dict[str, _PackedField]
_RowForm = dict[str, tuple[int, tuple[int, ...], "np.dtype[Any]"]]


class _Documents(NamedTuple):
    """The documents of some rows. `values[name][key]` has the values of a field of the document with this key.

    If all documents have the same fields, `form` describes every row. Otherwise, `form` is None, and `fields`
    has the fields of each document.
    """

    values: dict[str, dict[int, Array]]
    form: _RowForm | None
    fields: dict[int, _Fields]


class _RowMaker:
    """Makes rows from documents that have already been read."""

    def __init__(self, how: Packing, tables: Sequence[LengthTable]) -> None:
        self._how, self._tables = how, tables
        self._counting = np.arange(how.capacities[0], dtype=np.int32)
        self._zeros = np.zeros_like(self._counting)

    def opened(self, keys: list[int], samples: list[Any]) -> _Documents:
        """Returns the fields to pack, tokens first. Raises ValueError if a length differs from the planned length."""
        lengths = list(zip(*self._planned(keys), strict=True))
        found = {
            key: self._opened(key, sample, given) for key, sample, given in zip(keys, samples, lengths, strict=True)
        }
        self._check_fields(found, dict(zip(keys, samples, strict=True)))
        values: dict[str, dict[int, Array]] = {}
        for key, fields in found.items():
            for name, field in fields.items():
                values.setdefault(name, {})[key] = field.values
        return _Documents(values, None, found)

    def _planned(self, keys: list[int]) -> list[list[int]]:
        return [table.of(np.array(keys, np.int64)).tolist() for table in self._tables]

    def alike(self, keys: list[int], arrays: dict[str, list[Array]]) -> _Documents | None:
        """Does the work of `opened` in bulk. `arrays` has each field's arrays, one for each document.

        Returns None if the documents differ in form, or if one of them is invalid.
        """
        if any(len({(each.dtype, each.ndim, each.shape[1:]) for each in column}) > 1 for column in arrays.values()):
            return None
        arrays = {name: column for name, column in arrays.items() if _numbers(column[0]) is not None}
        fits = (name for name in (*TOKENS, *arrays) if name in arrays and _are_tokens(arrays[name][0]))
        tokens = next(fits, None)
        if tokens is None:
            return None
        found, lengths = {"tokens": (0, arrays[tokens])}, list(map(len, arrays.pop(tokens)))
        for name, column in arrays.items():
            kind, sizes = self._kind(name), list(map(len, column))
            if kind or sizes == lengths:
                if name in (*_OWN, "tokens"):
                    return None  # an error
                found[name] = kind, column
            elif any(map(operator.eq, sizes, lengths)):
                return None
        planned = self._planned(keys)
        if any(list(map(len, column)) != planned[kind] for kind, column in found.values()):
            return None
        values = {name: dict(zip(keys, column, strict=True)) for name, (_, column) in found.items()}
        form = {
            name: (kind, each[0].shape[1:], np.result_type(each[0].dtype)) for name, (kind, each) in found.items()
        }
        return _Documents(values, form, {})

    def _kind(self, name: str) -> int:
        return self._how.kinds.index(name) if name in self._how.kinds[1:] else 0

    def _opened(self, key: int, sample: Any, planned: tuple[int, ...]) -> _Fields:
        named = sample if isinstance(sample, Mapping) else {"tokens": sample}
        name, tokens = _tokens_of(named, key)
        found = {"tokens": _PackedField(0, tokens)}
        for other, value in named.items():
            values = None if other == name else _numbers(value)
            if values is None:
                continue
            kind = self._kind(other)
            if kind or len(values) == len(tokens):
                self._check_name(other, name, key)
                found[other] = _PackedField(kind, values)
        for field, (kind, values) in found.items():
            if len(values) != planned[kind]:
                self._refuse(key, name if field == "tokens" else field, len(values), planned[kind])
        return found

    def _check_name(self, name: str, tokens: str, key: int) -> None:
        if name in _OWN or name == "tokens":
            raise ValueError(
                f"document {key} has the fields {tokens!r} and {name!r}, but {name!r} is a field that pack adds to "
                f"rows. Rename or remove it before pack, with map."
            )

    def _check_fields(self, documents: dict[int, _Fields], samples: dict[int, Any]) -> None:
        """Raises ValueError if a field has one element for each token in some documents, but not in others."""
        first: dict[str, int] = {}
        for key, fields in documents.items():
            for name, (kind, _) in fields.items():
                if not kind:
                    first.setdefault(name, key)
        for name, has in first.items():
            lacking = [key for key, fields in documents.items() if name not in fields]
            if not lacking:
                continue
            sizes = {key: _size_of(samples[key], name) for key in documents}
            if set(sizes.values()) == {1}:  # an id: only by chance as many as the tokens of a document with one
                for fields in documents.values():
                    fields.pop(name, None)
                continue
            key = lacking[0]
            size, of, like = sizes[key], len(documents[key]["tokens"].values), len(documents[has]["tokens"].values)
            what = f"no array {name!r}" if size is None else f"{counted(size, 'element')} in {name!r}"
            raise ValueError(
                f"document {key} has {what} for its {counted(of, 'token')}, but document {has}, which is in the same "
                f"row or batch, has {sizes[has]:,} for {like:,}. A field with one element for each token must have "
                "them in all documents. Repair the document, or remove the field before pack, with map."
            )

    def _refuse(self, key: int, name: str, length: int, planned: int) -> NoReturn:
        raise ValueError(
            f"document {key} has {counted(length, 'element')} in {name!r}, but its length is given as {planned:,}. "
            "The rows were planned from the given lengths. If documents are dicts, lengths=len counts their fields: "
            f"pass lengths=lambda document: len(document[{name!r}]). If a map changes lengths, or the data has "
            "changed, measure the documents that pack gets."
        )

    def form(self, row: list[Part], documents: _Documents) -> _RowForm:
        """Returns the kind, the element shape and the dtype of each field of a row."""
        if documents.form is not None:
            return documents.form
        parts = [documents.fields[key] for key, _, _ in row]
        form: _RowForm = {}
        for name in dict.fromkeys(name for part in parts for name in part):
            fields = [part[name] for part in parts if name in part]
            kind = fields[0].kind
            # A document without images may have no field, or an empty list.
            some = [field.values for field in fields if len(field.values) or not kind] or [fields[0].values]
            shapes = {values.shape[1:] for values in some}
            if len(shapes) > 1:
                keys = [key for key, _, _ in row]
                raise ValueError(
                    f"the documents {keys} are in one row, but the elements of their field {name!r} have different "
                    f"shapes, {sorted(shapes)}. Make them equal before pack, with map."
                )
            form[name] = kind, shapes.pop(), np.result_type(*{values.dtype for values in some})
        return form

    def columns(
        self, rows: list[list[Part]], documents: _Documents, empty: Empty, single: bool = False
    ) -> dict[str, Array]:
        """Returns the fields of these rows as arrays, in memory allocated by `empty`.

        If `single` is True, there is only one row, and the arrays have no row axis.
        """
        form = self.form(rows[0], documents)
        capacities = self._how.capacities
        ours = [(name, (capacities[kind], *shape), dtype) for name, (kind, shape, dtype) in form.items()]
        ours += [(name, capacities[:1], np.dtype(np.int64 if name == "documents" else np.int32)) for name in _OWN]
        ours += [
            (f"{name}_segments", (capacities[kind],), np.dtype(np.int32)) for name, (kind, *_) in form.items() if kind
        ]
        names = [name for name, _, _ in ours]
        memories: Sequence[Empty] = empty.below(names) if type(empty) is FieldMemory else [empty] * len(ours)
        made: dict[str, tuple[Array, FieldMemory | None]] = {}
        for (name, shape, dtype), memory in zip(ours, memories, strict=True):
            into = memory if type(memory) is FieldMemory and memory.field.target(dtype) is not None else None
            made[name] = (memory if into is None else np.empty)((len(rows), *shape), dtype), into
        self._fill({name: out for name, (out, _) in made.items()}, form, rows, documents.values)
        if single:
            return {name: out[0] for name, (out, _) in made.items()}
        return {name: out if into is None else into.put(out) for name, (out, into) in made.items()}

    def _fill(
        self, outs: dict[str, Array], form: _RowForm, rows: list[list[Part]], values: dict[str, dict[int, Array]]
    ) -> None:
        self._fill_own(outs, rows)
        for name, (kind, _, _) in form.items():
            for at, row in enumerate(rows):
                out = outs[name][at]
                if kind:
                    numbers = outs[f"{name}_segments"][at]
                    end = self._fill_units(out, numbers, row, values[name])
                    numbers[end:] = 0
                else:
                    end = self._fill_tokens(out, name, row, values[name])
                out[end:] = 0

    def _fill_own(self, outs: dict[str, Array], rows: list[list[Part]]) -> None:
        """Writes the fields that say where each document is in a row: positions, segments and documents."""
        keys, numbers, sizes, counts = list[int](), list[int](), list[int](), list[Array]()
        for row in rows:
            room = self._how.capacities[0]
            for number, (key, begin, end) in enumerate(row, 1):
                size = end - begin
                room -= size
                keys.append(key)
                numbers.append(number)
                sizes.append(size)
                counts.append(self._counting[:size])
            keys.append(-1)
            numbers.append(0)
            sizes.append(room)
            counts.append(self._zeros[:room])
        np.concatenate(counts, out=outs["positions"].reshape(-1))
        outs["segments"].reshape(-1)[:] = np.repeat(np.array(numbers, np.int32), sizes)
        outs["documents"].reshape(-1)[:] = np.repeat(np.array(keys, np.int64), sizes)

    def _fill_tokens(self, out: Array, name: str, row: list[Part], values: dict[int, Array]) -> int:
        parts = [values[key][begin:end] for key, begin, end in row]
        if self._how.eos is not None:
            extra = [
                self._last(name, values[key], key) if end > len(values[key]) else part[:0]
                for part, (key, _, end) in zip(parts, row, strict=True)
            ]
            parts = [piece for pair in zip(parts, extra, strict=True) for piece in pair]
        end = sum(map(len, parts))
        np.concatenate(parts, out=out[:end])
        return end

    def _last(self, name: str, values: Array, key: int) -> Array:
        """Returns the element to append to a document: `eos` for tokens, the last value for any other field."""
        if name != "tokens":
            return values[-1:] if len(values) else np.zeros((1, *values.shape[1:]), values.dtype)
        limits, eos = np.iinfo(values.dtype), self._how.eos
        assert eos is not None
        if not limits.min <= eos <= limits.max:
            raise ValueError(
                f"eos={eos} does not fit into the dtype of the tokens of document {key}, {values.dtype}. Choose "
                "another id, or convert the tokens before pack, with map."
            )
        return np.array([eos], values.dtype)

    def _fill_units(self, out: Array, numbers: Array, row: list[Part], values: dict[int, Array]) -> int:
        """Writes the elements of another kind of cost (such as images) and their segments.

        Returns the index after the last element.
        """
        at = 0
        for number, (key, _, _) in enumerate(row, 1):
            units = values.get(key)
            if units is not None and len(units):
                stop = at + len(units)
                out[at:stop], numbers[at:stop] = units, number
                at = stop
        return at


_NO_ARRAYS = {str, bytes, bool, int, float, type(None)}


def _array_fields(samples: list[Any]) -> dict[str, list[Array]]:
    """Returns the documents' arrays, by field, or an empty dict if the documents have different fields."""
    kinds = set(map(type, samples))
    if kinds == {np.ndarray}:
        named = {"tokens": samples}
    elif kinds == {dict} and len(set(map(tuple, samples))) == 1:
        named = {name: list(map(operator.itemgetter(name), samples)) for name in samples[0]}
    else:
        return {}
    found = {}
    for name, column in named.items():
        kinds = set(map(type, column))
        if kinds <= _NO_ARRAYS or all(issubclass(kind, np.generic) for kind in kinds):
            continue
        if kinds != {np.ndarray}:
            return {}
        found[name] = column
    return found


def _are_tokens(values: Array) -> bool:
    return values.ndim == 1 and values.dtype.kind in "iu"


def _tokens_of(named: Mapping[str, Any], key: int) -> tuple[str, Array]:
    """Returns the name and the values of the field that has the document's tokens."""
    for name in (*TOKENS, *named):
        if name in named:
            values = _numbers(named[name])
            if values is not None and _are_tokens(values):
                return name, values
    what = f"a dict with the fields {list(named)}"
    if list(named) == ["tokens"]:
        value = named["tokens"]
        what = f"an array of {value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else ""
        what = what or f"a {type(value).__name__}"
    raise TypeError(
        f"a document is a list or an array of token ids along one axis, or a dict with such a field, but document "
        f"{key} is {what}. Convert it before pack: dataset.map(tokenize)."
    )


def _size_of(sample: Any, name: str) -> int | None:
    """Returns the number of elements in a field, or None if the field is not an array of numbers."""
    values = _numbers(sample.get(name)) if isinstance(sample, Mapping) else None
    return None if values is None else len(values)


def _numbers(value: Any) -> Array | None:
    """Returns the value as an array of numbers with at least one axis, or None if this is impossible."""
    if not isinstance(value, np.ndarray):
        if not isinstance(value, (list, tuple)) and not hasattr(value, "__array__"):
            return None
        is_empty = isinstance(value, (list, tuple)) and not value
        try:
            value = np.empty(0, np.int64) if is_empty else np.asarray(value)
        except ValueError:  # a list of lists of different lengths
            return None
    return value if value.ndim and value.dtype.kind in "biuf" else None


def _capacities(length: int | Mapping[str, int]) -> dict[str, int]:
    if not isinstance(length, Mapping):
        return {"tokens": positive("length", length)}
    if not length:
        raise ValueError('length={} names no kind of length. Pass an integer, or {"text": 4096, "images": 8}.')
    return {name: positive(f"length[{name!r}]", each) for name, each in length.items()}


def _tables(documents: Any, kinds: list[str], lengths: Any) -> list[LengthTable]:
    if isinstance(lengths, Mapping):
        if set(lengths) != set(kinds):
            raise ValueError(f"lengths= has the kinds {sorted(lengths)}, but length= has {sorted(kinds)}.")
        given = [lengths[kind] for kind in kinds]
    elif len(kinds) > 1:
        names = ", ".join(f"{kind!r}: ..." for kind in kinds)
        raise ValueError(
            f"length= has {len(kinds)} kinds, so lengths= must be a dict with the same names: {{{names}}}."
        )
    else:
        given = [lengths]
    tables = [LengthTable(_measured(documents, each)) for each in given]
    once = pass_of(documents)
    sized = once if once is not None else None if getattr(documents, "endless", False) else len(documents)
    for kind, table in zip(kinds, tables, strict=True):
        if sized is not None and len(table) != sized:
            raise ValueError(
                f"there must be one length ({kind}) for each of {sized:,} documents, not {len(table):,}."
            )
    return tables


def _measured(documents: Any, lengths: GivenLengths) -> Any:
    if lengths is not None:
        return MeasuredDataset(documents, lengths, "lengths=").__lengths__()
    known = lengths_within(documents)
    if known is None:
        raise TypeError(
            f"pack needs the length of each document, and {shown(documents)} does not know them. Pass lengths=, an "
            "array, or a function that is called once for each document and returns its length: len, or for dicts "
            '`lambda document: len(document["tokens"])`.'
        )
    return known()


def cu_seqlens(segments: Any) -> tuple[Any, int]:
    """Returns the boundaries of the documents in a batch of packed rows, and the length of the longest.

    `segments` is the field of a batch, or of one row. The boundaries are int32 positions in the batch
    flattened to one axis, from 0 to its number of tokens. Flash attention's function for variable lengths takes the
    two results as `cu_seqlens` and `max_seqlen`. The padding at the end of a row counts as one document. A tensor
    gives a tensor on the same device; the boundaries are computed on the CPU.

    >>> import penstock
    >>> penstock.cu_seqlens(np.array([[1, 1, 2, 0], [1, 1, 1, 1]]))
    (array([0, 2, 3, 4, 8], dtype=int32), 4)
    """
    plain = np.asarray(segments.cpu() if hasattr(segments, "cpu") else segments)
    if plain.ndim not in (1, 2):
        raise ValueError(f"segments have one axis, or two in a batch, but their shape is {plain.shape}.")
    rows = np.atleast_2d(plain)
    begins = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
    edges = np.append(np.flatnonzero(begins), rows.size).astype(np.int32)
    longest = max((stop - start for start, stop in pairwise(edges.tolist())), default=0)
    return (segments.new_tensor(edges).int() if hasattr(segments, "new_tensor") else edges), longest
