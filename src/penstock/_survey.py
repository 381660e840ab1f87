"""Reads a dataset whose samples are numbers into an array. The array is cached if the dataset can be identified."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import is_worker_process
from penstock._files.index import computed, keep_computed, with_progress_bar
from penstock._system.limits import usable_cpus
from penstock._wire.pickling import dumps
from penstock.backends._base import DEFAULT
from penstock.loader import DataLoader
from penstock.source._nested import fingerprint_of, leaves_of, pass_of
from penstock.source._stages import MappedDataset, SameKeys

_ALONE = 0.5  # seconds; a survey that takes longer gets workers
_AT_ONCE = 64  # samples in a batch while the survey has no workers, and at least that many with them
_MOST_AT_ONCE = 4096


class _Unordered(SameKeys[Any]):
    """Lets a sampler choose the keys, even if the dataset is a mixture, which has its own order."""

    __order__ = None
    __mixture__ = None


def survey(measured: MappedDataset[Any], dtype: Any, what: str) -> NDArray[Any]:
    """Returns all samples of this dataset in one array. Each sample must be a number."""
    name = identity_of(measured)
    kept = None if name is None else computed(name, "survey-1")
    once = pass_of(measured)
    n = len(measured) if once is None else once
    if kept is not None and kept["found"].shape == (n,) and kept["found"].dtype == dtype:
        return kept["found"]
    found = np.empty(n, dtype)
    at = 0
    for values in _read(measured, n, what):
        found[at : at + len(values)] = values
        at += len(values)
    if name is not None:
        keep_computed(name, "survey-1", {"found": found})
    return found


def _read(measured: MappedDataset[Any], n: int, what: str) -> Iterator[NDArray[Any]]:
    read, begun = 0, time.monotonic()
    cpus = 1 if is_worker_process() else usable_cpus()
    # With a seed, the random numbers of a sample depend only on its key, not on who reads it.
    data = _Unordered(measured)
    with DataLoader(data, sampler=range(n), batch_size=_AT_ONCE, seed=0, shard=(0, 1)) as loader:
        for values in loader if cpus == 1 else _until(loader, begun + _ALONE):
            read += len(values)
            yield values
    if read == n:
        return
    rate = read / (time.monotonic() - begun)
    size = min(_MOST_AT_ONCE, max(_AT_ONCE, int(rate / 10)))
    rest: DataLoader[Any] = DataLoader(
        data, sampler=range(read, n), batch_size=size, num_workers=cpus, backend=DEFAULT, seed=0, shard=(0, 1)
    )
    with rest:
        yield from with_progress_bar(rest, len(rest), what)


def _until(loader: Any, stop: float) -> Iterator[Any]:
    for batch in loader:
        yield batch
        if time.monotonic() > stop:
            return


def identity_of(measured: MappedDataset[Any]) -> str | None:
    """Returns a digest that identifies a dataset's samples, or None if they cannot be identified.

    The digest covers the dataset's files, the pickled dataset with its functions, and the source files of these
    functions. It does not cover other modules that the source files import.
    """
    if fingerprint_of(measured) is None:
        return None
    files: list[Any] = []
    for leaf in leaves_of(measured):
        its = getattr(leaf, "files", None)
        if isinstance(its, list) and its and all(hasattr(file, "identity") for file in its):
            if not all(file.identity.lasts for file in its):
                return None
            files.append([tuple(file.identity) for file in its])
        else:
            files.append(fingerprint_of(leaf))
    modules: set[str] = set()

    def note(obj: Any, otherwise: Callable[[Any], Any]) -> Any:
        if isinstance(obj, (FunctionType, BuiltinFunctionType, type)):
            modules.add(getattr(obj, "__module__", None) or "")
        return otherwise(obj)

    buffers: list[Any] = []
    try:
        code = dumps(measured, buffers, override=note)
        if "__main__" in modules:  # in a program or a notebook: its functions by value, with the globals they use
            buffers.clear()
            code = dumps(measured, buffers, by_value=True)
        sources = [_source(name) for name in sorted(modules)]
    except Exception:  # something in it cannot be pickled
        return None
    digest = hashlib.sha256(repr((files, sources, np.__version__)).encode())
    digest.update(code)
    for buffer in buffers:
        digest.update(buffer.raw())
    return digest.hexdigest()[:32]


def _source(module: str) -> str:
    path = getattr(sys.modules.get(module), "__file__", None)
    with suppress(OSError, TypeError), open(path, "rb") as file:  # type: ignore[arg-type]
        return hashlib.sha256(file.read()).hexdigest()
    return module
