"""What is a lack of memory or descriptors, what is damage of a file, and that formats tell one from the other."""

from __future__ import annotations

import errno
import io
import os
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import DataLoader
from penstock._files import local
from penstock._files.damage import is_damage
from penstock._files.local import File
from penstock._system.shortage import is_shortage
from penstock.errors import FormatError, RemoteError
from penstock.formats import Arrow, Parquet, Tar, TextLines, _decoders, _parquet


class OutOfMemoryError(RuntimeError):
    """As a library of devices raises it."""


class error(Exception):
    pass


LACKS = [
    MemoryError(),
    MemoryError("Unable to allocate 7.28 TiB for an array"),
    pa.lib.ArrowMemoryError("malloc of size 64 failed"),
    pa.lib.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 2147483647"),
    *(OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)),
    RemoteError("x cannot be read: the connection failed (Too many open files (os error 24))."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    RuntimeError("can't start new thread"),
    error("OpenCV(4.10) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 8 bytes"),
    OutOfMemoryError("device 0 has no memory left"),
]
OTHERS = [
    ValueError("Too many open files"),
    OSError("broken data stream"),
    OSError(errno.EIO, "Input/output error"),
    FileNotFoundError(errno.ENOENT, "No such file"),
    RemoteError("the server answered 503"),
    RuntimeError("expected 3 channels"),
    FormatError("it is damaged"),
]


@pytest.mark.parametrize("lack", LACKS, ids=repr)
def test_a_lack_is_none_of_the_sample(lack: Exception) -> None:
    assert is_shortage(lack)
    assert not is_damage(lack)
    wrapped, judged = ValueError("bad file"), FormatError("it is damaged")
    wrapped.__cause__ = judged.__cause__ = lack
    assert is_shortage(wrapped) and not is_shortage(judged)


@pytest.mark.parametrize("other", OTHERS, ids=repr)
def test_other_errors_are_of_the_sample(other: Exception) -> None:
    assert not is_shortage(other)


def test_a_length_beyond_the_memory_of_the_machine_is_damage() -> None:
    assert is_damage(pa.lib.ArrowMemoryError("malloc of size 876173333376000 failed"))
    assert is_damage(OSError("Unexpected end of stream"))  # pyarrow's, of content
    assert not is_damage(OSError(errno.ENOENT, "No such file"))
    assert not is_damage(ImportError("no module"))


def parquet(folder: Path) -> Any:
    path = folder / "some.parquet"
    pa.parquet.write_table(pa.table({"x": range(8)}), path, row_group_size=4)
    return Parquet(path)


def arrow(folder: Path) -> Any:
    path = folder / "some.arrow"
    with pa.OSFile(str(path), "wb") as sink:
        schema = pa.schema([("x", pa.int64())])
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            for first in (0, 4):
                writer.write_batch(pa.record_batch({"x": range(first, first + 4)}))
    return Arrow(path)


def tar(folder: Path) -> Any:
    with tarfile.open(folder / "some.tar", "w") as archive:
        for number in range(8):
            info, data = tarfile.TarInfo(f"{number}.json"), b'{"x": %d}' % number
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return Tar(folder / "some.tar", fields=("json",))


def lines(folder: Path) -> Any:
    (folder / "some.txt").write_text("".join(f"{number}\n" for number in range(8)))
    return TextLines(folder / "some.txt")


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


Make = Callable[[Path], Any]


@pytest.mark.parametrize("make", [parquet, tar, lines])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_without_descriptors_no_sample_is_dropped(tmp_path: Path, make: Make, on_error: str) -> None:
    data = make(tmp_path)
    for file in data.files:
        file._descriptor = None
    loader = DataLoader(data, batch_size=2, on_error=on_error)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    iterator = iter(loader)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(OSError, match="Too many open files") as raised:
            next(iterator)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert raised.value.errno == errno.EMFILE
    assert not loader.skipped
    assert len(list(make(tmp_path))) == 8


@pytest.mark.parametrize("make", [parquet, arrow, tar])
def test_without_memory_no_sample_is_dropped(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make(tmp_path)

    def none(*args: Any) -> Any:
        raise pa.lib.ArrowMemoryError("malloc of size 64 failed")

    if make is tar:
        monkeypatch.setitem(_decoders._DECODERS, "json", _decoders.Decoding(none, is_ours=True))
        data.decode = True
    else:
        monkeypatch.setattr(type(data), "_read", none)
    loader = DataLoader(data, batch_size=2, on_error="skip")
    with pytest.raises(MemoryError) as raised:
        list(loader)
    assert "some." in "\n".join(raised.value.__notes__)
    assert not loader.skipped


def test_an_absurd_length_in_a_file_is_a_bad_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = parquet(tmp_path), Parquet._read

    def absurd(table: Any, block: int) -> Any:
        if block == 0:
            raise pa.lib.ArrowMemoryError("malloc of size 876173333376000 failed")
        return read(table, block)

    monkeypatch.setattr(Parquet, "_read", absurd)
    with DataLoader(data, batch_size=2, on_error="skip") as loader:
        assert [batch["x"].tolist() for batch in loader] == [[4, 5], [6, 7]]
        assert [type(error) for _, error in loader.skipped] == [FormatError] * 4


def test_a_disk_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File(str(tmp_path / "x")) if (tmp_path / "x").write_bytes(b"abc") else None
    assert file is not None

    def failing(*args: Any) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(local, "pread", failing)
    number = errno.EIO
    with pytest.raises(FormatError, match="Check the disk"):
        file.read(0, 3)
    number = errno.ENOMEM
    with pytest.raises(OSError, match="Cannot allocate memory"):
        file.read(0, 3)


# Blocks that do not fit into one record batch.

WIDE = pa.table(
    {
        "number": pa.array([*range(19), None]),
        "list": pa.array([[number] * (number % 3) for number in range(20)], pa.list_(pa.int16())),
        "row": pa.array([[number, 1] for number in range(20)], pa.list_(pa.float32(), 2)),
        "text": [f"row {number}" for number in range(20)],
        "data": [b"%d" % number for number in range(20)],
        "struct": [{"a": number, "b": "x"} for number in range(20)],
        "kind": pa.array(["a", "b"] * 10).dictionary_encode(),
    }
)


def divided(opened: Any, part: int, columns: Any) -> list[Any]:
    batches: list[Any] = opened.read_row_group(part, columns).to_batches(max_chunksize=3)
    return batches


@pytest.mark.parametrize("workers", [0, 1])
def test_a_block_of_several_record_batches_has_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    path = tmp_path / "wide.parquet"
    pa.parquet.write_table(WIDE, path, row_group_size=13)
    expected = list(map(repr, Parquet(path)))
    columns = ["row", "text"]
    with DataLoader(Parquet(path, columns), batch_size=6, shuffle=True, seed=1) as loader:
        batches = list(map(repr, loader))
    monkeypatch.setattr(_parquet, "_batches", divided)
    assert list(map(repr, Parquet(path))) == expected
    data = Parquet(path, columns)
    assert len(data._read(0)) == 5
    with DataLoader(data, batch_size=6, shuffle=True, seed=1, num_workers=workers) as loader:
        assert list(map(repr, loader)) == batches


class Limited:
    """A ParquetFile that reads at most `most` rows at once, as pyarrow does with 2 GB of binary data in lists."""

    def __init__(self, path: Path, most: int) -> None:
        self._file, self._most = pa.parquet.ParquetFile(path), most
        self.metadata = self._file.metadata

    def read_row_group(self, *args: Any, **options: Any) -> Any:
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    def iter_batches(self, size: int, *args: Any, **options: Any) -> Any:
        if size > self._most:
            raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")
        return self._file.iter_batches(size, *args, **options)


def test_a_row_group_that_cannot_be_read_at_once_is_read_in_smaller_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.parquet"
    pa.parquet.write_table(WIDE, path)
    with pytest.raises(pa.ArrowNotImplementedError):  # it is too small for that to be the reason
        _parquet._batches(Limited(path, 3), 0, ["struct"])
    monkeypatch.setattr(_parquet, "_DIVIDED", 0)
    found = _parquet._batches(Limited(path, 3), 0, ["struct"])
    assert [batch.num_rows for batch in found] == [2] * 10
    assert pa.Table.from_batches(found)["struct"].to_pylist() == WIDE["struct"].to_pylist()
    with pytest.raises(pa.ArrowNotImplementedError):
        _parquet._batches(Limited(path, 0), 0, ["struct"])
