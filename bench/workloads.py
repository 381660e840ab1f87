"""The workloads: each is a dataset, a batch size and the fetch that the limit repeats without a loader.

Every loader gets the same dataset object, so a difference between two columns is a difference between loaders.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import images

ROWS_SHAPE = (400_000, 512)
IMAGES_SHAPE = (2_000, 224, 224, 3)
TENSOR_IMAGES_SHAPE = (2_000, 3, 224, 224)  # of the same file
TOKENS_SHAPE = (100_000, 1024)
EPOCH_STEPS = 20  # of the rows of the epoch boundary
INTS = 2_000_000  # long enough that torch, at a thousand batches a second, never meets the end of an epoch


class Ints:
    """Sample i is the number i."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        return int(key)


class Mapped:
    """Sample i is row i of a memory-mapped file; it pickles as the file's name, not as its bytes."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str) -> None:
        self._args = (path, shape, dtype)
        # Copy-on-write, because torch warns about arrays that it may not write to.
        self.map = np.memmap(path, dtype, mode="c", shape=shape)
        # A plain ndarray over the map: indexing the memmap class costs several microseconds a row.
        self.array = np.asarray(self.map)

    def __reduce__(self) -> Any:
        return type(self), self._args

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: int) -> np.ndarray:
        return self.array[key]


class MappedMany(Mapped):
    """The same rows, fetched many at once."""

    def __getitems__(self, keys: Any) -> np.ndarray:
        return self.array[keys]


class Dicts:
    """Sample i is a dict of 20 arrays of 8 float32."""

    names = tuple(f"field_{j:02d}" for j in range(20))

    def __init__(self, n: int = 20_000) -> None:
        self.values = np.random.default_rng(0).random((n, 20, 8), np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: int) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.values[key], strict=True))


class Turns:
    """Sample i costs 3,000 turns of a loop in pure Python."""

    def __init__(self, n: int = 200_000) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        total = int(key)
        for turn in range(3_000):
            total ^= turn
        return total


class Waits:
    """Sample i takes 4 ms in which the processor is free, as a read from a network does."""

    def __init__(self, n: int = 200_000) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        time.sleep(0.004)
        return int(key)


def one_by_one(dataset: Any, keys: np.ndarray, out: Any) -> None:
    """The fetch of a batch with nothing around it."""
    for row, key in enumerate(keys.tolist()):
        out[row] = dataset[key]


def many_at_once(dataset: Any, keys: np.ndarray, out: Any) -> None:
    # mode="clip" lets numpy write into `out` directly; with "raise" it goes through a buffer.
    np.take(dataset.array, keys, axis=0, out=out, mode="clip")


def field_by_field(dataset: Any, keys: np.ndarray, out: dict[str, np.ndarray]) -> None:
    for row, key in enumerate(keys.tolist()):
        for name, value in dataset[key].items():
            out[name][row] = value


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    what: str
    batch_size: int
    dataset: Callable[[Path], Any]
    shape: tuple[int, ...]  # of one sample, which the adapters' first batch is checked against
    dtype: str
    fill: Callable[[Any, np.ndarray, Any], None] = one_by_one
    workers: int = 2
    required: float | None = None  # times torch's rate
    share: float | None = None  # of the limit: an aim, not a promise
    many: bool = False  # fetched through __getitems__
    threads: bool = False  # penstock with backend="thread"; peers without threads use processes
    arrays: bool = False  # penstock through ArrayDataset
    jpegs: bool = False  # each loader uses its own decoder: see bench/images.py
    fields: tuple[str, ...] = ()
    tensors: bool = False  # for torch and penstock.torch only
    persistent: bool = True  # torch's persistent_workers
    longer: float = 1.0  # times the usual round: batches come in bursts, which a short round would cut
    kind: str = "rate"  # or "first": seconds to the first batch; or "boundary": seconds between two epochs

    def out(self) -> Any:
        """Private memory for one batch."""
        if self.fields:
            return {name: self._out() for name in self.fields}
        return self._out()

    def _out(self) -> np.ndarray:
        # From the beginning of a page: np.empty begins 16 bytes after it, and copying images from a memory map
        # to there runs at less than half the speed on this processor.
        shape = (self.batch_size, *self.shape)
        nbytes = math.prod(shape) * np.dtype(self.dtype).itemsize
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(memory, self.dtype).reshape(shape)

    def check(self, batch: Any) -> None:
        """Exit with an error unless the batch has the shape and the dtype of this workload."""
        leaves = [batch[name] for name in self.fields] if self.fields else [batch]
        for leaf in leaves:
            array = np.asarray(leaf)
            expected = (self.batch_size, *self.shape)
            if array.shape != expected or array.dtype != np.dtype(self.dtype):
                raise SystemExit(f"{self.name}: got {array.dtype}{array.shape}, not {self.dtype}{expected}")
            if self.tensors and type(leaf).__name__ != "Tensor":
                raise SystemExit(f"{self.name}: got a {type(leaf).__name__}, not a tensor")


def _rows(folder: Path) -> Mapped:
    return Mapped(folder / "rows.bin", ROWS_SHAPE, "int32")


def _rows_many(folder: Path) -> MappedMany:
    return MappedMany(folder / "rows.bin", ROWS_SHAPE, "int32")


def _images(folder: Path) -> Mapped:
    return Mapped(folder / "images.bin", IMAGES_SHAPE, "uint8")


def _tensor_rows(folder: Path) -> Any:
    from bench.tensors import MappedTensors

    return MappedTensors(folder / "rows.bin", ROWS_SHAPE, "int32")


def _tensor_rows_array(folder: Path) -> Any:
    import penstock

    return penstock.ArrayDataset(_rows_many(folder).map)


def _tensor_tokens(folder: Path) -> Any:
    from penstock.formats import Tokens

    return Tokens(folder / "tokens.bin", "uint16", length=TOKENS_SHAPE[1])


def _tensor_images(folder: Path) -> Any:
    from bench.tensors import MappedTensors

    return MappedTensors(folder / "images.bin", TENSOR_IMAGES_SHAPE, "uint8")


def _tensor_dicts(_: Path) -> Any:
    from bench.tensors import DictsOfTensors

    return DictsOfTensors()


_ROWS = {"batch_size": 256, "shape": ROWS_SHAPE[1:], "dtype": "int32"}
_WAIT = {
    "batch_size": 16,
    "dataset": lambda _: Waits(),
    "shape": (),
    "dtype": "int64",
    "workers": 16,
    "longer": 3.0,
}
_FIRST = {"dataset": _tensor_rows, "kind": "first", "tensors": True, "required": 1.0, **_ROWS}
_JPEG = {
    "batch_size": 64,
    "dataset": images.Jpegs,
    "shape": (3, images.CROP, images.CROP),
    "dtype": "float32",
    "fill": images.decode_only,
    "required": 1.8,
    "share": 0.9,
    "jpegs": True,
    "longer": 4.0,
}
_BOUNDARY = {
    "batch_size": 64,
    "dataset": lambda _: Turns(64 * EPOCH_STEPS),
    "shape": (),
    "dtype": "int64",
    "kind": "boundary",
    "tensors": True,
    "required": 1.0,
}

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in [
        Workload("ints", "an int a sample", 64, lambda _: Ints(INTS), (), "int64", required=20.0),
        Workload("rows", "512 int32 from a memory map, one by one", dataset=_rows, required=2.5, **_ROWS),
        Workload(
            "rows_batched",
            "the same rows through __getitems__",
            dataset=_rows_many,
            required=10.0,
            fill=many_at_once,
            many=True,
            **_ROWS,
        ),
        Workload(
            "rows_array",
            "the same rows through ArrayDataset (peers: __getitems__)",
            dataset=_rows_many,
            required=10.0,
            fill=many_at_once,
            many=True,
            arrays=True,
            **_ROWS,
        ),
        Workload(
            "images",
            "uint8 224x224x3 from a memory map",
            64,
            _images,
            IMAGES_SHAPE[1:],
            "uint8",
            required=4.0,
            share=0.9,
        ),
        Workload("jpeg", "500x375 JPEG files, random resized crop to 224, mirror, float32 CHW", **_JPEG),
        Workload("jpeg_threads", "the same with 2 threads (torch: processes)", threads=True, **_JPEG),
        Workload(
            "dict20",
            "a dict of 20 arrays of 8 float32",
            64,
            lambda _: Dicts(),
            (8,),
            "float32",
            fill=field_by_field,
            required=4.0,
            fields=Dicts.names,
        ),
        Workload(
            "python",
            "3,000 loop turns of pure Python a sample",
            64,
            lambda _: Turns(),
            (),
            "int64",
            required=1.0,
            share=0.9,
        ),
        Workload("wait", "4 ms sleep a sample, 16 workers", required=1.0, **_WAIT),
        Workload("wait_threads", "the same with 16 threads (torch: processes)", required=1.0, threads=True, **_WAIT),
        Workload(
            "first_batch",
            "ms from constructing the loader to its first batch of rows, in a fresh process",
            dataset=_rows,
            kind="first",
            **_ROWS,
        ),
        Workload(
            "epoch_boundary",
            "ms that a training step of 12 ms waits for the first batch of the next epoch",
            64,
            lambda _: Turns(64 * EPOCH_STEPS),
            (),
            "int64",
            kind="boundary",
        ),
        # Required of penstock.torch: 4 times torch on images and dicts, and nowhere slower.
        Workload(
            "tensor_ints",
            "an int a sample, an int64 tensor a batch",
            64,
            lambda _: Ints(INTS),
            (),
            "int64",
            tensors=True,
            required=1.0,
        ),
        Workload(
            "tensor_rows",
            "tensors of 512 int32 over a memory map, one by one",
            dataset=_tensor_rows,
            tensors=True,
            required=1.0,
            **_ROWS,
        ),
        Workload(
            "tensor_rows_array",
            "512 int32 from a memory map through ArrayDataset (torch: its __getitems__)",
            dataset=_tensor_rows_array,
            tensors=True,
            required=1.0,
            **_ROWS,
        ),
        Workload(
            "tensor_tokens",
            "1,024 uint16 through penstock.formats.Tokens (torch: its __getitems__)",
            64,
            _tensor_tokens,
            TOKENS_SHAPE[1:],
            "uint16",
            tensors=True,
            required=1.0,
        ),
        Workload(
            "tensor_images",
            "uint8 tensors of 3x224x224 over a memory map",
            64,
            _tensor_images,
            TENSOR_IMAGES_SHAPE[1:],
            "uint8",
            tensors=True,
            required=4.0,
        ),
        Workload(
            "tensor_dict20",
            "a dict of 20 tensors of 8 float32",
            64,
            _tensor_dicts,
            (8,),
            "float32",
            fields=Dicts.names,
            tensors=True,
            required=4.0,
        ),
        Workload(
            "tensor_python",
            "3,000 loop turns of pure Python a sample, an int64 tensor a batch",
            64,
            lambda _: Turns(),
            (),
            "int64",
            tensors=True,
            required=1.0,
        ),
        Workload("tensor_wait", "4 ms sleep a sample, 16 workers", tensors=True, required=1.0, **_WAIT),
        Workload(
            "tensor_first_batch",
            "ms from constructing the loader to its first batch of tensor_rows, in a fresh process",
            persistent=False,
            **_FIRST,
        ),
        Workload("tensor_first_batch_persistent", "the same with persistent_workers", **_FIRST),
        Workload(
            "tensor_epoch_boundary",
            "ms that a training step of 12 ms waits for the first batch of the next epoch, with new workers",
            persistent=False,
            **_BOUNDARY,
        ),
        Workload("tensor_epoch_boundary_persistent", "the same with persistent_workers", **_BOUNDARY),
    ]
}

_MAPPED = {  # the files that datasets map; the others map none
    _rows: ("rows.bin", ROWS_SHAPE, "int32"),
    _rows_many: ("rows.bin", ROWS_SHAPE, "int32"),
    _tensor_rows: ("rows.bin", ROWS_SHAPE, "int32"),
    _tensor_rows_array: ("rows.bin", ROWS_SHAPE, "int32"),
    _tensor_tokens: ("tokens.bin", TOKENS_SHAPE, "uint16"),
    _images: ("images.bin", IMAGES_SHAPE, "uint8"),
    _tensor_images: ("images.bin", IMAGES_SHAPE, "uint8"),
}


# Only `bench.free` has it: without the GIL, Pillow is the only decoder with a wheel.
FREE_WORKLOADS = {
    "jpeg": Workload(
        "jpeg",
        "the JPEG files through Pillow, one by one",
        **{**_JPEG, "jpegs": False, "required": None, "share": None},
    )
}


def write_files(folder: Path, names: set[str]) -> None:
    """Write the files that the named workloads read: 819 MB of rows, 301 MB of images, 36 MB of JPEGs."""
    for name in names:
        if WORKLOADS[name].jpegs:
            images.write_jpegs(folder)
        if (mapped := _MAPPED.get(WORKLOADS[name].dataset)) is not None:
            file, shape, dtype = mapped
            _write(folder / file, shape, dtype)


def _write(path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """Write one random block again and again: drawing a gigabyte would take longer than measuring."""
    if path.exists():
        return
    block = np.random.default_rng(0).integers(0, 256, (500, *shape[1:])).astype(dtype)
    with path.open("wb") as file:
        for _ in range(shape[0] // 500):
            block.tofile(file)
