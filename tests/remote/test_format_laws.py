"""Every format keeps the laws of `penstock.testing.formats`, and these find formats that do not."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import sys
import tarfile
import threading
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from others import samples
from pictures import encoded, picture

from penstock.errors import FormatError
from penstock.formats import (
    MDS,
    Arrow,
    Blocks,
    Format,
    JsonLines,
    LitData,
    Megatron,
    Parquet,
    Tar,
    TextLines,
    TFRecord,
    Tokens,
    register,
    unregister,
)
from penstock.image import ImageFolder, Transform
from penstock.records import CaffeLMDB, RecordFile, RecordWriter, write_caffe_lmdb
from penstock.testing import formats

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FILES = Path(__file__).parents[1] / "others" / "files"
WIDE = bool(os.environ.get("PENSTOCK_WIDE"))


class Laws(formats.Suite):
    """All laws. `tests/conformance/test_formats.py` has more workers; `tests/laws/test_file_laws.py` more damage."""

    __test__ = False
    damages = 400 if WIDE else 25
    settings = formats.Suite.settings if WIDE else formats.Suite.settings[:1]

    def write(self, folder: Path) -> list[Path]:
        for part in range(3):
            self.part(folder, part)
        return sorted(path for path in folder.iterdir())

    def part(self, folder: Path, part: int) -> None:
        raise NotImplementedError


class TestTextLines(Laws):
    __test__ = True
    make = TextLines

    def part(self, folder: Path, part: int) -> None:
        (folder / f"{part}.txt").write_text("".join(f"line {n} é\n" for n in range(part + 4)))


class TestJsonLines(Laws):
    __test__ = True
    make = JsonLines

    def part(self, folder: Path, part: int) -> None:
        lines = ["" if n == 1 else json.dumps({"n": n, "list": [n] * n}) for n in range(part + 5)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))


class TestTar(Laws):
    __test__ = True
    make = Tar

    def part(self, folder: Path, part: int) -> None:
        array = io.BytesIO()
        np.save(array, np.arange(6).reshape(2, 3))
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for n in range(part + 3):
                for end, data in (("txt", b"text %d" % n), ("cls", b"%d" % n), ("npy", array.getvalue())):
                    info = tarfile.TarInfo(f"{part}-{n}.{end}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


class TestTokens(Laws):
    __test__ = True
    make = staticmethod(partial(Tokens, dtype="uint16", length=9, stride=8))
    found = {"dtype": "uint16", "length": 9, "stride": 8}  # noqa: RUF012

    def part(self, folder: Path, part: int) -> None:
        np.arange(60 + 10 * part, dtype=np.uint16).tofile(folder / f"{part}.bin")


class TestMegatron(Laws):
    __test__ = True
    make = Megatron

    def write(self, folder: Path) -> list[Path]:
        super().write(folder)
        return sorted(folder.glob("*.idx"))

    def part(self, folder: Path, part: int) -> None:
        lengths = np.arange(2, 7 + part)
        ids = np.arange(lengths.sum(), dtype=np.uint16)
        ids.tofile(folder / f"{part}.bin")
        starts = np.concatenate([[0], lengths.cumsum()[:-1]]) * 2
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
        arrays = lengths.astype("<i4"), starts.astype("<i8"), np.arange(len(lengths) + 1, dtype="<i8")
        (folder / f"{part}.idx").write_bytes(head + b"".join(each.tobytes() for each in arrays))


def table(part: int) -> Any:
    n = 8 + part
    return pa.table({"id": range(n), "text": [f"é{i}" for i in range(n)], "list": [[i, i + 1] for i in range(n)]})


class TestParquet(Laws):
    __test__ = True
    make = Parquet

    def part(self, folder: Path, part: int) -> None:
        pq.write_table(table(part), folder / f"{part}.parquet", row_group_size=3)


class TestArrow(Laws):
    __test__ = True
    make = Arrow

    def part(self, folder: Path, part: int) -> None:
        options = pa.ipc.IpcWriteOptions(compression="lz4") if part else None
        with pa.ipc.new_file(folder / f"{part}.arrow", table(part).schema, options=options) as file:
            file.write_table(table(part), max_chunksize=3)


class TestRecordFile(Laws):
    """Two files with an `.idx`, and one without."""

    __test__ = True
    make = RecordFile

    def write(self, folder: Path) -> list[Path]:
        super().write(folder)
        (folder / "1.idx").unlink()
        return sorted(folder.glob("*.rec"))

    def part(self, folder: Path, part: int) -> None:
        with RecordWriter(folder / f"{part}.rec") as writer:
            for n in range(part + 4):
                writer.write(b"\x0a\x23\xd7\xce" * (n % 3) + b"%d" % n * 20, [1.0, n] if n % 2 else n)


class TestRecordImages(TestRecordFile):
    transform = Transform(resize=(4, 4), dtype="uint8")
    make = staticmethod(partial(RecordFile, transform=transform))
    found = {"transform": transform}  # noqa: RUF012

    def part(self, folder: Path, part: int) -> None:
        with RecordWriter(folder / f"{part}.rec") as writer:
            for n in range(part + 4):
                writer.write(encoded(picture(9, 7, seed=n), "PNG"), n)


class TestCaffeLMDB(Laws):
    __test__ = True
    make = CaffeLMDB

    def write(self, folder: Path) -> list[Path]:
        super().write(folder)
        return sorted(folder.glob("*/data.mdb"))

    def part(self, folder: Path, part: int) -> None:
        shapes = [(3, 5, 4), (1, 40, 60), (3, 2, 2)]  # one of them is too large for a page
        images = [np.full(shapes[n % 3], n, np.uint8) for n in range(part + 5)]
        write_caffe_lmdb(folder / f"{part}_lmdb", [(image, n) for n, image in enumerate(images)])


class TestCaffeImages(TestCaffeLMDB):
    transform = Transform(resize=(4, 4), dtype="uint8")
    make = staticmethod(partial(CaffeLMDB, transform=transform))
    found = {"transform": transform}  # noqa: RUF012


class TestImageFolder(Laws):
    """By a list, since a web server has none of its files."""

    __test__ = True
    make = staticmethod(
        lambda paths, **files: ImageFolder(paths[0], Transform(resize=(4, 4), dtype="uint8"), **files)
    )
    found = None

    def write(self, folder: Path) -> list[Path]:
        lines = []
        for n in range(9):
            (folder / f"{n % 2}").mkdir(exist_ok=True)
            (folder / f"{n % 2}" / f"{n} é.png").write_bytes(encoded(picture(9, 7, seed=n), "PNG"))
            lines.append(f"{n % 2}/{n} é.png {n}\n")
        (folder / "list.txt").write_text("".join(lines))
        return [folder / "list.txt"]


class Copied(Laws):
    """Files that the packages of others have written."""

    folder_of: str

    def write(self, folder: Path) -> list[Path]:
        shutil.copytree(FILES / self.folder_of, folder, dirs_exist_ok=True)
        return [folder / "index.json"]


class TestMDS(Copied):
    __test__ = True
    settings = formats.Suite.settings
    make, folder_of = MDS, "mds"


class TestLitData(Copied):
    __test__ = True
    make, folder_of = LitData, "litdata"


class TestLitDataRows(Copied):
    __test__ = True
    make, folder_of = LitData, "litdata-rows"


class TestLitDataTokens(Copied):
    __test__ = True
    folder_of = "litdata-tokens"
    make = staticmethod(partial(LitData, block_size=samples.BLOCK_SIZE))
    found = {"block_size": samples.BLOCK_SIZE}  # noqa: RUF012


class TestTFRecord(Copied):
    __test__ = True
    settings = formats.Suite.settings
    make, folder_of = TFRecord, "tfrecord"

    def write(self, folder: Path) -> list[Path]:
        super().write(folder)
        return sorted(folder.iterdir())


class TestHDF5(Laws):
    """The example of docs/own-format.md. h5py may crash with a damaged file, so it is only cut off, below."""

    __test__ = True
    damages = 0

    def setup_method(self) -> None:
        self.make = example("h5py")
        super().setup_method()

    def teardown_method(self) -> None:
        super().teardown_method()
        unregister(self.make)

    def part(self, folder: Path, part: int) -> None:
        import h5py

        array = np.arange(40 + 4 * part).reshape(-1, 4) + part
        with h5py.File(folder / f"{part}.h5", "w") as file:
            file.create_dataset("x", data=array, chunks=(3, 2), compression="gzip")

    def test_a_file_that_is_cut_off_raises_format_errors_and_no_others(self) -> None:
        size = self.paths[0].stat().st_size
        for at in range(0, size, size // 40):
            _, paths = self.copy()
            paths[0].write_bytes(paths[0].read_bytes()[:at])
            with pytest.raises(FormatError):
                list(self.make(paths))


def example(library: str) -> Any:
    """The format of the page, which is made anew: its program opens files, too."""
    pytest.importorskip(library)
    page = (Path(__file__).parents[2] / "docs" / "own-format.md").read_text()
    (code, *_) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    module = types.ModuleType("own_format_page")
    sys.modules["own_format_page"] = module
    exec(code.partition("\nfolder = ")[0], module.__dict__)
    return module.HDF5  # type: ignore[attr-defined]


# A format of an author, sound, and then with one mistake each.


class Squares(Blocks):
    """Rows of 64 bytes, in blocks of three rows; a file begins with a mark."""

    suffixes = (".squares",)

    def __init__(self, paths: Any, **files: Any) -> None:
        super().__init__(paths, **files)
        for file in self.files:
            if (file.size - 8) % 192 or not self.matches(file.peek(0, min(8, file.size))):
                file.damaged(0, "it is no file of squares")
        self.set_rows([[3] * ((file.size - 8) // 192) for file in self.files])

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.startswith(b"SQUARES!")

    def ranges(self, rows: Any) -> list[tuple[int, int]]:
        return [(8 + 64 * rows.first, 8 + 64 * rows.stop)]

    def read(self, rows: Any) -> Any:
        ((start, stop),) = Squares.ranges(self, rows)
        return np.frombuffer(self.files[rows.file].read(start, stop - start), np.uint8).reshape(-1, 64).copy()


@pytest.fixture
def squares(tmp_path: Path) -> Iterator[list[Path]]:
    folder = tmp_path / "squares"
    folder.mkdir()
    paths = [folder / f"{part}.squares" for part in range(2)]
    for part, path in enumerate(paths):
        path.write_bytes(b"SQUARES!" + bytes((part * 50 + at) % 256 for at in range(192 * 5)))
    register(Squares)
    yield paths
    unregister(Squares)


def test_a_format_of_an_author_keeps_all_laws(squares: list[Path]) -> None:
    assert formats.check(Squares, squares, damages=20) == []


def broken(**changed: Any) -> type[Squares]:
    return type("Broken", (Squares,), changed)


def first_twice(self: Any, keys: Any, rows: Any) -> list[Any]:
    found = Squares.samples(self, keys, rows)
    return [found[0], *found[:-1]]


def gathered_wrong(self: Any, keys: Any, empty: Any) -> Any:
    found = Squares.__gather__(self, keys, empty)
    found[0] += 1
    return found


def opened(self: Any, paths: Any, **files: Any) -> None:
    Squares.__init__(self, paths, **files)
    self.handle = threading.Lock()  # as an open file, it cannot be pickled


def unchecked(self: Any, paths: Any, **files: Any) -> None:
    Blocks.__init__(self, paths, **files)
    self.set_rows([[3] * ((file.size - 8) // 192) for file in self.files])
    self.counts = [{968: 15}[file.size] for file in self.files]


def is_local(self: Any, rows: Any) -> Any:
    path = self.files[rows.file].path
    return Squares.read(self, rows) + np.uint8(path.startswith("http"))


def kept(self: Any, row: int) -> Any:
    number = int(self.blocks.searchsorted(row, "right")) - 1
    return self._kept.get(number, self._read)


def by_process(self: Any, row: int) -> Any:
    return Squares.sample(self, row) + np.uint8(os.getpid() % 251)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "any split": ({"samples": first_twice}, "any split into steps gives the same samples"),
    "gathered": ({"__gather__": gathered_wrong}, "a gathered batch is the collated samples"),
    "pickled": ({"__init__": opened}, "a pickled copy gives the same samples"),
    "views": (
        {"sample": lambda self, row: kept(self, row)[row % 3]},
        "a sample that is changed is read again unchanged",
    ),
    "blocks": ({"blocks": property(lambda self: np.array([0, len(self) - 1]))}, "blocks cover every row once"),
    "ranges": (
        {"ranges": lambda self, rows: [(8 + 64 * rows.first, 8 + 64 * rows.stop - 70)]},
        "the ranges of a block have the bytes that are read",
    ),
    "remote": ({"read": is_local}, "remote files give the same samples"),
    "damage": ({"__init__": unchecked}, "damaged files raise format errors and no others"),
    "fingerprint": (
        {"checks": lambda self: [file.modified for file in self.files]},
        "copies of the files have the same fingerprint",
    ),
    "workers": ({"samples": Format.samples, "sample": by_process}, "workers give the same samples"),
    "open": ({}, "it is found by penstock open"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_breaks_its_law(mistake: str, squares: list[Path]) -> None:
    changed, law = MISTAKES[mistake]
    for path in squares:
        os.utime(path, (1, 1))
    with pytest.raises(formats.BrokenLaw, match=f"Broken breaks the law that {law}"):
        formats.check(broken(**changed), squares, only=law.replace(" ", "_"), damages=80)


def test_laws_that_do_not_apply_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n" * 5)
    found = formats.check(TextLines, [tmp_path / "a.txt"], only="gathered")
    assert found == ["a gathered batch is the collated samples: TextLines has no __gather__"]
