"""The cache and its scout, on a store that answers after 20 ms: `python -m bench.cache`.

Blocks of 1 MB, 64 samples each, are read in order by 2 workers, with a training step of 2 ms for each batch. The rate
of batches, after the first tenth, is compared with that of an epoch in which each piece is in the cache already, with
a scout and without; in turn, five times. Then: what a hit costs, and what a look of the scout costs with 5,000 pieces
in a full cache.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock._cache.agendas import Publisher
from penstock._cache.cache import Cache
from penstock._cache.lookout import Lookout, Wanted
from penstock._cache.scout import Scout
from penstock.plan import OrderPlan, Shuffled
from penstock.plan._forecast import Forecast

BLOCKS, ROWS, NBYTES = 300, 64, 1 << 20
LATENCY = 0.02


class Store(penstock.Dataset[Any]):
    def __init__(self, cache: Cache, scouts: bool) -> None:
        self.blocks = np.arange(BLOCKS + 1) * ROWS
        self.cache, self._scouts = cache, scouts

    def __len__(self) -> int:
        return BLOCKS * ROWS

    def __getitem__(self, key: int) -> Any:
        block, row = divmod(key, ROWS)
        piece = self.cache.get(f"{block}", partial(self.fetch, block))
        return np.frombuffer(piece, np.uint8).reshape(ROWS, -1)[row]

    def fetch(self, block: int, pause: Any = None) -> bytes:
        time.sleep(LATENCY)
        return bytes([block % 256]) * NBYTES

    def pieces_of(self, block: int) -> list[Wanted]:
        return [Wanted(f"{block}", NBYTES, partial(self.fetch, block))]

    def __foresee__(self, forecast: Forecast) -> Scout | None:
        return Scout(forecast, self, self.cache) if self._scouts else None


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    versions = f"Python {sys.version.split()[0]}, numpy {np.__version__}"
    print(f"{versions}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    try:
        rates(folder)
        hit(folder)
        look(folder)
    finally:
        shutil.rmtree(folder)


def rates(folder: Path) -> None:
    found: dict[str, list[float]] = {"local": [], "scout": [], "no scout": []}
    firsts = []
    for turn in range(5):
        store = Store(Cache(folder / f"{turn}", 1 << 30), True)
        first, rate = epoch(store)
        firsts.append(first)
        found["scout"].append(rate)
        found["local"].append(epoch(store)[1])
        shutil.rmtree(folder / f"{turn}")
        found["no scout"].append(epoch(Store(Cache(folder / f"{turn}", 1 << 30), False))[1])
        shutil.rmtree(folder / f"{turn}")
    middle = {name: float(np.median(some)) for name, some in found.items()}
    for name, rate in middle.items():
        spread = f"{min(found[name]):,.0f} to {max(found[name]):,.0f}"
        print(f"{name:10} {rate:8,.0f} batches/s ({spread}), {rate / middle['local']:.2f} of local")
    print(f"first batch with a scout after {np.median(firsts) * 1e3:.0f} ms")


def epoch(store: Store) -> tuple[float, float]:
    """Seconds to the first batch, and batches in a second after the first tenth."""
    begun = time.perf_counter()
    with penstock.DataLoader(store, batch_size=32, num_workers=2) as loader:
        first = then = count = 0.0
        for number, _ in enumerate(loader):
            if not number:
                first = time.perf_counter() - begun
            if number == len(loader) // 10:
                then = time.perf_counter()
            count = number - len(loader) // 10
            time.sleep(0.002)
        return first, count / (time.perf_counter() - then)


def hit(folder: Path) -> None:
    cache = Cache(folder / "hit", 1 << 30)
    cache.get("a", lambda: bytes(NBYTES))
    times = []
    for _ in range(5):
        begun = time.process_time()
        for _ in range(100_000):
            cache.get("a", bytes)
        times.append((time.process_time() - begun) / 100_000)
    print(f"a hit takes {min(times) * 1e6:.2f} µs")


def look(folder: Path) -> None:
    cache, count = Cache(folder / "look", 5000 * 124), 10_000

    class Small:
        blocks = np.arange(count + 1) * 10

        def pieces_of(self, block: int) -> list[Wanted]:
            return [Wanted(f"{block}", 100, lambda pause: bytes(100))]

    forecast = Forecast(OrderPlan(Shuffled(10 * count, 1)), 0, lambda: 0)
    lookout, publisher = Lookout(forecast, Small(), cache, 1 << 20, 0), Publisher(cache.path)
    begun = time.process_time()
    agenda = lookout.agenda()
    assert agenda is not None
    cache.publish(publisher, agenda)
    print(f"an agenda of {len(agenda.rows):,} uses takes {(time.process_time() - begun) * 1e3:.0f} ms")
    begun = time.process_time()
    for number in range(5000):
        cache.fetch(f"{number}", partial(bytes, 100))
    print(f"a piece is added in {(time.process_time() - begun) / 5000 * 1e6:.0f} µs")
    times = []
    for _ in range(10):
        begun = time.process_time()
        lookout.look(8, {}, ())
        times.append(time.process_time() - begun)
    print(f"a look takes {min(times) * 1e3:.1f} ms with 5,000 pieces in a full cache")
    begun = time.process_time()
    for number in range(5000, 5010):
        cache.fetch(f"{number}", partial(bytes, 100))
    print(f"a piece is added to it in {(time.process_time() - begun) / 10 * 1e3:.1f} ms")
    publisher.close()


if __name__ == "__main__":
    main()
