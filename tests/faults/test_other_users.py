"""Another user plants memfds, links, files and folders: samples stay right, and nothing of ours is overwritten.

The other users are real ones: root becomes them by `setpriv`.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._cache import pieces
from penstock._cache import shared as _shared
from penstock._cache.agendas import Agenda, rows_of
from penstock._cache.cache import Cache, digest_of
from penstock._cache.claims import Claim
from penstock._cache.shared import Inventory, Shared
from penstock._files.access import Access
from penstock._files.index import cached
from penstock._files.local import AnyFile, File
from penstock._measure import page
from penstock._system import descriptors, trust
from penstock.formats._beside import neighbour
from penstock.records import RecordFile, RecordWriter
from penstock.stats._trace import Trace

OTHER, TEAM = 65534, 54321

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
TABLES = count()


def as_user(user: int, group: int, *command: str) -> list[str]:
    become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    if command[0] == sys.executable and not _can_run_python(*become):
        pytest.skip("another user cannot run this Python")
    return [*become, *command]


@cache
def _can_run_python(*become: str) -> bool:
    """False if Python's library is in a folder of root, as that of a pyenv."""
    return subprocess.run([*become, sys.executable, "-c", ""], capture_output=True).returncode == 0


def never() -> bytes:
    raise AssertionError("the piece should have been found")


def claim() -> Claim:
    return Claim(np.empty(0, np.int64), 1000)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def said_by(code: str) -> str:
    """What a program prints, which must not wait for another."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    return ran.stdout + ran.stderr


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder of root's that others can look into. (Each session of pytest closes `tmp_path` to them.)"""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def open_to_all(reachable: Path) -> Path:
    """Like /tmp: everybody may make files there."""
    folder = reachable / "open"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


# What is found through /proc.


CARRIED = """
import fcntl, os, struct, sys, zlib
names, contents = sys.argv[1].split(), [zlib.decompress(bytes.fromhex(text)) for text in sys.argv[2].split()]
def memfd(name):
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)  # inherited
    return fd, os.fstat(fd).st_ino
made = [memfd(name) for name in names]
for (fd, inode), content in zip(made, contents):
    for mark, number in ((b"the--pid", os.getpid()), (b"the---fd", made[-1][0]), (b"theinode", made[-1][1])):
        content = content.replace(mark, struct.pack("<q", number))
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 15)
os.execvp("su", ["su", "root"])  # waits for a password
"""


@contextmanager
def carried(**memfds: bytes) -> Iterator[int]:
    """A process of root's that another user has started, with memfds of that user."""
    names, contents = (
        " ".join(memfds).replace("_", "-"),
        " ".join(zlib.compress(content).hex() for content in memfds.values()),
    )
    command = as_user(OTHER, OTHER, sys.executable, "-c", CARRIED, names, contents)
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert program.stderr is not None
        while Path(f"/proc/{program.pid}/comm").read_text() != "su\n":
            assert program.poll() is None
        assert program.stderr.read(1)  # it asks for the password
        assert os.stat(f"/proc/{program.pid}").st_uid == 0
        yield program.pid
    finally:
        program.kill()
        program.communicate()


def test_a_block_that_a_program_of_root_carries_for_another_user_is_not_used() -> None:
    table = f"other{next(TABLES)}x{os.getpid()}"
    name, evil = (_shared._NAME + table).replace("-", "_"), b"evil samples"
    head = _shared._HEAD.pack(_shared._MAGIC, 1, 1, 1)  # the oldest of all inventories
    row = struct.pack("<q8s8s8sqq", 3, b"the--pid", b"the---fd", b"theinode", len(evil), 1)
    with (
        carried(**{name: head + row, _shared._BLOCK.replace("-", "_"): evil}),
        closing(Inventory(table, claim())) as inventory,
        closing(Shared(table, 100)) as shared,
    ):
        assert shared.get(3, lambda: [b"my samples"]) == b"my samples"
        assert inventory.decoded == 1


def test_a_block_of_another_user_is_not_used_even_if_my_inventory_names_it() -> None:
    """As if a process had died, and its number were that of another now."""
    table = f"other{next(TABLES)}x{os.getpid()}"
    evil = b"evil samples"
    with (
        closing(Inventory(table, claim())) as inventory,
        closing(Shared(table, 100)) as shared,
        carried(**{_shared._BLOCK.replace("-", "_"): evil}) as pid,
    ):
        block = next(fd for fd in Path(f"/proc/{pid}/fd").iterdir() if _shared._BLOCK in os.readlink(fd))
        row = np.array([(3, pid, int(block.name), os.stat(block).st_ino, len(evil), 1)], _shared.ROW)
        _shared._write_rows(inventory._fd, row, 1)
        assert shared.get(3, lambda: [b"my samples"]) == b"my samples"


def test_a_page_that_a_program_of_root_carries_for_another_user_is_not_shown() -> None:
    counter, text = struct.pack("Q", 1), b"evil figures"
    head = struct.pack("QQ", len(text), page.crc32(text))
    content = counter.ljust(page._FIRST + page.PUBLICATION_BYTES, b"\0") + head + text
    with carried(penstock_loader=content.ljust(page._SIZE, b"\0")) as pid:
        assert os.stat(f"/proc/{pid}").st_uid == 0
        assert [found for found in page.find(0) if found.pid == pid] == []


@pytest.mark.parametrize(
    "change",
    [lambda fd: os.ftruncate(fd, 0), lambda fd: os.pwrite(fd, b"evil", 0), lambda fd: os.ftruncate(fd, 1000)],
    ids=["shrink", "write", "grow"],
)
def test_no_process_can_change_a_block_that_others_have_mapped(change: Callable[[int], object]) -> None:
    table = f"other{next(TABLES)}x{os.getpid()}"
    with closing(Inventory(table, claim())), closing(Shared(table, 100)) as shared:
        view = shared.get(3, lambda: [b"my samples"])
        fd = os.open(f"/proc/self/fd/{next(iter(shared._own.values()))}", os.O_RDWR)
        try:
            with pytest.raises(PermissionError):
                change(fd)
        finally:
            os.close(fd)
        assert view == b"my samples"


@pytest.mark.parametrize("nbytes", [10, 1 << 20], ids=["of its size", "larger than it is"])
def test_a_block_that_could_be_cut_off_is_not_mapped(nbytes: int) -> None:
    """To read it then would kill this process, by SIGBUS."""
    table = f"other{next(TABLES)}x{os.getpid()}"
    with closing(Inventory(table, claim())) as inventory, closing(Shared(table, 1000)) as shared:
        fd = descriptors.open_memfd(_shared._BLOCK)
        try:
            os.ftruncate(fd, 10)
            row = np.array([(3, os.getpid(), fd, os.fstat(fd).st_ino, nbytes, 1)], _shared.ROW)
            _shared._write_rows(inventory._fd, row, 1)
            assert shared.get(3, lambda: [b"my samples"]) == b"my samples"
        finally:
            descriptors.close(fd)


# The cache folder.


@pytest.mark.parametrize("mask", [0, 0o027, 0o277], ids=oct)
def test_all_that_is_made_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    folder = tmp_path / "above" / "cache"
    with umask(mask):
        cache = Cache(folder, 1000)
        cache.get("a", lambda: b"1")
        publisher = cache.publisher()
        cache.publish(publisher, Agenda(0, rows_of([1], [0], [1])))
    try:
        assert mode(folder) == mode(folder.parent) == 0o700
        assert {mode(path) for path in folder.iterdir()} == {0o600} and len(list(folder.iterdir())) == 3
    finally:
        publisher.close()


def test_a_cache_that_an_older_version_has_left_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    Cache(folder, 1000).get("a", lambda: b"1")
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = Cache(folder, 1000)
        assert cache.get("a", never) == b"1"
        cache.get("b", lambda: b"2")
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_a_folder_with_files_of_the_user_stays_as_open_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("for all to read")
    tmp_path.chmod(0o755)
    Cache(tmp_path, 1000).get("a", lambda: b"1")
    assert mode(tmp_path) == 0o755
    assert {mode(path) for path in tmp_path.glob("*penstock*")} == {0o600}


@pytest.mark.parametrize("given", [True, False], ids=["cache=", "PENSTOCK_CACHE"])
@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (lambda folder: os.chown(folder, OTHER, OTHER), "it belongs to nobody"),
        (lambda folder: folder.chmod(0o777), r"all users may write it \(mode 0777\)"),
        (lambda folder: folder.chmod(0o1777), r"all users may write it \(mode 1777\)"),
        (
            lambda folder: (os.chown(folder, 0, TEAM), folder.chmod(0o770)),
            r"its group may write it \(mode 0770\)",
        ),
        (lambda folder: os.chown(folder.parent, OTHER, OTHER), "through .*/above, and it belongs to nobody"),
        (lambda folder: folder.parent.chmod(0o777), "through .*/above, and all users may write it"),
    ],
)
def test_a_folder_that_others_could_write_is_refused(
    tmp_path: Path, plant: Callable[[Path], object], why: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "above" / "cache"
    folder.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("important")
    target = folder if given else folder / "pieces"
    target.mkdir(exist_ok=True)
    for name in (f"{digest_of('a')}.penstock-part", "penstock-cache"):
        (target / name).symlink_to(victim)
    plant(folder)
    if mode(folder) == 0o1777 and not given:
        plant(target)  # else it would be a folder of mine in a sticky one
    if given:
        with pytest.raises(PermissionError, match=rf"{why}.*, so other users could .* pass cache_shared=True"):
            Access(cache=folder).pieces()
    else:
        monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
        with pytest.warns(RuntimeWarning, match=rf"{why}.* kept in memory") as warned:
            kept: Any = Access().pieces()
        assert len(warned) == 1 and not hasattr(kept, "cache")
    assert victim.read_text() == "important"


def test_a_folder_below_one_that_is_sticky_is_used_if_it_is_mine(open_to_all: Path) -> None:
    assert Cache(open_to_all / "mine", 1000).get("a", lambda: b"1") == b"1"
    assert mode(open_to_all / "mine") == 0o700
    (open_to_all / "theirs").mkdir(mode=0o700)
    os.chown(open_to_all / "theirs", OTHER, OTHER)
    with pytest.raises(PermissionError, match="theirs cannot be a cache: it belongs to"):
        Cache(open_to_all / "theirs", 1000)


def test_a_link_is_followed_if_only_i_could_have_made_it(open_to_all: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mine").symlink_to("real")
    assert Cache(tmp_path / "mine", 1000).get("a", lambda: b"1") == b"1"
    (open_to_all / "theirs").symlink_to(tmp_path / "real")
    os.chown(open_to_all / "theirs", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(PermissionError, match="it belongs to nobody"):
        Cache(open_to_all / "theirs", 1000)
    (tmp_path / "far").symlink_to(open_to_all)
    with pytest.raises(PermissionError, match=r"through .*/open, and all users may write it"):
        Cache(tmp_path / "far", 1000)


def test_a_private_group_is_not_others(reachable: Path) -> None:
    """Where each user has a group of the same number, folders are often writable for it (umask 002)."""
    folder = reachable / "own"
    folder.mkdir()
    os.chown(folder, 54322, 54322)
    folder.chmod(0o775)
    code = f"from penstock._cache.cache import Cache; print(bytes(Cache('{folder}', 1000).get('a', lambda: b'1')))"
    ran = subprocess.run(as_user(54322, 54322, sys.executable, "-c", code), capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("b'1'\n", "")


def test_a_link_in_the_place_of_the_state_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("important")
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / "penstock-cache").symlink_to(victim)
    with pytest.warns(RuntimeWarning, match="could not be kept in the cache"):
        assert Cache(folder, 1000).get("a", lambda: b"1") == b"1"
    assert victim.read_text() == "important"


def test_a_new_file_is_never_one_that_is_there(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("important")
    for name, target in (("a", victim), ("b", tmp_path / "missing")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(FileExistsError):
            pieces.write(str(tmp_path / name), digest_of("a"), [memoryview(b"1")])
    assert victim.read_text() == "important" and not (tmp_path / "missing").exists()


def test_a_pipe_in_the_place_of_a_piece_does_not_stop_the_program(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / f"{digest_of('a')}.penstock-piece")
    code = f"from penstock._cache.cache import Cache; print(bytes(Cache('{tmp_path}', 1000).get('a', lambda: b'1')))"
    assert said_by(code) == "b'1'\n"
    assert Cache(tmp_path, 1000).get("a", never) == b"1"


@pytest.mark.parametrize("how", ["of another user", "that all may write"])
def test_a_piece_that_others_could_have_written_is_fetched_again(tmp_path: Path, how: str) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / f"{digest_of('a')}.penstock-piece"
    pieces.write(str(path), digest_of("a"), [memoryview(b"evil")])
    if how == "of another user":
        os.chown(path, OTHER, OTHER)
    else:
        path.chmod(0o666)
    assert Cache(tmp_path, 1000).get("a", lambda: b"mine") == b"mine"
    assert Cache(tmp_path, 1000).get("a", never) == b"mine"
    assert path.stat().st_uid == 0 and mode(path) == 0o600


MEMBER = """
import os, sys
from penstock._cache.cache import Cache
def make():
    print("made")
    return b"the piece"
os.umask(0o077)
print(bytes(Cache(sys.argv[1], 1000, shared=True).get("a", make)))
"""


def test_members_of_a_group_share_a_folder_and_others_cannot_read_it(open_to_all: Path) -> None:
    folder = open_to_all / "team"
    folder.mkdir()
    os.chown(folder, 0, TEAM)
    folder.chmod(0o2775)

    def run(user: int, group: int, code: str = MEMBER) -> str:
        command = as_user(user, group, sys.executable, "-c", code, str(folder / "cache"))
        ran = subprocess.run(command, capture_output=True, text=True)
        return ran.stdout + ran.stderr

    assert run(50001, TEAM) == "made\nb'the piece'\n"
    assert run(50002, TEAM) == "b'the piece'\n"
    assert Cache(folder / "cache", 1000, shared=True).get("a", never) == b"the piece"
    assert mode(folder / "cache") == 0o2770
    assert {mode(path) for path in (folder / "cache").iterdir()} == {0o660}
    assert {path.stat().st_gid for path in (folder / "cache").iterdir()} == {TEAM}
    look = "import os, sys\ntry: os.listdir(sys.argv[1])\nexcept PermissionError: print('refused')"
    assert run(50003, 50003, look) == "refused\n"
    with pytest.raises(PermissionError, match="so other users could change your samples"):
        Cache(folder / "cache", 1000)
    (folder / "cache").chmod(0o2777)
    with pytest.raises(PermissionError, match="all users may write it"):
        Cache(folder / "cache", 1000, shared=True)


def test_a_team_does_not_take_pieces_of_others(open_to_all: Path) -> None:
    folder = open_to_all / "team"
    folder.mkdir()
    os.chown(folder, 0, TEAM)
    folder.chmod(0o2770)
    path = folder / f"{digest_of('a')}.penstock-piece"
    pieces.write(str(path), digest_of("a"), [memoryview(b"evil")])
    os.chown(path, OTHER, OTHER)
    assert Cache(folder, 1000, shared=True).get("a", lambda: b"mine") == b"mine"


def test_where_users_cannot_be_told_apart_nothing_is_trusted(open_to_all: Path) -> None:
    """In a user namespace that knows nobody, this user and all others have the same number."""
    folder = open_to_all / "mine"
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER, OTHER)
    found = []
    for is_apart in (False, True):
        pid = os.fork()
        if not pid:
            try:
                os.setgroups([])
                os.setresgid(OTHER, OTHER, OTHER)
                os.setresuid(OTHER, OTHER, OTHER)
                if is_apart and ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
                    os._exit(2)
                trust._strangers.cache_clear()
                Cache(folder, 1000)
                os._exit(0)
            except PermissionError:
                os._exit(1)
            finally:
                os._exit(3)
        found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    if found[1] == 2:
        pytest.skip("no user namespaces here")
    assert found == [0, 1]


# Indexes, and files that the user names.


def made(content: bytes, file: AnyFile) -> dict[str, np.ndarray[Any, Any]]:
    return {"of": np.frombuffer(content, np.uint8)}


def of(index: Any) -> bytes:
    return bytes(index["of"])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_an_index_that_another_user_has_put_beside_my_file_is_not_used(open_to_all: Path, cache: Path) -> None:
    data = open_to_all / "data.bin"
    data.write_bytes(b"12345")
    cached(File(str(data)), "test-1", partial(made, b"evil"))
    (planted,) = open_to_all.glob(".*")
    os.chown(planted, OTHER, OTHER)
    for _ in range(2):
        assert of(cached(File(str(data)), "test-1", partial(made, b"mine"))) == b"mine"
    assert planted.stat().st_uid == OTHER, "it is theirs, and left alone"
    (kept,) = cache.iterdir()
    assert (mode(cache), mode(kept)) == (0o700, 0o600)
    assert of(cached(File(str(data)), "test-1", partial(made, b"not made again"))) == b"mine"


@pytest.mark.parametrize("way", ["its owner", "a team"])
def test_an_index_of_those_who_could_change_the_file_is_used(open_to_all: Path, cache: Path, way: str) -> None:
    folder = open_to_all / "data"
    folder.mkdir()
    (folder / "data.bin").write_bytes(b"12345")
    cached(File(str(folder / "data.bin")), "test-1", partial(made, b"theirs"))
    (planted,) = folder.glob(".*")
    if way == "a team":
        os.chown(folder, 0, TEAM)
        folder.chmod(0o2775)
        os.chown(planted, OTHER, TEAM)
    else:
        for path in (folder, folder / "data.bin", planted):
            os.chown(path, OTHER, OTHER)
    assert of(cached(File(str(folder / "data.bin")), "test-1", partial(made, b"mine"))) == b"theirs"


@pytest.mark.parametrize("mask", [0, 0o077], ids=oct)
@pytest.mark.parametrize(("of_file", "of_index"), [(0o600, 0o600), (0o644, 0o644), (0o660, 0o640), (0o777, 0o644)])
def test_who_may_read_a_file_may_read_its_index(tmp_path: Path, mask: int, of_file: int, of_index: int) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"12345")
    data.chmod(of_file)
    with umask(mask):
        cached(File(str(data)), "test-1", partial(made, b"mine"))
    (index,) = tmp_path.glob(".*")
    assert mode(index) == of_index


def test_an_index_in_a_cache_folder_of_another_user_is_not_used(tmp_path: Path, cache: Path) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"12345")
    (tmp_path / ".data.bin.penstock-test-1").mkdir()  # none can be written beside the file
    assert of(cached(File(str(data)), "test-1", partial(made, b"evil"))) == b"evil"
    assert of(cached(File(str(data)), "test-1", partial(made, b"other"))) == b"evil"
    os.chown(cache, OTHER, OTHER)
    with pytest.warns(RuntimeWarning, match="is not kept in .*: it belongs to nobody.* Set PENSTOCK_CACHE"):
        assert of(cached(File(str(data)), "test-1", partial(made, b"mine"))) == b"mine"


def test_a_file_beside_mine_of_another_user_is_not_taken_for_its_index(open_to_all: Path) -> None:
    data = open_to_all / "data.tar"
    data.write_bytes(b"12345")
    (open_to_all / "penstock.index").write_bytes(b"67")
    assert neighbour(File(str(data)), "penstock.index") is not None
    os.chown(open_to_all / "penstock.index", OTHER, OTHER)
    assert neighbour(File(str(data)), "penstock.index") is None


def test_a_record_file_has_no_index_of_another_user(open_to_all: Path) -> None:
    with RecordWriter(open_to_all / "data.rec") as writer:
        writer.write(b"first")
        writer.write(b"second")
    index = open_to_all / "data.idx"
    lines = index.read_text().splitlines()
    index.write_text(f"1\t{lines[0].split()[1]}\n0\t{lines[1].split()[1]}\n")  # the ids are exchanged
    assert RecordFile(open_to_all / "data.rec").ids.tolist() == [1, 0]
    os.chown(index, OTHER, OTHER)
    assert RecordFile(open_to_all / "data.rec").ids.tolist() == [0, 1]


@pytest.mark.parametrize("plant", ["link", "file", "pipe"])
def test_a_trace_falls_into_no_trap_in_a_folder_of_all(open_to_all: Path, tmp_path: Path, plant: str) -> None:
    victim, path = tmp_path / "victim", open_to_all / "trace.json"
    victim.write_text("important")
    call = {
        "link": f"symlink('{victim}', '{path}')",
        "pipe": f"mkfifo('{path}')",
        "file": f"mknod('{path}', 0o666)",
    }
    code = f"import os; os.umask(0); os.{call[plant]}"
    subprocess.run(as_user(OTHER, OTHER, sys.executable, "-c", code), check=True)
    said = said_by(f"from penstock.stats._trace import Trace; Trace('{path}')")
    assert re.search(r"(Error|Untrusted): .*trace\.json", said.splitlines()[-1])
    assert victim.read_text() == "important"


def test_a_trace_goes_where_the_user_says(open_to_all: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("trace.json")
    with umask(0o022), Trace(tmp_path / "link"):
        pass
    assert mode(tmp_path / "trace.json") == 0o644  # a file that the user names: the umask decides
    for _ in range(2):
        Trace(open_to_all / "mine.json").close()
    assert (open_to_all / "mine.json").stat().st_size > 10
