"""MXNet's `.idx` files, in which each line has the key and the byte offset of a record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._files.local import AnyFile, File
from penstock._system import trust
from penstock.errors import FormatError
from penstock.records import _framing as framing

_LINE = rb"\d{1,20}[ \t]+\d{1,18}[ \t\r]*\n"
_LINES = re.compile(rb"(?:" + _LINE + rb")*+")
_MOST = (1 << 64) - 1


def read_index(index: AnyFile, file: AnyFile) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Returns the byte offset of each record, in file order, and the records' keys.

    The index of a local file is compared with the header of every record. A remote file would have to be downloaded
    for this comparison, so only its last record is checked. Other errors in the index of a remote file are noticed
    when the records are read.
    """
    path, text = index.path, index.read(0, index.size)
    if text and not text.endswith(b"\n"):
        text += b"\n"
    whole = _LINES.match(text)
    if whole is None or whole.end() != len(text):
        _refuse(path, text.split(b"\n"), text.count(b"\n", 0, whole.end() if whole else 0))
    table = np.fromstring(text, np.uint64, sep=" ").reshape(-1, 2)
    largest = np.flatnonzero(table[:, 0] == _MOST).tolist()  # numpy reads larger numbers as this one
    lines = text.split(b"\n") if largest else []
    for row in largest:
        if int(lines[row].split()[0]) > _MOST:
            _refuse(path, lines, row)
    order = table[:, 1].argsort(kind="stable")
    keys, starts = table[order, 0], table[order, 1].astype(np.int64)
    if wrong := _wrong(starts, file):
        raise FormatError(
            f"{path} is not the index of {file.path}: {wrong}. One of the two is damaged or out of date. "
            "Pass idx=False to find the records without it; save_idx() writes a new index."
        )
    return starts, keys


def _refuse(path: str, lines: list[bytes], row: int) -> NoReturn:
    raise FormatError(
        f"{path}, line {row + 1}: {lines[row][:60]!r} should be a key below 2**64 and the first byte of its record, "
        "two integers with a tab between them."
    )


def _wrong(starts: NDArray[np.int64], file: AnyFile) -> str:
    """Returns why `starts` cannot be the offsets of the records in the file, or "" if they can."""
    if len(starts) == 0:
        return f"it is empty, but the file has {file.size:,} bytes" if file.size else ""
    if starts[0] != 0:
        return f"its first record begins at byte {starts[0]:,}, but the first record of the file at byte 0"
    if (np.diff(starts) < 8).any():
        return f"a record at byte {starts[np.diff(starts, append=file.size) < 8][0]:,} leaves no room for the next"
    if starts[-1] >= file.size:
        return f"it has a record at byte {starts[-1]:,}, but the file ends at {file.size:,}"
    try:
        last = int(starts[-1])
        framing.record(file.peek(last, file.size - last))
    except framing.NotARecord:
        return f"its last record, at byte {starts[-1]:,}, does not end where the file does"
    return framing.disagreement(file, starts) if isinstance(file, File) else ""


def write_index(path: str, starts: Iterable[int], keys: Iterable[int]) -> None:
    with open(trust.open_named(path), "w", encoding="ascii", newline="\n") as file:
        file.writelines(f"{key}\t{start}\n" for key, start in zip(keys, starts, strict=True))
