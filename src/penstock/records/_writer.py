"""Writes MXNet's `.rec` and `.idx`."""

from __future__ import annotations

import os
import secrets
from array import array
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from penstock._interrupts import interrupts_deferred
from penstock.records import _framing as framing
from penstock.records._index import write_index
from penstock.records._recordfile import HEAD, as_id, idx_path


class RecordWriter:
    """Writes a `.rec` file and, beside it, its `.idx`; both get their names when all records are written.

    Use it in a `with` statement: an exception inside it leaves existing files unchanged. If a write fails (on a full
    disk, say), everything is discarded, and later calls raise too. Until the end the files have names that end in
    `.part`; such a file may be deleted if its writer was killed or never closed.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/two.rec"
    >>> with RecordWriter(path) as writer:
    ...     writer.write(b"a picture", 3)
    ...     writer.write(b"another", [0.5, 2], id=77)
    >>> from penstock.records import RecordFile
    >>> file = RecordFile(path)
    >>> file[0], file.by_id(77).label
    (Record(id=0, label=3.0, data=b'a picture'), array([0.5, 2. ], dtype=float32))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if idx_path(self.path) == self.path:
            raise ValueError(
                f"{self.path} is the name of an index. Give the name of the record file, which usually ends in .rec; "
                "its index is written beside it."
            )
        # Two writers of the same file, in one process or on two machines, must not use the same names.
        suffix = f".{secrets.token_hex(4)}.part"
        self._part, self._index_part = self.path + suffix, idx_path(self.path) + suffix
        self._file = open(self._part, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by close() and discard()
        self._starts, self._ids = array("q"), array("Q")
        self._size = 0
        self._failed = ""

    def __len__(self) -> int:
        """The number of records written so far."""
        return len(self._ids)

    def write(self, data: bytes, label: Any = 0.0, id: int | None = None) -> None:
        """Writes a record. `label` is a number or a vector of numbers; `id` is the record's number by default."""
        self._check()
        if self._file.closed:
            raise ValueError(f"the writer of {self.path} is closed: it takes no more records.")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"the data of a record must be bytes, but it is a {type(data).__name__}.")
        id = len(self) if id is None else as_id(id)
        if not 0 <= id < 1 << 64:
            raise ValueError(f"the id of a record must be 0 to 2**64 - 1, but it is {id}.")
        content = _head(label, id) + bytes(data)
        if len(content) > framing.LONGEST:
            raise ValueError(
                f"record {len(self)} has {len(content):,} bytes, but RecordIO allows only {framing.LONGEST:,}."
            )
        pieces = framing.framed(content)
        try:
            self._file.writelines(pieces)
            self._starts.append(self._size)
            self._ids.append(id)
            self._size += sum(map(len, pieces))
        except BaseException as error:  # a part of the record may be in the file
            self._failed = f"record {len(self)} could not be written ({error!r})"
            self.discard()
            raise

    def close(self) -> None:
        """Gives the files their names; if that fails, removes them. A second call does nothing.

        A Ctrl-C is raised when both files have their names, or neither has.
        """
        self._check()
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            write_index(self._index_part, self._starts, self._ids)
            # There must never be an old index beside the new file. Without an index the file can be read.
            index = idx_path(self.path)
            with interrupts_deferred():
                Path(index).unlink(missing_ok=True)
                os.replace(self._part, self.path)
                os.replace(self._index_part, index)
        finally:
            self._remove()

    def discard(self) -> None:
        """Removes what was written."""
        if not self._file.closed:
            self._remove()

    def _check(self) -> None:
        if self._failed:
            raise OSError(f"{self.path}: {self._failed}, so all records were discarded. Write them again.")

    def _remove(self) -> None:
        """Removes the files that do not have their final names yet."""
        try:
            with suppress(OSError):  # on a full disk the last bytes cannot be written: they are not needed
                self._file.close()
        finally:
            Path(self._part).unlink(missing_ok=True)
            Path(self._index_part).unlink(missing_ok=True)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _head(label: Any, id: int) -> bytes:
    values = np.asarray(label)
    if values.ndim > 1 or values.dtype.kind not in "biuf":
        raise TypeError(f"a label must be a number or a vector of numbers, but it is {label!r}.")
    with np.errstate(over="ignore"):
        stored = values.astype("<f4")
    if (np.isfinite(values) & ~np.isfinite(stored)).any():
        raise ValueError(f"labels are stored as float32, which cannot hold {label!r}.")
    if values.dtype.kind in "iu" and (stored.astype(np.float64) != values).any():
        raise ValueError(f"labels are stored as float32, which cannot represent {label!r} exactly.")
    if values.ndim == 0:
        return HEAD.pack(0, float(stored), id, 0)
    return HEAD.pack(stored.size, 0.0, id, 0) + stored.tobytes()
