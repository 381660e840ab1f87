"""Rows of 1,024 token ids from Parquet, shuffled: `python -m bench.tables` beside the readers of other libraries.

Batches have 64 rows, int32 of shape (64, 1024): arrays, or tensors for the peers; all loaders have 2 workers. Exits
with 1 if penstock's Parquet has less than 3 times the rate of a map-style Hugging Face dataset in torch's
DataLoader, less than twice that of its stream, or is slower than LitData or Ray Data. The peers:

- **datasets map-style**: with_format("torch"), which was faster than "numpy".
- **datasets streaming**: a shuffle buffer of 10,000 rows, with_format("torch"), which was faster than "numpy", and
  gives int64.
- **LitData**: an index of the folder, `ParquetLoader`, and its own `StreamingDataLoader`, whose workers must not be
  forked then. A row is a list of Python ints; the collate function makes a tensor of them. By default
  (`low_memory`) it keeps the row groups that are not yet used up, as Python lists; otherwise whole files, as tables
  of Polars.
- **Ray Data**: on 2 CPUs of this machine, with a shuffle buffer of 10,000 rows in the caller. The files are read
  again in each epoch, in another order; or all rows are in its object store beforehand ("materialised").

Only penstock and the map-style dataset shuffle all rows: LitData shuffles within the files that a worker has at the
time, Hugging Face's stream and Ray Data within their buffer. The rows marked "small keep" show the worst case for
penstock: a random order over row groups that are not kept, so that nearly every row costs the decoding of its whole
row group. With `shuffle="blocks"` and a window that fits, a row group is decoded once in an epoch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.served import Batch, Comparison, Contender

FILES, ROWS, LENGTH = 4, 10_240, 1024  # rows of a file
GROUPS, SMALL_GROUPS = 1024, 128  # rows of a row group
BATCH, WORKERS, PREFETCH = 64, 2, 4
BUFFER = 10_000  # rows
KEEP_LITTLE = 16 << 20

_TORCH: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "prefetch_factor": PREFETCH}


def write(folder: Path) -> None:
    """The files: 160 MB of ids, as Snappy-compressed Parquet, with large and with small row groups."""
    import pyarrow as pa
    import pyarrow.parquet

    for rows in (GROUPS, SMALL_GROUPS):
        below, rng = folder / str(rows), np.random.default_rng(0)
        if below.exists():
            continue
        below.mkdir()
        for number in range(FILES):
            ids = rng.integers(0, 50_000, (ROWS, LENGTH), np.int32)
            edges = np.arange(0, ids.size + 1, LENGTH, np.int32)
            table = pa.table({"ids": pa.ListArray.from_arrays(edges, ids.reshape(-1))})
            path = below / f"{number}.parquet"
            pa.parquet.write_table(table, path, row_group_size=rows, use_dictionary=False)


class _Ids:
    """The ids of batches that are dicts."""

    def __init__(self, loader: Iterable[dict[str, Any]]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return ((batch["ids"],) for batch in self._loader)


def parquet(
    folder: Path,
    rows: int = GROUPS,
    shuffle: bool | str = True,
    window: int | None = None,
    **options: Any,
) -> Iterable[Batch]:
    from penstock import DataLoader
    from penstock.formats import Parquet

    data = Parquet(folder / str(rows), **options)
    given: dict[str, Any] = {"seed": 0, "num_workers": WORKERS, "prefetch_factor": PREFETCH}
    return _Ids(DataLoader(data, BATCH, shuffle=shuffle, window=window, **given))


def parquet_as_tensors(folder: Path) -> Iterable[Batch]:
    from penstock.formats import Parquet
    from penstock.torch import DataLoader

    # Workers that end with the epoch would take the row groups that they keep with them.
    return _Ids(DataLoader(Parquet(folder / str(GROUPS)), BATCH, shuffle=True, seed=0, **_TORCH))


def _files(folder: Path) -> list[str]:
    return sorted(map(str, (folder / str(GROUPS)).glob("*.parquet")))


def map_style(folder: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_parquet(_files(folder), cache_dir=str(folder / "cache"))


def hugging_face(folder: Path) -> Iterable[Batch]:
    from penstock import DataLoader
    from penstock.formats import HuggingFace

    data = HuggingFace(map_style(folder))
    return _Ids(DataLoader(data, BATCH, shuffle=True, seed=0, num_workers=WORKERS, prefetch_factor=PREFETCH))


def peer_map_style(folder: Path) -> Iterable[Batch]:
    import torch
    from torch.utils.data import DataLoader

    data = map_style(folder).with_format("torch", dtype=torch.int32)
    return _Ids(DataLoader(data, BATCH, shuffle=True, **_TORCH))


def peer_stream(folder: Path) -> Iterable[Batch]:
    import datasets
    from torch.utils.data import DataLoader

    stream: Any = datasets.load_dataset("parquet", data_files=_files(folder), split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=BUFFER).with_format("torch")
    return _Ids(DataLoader(stream, BATCH, **_TORCH))


def litdata(folder: Path, low_memory: bool) -> Iterable[Batch]:
    from litdata import StreamingDataLoader, StreamingDataset, index_parquet_dataset
    from litdata.streaming.item_loader import ParquetLoader

    place = str(folder / str(GROUPS))
    index_parquet_dataset(place)
    data = StreamingDataset(place, item_loader=ParquetLoader(low_memory=low_memory), shuffle=True)
    given = {**_TORCH, "collate_fn": _stacked, "multiprocessing_context": "forkserver"}
    return _Single(StreamingDataLoader(data, batch_size=BATCH, **given))


def _stacked(rows: list[Any]) -> Any:
    """A batch of LitData's rows, which are lists of Python ints."""
    import torch

    return torch.from_numpy(np.array([row["ids"] for row in rows], np.int32))


class _Single:
    """Batches that are one array."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return ((batch,) for batch in self._loader)


def _dense(batch: dict[str, Any]) -> dict[str, Any]:
    """Lists become rows of one array, in the tasks of Ray Data that read: the caller would take longer."""
    return {"ids": np.stack(batch["ids"])}


class RayData:
    """Ray Data's batches, with a shuffle buffer in the caller."""

    def __init__(self, folder: Path, materialised: bool) -> None:
        import ray

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        self._data = ray.data.read_parquet(str(folder / str(GROUPS)), shuffle=None if materialised else "files")
        self._data = self._data.map_batches(_dense, batch_size=GROUPS)
        if materialised:
            self._data = self._data.materialize()

    def __iter__(self) -> Iterator[Batch]:
        batches = self._data.iter_batches(
            batch_size=BATCH,
            batch_format="numpy",
            prefetch_batches=2 * PREFETCH,
            local_shuffle_buffer_size=BUFFER,
        )
        return ((batch["ids"],) for batch in batches)


CONTENDERS = {
    "penstock Parquet": Contender(parquet),
    "penstock Parquet, tensors": Contender(parquet_as_tensors, "torch"),
    "penstock HuggingFace": Contender(hugging_face, "datasets"),
    "datasets map-style": Contender(peer_map_style, "datasets", 3.0),
    "datasets streaming": Contender(peer_stream, "datasets", 2.0),
    "LitData": Contender(partial(litdata, low_memory=True), "litdata", 1.0),
    "LitData, low_memory=False": Contender(partial(litdata, low_memory=False), "litdata", 1.0),
    "Ray Data": Contender(partial(RayData, materialised=False), "ray", 1.0),
    "Ray Data, materialised": Contender(partial(RayData, materialised=True), "ray", 1.0),
    "penstock Parquet in sequence": Contender(partial(parquet, shuffle=False)),
    f"penstock, small keep, groups of {GROUPS}": Contender(partial(parquet, keep=KEEP_LITTLE), epochs=False),
    f"penstock, small keep, groups of {SMALL_GROUPS}": Contender(
        partial(parquet, rows=SMALL_GROUPS, keep=KEEP_LITTLE), epochs=False
    ),
    f"by blocks, small keep, groups of {GROUPS}": Contender(
        partial(parquet, shuffle="blocks", window=3, keep=KEEP_LITTLE), epochs=False
    ),
    f"by blocks, small keep, groups of {SMALL_GROUPS}": Contender(
        partial(parquet, rows=SMALL_GROUPS, shuffle="blocks", keep=KEEP_LITTLE), epochs=False
    ),
}


if __name__ == "__main__":
    sys.exit(Comparison("bench.tables", "rows", write, CONTENDERS).main(__doc__))
