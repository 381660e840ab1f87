"""Files that are 20 ms away beside the same files on the local disk: `python -m bench.distance`.

A server in a process of its own waits for 20 ms before it answers a request. Both loaders have 2 workers and read in
a block order; the remote one begins each round with an empty cache. There are two rates, each the median over rounds
in which both loaders run in turn:

- once it runs: in the epochs after the first, when the cache has all pieces;
- in the first epoch, from the first batch to the last, while the files are downloaded.

On a machine of few cores the server and the downloads take processor time from the workers. So each round also
measures what a plain program gets that only downloads the same ranges, with obstore and as many requests at a time,
and drops the bytes. No loader is faster than that, or than with local files: the first epoch is compared with the
smaller of these two. Where each of the two keeps all cores busy, both together take the sum of their times: the rate
that follows from that is printed, too. Nothing is required of the first epoch: on two cores, local rows, the server
and a bare download take all processor time there is, before a byte is checked or written to disk.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import obstore

import penstock
from bench.run import machine
from penstock._cache.scout import THREADS
from penstock.formats import Parquet, Tar, Tokens
from penstock.image import Transform

LATENCY = 0.020  # seconds
SECONDS = 1.5  # for the epochs after the first
REQUIRED, FIRST = 0.9, 1.0  # of the local rate, once it runs; seconds to the first batch


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(LATENCY)
        path = self.folder / self.path.lstrip("/")
        size = path.stat().st_size
        first, last = 0, size - 1
        if "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        last = min(last, size - 1)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            while self.command == "GET" and first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)

    def log_message(self, *args: Any) -> None:
        pass


def serve(folder: Path, port: Any) -> None:
    Handler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_port)
    server.serve_forever()


def write_tokens(path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 300_000_000, np.uint16)
    ids.tofile(path)


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    rows, length = 300_000, 1024
    values = np.random.default_rng(0).integers(0, 50_000, rows * length, np.int32)
    lists = pa.ListArray.from_arrays(np.arange(0, rows * length + 1, length, dtype=np.int32), values)
    pa.parquet.write_table(pa.table({"ids": lists}), path, row_group_size=1000)


def write_tar(path: Path) -> None:
    import cv2

    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for number in range(8_000):
            noise = rng.integers(0, 255, (30, 40, 3), np.uint8)
            picture = cv2.resize(noise, (400, 300), interpolation=cv2.INTER_CUBIC)
            for name, data in (("jpg", cv2.imencode(".jpg", picture)[1].tobytes()), ("cls", b"1")):
                info = tarfile.TarInfo(f"{number:06}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


BATCH = 64
KINDS: dict[str, tuple[str, Callable[[Path], None], Callable[..., Any]]] = {
    "tokens": ("ids.bin", write_tokens, partial(Tokens, dtype="uint16", length=1025, stride=1024)),
    "parquet": ("ids.parquet", write_parquet, Parquet),
    "tar": ("images.tar", write_tar, partial(Tar, decode={"jpg": Transform(resize=256, crop=224, dtype="uint8")})),
}


class Round(NamedTuple):
    """Seconds from the making of the dataset to the first batch; batches/s in the first epoch, and after it."""

    began: float
    first: float
    later: float


def round_of(opened: Callable[[], Any], step: float) -> Round:
    begun = time.perf_counter()
    data = opened()
    given: dict[str, Any] = {"batch_size": BATCH, "shuffle": "blocks", "seed": 1, "num_workers": 2}
    with penstock.DataLoader(data, multiprocessing_context="forkserver", **given) as loader:
        batches = iter(loader)
        next(batches)
        start, count = time.perf_counter(), 0
        began = start - begun
        for _ in batches:
            count += 1
            time.sleep(step)
        first = count / (time.perf_counter() - start)
        start, count = time.perf_counter(), 0
        while time.perf_counter() < start + SECONDS:
            if next(batches, None) is None:
                batches = iter(loader)
                continue
            count += 1
            time.sleep(step)
        return Round(began, first, count / (time.perf_counter() - start))


def downloaded(url: str, name: str, ranges: list[tuple[int, int]], batches: float) -> float:
    """Batches in a second of a program that downloads the ranges of so many batches, and does nothing else."""
    store = obstore.store.HTTPStore(url, client_options={"allow_http": True})
    begun = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda some: len(store.get_range(name, start=some[0], end=some[1])), ranges):
            pass
    return batches / (time.perf_counter() - begun)


def ranges_of(data: Any) -> list[tuple[int, int]]:
    """The ranges of the only file of a dataset that an epoch downloads."""
    (file,) = data.files
    return [(piece.start, piece.stop) for piece in file.pieces_of(0, file.size)]


def median(values: Any) -> float:
    return float(statistics.median(values))


class Result(NamedTuple):
    """One round of local files, one of remote ones, and batches/s that a plain program could download."""

    local: Round
    remote: Round
    bare: float


def compare(kind: str, results: list[Result]) -> list[str]:
    """Prints the medians of the rounds. Returns what is below the requirements."""

    def ratio(of: Callable[[Result], float]) -> tuple[float, str]:
        found = [of(result) for result in results]
        return median(found), f"{median(found):.2f} ({min(found):.2f}-{max(found):.2f})"

    later, later_text = ratio(lambda result: result.remote.later / result.local.later)
    _, first_text = ratio(lambda result: result.remote.first / min(result.local.first, result.bare))
    local, remote = (Round(*map(median, zip(*(result[at] for result in results), strict=True))) for at in (0, 1))
    bare = median(result.bare for result in results)
    print(
        f"{kind} (load {os.getloadavg()[0]:.1f}), batches/s:\n"
        f"  once it runs:  {later_text} of local: {remote.later:,.0f} and {local.later:,.0f}\n"
        f"  first epoch:   {first_text} of what is possible: {remote.first:,.0f}; local {local.first:,.0f}, a bare "
        f"download {bare:,.0f}, both on the same cores {1 / (1 / local.first + 1 / bare):,.0f}\n"
        f"  first batch:   {remote.began:.2f} s",
        flush=True,
    )
    return [f"{kind} {later:.2f} once it runs"] * (later < REQUIRED) + [
        f"{kind} first batch {remote.began:.2f} s"
    ] * (remote.began > FIRST)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.distance", description=__doc__)
    options.add_argument("--only", default=",".join(KINDS))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--step", type=float, default=0.0, help="seconds of a training step that computes nothing")
    options.add_argument("--data", type=Path, help="keep and reuse the files in this folder")
    args = options.parse_args()
    print("\n".join(machine()), flush=True)
    missed = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        folder = args.data or Path(temporary)
        folder.mkdir(exist_ok=True)
        os.environ["PENSTOCK_CACHE"] = f"{temporary}/indexes"
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(folder, theirs), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{ours.recv()}"
        for kind in args.only.split(","):
            name, write, opened = KINDS[kind]
            if not (folder / name).exists():
                write(folder / name)
            results = []
            opened(folder / name)  # its index is made
            data = opened(f"{url}/{name}")
            download = partial(downloaded, url, name, ranges_of(data), len(data) / BATCH)
            for number in range(args.rounds):
                cache = Path(temporary, f"cache-{kind}-{number}")
                turns: dict[str, Callable[[], Any]] = {
                    "local": partial(round_of, partial(opened, folder / name), args.step),
                    "remote": partial(round_of, partial(opened, f"{url}/{name}", cache=cache), args.step),
                    "bare": download,
                }
                results.append(Result(**{each: turns[each]() for each in sorted(turns, reverse=bool(number % 2))}))
                shutil.rmtree(cache, ignore_errors=True)
            missed += compare(kind, results)
        server.terminate()
    print("missed: " + ("; ".join(missed) or "none"))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
