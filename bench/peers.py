"""Adapters: each opens one loader over a workload and gives an endless, shuffled stream of its batches.

Settings are the best found for each peer on the machine of the first results file; if a peer has several
modes, a comment gives the reason for the choice. All workers are running before the clock starts.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from bench import images, mxnet_peer, ray_peer
from bench.workloads import Workload

Stream = AbstractContextManager[Iterator[Any]]
Open = Callable[[Workload, Any], Stream]

# Rows where grain's threads are 3x as fast as its processes, or more; its processes end with each epoch.
GRAIN_THREADS = {"images", "dict20", "epoch_boundary"}
SPDL_PROCESSES = {"python", "epoch_boundary"}


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


# The same for torch, torchdata and penstock, whose default is 2. Chosen because torch was a few per cent faster
# with it on most rows; penstock gains too where steps are small.
PREFETCH_FACTOR = 4


@contextmanager
def penstock_stream(workload: Workload, dataset: Any, **given: Any) -> Iterator[Iterator[Any]]:
    import penstock

    source = penstock.ArrayDataset(dataset.map) if workload.arrays else dataset
    if workload.jpegs:
        source = images.penstock_images(dataset)
    loader = penstock.DataLoader(
        source,
        batch_size=workload.batch_size,
        shuffle=True,
        seed=0,
        drop_last=True,
        **{
            "num_workers": workload.workers,
            "prefetch_factor": PREFETCH_FACTOR,
            "backend": "thread" if workload.threads else "process",
            **given,
        },
    )
    with loader, closing(endless(loader)) as stream:
        yield stream


@contextmanager
def penstock_ray_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """penstock's workers on the cluster of `bench.ray`, one on each node."""
    options = {"num_cpus": 0, "resources": {ray_peer.PLACE: 1}, "patience": 60}
    with (
        ray_peer.connected(),
        penstock_stream(workload, dataset, backend="ray", ray_options=options) as stream,
    ):
        yield stream


@contextmanager
def torch_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    from torch.utils.data import DataLoader

    with closing(endless(DataLoader(dataset, **_torch_options(workload)))) as stream:
        yield stream


@contextmanager
def penstock_torch_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """penstock.torch with torch's semantics, as after a change of the import only."""
    from penstock.torch import DataLoader

    with closing(endless(DataLoader(dataset, **_torch_options(workload)))) as stream:
        yield stream


@contextmanager
def penstock_torch_seed_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """penstock.torch with penstock's own semantics."""
    from penstock.torch import DataLoader

    with closing(endless(DataLoader(dataset, seed=0, **_torch_options(workload)))) as stream:
        yield stream


@contextmanager
def torch_own_collate_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """torch with a collate function that knows that `__getitems__` already returned the batch."""
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, collate_fn=torch.from_numpy, **_torch_options(workload))
    with closing(endless(loader)) as stream:
        yield stream


@contextmanager
def torchdata_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    # By default it takes a snapshot at every step; every 1,000 steps is cheaper, and its documentation allows it.
    loader = StatefulDataLoader(dataset, snapshot_every_n_steps=1000, **_torch_options(workload))
    with closing(endless(loader)) as stream:
        yield stream


def _torch_options(workload: Workload) -> dict[str, Any]:
    return {
        "batch_size": workload.batch_size,
        "shuffle": True,
        "drop_last": True,
        "num_workers": workload.workers,
        "persistent_workers": workload.persistent,
        "prefetch_factor": PREFETCH_FACTOR,
    }


class _Fetch:
    """A function from keys to a stacked batch, for grain and spdl, which take no dataset."""

    def __init__(self, workload: Workload, dataset: Any) -> None:
        self.dataset, self.many, self.fields = dataset, workload.many, workload.fields

    def __call__(self, keys: Any) -> Any:
        if self.many:
            return self.dataset.__getitems__(keys)
        samples = [self.dataset[key] for key in keys.tolist()]
        if self.fields:
            return {name: np.stack([sample[name] for sample in samples]) for name in self.fields}
        return np.stack(samples)


@contextmanager
def grain_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    import grain

    size = workload.batch_size
    # A batch of keys mapped to a batch: several times faster than .source(dataset).batch(size), which
    # passes each sample through grain's bookkeeping.
    keys = grain.MapDataset.range(len(dataset)).seed(0).shuffle()
    if workload.kind == "boundary":
        # With repeat() its loop never ends. Here the loop ends with the epoch, like those of the others.
        options = grain.ReadOptions(num_threads=workload.workers, prefetch_buffer_size=2 * workload.workers)
        epoch = keys.batch(size, drop_remainder=True).map(_Fetch(workload, dataset))
        with closing(endless(epoch.to_iter_dataset(options))) as stream:
            yield stream
        return
    batches = keys.repeat().batch(size, drop_remainder=True).map(_Fetch(workload, dataset))
    if workload.threads or workload.name in GRAIN_THREADS:
        options = grain.ReadOptions(num_threads=workload.workers, prefetch_buffer_size=2 * workload.workers)
        stream = iter(batches.to_iter_dataset(options))
    else:
        # No threads inside the processes, as its documentation advises for data in memory.
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        workers = grain.MultiprocessingOptions(num_workers=workload.workers, per_worker_buffer_size=4)
        stream = iter(batches.to_iter_dataset(options).mp_prefetch(workers))
    with closing(stream):
        yield stream


@contextmanager
def spdl_stream(workload: Workload, dataset: Any, threads: bool = False) -> Iterator[Iterator[Any]]:
    from spdl.pipeline import PipelineBuilder

    # spdl is made for threads; a pool of processes pays only if Python code holds the GIL all the time.
    # Batches come in the order of completion, which is its default and faster than the order of the keys.
    with ExitStack() as stack:
        pool = None
        if workload.name in SPDL_PROCESSES and not threads:
            pool = stack.enter_context(ProcessPoolExecutor(workload.workers))

        fetch = images.spdl_batch(dataset) if workload.jpegs else _Fetch(workload, dataset)

        def build(epochs: Iterable[int]) -> Any:
            return (
                PipelineBuilder()
                .add_source(_shuffled_keys(len(dataset), workload.batch_size, epochs))
                .pipe(
                    fetch,
                    concurrency=(2 if pool else 1) * workload.workers,
                    executor=pool,
                )
                .add_sink(2 * workload.workers)
                .build(num_threads=workload.workers)
            )

        def epoch_by_epoch() -> Iterator[Any]:
            for epoch in itertools.count():
                pipeline = build([epoch])
                with pipeline.auto_stop():
                    yield from pipeline

        if workload.kind == "boundary":
            yield stack.enter_context(closing(epoch_by_epoch()))
        else:
            pipeline = build(itertools.count())
            stack.enter_context(pipeline.auto_stop())
            yield iter(pipeline)


def _shuffled_keys(n: int, size: int, epochs: Iterable[int]) -> Iterator[np.ndarray]:
    for epoch in epochs:
        order = np.random.default_rng(epoch).permutation(n)
        for start in range(0, n - size + 1, size):
            yield order[start : start + size]


ENGINES: dict[str, tuple[str, Open]] = {
    "penstock": ("penstock", penstock_stream),
    "torch": ("torch.utils.data", torch_stream),
    "torch_own_collate": ("torch.utils.data", torch_own_collate_stream),
    "torchdata": ("torchdata.stateful_dataloader", torchdata_stream),
    "grain": ("grain", grain_stream),
    "spdl": ("spdl.pipeline", spdl_stream),
    "dali": ("nvidia.dali", images.dali_stream),
    "mxnet": ("mxnet", mxnet_peer.mxnet_stream),
    "penstock_torch": ("penstock.torch", penstock_torch_stream),
    "penstock_torch_seed": ("penstock.torch", penstock_torch_seed_stream),
}

# `bench.ray` runs them, on a cluster that it starts.
RAY_ENGINES: dict[str, tuple[str, Open]] = {
    "penstock_ray": ("ray", penstock_ray_stream),
    "ray_data": ("ray.data", ray_peer.ray_data_stream),
    "ray_data_tuned": ("ray.data", ray_peer.ray_data_tuned_stream),
}

# `bench.free` runs them, on a Python without the GIL.
FREE_ENGINES: dict[str, tuple[str, Open]] = {
    "inline": ("penstock", partial(penstock_stream, num_workers=0, prefetch_factor=None, backend=None)),
    "threads": ("penstock", partial(penstock_stream, backend="thread")),
    "processes": ("penstock", penstock_stream),
    "spdl": ("spdl.pipeline", partial(spdl_stream, threads=True)),
}

# Our engines in the rows of tensors, with the suffix of their rows in the tables.
TENSOR_ENGINES = {"penstock_torch": "", "penstock_torch_seed": " seed=0"}


JPEG_ENGINES = ("dali", "mxnet")  # they run only the rows of JPEGs
_DISTRIBUTIONS = {"dali": "nvidia-dali-cuda120"}


def interpreter(engine: str) -> str:
    """The Python that runs the engine: BENCH_MXNET=/its/bin/python, for one that needs its own environment."""
    return os.environ.get(f"BENCH_{engine.upper()}", sys.executable)


def installed(engine: str) -> str | None:
    """The version of the engine's distribution, or None if it is not installed."""
    if (python := interpreter(engine)) != sys.executable:
        code = f"import importlib.metadata as m; print(m.version({_distribution(engine)!r}))"
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        return found.stdout.strip() or None
    if engine == "penstock":  # may run from its sources, without a distribution
        from penstock import __version__

        return __version__
    if engine in TENSOR_ENGINES:
        there = installed("torch") and importlib.util.find_spec("penstock.torch")
        return installed("penstock") if there else None
    try:
        return version(_distribution(engine))
    except PackageNotFoundError:
        return None


def _distribution(engine: str) -> str:
    return _DISTRIBUTIONS.get(engine, ENGINES[engine][0].partition(".")[0])


def import_engine(engine: str) -> None:
    """Import what the adapter needs, for rows whose times must not include imports."""
    module = importlib.import_module(ENGINES[engine][0])
    if engine == "penstock":
        module.DataLoader  # noqa: B018 - the package may import its parts on first use


def open_stream(engine: str, workload: Workload, folder: Path) -> Stream:
    return {**ENGINES, **RAY_ENGINES, **FREE_ENGINES}[engine][1](workload, workload.dataset(folder))
