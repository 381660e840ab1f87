"""`penstock.open` and `penstock inspect`: the right format for each file, and what is said where there is none."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pickle
import struct
import sys
import tarfile
import textwrap
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
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


@pytest.fixture(scope="module", autouse=True)
def pyarrow_reads_csv() -> None:
    """Its threads for that, and their pipe, begin with the first file, and stay."""
    with suppress(ImportError):
        csv = importlib.import_module("pyarrow.csv")
        csv.read_csv(io.BytesIO(b"x\n1\n"))


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
    with pytest.raises(FormatError, match=r"train.bin looks like a file of token ids, .*length=1025, stride=1024"):
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


def test_several_record_files_are_one_dataset(folder: Path) -> None:
    (folder / "b.rec").write_bytes((folder / "a.rec").read_bytes())
    found = penstock.open(folder / "*.rec")
    assert [record.data for record in found] == [b"one", b"two"] * 2


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


# Files for which there is no reader: what is said of each is a program that makes a dataset of it.
ROWS = [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
OTHERS: dict[str, Any] = {
    "a.csv": (b"x,y\n1,2\n3,4\n", "no reader for CSV", ROWS),
    "a.tsv": (b"x\ty\n1\t2\n3\t4\n", "no reader for TSV", ROWS),
    "a.json": (json.dumps(ROWS, indent=1).encode(), "no reader for JSON arrays", ROWS),
    "b.json": (json.dumps({"samples": ROWS}).encode(), "no reader for a file that is one JSON value", ROWS),
    "a.pkl": (pickle.dumps(ROWS), "no reader for pickle", ROWS),
    "a.npy": (lambda file: np.save(file, [1, 2]), "no reader for NumPy's .npy", [1, 2]),
    "npy": (lambda file: np.save(file, [1, 2]), "no reader for NumPy's .npy", [1, 2]),
    "a.npz": (lambda file: np.savez(file, x=[1, 3], y=[2, 4]), "no reader for NumPy's .npz", ROWS),
    "a.zip": (None, "no reader for zip", [b"one"]),
}


def written(path: Path, content: Any) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a/", b"")
            file.writestr("a/b", b"one")
    else:
        with path.open("wb") as out:
            content(out)
    return path


@pytest.mark.parametrize("in_folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("name", OTHERS)
def test_without_a_reader_the_error_has_the_lines_that_make_a_dataset(
    tmp_path: Path, name: str, in_folder: bool
) -> None:
    if name in ("a.csv", "a.tsv"):
        pytest.importorskip("pyarrow.parquet")
    content, said, expected = OTHERS[name]
    (tmp_path / "some").mkdir()
    path = written(tmp_path / "some" / name, content)
    with pytest.raises(FormatError, match=said) as raised:
        penstock.open(path.parent if in_folder else path)
    program: dict[str, Any] = {}
    exec(textwrap.dedent(str(raised.value).partition("\n")[2]), program)
    assert list(map(program["data"].__getitem__, range(len(expected)))) == expected


def test_json_lines_by_another_name_are_known(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", b'{"x": 1}\n{"x": 2}\n')
    with pytest.raises(FormatError, match=r"one JSON value on each line\. penstock\.formats\.JsonLines reads it"):
        penstock.open(path)
    assert list(penstock.formats.JsonLines(path)) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("name", ["a.h5", "a.hdf5", "no-end"])
def test_hdf5_is_wrapped_by_lines_that_h5py_runs(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class File(dict[str, list[int]]):  # h5py's, as far as the lines use it
        def __init__(self, path: str) -> None:
            super().__init__(x=[1, 2])

        def __enter__(self) -> File:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=File))
    path = written(tmp_path / name, b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(FormatError, match="no reader for HDF5") as raised:
        penstock.open(path)
    program: dict[str, Any] = {}
    exec(textwrap.dedent(str(raised.value).partition("\n")[2]), program)
    assert (len(program["data"]), program["data"][1]) == (2, 2)


def test_a_text_beside_other_files_is_not_taken_for_the_dataset(tmp_path: Path) -> None:
    written(tmp_path / "README.txt", b"about the table\n")
    written(tmp_path / "a.csv", b"x,y\n")
    with pytest.raises(FormatError, match=r"files of text \(1 in '.txt'\) beside others \(1 in '.csv'\)"):
        penstock.open(tmp_path)
    assert list(penstock.open(tmp_path / "**" / "*.txt")) == ["about the table"]
    written(tmp_path / "b.txt", b"more text\n")  # than anything else
    assert len(penstock.open(tmp_path)) == 2


def test_an_empty_folder_is_told_by_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file below the folder .* ends in .arrow"):
        penstock.open(tmp_path)


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
    assert ", 3 blocks of 1 sample, " in inspect(capsys, folder / "some.parquet")


def test_an_argument_that_the_class_does_not_have_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        ("photos", "ImageFolder: 2 samples, 2 files, 2 blocks of 1 sample, ", "  1: 0"),
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
