"""CaffeLMDB and write_caffe_lmdb: Caffe's LMDB of Datum."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

from penstock import DataLoader
from penstock.formats._format import FileRows
from penstock.formats._protobuf import MessageError
from penstock.image import ImageError, Transform
from penstock.records import CaffeLMDB, RecordError, read_caffe_mean, write_caffe_lmdb
from penstock.records._datum import dump, parse

RAW = np.arange(36, dtype=np.uint8).reshape(3, 3, 4)
FLOATS = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 1, 2)


def encoded(color: Any, mode: str = "RGB", format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (6, 5), color).save(file, format)
    return file.getvalue()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    items = [(RAW, 3), (FLOATS, -1), (encoded((10, 20, 30)), 7), (encoded(99, "L", "JPEG"), 8)]
    assert write_caffe_lmdb(tmp_path / "some_lmdb", items) == 4
    return tmp_path / "some_lmdb"


def put(path: Path, key: bytes, value: bytes) -> None:
    with (
        lmdb.open(str(path), map_size=1 << 24, lock=False) as environment,
        environment.begin(write=True) as now,
    ):
        now.put(key, value)


# What protobuf 7.36 writes for the message Datum of caffe.proto.
WRITTEN = {
    "0802100118032206000102fdfeff28ac02": (np.array([[[0, 1, 2]], [[253, 254, 255]]], np.uint8), 300),
    "08011001180328f9ffffffffffffffff01350000003f35000080bf3500004040": (
        np.array([[[0.5, -1, 3]]], np.float32),
        -7,
    ),
    "2205696d61676528ffffffff073801": (b"image", 2**31 - 1),
}


@pytest.mark.parametrize("message", WRITTEN)
def test_a_datum_is_written_and_read_as_protobuf_does_it(message: str) -> None:
    content, label = WRITTEN[message]
    assert dump(content, label).hex() == message
    datum = parse(memoryview(bytes.fromhex(message)))
    assert datum.label == label
    if isinstance(content, bytes):
        assert datum.encoded
        assert bytes(datum.data) == content
    else:
        assert datum.array().dtype == content.dtype
        assert np.array_equal(datum.array(), content)


def test_packed_floats_are_read_too() -> None:
    message = "08011001180328f9ffffffffffffffff01320c0000003f000080bf00004040"
    assert parse(memoryview(bytes.fromhex(message))).array().tolist() == [[[0.5, -1, 3]]]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"", "it is empty"),
        (b"\x08\x02\x10\x01\x18\x01\x22\x01x", r"1 values do not form an array of shape \(2, 1, 1\)"),
        (b"\x08\x01\x08\x01", "field 1 of wire type 0 is not part of a Datum, or comes twice"),
        (b"\x40\x01", "it is empty"),
        (b"\x43\x01", "a field at byte 1 has the unknown wire type 3"),
        (b"\x00\x01", "field 0 of wire type 0"),
        (b"\x0a\x02\x08\x01", "field 1 of wire type 2"),  # an AnnotatedDatum has a Datum as its first field
        (b"\x22\x05abc", "5 bytes at byte 2 reach beyond the end"),
        (b"\x22\xff", "an integer at byte 1 does not end"),
        (b"\x32\x03abc", "3 bytes are not a whole number of float32"),
        (b"\x35ab", "a float at byte 1 reaches beyond the end"),
        (b"\x22\x01x\x32\x04abcd", "1 bytes of data and 1 floats"),
    ],
)
def test_what_is_no_datum_is_refused(message: bytes, said: str) -> None:
    with pytest.raises(MessageError, match=said):
        parse(memoryview(message))


def test_samples_are_arrays_with_channels_first_and_labels(path: Path) -> None:
    db = CaffeLMDB(path)
    assert len(db) == 4
    assert list(db.keys) == [b"000000000%d" % n for n in range(4)]
    for at, (expected, label) in enumerate([(RAW, 3), (FLOATS, -1)]):
        array, found = db[at]
        assert found == label
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        array += 1  # it is the caller's
    assert [label for _, label in db] == [3, -1, 7, 8]
    assert np.array_equal(db[-4][0], RAW)
    with pytest.raises(IndexError, match="key 4 is not in a CaffeLMDB of 4 samples"):
        db[4]


def test_encoded_images_are_bgr_as_in_caffe_unless_told_otherwise(path: Path) -> None:
    image, label = CaffeLMDB(path)[2]
    assert image.shape == (3, 5, 6)
    assert label == 7
    assert image[:, 0, 0].tolist() == [30, 20, 10]
    assert CaffeLMDB(path, color="rgb")[2][0][:, 0, 0].tolist() == [10, 20, 30]
    assert np.array_equal(CaffeLMDB(path, color="rgb")[0][0], RAW[::-1])
    assert np.array_equal(CaffeLMDB(path, color="rgb")[1][0], FLOATS)


def test_a_gray_image_has_one_channel(path: Path) -> None:
    image, _ = CaffeLMDB(path)[3]
    assert image.shape == (1, 5, 6)
    assert (image == 99).all()


def test_without_labels_a_sample_is_the_array(path: Path) -> None:
    assert np.array_equal(CaffeLMDB(path, labels=False)[0], RAW)


def test_the_file_itself_may_be_named(path: Path) -> None:
    assert len(CaffeLMDB(path / "data.mdb")) == 4


@pytest.mark.parametrize(("color", "pixel"), [("rgb", [10, 20, 30]), ("bgr", [30, 20, 10])])
def test_a_transform_gives_images_in_its_order_of_channels(path: Path, color: Any, pixel: list[int]) -> None:
    db = CaffeLMDB(path, Transform(dtype="uint8", color=color))
    image, label = db[2]
    assert image[:, 0, 0].tolist() == pixel
    assert label == 7
    # Raw data is in the order of Caffe.
    assert np.array_equal(db[0][0], RAW if color == "bgr" else RAW[::-1])
    assert np.array_equal(CaffeLMDB(path, Transform(dtype="uint8", color=color), labels=False)[2], image)


def test_floats_have_no_transform(path: Path) -> None:
    with pytest.raises(ImageError, match=r"data\.mdb, key b'0000000001', byte .*: pixels must be uint8"):
        CaffeLMDB(path, Transform())[1]


def test_color_is_said_once(path: Path) -> None:
    with pytest.raises(ValueError, match="color must be 'bgr' or 'rgb'"):
        CaffeLMDB(path, color="gray")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="applies only without a transform, which has its own: 'rgb'"):
        CaffeLMDB(path, Transform(), color="rgb")


# NVCaffe's record_id, and fields of each other form.
ADDED = [b"\x40\x96\x01", b"\x49" + bytes(8), b"\x52\x03abc", b"\x5d" + bytes(4)]


@pytest.mark.parametrize("added", ADDED)
def test_fields_that_others_have_added_are_passed_over(added: bytes) -> None:
    whole = dump(b"a picture", 7)
    for message in (added + whole, whole + added, added + whole + added):
        assert parse(memoryview(message)) == parse(memoryview(whole))
    with pytest.raises(MessageError, match="end"):
        parse(memoryview(whole + added[:-1]))


def test_an_entry_that_is_no_datum_names_its_key(path: Path) -> None:
    put(path, b"5", b"\x0a\x00")
    with pytest.raises(RecordError, match=r"data\.mdb, key b'5', byte .*: this is not a Caffe Datum: field 1"):
        CaffeLMDB(path)[4]


def test_an_encoded_image_that_is_damaged_names_its_key(path: Path) -> None:
    put(path, b"5", dump(encoded((1, 2, 3))[:45], 0))
    for db in (CaffeLMDB(path), CaffeLMDB(path, Transform())):
        with pytest.raises(ImageError, match=r"data\.mdb, key b'5', byte "):
            db[4]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"x" * 9000)
    with pytest.raises(RecordError, match="byte 0: this is not an LMDB file"):
        CaffeLMDB(tmp_path)
    with pytest.raises(FileNotFoundError):
        CaffeLMDB(tmp_path / "none")


def test_a_database_of_databases_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "named"), max_dbs=2, lock=False, map_size=1 << 20) as environment:
        environment.open_db(b"inner")
    with pytest.raises(RecordError, match="key b'inner' should not be here"):
        CaffeLMDB(tmp_path / "named")


def test_an_empty_database_has_no_samples(tmp_path: Path) -> None:
    assert write_caffe_lmdb(tmp_path / "empty", []) == 0
    assert list(CaffeLMDB(tmp_path / "empty")) == []
    (tmp_path / "fresh").mkdir()
    lmdb.open(str(tmp_path / "fresh"), lock=False).close()
    assert list(CaffeLMDB(tmp_path / "fresh")) == []


def test_many_items_are_written_over_several_transactions(tmp_path: Path) -> None:
    assert write_caffe_lmdb(tmp_path / "many", ((RAW, n) for n in range(2500))) == 2500
    assert [label for _, label in CaffeLMDB(tmp_path / "many")] == list(range(2500))


def test_the_library_reads_what_was_written(path: Path) -> None:
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as now:
        assert parse(memoryview(now.get(b"0000000000"))).array().tolist() == RAW.tolist()


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"item 1 must be an array of uint8 or float32.*float64 of shape"):
        write_caffe_lmdb(tmp_path / "some", [(RAW, 0), (FLOATS.astype(np.float64), 1)])
    with pytest.raises(ValueError, match="item 0: a label must be a 32-bit integer"):
        write_caffe_lmdb(tmp_path / "some", [(RAW, 2**31)])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ((RAW, 1.5), "item 1: a label must be a 32-bit integer in Caffe, but it is 1.5"),
        ((RAW, None), "item 1: a label must be a 32-bit integer in Caffe, but it is None"),
        (RAW, "item 1 must be a pair \\(array or bytes, label\\), but it is a ndarray"),
        ((RAW,), "item 1 must be a pair .* a tuple"),
        (5, "item 1 must be a pair .* a int"),
    ],
)
def test_an_item_that_is_none_is_named(tmp_path: Path, item: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        write_caffe_lmdb(tmp_path / "lmdb", [(RAW, 0), item])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", np.empty((3, 0, 4), np.uint8)])
def test_what_is_empty_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match="item 1 is empty"):
        write_caffe_lmdb(tmp_path / "lmdb", [(RAW, 0), (content, 0)])
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_there_is_not_written_to(path: Path) -> None:
    with pytest.raises(FileExistsError, match="already exists"):
        write_caffe_lmdb(path, [])
    assert len(CaffeLMDB(path)) == 4


def test_samples_make_batches(tmp_path: Path) -> None:
    write_caffe_lmdb(tmp_path / "some", [(RAW + n, n) for n in range(4)])
    ((images, labels),) = DataLoader(CaffeLMDB(tmp_path / "some"), batch_size=4)
    assert np.asarray(images)[:, 0, 0, 0].tolist() == [0, 1, 2, 3] == np.asarray(labels).tolist()


def test_reading_what_is_stored_needs_no_library(path: Path) -> None:
    code = (
        "import sys; from penstock.records import CaffeLMDB, RecordFile; "
        f"assert CaffeLMDB({str(path)!r})[0][1] == 3; "
        "print([name for name in ('cv2', 'PIL', 'simplejpeg', 'lmdb') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "[]\n", ran.stderr


MEAN = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
PACKED = b"\x2a\x60" + MEAN.tobytes()  # field 5, 96 bytes
OLD = bytes([0x08, 1, 0x10, 3, 0x18, 2, 0x20, 4])  # num, channels, height, width


@pytest.mark.parametrize(
    "message",
    [
        OLD + PACKED,
        PACKED + b"\x3a\x06\x0a\x04\x01\x03\x02\x04",  # with a shape, packed
        PACKED + b"\x3a\x06\x08\x03\x08\x02\x08\x04",  # of three axes, one by one
        OLD + b"".join(b"\x2d" + struct.pack("<f", value) for value in MEAN.flat),
    ],
)
def test_the_mean_image_of_caffe_is_read(tmp_path: Path, message: bytes) -> None:
    (tmp_path / "mean.binaryproto").write_bytes(message)
    mean = read_caffe_mean(tmp_path / "mean.binaryproto")
    assert mean.dtype == np.float32
    assert np.array_equal(mean, MEAN)
    Transform(mean=mean, resize=(2, 4), color="bgr")


@pytest.mark.parametrize(
    "message", [b"", PACKED, OLD, OLD + PACKED[:-1], b"\x0a\x00", b"plain text", OLD + b"\x2d\0"]
)
def test_what_is_no_mean_image_is_named(tmp_path: Path, message: bytes) -> None:
    (tmp_path / "mean.binaryproto").write_bytes(message)
    with pytest.raises(RecordError, match=r"mean\.binaryproto: .* are not a Caffe mean image: "):
        read_caffe_mean(tmp_path / "mean.binaryproto")


def test_ranges_cover_a_value_that_begins_where_an_empty_one_ends(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"10" * 61, b"")  # at the end of its page
        transaction.put(b"0", bytes(2040))  # on the next page
    data = CaffeLMDB(tmp_path)
    ranges = data.ranges(FileRows(file=0, part=0, first=0, stop=2))
    for row in range(2):
        start, size = data.extent(0, row)
        assert any(first <= start and start + size <= stop for first, stop in ranges)
