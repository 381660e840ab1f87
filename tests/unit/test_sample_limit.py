"""The limit on what one sample may decode to, for each format that can stand for more than it has."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._files.too_large import LIMIT
from penstock.errors import FormatError, ImageError, SampleTooLarge
from penstock.formats import Arrow, JsonLines, Parquet, Tar, TextLines

pytest.importorskip("simplejpeg")
from PIL import Image

from penstock.image import ImageFolder, Transform
from penstock.records import CaffeLMDB, RecordFile, RecordWriter, write_caffe_lmdb

MB = 1 << 20


def saved(image: Image.Image, kind: str, **about: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **about)
    return content.getvalue()


def jpeg_bomb(height: int = 13000, width: int = 13000) -> bytes:
    """A JPEG of a few hundred bytes, whose header says that it has many pixels."""
    data = bytearray(saved(Image.new("RGB", (16, 16)), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def npz_of(nbytes: int, members: int = 1) -> bytes:
    """An .npz of zeros."""
    content, chunk = io.BytesIO(), bytes(MB)
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(members):
            with archive.open(f"a{number}.npy", "w") as member:
                about = {"descr": "|u1", "fortran_order": False, "shape": (nbytes,)}
                np.lib.format.write_array_header_1_0(member, about)
                for _ in range(nbytes // MB):
                    member.write(chunk)
    return content.getvalue()


def said_to_be(nbytes: int, content: bytes) -> bytes:
    """The .npz with another size of its member in the central directory, which is what zipfile goes by."""
    at = content.rindex(b"PK\x01\x02") + 24
    return content[:at] + struct.pack("<I", nbytes) + content[at + 4 :]


def tar_of(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def refused(call: Callable[[], Any], *says: str) -> None:
    with pytest.raises(SampleTooLarge) as raised:
        call()
    for words in (*says, "max_sample_bytes=", "None for no limit"):
        assert words in str(raised.value)


SMALL = 100_000  # a limit for tests: no test needs the memory of a bomb


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_an_image_of_too_many_pixels_is_refused_by_its_header(kind: str, tmp_path: Path) -> None:
    data = saved(Image.new("RGB", (200, 200)), kind)
    path = tar_of(tmp_path / "x.tar", **{f"a_{'jpg' if kind == 'JPEG' else 'png'}": data})
    end = "jpg" if kind == "JPEG" else "png"
    if kind in ("JPEG", "PNG", "WEBP"):  # the others have 120,000 bytes in the file, or one for each pixel
        refused(lambda: Tar(path, max_sample_bytes=SMALL)[0], str(path), f"member 'a.{end}'", "120,000", "100,000")
    assert Tar(path)[0][end].shape == Tar(path, max_sample_bytes=None)[0][end].shape == (200, 200, 3)
    refused(lambda: Tar(path, max_sample_bytes=39_999)[0])
    with pytest.raises(SampleTooLarge):
        Transform(max_sample_bytes=39_999, train=False)(data)
    transform = Transform(max_sample_bytes=39_999, train=False)
    with pytest.raises(SampleTooLarge) as raised:
        Tar(path, decode={end: transform})[0]
    assert f"member 'a.{end}'" in raised.value.__notes__[0]


def test_a_folder_of_images_has_the_limit_of_its_transform(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.jpg").write_bytes(saved(Image.new("RGB", (200, 200)), "JPEG"))
    limited = Transform(max_sample_bytes=SMALL)
    refused(lambda: ImageFolder(tmp_path, limited)[0], "cats/a.jpg", "120,000")
    with open(tmp_path / "cats" / "a.jpg", "wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no room on a disk
    refused(lambda: ImageFolder(tmp_path)[0], "cats/a.jpg", f"{1 << 40:,}")


def test_pixels_that_cannot_be_in_a_jpeg_are_not_made_up(tmp_path: Path) -> None:
    bomb = jpeg_bomb()
    assert len(bomb) < 1000
    path = tar_of(tmp_path / "x.tar", a_jpg=bomb)
    for call in (lambda: Tar(path)[0], lambda: Transform(train=False)(bomb), lambda: Transform(color="gray")(bomb)):
        with pytest.raises((FormatError, ImageError), match="cannot be in its"):
            call()
    cmyk = bytearray(saved(Image.new("CMYK", (16, 16)), "JPEG"))  # left to Pillow
    at = cmyk.index(b"\xff\xc0") + 5
    cmyk[at : at + 4] = struct.pack(">HH", 9000, 9000)
    with pytest.raises(ImageError, match="cannot be in its"):
        Transform(train=False)(bytes(cmyk))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_emptiest_jpeg_is_no_bomb(progressive: bool, mode: str) -> None:
    """One colour, in the worst quality: no encoder makes fewer bytes of so many pixels."""
    data = saved(Image.new(mode, (4000, 4000)), "JPEG", quality=1, progressive=progressive, optimize=True)
    assert Transform(resize=10, train=False)(data).shape == (3, 10, 10)


def test_an_npz_that_grows_is_refused_by_its_header(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "x.tar", a_npz=said_to_be(3 << 30, npz_of(MB)))
    refused(lambda: Tar(path)[0], str(path), "member 'a.npz'", "3,221,225,472", f"{LIMIT:,}")
    several = tar_of(tmp_path / "y.tar", a_npz=npz_of(MB, 5))
    refused(lambda: Tar(several, max_sample_bytes=4 * MB)[0])
    assert len(Tar(several, max_sample_bytes=6 * MB)[0]["npz"]) == 5


def test_a_zip_that_says_less_than_it_holds_gives_no_more(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "x.tar", a_npz=said_to_be(1000, npz_of(8 * MB)))
    with pytest.raises(FormatError, match="cannot be decoded"):
        Tar(path, max_sample_bytes=MB)[0]


def test_the_members_of_a_sample_count_together(tmp_path: Path) -> None:
    members = {f"a_{number}_npz": npz_of(MB) for number in range(5)}
    path = tar_of(tmp_path / "x.tar", **members)
    data = Tar(path, max_sample_bytes=3 * MB)
    refused(lambda: data[0])
    refused(lambda: data.__getitems__([0]))
    assert len(Tar(path, max_sample_bytes=6 * MB)[0]) == 6


def test_json_that_becomes_many_objects_is_refused(tmp_path: Path) -> None:
    text = ("[" + "[]," * 40_000 + "1]").encode()
    path = tar_of(tmp_path / "x.tar", a_json=text, a_txt=b"x")
    refused(lambda: Tar(path, fields="json", max_sample_bytes=MB)[0], "member 'a.json'")
    assert len(Tar(path, fields="json")[0]["json"]) == 40_001
    strings = json.dumps("x" * 200_000).encode()
    path = tar_of(tmp_path / "y.tar", a_json=strings)
    assert len(Tar(path, fields="json", max_sample_bytes=MB)[0]["json"]) == 200_000


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_a_line_without_an_end_is_an_error_of_its_sample(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("1\n" + "2" * 3000 + "\n3\n")
    data = kind(path, max_sample_bytes=1000)
    refused(lambda: data[1], f"{path}, byte 2", "3,001", "1,000")
    assert len(data.__getitems__([0, 2])) == 2
    refused(lambda: data.__getitems__([0, 1, 2]), "byte 2")
    assert kind(path).max_sample_bytes == LIMIT


def test_a_member_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "x.tar", a_bin=bytes(5000), b_bin=b"1")
    data = Tar(path, max_sample_bytes=4000)
    refused(lambda: data[0], str(path))
    assert data[1]["bin"] == b"1"


@pytest.mark.parametrize("shape", ["text", "list", "struct", "nulls", "binary"])
def test_a_string_that_a_dictionary_has_once_counts_as_often_as_it_is_used(tmp_path: Path, shape: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text: Any = "x" * 10_000
    values = {
        "text": [text] * 20_000,
        "list": [[text, "short"]] * 20_000,
        "struct": [{"a": text}] * 20_000,
        "nulls": [None] * 5 + [text] * 20_000,
        "binary": [text.encode()] * 20_000,
    }
    table = pa.table({"s": values[shape], "n": range(len(values[shape]))})
    pq.write_table(table, tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 300_000
    # 200 MB in one row group: each sample is small, but only a few of the largest size may be decoded together.
    refused(lambda: Parquet(tmp_path / "x.parquet", max_sample_bytes=MB)[0], "row group 0 of", "rows")
    assert Parquet(tmp_path / "x.parquet", columns=["n"], max_sample_bytes=MB)[1]["n"] == 1
    assert Parquet(tmp_path / "x.parquet", max_sample_bytes=20 * MB)[0]["n"] == 0


def test_long_strings_that_are_rarely_used_are_within_the_limit(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["a", "b" * 100_000, *["c"] * 20_000]
    pq.write_table(pa.table({"s": texts}), tmp_path / "x.parquet")
    data = Parquet(tmp_path / "x.parquet", max_sample_bytes=MB)
    assert [data[row]["s"] for row in (0, 1, 20_001)] == [texts[0], texts[1], "c"]


def test_a_list_of_runs_is_refused_by_the_footer(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    nulls = pa.ListArray.from_arrays(pa.array([0, 4_000_000]), pa.nulls(4_000_000, pa.float64()))
    pq.write_table(pa.table({"x": nulls, "y": [1]}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 50_000
    refused(lambda: Parquet(tmp_path / "x.parquet", max_sample_bytes=MB)[0], "row group 0", "32,000,")
    assert Parquet(tmp_path / "x.parquet", columns=["y"], max_sample_bytes=MB)[0] == {"y": 1}
    assert Parquet(tmp_path / "x.parquet")[0]["y"] == 1
    many = pa.table({"x": pa.array([[None] * 10] * 100_000, pa.list_(pa.float64()))})
    pq.write_table(many, tmp_path / "y.parquet")  # each sample is small
    assert Parquet(tmp_path / "y.parquet", max_sample_bytes=MB)[0]["x"] == [None] * 10


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("in_dictionary", [False, True])
def test_compressed_arrow_is_refused_by_the_lengths_of_its_buffers(
    tmp_path: Path, compression: str, in_dictionary: bool
) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "x.arrow"
    column = pa.array([bytes(20 * MB)])
    table = pa.table({"x": column.dictionary_encode() if in_dictionary else column})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    assert path.stat().st_size < MB
    refused(lambda: Arrow(path, max_sample_bytes=MB)[0], "record batch 0", "20,971,5")
    for enough in (32 * MB, None):
        assert len(Arrow(path, max_sample_bytes=enough)[0]["x"]) == 20 * MB


def test_records_have_the_limit(tmp_path: Path) -> None:
    image = saved(Image.new("RGB", (200, 200)), "PNG")
    with RecordWriter(tmp_path / "x.rec") as writer:
        writer.write(image, 1)
    limited = Transform(max_sample_bytes=SMALL)
    refused(lambda: RecordFile(tmp_path / "x.rec", transform=limited)[0], "x.rec, record 0")
    pytest.importorskip("lmdb")
    write_caffe_lmdb(tmp_path / "lmdb", [(image, 1)])
    refused(lambda: CaffeLMDB(tmp_path / "lmdb", max_sample_bytes=SMALL)[0], "key")
    assert CaffeLMDB(tmp_path / "lmdb")[0][0].shape == (3, 200, 200)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1"])
def test_other_limits_are_refused(value: Any, tmp_path: Path) -> None:
    path = tar_of(tmp_path / "x.tar", a_txt=b"1")
    for call in (lambda: Tar(path, max_sample_bytes=value), lambda: Transform(max_sample_bytes=value)):
        with pytest.raises(ValueError, match="max_sample_bytes must be"):
            call()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bomb_is_a_bad_sample_and_the_loader_goes_on(workers: int, tmp_path: Path) -> None:
    good = npz_of(0)
    path = tar_of(tmp_path / "x.tar", a_npz=good, b_npz=said_to_be(3 << 30, good), c_npz=good, d_npz=good)
    with penstock.DataLoader(Tar(path), 3, num_workers=workers, on_error="skip", last_batch="keep") as loader:
        keys = [key for batch in loader for key in batch["__key__"]]
        assert sorted(keys) == ["a", "c", "d"]
        assert loader.stats().epoch.skipped == 1


PROGRAM = """
import resource, sys
from penstock.errors import FormatError
from penstock.formats import Tar
import penstock.image
data = Tar(sys.argv[1], max_sample_bytes=64 << 20)
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20),) * 2)
for key in range(3):
    try:
        data[key]
    except FormatError:
        print("refused")
"""


def test_no_bomb_takes_the_memory(tmp_path: Path) -> None:
    """In a process that may take 200 MB more: to allocate first and check then would be a MemoryError."""
    bombs = {"a_npz": npz_of(256 * MB), "b_jpg": jpeg_bomb(40000, 40000), "c_jpg": jpeg_bomb()}
    command = [sys.executable, "-c", PROGRAM, str(tar_of(tmp_path / "x.tar", **bombs))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.stdout.split(), done.stderr) == (["refused"] * 3, "")
