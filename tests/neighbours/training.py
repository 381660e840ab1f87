"""A training run: epoch after epoch of remote Parquet and tars, with a cache, shared blocks and two workers; and of
local files in a folder where all users may put theirs, such as indexes.

Prints a line of JSON for each epoch, with the digest of all its batches, until its standard input ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.formats import JsonLines, Parquet, Tar
from penstock.records import RecordFile

PARQUET = [f"part-{number}.parquet" for number in range(4)]
TARS = [f"shard-{number}.tar" for number in range(3)]
LOCAL = {"beside.tar": Tar, "beside.jsonl": JsonLines, "beside.rec": RecordFile}
"""Files that have their indexes beside them."""


def datasets(where: str, **more: Any) -> list[Any]:
    return [
        Parquet([f"{where}/{name}" for name in PARQUET], **more),
        Tar([f"{where}/{name}" for name in TARS], **more),
    ]


def local_datasets(folder: str) -> list[Any]:
    return [opened(f"{folder}/{name}") for name, opened in LOCAL.items()]


def digest(dataset: Any, told: Path | None = None, **more: Any) -> str:
    """The digest of all batches. The numbers of the workers are written to the file `told`, and again after each."""
    hashed = hashlib.sha256()
    with penstock.DataLoader(dataset, 16, shuffle=True, seed=11, **more) as loader:
        for batch in _telling(loader, told):
            columns = batch if isinstance(batch, dict) else dict(enumerate(batch))
            for name in sorted(columns):
                value = columns[name]
                hashed.update(value.data if isinstance(value, np.ndarray) else repr(value).encode())
    return hashed.hexdigest()


def _telling(loader: penstock.DataLoader[Any], told: Path | None) -> Iterator[Any]:
    batches = iter(loader)
    for batch in chain([None], batches):
        if told is not None:
            told.write_text(" ".join(str(worker.pid) for worker in loader.workers))
        if batch is not None:
            yield batch


def main(where: str, local: str, cache: str, cache_bytes: int, told: Path) -> None:
    warned = list[str]()
    warnings.showwarning = lambda message, *_, **__: warned.append(str(message))  # type: ignore[assignment]
    print(json.dumps({"table": datasets(where)[0]._identity()}), flush=True)  # what neighbours might know
    epoch = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        begun = time.monotonic()
        # New ones each time: files are found, and indexes read, again.
        made = datasets(where, cache=cache, cache_bytes=cache_bytes)
        found = [digest(each, told, num_workers=2, retries=10**6) for each in made]
        found += map(digest, local_datasets(local))
        print(json.dumps({"epoch": epoch, "digest": found, "took": time.monotonic() - begun}), flush=True)
        epoch += 1
    print(json.dumps({"warned": warned, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), Path(sys.argv[5]))
