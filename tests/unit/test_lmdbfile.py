"""The tree of an LMDB file: each kind of damage that does not show by itself. (Random damage: tests/laws.)"""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import pytest

from penstock.errors import RecordError
from penstock.records import CaffeLMDB

PAGE = 4096
KEYS = [b"%08d" % number for number in range(12)]
BRANCH, LEAF, OVERFLOW = 1, 2, 4


class Values(CaffeLMDB):
    """The values themselves, which are no Datums here."""

    def stored(self, raw: bytes, number: int, row: int) -> bytes:
        return bytes(self._value(raw, number, row))


class Pages:
    """A sound file with one branch page, several leaves and two large values, and how to spoil it."""

    def __init__(self, folder: Path) -> None:
        environment = lmdb.open(str(folder), map_size=1 << 24, lock=False)
        with environment, environment.begin(write=True) as transaction:
            for number, key in enumerate(KEYS):
                transaction.put(key, key * (600 if number in (5, 9) else 100))
        self.path = folder / "data.mdb"
        self.content = bytearray(self.path.read_bytes())

    def open(self) -> Values:
        self.path.write_bytes(self.content)
        return Values(self.path)

    def of_kind(self, kind: int) -> list[int]:
        """Where the pages of a kind begin. Pages that belong to a large value have none."""
        begins, at = [], 2 * PAGE
        while at < len(self.content):
            found, count = struct.unpack_from("<HI", self.content, at + 10)
            if found == kind:
                begins.append(at)
            at += PAGE * (count if found == OVERFLOW else 1)
        return begins

    def nodes(self, page: int) -> list[int]:
        (end,) = struct.unpack_from("<H", self.content, page + 12)
        return [page + at for at in struct.unpack_from(f"<{(end - 16) // 2}H", self.content, page + 16)]

    def database(self) -> int:
        """Where the newer of the two transactions describes the tree."""
        newest = max((0, PAGE), key=lambda at: struct.unpack_from("<Q", self.content, at + 144)[0])
        return newest + 16 + 24 + 48

    def copy(self, source: int, to: int, size: int) -> None:
        self.content[to : to + size] = self.content[source : source + size]


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages(tmp_path)


def test_the_sound_file_is_read(pages: Pages) -> None:
    file = pages.open()
    assert list(file.keys) == KEYS
    assert [file[at] for at in (0, 5, 9)] == [KEYS[0] * 100, KEYS[5] * 600, KEYS[9] * 600]
    assert len(pages.of_kind(BRANCH)) == 1
    assert len(pages.of_kind(LEAF)) >= 3
    assert len(pages.of_kind(OVERFLOW)) == 2


def test_a_page_in_the_place_of_another_is_noticed(pages: Pages) -> None:
    first, second, *_ = pages.of_kind(LEAF)
    pages.copy(second, first, PAGE)
    with pytest.raises(RecordError, match=f"byte {first:,}: page {first // PAGE} should be of kind 2"):
        pages.open()


def test_a_leaf_that_is_named_twice_is_noticed(pages: Pages) -> None:
    (branch,) = pages.of_kind(BRANCH)
    first, second, *_ = pages.nodes(branch)
    pages.copy(first, second, 6)
    with pytest.raises(RecordError, match="key b'00000000' should not be here"):
        pages.open()


def test_a_leaf_that_is_not_named_is_noticed(pages: Pages) -> None:
    (branch,) = pages.of_kind(BRANCH)
    (end,) = struct.unpack_from("<H", pages.content, branch + 12)
    last = pages.nodes(branch)[-1]
    assert last == min(pages.nodes(branch))  # the newest node is the lowest, so it can be taken off
    struct.pack_into("<HH", pages.content, branch + 12, end - 2, min(pages.nodes(branch)[:-1]) - branch)
    with pytest.raises(RecordError, match="12 entries were expected, but there are"):
        pages.open()


def test_a_large_value_that_two_keys_have_is_noticed(pages: Pages) -> None:
    large = [
        node
        for leaf in pages.of_kind(LEAF)
        for node in pages.nodes(leaf)
        if struct.unpack_from("<H", pages.content, node + 4)[0] == 1
    ]
    pages.copy(large[0] + 16, large[1] + 16, 8)
    with pytest.raises(RecordError, match="the value of key b'00000005' ends here, inside another"):
        pages.open()


@pytest.mark.parametrize(("at", "value"), [(0, 99), (10, LEAF), (12, 1)])
def test_the_head_of_a_large_value_is_looked_at(pages: Pages, at: int, value: int) -> None:
    page = pages.of_kind(OVERFLOW)[0]
    pages.content[page + at] = value
    file = pages.open()
    with pytest.raises(RecordError, match=rf"byte {page:,}: the value of key b'00000005' should begin here"):
        file[5]
    assert file[9] == KEYS[9] * 600


def test_nodes_that_overlap_are_noticed(pages: Pages) -> None:
    leaf = pages.of_kind(LEAF)[0]
    pages.content[pages.nodes(leaf)[0]] ^= 4  # the size of its value
    with pytest.raises(RecordError, match=f"byte {leaf:,}: the entries of page {leaf // PAGE} do not fit"):
        pages.open()


@pytest.mark.parametrize("depth", [0, 1, 3, 40])
def test_another_depth_than_the_trees_is_noticed(pages: Pages, depth: int) -> None:
    place = pages.database() + 6
    assert struct.unpack_from("<H", pages.content, place) == (2,)
    struct.pack_into("<H", pages.content, place, depth)
    with pytest.raises(RecordError):
        pages.open()


def test_a_branch_that_names_itself_is_noticed(pages: Pages) -> None:
    (branch,) = pages.of_kind(BRANCH)
    struct.pack_into("<HHH", pages.content, pages.nodes(branch)[0], branch // PAGE, 0, 0)
    with pytest.raises(RecordError, match="should be of kind 2"):
        pages.open()


def test_flags_that_caffe_does_not_use_are_refused(pages: Pages) -> None:
    struct.pack_into("<H", pages.content, pages.database() + 4, 4)
    with pytest.raises(RecordError, match="byte 0: a database with flags 0x4 and depth 2"):
        pages.open()
