"""`TextLines` and `JsonLines` read the lines of text files by key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._files.index import Arrays, Index
from penstock._files.local import AnyFile
from penstock.errors import FormatError
from penstock.formats._extents import Extents, compact, refuse_compressed

_PIECE = 1 << 20  # bytes that are searched at once, and stay in the processor's cache
_NEWLINE, _RETURN = 10, 13
_BOM = b"\xef\xbb\xbf"


class TextLines(Extents):
    """A dataset of the lines of UTF-8 files. A sample is a str without its line ending (`\\n` or `\\r\\n`).

    Empty lines are samples too. The last line may end without a newline. A byte order mark at the beginning of a file
    is not part of the first line. The index of a file is built once, at a few GB/s, and then stored
    (docs/formats.md). Paths may be URLs (docs/remote.md). Compressed files raise an error.

    `storage`, `cache`, `cache_bytes` and `cache_shared` apply to remote files: see `penstock.formats`. Reading a line
    of more than `max_sample_bytes` raises an error for that sample.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "some.txt")
    >>> _ = path.write_text("one\\n\\nthree")
    >>> list(TextLines(path))
    ['one', '', 'three']
    """

    suffixes: ClassVar[tuple[str, ...]] = (".txt",)
    kind = "lines-1"

    @staticmethod
    def find(file: AnyFile) -> Arrays:
        """Returns the index of a file: where each line begins, and which lines are empty.

        `starts` holds the offset of each line and the end of the last one. `before_empty` holds, for each empty line,
        the number of non-empty lines before it.
        """
        refuse_compressed(file)
        mark = len(_BOM) if file.read(0, min(file.size, len(_BOM))) == _BOM else 0
        starts, returns = [np.array([mark], np.int64)], [np.empty(0, np.bool_)]
        for at in range(0, file.size, _PIECE):
            before = 1 if at else 0  # a newline at the beginning of a piece may follow a carriage return
            piece = np.frombuffer(file.read(at - before, min(_PIECE, file.size - at) + before), np.uint8)
            newlines = np.flatnonzero(piece[before:] == _NEWLINE) + before
            starts.append(newlines + (at - before + 1))
            returns.append(piece[newlines - 1] == _RETURN)
        found = np.concatenate(starts)
        lengths = np.diff(found)
        empty = np.flatnonzero((lengths == 1) | ((lengths == 2) & np.concatenate(returns)))
        if found[-1] != file.size:  # the last line has no newline
            found = np.append(found, file.size)
        return {"starts": compact(found, file.size), "before_empty": empty - np.arange(len(empty))}

    def checks(self) -> Sequence[object]:
        return [index.check("starts") for index in self.indexes]  # lines in another order have other offsets

    def decoded(self, raw: bytes, number: int, row: int) -> Any:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            what = f"the line is not UTF-8: {error.reason}. Convert the file to UTF-8, for example with iconv"
            self._refuse(number, row, error.start, what)
        return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")

    def _refuse(self, number: int, row: int, byte: int, what: str) -> NoReturn:
        """Raises FormatError for a line. `what` describes the problem at the offset `byte` within the line."""
        line, byte = self._place(number, row) + 1, self.extent(number, row)[0] + byte
        raise FormatError(f"{self.files[number].path}, line {line:,}, byte {byte:,}: {what}.")


class JsonLines(TextLines):
    """A dataset of files with one JSON value per line, such as `.jsonl` files.

    A sample is what `json.loads` returns, usually a dict. Empty lines are skipped. A line that is not JSON raises an
    error for its sample; the message names the file, the line and the byte. Everything else works as in `TextLines`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "some.jsonl")
    >>> _ = path.write_text('{"id": 1, "text": "one"}\\n\\n{"id": 2, "text": "two"}\\n')
    >>> JsonLines(path)[-1]
    {'id': 2, 'text': 'two'}
    """

    suffixes = (".jsonl", ".ndjson")

    def _count(self, index: Index) -> int:
        return super()._count(index) - len(index["before_empty"])

    def _place(self, number: int, row: int) -> int:
        """Returns the index of the line that holds a row. Empty lines do not count as rows."""
        before = self.indexes[number]["before_empty"]
        return row + int(before.searchsorted(row, "right")) if len(before) else row

    def _firsts(self, number: int) -> NDArray[np.int64]:
        lines, before = super()._firsts(number), self.indexes[number]["before_empty"]
        return lines - (before + np.arange(len(before))).searchsorted(lines)

    def decoded(self, raw: bytes, number: int, row: int) -> Any:
        text = super().decoded(raw, number, row)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            byte = len(text[: getattr(error, "pos", 0)].encode())
            why = getattr(error, "msg", error)  # without json's own line and column numbers
            what = f"the line is not JSON: {why}. Each line must be one value; this one begins with {text[:40]!r}"
            if text.strip() in ("[", "{"):
                what += ". If the file is one value over many lines, use json.load, or convert it with jq -c '.[]'"
            self._refuse(number, row, byte, what)
