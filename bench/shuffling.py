"""How well orders shuffle: `python -m bench.shuffling` beside a full shuffle and the shuffle buffers of streams.

1,000 blocks of 1,000 samples, one after the other in their files. All orders but the full shuffle read the blocks in
random order. The buffers hold as many samples as the window of blocks beside them: that of WebDataset is written from
its documentation, that of Hugging Face is the real one, if `datasets` is installed, with a shard for each block. A
stream has a buffer in each worker, and a batch is from one of them: with 4 workers each has a quarter of the samples
and of the blocks, and their batches come in turn.

- "same block": how often two samples that follow each other are of one block.
- "blocks in a batch": different blocks in a batch of 256.
- "correlation": Spearman's, of the places of samples in the output and in the sequence in which the blocks were read,
  within pieces of the output that are as long as the buffer. 1 is no shuffling at all.
- "spread": how much of the epoch lies between the early and the late samples (10 % and 90 %) of a block.

Then the time that `at` takes for each key, in processor time, beside a full shuffle.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.plan import BlockOrder, Shuffled

BLOCKS, ROWS, BATCH, WORKERS = 1000, 1000, 256, 4
N = BLOCKS * ROWS
WINDOWS = (4, 16, 64)


# The orders: each returns all keys of an epoch.


def full() -> NDArray[np.int64]:
    return Shuffled(N, 1).at(0, np.arange(N))


def by_blocks(window: int) -> NDArray[np.int64]:
    order = BlockOrder(np.arange(0, N + 1, ROWS), window, seed=1)
    return np.concatenate([order.at(0, np.arange(at, min(at + 4096, N))) for at in range(0, N, 4096)])


def webdataset(window: int, workers: int) -> NDArray[np.int64]:
    """`shuffle(n, initial=n)`: a random sample of the full buffer, whose place the last one takes."""
    blocks = list(range(BLOCKS))
    random.Random(1).shuffle(blocks)
    outputs = []
    for worker in range(workers):
        samples = (block * ROWS + row for block in blocks[worker::workers] for row in range(ROWS))
        buffered = _buffered(samples, window * ROWS // workers, random.Random(worker))
        outputs.append(np.fromiter(buffered, np.int64))
    return in_turn(outputs)


def _buffered(samples: Iterable[int], size: int, rng: random.Random) -> Iterator[int]:
    buffer: list[int] = []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) >= size:
            yield _taken(buffer, rng)
    while buffer:
        yield _taken(buffer, rng)


def _taken(buffer: list[int], rng: random.Random) -> int:
    at = int(rng.random() * len(buffer))
    buffer[at], buffer[-1] = buffer[-1], buffer[at]
    return buffer.pop()


def huggingface(window: int, workers: int) -> NDArray[np.int64]:
    """`shuffle(buffer_size=n)`, which reads up to 10 shards at a time."""
    import datasets

    stream = datasets.Dataset.from_dict({"key": np.arange(N)}).to_iterable_dataset(num_shards=BLOCKS)
    stream = stream.shuffle(seed=1, buffer_size=window * ROWS // workers).with_format("numpy")
    parts = [stream.shard(workers, worker) for worker in range(workers)]
    return in_turn([np.concatenate([batch["key"] for batch in part.iter(4096)]) for part in parts])


def in_turn(outputs: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The batches of the workers, in turn."""
    whole = min(len(output) for output in outputs) // BATCH * BATCH
    batches = np.stack([output[:whole].reshape(-1, BATCH) for output in outputs], axis=1)
    return np.concatenate([batches.reshape(-1), *(output[whole:] for output in outputs)])


# How well they shuffle.


def measured(keys: NDArray[np.int64], piece: int) -> tuple[float, float, float, float]:
    assert np.array_equal(np.sort(keys), np.arange(N)), "an order must have every key once"
    blocks = keys // ROWS
    same = float((blocks[1:] == blocks[:-1]).mean())
    batches = blocks[: N // BATCH * BATCH].reshape(-1, BATCH)
    distinct = float(np.mean([len(np.unique(batch)) for batch in batches]))
    read = np.argsort(np.unique(blocks, return_index=True)[1]).argsort()  # the number of each block in reading order
    places = read[blocks] * ROWS + keys % ROWS
    pieces = places[: N // piece * piece].reshape(-1, piece).argsort(axis=1).argsort(axis=1)
    correlation = float(np.mean([np.corrcoef(ranks, np.arange(piece))[0, 1] for ranks in pieces]))
    where = np.argsort(keys).reshape(BLOCKS, ROWS) / N
    early, late = np.quantile(where, [0.1, 0.9], axis=1)
    return same, distinct, correlation, float((late - early).mean())


def main() -> int:
    peers: dict[str, Callable[[int, int], NDArray[np.int64]]] = {"WebDataset": webdataset}
    versions = f"numpy {np.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs"
    if find_spec("datasets"):
        peers["Hugging Face"] = huggingface
        versions += f", datasets {version('datasets')}"
    print(f"{versions}\n{BLOCKS:,} blocks of {ROWS:,} samples, batches of {BATCH}\n")
    print("| order | same block | blocks in a batch | correlation | spread |")
    print("|---|---|---|---|---|")
    row("full shuffle", full(), 16 * ROWS)
    for window in WINDOWS:
        row(f'shuffle="blocks", window={window}', by_blocks(window), window * ROWS)
        for name, peer in peers.items():
            for workers in (1, WORKERS):
                of = "" if workers == 1 else f", {workers} workers"
                row(f"{name}'s buffer of {window} blocks{of}", peer(window, workers), window * ROWS)
    print("\n| rows in a block | keys at a time | full shuffle, ns | blocks, ns | times |")
    print("|---|---|---|---|---|")
    for rows in (100, 1000, 10_000, 100_000):
        for keys_at_a_time in (32, 256, 1024, 4096):
            times(rows, keys_at_a_time)
    return 0


def row(name: str, keys: NDArray[np.int64], piece: int) -> None:
    same, distinct, correlation, spread = measured(keys, piece)
    print(f"| {name} | {same:.2%} | {distinct:.0f} | {correlation:.3f} | {spread:.2%} |", flush=True)


def times(rows: int, size: int) -> None:
    n = rows * max(100, 1_000_000 // rows)
    count = 200_000 // size
    orders: list[Any] = [Shuffled(n, 1), BlockOrder(np.arange(0, n + 1, rows), 16, 1)]
    taken = [min(seconds(order, size, count) for _ in range(5)) / count / size * 1e9 for order in orders]
    print(f"| {rows:,} | {size:,} | {taken[0]:.0f} | {taken[1]:.0f} | {taken[1] / taken[0]:.1f} |", flush=True)


def seconds(order: Any, size: int, count: int) -> float:
    """Processor time of the first keys of an epoch; making the order itself is left out."""
    order.at(0, np.arange(1))
    begun = time.process_time()
    for at in range(0, count * size, size):
        order.at(0, np.arange(at, at + size))
    return time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
