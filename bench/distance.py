"""Files that are 20 ms away beside the same files on the local disk: `python -m bench.distance`.

A server in a process of its own waits for 20 ms before it answers a request. Both loaders have 2 workers and read in
a block order; the remote one begins each round with an empty cache. A rate is that after the first second, while the
first epoch is read; the ratio is the median over pairs of rounds, in turn. The server and the downloads take
processor time from the workers on a machine of few cores, so that is printed as well: seconds of the server for each
second of the round.
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
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from bench.run import machine
from penstock.formats import Parquet, Tar, Tokens
from penstock.image import Transform

LATENCY = 0.020  # seconds
LEAD, SECONDS = 1.0, 2.0
REQUIRED, FIRST = 0.9, 1.0  # of the local rate; seconds to the first batch


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


def write_tokens(folder: Path) -> str:
    ids = np.random.default_rng(0).integers(0, 50_000, 300_000_000, np.uint16)
    ids.tofile(folder / "ids.bin")
    return "ids.bin"


def write_parquet(folder: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet

    rows, length = 300_000, 1024
    values = np.random.default_rng(0).integers(0, 50_000, rows * length, np.int32)
    lists = pa.ListArray.from_arrays(np.arange(0, rows * length + 1, length, dtype=np.int32), values)
    pa.parquet.write_table(pa.table({"ids": lists}), folder / "ids.parquet", row_group_size=1000)
    return "ids.parquet"


def write_tar(folder: Path) -> str:
    import cv2

    rng = np.random.default_rng(0)
    with tarfile.open(folder / "images.tar", "w") as tar:
        for number in range(8_000):
            noise = rng.integers(0, 255, (30, 40, 3), np.uint8)
            picture = cv2.resize(noise, (400, 300), interpolation=cv2.INTER_CUBIC)
            for name, data in (("jpg", cv2.imencode(".jpg", picture)[1].tobytes()), ("cls", b"1")):
                info = tarfile.TarInfo(f"{number:06}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return "images.tar"


KINDS: dict[str, tuple[Callable[[Path], str], Callable[..., Any], int]] = {
    "tokens": (write_tokens, partial(Tokens, dtype="uint16", length=1025, stride=1024), 64),
    "parquet": (write_parquet, Parquet, 64),
    "tar": (write_tar, partial(Tar, decode={"jpg": Transform(resize=256, crop=224, dtype="uint8")}), 64),
}


def round_of(opened: Callable[[], Any], batch: int, step: float) -> tuple[float, float]:
    """Seconds from the making of the dataset to the first batch, and batches in a second after the lead."""
    begun = time.perf_counter()
    data = opened()
    given: dict[str, Any] = {"batch_size": batch, "shuffle": "blocks", "seed": 1, "num_workers": 2}
    with penstock.DataLoader(data, multiprocessing_context="forkserver", **given) as loader:
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - begun
        for seconds in (LEAD, SECONDS):
            start, count = time.perf_counter(), 0
            while time.perf_counter() < start + seconds:
                if next(batches, None) is None:
                    batches = iter(loader)
                    continue
                count += 1
                time.sleep(step)
            rate = count / (time.perf_counter() - start)
        return first, rate


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.distance", description=__doc__)
    options.add_argument("--only", default=",".join(KINDS))
    options.add_argument("--rounds", type=int, default=5)
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
            write, opened, batch = KINDS[kind]
            names = {"tokens": "ids.bin", "parquet": "ids.parquet", "tar": "images.tar"}
            name = names[kind] if (folder / names[kind]).exists() else write(folder)
            opened(folder / name), opened(f"{url}/{name}")  # the indexes are made
            ratios, firsts, rates, used = [], [], [], []
            for number in range(args.rounds):
                cache = Path(temporary, f"cache-{kind}-{number}")
                before, begun = cpu_of(server.pid or 0), time.perf_counter()
                turns = {
                    "local": partial(round_of, partial(opened, folder / name), batch, args.step),
                    "remote": partial(round_of, partial(opened, f"{url}/{name}", cache=cache), batch, args.step),
                }
                found = {each: turns[each]() for each in sorted(turns, reverse=bool(number % 2))}
                used.append((cpu_of(server.pid or 0) - before) / (time.perf_counter() - begun) * 2)
                ratios.append(found["remote"][1] / found["local"][1])
                firsts.append(found["remote"][0])
                rates.append((found["local"][1], found["remote"][1]))
                shutil.rmtree(cache, ignore_errors=True)
            local, remote = (statistics.median(each) for each in zip(*rates, strict=True))
            ratio, first = statistics.median(ratios), statistics.median(firsts)
            print(
                f"{kind}: {ratio:.2f} of local ({min(ratios):.2f}-{max(ratios):.2f}); {local:,.0f} and {remote:,.0f} "
                f"batches/s; first batch {first:.2f} s; the server takes {statistics.median(used):.2f} cores; load "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )
            missed += [f"{kind} {ratio:.2f}"] * (ratio < REQUIRED) + [f"{kind} {first:.2f} s"] * (first > FIRST)
        server.terminate()
    print("missed: " + ("; ".join(missed) or "none"))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
