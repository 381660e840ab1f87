"""The cache of a machine: pieces in a folder, each made once, evicted when there are too many."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._cache import cache as module
from penstock._cache.cache import Cache, digest_of
from penstock._cache.folder import Folder
from penstock._cache.pieces import checksum
from penstock._measure.cached import CacheCounts


def never() -> bytes:
    raise AssertionError("the piece should have been found")


def pieces(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.penstock-piece"))


def test_a_piece_is_made_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    assert bytes(cache.get("a", lambda: b"12345")) == b"12345"
    assert bytes(cache.get("a", never)) == b"12345"
    assert bytes(Cache(tmp_path, 1000).get("a", never)) == b"12345"


def test_a_piece_may_be_a_list_of_buffers_or_empty(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    assert bytes(cache.get("a", lambda: [b"12", bytearray(b"3"), memoryview(b"45")])) == b"12345"
    assert bytes(cache.get("b", lambda: b"")) == bytes(cache.get("c", list)) == b""
    assert bytes(Cache(tmp_path, 1000).get("b", never)) == b""
    assert bytes(cache.get("d", lambda: [np.empty((0, 3)), np.arange(2, dtype=np.uint8)])) == b"\0\1"


def test_a_piece_is_read_only(tmp_path: Path) -> None:
    assert Cache(tmp_path, 1000).get("a", lambda: bytearray(b"1")).readonly
    with pytest.warns(RuntimeWarning, match="more than cache_bytes=0"):
        assert Cache(tmp_path, 0).get("b", lambda: bytearray(b"1")).readonly


def test_an_error_of_make_is_raised_and_nothing_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for error in (KeyError("x"), PermissionError(13, "no"), BlockingIOError(11, "later")):

        def failing(error: Exception = error) -> bytes:
            raise error

        with pytest.raises(type(error)) as caught:
            cache.get("a", failing)
        assert caught.value is error
    assert bytes(cache.get("a", lambda: b"1")) == b"1"


def test_the_limit_holds_and_the_oldest_goes_first(tmp_path: Path, counts: CacheCounts) -> None:
    cache = Cache(tmp_path, 500)
    for number in range(10):
        cache.get(f"{number}", lambda: bytes(76))  # and 24 more in the file
        assert sum(path.stat().st_size for path in pieces(tmp_path)) <= 500
    assert [cache.has(f"{number}") for number in range(10)] == [False] * 5 + [True] * 5
    assert counts.evicted == 5


def test_a_view_outlives_its_piece(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 200)
    view = cache.get("a", lambda: b"a" * 100)
    cache.get("b", lambda: b"b" * 100)
    assert not cache.has("a")
    assert bytes(view) == b"a" * 100


def test_evicted_pieces_do_not_stay_mapped(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for number in range(100):
        cache.get(f"{number}", lambda: bytes(100))
    assert len(cache._mapped) < 20
    assert len(cache._looked_at) < 20


def test_few_pieces_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MAPPED", 3)
    cache = Cache(tmp_path, 1 << 20)
    for number in range(10):
        cache.get(f"{number}", lambda: bytes(10))
    assert list(cache._mapped) == ["7", "8", "9"]
    cache.get("7", never)
    cache.get("0", never)
    assert list(cache._mapped) == ["8", "9", "0"]  # the one that was mapped first has gone


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    names = ["mine.txt", "x.penstock-piece", "g" * 32 + ".penstock-piece", "0" * 32, "5.penstock-agenda"]
    names += [f"{name}.bak" for name in ("0" * 32 + ".penstock-part", "1-00000000.penstock-agenda")]
    for name in names:
        (tmp_path / name).write_bytes(bytes(1000))
    (tmp_path / "folder").mkdir()
    cache = Cache(tmp_path, 200)
    for number in range(5):
        cache.get(f"{number}", lambda: bytes(100))
    assert len(pieces(tmp_path)) == 3  # of which two were there
    assert all((tmp_path / name).stat().st_size == 1000 for name in names)
    assert (tmp_path / "folder").is_dir()


@given(
    pages=st.integers(0, 5),
    rest=st.sampled_from([0, 1, 7, 500, 4095]),
    seed=st.integers(0, 1 << 30),
    damage=st.sampled_from(["a bit", "two bits that cancel", "words", "words exchanged", "pages exchanged", "zeros"]),
)
def test_no_damage_leaves_the_checksum_as_it_was(pages: int, rest: int, seed: int, damage: str) -> None:
    draw = np.random.default_rng(seed)
    right = draw.integers(0, 256, 4096 * pages + rest, np.uint8)
    wrong, words = right.copy(), right[: len(right) // 8 * 8].copy().view(np.uint64)
    if damage == "a bit" and len(right):
        wrong[draw.integers(len(right))] ^= np.uint8(1 << draw.integers(8))
    elif damage == "zeros" and pages:
        at = 4096 * draw.integers(pages)
        wrong[at : at + 4096] = 0
    elif damage == "pages exchanged" and pages > 1:
        wrong[: 4096 * pages] = np.roll(right[: 4096 * pages], 4096)
    elif len(words) > 1:
        one, other = draw.choice(len(words), 2, replace=False)
        if damage == "words":
            words[draw.integers(0, len(words), 20)] += np.uint64(1 << 40)
        elif damage == "words exchanged":
            words[[one, other]] = words[[other, one]]
        elif damage == "two bits that cancel":
            words[one] += np.uint64(1)
            words[other] -= np.uint64(1)
        wrong[: words.nbytes] = words.view(np.uint8)
    assert (checksum(wrong.data) == checksum(right.data)) == np.array_equal(wrong, right)


@pytest.mark.parametrize("damage", ["cut", "cut in the end", "empty", "a bit", "of another name", "longer"])
def test_a_damaged_piece_is_made_again(tmp_path: Path, damage: str, counts: CacheCounts) -> None:
    Cache(tmp_path, 10_000).get("a", lambda: b"right" * 100)
    (path,) = pieces(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "a bit":
        content[77] ^= 1
    elif damage == "of another name":
        Cache(tmp_path / "other", 10_000).get("b", lambda: b"wrong" * 100)
        content = bytearray(pieces(tmp_path / "other")[0].read_bytes())
    else:
        kept = {"cut": 300, "cut in the end": len(content) - 3, "empty": 0, "longer": len(content)}[damage]
        content = content[:kept] + (b"more" if damage == "longer" else b"")
    path.write_bytes(content)
    before = counts.fetched
    assert bytes(Cache(tmp_path, 10_000).get("a", lambda: b"right" * 100)) == b"right" * 100
    assert counts.fetched - before == 1
    assert bytes(Cache(tmp_path, 10_000).get("a", never)) == b"right" * 100


def test_a_piece_that_is_larger_than_the_cache_is_served_with_one_warning(
    tmp_path: Path, counts: CacheCounts
) -> None:
    cache = Cache(tmp_path, 100)
    with pytest.warns(RuntimeWarning, match=r"124 bytes are more than cache_bytes=100\. .*Raise") as caught:
        assert [bytes(cache.get(name, lambda: bytes(100))) for name in "aba"] == [bytes(100)] * 3
    assert len(caught) == 1
    assert counts.fetched == 2  # this process still has "a"
    assert not pieces(tmp_path)


@contextmanager
def small_disk(path: Path, nbytes: int) -> Iterator[None]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes},mode=0700", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_on_a_full_disk_pieces_stay_in_memory_with_one_warning(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20):
        cache = Cache(tmp_path / "disk", 1 << 30)
        contents = {f"{number}": bytes([number]) * 300_000 for number in range(8)}
        with pytest.warns(RuntimeWarning, match=r"No space left.*Make room") as caught:
            found = {name: bytes(cache.get(name, partial(bytes, content))) for name, content in contents.items()}
        assert found == contents
        assert len(caught) == 1
        assert 2 <= len(pieces(tmp_path / "disk")) <= 3
        assert not list((tmp_path / "disk").glob("*.penstock-part"))
        assert {name: bytes(cache.get(name, never)) for name in contents} == contents
        del cache


def test_a_read_only_folder_is_read_and_missing_pieces_stay_in_memory(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20):
        Cache(tmp_path / "disk", 1 << 20).get("a", lambda: b"there")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        cache = Cache(tmp_path / "disk", 1 << 20)
        assert bytes(cache.get("a", never)) == b"there"
        with pytest.warns(RuntimeWarning, match="Read-only file system") as caught:
            found = [bytes(cache.get(name, name.encode)) for name in "bcb"]
        assert found == [b"b", b"c", b"b"]
        assert len(caught) == 1
        del cache


def test_a_folder_that_cannot_be_made_is_like_a_read_only_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = Cache(tmp_path / "file" / "folder", 1000)
    with pytest.warns(RuntimeWarning, match="Not a directory"):
        assert bytes(cache.get("a", lambda: b"1")) == b"1"
    assert not cache.fetch("b", lambda: b"1")


def test_a_folder_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "folder", 1000)
    cache.get("a", lambda: b"1")
    for path in (tmp_path / "folder").iterdir():
        path.unlink()
    (tmp_path / "folder").rmdir()
    with pytest.warns(RuntimeWarning, match="No such file"):
        assert bytes(cache.get("b", lambda: b"2")) == b"2"


def test_pickling_keeps_the_folder_and_the_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    cache.get("a", lambda: b"1")
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.path, copy.limit) == (os.fspath(tmp_path), 1000)
    assert bytes(copy.get("a", never)) == b"1"


def test_threads_make_a_piece_once(tmp_path: Path, counts: CacheCounts) -> None:
    cache, made, found = Cache(tmp_path, 1000), [], []
    inside, go_on = threading.Event(), threading.Event()

    def make() -> bytes:
        made.append(1)
        inside.set()
        go_on.wait(10)
        return b"1"

    threads = [threading.Thread(target=lambda: found.append(bytes(cache.get("a", make)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert found == [b"1"] * 4
    assert counts.misses + counts.hits == 4


def test_a_child_that_is_forked_while_a_piece_is_made_can_make_it_when_its_parent_is_gone(tmp_path: Path) -> None:
    """The child closes its copy of the descriptor: otherwise it would wait for a lock that it has itself."""
    cache = Cache(tmp_path, 1000)
    inside, go_on = threading.Event(), threading.Event()

    def make() -> bytes:
        inside.set()
        go_on.wait(10)
        raise KeyError

    thread = threading.Thread(target=pytest.raises, args=(KeyError, cache.get, "a", make))
    thread.start()
    assert inside.wait(10)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(10)
            os.write(write, bytes(cache.get("a", lambda: b"made by the child")))
        finally:
            os._exit(0)
    go_on.set()
    thread.join()
    os.close(write)
    assert os.read(read, 100) == b"made by the child"
    os.close(read)
    os.waitpid(pid, 0)


MAKER = """
import os, sys, time
from penstock._cache.cache import Cache
def make():
    print("making", flush=True)
    time.sleep(60)
Cache(sys.argv[1], 1000).get("a", make)
"""


def test_if_the_maker_is_killed_another_takes_over(tmp_path: Path, counts: CacheCounts) -> None:
    with subprocess.Popen([sys.executable, "-c", MAKER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "making\n"
        found: list[bytes] = []
        cache = Cache(tmp_path, 1000)
        threads = [threading.Thread(target=lambda: found.append(bytes(cache.get("a", lambda: b"1")))) for _ in "12"]
        for thread in threads:
            thread.start()
        maker.kill()
        for thread in threads:
            thread.join(10)
    assert found == [b"1", b"1"]
    assert counts.fetched == 1


def test_what_a_dead_process_has_left_is_swept(tmp_path: Path) -> None:
    part = tmp_path / f"{digest_of('a')}.penstock-part"
    part.write_bytes(bytes(100))
    agenda = tmp_path / "77-01234567.penstock-agenda"
    agenda.write_bytes(bytes(100))
    Cache(tmp_path, 1000).get("b", lambda: b"1")
    assert not part.exists()
    assert not agenda.exists()


def test_a_piece_that_is_being_written_is_not_swept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    part = tmp_path / f"{digest_of('a')}-0123456789abcdef.penstock-part"

    def make() -> bytes:
        part.write_bytes(b"so far")
        Cache(tmp_path, 1000).get("b", lambda: b"2")
        assert part.exists()
        return b"1"

    assert bytes(cache.get("a", make)) == b"1"
    Cache(tmp_path, 1000).get("c", lambda: b"3")
    assert not part.exists()


def test_the_bytes_are_counted_again_after_a_change_that_was_cut_off(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for number in range(4):
        cache.get(f"{number}", lambda: bytes(200))
    state = tmp_path / "penstock-cache"
    for begun, other_boot in ((1, 0), (0, 1)):
        content = bytearray(state.read_bytes())
        content[44] = begun  # see folder._HEAD
        content[8] ^= other_boot
        content[52:60] = bytes(8)  # the number of bytes: a lie
        state.write_bytes(content)
        Cache(tmp_path, 1000).get(f"more {begun}", lambda: bytes(200))
        assert sum(path.stat().st_size for path in pieces(tmp_path)) <= 1000


def test_room_is_about_the_limit_if_nothing_is_planned(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    cache.get("a", lambda: bytes(600))
    b = digest_of("b")
    assert cache.free_space().take(b, 300)
    assert cache.free_space().take(b, 900)  # "a" is in no agenda
    assert not cache.free_space().take(b, 1000)


def test_fetch_makes_a_piece_for_later(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    assert cache.fetch("a", lambda: b"1")
    assert cache.fetch("a", never)
    assert bytes(cache.get("a", never)) == b"1"
    assert not Cache(tmp_path, 10).fetch("b", lambda: bytes(100))


def test_fetch_waits_for_a_process_that_makes_the_piece(tmp_path: Path) -> None:
    cache, fetched = Cache(tmp_path, 1000), list[bool]()
    inside, go_on = threading.Event(), threading.Event()

    def make() -> bytes:
        inside.set()
        go_on.wait(10)
        return b"1"

    maker = threading.Thread(target=cache.get, args=("a", make))
    maker.start()
    assert inside.wait(10)
    other = threading.Thread(target=lambda: fetched.append(Cache(tmp_path, 1000).fetch("a", never)))
    other.start()
    go_on.set()
    maker.join()
    other.join()
    assert fetched == [True]


def test_a_piece_that_is_evicted_as_soon_as_it_is_there_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the laws of the scout: another process made room between the rename and the next look at the file."""
    add = Folder.add

    def evicted_at_once(self: Folder, digest: str, buffers: Any) -> tuple[int, int]:
        done = add(self, digest, buffers)
        os.unlink(self.piece(digest))
        return done

    monkeypatch.setattr(Folder, "add", evicted_at_once)
    assert bytes(Cache(tmp_path, 1000).get("a", lambda: [b"1", b"2"])) == b"12"


def test_a_damaged_file_that_has_the_number_of_the_one_before_is_not_served(tmp_path: Path) -> None:
    """Found by the model: the number of a deleted file is used again at once."""
    cache = Cache(tmp_path, 1000)
    cache.fetch("a", lambda: b"right")
    (path,) = pieces(tmp_path)
    content, number = bytearray(path.read_bytes()), path.stat().st_ino
    content[1] ^= 1
    path.unlink()
    for attempt in range(100):
        (tmp_path / f"{attempt}").write_bytes(content)
        if (tmp_path / f"{attempt}").stat().st_ino == number:
            break
    (tmp_path / f"{attempt}").rename(path)
    assert bytes(cache.get("a", lambda: b"right")) == b"right"
