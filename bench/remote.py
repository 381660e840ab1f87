"""`python -m bench.remote`: a million objects are listed, and the footers of 10,000 Parquet files are read.

The store is a process of its own that speaks as much of S3's protocol as this takes, and answers each request after
20 ms. Its listing has names like those of shards; its Parquet files are all the same. Printed are seconds, requests,
and the requests that were under way at once on average. The processor time is that of this process: on a busy machine
it is the figure to look at.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import time
from bisect import bisect_right
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from penstock._measure.cached import outside
from penstock._remote.listing import listed
from penstock._remote.store import remotes
from penstock.formats import Parquet

LATENCY = 0.02
OBJECTS, FILES = 1_000_000, 10_000
STORAGE = {"access_key_id": "x", "secret_access_key": "x", "region": "us-east-1"}


def main() -> int:
    os.environ["PENSTOCK_CACHE"] = tempfile.mkdtemp(prefix="penstock-bench-")
    path = f"{os.environ['PENSTOCK_CACHE']}/some.parquet"
    columns = {f"column_{number}": np.arange(1000) + number for number in range(20)}
    pa.parquet.write_table(pa.table(columns), path, row_group_size=200)
    with open(path, "rb") as file:
        content = file.read()
    ours, theirs = multiprocessing.Pipe()
    store = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, content), daemon=True)
    store.start()
    storage = {**STORAGE, "endpoint": f"http://127.0.0.1:{ours.recv()}"}
    print(f"{LATENCY * 1000:.0f} ms for each request, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    try:
        with measured(f"{OBJECTS:,} objects listed"):
            ((remote, key),) = remotes(["s3://bucket/many"], storage)
            assert sum(map(len, listed(remote, key))) == OBJECTS
        with measured(f"{FILES:,} Parquet files opened by a pattern"):
            data = Parquet("s3://bucket/tables/*.parquet", storage=storage)
            assert len(data) == FILES * 1000
        begun = time.process_time()
        sent = pickle.dumps(data, 5)
        copy = pickle.loads(sent)
        print(f"sent to a worker: {len(sent) / 1e6:.0f} MB, {time.process_time() - begun:.1f} s of processor time")
        with measured("first row in a worker"):
            assert copy[5_000_000]["column_1"] == 1
    finally:
        store.kill()
        store.join()
    return 0


class measured:
    """Prints what the block took."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._begun = time.perf_counter(), time.process_time(), outside.requests

    def __exit__(self, *error: object) -> None:
        begun, used, requests = self._begun
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        requests = outside.requests - requests
        print(f"{self._what}: {seconds:.2f} s, {used:.2f} s of processor time, {requests:,} requests, "
              f"{requests * LATENCY / seconds:.1f} at once")  # fmt: skip


def serve(pipe: Connection, content: bytes) -> None:
    """The store, until the process is killed."""
    keys = {
        "many/": [f"many/shard-{number:07}.tar" for number in range(OBJECTS)],
        "tables/": [f"tables/part-{number:05}.parquet" for number in range(FILES)],
    }

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(LATENCY)
                writer.write(answer(head.decode(), keys, content))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(client, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def answer(head: str, keys: dict[str, list[str]], content: bytes) -> bytes:
    url = urlsplit(head.split(" ", 2)[1])
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    about = f'ETag: "x"\r\nLast-Modified: Tue, 17 Nov 2026 00:00:00 GMT\r\nContent-Length: {len(content)}\r\n'
    if "list-type" in asked:
        return listing(asked, keys, len(content))
    if unquote(url.path).split("/", 2)[2] + "/" in keys:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    found = re.search(r"range: bytes=(\d+)-(\d+)", head, re.IGNORECASE)
    if found is None:
        return f"HTTP/1.1 200 OK\r\n{about}\r\n".encode()
    part = content[int(found[1]) : int(found[2]) + 1]
    about = re.sub(r"Length: \d+", f"Length: {len(part)}", about)
    which = f"Content-Range: bytes {found[1]}-{found[2]}/{len(content)}\r\n"
    return f"HTTP/1.1 206 Partial Content\r\n{about}{which}\r\n".encode() + part


def listing(asked: dict[str, str], keys: dict[str, list[str]], size: int) -> bytes:
    names = keys[asked["prefix"]]
    first = bisect_right(names, asked.get("continuation-token") or asked.get("start-after", ""))
    page = names[first : first + 1000]
    more = first + 1000 < len(names)
    body = "".join(
        f"<Contents><Key>{name}</Key><LastModified>2026-11-17T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;x&quot;</ETag><Size>{size}</Size></Contents>"
        for name in page
    )
    token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
    about = f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>{token}"
    xml = f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>{about}{body}</ListBucketResult>'.encode()
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(xml)}\r\n\r\n".encode() + xml


if __name__ == "__main__":
    sys.exit(main())
