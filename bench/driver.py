"""One loader in a process of its own, which reads as many seconds of batches as its standard input asks for.

A process for each loader: no loader forks beside another's threads, imports another's libraries, or takes
the whole run down with it. `python -m bench.driver engine workload folder`, JSON lines in and out.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.peers import import_engine, open_stream
from bench.workloads import EPOCH_STEPS, WORKLOADS, Workload

Reply = Callable[[dict[str, Any]], None]
PREFETCHED = 8  # batches a worker that no adapter exceeds: so many were ready before the clock starts
TRAINING_STEP = 0.012  # seconds that the consumer of the epoch boundary takes for a batch


def consume(stream: Iterator[Any], seconds: float, batches: int = 1) -> float:
    """Batches a second over at least `seconds` and at least so many batches."""
    start, count = time.perf_counter(), 0
    while True:
        next(stream)
        count += 1
        passed = time.perf_counter() - start
        if passed >= seconds and count >= batches:
            return count / passed


def serve(engine: str, workload: Workload, folder: Path, reply: Reply) -> None:
    """Answer each line {"lead": s, "seconds": s} with a rate; the lead drains what was prefetched."""
    with open_stream(engine, workload, folder) as stream:
        workload.check(next(stream))
        reply({"ready": True})
        for line in sys.stdin:
            order = json.loads(line)
            consume(stream, order["lead"], batches=PREFETCHED * workload.workers)
            reply({"rate": consume(stream, order["seconds"])})


def first_batch(engine: str, workload: Workload, folder: Path, reply: Reply) -> None:
    """Seconds from constructing the loader to holding its first batch, in a process that just started."""
    import_engine(engine)
    gc.collect()  # 80 ms with torch's objects: else it falls to whoever happens to allocate the last before it
    start = time.perf_counter()
    with open_stream(engine, workload, folder) as stream:
        batch = next(stream)
        reply({"seconds": time.perf_counter() - start})
        workload.check(batch)


def epoch_boundary(engine: str, workload: Workload, folder: Path, reply: Reply) -> None:
    """Seconds that a consumer slower than the loader waits for the first batch of each further epoch."""
    with open_stream(engine, workload, folder) as stream:
        workload.check(next(stream))
        reply({"ready": True})
        step = 1
        for line in sys.stdin:
            waits: list[float] = []
            while len(waits) < json.loads(line)["epochs"]:
                start = time.perf_counter()
                next(stream)
                if step % EPOCH_STEPS == 0:
                    waits.append(time.perf_counter() - start)
                step += 1
                time.sleep(TRAINING_STEP)
            reply({"waits": waits})


def main() -> None:
    engine, name, folder = sys.argv[1:]
    workload = WORKLOADS[name]
    # A peer may print: answers keep the descriptor that the run reads, everything else goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    act = {"rate": serve, "first": first_batch, "boundary": epoch_boundary}[workload.kind]
    act(engine, workload, Path(folder), reply)


if __name__ == "__main__":
    main()
