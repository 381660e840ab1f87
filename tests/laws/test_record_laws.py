"""Files of records: what was written is read, and damage is noticed, wherever it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import RecordError
from penstock.formats._protobuf import MessageError
from penstock.records import Record, RecordFile, RecordWriter
from penstock.records._datum import Datum, dump, parse
from penstock.records._framing import MARK

law = settings(deadline=None, max_examples=100)

M = MARK.to_bytes(4, "little")
# The mark itself, whole and in pieces: where it stands at a multiple of 4 a record is cut into parts.
DATA = st.lists(st.sampled_from([M, M[:1], M[1:], b"abcd", b"x", bytes(4)]), max_size=8).map(b"".join)
FLOATS = st.floats(width=32, allow_nan=False)
LABELS = st.one_of(FLOATS, st.lists(FLOATS, min_size=1, max_size=3), st.just([np.frombuffer(M, "<f4")[0]]))
RECORDS = st.lists(st.tuples(DATA, LABELS, st.integers(0, 2**64 - 1)), max_size=6)
SOME = st.lists(st.tuples(DATA, LABELS, st.integers(0, 9)), min_size=1, max_size=6)


@contextmanager
def written(items: list[Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some.rec")
        with RecordWriter(path) as writer:
            for item in items:
                writer.write(*item)
        yield path


def plain(record: Record) -> tuple[Any, ...]:
    label = record.label
    return record.id, label.tolist() if isinstance(label, np.ndarray) else label, record.data


def reads(file: RecordFile) -> list[Any]:
    """Each record, or None where it is an error."""
    found: list[Any] = []
    errors: list[str] = []
    for at in range(len(file)):
        try:
            found.append(plain(file[at]))
        except RecordError as error:
            errors.append(str(error))
            found.append(None)
    assert all(f"{file.path}, byte " in error for error in errors)
    return found


def is_part_of(some: list[Any], whole: list[Any]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in some)


@law
@given(items=RECORDS, idx=st.sampled_from([None, False]))
def test_what_was_written_is_read(items: list[Any], idx: Any) -> None:
    with written(items) as path:
        file = RecordFile(path, idx)
        assert [plain(record) for record in file] == [(id, label, data) for data, label, id in items]
        assert file.ids.tolist() == [id for _, _, id in items]


@law
@given(items=SOME, idx=st.sampled_from([None, False]), cut=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_noticed_or_has_fewer_records(items: list[Any], idx: Any, cut: float) -> None:
    with written(items) as path:
        whole = reads(RecordFile(path))
        content = path.read_bytes()
        path.write_bytes(content[: int(cut * len(content))])
        try:
            found = reads(RecordFile(path, idx))
        except RecordError:
            return
        # Without an index nothing tells that there were more.
        assert idx is False
        assert found == whole[: len(found)]


@law
@given(
    items=SOME,
    idx=st.sampled_from([None, False]),
    place=st.floats(0, 1),
    more=st.binary(min_size=1, max_size=40).filter(lambda more: M not in more),
)
def test_bytes_put_in_are_noticed(items: list[Any], idx: Any, place: float, more: bytes) -> None:
    with written(items) as path:
        content = path.read_bytes()
        at = int(place * len(content))
        path.write_bytes(content[:at] + more + content[at:])
        try:
            found = reads(RecordFile(path, idx))
        except RecordError:
            return
        raise AssertionError(f"read as {found}")


FLIP = {"items": SOME, "place": st.floats(0, 1, exclude_max=True), "flip": st.integers(1, 255)}


@contextmanager
def flipped(items: list[Any], place: float, flip: int) -> Iterator[tuple[Path, list[Any], int]]:
    """A file with one wrong byte, its records before that, and which of them has the byte."""
    with written(items) as path:
        whole = RecordFile(path)
        before, ends = reads(whole), whole.indexes[0]["starts"][1:].tolist()
        content = bytearray(path.read_bytes())
        at = int(place * len(content))
        content[at] ^= flip
        path.write_bytes(content)
        yield path, before, next(number for number, end in enumerate(ends) if at < end)


@law
@given(**FLIP)
def test_a_wrong_byte_changes_no_other_record_and_no_length(items: list[Any], place: float, flip: int) -> None:
    with flipped(items, place, flip) as (path, before, hit):
        try:
            found = reads(RecordFile(path))
        except RecordError:
            assert hit == len(items) - 1  # the one that tells whether the index is of this file
            return
        assert found[:hit] + found[hit + 1 :] == before[:hit] + before[hit + 1 :]
        assert found[hit] is None or _could_be(found[hit], before[hit])


@law
@given(**FLIP)
def test_a_wrong_byte_without_an_index_loses_nothing_in_silence(items: list[Any], place: float, flip: int) -> None:
    with flipped(items, place, flip) as (path, before, hit):
        try:
            found = reads(RecordFile(path, idx=False))
        except RecordError:
            return
        if None in found:
            # A length may now reach over the records behind it, which are not found. It is noticed when it is read.
            assert is_part_of([record for record in found if record], before)
        else:
            assert found[:hit] + found[hit + 1 :] == before[:hit] + before[hit + 1 :]
            assert _could_be(found[hit], before[hit])


@law
@given(items=SOME, line=st.integers(0, 5), wrong=st.integers(-40, 400))
def test_a_wrong_offset_in_the_index_is_noticed(items: list[Any], line: int, wrong: int) -> None:
    with written(items) as path:
        before = reads(RecordFile(path))
        index = path.with_suffix(".idx")
        lines = index.read_text().splitlines()
        line %= len(lines)
        key, start = map(int, lines[line].split())
        assume(start + wrong >= 0 and wrong)
        lines[line] = f"{key}\t{start + wrong}"
        index.write_text("\n".join(lines))
        try:
            found = reads(RecordFile(path))
        except RecordError:
            return
        assert None in found
        assert is_part_of([record for record in found if record], before)


SHAPES = st.tuples(*[st.integers(1, 3)] * 3)


@law
@given(shape=SHAPES, label=st.integers(-(2**31), 2**31 - 1), floats=st.booleans(), seed=st.integers(0, 9))
def test_an_array_survives_as_a_datum(shape: Any, label: int, floats: bool, seed: int) -> None:
    array: Any = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    if floats:
        array = array.astype(np.float32) / 7
    datum = parse(memoryview(dump(array, label)))
    assert datum.label == label
    assert datum.array().dtype == array.dtype
    assert np.array_equal(datum.array(), array)


@settings(law, max_examples=500)
@given(message=st.binary(max_size=60), at=st.integers(0, 60), flip=st.integers(0, 255), cut=st.integers(0, 60))
def test_whatever_is_read_as_a_datum_is_one_or_refused(message: bytes, at: int, flip: int, cut: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    for valid in (message, dump(array, 300), dump(array.astype(np.float32), -1), dump(b"an image", 7)):
        changed = bytearray(valid[: len(valid) - cut] if cut < len(valid) else valid)
        if changed:
            changed[at % len(changed)] ^= flip
        try:
            datum = parse(memoryview(bytes(changed)))
        except MessageError:
            continue
        assert isinstance(datum, Datum)
        assert datum.encoded or datum.array().size > 0


def _could_be(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    """Whether a record may have become this by a wrong byte that RecordIO cannot notice.

    One in its content, and a length that counts a zero at its end or not. More labels mean less data.
    """
    return _length(now) == _length(then) or (now[:2] == then[:2] and now[2].rstrip(b"\0") == then[2].rstrip(b"\0"))


def _length(record: tuple[Any, ...]) -> int:
    """Of labels and data together: a wrong byte may say that there are more labels, and then there is less data."""
    _, label, data = record
    return (4 * len(label) if isinstance(label, list) else 0) + len(data)
