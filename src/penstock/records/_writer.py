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
    """Writes a `.rec` file and, beside it, its `.idx`, which appear under their names when all is written.

    Use it in a `with` statement: an exception inside leaves whatever was there before. A write that fails, on a full
    disk say, gives up all: the calls that follow raise too. Until the end it writes to names that end in `.part`; one
    that a kill, or a writer that was never closed, left behind may be deleted.

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
                f"{self.path} is the name of an index. Name the file of the records, which mostly ends in .rec; its "
                "index is written beside it."
            )
        # Two that write the same file must not write into each other's, in one process or on two machines.
        mine = f".{secrets.token_hex(4)}.part"
        self._part, self._index_part = self.path + mine, idx_path(self.path) + mine
        self._file = open(self._part, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by close() and discard()
        self._starts, self._ids = array("q"), array("Q")
        self._size = 0
        self._failed = ""

    def __len__(self) -> int:
        """How many records were written."""
        return len(self._ids)

    def write(self, data: bytes, label: Any = 0.0, id: int | None = None) -> None:
        """Writes a record. `label` is a number or a vector of them; `id` is by default the record's number."""
        self._check()
        if self._file.closed:
            raise ValueError(f"the writer of {self.path} is closed: it takes no more records.")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"the data of a record is bytes, but it is a {type(data).__name__}.")
        id = len(self) if id is None else as_id(id)
        if not 0 <= id < 1 << 64:
            raise ValueError(f"the id of a record is 0 to 2**64 - 1, but it is {id}.")
        content = _head(label, id) + bytes(data)
        if len(content) > framing.LONGEST:
            raise ValueError(
                f"record {len(self)} has {len(content):,} bytes, and RecordIO has room for {framing.LONGEST:,}."
            )
        pieces = framing.framed(content)
        try:
            self._file.writelines(pieces)
            self._starts.append(self._size)
            self._ids.append(id)
            self._size += sum(map(len, pieces))
        except BaseException as error:  # how much of the record is in the file, nobody knows
            self._failed = f"record {len(self)} could not be written ({error!r})"
            self.discard()
            raise

    def close(self) -> None:
        """Gives the files their names; where that fails, nothing is left. No second call does anything.

        A Ctrl-C is raised when both have theirs, or neither.
        """
        self._check()
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            write_index(self._index_part, self._starts, self._ids)
            # An old index must at no moment stand beside the new file. Without one the file can be read.
            index = idx_path(self.path)
            with interrupts_deferred():
                Path(index).unlink(missing_ok=True)
                os.replace(self._part, self.path)
                os.replace(self._index_part, index)
        finally:
            self._remove()

    def discard(self) -> None:
        """Gives up what was written."""
        if not self._file.closed:
            self._remove()

    def _check(self) -> None:
        if self._failed:
            raise OSError(f"{self.path}: {self._failed}, so none was kept. Write all of them anew.")

    def _remove(self) -> None:
        """What has its final name is not here any more."""
        try:
            with suppress(OSError):  # what is not written yet has no room, and is not wanted
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
        raise TypeError(f"a label is a number or a vector of numbers, but it is {label!r}.")
    with np.errstate(over="ignore"):
        stored = values.astype("<f4")
    if (np.isfinite(values) & ~np.isfinite(stored)).any():
        raise ValueError(f"labels are stored as float32, which has no room for {label!r}.")
    if values.dtype.kind in "iu" and (stored.astype(np.float64) != values).any():
        raise ValueError(f"labels are stored as float32, which cannot tell {label!r} from its neighbours.")
    if values.ndim == 0:
        return HEAD.pack(0, float(stored), id, 0)
    return HEAD.pack(stored.size, 0.0, id, 0) + stored.tobytes()
