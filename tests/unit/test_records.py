"""RecordFile, RecordStream and RecordWriter: MXNet's `.rec` files."""

from __future__ import annotations

import errno
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import DataLoader, IterableDataset
from penstock.errors import SampleTooLarge
from penstock.image import ImageError, Transform
from penstock.records import Record, RecordError, RecordFile, RecordStream, RecordWriter
from penstock.records._framing import MARK

M = MARK.to_bytes(4, "little")
FOUR = [Record(10, 0.0, b"zero"), Record(7, 1.0, b"one"), Record(3, 2.0, M), Record(5, 3.0, b"three")]


def write(path: Path, records: list[Record]) -> Path:
    with RecordWriter(path) as writer:
        for id_, label, data in records:
            writer.write(data, label, id_)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "four.rec", FOUR)


def png(value: int, size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write(tmp_path / "images.rec", [Record(n, float(n), png(10 * n)) for n in range(6)])


# The format, byte by byte, as it is defined: the same files are compared with MXNet's own in tests/interop.


def test_a_record_is_the_mark_its_length_a_head_and_its_data(tmp_path: Path) -> None:
    path = write(tmp_path / "one.rec", [Record(258, 1.5, b"abcde")])
    head = struct.pack("<IfQQ", 0, 1.5, 258, 0)
    assert path.read_bytes() == M + struct.pack("<I", 29) + head + b"abcde" + bytes(3)
    assert path.with_suffix(".idx").read_text() == "258\t0\n"


def test_a_vector_of_labels_stands_before_the_data(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "one.rec") as writer:
        writer.write(b"data", [1, 2.5])
    head = struct.pack("<IfQQff", 2, 0, 0, 0, 1, 2.5)
    assert (tmp_path / "one.rec").read_bytes() == M + struct.pack("<I", 36) + head + b"data"
    (record,) = RecordFile(tmp_path / "one.rec")
    assert isinstance(record.label, np.ndarray)
    assert record.label.dtype == np.float32
    assert record.label.tolist() == [1, 2.5]


def test_data_is_cut_where_the_mark_stands_at_a_multiple_of_four(tmp_path: Path) -> None:
    data = M + b"wxyz" + M + M + b"." + M
    path = write(tmp_path / "one.rec", [Record(0, 0.0, data)])
    parts = [(1, bytes(24)), (2, b"wxyz"), (2, b""), (3, b"." + M)]
    expected = b"".join(M + struct.pack("<I", flag << 29 | len(part)) + part for flag, part in parts)
    assert path.read_bytes() == expected + bytes(3)
    assert RecordFile(path)[0].data == data


# Reading


@pytest.mark.parametrize("idx", [None, False])
def test_records_come_in_the_order_of_the_file(path: Path, idx: Any) -> None:
    file = RecordFile(path, idx)
    assert list(file) == FOUR
    assert [file[at] for at in range(-4, 4)] == FOUR + FOUR
    assert file[np.int64(2)] == FOUR[2]
    assert repr(file) == f"RecordFile('{path}', 4 samples)"


@pytest.mark.parametrize("idx", [None, False])
def test_a_record_is_found_by_its_id(path: Path, idx: Any) -> None:
    file = RecordFile(path, idx)
    assert [file.by_id(id) for id in (3, 5, 7, 10)] == [FOUR[2], FOUR[3], FOUR[1], FOUR[0]]
    assert file.ids.tolist() == [10, 7, 3, 5]


@pytest.mark.parametrize("id", [4, -1, 2**64])
def test_an_id_that_no_record_has_is_a_key_error(path: Path, id: int) -> None:
    with pytest.raises(KeyError, match=f"no record of .* has the id {id}"):
        RecordFile(path).by_id(id)


@pytest.mark.parametrize("id", [7.0, 7.7, "7", None])
def test_an_id_must_be_an_integer(path: Path, id: Any) -> None:
    with pytest.raises(TypeError, match=f"the id of a record must be an integer, but it is {id!r}"):
        RecordFile(path).by_id(id)
    assert RecordFile(path).by_id(np.int64(7)) == FOUR[1]


def test_an_id_that_two_records_have_names_them(tmp_path: Path) -> None:
    path = write(tmp_path / "same.rec", [Record(1, 0.0, b""), Record(2, 0.0, b""), Record(1, 0.0, b"")])
    with pytest.raises(KeyError, match=r"2 records have it, \[0, 2\]"):
        RecordFile(path).by_id(1)


def test_the_keys_of_the_index_are_the_ids(path: Path) -> None:
    """As MXNet has it: the ids in the records need not be the same."""
    index = path.with_suffix(".idx")
    index.write_text(index.read_text().replace("7\t", "77\t"))
    assert RecordFile(path).by_id(77) == FOUR[1]
    assert RecordFile(path, idx=False).by_id(7) == FOUR[1]


def test_the_lines_of_an_index_may_have_any_order(path: Path) -> None:
    index = path.with_suffix(".idx")
    index.write_text("\r\n".join(reversed(index.read_text().split("\n")[:-1])))
    file = RecordFile(path)
    assert list(file) == FOUR
    assert file.by_id(5) == FOUR[3]


def test_an_index_elsewhere_is_named(path: Path, tmp_path: Path) -> None:
    path.with_suffix(".idx").rename(tmp_path / "other")
    (tmp_path / "other").write_text((tmp_path / "other").read_text().replace("7\t", "77\t"))
    assert RecordFile(path, tmp_path / "other").by_id(77) == FOUR[1]
    with pytest.raises(FileNotFoundError):
        RecordFile(path, tmp_path / "none")


def test_a_key_may_be_the_largest_of_64_bits(tmp_path: Path) -> None:
    path = write(tmp_path / "one.rec", [Record(2**64 - 1, 0.0, b"last")])
    assert RecordFile(path).by_id(2**64 - 1).data == b"last"


def test_a_saved_index_is_that_of_the_writer(path: Path) -> None:
    written = path.with_suffix(".idx").read_text()
    path.with_suffix(".idx").unlink()
    RecordFile(path).save_idx()
    assert path.with_suffix(".idx").read_text() == written


def test_an_index_is_not_saved_over_its_records(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"four\.rec is the record file itself"):
        RecordFile(path).save_idx(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("index", [4, -5, 10**20])
def test_an_index_outside_is_an_index_error(path: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"key {index} is not in a RecordFile of 4 samples"):
        RecordFile(path)[index]


@pytest.mark.parametrize("index", [1.0, "0", None])
def test_an_index_must_be_an_integer(path: Path, index: Any) -> None:
    with pytest.raises(TypeError):
        RecordFile(path)[index]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.rec", [])
    assert list(RecordFile(path)) == list(RecordFile(path, idx=False)) == []


@pytest.mark.wide
def test_a_million_records_in_an_index_are_read_in_seconds(tmp_path: Path) -> None:
    count = 1_000_000
    path = tmp_path / "many.rec"
    path.write_bytes((M + struct.pack("<I", 24) + bytes(24)) * count)
    lines = "".join(f"{key}\t{32 * key}\n" for key in range(count))
    path.with_suffix(".idx").write_text(lines)
    file_ = RecordFile(path)
    assert len(file_) == count
    assert file_.by_id(count - 1).data == b""


# Damage


def spoil(path: Path, at: int, new: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(new)] = new
    path.write_bytes(content)


def test_a_record_of_another_length_names_the_byte(path: Path) -> None:
    begin = RecordFile(path).extent(0, 1)[0]
    spoil(path, begin + 4, b"\x05")
    with pytest.raises(RecordError, match=f"four.rec, byte {begin}: a part of 5 bytes"):
        RecordFile(path)[1]
    with pytest.raises(RecordError, match=f"four.rec, byte {begin + 16}: a part of a record should begin"):
        RecordFile(path, idx=False)


def test_other_records_of_a_damaged_file_can_be_read(path: Path) -> None:
    spoil(path, RecordFile(path).extent(0, 1)[0], b"?")
    file = RecordFile(path)
    assert [file[0], *(file[at] for at in (2, 3))] == [FOUR[0], *FOUR[2:]]


def test_a_file_that_ends_between_two_parts_of_a_record_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "two.rec", FOUR[1:3])
    os.truncate(path, 36 + 32)
    with pytest.raises(
        RecordError,
        match="byte 36: the record that begins here reaches beyond the end of the file, at byte 68",
    ):
        RecordFile(path, idx=False)


@pytest.mark.parametrize("flag", [2, 3, 4])
def test_a_part_that_may_not_stand_where_it_does_is_noticed(path: Path, flag: int) -> None:
    spoil(path, 36 + 7, bytes([flag << 5]))
    with pytest.raises(RecordError, match="byte 36: a part of a record should begin here"):
        RecordFile(path, idx=False)


@pytest.mark.parametrize("length", [27, 30])
def test_a_length_that_does_not_end_before_zeros_is_noticed(path: Path, length: int) -> None:
    spoil(path, 4, bytes([length]))
    with pytest.raises(RecordError, match=f"byte 0: a part of {length} bytes with flag 0 does not fit"):
        RecordFile(path)[0]


def test_a_part_before_the_last_has_no_zeros_behind_it(path: Path) -> None:
    spoil(path, 72 + 4, bytes([23]))
    spoil(path, 72 + 8 + 23, b"\0")
    with pytest.raises(RecordError, match="byte 72: a part of 23 bytes with flag 1 does not fit"):
        RecordFile(path)[2]


def test_more_labels_than_there_is_room_for_are_noticed(path: Path) -> None:
    spoil(path, 8, struct.pack("<I", 2))
    with pytest.raises(RecordError, match="byte 0: a record of 28 bytes cannot hold the 2 labels"):
        RecordFile(path)[0]


def test_a_record_without_room_for_a_head_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "plain.rec").write_bytes(M + struct.pack("<I", 4) + b"text")
    with pytest.raises(RecordError, match="byte 0: a record of 4 bytes is too short"):
        RecordFile(tmp_path / "plain.rec")[0]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("10\t0\n7\t36\n3\t72\n5\t4000\n", "a record at byte 4,000, but the file ends at 152"),
        ("10\t0\n7\t36\n3\t72\n", "its last record, at byte 72, does not end"),
        ("7\t36\n3\t72\n5\t112\n", "its first record begins at byte 36"),
        ("10\t0\n7\t0\n3\t72\n5\t112\n", "a record at byte 0 leaves no room"),
        ("10\t0\n7\t36\n3\t72\n5\t116\n", "its last record, at byte 116, does not end"),
        ("", "it is empty, but the file has 152 bytes"),
        ("10\t0\nseven\t36\n", "line 2: b'seven.t36' should be a key"),
        ("10\t0\n7\n", "line 2: b'7' should be"),
        ("10\t-4\n", "line 1:"),
        (
            "10\t0\n7\t36\n18446744073709551616\t72\n5\t112\n",
            r"line 3: b'18.*72' should be a key below 2\*\*64",
        ),
        ("99999999999999999999\t0\n7\t36\n3\t72\n5\t112\n", "line 1:"),
    ],
)
def test_a_wrong_index_is_noticed_when_it_is_read(path: Path, index: str, said: str) -> None:
    path.with_suffix(".idx").write_text(index)
    with pytest.raises(RecordError, match=said):
        RecordFile(path)
    assert list(RecordFile(path, idx=False)) == FOUR


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("10\t0\n3\t72\n5\t112\n", "it lacks the record at byte 36"),
        ("10\t0\n7\t36\n5\t112\n", "it lacks the record at byte 72"),
        ("10\t0\n5\t112\n", "it lacks the record at byte 36"),
        ("10\t0\n7\t40\n3\t72\n5\t112\n", "it has a record at byte 40, where none begins"),
        ("10\t0\n9\t16\n7\t36\n3\t72\n5\t112\n", "it has a record at byte 16, where none begins"),
        ("10\t0\n7\t36\n3\t72\n9\t104\n5\t112\n", "it has a record at byte 104, where none begins"),
        ("10\t0\n9\t18\n7\t36\n3\t72\n5\t112\n", "it has a record at byte 18, but records begin at mul"),
    ],
)
def test_an_index_that_would_move_the_numbers_of_records_is_refused(path: Path, index: str, said: str) -> None:
    path.with_suffix(".idx").write_text(index)
    with pytest.raises(RecordError, match=rf"four\.idx is not the index of .*: {said}.*idx=False"):
        RecordFile(path)


def test_the_error_of_a_record_that_was_found_by_an_index_names_the_index(path: Path) -> None:
    spoil(path, 36, b"?")
    with pytest.raises(RecordError, match=r"byte 36: .*four\.idx is not the index of this file: pass idx=False"):
        RecordFile(path)[1]


def test_zeros_behind_the_last_record_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "one.rec", FOUR[:1])
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(RecordError, match="the file ends at byte 37, but records end at multiples of 4"):
        RecordFile(path)


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error_and_not_the_end(path: Path) -> None:
    file = RecordFile(path)
    assert file[0] == FOUR[0]
    os.truncate(path, 100)
    assert file[1] == FOUR[1]
    with pytest.raises(RecordError, match=r"four\.rec has changed since the dataset was made, when it had 152 bytes"):
        file[3]


def test_a_file_that_changed_on_its_way_to_a_worker_is_an_error(path: Path) -> None:
    shipped = pickle.dumps(RecordFile(path))
    os.truncate(path, 72)
    with pytest.raises(RecordError, match="has changed since the dataset was made, when it had 152 bytes"):
        pickle.loads(shipped)[0]


def test_a_folder_without_record_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file below the folder .* ends in \.rec"):
        RecordFile(tmp_path)


# Several files, and the keywords of all formats


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A folder with three files, one of them without an index."""
    folder = tmp_path / "three"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.rec", [Record(10 * number + at, float(at), b"%d" % at) for at in range(number + 1)])
    (folder / "1.idx").unlink()
    return folder


def test_the_records_of_several_files_come_one_file_after_another(three: Path) -> None:
    for given in (three, three / "*.rec", [three / f"{number}.rec" for number in range(3)]):
        file = RecordFile(given)
        assert [record.id for record in file] == file.ids.tolist() == [0, 10, 11, 20, 21, 22]
        assert file.by_id(21) == file[4] == Record(21, 1.0, b"1")
    with pytest.raises(KeyError, match="no record of 3 files has the id 5"):
        file.by_id(5)


def test_the_indexes_of_several_files_are_saved_beside_them(three: Path) -> None:
    RecordFile(three).save_idx()
    assert (three / "1.idx").read_text() == "10\t0\n11\t36\n"
    with pytest.raises(ValueError, match="path= is for the index of one file, but there are 3 files"):
        RecordFile(three).save_idx(three / "all.idx")
    with pytest.raises(ValueError, match="idx= names the index of one file, but there are 3"):
        RecordFile(three, three / "0.idx")


def test_a_stream_is_of_one_file(three: Path) -> None:
    with pytest.raises(ValueError, match="RecordStream reads one file, but there are 3"):
        RecordStream(three)


def test_where_records_are_is_found_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.with_suffix(".idx").unlink()
    assert list(RecordFile(path)) == FOUR
    monkeypatch.setattr("penstock.records._framing.records", no_room)
    assert list(RecordFile(path)) == FOUR


def test_a_record_that_is_too_large_is_an_error_of_its_sample(path: Path) -> None:
    file, stream = (make(path, max_sample_bytes=39) for make in (RecordFile, RecordStream))
    assert [record.data for record in file[:2]] == [b"zero", b"one"]
    with pytest.raises(SampleTooLarge, match=r"four\.rec, byte 72: the sample would have 40 bytes"):
        file[2]
    with pytest.raises(SampleTooLarge, match=r"four\.rec, byte 72: the sample would have 40 bytes"):
        [stream.load(extent) for extent in stream]


def test_a_state_knows_the_file_that_it_is_of(path: Path, tmp_path: Path) -> None:
    """Also with another file of the same name and size."""
    (tmp_path / "other").mkdir()
    moved = write(tmp_path / "other" / "four.rec", FOUR)
    assert RecordFile(moved).__fingerprint__() == RecordFile(path).__fingerprint__()
    assert RecordFile(moved, idx=False).__fingerprint__() == RecordFile(path).__fingerprint__()
    write(moved, [FOUR[0], FOUR[2], FOUR[1], FOUR[3]])
    assert RecordFile(moved).__fingerprint__() != RecordFile(path).__fingerprint__()


def test_an_argument_that_there_is_not_is_refused(path: Path) -> None:
    for make in (RecordFile, RecordStream):
        with pytest.raises(
            TypeError, match=rf"{make.__name__}\.__init__\(\) got an unexpected keyword argument 'cash'"
        ):
            make(path, cash="x")  # type: ignore[call-arg]


def test_a_missing_file_is_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.rec"):
        RecordFile(tmp_path / "none.rec")


# With a transform


def test_a_transform_gives_image_and_label(images: Path) -> None:
    file = RecordFile(images, transform=Transform(crop=4, train=False, dtype="uint8"))
    image, label = file[3]
    assert image.shape == (3, 4, 4)
    assert image[:, 0, 0].tolist() == [30, 0, 0]
    assert label == 3.0
    assert [label for _, label in file] == [0, 1, 2, 3, 4, 5]
    assert file.by_id(4)[0][0, 0, 0] == 40


def test_without_labels_a_sample_is_the_image(images: Path) -> None:
    file = RecordFile(images, transform=Transform(dtype="uint8"), labels=False)
    assert file[2].shape == (3, 8, 8)


def test_labels_cannot_be_left_out_of_a_record(images: Path) -> None:
    for make in (RecordFile, RecordStream):
        with pytest.raises(ValueError, match="labels=False"):
            make(images, labels=False)


def test_what_is_no_transform_is_refused(images: Path) -> None:
    for make in (RecordFile, RecordStream):
        with pytest.raises(TypeError, match="transform must be a"):
            make(images, transform=np.asarray)  # type: ignore[arg-type]


@pytest.mark.parametrize("idx", [Transform(), True, 3])
def test_what_is_no_index_is_refused(images: Path, idx: Any) -> None:
    said = rf"idx must be the path of an index, or False, .* {type(idx).__name__}\. .*pass transform="
    with pytest.raises(TypeError, match=said):
        RecordFile(images, idx)


def test_a_record_that_is_no_image_names_its_place(path: Path) -> None:
    file = RecordFile(path, transform=Transform())
    with pytest.raises(ImageError, match=r"four\.rec, record 1, byte 36: its 3 bytes cannot be decoded"):
        file[1]


# The writer


def test_nothing_has_the_final_name_until_all_is_written(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "one.rec") as writer:
        writer.write(b"data", 1)
        assert len(writer) == 1
        assert not (tmp_path / "one.rec").exists()
    assert sorted(os.listdir(tmp_path)) == ["one.idx", "one.rec"]


def test_an_error_leaves_what_was_there(path: Path, tmp_path: Path) -> None:
    def stop_midway() -> None:
        with RecordWriter(path) as writer:
            writer.write(b"data", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_midway()
    assert sorted(os.listdir(tmp_path)) == ["four.idx", "four.rec"]
    assert list(RecordFile(path)) == FOUR


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_no_part(tmp_path: Path) -> None:
    """As much as fits into the buffer is written when the file is closed, which then fails once more."""
    code = f"""if True:
        import resource, signal
        from penstock.records import RecordWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for count in (40, 5):
            try:
                with RecordWriter("{tmp_path}/one.rec") as writer:
                    for number in range(count):
                        writer.write(bytes(50_000))
            except OSError as error:
                print(error.errno)
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG)] * 2
    assert os.listdir(tmp_path) == []


def test_after_a_write_that_failed_the_writer_publishes_nothing(path: Path, tmp_path: Path) -> None:
    """Half of a record is in the file: the program caught the error, made room, and went on."""
    code = f"""if True:
        import resource, signal
        from penstock.records import RecordWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
        writer = RecordWriter("{path}")
        for number in range(6):
            try:
                writer.write(bytes(1_000_000))
            except OSError as error:
                print(number, error)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        for _ in range(2):
            try:
                writer.close()
            except OSError as error:
                print("close", error)
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    failed, *later = done.stdout.splitlines()
    assert failed == "3 [Errno 27] File too large"
    assert [line.split()[0] for line in later] == ["4", "5", "close", "close"]
    for line in later:
        assert "record 3 could not be written (OSError(27, 'File too large')), so all records were discarded" in line
    assert sorted(os.listdir(tmp_path)) == ["four.idx", "four.rec"]
    assert list(RecordFile(path)) == FOUR


def test_a_write_that_failed_is_an_error_at_the_end_of_the_block(path: Path) -> None:
    class Full(io.BytesIO):
        def writelines(self, lines: object) -> None:
            raise KeyboardInterrupt

    def write_two() -> None:
        with RecordWriter(path) as writer:
            writer._file.close()
            writer._file = Full()  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                writer.write(b"one")

    with pytest.raises(OSError, match="record 0 could not be written"):
        write_two()
    assert list(RecordFile(path)) == FOUR


@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "penstock.records._recordfile.write_index"])
def test_a_failing_end_leaves_no_part(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, no_room)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "one.rec", FOUR)
    assert os.listdir(tmp_path) == []


def test_a_folder_in_the_place_of_the_file_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "one.rec").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "one.rec", FOUR)
    assert os.listdir(tmp_path) == ["one.rec"]


def test_records_are_not_written_to_the_name_of_their_index(path: Path, tmp_path: Path) -> None:
    index = path.with_suffix(".idx")
    before = index.read_text()
    with pytest.raises(ValueError, match=r"four\.idx is the name of an index"):
        RecordWriter(index)
    assert index.read_text() == before
    assert sorted(os.listdir(tmp_path)) == ["four.idx", "four.rec"]


def test_two_writers_of_one_file_do_not_write_into_each_others(tmp_path: Path) -> None:
    first, second = RecordWriter(tmp_path / "one.rec"), RecordWriter(tmp_path / "one.rec")
    first.write(b"first")
    second.write(b"the second")
    first.close()
    assert [record.data for record in RecordFile(tmp_path / "one.rec")] == [b"first"]
    second.close()
    assert [record.data for record in RecordFile(tmp_path / "one.rec")] == [b"the second"]
    assert sorted(os.listdir(tmp_path)) == ["one.idx", "one.rec"]


def test_a_closed_writer_takes_no_more_records(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "one.rec")
    writer.close()
    with pytest.raises(ValueError, match=r"the writer of .*one\.rec is closed"):
        writer.write(b"late")
    writer.close()
    assert len(RecordFile(tmp_path / "one.rec")) == 0


def test_a_file_is_replaced_together_with_its_index(path: Path) -> None:
    write(path, FOUR[:1])
    assert list(RecordFile(path)) == FOUR[:1]


def test_a_kill_between_the_two_names_leaves_a_file_that_can_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[object] = []
    real = os.replace

    def replace(old: Any, new: Any) -> None:
        if replaced:
            raise KeyboardInterrupt
        replaced.append(new)
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write(path, FOUR[:2])
    monkeypatch.undo()
    assert list(RecordFile(path)) == FOUR[:2]


@pytest.mark.parametrize("after", [1, 2])
def test_ctrl_c_between_the_two_names_waits_for_the_second(
    path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[object] = []
    real = os.replace

    def replace(old: Any, new: Any) -> None:
        real(old, new)
        replaced.append(new)
        if len(replaced) == after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write(path, FOUR[:2])
    assert path.with_suffix(".idx").read_text() == "10\t0\n7\t36\n"
    assert list(RecordFile(path)) == FOUR[:2]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((b"", "cat"), TypeError, "a label must be a number or a vector"),
        ((b"", [[1]]), TypeError, "a label must be a number or a vector"),
        ((b"", 2**24 + 1), ValueError, "float32, which cannot represent 16777217"),
        ((b"", 1e300), ValueError, "float32, which cannot hold 1e[+]300"),
        ((b"", [0, -1e39]), ValueError, "float32, which cannot hold"),
        (("text",), TypeError, "the data of a record must be bytes, but it is a str"),
        ((b"", 0, 1.5), TypeError, "the id of a record must be an integer, but it is 1.5"),
        ((b"", 0, -1), ValueError, "0 to 2"),
        ((b"", 0, 2**64), ValueError, "0 to 2"),
    ],
)
def test_what_the_format_has_no_room_for_is_refused(tmp_path: Path, arguments: Any, error: Any, said: str) -> None:
    with RecordWriter(tmp_path / "one.rec") as writer:
        with pytest.raises(error, match=said):
            writer.write(*arguments)
        assert len(writer) == 0


# In a loader


def test_records_make_batches(path: Path) -> None:
    (batch,) = DataLoader(RecordFile(path), batch_size=4)
    assert isinstance(batch, Record)
    assert batch.data == [record.data for record in FOUR]
    assert np.asarray(batch.label).tolist() == [0, 1, 2, 3]


def test_a_stream_has_the_samples_of_the_file_in_order(path: Path, images: Path) -> None:
    stream = RecordStream(path)
    assert isinstance(stream, IterableDataset)
    assert [stream.load(item) for item in stream] == FOUR
    loader = DataLoader(RecordStream(images, Transform(dtype="uint8")), batch_size=4)
    assert [np.asarray(labels).tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5]]


def test_a_new_transform_reaches_the_batches(images: Path) -> None:
    file = RecordFile(images, transform=Transform(crop=4, dtype="uint8"))
    with DataLoader(file, batch_size=6) as loader:
        assert next(iter(loader))[0].shape == (6, 3, 4, 4)
        loader.update(transform=Transform(crop=2, dtype="uint8"))
        assert next(iter(loader))[0].shape == (6, 3, 2, 2)
