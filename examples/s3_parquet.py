"""Trains on Parquet files in S3, is stopped in an epoch, and continues without downloading anything twice.

    python examples/s3_parquet.py                                # starts a server that speaks S3's protocol
    python examples/s3_parquet.py s3://my-bucket/some/folder     # a bucket of yours, with your credentials

It needs `pip install "penstock[parquet,remote]"`, and `"moto[server]"` for the server. It takes about 20 seconds. The
program writes 8 files of 5,000 rows, and learns from them by how much a house sells. It prints what was downloaded,
and what came from the cache.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import penstock
from penstock.formats import Parquet

FILES, ROWS, COLUMNS, STOP = 8, 5_000, 30, 60
BATCH = 250  # an epoch has 160 steps


@contextmanager
def bucket_of_moto() -> Iterator[str]:
    """Starts moto's server, and makes a bucket there. The environment names both, as for a MinIO server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would print each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        import boto3

        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield "s3://bucket/houses"
    finally:
        server.stop()


def write_files(url: str) -> int:
    """Uploads the files with pyarrow and obstore, as a job of yours would have done. Returns their bytes."""
    from obstore.store import S3Store

    bucket, _, folder = url.removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix=folder, client_options={"allow_http": True})
    rng = np.random.default_rng(0)
    truth = rng.normal(size=COLUMNS).astype(np.float32)
    written = 0
    for number in range(FILES):
        features = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
        price = features @ truth + rng.normal(0, 0.1, ROWS).astype(np.float32)
        table = pa.table(
            {
                "features": pa.FixedSizeListArray.from_arrays(features.ravel(), COLUMNS),
                "price": price,
                "description": [f"a house that nobody reads about, number {row}" for row in range(ROWS)],
            }
        )
        file = pa.BufferOutputStream()
        pa.parquet.write_table(table, file, row_group_size=500)
        written += file.tell()
        store.put(f"part-{number}.parquet", file.getvalue().to_pybytes())
    return written


def make_loader(url: str, cache: str) -> penstock.DataLoader[Any]:
    houses = Parquet(url, columns=["features", "price"], cache=cache)  # the descriptions are not downloaded
    return penstock.DataLoader(houses, batch_size=BATCH, shuffle="blocks", seed=0, num_workers=2)


def train(loader: penstock.DataLoader[Any], weights: Any, steps: int) -> list[float]:
    """Returns the loss of each of the next steps of this epoch."""
    losses: list[float] = []
    for batch in loader:
        error = batch["features"] @ weights - batch["price"]
        weights -= 0.05 * batch["features"].T @ error / len(error)
        losses.append(float(np.square(error).mean()))
        if len(losses) == steps:
            break
    return losses


def traffic(loader: penstock.DataLoader[Any]) -> str:
    cache = loader.stats().life.cache
    assert cache is not None
    return f"{cache.nbytes / 1e6:.1f} MB downloaded in {cache.requests} requests"


def main(url: str) -> None:
    print(f"wrote {FILES} files to {url}, {write_files(url) / 1e6:.1f} MB")
    weights = np.zeros(COLUMNS, np.float32)
    with tempfile.TemporaryDirectory() as cache:
        with make_loader(url, cache) as loader:
            print(f"{loader.dataset}: {len(loader)} steps in an epoch")
            losses = train(loader, weights, STOP)
            saved = json.dumps(loader.state_dict())
            print(f"{len(losses)} steps: loss {losses[0]:.3f} -> {losses[-1]:.4f}; {traffic(loader)}")
            print(f"The state of the loader has {len(saved)} bytes.")

        # Here the machine may be another one. With an empty cache, it would download what it needs.
        with make_loader(url, cache) as loader:
            loader.load_state_dict(json.loads(saved))
            losses = train(loader, weights, -1)
            print(f"{len(losses)} further steps: loss {losses[0]:.4f} -> {losses[-1]:.4f}; {traffic(loader)}")
            losses = train(loader, weights, -1)
            print(f"the second epoch: loss {losses[0]:.4f} -> {losses[-1]:.4f}; {traffic(loader)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with bucket_of_moto() as url:
            main(url)
