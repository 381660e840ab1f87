"""Files of samples in each format that needs no library, and their samples as plain values."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_part(folder: Path, part: int, numbers: range, ids: NDArray[np.uint16], length: int) -> None:
    """A file of each format: a sample for each number, these token ids, and documents of `length` ids each."""
    (folder / f"{part}.txt").write_text("".join(f"line {number}\n" for number in numbers))
    (folder / f"{part}.jsonl").write_text("".join(json.dumps({"id": n, "of": [n]}) + "\n\n" for n in numbers))
    with tarfile.open(folder / f"{part}.tar", "w") as tar:
        for number in numbers:
            for end, data in (("cls", b"%d" % number), ("txt", b"%d" % -number)):
                info = tarfile.TarInfo(f"{number:03}.{end}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    ids.tofile(folder / f"{part}.bin")
    count = len(numbers)
    ids[: count * length].tofile(folder / f"{part}-documents.bin")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
    tables = np.full(count, length, np.int32), np.arange(count) * length * ids.itemsize, np.arange(count + 1)
    (folder / f"{part}-documents.idx").write_bytes(head + b"".join(table.tobytes() for table in tables))


def plain(value: Any) -> Any:
    """The value with lists instead of tuples and arrays, which can be compared."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
