"""What all formats share: which files are meant, how they are read, and indexes that are kept."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._files import index as indexes
from penstock._files import local
from penstock._files.access import Access
from penstock._files.index import cached, cached_each
from penstock._files.local import File
from penstock._files.mapping import mapped
from penstock._files.paths import Paths, find_files
from penstock._system import trust
from penstock.errors import FormatError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.bin", "a.bin", "deep/c.bin", "deep/d.BIN", "notes.txt", ".hidden.bin", ".git/e.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def expand(paths: Paths, suffixes: list[str], reader: str) -> list[str]:
    return [file.path for file in find_files(paths, suffixes, reader, Access())]


def names(folder: Path, found: list[str]) -> list[str]:
    return [os.path.relpath(path, folder) for path in found]


def test_a_folder_means_the_files_below_it_with_the_suffix(folder: Path) -> None:
    assert names(folder, expand(folder, [".bin"], "X")) == ["a.bin", "b.bin", "deep/c.bin", "deep/d.BIN"]


def test_a_pattern_means_the_files_that_match(folder: Path) -> None:
    assert names(folder, expand(folder / "*.bin", [], "X")) == ["a.bin", "b.bin"]
    assert names(folder, expand(folder / "**" / "[cn]*", [], "X")) == ["deep/c.bin", "notes.txt"]


def test_a_list_is_sorted_and_has_each_file_once(folder: Path) -> None:
    given = [folder / "b.bin", str(folder / "*.bin"), folder / "deep" / ".." / "a.bin"]
    assert names(folder, expand(given, [], "X")) == ["a.bin", "b.bin"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "[ab].bin").touch()
    assert names(folder, expand(folder / "[ab].bin", [], "X")) == ["[ab].bin"]


def test_paths_do_not_depend_on_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert expand("a.bin", [], "X") == [str(folder / "a.bin")]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ("none.bin", FileNotFoundError, r"X: there is no file or folder '.*none.bin'"),
        ("*.rec", FileNotFoundError, r"X: no file matches the pattern '.*\*.rec'"),
        (".git", FileNotFoundError, r"X: no file below the folder '.*' ends in .txt. Name"),
        (b"a.bin", TypeError, r"X takes a path \(str or os.PathLike\), or a list of paths, but got b'a.bin'"),
        ([b"a.bin"], TypeError, "X takes a path .* but got b'a.bin'"),
        ([3], TypeError, "X takes a path .* but got 3"),
        (None, TypeError, "X takes a path .* but got None"),
        ([], ValueError, "at least one path"),
    ],
)
def test_nothing_found_says_what_was_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: Any, kind: type[Exception], message: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(kind, match=message):
        expand(given, [".txt"], "X")


def test_a_file_is_read_by_position(folder: Path) -> None:
    file = File(str(folder / "notes.txt"))
    assert (file.size, file.read(2, 3), file.read(9, 0)) == (9, b"tes", b"")
    assert list(file.read_each([5, 0], [4, 2])) == [b".txt", b"no"]


@pytest.mark.parametrize(("start", "length"), [(8, 2), (0, 1 << 60), (100, 1), (-1, 2)])
def test_reading_beyond_the_end_names_the_file_and_the_byte(folder: Path, start: int, length: int) -> None:
    with pytest.raises(FormatError, match=rf"notes.txt, byte {start}: {length:,} bytes were expected here"):
        File(str(folder / "notes.txt")).read(start, length)


@pytest.mark.parametrize("content", [b"other content", b"same size"])
def test_a_file_that_changed_is_an_error_of_the_first_read(folder: Path, content: bytes) -> None:
    path = folder / "notes.txt"
    file = File(str(path))
    sent = pickle.loads(pickle.dumps(file))
    path.write_bytes(content)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # the clock of a file system may stand still for a moment
    for one in (file, sent):
        with pytest.raises(FormatError, match=r"notes.txt has changed since .* 9 bytes"):
            one.read(0, 1)


def test_a_folder_is_not_a_file(folder: Path) -> None:
    with pytest.raises(FormatError, match="not a regular file"):
        File(str(folder))


def open_below(folder: Path) -> int:
    links = (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _exists(fd))
    return sum(link.startswith(str(folder)) for link in links)


def _exists(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_few_of_many_files_are_open_and_all_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MOST_OPEN", 10)
    files = []
    for number in range(50):
        path = tmp_path / str(number)
        path.write_bytes(bytes([number]) * 9)
        files.append(File(str(path)))
    for _ in range(2):
        for number, file in enumerate(files):
            assert file.read(3, 2) == bytes([number]) * 2
            assert open_below(tmp_path) <= 10
    memory, starts = mapped(files)
    assert open_below(tmp_path) <= 10
    assert [memory[start] for start in starts] == list(range(50))
    del files, file
    assert open_below(tmp_path) == 0
    assert memory[starts[49] + 8] == 49  # a map outlives its file


def test_threads_never_read_from_the_descriptor_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MOST_OPEN", 1)
    files = []
    for number in range(4):
        (tmp_path / str(number)).write_bytes(bytes([number]))
        files.append(File(str(tmp_path / str(number))))
    wrong: list[Any] = []

    def read(number: int) -> None:
        for step in range(500):
            at = (number + step) % 4
            if files[at].read(0, 1) != bytes([at]):
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_empty_file_can_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(File(str(tmp_path / "empty")).map()) == 0


def test_a_map_is_read_only_and_has_the_files_bytes(folder: Path) -> None:
    memory = File(str(folder / "notes.txt")).map()
    assert memory.tobytes() == b"notes.txt"
    assert not memory.flags.writeable


made: list[str] = []  # files of which an index was made in this process


def make(file: File) -> Mapping[str, np.ndarray[Any, Any]]:
    made.append(os.path.basename(file.path))
    content = np.frombuffer(file.read(0, file.size), np.uint8)
    return {"sum": content.sum(dtype=np.int64, keepdims=True), "content": content[:, np.newaxis], "none": content[:0]}


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


def check(index: Mapping[str, Any], content: bytes) -> None:
    assert index["content"].tobytes() == content
    assert index["content"].shape == (len(content), 1)
    assert index["sum"].tolist() == [sum(content)]
    assert index["none"].shape == (0,)


def test_an_index_is_made_once_and_kept_beside_its_file(folder: Path, cache: Path) -> None:
    for _ in range(2):
        check(cached(File(str(folder / "a.bin")), "test-1", make), b"a.bin")
    assert made == ["a.bin"]
    assert (folder / ".a.bin.penstock-test-1").exists()
    assert not any(cache.iterdir())


def test_another_kind_is_another_index(folder: Path) -> None:
    file = File(str(folder / "a.bin"))
    cached(file, "test-1", make)
    cached(file, "test-2", make)
    assert made == ["a.bin"] * 2


@pytest.mark.parametrize("change", ["size", "time"])
def test_an_index_is_made_again_for_a_file_that_changed(folder: Path, change: str) -> None:
    path = folder / "a.bin"
    cached(File(str(path)), "test-1", make)
    if change == "size":
        time = path.stat().st_mtime_ns
        path.write_bytes(b"longer")
        os.utime(path, ns=(time, time))
    else:
        os.utime(path, ns=(1, 1))
    check(cached(File(str(path)), "test-1", make), path.read_bytes())
    assert made == ["a.bin"] * 2


def test_where_the_folder_cannot_be_written_the_index_is_in_the_cache(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, folder)
    for _ in range(2):
        index = cached(File(str(folder / "a.bin")), "test-1", make)
        check(index, b"a.bin")
    assert made == ["a.bin"]
    assert len(list(cache.iterdir())) == 1
    assert index.kept


def test_where_nothing_can_be_written_the_index_is_in_memory_and_in_the_pickle(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, folder, cache)
    index = cached(File(str(folder / "a.bin")), "test-1", make)
    check(index, b"a.bin")
    assert not index.kept
    check(pickle.loads(pickle.dumps(index)), b"a.bin")
    assert made == ["a.bin"]


def refuse(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """As a file system that is read-only does, for root too."""
    replace = trust.replace

    def refusing(path: str, *args: Any) -> None:
        if Path(path).parent in folders:
            raise PermissionError(f"{path} cannot be written")
        replace(path, *args)

    monkeypatch.setattr(trust, "replace", refusing)


def test_a_progress_bar_is_shown_if_it_takes_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    def progress(items: Any, description: str, *, total: int) -> Any:
        shown.append((description, total))
        return items

    monkeypatch.setattr(indexes, "progress", progress)
    files = [File(str(folder / name)) for name in ("a.bin", "b.bin", "notes.txt")]
    cached_each(files, "quick-1", make)
    assert shown == []
    monkeypatch.setattr(indexes, "_QUIET", -1.0)
    for index, file in zip(cached_each(files, "slow-1", make), files, strict=True):
        check(index, Path(file.path).read_bytes())
    assert shown == [("indexing files", 2)]


def test_a_full_disk_leaves_no_half_index(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(indexes.os, "replace", full)
    check(cached(File(str(folder / "a.bin")), "test-1", make), b"a.bin")
    assert not list(folder.glob(".a.bin*")) and not any(cache.iterdir())


def test_a_kept_index_is_not_in_the_pickle(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(100_000))
    index = cached(File(str(tmp_path / "big")), "test-1", make)
    sent = pickle.dumps(index)
    assert len(sent) < 300
    check(pickle.loads(sent), (tmp_path / "big").read_bytes())
    assert made == ["big"]


def test_many_indexes_are_made_by_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_ALONE", 0)
    monkeypatch.setattr(indexes.os, "sched_getaffinity", lambda _: {0, 1})
    files = [File(str(folder / name)) for name in ("a.bin", "b.bin", "notes.txt")]
    cached(files[1], "test-1", make)
    for index, file in zip(cached_each(files, "test-1", make), files, strict=True):
        check(index, Path(file.path).read_bytes())
        assert index.kept
    assert made == ["b.bin"]  # the others were made elsewhere


def test_indexes_of_workers_that_cannot_be_kept_come_back(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "_ALONE", 0)
    monkeypatch.setattr(indexes.os, "sched_getaffinity", lambda _: {0, 1})
    refuse(monkeypatch, folder, cache)
    files = [File(str(folder / name)) for name in ("a.bin", "b.bin", "notes.txt")]
    for index, file in zip(cached_each(files, "test-1", make), files, strict=True):
        check(index, Path(file.path).read_bytes())
    assert made == []


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_index_is_made_again(folder: Path, place: float, flip: int, cut: bool) -> None:
    file = File(str(folder / "a.bin"))
    cached(file, "test-1", make)
    kept = folder / ".a.bin.penstock-test-1"
    content = bytearray(kept.read_bytes())
    at = int(place * len(content))
    if cut:
        content = content[:at]
    else:
        content[at] ^= flip
    kept.write_bytes(content)
    check(cached(file, "test-1", make), b"a.bin")


def test_a_writer_that_is_killed_leaves_no_index(folder: Path) -> None:
    code = f"""
import os, signal
from penstock._files import index
from penstock._files.local import File
import numpy as np
def killed(*args): os.kill(os.getpid(), signal.SIGKILL)
index.os.replace = killed
index.cached(File({str(folder / "a.bin")!r}), "test-1", lambda file: {{"sum": np.arange(3)}})
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    check(cached(File(str(folder / "a.bin")), "test-1", make), b"a.bin")
    assert made == ["a.bin"]


NESTED = b"[" * 100_000 + b"]" * 100_000
RIGHT = b'{"kind": "test-1", "size": 5, "modified": %d, "arrays": %s}'
HUGE = b'[["sum", "<i8", [%s], 0]]' % (b"9" * 30)
ARRAYS = [b"5", b"[5]", b'[["sum", "|O", [1], 0]]', b'[["sum", "<i8", [-1], 0]]', HUGE]
DESCRIPTIONS = [
    *(b"{}", b"[]", b"null", NESTED),
    RIGHT.replace(b'"kind": "test-1", ', b"").replace(b"%s", b"[]"),
    RIGHT.replace(b', "arrays": %s', b""),
    *(RIGHT.replace(b"%s", arrays) for arrays in ARRAYS),
]


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda text: text[:90].decode())
def test_an_index_that_says_anything_else_is_made_again(folder: Path, description: bytes) -> None:
    path = folder / "a.bin"
    if b"%d" in description:
        description %= path.stat().st_mtime_ns
    head = indexes._HEAD.pack(indexes._MAGIC, indexes._VERSION, len(description), zlib.crc32(description))
    (folder / ".a.bin.penstock-test-1").write_bytes(head + description + bytes(200))
    for _ in range(2):
        check(cached(File(str(path)), "test-1", make), b"a.bin")
    assert made == ["a.bin"]
