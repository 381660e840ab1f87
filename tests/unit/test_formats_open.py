"""`penstock.open` and `penstock inspect`: the right format for each file, and what is said where there is none."""

from __future__ import annotations

import doctest
import gzip
import importlib
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock
from penstock import cli
from penstock.errors import FormatError
from penstock.records import RecordWriter, write_caffe_lmdb


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two samples in each format."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n')
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.txt", "b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.arange(5, dtype=np.uint16).tofile(tmp_path / "docs.bin")
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i2q3q", 2, 3, 0, 4, 0, 1, 2)
    (tmp_path / "docs.idx").write_bytes(index)
    with RecordWriter(tmp_path / "a.rec") as writer:
        writer.write(b"one", 1)
        writer.write(b"two", 2)
    write_caffe_lmdb(tmp_path / "lmdb", [(np.zeros((3, 2, 2), np.uint8), number) for number in range(2)])
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (5, 4)).save(tmp_path / "photos" / name / "1.png")
    return tmp_path


FOUND = {
    "a.jsonl": "JsonLines",
    "a.txt": "TextLines",
    "a.tar": "Tar",
    "docs": "Megatron",
    "docs.bin": "Megatron",
    "docs.idx": "Megatron",
    "a.rec": "RecordFile",
    "a.*ec": "RecordFile",
    "lmdb": "CaffeLMDB",
    "lmdb/data.mdb": "CaffeLMDB",
    "photos": "ImageFolder",
}


@pytest.mark.parametrize("path", FOUND)
def test_the_format_is_found(folder: Path, path: str) -> None:
    found = penstock.open(folder / path)
    assert type(found).__name__ == FOUND[path]
    assert len(found) == 2


def test_tables_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    feather, parquet = pytest.importorskip("pyarrow.feather"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": [1, 2], "text": ["one", "two"]})
    (folder / "tables").mkdir()
    parquet.write_table(table, folder / "tables" / "a.parquet")
    feather.write_feather(table, folder / "a.feather")
    with pyarrow.ipc.new_file(folder / "a.unnamed", table.schema) as file:
        file.write_table(table)
    with pyarrow.ipc.new_stream(folder / "stream.arrow", table.schema) as stream:  # as Hugging Face's files
        stream.write_table(table)
    found = {"tables": "Parquet", "a.feather": "Arrow", "a.unnamed": "Arrow", "stream.arrow": "Arrow"}
    for path, name in found.items():
        data = penstock.open(folder / path)
        assert (type(data).__name__, data[1]) == (name, {"id": 2, "text": "two"})
        assert inspect(capsys, folder / path).startswith(f"{name}: 2 samples, 1 file, 1 block, ")


def test_content_counts_before_the_name(folder: Path) -> None:
    for name in ("a.tar", "a.rec"):
        (folder / "unnamed").write_bytes((folder / name).read_bytes())
        assert type(penstock.open(folder / "unnamed")).__name__ == FOUND[name]


def test_settings_are_those_of_the_class(folder: Path) -> None:
    assert len(penstock.open(folder / "train.bin", dtype="uint16", length=3)) == 3
    assert penstock.open(folder / "a.tar", decode=False)[0]["txt"] == b"abc"


def test_token_ids_need_their_dtype(folder: Path) -> None:
    with pytest.raises(FormatError, match=r"train.bin looks like a file of token ids, .*dtype='uint16', length=1024"):
        penstock.open(folder / "train.bin")


def test_a_folder_of_one_format_is_read_as_a_whole(folder: Path) -> None:
    for name, found in (("a.jsonl", "JsonLines"), ("a.rec", "RecordFile"), ("docs.bin", "Megatron")):
        (folder / "one").mkdir(exist_ok=True)
        for file in folder.glob(f"{name.split('.')[0]}.*"):
            if file.suffix in (Path(name).suffix, ".idx"):
                file.rename(folder / "one" / file.name)
        assert type(penstock.open(folder / "one")).__name__ == found
        for file in (folder / "one").iterdir():
            file.rename(folder / file.name)


def test_a_folder_of_several_formats_is_refused(folder: Path) -> None:
    with pytest.raises(FormatError, match=r"several formats: .*\.jsonl \(JsonLines\), .*Name those"):
        penstock.open(folder)


def test_several_record_files_are_refused(folder: Path) -> None:
    (folder / "b.rec").write_bytes((folder / "a.rec").read_bytes())
    with pytest.raises(ValueError, match="RecordFile reads one file, but there are 2"):
        penstock.open(folder / "*.rec")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"what is this", r"a.xyz: the format is not known. Its name ends in '.xyz', .*b'what is this'"),
        (gzip.compress(b"x", mtime=0), r"a.xyz, byte 0: the file is compressed by gzip"),
        (b"", "the format is not known"),
    ],
)
def test_an_unknown_file_is_refused(folder: Path, content: bytes, message: str) -> None:
    (folder / "a.xyz").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        penstock.open(folder / "a.xyz")


def inspect(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert cli.main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_inspect_prints_what_files_hold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(capsys, folder / "a.jsonl", "--samples", "1") == (
        "JsonLines: 2 samples, 1 file, 1 block, 50 B\n"
        "\n"
        "field  dtype  shape or length\n"
        "id     int\n"
        "text   str    3\n"
        "\n"
        "sample 0\n"
        "  id: 1\n"
        "  text: 'one'\n"
    )
    assert inspect(capsys, folder / "train.bin", "--dtype", "uint16", "--length", 5, "--samples", 0) == (
        "Tokens: 2 samples, 1 file, 1 block, 20 B\n\nfield         dtype   shape or length\n(the sample)  uint16  5\n"
    )


def test_inspect_shows_how_a_file_is_blocked_and_plain_values(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    whens = pyarrow.array([0, 1, 2], pyarrow.timestamp("ms"))
    table = pyarrow.table({"id": [1, 2, 3], "when": whens, "who": [{"a": 1, "ids": [2, 3]}] * 3})
    parquet.write_table(table, folder / "some.parquet", row_group_size=2)
    printed = inspect(capsys, folder / "some.parquet", "--samples", "1").splitlines()
    assert printed[0].startswith("Parquet: 3 samples, 1 file, 2 blocks of 1 to 2 samples, ")
    assert printed[-3:] == ["  id: 1", "  when: 1970-01-01T00:00:00.000", "  who: {'a': 1, 'ids': [2, 3]}"]
    parquet.write_table(table, folder / "some.parquet", row_group_size=1)
    assert ", 3 blocks of 1 samples, " in inspect(capsys, folder / "some.parquet")


def test_an_argument_that_the_class_does_not_have_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("a.tar", "a.rec", "photos"):
        with pytest.raises(TypeError, match=f"read by {FOUND[path]}, which has no argument 'length'. Its arguments"):
            penstock.open(folder / path, length=3)
    assert cli.main(["inspect", str(folder / "a.tar"), "--dtype", "uint16"]) == 1
    assert "by Tar, which has no argument 'dtype'. Its arguments are: decode, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "first", "line"),
    [
        ("a.rec", "RecordFile: 2 samples, 1 file, 1 block, ", "  data: b'one'"),
        ("lmdb", "CaffeLMDB: 2 samples, 1 file, 1 block, ", "  0: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"),
        ("photos", "ImageFolder: 2 samples, 2 files, 1 block, ", "  1: 0"),
        ("a.tar", "Tar: 2 samples, 1 file, 1 block, ", "  txt: 'abc'"),
        ("docs", "Megatron: 2 samples, 1 file, 1 block, 10 B", "  [0, 1]"),
    ],
)
def test_inspect_prints_every_format(
    folder: Path, capsys: pytest.CaptureFixture[str], path: str, first: str, line: str
) -> None:
    printed = inspect(capsys, folder / path).splitlines()
    assert printed[0].startswith(first)
    assert line in printed


def test_inspect_of_a_bad_file_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.tar").write_bytes(b"")
    assert cli.main(["inspect", str(folder / "a.tar")]) == 1
    assert "penstock inspect: " in capsys.readouterr().err
    assert cli.main(["inspect", str(folder / "nothing")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["formats._lines", "formats._tar", "formats._tokens", "_open"])
def test_examples_of_docstrings_run(module: str) -> None:
    ran = doctest.testmod(importlib.import_module(f"penstock.{module}"))
    assert ran.attempted and not ran.failed
