"""Our reader of LMDB beside the library, and over damaged files, which the library does not survive."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import RecordError
from tests.unit.test_lmdbfile import Values

law = settings(deadline=None, max_examples=60)

KEYS = st.integers(0, 200).map(lambda key: b"%d" % key * (1 + 60 * (key % 3)))
# Around what fits into a leaf of 4,096 bytes, and into one, two and more pages of its own.
SIZES = st.sampled_from([0, 1, 50, 700, 1500, 2010, 2020, 2040, 4080, 4081, 8176, 8177, 20_000])
PUTS = st.tuples(KEYS, SIZES)
DELETES = st.tuples(KEYS, st.none())
TRANSACTIONS = st.lists(st.lists(st.one_of(PUTS, PUTS, DELETES), max_size=60), max_size=5)


def entries(file: Values) -> list[tuple[bytes, bytes]]:
    return list(zip(file.keys, file, strict=True))


def write(folder: str, transactions: list[Any]) -> list[tuple[bytes, bytes]]:
    """By the library; returns what it reads."""
    with lmdb.open(folder, map_size=1 << 26, sync=False, lock=False) as environment:
        number = 0
        for operations in transactions:
            with environment.begin(write=True) as transaction:
                for key, size in operations:
                    number += 1
                    if size is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, (b"%06d" % number * (size // 6 + 1))[:size])
        with environment.begin() as transaction:
            return list(transaction.cursor())


@law
@given(transactions=TRANSACTIONS)
@example(transactions=[[(b"10" * 61, 0), (b"0", 2040)]])  # where an empty value ends, another begins
def test_it_reads_what_the_library_wrote(transactions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = write(folder, transactions)
        assert entries(Values(f"{folder}/data.mdb")) == expected


@functools.cache
def sound() -> tuple[bytes, list[tuple[bytes, bytes]], list[tuple[int, int]]]:
    """A file with branch, leaf and overflow pages: its bytes, its entries, and where their values are."""
    sizes = [100, 700, 1900, 5000]
    puts = [(b"%08d" % number, sizes[number % 4]) for number in range(40)]
    with tempfile.TemporaryDirectory() as folder:
        expected = write(folder, [puts[:10], puts[10:25], puts[25:]])
        path = Path(folder, "data.mdb")
        ends = [sum(Values(path).extent(0, at)) for at in range(len(expected))]
        places = [(end - len(value), end) for end, (_, value) in zip(ends, expected, strict=True)]
        return path.read_bytes(), expected, places


def _after(change: Callable[[bytearray], None]) -> list[tuple[bytes, bytes] | None] | None:
    """The entries of the file after a change: None for one that is an error, or for all."""
    content = bytearray(sound()[0])
    change(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.mdb")
        path.write_bytes(content)
        found: list[tuple[bytes, bytes] | None] | None = []
        errors: list[str] = []
        try:
            file = Values(path)
            for at, key in enumerate(file.keys):
                try:
                    found.append((key, file[at]))
                except RecordError as error:
                    errors.append(str(error))
                    found.append(None)
        except RecordError as error:
            errors.append(str(error))
            found = None
        assert all(f"{path}, byte " in error for error in errors)
        return found


@settings(law, max_examples=600)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), begin=st.booleans())
def test_a_wrong_byte_changes_no_entry_but_its_own(place: float, flip: int, begin: bool) -> None:
    content, expected, places = sound()
    # Half of them where pages begin: there most of what is not a value is.
    at = int(place * len(content))
    if begin:
        at = at // 4096 * 4096 + at % 160

    def change(content: bytearray) -> None:
        content[at] ^= flip

    found = _after(change)
    if found is None:
        return
    assert len(found) == len(expected)
    for now, (key, value), (start, stop) in zip(found, expected, places, strict=True):
        if now is None or now == (key, value):
            continue
        # What LMDB itself cannot notice: in the value, in the key as long as it stays in order, and in the size
        # where it is as many bytes on the page, or as many pages.
        if start % 4096 != 16:
            assert start - len(key) - 8 <= at < stop
            assert abs(len(now[1]) - len(value)) <= 1
        else:
            assert start <= at < stop or content[at - at % 4096 + 10] == 2
            assert len(now[1]) < 2 * 4096


@law
@given(cut=st.floats(0, 1, exclude_max=True))
@example(cut=0)
def test_a_file_cut_short_is_noticed_or_has_all_entries(cut: float) -> None:
    def change(content: bytearray) -> None:
        del content[int(cut * len(content)) :]

    # Its last pages may be such as are free.
    assert _after(change) in (None, sound()[1])


@law
@given(place=st.floats(0, 0.99), more=st.integers(1, 5000))
def test_bytes_put_in_change_no_entry(place: float, more: int) -> None:
    content, expected, places = sound()
    at = int(place * len(content))
    found = _after(lambda content: content.__setitem__(slice(at, at), bytes(more)))
    if found is not None:
        for now, (key, value), (start, stop) in zip(found, expected, places, strict=True):
            assert now in (None, (key, value)) or start <= at < stop


@settings(law, max_examples=30)
@given(noise=st.binary(max_size=9000))
def test_noise_is_not_an_lmdb_file(noise: bytes) -> None:
    assert _after(lambda content: content.__setitem__(slice(None), noise)) is None
