"""Figures of runs that did not happen, for tests of the page: small, full, hostile, empty."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

from penstock.stats import (
    Bucket,
    Decision,
    FirstBatch,
    Machine,
    Memory,
    Moment,
    Period,
    SlowSample,
    Spans,
    Stats,
    WorkerFigures,
)

HOSTILE = "<script>alert(1)</script>"


def history(moments: int) -> tuple[Moment, ...]:
    """A run that waits for its workers, gets more of them after a third, and then hardly waits."""
    chance = random.Random(7)
    rows: list[Moment] = []
    batches, waited, worked = 0, 0.0, 0.0
    for i in range(moments):
        late = i > moments / 3
        part = min(max(chance.gauss(0.05 if late else 0.6, 0.03 if late else 0.08), 0), 1)
        waited, worked = waited + 0.5 * part, worked + 0.5 * (1 - part)
        batches += round((1 - part) * 60)
        workers = 8 if late else 2 + 2 * (i > moments / 6)
        ready = chance.randint(6, 16) if late else chance.choice((0, 0, 0, 1))
        busy = chance.randint(4, 8) if late else workers
        lent, pooled = 38_500_000 * chance.randint(1, 2), 38_500_000 * (workers + ready)
        rows.append(Moment(0.5 * (i + 1), batches, waited, worked, ready, busy, workers, lent, pooled))
    return tuple(rows)


def workers(number: int, name: str = "worker") -> tuple[WorkerFigures, ...]:
    chance = random.Random(3)
    return tuple(
        WorkerFigures(
            seat=i,
            name=f"{name} {i}",
            tasks=chance.randint(300, 420),
            steps=chance.randint(300, 420),
            fetch=chance.uniform(40, 52) * (1 if i < 2 else 0.7),
            collate=chance.uniform(3, 6),
            write=chance.uniform(0.2, 1),
            waited_task=chance.uniform(0.1, 2),
            waited_room=chance.uniform(1, 9) * (1 if i < 2 else 0.5),
            cpu=chance.uniform(30, 44),
        )
        for i in range(number)
    )


def sample_times() -> tuple[Bucket, ...]:
    limits = [2.0 ** (i / 4) * 1e-9 for i in range(40, 168)]
    counts = [round(40_000 * math.exp(-(((i - 42) / 6) ** 2))) + (i in (74, 78, 79)) * 3 for i in range(127)]
    return tuple(Bucket(low, high, n) for (low, high), n in zip(pairwise(limits), counts, strict=True) if n)


def stats(moments: int = 120, crew: int = 8, text: str | None = None, decisions: int = 3, **changes: Any) -> Stats:
    """`text` stands wherever a text of the user can stand."""
    rows = history(moments)
    keys = [text or f"n02085620/n02085620_{i * 797 % 10_000}.JPEG" for i in range(10)]
    slowest = tuple(SlowSample(key, 1 / (i + 1), 0, 31 * i, text or f"worker {i % 3}") for i, key in enumerate(keys))
    life = Period(
        seconds=moments / 2,
        batches=rows[-1].batches if rows else 0,
        samples=64 * (rows[-1].batches if rows else 0),
        nbytes=38_500_000 * (rows[-1].batches if rows else 0),
        waits=Spans(2400, rows[-1].waited if rows else 0.0, 0.0021, 0.031, 1.12),
        works=Spans(2400, rows[-1].worked if rows else 0.0, 0.014, 0.016, 0.21),
        ready=4_220,
        tasks=2400,
        caller_cpu=18.2,
        workers=workers(crew, text or "worker"),
        slowest=slowest,
        sample_times=sample_times(),
        replaced=1,
        repeated=2,
        skipped=3,
        epochs=3,
    )
    whole = {
        "name": text or "ImageFolder(train), batches of 64",
        "settings": {
            "dataset": text or "ImageFolder('/data/imagenet/train')",
            "batch_size": 64,
            "num_workers": 4,
            "prefetch_factor": 2,
            "backend": "process",
            "start method": "fork",
            text or "transform": text or "Compose([RandomResizedCrop(224), HorizontalFlip(), ToFloat()])",
        },
        "epoch": replace(
            life,
            seconds=4.1,
            batches=310,
            waits=Spans(310, 1.2, 0.001, 0.02, 0.2),
            works=Spans(310, 2.8, 0.012, 0.02, 0.1),
            replaced=0,
        ),
        "life": life,
        "epoch_number": 2,
        "first_batch": FirstBatch(0.84, 0.21, 0.13, 0.33, 0.27, 0.03),
        "memory": Memory(77_000_000, 385_000_000, 1_200_000),
        "machine": Machine(7.5, 1.3, 32_000_000_000, 11_800_000_000, 0),
        "decisions": tuple(
            Decision(
                moments / 6 * (i + 1),
                2 * (i + 2),
                2,
                text or "the caller waited 61 % of the time and all 2 workers were busy",
            )
            for i in range(decisions)
        ),
        "history": rows,
    }
    return Stats(**{**whole, **changes})
