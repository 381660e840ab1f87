"""The same batches, bit for bit, whatever the settings: hypothesis chooses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from parity import sources
from parity.pair import Tape, both, epoch

SOURCES: dict[str, Any] = {
    "map": sources.Noisy,
    "many": sources.NoisyMany,
    "stream": sources.NoisyStream,
    "shards": sources.NoisyShards,
    "uneven": sources.NoisyUneven,
}


def closure(dataset: Any) -> Callable[[int], None]:
    """A worker_init_fn that no pickle takes, and that reaches the dataset as torch's documentation shows."""
    offset = 7

    def init(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.tag = offset * worker  # type: ignore[attr-defined]

    return init


INITS: dict[str, Callable[[Any], Any]] = {
    "none": lambda dataset: None,
    "function": lambda dataset: sources.seed_python,
    "closure": closure,
    "method": lambda dataset: dataset.tag_myself,
}

# Each makes the settings that say in what order the keys come.
ORDERS: dict[str, Callable[[Any, Tape, torch.Generator | None], dict[str, Any]]] = {
    "in sequence": lambda data, tape, g: {},
    "shuffled": lambda data, tape, g: {"shuffle": True},
    "asked": lambda data, tape, g: {"sampler": sources.Asked(list(range(data.n)), tape)},
    "a list": lambda data, tape, g: {"sampler": [*range(0, data.n, 2), *range(1, data.n, 2)]},
    "with replacement": lambda data, tape, g: {"sampler": RandomSampler(data, True, 40, g)},
    "more than once": lambda data, tape, g: {"sampler": RandomSampler(data, False, data.n * 2 + 1, g)},
    "a subset": lambda data, tape, g: {"sampler": SubsetRandomSampler(range(data.n // 2), g)},
    "weighted": lambda data, tape, g: {"sampler": WeightedRandomSampler([1.0] * data.n, data.n, True, g)},
    "distributed": lambda data, tape, g: {"sampler": DistributedSampler(data, 2, 1, seed=5)},
}
BATCH_ORDERS: dict[str, Callable[[Any, Tape, torch.Generator | None], dict[str, Any]]] = {
    "asked": lambda data, tape, g: {
        "batch_sampler": sources.Asked([[k, data.n - 1 - k] for k in range(data.n)], tape)
    },
    "torch's": lambda data, tape, g: {"batch_sampler": BatchSampler(RandomSampler(data, generator=g), 3, True)},
    "lists": lambda data, tape, g: {"batch_sampler": [[0], [0, 0], list(range(data.n))]},
    "tuples": lambda data, tape, g: {"batch_sampler": [(k, 0) for k in range(data.n)]},
    "torch's, in sequence": lambda data, tape, g: {"batch_sampler": BatchSampler(SequentialSampler(data), 2, False)},
}


@dataclass(frozen=True)
class Case:
    source: str
    n: int
    bad: frozenset[int]
    order: str
    batch_size: int | None
    drop_last: bool
    generator: int | None
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    init: str
    collate: bool
    takes: tuple[int, ...]  # how many batches of each epoch

    def __call__(self, loader_class: Any, tape: Tape) -> None:
        data = SOURCES[self.source](self.n, self.bad)
        generator = None if self.generator is None else torch.Generator().manual_seed(self.generator)
        kind, _, name = self.order.partition(": ")
        orders = BATCH_ORDERS if kind == "batches" else ORDERS
        batching = {} if kind == "batches" else {"batch_size": self.batch_size, "drop_last": self.drop_last}
        loader = loader_class(
            data,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            worker_init_fn=INITS[self.init](data),
            collate_fn=sources.bundle if self.collate else None,
            generator=generator,
            **batching,
            **orders[name](data, tape, generator),
        )
        for take in self.takes:
            epoch(loader, tape, take)


ALL = 1000
WIDE = "PENSTOCK_WIDE" in os.environ


@st.composite
def cases(draw: st.DrawFn, workers: int, most_workers: int) -> Case:
    source = draw(st.sampled_from(list(SOURCES)))
    streaming = source in ("stream", "shards", "uneven")
    n = draw(st.integers(0 if streaming else 1, 14))
    keyed = st.sampled_from([f"keys: {name}" for name in ORDERS])
    batched = st.sampled_from([f"batches: {name}" for name in BATCH_ORDERS])
    batch_size = draw(st.none() | st.integers(1, 5))
    num_workers = draw(st.integers(workers, most_workers))
    persistent = num_workers > 0 and draw(st.booleans())
    # Which of a persistent worker's prefetched samples were made before an abandoned epoch ended
    # is a matter of luck in torch if the streams are of unequal length.
    whole = streaming and persistent
    return Case(
        source,
        n,
        draw(st.frozensets(st.integers(0, 13), max_size=2)),
        "keys: in sequence" if streaming else draw(keyed | batched),
        batch_size,
        batch_size is not None and draw(st.booleans()),
        draw(st.none() | st.integers(0, 3)),
        num_workers,
        draw(st.none() | st.integers(1, 3)) if num_workers else None,
        persistent,
        draw(st.sampled_from(list(INITS))),
        draw(st.booleans()),
        tuple(draw(st.lists(st.just(ALL) if whole else st.sampled_from([ALL, 0, 1, 4]), min_size=1, max_size=3))),
    )


@given(cases(workers=0, most_workers=0))
@settings(max_examples=150 if WIDE else 100, deadline=None)
def test_without_workers_the_stream_is_torchs(case: Case) -> None:
    both(case)


@given(cases(workers=1, most_workers=3))
@settings(max_examples=60 if WIDE else 15, deadline=None)
def test_with_workers_the_stream_is_torchs(case: Case) -> None:
    both(case)
