"""The pictures of the README and the docs, from a real run: `python -m bench.pictures`, or `make pictures`.

A dataset whose samples wait for storage is read for half a minute by a loader that tunes itself; one sample in some
thousands takes long. The pictures show the page that `loader.report` writes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock.stats import Stats
from penstock.stats._report import write
from tests.browser.window import Window

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
BATCH, STEP, SECONDS = 32, 0.030, 30  # samples in a batch, seconds that the caller works on one, and in all


class Photos:
    """Pictures from a store that answers after some milliseconds, and now and then after a hundred times as many."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, key: int) -> dict[str, NDArray[np.uint8]]:
        chance = np.random.default_rng(key)
        time.sleep(0.35 if key % 4999 == 5 else chance.gamma(9.0, 0.0004))
        image = np.full((96, 96, 3), key % 256, np.uint8)
        image[key % 96] = 255
        return {"image": image}


def run() -> Stats:
    with penstock.DataLoader(Photos(), BATCH, shuffle=True, num_workers="auto", max_workers=16, seed=0) as loader:
        batches, end = iter(loader), time.monotonic() + SECONDS
        while time.monotonic() < end:
            next(batches)
            time.sleep(STEP)
        return loader.stats()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    figures = run()
    window = Window()
    try:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            write(figures, page)
            for mode in ("light", "dark"):
                window.show(page.as_uri(), 1040, mode)
                end = "document.querySelector('.rows').closest('section').getBoundingClientRect().bottom"
                part = {"x": 0, "y": 0, "width": 1040, "height": window.run(f"return {end}") + 8}
                window.picture(FOLDER / f"report-{mode}.png", part)
            window.show(page.as_uri(), 1040)
            window.picture(FOLDER / "report.png")
    finally:
        window.close()
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.relative_to(FOLDER.parent.parent)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
