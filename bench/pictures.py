"""The pictures of the README and the docs, from a real run: `python -m bench.pictures`, or `make pictures`.

A dataset with the usual faults is read for half a minute: samples wait for storage, one in a thousand takes long, and
there are too few workers at first. The pictures show the page that `loader.report` writes.
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
BATCH, STEP = 32, 0.030  # samples in a batch, and seconds that the caller works on one
STAGES = ((1, 6.0), (2, 6.0), (4, 6.0), (8, 18.0))  # workers, and for how many seconds


class Photos:
    """Pictures from a store that answers after some milliseconds, and now and then after a hundred times as many."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, key: int) -> dict[str, NDArray[np.uint8]]:
        chance = np.random.default_rng(key)
        time.sleep(0.35 if key % 997 == 5 else chance.gamma(9.0, 0.0004))
        image = np.full((96, 96, 3), key % 256, np.uint8)
        image[key % 96] = 255
        return {"image": image}


def run() -> Stats:
    """The figures of a run that gets more workers while it goes on."""
    with penstock.DataLoader(Photos(), BATCH, shuffle=True, num_workers=STAGES[0][0], seed=0) as loader:
        batches = iter(loader)
        for workers, seconds in STAGES:
            loader.num_workers = workers
            end = time.monotonic() + seconds
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
                part = {"x": 0, "y": 0, "width": 1040, "height": window.run(f"return {end}") + 16}
                window.picture(FOLDER / f"report-{mode}.png", part)
            window.show(page.as_uri(), 1040)
            window.picture(FOLDER / "report.png")
            window.show(page.as_uri(), 390)
            window.picture(FOLDER / "report-phone.png", {"x": 0, "y": 0, "width": 390, "height": 844})
    finally:
        window.close()
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.relative_to(FOLDER.parent.parent)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
