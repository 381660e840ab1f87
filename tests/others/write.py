"""Writes the files of this folder, by the packages of their owners; `python -m others.write FOLDER` in `tests`,
and the names of some.

Those that are committed were written by mosaicml-streaming 0.13.0, litdata 0.2.76 and tfrecord 1.14.6. `make interop`
writes them again, and compares.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from others import samples


def write_compressed(folder: Path) -> None:
    write_mds(folder, "gz")


def write_mds(folder: Path, compression: str | None = None) -> None:
    # Without running the packages' own __init__, which import torchvision and the clients of all clouds.
    if "streaming" not in sys.modules:
        place = _place("streaming")
        for name in ("streaming", "streaming.base", "streaming.base.format"):
            module = types.ModuleType(name)
            module.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = module
    from streaming.base.format.mds.writer import MDSWriter

    with MDSWriter(
        columns=samples.MDS_COLUMNS, out=str(folder), size_limit=2000, hashes=["sha1"], compression=compression
    ) as writer:
        for n in range(samples.COUNT):
            image = Image.fromarray(samples.pixels(n))
            writer.write({**samples.mds(n), "image": image, "float": n / 3, "uint8": n})


def write_litdata(folder: Path, made: Any, **settings: Any) -> None:
    with warnings.catch_warnings(action="ignore"):
        from litdata.streaming.writer import BinaryWriter

        folder.mkdir(parents=True)
        writer = BinaryWriter(str(folder), **settings)
        for n in range(samples.COUNT):
            writer[n] = made(n)
        writer.done()
        writer.merge()
    for each in folder.glob("*.json"):
        if each.name != "index.json":
            each.unlink()


def write_trees(folder: Path) -> None:
    import torch

    write_litdata(folder, lambda n: {**samples.tree(n), "flat": torch.arange(n + 1)}, chunk_size=6)


def write_rows(folder: Path) -> None:
    write_litdata(folder, samples.row, chunk_size=8)


def write_tokens(folder: Path) -> None:
    import torch
    from litdata.streaming.item_loader import TokensLoader

    loader = TokensLoader(block_size=samples.BLOCK_SIZE)
    write_litdata(folder, lambda n: torch.tensor(samples.tokens(n)), chunk_bytes=200, item_loader=loader)


def write_tfrecord(folder: Path) -> None:
    from tfrecord.writer import TFRecordWriter

    folder.mkdir(parents=True)
    kinds = {"floats": "float", "image": "byte", "label": "int", "many": "byte", "weight": "float"}
    for part in range(2):
        writer = TFRecordWriter(str(folder / f"part-{part}.tfrecord"))
        for n in range(part * samples.COUNT // 2, (part + 1) * samples.COUNT // 2):
            values = {name: _plain(value) for name, value in samples.example(n).items()}
            writer.write({name: (values[name], kind) for name, kind in kinds.items()})
        writer.close()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _place(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


WRITERS = {
    "mds": write_mds,
    "litdata": write_trees,
    "litdata-rows": write_rows,
    "litdata-tokens": write_tokens,
    "tfrecord": write_tfrecord,
}
OTHERS = {"mds-gz": write_compressed}  # not committed

if __name__ == "__main__":
    for name in sys.argv[2:] or WRITERS:
        (WRITERS | OTHERS)[name](Path(sys.argv[1], name))
