"""A folder for the files of one attack."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@contextmanager
def files(contents: Mapping[str, bytes]) -> Iterator[Path]:
    """Files with these names and contents, for the time of the block. What else comes into the folder is deleted."""
    place, before = folder(), os.environ.get("PENSTOCK_CACHE")
    os.environ["PENSTOCK_CACHE"] = f"{place}/cache"
    try:
        for name, content in contents.items():
            (place / name).write_bytes(content)
        yield place
    finally:
        for entry in os.scandir(place):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
        if before is None:
            del os.environ["PENSTOCK_CACHE"]
        else:
            os.environ["PENSTOCK_CACHE"] = before


@contextmanager
def alone() -> Iterator[None]:
    """As if no other process were on the machine: to look at all of them takes longer than all else."""
    from penstock._system import trust

    before, trust.processes = trust.processes, lambda user: iter([os.getpid()])
    try:
        yield
    finally:
        trust.processes = before


def samples(dataset: object, errors: tuple[type[Exception], ...], most: int = 64) -> int:
    """Reads samples from the beginning and the end, each of which may be an error; returns how many could be read."""
    count, found = len(dataset), 0  # type: ignore[arg-type]
    for key in sorted({*range(min(count, most)), *range(max(0, count - 8), count)}):
        try:
            dataset[key]  # type: ignore[index]
            found += 1
        except errors:
            pass
    return found
