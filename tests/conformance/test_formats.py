"""Files of samples: the same stream on every backend, and damage that is named."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import DataLoader, StackDataset
from penstock.errors import FormatError
from penstock.formats import JsonLines, Megatron, Tar, TextLines, Tokens

N = 14


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """N samples in each format, in two files each."""
    folder = tmp_path_factory.mktemp("formats")
    for part, numbers in enumerate((range(5), range(5, N))):
        (folder / f"{part}.txt").write_text("".join(f"line {number}\n" for number in numbers))
        (folder / f"{part}.jsonl").write_text("".join(json.dumps({"id": n, "of": [n]}) + "\n\n" for n in numbers))
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for number in numbers:
                for end, data in (("cls", b"%d" % number), ("txt", b"%d" % -number)):
                    info = tarfile.TarInfo(f"{number:03}.{end}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        ids = np.arange(6 * len(numbers), dtype=np.uint16) + 1000 * part
        ids.tofile(folder / f"{part}.bin")
        ids.tofile(folder / f"{part}-documents.bin")
        n = len(numbers)
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1)
        tables = np.full(n, 6, np.int32), np.arange(n) * 12, np.arange(n + 1)
        (folder / f"{part}-documents.idx").write_bytes(head + b"".join(map(bytes, (t.data for t in tables))))
    return folder


def drawn(data: bytes) -> tuple[int, int]:
    return int(data), int(penstock.rng().integers(1 << 30))


def all_but_tokens(files: Path) -> StackDataset:
    return StackDataset(
        text=TextLines(files),
        json=JsonLines(files),
        tar=Tar(files, decode={"cls": drawn}),
        ids=Megatron(files),
    )


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_every_backend_gives_the_same_samples(make: Any, files: Path) -> None:
    for dataset in (all_but_tokens(files), Tokens(files / "[01].bin", "uint16", 6)):
        settings = {"batch_size": 4, "shuffle": True, "seed": 4}
        inline = [plain(batch) for batch in DataLoader(dataset, **settings)]
        assert [plain(batch) for batch in make(dataset, **settings)] == inline
        assert sum(len(batch["text"] if isinstance(batch, dict) else batch) for batch in inline) == N


def test_ids_are_converted_on_the_way(make: Any, files: Path) -> None:
    tokens = Tokens(files / "[01].bin", "uint16", 7, 6)
    batches = [batch.copy() for batch in make(tokens, batch_size=3, dtype="int64")]
    assert {batch.dtype.name for batch in batches} == {"int64"}
    assert np.concatenate(batches)[:, 0].tolist() == [0, 6, 12, 18, *range(1000, 1048, 6)]


def test_a_bad_line_is_named_or_skipped(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f"[{number}]\n" for number in range(4)) + "[4\n" + "[5]\n")
    loader = make(JsonLines(path), batch_size=3, on_error="skip")
    assert [plain(batch) for batch in loader] == [[[0, 1, 2]], [[3, 5]]]
    assert [(key, type(error)) for key, error in loader.skipped] == [(4, FormatError)]
    with pytest.raises(FormatError, match=r"bad\.jsonl, line 5, byte 18: ") as raised:
        list(make(JsonLines(path), batch_size=3))
    assert "In sample 4 (row 1), step 1 of epoch 0" in raised.value.__notes__[0]
