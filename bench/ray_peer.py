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

# Each node has one place for penstock, and one CPU, which is Ray Data's: every loader has one worker on each node.
PLACE = "penstock"

# Batches that one call of the mapper makes. Ray Data moves blocks: ints gave 240, 1,300 and 6,000 batches a second
# with blocks of 16, 128 and 256 batches, rows 390, 1,150, 1,400 and 1,500 with 8, 32, 64 and 128, images 55, 85 and
# 130 with 1, 4 and 8, python 160 and 330 with 4 and 64.
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
    """The fastest form that was found: a pool of two actors, which was twice as fast as tasks for ints and rows.

    The mapper must want nothing but its CPU. Otherwise Ray Data has other tasks make the keys, and is half as fast.
    """
    with connected():
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        samples = _BLOCKS * BLOCK[workload.name] * workload.batch_size
        keys = ray.data.range(samples, override_num_blocks=_BLOCKS)
        mapped = keys.map_batches(
            Fetch,
            fn_constructor_args=(dataset,),
            batch_size=None,
            concurrency=workload.workers,
            num_cpus=1,
        )

        def endless() -> Iterator[Any]:
            for _ in itertools.count():
                batches = mapped.iter_batches(
                    batch_size=workload.batch_size, batch_format="numpy", prefetch_batches=8
                )
                yield from (batch["data"] for batch in batches)

        yield endless()
