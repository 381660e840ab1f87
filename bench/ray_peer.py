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

# Each node has one of each, so that every loader has one worker on each node.
OURS, THEIRS = "penstock", "ray_data"

# Batches that one call of the mapper makes. Ray Data moves blocks, so many batches in a block are faster where
# batches are small: ints with blocks of 16, 128 and 512 batches gave 240, 1,300 and 3,400 batches a second.
BLOCK = {"ints": 512, "rows": 64, "images": 4, "python": 4}
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
    """The fastest form that was found: a pool of two actors, which was twice as fast as tasks for ints and rows."""
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
            resources={THEIRS: 1},
        )

        def endless() -> Iterator[Any]:
            for _ in itertools.count():
                batches = mapped.iter_batches(
                    batch_size=workload.batch_size, batch_format="numpy", prefetch_batches=8
                )
                yield from (batch["data"] for batch in batches)

        yield endless()
