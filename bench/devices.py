"""penstock.jax beside Grain's path to the device: `python -m bench.devices`, or `make bench-jax`.

Each loader runs in a process of its own, the loaders in turn, several times; medians are shown. The loop waits until
each batch is on the device. Grain puts batches on the device by `grain.experimental.device_put`. It runs with
threads, as in `bench.peers` for images and dicts of arrays, where its processes are slower.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
WORKERS = 2
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = 1.0  # of the steady state, after as long for warming up
KEPT = 200  # different samples, which come again


class Row(NamedTuple):
    """A workload: the shape and dtype of each field of a sample, the batch size, and the number of devices."""

    about: str
    fields: dict[str, tuple[tuple[int, ...], str]]
    batch_size: int
    devices: int = 1
    samples: int = 20_000


DICTS = {f"field_{number:02d}": ((8,), "float32") for number in range(20)}
ROWS = {
    "leaves20": Row("20 arrays of 8 float32, 64 samples", DICTS, 64),
    "leaves20_split": Row("the same, on 4 devices", DICTS, 64, 4),
    "large": Row("one image of 224 x 224 x 3 uint8, 64 samples", {"image": ((224, 224, 3), "uint8")}, 64, 1, 2000),
    "large_split": Row("the same, on 4 devices", {"image": ((224, 224, 3), "uint8")}, 64, 4, 2000),
}
LOADERS = ("penstock threads", "penstock processes", "grain")


class Samples:
    """Sample i is a row of each array, and pickles as its description."""

    def __init__(self, name: str) -> None:
        self.name = name
        row = ROWS[name]
        draw = np.random.default_rng(0)
        self.columns = {
            field: draw.integers(0, 100, (KEPT, *shape), "uint8").astype(dtype)
            for field, (shape, dtype) in row.fields.items()
        }

    def __reduce__(self) -> Any:
        return Samples, (self.name,)

    def __len__(self) -> int:
        return ROWS[self.name].samples

    def __getitem__(self, key: int) -> dict[str, np.ndarray]:
        return {field: column[key % len(column)] for field, column in self.columns.items()}


class Fetch:
    """A batch of keys to a batch: for Grain, several times faster than passing on sample by sample."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __call__(self, keys: Any) -> dict[str, np.ndarray]:
        found = [self.samples[key] for key in keys.tolist()]
        return {field: np.stack([sample[field] for sample in found]) for field in self.samples.columns}


def sharding_of(row: Row) -> Any:
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    if row.devices == 1:
        return None
    return NamedSharding(jax.make_mesh((row.devices,), ("data",)), P("data"))


def penstock_batches(name: str, backend: Any) -> Iterator[Any]:
    import penstock.jax

    row = ROWS[name]
    workers = {"num_workers": WORKERS, "backend": backend}
    loader = penstock.jax.DataLoader(
        Samples(name), row.batch_size, shuffle=True, seed=0, sharding=sharding_of(row), **workers
    )
    with loader:
        while True:
            yield from loader


def grain_batches(name: str) -> Iterator[Any]:
    import grain
    import jax

    row = ROWS[name]
    keys = grain.MapDataset.range(row.samples).seed(0).shuffle().repeat()
    batches = keys.batch(row.batch_size, drop_remainder=True).map(Fetch(Samples(name)))
    options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * WORKERS)
    stream = batches.to_iter_dataset(options)
    yield from grain.experimental.device_put(stream, sharding_of(row) or jax.devices()[0])


def child(name: str, loader: str) -> None:
    """Prints the seconds to the first batch, from the making of the loader on, and the batches in a second."""
    import jax

    jax.block_until_ready(jax.device_put(np.zeros(1)))  # the backend is there before the loader, as in most programs
    backend = {"penstock threads": "thread", "penstock processes": "process"}.get(loader)
    if backend is None:
        import grain.experimental  # noqa: F401
    else:
        import penstock.jax  # noqa: F401
    begun = time.perf_counter()
    stream = grain_batches(name) if backend is None else penstock_batches(name, backend)
    jax.block_until_ready(next(stream))
    first = time.perf_counter() - begun
    rates = []
    for _ in range(2):  # the first is for warming up
        begun, count = time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < SECONDS:
            jax.block_until_ready(next(stream))
            count += 1
        rates.append(count / took)
    print(json.dumps([first, rates[1]]), flush=True)
    os._exit(0)  # without waiting for Grain's threads


def measured(name: str, loader: str) -> list[float]:
    flags = f"--xla_force_host_platform_device_count={ROWS[name].devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "bench.devices", "--child", name, loader]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes) as process:
        try:
            out, error = process.communicate(timeout=300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the processes of a loader that was not closed
    if process.returncode:
        raise SystemExit(f"{name}, {loader}: exit code {process.returncode}\n{error[-2000:]}")
    found: list[float] = json.loads(out.splitlines()[-1])
    return found


def main() -> None:
    names = sys.argv[1:] or list(ROWS)
    versions = ", ".join(f"{package} {version(package)}" for package in ("jax", "grain", "numpy"))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {WORKERS} workers, {versions}")
    print(f"medians of {ROUNDS} runs, in turn; the range in brackets")
    for name in names:
        runs: dict[str, list[list[float]]] = {loader: [] for loader in LOADERS}
        for _ in range(ROUNDS):
            for loader in LOADERS:
                runs[loader].append(measured(name, loader))
        print(f"\n{name}: {ROWS[name].about}")
        for which, unit in enumerate(("s to the first batch", "batches/s")):
            middle = {one: statistics.median(run[which] for run in found) for one, found in runs.items()}
            print(f"  {unit}")
            for one in LOADERS:
                all_runs = sorted(run[which] for run in runs[one])
                ratio = middle[one] / middle["grain"] if which else middle["grain"] / middle[one]
                spread = f"({all_runs[0]:.3f} to {all_runs[-1]:.3f})"
                print(f"    {one:<20}{middle[one]:10.3f}  {spread:<24}{ratio:6.2f} times as good as Grain")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3])
    else:
        main()
