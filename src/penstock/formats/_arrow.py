"""Reads Arrow tables: files in the IPC format, which are memory-mapped if they are local, and tables in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import FileOptions
from penstock._files.index import for_each
from penstock._files.local import File
from penstock._files.mapping import mapped
from penstock._files.paths import Paths
from penstock._files.too_large import check_block
from penstock._memory.mapping import CAN_PLACE
from penstock._printable import counted
from penstock.errors import RemoteError
from penstock.formats._blocks import KEEP
from penstock.formats._decoders import Decoder
from penstock.formats._format import FileRows, Format
from penstock.formats._messages import Messages, count_batches, find_messages, look_ahead, unpacked_bytes
from penstock.formats._table import Table, deserialized, need_pyarrow, serialized, unreadable


class Arrow(Table):
    """A dataset of the rows of Arrow IPC files and streams, of Feather V2 files, or of a `pyarrow.Table`.

    A sample is a dict. `columns` names the columns to read; by default, all columns are read. Local files are mapped
    into memory, which the workers share, and rows of numbers are copied directly into the batch. A record batch that
    is compressed or remote is read as a whole. As in `Parquet`, the most recently used ones are kept, up to `keep`
    bytes. A table in memory is sent to the workers once, and they share one copy. As in `Parquet`,
    `decode={"image": function}` decodes a column of encoded files. Needs `pip install ".[parquet]"`.

    `storage`, `cache`, `cache_bytes` and `cache_shared` apply to remote files: see `penstock.formats`.

    If another program truncates a file while it is mapped, reading beyond the new end kills the process.

    >>> import pyarrow as pa
    >>> data = Arrow(pa.table({"ids": [[1, 2], [3, 4]], "text": ["a", "b"]}))
    >>> data[1]
    {'ids': array([3, 4]), 'text': 'b'}
    """

    suffixes = (".arrow", ".feather", ".ipc", ".arrows")
    _part = "record batch"
    _batches: Any = None  # the record batches of a table in memory

    def __init__(
        self,
        table_or_paths: Any,
        columns: Iterable[str] | None = None,
        *,
        keep: int = KEEP,
        decode: Mapping[str, Decoder | None] | None = None,
        **files: Unpack[FileOptions],
    ) -> None:
        need_pyarrow("Arrow")
        super().__init__(keep)
        import pyarrow as pa

        if isinstance(table_or_paths, (pa.Table, pa.RecordBatch)):
            self.access(files)
            self._from_table(table_or_paths, columns)
        else:
            self._from_files(table_or_paths, columns, files)
        self._set_decode(decode)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.startswith(b"ARROW1")

    def _from_table(self, table: Any, columns: Iterable[str] | None) -> None:
        import pyarrow as pa

        from penstock.formats._schema import chosen_columns

        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        self.files = []
        self._set_schema(chosen_columns(table.schema, columns, "the table"))
        self._batches = self._set_batches(table)

    def _from_files(self, paths: Paths, columns: Iterable[str] | None, files: FileOptions) -> None:
        from penstock.formats._schema import common_schema

        Format.__init__(self, paths, **files)
        self._map: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None
        self._local = [file for file in self.files if isinstance(file, File)]
        numbers = {file: number for number, file in enumerate(self.files)}
        found = list(for_each(lambda file: self._opened_file(numbers[file]), self.files))
        self._messages = [messages for messages, _ in found]
        self._set_schema(common_schema(self.paths, [schema for _, schema in found], columns))
        self.set_rows([messages.rows for messages in self._messages])

    def _opened_file(self, number: int) -> tuple[Messages, bytes]:
        import pyarrow as pa

        file = self.files[number]
        if self._is_local:
            content = self._content(number)
            messages = find_messages(file, lambda start, stop: content.data[start:stop])
        else:
            messages = find_messages(file, look := look_ahead(file))
            messages = replace(messages, held=bytes(look(*messages.schema)))
        try:
            if not messages.is_file:
                count = len(messages.rows)
            elif self._is_local:
                count = pa.ipc.open_file(pa.py_buffer(content)).num_record_batches
            else:
                count = count_batches(file, look)
            if count != len(messages.rows):
                raise ValueError(f"its footer names {count:,} record batches, but there are {len(messages.rows):,}")
            with pa.ipc.open_stream(self._stream(number, messages, [])) as stream:
                return messages, stream.schema.serialize().to_pybytes()
        except RemoteError:
            raise
        except Exception as error:
            unreadable(file.path, error)

    @property
    def _is_local(self) -> bool:
        return len(self._local) == len(self.files) and CAN_PLACE

    def _bytes(self, number: int, start: int, stop: int) -> Any:
        if self._is_local:
            return self._content(number)[start:stop]
        return self.files[number].read(start, stop - start)

    def _content(self, number: int) -> NDArray[np.uint8]:
        if self._map is None:
            self._map = mapped(self._local)
        whole, starts = self._map
        start = int(starts[number])
        return whole[start : start + self.files[number].size]

    def _stream(self, number: int, messages: Messages, parts: list[Any]) -> Any:
        """Returns an Arrow stream as bytes: the schema, followed by the messages in `parts`."""
        import pyarrow as pa

        schema = messages.held or self._bytes(number, *messages.schema)
        return pa.py_buffer(b"".join([schema, *parts]))

    def _read(self, block: int) -> list[Any]:
        import pyarrow as pa

        if self._batches is not None:
            return [self._batches[block]]
        number, at = self._file_of.item(block), self._part_of.item(block)
        messages = self._messages[number]
        start, end = messages.extents[at].tolist()
        if self._is_plain(block):
            message = pa.ipc.read_message(pa.py_buffer(self._bytes(number, start, end)))
            return [pa.ipc.read_record_batch(message, self._whole_schema(number))]
        # A later message of a stream may replace a dictionary; a file has only one of each.
        before = [each for each in messages.dictionaries if messages.is_file or each[0] < start]
        parts = [self._bytes(number, *each) for each in [*before, (start, end)]]
        if self.max_sample_bytes is not None:
            nbytes = sum(map(unpacked_bytes, parts))
            check_block(self._place(block), int(messages.rows[at]), nbytes, self.max_sample_bytes)
        # pyarrow must not start threads, because a process with threads cannot be forked safely.
        names = self._whole_schema(number).names
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=[names.index(n) for n in self.columns])
        with pa.ipc.open_stream(self._stream(number, messages, parts), options=options) as stream:
            return [stream.read_next_batch()]

    def ranges(self, rows: FileRows) -> list[tuple[int, int]]:
        messages = self._messages[rows.file]
        start, end = messages.extents[rows.part].tolist()
        return [*messages.dictionaries, (start, end)]

    def _whole_schema(self, number: int) -> Any:
        import pyarrow as pa

        messages = self._messages[number]
        return pa.ipc.read_schema(pa.py_buffer(messages.held or self._bytes(number, *messages.schema)))

    def _is_mapped(self, block: int) -> bool:
        return self._batches is not None or (self._is_local and self._is_plain(block))

    def _is_plain(self, block: int) -> bool:
        """True if columns can be zero-copy views: the block is uncompressed, and its file has no dictionaries."""
        messages = self._messages[self._file_of.item(block)]
        return not messages.dictionaries and not messages.compressed[self._part_of[block]]

    def _place(self, block: int) -> str:
        return super()._place(block) if self._batches is None else f"record batch {block:,} of the table"

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["_map"] = None
        if self._batches is not None:
            state["_batches"] = serialized(self.schema, self._batches)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._batches is not None:
            self._batches = deserialized(self._batches)

    def __repr__(self) -> str:
        return (
            super().__repr__() if self.files else f"{type(self).__name__}({counted(len(self), 'sample')} in memory)"
        )
