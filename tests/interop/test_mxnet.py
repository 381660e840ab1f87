"""MXNet reads our files, and we read its: `make interop`, which makes an environment for MXNet 1.9.1."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.records import Record, RecordFile, RecordWriter
from penstock.records._framing import MARK

MXNET = os.environ.get("PENSTOCK_MXNET_PYTHON", "")
pytestmark = pytest.mark.skipif(not MXNET, reason="PENSTOCK_MXNET_PYTHON names no Python with MXNet")

M = MARK.to_bytes(4, "little")
RECORDS = [
    Record(0, 3.0, b""),
    Record(7, 0.5, b"abc"),
    Record(3, 1.0, M),
    Record(4, 2.0, b"x" + M * 2),
    Record(12, 2.0, M + b"wxyz" + M * 3 + b"end"),
    Record(13, [1.0, 2.5, -3.0], b"with three labels" + M),  # type: ignore[arg-type]
    Record(99, [7.0], bytes(range(256)) * 300),  # type: ignore[arg-type]
]


def mxnet(command: str, path: Path, given: object = None) -> Any:
    script = str(Path(__file__).with_name("mxnet_side.py"))
    asked = [MXNET, script, command, str(path)]
    ran = subprocess.run(asked, input=json.dumps(given), capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def plain(record: Record) -> list[Any]:
    label = record.label.tolist() if isinstance(record.label, np.ndarray) else record.label
    return [base64.b64encode(record.data).decode(), label, record.id]


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    path = tmp_path / "ours.rec"
    with RecordWriter(path) as writer:
        for id_, label, data in RECORDS:
            writer.write(data, label, id_)
    return path


def test_mxnet_reads_what_we_wrote(ours: Path) -> None:
    expected = [plain(record) for record in RECORDS]
    assert mxnet("read", ours) == {"in_order": expected, "by_key": {str(r[2]): r for r in expected}}


@pytest.mark.parametrize("idx", [None, False])
def test_we_read_what_mxnet_wrote(tmp_path: Path, idx: Any) -> None:
    path = tmp_path / "theirs.rec"
    mxnet("write", path, [plain(record) for record in RECORDS])
    file = RecordFile(path, idx)
    assert [plain(record) for record in file] == [plain(record) for record in RECORDS]
    assert file.by_id(12).data == RECORDS[4].data


def test_both_write_the_same_bytes(ours: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.rec"
    mxnet("write", theirs, [plain(record) for record in RECORDS])
    assert theirs.read_bytes() == ours.read_bytes()
    assert theirs.with_suffix(".idx").read_bytes() == ours.with_suffix(".idx").read_bytes()


def test_mxnets_image_iterator_reads_a_file_of_ours(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "images.rec"
    with RecordWriter(path) as writer:
        for number in range(8):
            file = io.BytesIO()
            Image.new("RGB", (32, 32), (30 * number,) * 3).save(file, "PNG")
            writer.write(file.getvalue(), number)
    found = mxnet("iterate", path)
    assert found == [[30.0 * number, float(number)] for number in range(8)]
