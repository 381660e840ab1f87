"""The base class of formats whose rows come from Arrow record batches."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import is_worker_process
from penstock._cache.keeper import Keeper
from penstock._cache.lru import LruCache
from penstock._cache.shared import Shared
from penstock._cache.watches import Watches
from penstock._files.access import check_bytes
from penstock._files.damage import raise_unless_damage
from penstock._files.identity import digest_of
from penstock._fill.cast import Empty, FieldMemory
from penstock._measure.cached import counting
from penstock._system.platform import HAS_PROCESSES
from penstock._system.warnings import warn_caller
from penstock.errors import FormatError, RemoteError
from penstock.formats._decoders import (
    Allocate,
    Decoder,
    Decoding,
    column_decoders,
    decoded,
    gathered,
    writes_directly,
)
from penstock.formats._format import Format
from penstock.formats._inspection import FieldInfo, fields_of
from penstock.plan._forecast import Forecast
from penstock.random import each
from penstock.source._array import checked_keys
from penstock.source._nested import TOKENS, Lengths, gathers_numpy

if TYPE_CHECKING:
    from penstock.formats._cells import Cells

_VIEW = 4096  # the counted size in bytes of a block in mapped memory, that of its Python objects

# A process that has dropped _DROPPED blocks warns if it has used fewer than 1 in _WASTE of the rows it decoded.
_DROPPED, _WASTE = 64, 20


class Table(Format):
    """A dataset whose samples are rows of Arrow record batches, as dicts with a value for each column.

    A subclass calls `_set_schema` and `set_rows`, and defines `_read`. A block is always read as a whole.
    """

    schema: Any
    columns: list[str]
    """The column names, in the order of a sample's fields."""
    decode: Mapping[str, Decoder | None] | None = None
    """The decoding functions that the user has given, by column. None in place of a function keeps the bytes."""
    _decoders: Mapping[str, Decoding | None] = {}
    _part: ClassVar[str] = "part"
    """The word for a block in error messages, such as "row group"."""

    # The state of this process, which a pickled copy does not include.
    _shared: Shared | None = None
    _mapped: Set[int] = frozenset()  # blocks of `_kept` that are in shared memory
    _decoded = _used = 0  # rows
    _is_judged = False

    def __init__(self, keep: int) -> None:
        check_bytes("keep", keep)
        self.keep = keep
        self._kept: LruCache[int, list[Cells]] = LruCache(keep)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_shared", "_mapped", "_decoded", "_used", "_is_judged")
        state = {name: value for name, value in self.__dict__.items() if name not in own}
        return {**state, "_kept": LruCache(self.keep)}  # a copy, by copy.copy too, has its own cache

    def _set_schema(self, schema: Any) -> None:
        self.schema = schema
        self.columns = list(schema.names)

    # Methods that a subclass defines.

    def _read(self, block: int) -> list[Any]:
        """Returns the record batches of a block, usually one. A damaged file may raise any exception."""
        raise NotImplementedError

    def _set_decode(self, decode: Mapping[str, Decoder | None] | None) -> None:
        self.decode, self._decoders = decode, column_decoders(decode, self.schema)

    def _set_batches(self, table: Any) -> list[Any]:
        """Makes a block for each record batch of a `pyarrow.Table`. Returns the record batches."""
        batches = [batch for batch in table.select(self.columns).to_batches() if batch.num_rows]
        self.set_rows([[batch.num_rows for batch in batches]])
        return batches

    def _place(self, block: int) -> str:
        return f"{self.files[self._file_of[block]].path}, {self._part} {self._part_of[block]:,}"

    def _is_mapped(self, block: int) -> bool:
        """True if the block's columns are views of existing memory, such as a memory-mapped file."""
        return False

    # Blocks.

    def _block(self, number: int, rows: int) -> list[Cells]:
        """Returns a decoded block. `rows` is the number of rows that the caller will use (see `_check_use`)."""
        self._used += rows
        return self._kept.get(number, self._opened)

    def _opened(self, number: int) -> tuple[list[Cells], int]:
        from penstock.formats._cells import cells_of

        expected = int(self._starts[number + 1] - self._starts[number])
        try:
            batches, is_elsewhere = self._batches_of(number)
            for batch in batches:
                batch.validate()
            rows = sum(batch.num_rows for batch in batches)
            if rows != expected:
                raise ValueError(f"it has {rows:,} rows, but {expected:,} were expected")
            block = [cells_of([batch.column(name) for batch in batches]) for name in self.columns]
        except (FormatError, RemoteError):
            raise
        except Exception as error:  # pyarrow raises errors of many types for a damaged file
            self._damaged(number, error)
        return block, _VIEW if is_elsewhere else sum(batch.nbytes for batch in batches)

    def _batches_of(self, number: int) -> tuple[list[Any], bool]:
        """Returns the record batches of a block, and whether the batches are views of mapped or shared memory."""
        if self._is_mapped(number):
            return self._read(number), True
        if not is_worker_process() or not self._lasts:  # threads share `_kept`
            return self._decode(number), False
        if self._shared is None:
            self._shared = Shared(self._identity(), self.keep)
        found = self._shared.get(number, lambda: [self._serialized(number)])
        if found is None:
            return self._decode(number), False
        # A block that could not be shared belongs to this process, and is kept while it fits into `keep` bytes.
        shared = self._shared.blocks()
        self._kept.drop(self._mapped - shared)
        self._mapped = (self._mapped | {number}) & shared
        return deserialized(found), number in shared

    def _serialized(self, number: int) -> NDArray[np.uint8]:
        batches = self._decode(number)
        return serialized(batches[0].schema, batches)  # types may differ between files

    def __foresee__(self, forecast: Forecast) -> Any:
        """Extends `Format.__foresee__`: also keeps decoded blocks in memory while the loader needs them."""
        scout = super().__foresee__(forecast)
        if not HAS_PROCESSES or all(map(self._is_mapped, range(len(self.blocks) - 1))):
            return scout
        return Watches(scout, Keeper(forecast, self._identity(), self.blocks, self._kept, self.keep))

    def _decode(self, number: int) -> list[Any]:
        counting().decoded += 1
        self._decoded += int(self._starts[number + 1] - self._starts[number])
        self._check_use()
        return self._read(number)

    def _identity(self) -> str:
        """Returns a name that is the same in all processes that read the same columns of the same files."""
        return digest_of((file.identity for file in self.files), type(self).__name__, self.columns)

    @cached_property
    def _lasts(self) -> bool:
        """True if a changed file always has a new identity. Only then can processes share decoded blocks."""
        return all(file.identity.lasts for file in self.files)

    def _check_use(self) -> None:
        """Warns once if blocks are decoded repeatedly for only a few of their rows."""
        if self._is_judged or self._kept.dropped < _DROPPED:
            return
        self._is_judged = True
        if self._decoded > _WASTE * self._used:
            per_row = self._decoded * (len(self._starts) - 1) / len(self) / self._used
            warn_caller(
                f"{type(self).__name__} decodes {per_row:.1f} {self._part}s for each row that is read: the order "
                f"is random, and the {self._part}s do not fit into keep={self.keep:,} bytes. Use "
                f'shuffle="blocks", raise keep=, or write smaller {self._part}s (see docs/blocks.md).',
                UserWarning,
            )

    def _damaged(self, number: int, error: Exception) -> NoReturn:
        unreadable(self._place(number), error, ', or leave such rows out with on_error="skip"')

    # Samples.

    def sample(self, row: int) -> Any:
        return self._decode_columns(self._stored_sample(row), row)

    def _stored_sample(self, row: int) -> dict[str, Any]:
        """Returns a sample before its columns are decoded."""
        number = bisect_right(self._starts.data, row) - 1
        return self._rows(number, [row - self._starts.item(number)])[0]

    def _rows(self, number: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        block, names = self._block(number, len(rows)), self.columns
        try:
            columns = [list(map(each.item, rows)) for each in block]
        except Exception as error:
            self._damaged(number, error)
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        samples = self._stored_samples(rows)
        if self._decoders:
            for sample, _, row in zip(samples, each(keys), rows.tolist(), strict=True):
                self._decode_columns(sample, row)
        return samples

    def _stored_samples(self, rows: NDArray[np.int64]) -> list[Any]:
        """Returns several samples before their columns are decoded."""
        samples: list[Any] = [None] * len(rows)
        for number, places, local in self._groups(rows):
            for place, sample in zip(places, self._rows(number, local), strict=True):
                samples[place] = sample
        return samples

    def _decode_columns(self, sample: dict[str, Any], row: int, allocate: Allocate | None = None) -> dict[str, Any]:
        for name in self._decoders:
            data = sample[name]
            if isinstance(data, dict):
                data = self._bytes_of(data, name, row)
            if data is not None:  # the value of a null is None
                where = f"{name!r} of row {row:,} of {self!r}"
                data = decoded(self._decoders, name, data, where, allocate)
            sample[name] = data
        return sample

    def _bytes_of(self, image: dict[str, Any], column: str, row: int) -> bytes:
        """Returns the bytes of a file that is stored in Hugging Face's form: a dict with `bytes` and `path`."""
        data: bytes | None = image["bytes"]
        if data is None:
            raise FormatError(
                f"row {row:,} of {self!r} has no bytes in {column!r}, only the path {image.get('path')!r}. Write the "
                "files into the table: load it with `datasets`, and save it with save_to_disk or push_to_hub."
            )
        return data

    def _groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Sequence[int], list[int]]]:
        """Yields (number, places, local) for each block: `rows[places[i]]` is row `local[i]` of block `number`."""
        numbers = self._starts.searchsorted(rows, "right") - 1
        order = numbers.argsort(kind="stable")
        numbers = numbers[order]
        local: list[int] = (rows[order] - self._starts[numbers]).tolist()
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        groups = zip(numbers[firsts].tolist(), pairwise([*firsts.tolist(), len(rows)]), strict=True)
        all_places = order.tolist()
        # Cached blocks come first, because reading another block may drop one of them.
        for number, (start, stop) in sorted(groups, key=lambda group: group[0] not in self._kept):
            places = all_places[start:stop]
            first, end = places[0], places[-1] + 1  # they ascend, because argsort is stable
            yield number, range(first, end) if end - first == stop - start else places, local[start:stop]

    @gathers_numpy
    def __gather__(self, keys: Sequence[int] | NDArray[Any], empty: Empty) -> Any:
        """Returns the batch, or NotImplemented if there are Python objects, nulls, or rows of different shapes."""
        rows = checked_keys(keys, len(self))
        if self._decoders:
            return self._gathered(keys, rows, empty)
        outs: list[_Out] = []
        for number, places, local in self._groups(rows):
            block = self._block(number, len(local))
            outs = outs or self._outs(block, local[0], len(rows), empty)
            if not outs:
                return NotImplemented
            try:
                for each, out in zip(block, outs, strict=True):
                    if not each.put(out.array, places, local):
                        return NotImplemented
            except Exception as error:
                self._damaged(number, error)
        if not outs:
            return NotImplemented  # `collate` reports the empty step
        return {name: out.finish() for name, out in zip(self.columns, outs, strict=True)}

    def _gathered(self, keys: Any, rows: NDArray[np.int64], empty: Empty) -> Any:
        if not writes_directly(self._decoders, empty):
            return NotImplemented
        stored = zip(self._stored_samples(rows), each(keys), rows.tolist(), strict=True)
        return gathered(
            lambda allocate: (self._decode_columns(sample, row, allocate) for sample, _, row in stored),
            len(rows),
            empty,
        )

    def __views__(self, keys: Sequence[int]) -> dict[str, list[NDArray[Any]]] | None:
        """Returns views of the columns (see `Views`), or None if the batch must be copied.

        Views are made only of cached blocks, because a view keeps its whole block in memory.
        """
        if self._decoders:
            return None
        rows = checked_keys(keys, len(self))
        numbers = self._starts.searchsorted(rows, "right") - 1
        places = list(zip(numbers.tolist(), (rows - self._starts[numbers]).tolist(), strict=True))
        counts = Counter(number for number, _ in places)
        if not all(number in self._kept for number in counts):
            return None
        blocks = {number: self._block(number, count) for number, count in counts.items()}
        found = {}
        for at, name in enumerate(self.columns):
            holds = {block[at].holds_arrays for block in blocks.values()}
            if holds == {False}:
                continue
            if holds != {True}:
                return None
            view = {number: block[at].view for number, block in blocks.items()}
            found[name] = [view[number](row) for number, row in places]
        return found

    def _outs(self, block: list[Cells], row: int, size: int, empty: Empty) -> list[_Out]:
        """Returns memory for each column of a batch, or an empty list if a column needs Python objects."""
        if not all(each.is_direct for each in block):
            return []
        fields: Iterable[Empty] = repeat(empty, len(self.columns))
        if type(empty) is FieldMemory:
            fields = empty.below(self.columns)
        return [_Out(each, row, size, its) for each, its in zip(block, fields, strict=True)]

    @property
    def __lengths__(self) -> Lengths:
        """Returns the number of tokens in each row, from the offsets of the lists, without reading tokens.

        A table does not have this method if no column has lists of integers, or if reading the offsets means reading
        the lists, too (Parquet files, compressed files, remote files). If several columns have lists of integers, the
        column `tokens` or `input_ids` is used, or else the first of these columns.
        """
        from penstock.formats._cells import is_tokens

        names = [name for name in (*TOKENS, *self.columns) if name in self.columns]
        names = [name for name in names if is_tokens(self.schema.field(name).type)]
        if not names or not all(map(self._is_mapped, range(len(self._starts) - 1))):
            raise AttributeError("the lengths of its rows are not known without reading them")
        return partial(self._lengths_of, names[0])

    def _lengths_of(self, column: str) -> NDArray[np.int64]:
        from penstock.formats._cells import list_lengths

        found = [np.empty(0, np.int64)]
        for number in range(len(self._starts) - 1):
            try:
                found += [list_lengths(batch.column(column)) for batch in self._read(number)]
            except (FormatError, RemoteError):
                raise
            except Exception as error:
                self._damaged(number, error)
        return np.concatenate(found)

    def fields(self) -> tuple[FieldInfo, ...]:
        from penstock.formats._cells import form_of

        first = self[0] if len(self) else {}
        shapes = {name: getattr(value, "shape", None) for name, value in first.items()}
        stored = (FieldInfo(field.name, form_of(field.type), shapes.get(field.name)) for field in self.schema)
        made = {name: next(fields_of(first[name], name)) for name in self._decoders if name in first}
        return tuple(made.get(field.name, field) for field in stored)


def serialized(schema: Any, batches: list[Any]) -> NDArray[np.uint8]:
    """Returns the batches in Arrow's IPC format, as a numpy array, which can be pickled out of band."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def deserialized(data: Any) -> list[Any]:
    """Reverses `serialized`. The returned record batches are views of `data`."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return list(stream)


def unreadable(where: str, error: Exception, remedy: str = "") -> NoReturn:
    """Raises FormatError if pyarrow failed because of the file's content. Otherwise re-raises `error`."""
    raise_unless_damage(error, where)
    said = " ".join(str(error).split()).rstrip(".")[:300]
    raise FormatError(
        f"{where} cannot be read ({type(error).__name__}: {said}). The file is damaged or cut off, or has another "
        f"format than its name says: copy it or write it again{remedy}."
    ) from error


def need_pyarrow(reader: str, extra: str = "parquet") -> None:
    try:
        import pyarrow  # noqa: F401 - late, because importing it takes 60 ms
    except ImportError as error:
        raise ImportError(f'{reader} needs pyarrow: pip install ".[{extra}]" in a clone of penstock') from error


class _Out:
    """A batch column that is being filled: an array in the batch's memory, or a list of str or bytes."""

    __slots__ = ("_into", "array")

    def __init__(self, first: Cells, row: int, size: int, empty: Empty) -> None:
        self._into: FieldMemory | None = None
        self.array: Any
        if first.is_text:
            if type(empty) is FieldMemory:
                empty.field.wanted("U", "text")
            self.array = [None] * size
            return
        shape, dtype = first.form(row)
        if type(empty) is FieldMemory and empty.field.target(dtype) is not None:
            self._into, empty = empty, np.empty
        self.array = empty((size, *shape), dtype)

    def finish(self) -> Any:
        return self.array if self._into is None else self._into.put(self.array)
