"""What the cache costs in processor time: `python -m bench.cache`.

A hit; an agenda, a new piece, and a look of the scout, with 5,000 pieces in a full cache. What a user has of it is
measured by `bench.distance`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from penstock._cache.agendas import Publisher
from penstock._cache.cache import Cache
from penstock._cache.lookout import Lookout, WantedPiece
from penstock.plan import OrderPlan, Shuffled
from penstock.plan._forecast import Forecast


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    versions = f"Python {sys.version.split()[0]}, numpy {np.__version__}"
    print(f"{versions}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    try:
        hit(folder)
        look(folder)
    finally:
        shutil.rmtree(folder)


def hit(folder: Path) -> None:
    cache = Cache(folder / "hit", 1 << 30)
    cache.get("a", lambda: bytes(1 << 20))
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

        def pieces_of(self, block: int) -> list[WantedPiece]:
            return [WantedPiece(f"{block}", 100, lambda pause: bytes(100))]

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
