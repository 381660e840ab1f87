"""Tokens of packed rows from a mixture of three sources: `python -m bench.language`, beside Grain and Hugging Face.

The documents have lognormal(5.8, 1.1) tokens, at most 4,096, by a seed: 20 million tokens in three sources with the
weights 0.7, 0.2 and 0.1, as Parquet (lists of int32, without compression) and as Megatron's files. Rows have 4,096
tokens, batches 16 rows; all loaders have 2 workers and repeat their sources without end. Tokens are counted without
padding. Exits with 1 if penstock has less than 3 times the rate of a peer. The peers:

- **Grain**: its mix, its best fit with 128 bins, and `mp_prefetch`. From Megatron's files, and from Arrow files that
  `datasets` has made of the Parquet beforehand, it shuffles each source; its own reader of Parquet is read in order.
- **datasets streaming**: `interleave_datasets`, which draws sources at random, then `map(batched=True)`, which joins
  the documents of 1,000 samples and cuts them into rows, and torch's DataLoader. Shuffled within 10,000 documents.
  "list" is the function that most training scripts have, "numpy" the same with arrays. The tokens of each 1,000
  documents that do not fill a row are lost, and rows do not say where a document begins.

penstock shuffles each source as a whole, and packs by best fit, in windows of 100,000 documents.

The last table has the cost of a loader beside `np.take` of the same rows, which are packed already and in memory.
There, all is processor time of this process, without workers. Rows that are packed as they are read also have
positions, segments and the keys of documents: 20 bytes for each token instead of 4.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock
from bench.served import Batch, Comparison, Contender

ROW, BATCH, WORKERS, PREFETCH = 4_096, 16, 2, 4
TOKENS, BUFFER, JOINED, BINS = 20_000_000, 10_000, 1_000, 128
WEIGHTS = {"web": 0.7, "code": 0.2, "math": 0.1}
FILES = 4  # of each source: a worker of a peer needs files of its own

Documents = list[NDArray[np.int32]]


def documents(share: float, seed: int) -> Documents:
    """Documents with about this share of the tokens, all ids above 0."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(5.8, 1.1, int(share * TOKENS / 540)).astype(np.int64), 1, ROW)
    ids = rng.integers(1, 50_000, lengths.sum(), np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def write(folder: Path) -> None:
    for seed, (name, share) in enumerate(WEIGHTS.items()):
        if (folder / name).exists():
            continue
        (folder / name).mkdir()
        parts = documents(share, seed)
        for number in range(FILES):
            _write_parquet(folder / name / f"{number}.parquet", parts[number::FILES])
            _write_megatron(folder / name / f"{number}", parts[number::FILES])


def _write_parquet(path: Path, parts: Documents) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    edges = np.append(0, np.cumsum([len(part) for part in parts])).astype(np.int32)
    table = pa.table({"tokens": pa.ListArray.from_arrays(edges, np.concatenate(parts))})
    pa.parquet.write_table(table, path, row_group_size=1_000, use_dictionary=False, compression="none")


def _write_megatron(path: Path, parts: Documents) -> None:
    sizes = np.array([len(part) for part in parts], "<i4")
    starts = np.append(0, np.cumsum(sizes)[:-1]).astype("<i8") * 4
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(parts), len(parts) + 1)
    firsts = np.arange(len(parts) + 1, dtype="<i8")
    path.with_suffix(".idx").write_bytes(b"".join([head, sizes.tobytes(), starts.tobytes(), firsts.tobytes()]))
    path.with_suffix(".bin").write_bytes(np.concatenate(parts).astype("<i4").tobytes())


class _Counted:
    """Batches as ranges, with one element for each token that is not padding."""

    def __init__(self, loader: Iterable[Any], segments: str | None) -> None:
        self._loader, self._segments = loader, segments

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            if self._segments is None:
                yield (range(batch["tokens"].numel()),)
            else:
                yield (range(int(np.count_nonzero(np.asarray(batch[self._segments])))),)


# penstock


def _count(sample: Any) -> int:
    return len(sample["tokens"])


def rows_of(folder: Path, kind: str) -> Any:
    sources: dict[str, Any] = {}
    for name in WEIGHTS:
        if kind == "megatron":
            sources[name] = penstock.formats.Megatron(folder / name)
        else:
            sources[name] = penstock.formats.Parquet(sorted((folder / name).glob("*.parquet"))).with_lengths(_count)
    return penstock.pack(penstock.mix(sources, WEIGHTS), ROW)


def from_parquet(folder: Path) -> Iterable[Batch]:
    rows = rows_of(folder, "parquet")
    return _Counted(penstock.DataLoader(rows, BATCH, seed=0, num_workers=WORKERS), "segments")


def from_megatron(folder: Path) -> Iterable[Batch]:
    rows = rows_of(folder, "megatron")
    return _Counted(penstock.DataLoader(rows, BATCH, seed=0, num_workers=WORKERS), "segments")


def tensors_from(folder: Path, kind: str) -> Iterable[Batch]:
    from penstock.torch import DataLoader

    return _Counted(DataLoader(rows_of(folder, kind), BATCH, seed=0, num_workers=WORKERS), "segments")


def tensors_from_parquet(folder: Path) -> Iterable[Batch]:
    return tensors_from(folder, "parquet")


def tensors_from_megatron(folder: Path) -> Iterable[Batch]:
    return tensors_from(folder, "megatron")


# Grain


def _packed_by_grain(mixed: Any) -> Iterable[Batch]:
    import grain
    from grain import experimental

    packed = experimental.BestFitPackIterDataset(mixed, length_struct={"tokens": ROW}, num_packing_bins=BINS)
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=PREFETCH)
    return _Counted(packed.batch(BATCH).mp_prefetch(options), "tokens_segment_ids")


def _mixed_by_key(sources: Iterable[Any]) -> Iterable[Batch]:
    import grain

    parts = [grain.MapDataset.source(source).shuffle(seed=0).repeat() for source in sources]
    return _packed_by_grain(grain.MapDataset.mix(parts, list(WEIGHTS.values())).to_iter_dataset())


class MegatronFiles:
    """The documents of Megatron's files, read as directly as possible."""

    def __init__(self, folder: Path) -> None:
        self._ids, self._places = [], []
        for number, path in enumerate(sorted(folder.glob("*.idx"))):
            sizes = np.frombuffer(path.read_bytes(), "<i4", int.from_bytes(path.read_bytes()[18:26], "little"), 34)
            stops = np.cumsum(sizes, dtype=np.int64)
            self._ids.append(np.memmap(path.with_suffix(".bin"), np.int32, "r"))
            self._places += [(number, *place) for place in zip((stops - sizes).tolist(), stops.tolist(), strict=True)]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, key: int) -> dict[str, Any]:
        number, begin, end = self._places[key]
        return {"tokens": np.asarray(self._ids[number][begin:end])}


def grain_from_megatron(folder: Path) -> Iterable[Batch]:
    return _mixed_by_key(MegatronFiles(folder / name) for name in WEIGHTS)


def grain_from_arrow(folder: Path) -> Iterable[Batch]:
    import datasets

    datasets.disable_progress_bars()
    cache = str(folder / "cache")
    return _mixed_by_key(
        datasets.Dataset.from_parquet(_files(folder, name), cache_dir=cache).with_format("numpy") for name in WEIGHTS
    )


def grain_from_parquet(folder: Path) -> Iterable[Batch]:
    import grain
    from grain import experimental

    parts = [
        experimental.RepeatIterDataset(experimental.ParquetIterDataset(_files(folder, name))) for name in WEIGHTS
    ]
    return _packed_by_grain(grain.IterDataset.mix(parts, list(WEIGHTS.values())))


def _files(folder: Path, name: str) -> list[str]:
    return sorted(map(str, (folder / name).glob("*.parquet")))


# Hugging Face


def joined(columns: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Joins documents and cuts them into rows, as most training scripts do."""
    tokens = list(chain(*columns["tokens"]))
    return {"tokens": [tokens[at : at + ROW] for at in range(0, len(tokens) - ROW + 1, ROW)]}


def joined_arrays(columns: dict[str, Any]) -> dict[str, Any]:
    tokens = np.concatenate(list(columns["tokens"]))
    return {"tokens": tokens[: len(tokens) // ROW * ROW].reshape(-1, ROW)}


def _streamed(folder: Path, join: Callable[..., Any], form: str | None) -> Iterable[Batch]:
    import datasets
    from torch.utils.data import DataLoader

    def stream(name: str) -> Any:
        found: Any = datasets.load_dataset("parquet", data_files=_files(folder, name), split="train", streaming=True)
        return found.shuffle(seed=0, buffer_size=BUFFER).repeat(None)

    shares = list(WEIGHTS.values())
    mixed = datasets.interleave_datasets([stream(name) for name in WEIGHTS], probabilities=shares, seed=0)
    packed = mixed.with_format(form).map(join, batched=True, batch_size=JOINED).with_format("torch")
    return _Counted(DataLoader(packed, BATCH, num_workers=WORKERS, prefetch_factor=PREFETCH), None)


def streamed_lists(folder: Path) -> Iterable[Batch]:
    return _streamed(folder, joined, None)


def streamed_arrays(folder: Path) -> Iterable[Batch]:
    return _streamed(folder, joined_arrays, "numpy")


PARQUET = {
    "penstock, Parquet": Contender(from_parquet, epochs=False),
    "penstock, Parquet, tensors": Contender(tensors_from_parquet, "torch", epochs=False),
    "Grain, Parquet": Contender(grain_from_parquet, "grain", 3.0, epochs=False),
    "Grain, Arrow of datasets": Contender(grain_from_arrow, "grain", 3.0, epochs=False),
    "datasets streaming, list": Contender(streamed_lists, "datasets", 3.0, epochs=False),
    "datasets streaming, numpy": Contender(streamed_arrays, "datasets", 3.0, epochs=False),
}
MEGATRON = {
    "penstock, Megatron": Contender(from_megatron, epochs=False),
    "penstock, Megatron, tensors": Contender(tensors_from_megatron, "torch", epochs=False),
    "Grain, Megatron": Contender(grain_from_megatron, "grain", 3.0, epochs=False),
}


# Beside np.take


def beside_take(rounds: int) -> str:
    """Returns the processor time for each row of a loader, beside np.take of rows that are packed already."""
    parts = documents(0.25, 9)
    packed = penstock.pack(parts, ROW, lengths=len)
    rows = np.stack([row["tokens"] for row in packed])
    out = np.empty((BATCH, ROW), np.int32)

    def take() -> None:
        keys = np.random.default_rng(0).permutation(len(rows) // BATCH * BATCH).reshape(-1, BATCH)
        for some in keys:
            np.take(rows, some, 0, out)

    def load(data: Any) -> Callable[[], None]:
        loader = penstock.DataLoader(data, BATCH, shuffle=True, seed=0)

        def run() -> None:
            for batch in loader:
                del batch

        return run

    loads = {
        "np.take of packed rows": take,
        "loader, rows that are packed already": load(penstock.ArrayDataset(rows)),
        "loader, documents packed as they are read": load(packed),
    }
    taken: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(rounds + 1):  # the first warms up
        for name, run in loads.items():
            begin = time.process_time()
            run()
            taken[name].append((time.process_time() - begin) / len(rows) * 1e6)
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
    least = medians["np.take of packed rows"]
    lines = [f"| {name} | {each:.2f} | {each / least:.2f} |" for name, each in medians.items()]
    return "\n".join([f"| rows of {ROW:,} int32 | CPU µs a row | times np.take |", "|---|---|---|", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--serve")
    if parser.parse_known_args()[0].serve:
        return Comparison("bench.language", "tokens", write, PARQUET | MEGATRON).main(__doc__)
    missed = [Comparison("bench.language", "tokens", write, kind).main(__doc__) for kind in (PARQUET, MEGATRON)]
    print(beside_take(5))
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
