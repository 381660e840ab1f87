"""Another program of the same user. He is trusted with the data, but he crashes, is stopped, and leaves a mess.

    python -m tests.neighbours.sibling WORKERS FOLDER small|large

He uses the same cache (FOLDER/cache), and is stopped while he has its locks; stops and kills workers of the run;
leaves wrong pieces, agendas and pages; deletes pieces; leaves damaged indexes beside files (in FOLDER) and in the
folder of indexes (FOLDER/kept), or deletes them; and fills the disk, if that is small. Prints what he did.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.neighbours.stranger import memfd

done: Counter[str] = Counter()

HOLDER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
for byte in [0, *map(int, sys.argv[2:])]:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0))
print("locked", flush=True)
import time
time.sleep(60)
"""


def pieces(cache: str) -> list[str]:
    with suppress(OSError):
        return [name for name in os.listdir(cache) if name.endswith(".penstock-piece")]
    return []


def hold_locks(cache: str, rng: random.Random, seconds: float) -> None:
    """A program that shares the cache, and is stopped while it has the lock of the folder and of some pieces."""
    digests = [name.partition(".")[0] for name in rng.sample(pieces(cache), min(3, len(pieces(cache))))]
    bytes_ = [str(1 + int(digest[:15], 16)) for digest in digests]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, f"{cache}/penstock-cache", *bytes_], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    with holder:
        try:
            if holder.stdout.readline():
                holder.send_signal(signal.SIGSTOP)
                time.sleep(seconds)
                done["stopped with locks"] += 1
        finally:
            holder.kill()


def mess(cache: str, rng: random.Random) -> None:
    """Wrong pieces, half pieces, agendas of nobody; and pieces that are gone."""
    names = pieces(cache)
    with suppress(OSError):
        if names:
            os.unlink(f"{cache}/{rng.choice(names)}")
            wrong = f"{cache}/{rng.choice(names)}"
            with open(f"{wrong}.new", "wb") as file:
                file.write(rng.randbytes(10_000))
            os.replace(f"{wrong}.new", wrong)  # never in place: others have it mapped
        for name in (
            f"{rng.getrandbits(128):032x}.penstock-part",
            f"1-{rng.getrandbits(32):08x}.penstock-agenda",
        ):
            with open(f"{cache}/{name}", "wb") as file:
                file.write(rng.randbytes(100))
        done["mess"] += 1


def spoil_indexes(folders: list[str], rng: random.Random) -> None:
    """Indexes that are cut off, damaged, empty, of another file, no files at all, or gone."""
    with suppress(OSError):
        found = [f"{folder}/{name}" for folder in folders for name in os.listdir(folder) if ".penstock-" in name]
        mine = [path for path in found if os.lstat(path).st_uid == os.getuid()]
        if not mine:
            return
        path, draft = rng.choice(mine), f"{rng.choice(mine)}.sibling"
        whole = [
            each for each in mine if os.path.isfile(each)
        ]  # not the pipes from before: he would wait for a writer
        content = Path(rng.choice(whole)).read_bytes() if whole else b""
        way = rng.choice(("gone", "cut off", "damaged", "empty", "of another", "link", "pipe"))
        if way == "gone":
            os.unlink(path)
        elif way == "link":
            os.symlink("/nowhere", draft)
        elif way == "pipe":
            os.mkfifo(draft, 0o600)
        else:
            if way == "damaged" and content:
                content = bytearray(content)
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            Path(draft).write_bytes({"cut off": content[: len(content) // 2], "empty": b""}.get(way, content))
        if way != "gone":
            os.replace(draft, path)  # never in place: others have it mapped
        done[f"index {way}"] += 1


def strike(told: Path, rng: random.Random) -> None:
    """Stops or kills a worker of the run."""
    workers = list(map(int, told.read_text().split())) if told.exists() else []
    if not workers:
        return
    victim, kind = rng.choice(workers), rng.choice(("stop", "stop", "kill"))
    with suppress(ProcessLookupError):
        if kind == "kill":
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGSTOP)
            try:
                time.sleep(rng.random() * 0.3)
            finally:
                os.kill(victim, signal.SIGCONT)
        done[kind] += 1


def fill_disk(cache: str) -> None:
    """Takes all room that is left in the file system of the cache: a small one."""
    path = f"{os.path.dirname(cache)}/junk"
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        done["filled the disk"] += 1
        time.sleep(0.3)
    finally:
        with suppress(OSError):
            os.unlink(path)


def main(told: Path, folder: str, small: bool) -> None:
    cache = f"{folder}/cache"
    rng, stop = random.Random(5), list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    fds = [memfd(name, rng.randbytes(5000)) for name in ("penstock-loader", "penstock-block", "penstock-inventory-x")]
    print(json.dumps({"pid": os.getpid(), "planted": len(fds)}), flush=True)
    began, held = time.monotonic(), -5.0
    while not stop:
        strike(told, rng)
        mess(cache, rng)
        spoil_indexes([folder, f"{folder}/kept"], rng)
        if small and rng.random() < 0.1:
            fill_disk(cache)
        # At first for longer than is waited, as soon as there are pieces; then every five seconds for a second.
        if pieces(cache) and time.monotonic() - began > held + 5:
            hold_locks(cache, rng, 1.0 if held > 0 else 6.0)
            held = time.monotonic() - began
        time.sleep(rng.random() * 0.3)
    print(json.dumps({"done": done}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "small")
