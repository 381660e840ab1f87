"""`MDS` reads the shards of MosaicML's streaming library by key.

    index.json:  for each shard: name, number of samples, size, hashes, and names, encodings and sizes of the columns
    a sample:    the size of each variable-size column (4 bytes) | the columns, in the order of index.json

`_sharded.py` describes the layout of a shard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import FileOptions
from penstock._files.local import AnyFile
from penstock._files.paths import Paths
from penstock.errors import FormatError
from penstock.formats._decoders import _image, _json, check_decode
from penstock.formats._sharded import Decode, Field, Shard, Sharded, field, number_of, pixels

_SHAPES = ("uint8", "uint16", "uint32", "uint64")
_DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32"}
_DTYPES |= {34: "float32", 64: "uint64", 65: "int64", 66: "float64"}


class MDS(Sharded):
    """A dataset of MosaicML's MDS shards. A sample is a dict with a value for each column.

    `paths` is the folder that `MDSWriter` has written, its `index.json`, or a list of these. Numbers, text, JSON and
    arrays are decoded; jpeg and png images are decoded to RGB pixels by `penstock.image`. `decode=False` keeps the
    bytes of images. `decode={"image": Transform(crop=224)}` replaces the decoding function of a column; None in place
    of the function keeps the column's bytes. A pickle raises an error unless there is a function for it.
    `columns=["image", "label"]` reads only these columns.

    A block is a shard. Compressed shards raise an error unless the decompressed shards are in the same folder.

    `storage`, `cache` and similar arguments apply to remote files: see `penstock.formats`.
    """

    def __init__(
        self,
        paths: Paths,
        columns: list[str] | None = None,
        *,
        decode: Decode = True,
        **files: Unpack[FileOptions],
    ) -> None:
        check_decode(decode, "columns")
        self._decode, self._wanted = decode, columns
        self._fields: list[Field] = []
        self._fixed: list[int | None] = []
        self._read: list[tuple[int, Field]] = []  # the fields to read, with their indices
        super().__init__(paths, **files)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.lstrip().startswith(b"{") and b'"shards"' in first_bytes and b'"column_' in first_bytes

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order of the samples' fields."""
        return [each.name for _, each in self._read]

    def listed(self, index: AnyFile, about: Any) -> list[Shard]:
        return [self._shard(index, each) for each in about["shards"]]

    def _shard(self, index: AnyFile, about: Any) -> Shard:
        raw, name = about["raw_data"], about["raw_data"]["basename"]
        if (about["format"], about["version"]) != ("mds", 2):
            index.refused(0, f"{name} is of format {about['format']!r}, version {about['version']!r}, and not MDS 2")
        if about["compression"]:
            try:
                index.neighbour(name)
            except FileNotFoundError:
                index.refused(
                    0,
                    f"its shards are compressed ({about['compression']}), so no sample can be read alone. Decompress "
                    f"{about['zip_data']['basename']!r} and the others to the names that the index has as raw_data, "
                    f"such as {name!r}, or write the dataset with compression=None",
                )
        names, encodings, sizes = about["column_names"], about["column_encodings"], about["column_sizes"]
        fields = [self._field(*each) for each in zip(names, encodings, strict=True)]
        if refusals := [each.refusal for each in fields if each.refusal]:
            raise FormatError(f"{index.path}: {refusals[0]}")
        if self._fields and [each[:2] for each in fields] != [each[:2] for each in self._fields]:
            index.refused(0, f"the columns of {name} are not those of the other shards. Read them as two datasets")
        if not self._fields:
            given = [*(self._wanted or ()), *(self._decode if isinstance(self._decode, Mapping) else ())]
            if unknown := [each for each in given if each not in names]:
                index.refused(0, f"there is no column {unknown[0]!r}, but {', '.join(map(repr, names))}")
            self._fields, self._fixed = fields, [size or None for size in sizes]
            some = enumerate(fields)
            self._read = [(at, each) for at, each in some if self._wanted is None or each.name in self._wanted]
            if len(self._fixed) != len(fields) or not all(size is None or type(size) is int for size in self._fixed):
                raise ValueError(f"column_sizes are {sizes}")
        hashes = sorted((raw.get("hashes") or {}).items())
        return Shard(name, about["samples"], raw["bytes"], str(hashes[0]) if hashes else None)

    def _field(self, name: str, encoding: str) -> Field:
        if self._wanted is not None and name not in self._wanted:
            return Field(name, encoding)
        kind, *about = encoding.split(":")
        if kind != "ndarray":
            return field(name, encoding, _DECODERS, self._decode)
        dtype = np.dtype(about[0]) if about else None
        shape = tuple(map(int, about[1].split(","))) if len(about) > 1 else None
        return field(name, encoding, {encoding: partial(_array, dtype, shape)}, self._decode)

    def decoded(self, raw: bytes, number: int, row: int) -> dict[str, Any]:
        parts = self.parts(raw, number, row, self._fixed)
        return {each.name: self.value(each, parts[at], number, row) for at, each in self._read}


def _array(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, raw: bytes) -> NDArray[Any]:
    """Decodes an array. If `dtype` is None, the dtype is stored before the numbers; likewise for `shape`."""
    at = 0
    if dtype is None:
        dtype, at = np.dtype(_DTYPES[raw[0]]), 1
    if shape is None:
        axes, width = raw[at] >> 2, np.dtype(_SHAPES[raw[at] & 3])
        shape = tuple(np.frombuffer(raw, width, axes, at + 1).tolist())
        at += 1 + axes * width.itemsize
    values = np.frombuffer(raw[at:], dtype)
    if math.prod(shape) != len(values):
        raise ValueError(f"{len(values):,} numbers are not an array of shape {shape}")
    return values.reshape(shape).copy()  # writable


def _scalar(dtype: str, raw: bytes) -> Any:
    (number,) = np.frombuffer(raw, dtype)
    return number


def _decimal(raw: bytes) -> Decimal:
    return Decimal(raw.decode())


_NUMBERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_DECODERS: dict[str, Any] = {
    "bytes": None,
    "str": bytes.decode,
    "int": partial(number_of, "<q"),
    "str_int": int,
    "str_float": float,
    "str_decimal": _decimal,
    "json": _json,
    "pil": pixels,
    "jpeg": _image,
    "png": _image,
    **{name: partial(_scalar, name) for name in _NUMBERS},
}
