"""One loader in a process of its own, which reads as many seconds of batches as its standard input asks for.

Each loader has a process of its own, so that none forks beside another's threads, imports another's libraries,
or crashes the whole run. `python -m bench.driver engine workload workers folder`, JSON lines in and out.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.peers import import_engine, open_stream
from bench.workloads import EPOCH_STEPS, FREE_WORKLOADS, WORKLOADS, Workload

Reply = Callable[[dict[str, Any]], None]
PREFETCHED = 8  # batches for each worker, at most, that are ready before the clock starts
TRAINING_STEP = 0.012  # seconds for each batch in the consumer of the epoch boundary rows


def consume(stream: Iterator[Any], seconds: float, batches: int = 1) -> float:
    """Batches per second, measured over at least `seconds` and at least `batches`."""
    start, count = time.perf_counter(), 0
    while True:
        next(stream)
        count += 1
        passed = time.perf_counter() - start
        if passed >= seconds and count >= batches:
            return count / passed


def serve(engine: str, workload: Workload, folder: Path, reply: Reply) -> None:
    """Answer each line {"lead": s, "seconds": s} with a rate; prefetched batches are consumed in the lead.

    `batches` are those of both, and `cpu` is the processor time of this process, all its threads, for them.
    {"busy": s, "batches": n} is answered with the seconds that each next() waits, beside a consumer that computes in
    Python.
    """
    with open_stream(engine, workload, folder) as stream:
        workload.check(next(stream))
        reply({"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            if "busy" in request:
                reply({"waits": [wait_beside(stream, request["busy"]) for _ in range(request["batches"])]})
                continue
            start, used = time.perf_counter(), time.process_time()
            lead = consume(stream, request["lead"], batches=PREFETCHED * workload.workers)
            middle = time.perf_counter()
            rate = consume(stream, request["seconds"])
            batches = lead * (middle - start) + rate * (time.perf_counter() - middle)
            reply({"rate": rate, "batches": batches, "cpu": time.process_time() - used})


def wait_beside(stream: Iterator[Any], busy: float) -> float:
    """Seconds that next() waits after so many seconds of pure Python."""
    end = time.thread_time() + busy
    while time.thread_time() < end:
        pass
    start = time.perf_counter()
    next(stream)
    return time.perf_counter() - start


def first_batch(engine: str, workload: Workload, folder: Path, reply: Reply) -> None:
    """Seconds from constructing the loader to holding its first batch, in a process that just started."""
    import_engine(engine)
    gc.collect()  # 80 ms with torch's objects, which could otherwise fall into the measured time
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
    engine, name, workers, folder = sys.argv[1:]
    workload = replace({**WORKLOADS, **FREE_WORKLOADS}[name], workers=int(workers))
    # A peer may print: replies keep the descriptor that the run reads, and everything else goes to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=replies, flush=True)

    act = {"rate": serve, "first": first_batch, "boundary": epoch_boundary}[workload.kind]
    act(engine, workload, Path(folder), reply)


if __name__ == "__main__":
    main()
