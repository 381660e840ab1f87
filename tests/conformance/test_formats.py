"""Files of samples: the same stream on every backend, and damage that is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import DataLoader, StackDataset
from penstock.errors import FormatError
from penstock.formats import JsonLines, Megatron, Tar, TextLines, Tokens
from tests.written import plain, write_part

N = 14


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """N samples in each format, in two files each."""
    folder = tmp_path_factory.mktemp("formats")
    for part, numbers in enumerate((range(5), range(5, N))):
        write_part(folder, part, numbers, np.arange(6 * len(numbers), dtype=np.uint16) + 1000 * part, 6)
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
