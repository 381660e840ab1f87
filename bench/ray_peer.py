"""Ray Data as a peer, and the cluster that `bench.ray` has started."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.workloads import Workload

# Each node has one place for penstock, and two CPUs, which are Ray Data's: one for a worker, one for the task that
# makes its keys. With one CPU, Ray Data in its ordinary form waits for ever.
PLACE = "penstock"

# Batches that one call of the mapper makes, in the tuned form. Ray Data moves blocks: ints gave 240, 1,300 and 6,000
# batches a second with blocks of 16, 128 and 256 batches, rows 390, 1,150, 1,400 and 1,500 with 8, 32, 64 and 128,
# images 55, 85 and 130 with 1, 4 and 8, python 160 and 330 with 4 and 64.
BLOCK = {"ints": 256, "rows": 128, "images": 8, "python": 64}
_BLOCKS = 1_000  # of an epoch


@contextmanager
def connected() -> Iterator[None]:
    import ray

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


class Fetch:
    """From keys to samples, in an actor of Ray Data's. It makes the order itself: keys are counted."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.order = np.random.default_rng(0).permutation(len(dataset))

    def __call__(self, block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        keys = self.order[block["id"] % len(self.order)]
        return {"data": np.stack([self.dataset[key] for key in keys.tolist()])}


@contextmanager
def ray_data_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """As Ray's documentation writes it, with default settings: a pool of two actors that make one batch a call."""
    samples = _BLOCKS * BLOCK[workload.name] * workload.batch_size
    with _context() as data:
        keys = data.range(samples)
        mapped = _mapped(keys, workload, dataset, batch_size=workload.batch_size)
        yield _endless(mapped, workload)


@contextmanager
def ray_data_tuned_stream(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """The fastest form that was found: blocks that are made by hand, each by one call, and more prefetching.

    The mapper must want nothing but its CPU. Otherwise Ray Data has other tasks make the keys, and is half as fast.
    """
    samples = _BLOCKS * BLOCK[workload.name] * workload.batch_size
    with _context() as data:
        keys = data.range(samples, override_num_blocks=_BLOCKS)
        mapped = _mapped(keys, workload, dataset, batch_size=None)
        yield _endless(mapped, workload, prefetch_batches=8)


@contextmanager
def _context() -> Iterator[Any]:
    with connected():
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray.data


def _mapped(keys: Any, workload: Workload, dataset: Any, **more: Any) -> Any:
    return keys.map_batches(Fetch, fn_constructor_args=(dataset,), concurrency=workload.workers, num_cpus=1, **more)


def _endless(mapped: Any, workload: Workload, **more: Any) -> Iterator[Any]:
    for _ in itertools.count():
        batches = mapped.iter_batches(batch_size=workload.batch_size, batch_format="numpy", **more)
        yield from (batch["data"] for batch in batches)
