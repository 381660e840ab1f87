"""Collates samples of variable length: pads them to one length, or joins them and keeps their offsets."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._fill.cast import Empty, FieldMemory
from penstock._fill.collate import as_arrays, collate, common_dtype
from penstock._fill.misfit import Misfit, in_rows, is_arraylike
from penstock._printable import counted
from penstock._wire.failure import safe_text, type_name
from penstock.errors import CollateError


class Padded(NamedTuple):
    """A padded batch of arrays or lists of numbers. `mask` is False where `values` has padding."""

    values: Any
    lengths: Any
    mask: Any


class Ragged(NamedTuple):
    """The elements of all samples, joined into one array. Sample i is `values[offsets[i] : offsets[i + 1]]`."""

    values: Any
    offsets: Any


@dataclass(frozen=True)
class Pad:
    """The collate function that `penstock.pad` returns."""

    value: Any
    multiple: int
    side: str
    max_length: int | None
    fields: tuple[Any, ...] | None
    ragged: bool
    buckets: tuple[int, ...] = ()
    batch_tokens: int | None = None  # of the loader

    @property
    def padding(self) -> Pad:
        return self

    def with_padding(self, pad: Pad) -> Pad:
        return pad

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self.into(samples, np.empty)

    def into(self, samples: Sequence[Any], empty: Empty) -> Any:
        """Returns the batch of these samples. Memory for the batch's arrays comes from `empty`."""
        # Numbers are converted afterwards, if the loader has dtype=.
        memory = empty.empty if type(empty) is FieldMemory else empty
        try:
            return self._batch(list(samples), memory)
        except Misfit as misfit:
            error = CollateError(f"sample{misfit.where()}: {misfit}.")
            error.rows = misfit.rows
            raise error from misfit.__cause__

    def _batch(self, samples: list[Any], empty: Empty) -> Any:
        if not samples:
            raise Misfit("there are no samples: the step is empty. Leave empty steps out of the batch_sampler")
        kinds = set(map(type, samples))
        if kinds == {dict}:
            return self._dicts(samples, empty)
        if kinds == {tuple}:
            return self._tuples(samples, empty)
        if self.fields is not None:
            raise Misfit(
                f"pad(fields={list(self.fields)}) needs samples that are dicts or tuples, but these are "
                f"{type_name(samples[0])}. Leave out fields="
            )
        if not _is_sequence(samples):
            raise Misfit(_CANNOT.format(type_name(samples[0])))
        if self.ragged:
            ragged = self._joined(samples, empty)
            self._check_budget([np.diff(ragged.offsets)])
            return ragged
        values, lengths = self._padded(samples, None, empty)
        self._check_budget([lengths])
        return Padded(values, _put(lengths, empty), self._mask(lengths, values.shape[1], empty))

    # Samples with fields.

    def _dicts(self, samples: list[dict[Any, Any]], empty: Empty) -> dict[Any, Any]:
        names = list(samples[0])
        if any(sample.keys() != samples[0].keys() for sample in samples):
            raise Misfit.of_keys(samples)
        batch, about = self._columns(names, {name: [sample[name] for sample in samples] for name in names}, empty)
        clash = batch.keys() & about.keys()
        if clash:
            raise Misfit(
                f"pad adds the fields 'lengths' and 'mask', but the samples have {sorted(clash)} already. Rename "
                "them in the dataset, or use ragged=True"
            )
        return batch | about

    def _tuples(self, samples: list[tuple[Any, ...]], empty: Empty) -> tuple[Any, ...]:
        if len(set(map(len, samples))) != 1:
            raise Misfit("tuples of different lengths cannot be collated. Give every sample the same fields")
        columns = dict(enumerate(map(list, zip(*samples, strict=True))))
        batch, about = self._columns(list(columns), columns, empty)
        return (*batch.values(), *about.values())

    def _columns(
        self, names: list[Any], columns: dict[Any, list[Any]], empty: Empty
    ) -> tuple[dict[Any, Any], dict[str, Any]]:
        """Returns two dicts: the fields of the batch, and the lengths and masks of the padded fields."""
        unknown = [name for name in self.fields or () if name not in columns]
        if unknown:
            raise Misfit(f"pad(fields=...) names {unknown}, but the samples have the fields {names}")
        unknown = [name for name in self.value if name not in columns] if isinstance(self.value, Mapping) else []
        if unknown:
            raise Misfit(f"pad(value={{...}}) names {unknown}, but the samples have the fields {names}")
        batch: dict[Any, Any] = {}
        lengths: dict[Any, Any] = {}
        masks: dict[Any, Any] = {}
        measured: list[NDArray[np.int64]] = []
        for name, column in columns.items():
            try:
                if not self._is_padded(name, column):
                    batch[name] = _collated(column, empty)
                elif self.ragged:
                    batch[name] = self._joined(column, empty)
                    measured.append(np.diff(batch[name].offsets))
                else:
                    batch[name], its = self._padded(column, name, empty)
                    measured.append(its)
                    lengths[name] = _put(its, empty)
                    masks[name] = self._mask(its, batch[name].shape[1], empty)
            except Misfit as misfit:
                misfit.path.append(f"[{name!r}]")
                raise
        self._check_budget(measured)
        if not lengths:
            return batch, {}
        one = len(lengths) == 1
        return batch, {
            "lengths": next(iter(lengths.values())) if one else lengths,
            "mask": next(iter(masks.values())) if one else masks,
        }

    def _is_padded(self, name: Any, column: list[Any]) -> bool:
        if self.fields is None:
            return _is_sequence(column) and all(_axes(value) == 1 for value in column)
        if name in self.fields and not _is_sequence(column):
            raise Misfit(_CANNOT.format(type_name(column[0])))
        return name in self.fields

    # One field.

    def _arrays(self, column: list[Any]) -> tuple[list[NDArray[Any]], np.dtype[Any]]:
        """Returns the values as arrays of at most `max_length` elements, and a dtype that can hold all values."""
        arrays = [np.asarray(value) if isinstance(value, (list, tuple)) else value for value in column]
        arrays = as_arrays(arrays, set(map(type, arrays)))
        # An empty list has no dtype of its own: numpy calls it float64.
        empty = [isinstance(value, (list, tuple)) and not len(value) for value in column]
        some = [array for array, is_empty in zip(arrays, empty, strict=True) if not is_empty] or arrays[:1]
        flat = [row for row, array in enumerate(arrays) if not array.ndim]
        if flat:
            raise Misfit(
                f"{in_rows(flat)}: a number has no length, so it cannot be padded. Collate it as a field", flat
            )
        inner = some[0].shape[1:]
        odd = [row for row, array in enumerate(arrays) if array.shape[1:] != inner and not empty[row]]
        if odd:
            raise Misfit(
                f"only the first axis is padded, and the others differ: {arrays[odd[0]].shape} in row {odd[0]}, and "
                f"(..., {str(inner)[1:-1]}) in the first row. Make them equal in the dataset",
                odd,
            )
        dtype = common_dtype(some)
        arrays = [
            np.empty((0, *inner), dtype) if is_empty else array for array, is_empty in zip(arrays, empty, strict=True)
        ]
        return [array[: self.max_length] for array in arrays], dtype

    def _padded(self, column: list[Any], name: Any, empty: Empty) -> tuple[NDArray[Any], NDArray[np.int64]]:
        arrays, dtype = self._arrays(column)
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        width = self._width(int(lengths.max()))
        fill = self._fill(name, dtype)
        out = empty((len(arrays), width, *arrays[0].shape[1:]), dtype)
        for row, array, length in zip(out, arrays, lengths.tolist(), strict=True):
            if self.side == "right":
                row[:length] = array
                row[length:] = fill
            else:
                row[width - length :] = array
                row[: width - length] = fill
        return out, lengths

    def _check_budget(self, fields: list[NDArray[np.int64]]) -> None:
        """Raises Misfit if all fields exceed `batch_tokens`.

        One field within the budget is enough, because a batch is planned from the lengths of one field.
        """
        if self.batch_tokens is None or not fields:
            return
        costs = [self._cost(lengths) for lengths in fields]
        if min(costs) <= self.batch_tokens:
            return
        lengths, cost = fields[costs.index(min(costs))], min(costs)
        row = int(lengths.argmax())
        raise Misfit(
            f"the batch has {cost:,} tokens, but batch_tokens is {self.batch_tokens:,}. It was planned from lengths "
            f"that are too small: the longest of its {counted(len(lengths), 'sample')}, in row {row}, has "
            f"{counted(int(lengths[row]), 'element')}. If samples are dicts, lengths=len counts their fields: "
            "measure the field with the tokens, as in lengths=lambda sample: len(sample[...]). If the data has "
            "changed, measure it again",
            [row],
        )

    def _cost(self, lengths: NDArray[np.int64]) -> int:
        if self.ragged:
            return int(lengths.sum())
        return len(lengths) * self._width(int(lengths.max()))

    def _width(self, length: int) -> int:
        if not self.buckets:
            return -(-length // self.multiple) * self.multiple
        at = bisect.bisect_left(self.buckets, length)
        if at == len(self.buckets):
            raise Misfit(
                f"the longest sample has {length} elements, but the largest bucket is {self.buckets[-1]}. Add a "
                "bucket that holds it, or pass max_length= to cut samples"
            )
        return self.buckets[at]

    def _fill(self, name: Any, dtype: np.dtype[Any]) -> Any:
        value = self.value.get(name, 0) if isinstance(self.value, Mapping) else self.value
        try:
            with np.errstate(all="ignore"):
                made = np.asarray(value).astype(dtype)
            fits = dtype.kind == "f" or bool(made == value)
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise Misfit(f"the padding value {safe_text(value, repr)} does not fit {dtype}. Pass another value=")
        return made

    def _mask(self, lengths: NDArray[np.int64], width: int, empty: Empty) -> NDArray[Any]:
        out = empty((len(lengths), width), np.dtype(np.bool_))
        if self.side == "right":
            np.less(np.arange(width), lengths[:, None], out=out)
        else:
            np.greater_equal(np.arange(width), width - lengths[:, None], out=out)
        return out

    def _joined(self, column: list[Any], empty: Empty) -> Ragged:
        arrays, dtype = self._arrays(column)
        offsets = empty((len(arrays) + 1,), np.dtype(np.int64))
        offsets[0] = 0
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        values = empty((int(offsets[-1]), *arrays[0].shape[1:]), dtype)
        np.concatenate(arrays, out=values)
        return Ragged(values, offsets)


_CANNOT = (
    "values of type {} cannot be padded. pad() pads arrays along their first axis, lists of numbers, and such fields "
    "of dicts and tuples. Convert the values in the dataset, or pass your own collate_fn="
)


def _axes(value: Any) -> int:
    return np.ndim(value) if isinstance(value, (list, tuple)) else len(value.shape)


def _is_sequence(column: list[Any]) -> bool:
    """True if all values are arrays or lists of numbers."""
    return all(map(_has_length, column))


def _has_length(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(is_arraylike, set(map(type, value))))
    return is_arraylike(type(value)) and len(getattr(value, "shape", ())) > 0


def _collated(column: list[Any], empty: Empty) -> Any:
    try:
        return collate(column, empty)
    except CollateError as error:
        text = str(error).removeprefix("sample").removeprefix(": ").rstrip(".")
        raise Misfit(text, getattr(error, "rows", ())) from error.__cause__


def _put(array: NDArray[Any], empty: Empty) -> NDArray[Any]:
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


Side = Literal["right", "left"]


def pad(
    value: Any = 0,
    multiple: int = 1,
    side: Side = "right",
    max_length: int | None = None,
    fields: Sequence[Any] | None = None,
    ragged: bool = False,
    buckets: Sequence[int] | None = None,
) -> Callable[[Sequence[Any]], Any]:
    """Returns a `collate_fn` for samples of variable length, such as token sequences.

    Samples that are arrays or lists of numbers are padded along their first axis, to the length of the longest sample
    in the batch. The batch is a tuple `(values, lengths, mask)`. `mask` is False where `values` contains padding.

    If samples are dicts, `fields` names the fields to pad. By default, these are all fields that are lists of numbers
    or arrays with one axis. Other fields are collated as usual. The batch is a dict with two additional fields,
    `"lengths"` and `"mask"`. If several fields are padded, `"lengths"` and `"mask"` are dicts with an entry for each
    padded field. If samples are tuples, the lengths and the mask are the last two elements of the batch.

    - `value` is the padding. A dict gives each field its own: `{"labels": -100}`.
    - `multiple`: padded lengths are multiples of this number. Together with `max_length`, this limits the number of
      different lengths, which suits compiled code.
    - `buckets`: a list of the only padded lengths that may occur, such as `[128, 256, 512]`. A batch gets the
      smallest one that is long enough.
    - `side` is where the padding is: `"right"` (at the end) or `"left"`.
    - `max_length`: samples are cut off after that many elements.
    - `ragged=True`: instead of padding, a field becomes a tuple `(values, offsets)`. Sample i is
      `values[offsets[i] : offsets[i + 1]]`.

    Arrays are written straight into the memory of the batch, as the default collate function does. With loaders of
    `penstock.torch`, they are tensors.

    >>> import penstock
    >>> loader = penstock.DataLoader([[1, 2, 3], [4]], batch_size=2, collate_fn=penstock.pad(value=-1))
    >>> for tokens, lengths, mask in loader:
    ...     print(tokens.tolist(), lengths.tolist(), mask.sum())
    [[1, 2, 3], [4, -1, -1]] [3, 1] 4
    """
    for name, number in (("multiple", multiple), ("max_length", max_length)):
        wrong = isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1
        if wrong and not (name == "max_length" and number is None):
            raise ValueError(f"{name} must be an integer of 1 or more, got {number!r}.")
    if max_length is not None and max_length % multiple:
        raise ValueError(
            f"max_length={max_length} is not a multiple of multiple={multiple}, so lengths could be neither."
        )
    if side not in ("right", "left"):
        raise ValueError(f'side must be "right" or "left", got {side!r}.')
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names, such as [{fields!r}], got a str.")
    listed = checked_buckets("buckets", buckets)
    if listed and (multiple > 1 or ragged):
        other = f"multiple={multiple}" if multiple > 1 else "ragged=True"
        raise ValueError(f"buckets={list(listed)} and {other} are mutually exclusive.")
    return Pad(value, int(multiple), side, max_length, None if fields is None else tuple(fields), ragged, listed)


def padding_of(collate_fn: Any) -> Pad | None:
    found = getattr(collate_fn, "padding", None)
    return found if isinstance(found, Pad) else None


def check_called(collate_fn: Any) -> None:
    """Raises TypeError if `collate_fn` is `pad` itself instead of `pad()`."""
    if collate_fn is pad:
        raise TypeError(
            "collate_fn is the function penstock.pad, which returns a collate function. Call it: "
            "collate_fn=penstock.pad()."
        )


def checked_buckets(name: str, value: Any) -> tuple[int, ...]:
    """Returns a list of padded lengths as a tuple. Raises ValueError unless they are increasing integers >= 1."""
    found = () if value is None else tuple(np.atleast_1d(np.asarray(value)).tolist())
    whole = all(type(each) is int and each >= 1 for each in found)
    if not whole or list(found) != sorted(set(found)) or (value is not None and not found):
        raise ValueError(f"{name} must be increasing lengths of 1 or more, such as [128, 256, 512], got {value!r}.")
    return found
