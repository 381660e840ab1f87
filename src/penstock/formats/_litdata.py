"""`LitData` reads the chunks of LitData's optimized datasets by key.

    index.json:  for each chunk: name, number of samples, size
                 for all samples together: their structure (a tree), and the format of each leaf
    a sample:    the size of each leaf (4 bytes each) | the leaves

`_sharded.py` describes the layout of a chunk. Token datasets store the ids of all samples one after the other. In
some chunks, the samples are rows of an Arrow file. It comes after the head of the chunk, and is followed by its
length (4 bytes) and an end marker (8).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._cache.lru import LruCache
from penstock._files.access import FileOptions
from penstock._files.local import AnyFile
from penstock._files.paths import Paths
from penstock._files.too_large import check_block
from penstock.errors import FormatError
from penstock.formats._blocks import KEEP
from penstock.formats._decoders import _image, check_decode
from penstock.formats._messages import find_messages, unpacked_bytes
from penstock.formats._sharded import Decode, Field, Shard, Sharded, field, number_of, pixels
from penstock.formats._table import need_pyarrow, unreadable

_MARK = b"LDARW01\0"
# The dtypes of arrays, by their codes in LitData. Some dtypes of tensors have two codes.
_NUMPY: tuple[str, ...] = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMPY += ("float16", "float32", "float64", "complex64", "complex128", "bool")
_TENSORS: tuple[str, ...] = ("float32", "float32", "float64", "float64", "complex64", "complex64", "complex128")
_TENSORS += ("complex128", "float16", "float16", "bfloat16", "uint8", "int8", "int16", "int16", "int32", "int32")
_TENSORS += ("int64", "int64", "bool", "uint16")


class LitData(Sharded):
    """A dataset of the samples in LitData's optimized datasets. A sample may be a nested dict, list or tuple.

    `paths` is the folder that `litdata.optimize` has written, its `index.json`, or a list of these. Samples keep
    their structure. Tensors and arrays become numpy arrays, and images are decoded to RGB pixels by `penstock.image`.
    `decode=False` keeps the bytes of images. `decode={"image": Transform(crop=224)}` replaces the decoding function
    of a field; None in place of the function keeps the field's bytes. The name of a nested field is its path joined
    by dots, such as `"labels.0"`, and it is `""` if a sample is a single value. A pickle raises an error unless there
    is a function for it. Samples that LitData stores as Arrow rows need `pip install ".[parquet]"`.

    `block_size` is the number of ids in a sample, as in LitData. It is only for token datasets (`TokensLoader`).

    A block is a chunk. Compressed and encrypted chunks raise an error.

    `storage`, `cache` and similar arguments apply to remote files: see `penstock.formats`.
    """

    companions = ("chunk-*.bin",)

    def __init__(
        self,
        paths: Paths,
        block_size: int | None = None,
        *,
        decode: Decode = True,
        **files: Unpack[FileOptions],
    ) -> None:
        check_decode(decode, "fields")
        if block_size is not None and (type(block_size) is not int or block_size < 1):
            raise ValueError(f"block_size must be 1 or more ids, but it is {block_size!r}.")
        self._decode, self.block_size = decode, block_size
        self._config: dict[str, Any] | None = None
        self._tables: LruCache[int, Any] = LruCache(KEEP)
        super().__init__(paths, **files)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.lstrip().startswith(b"{") and b'"chunks"' in first_bytes and b'"chunk_' in first_bytes

    def listed(self, index: AnyFile, about: Any) -> list[Shard]:
        config = {name: about["config"].get(name) for name in ("data_format", "data_spec", "item_loader")}
        for what in ("compression", "encryption"):
            if about["config"].get(what):
                remedy = f"so a sample cannot be read alone. Write the dataset again without {what}="
                index.refused(0, f"its chunks have {what} ({about['config'][what]}), {remedy}")
        if self._config is not None and config != self._config:
            index.refused(0, "its samples have another form than those of the other files. Read them as two datasets")
        if self._config is None:
            self._config = config
            self._set_form(index, config)
        is_tokens = self.block_size is not None
        return [
            Shard(each["filename"], each["chunk_size"], each["chunk_bytes"], ids=int(each["dim"]) if is_tokens else 0)
            for each in about["chunks"]
        ]

    def _set_form(self, index: AnyFile, config: dict[str, Any]) -> None:
        is_tokens = config["item_loader"] == "TokensLoader"
        if is_tokens and self.block_size is None:
            index.refused(0, "this is a dataset of tokens. Pass the number of ids of a sample: block_size=2048")
        if self.block_size is not None and not is_tokens:
            raise ValueError(f"block_size is for datasets of tokens, and {index.path} is of {config['item_loader']}.")
        if not is_tokens and config["item_loader"] not in (None, "PyTreeLoader"):
            loaders = "only those of PyTreeLoader and TokensLoader"
            index.refused(0, f"samples of {config['item_loader']} cannot be read, {loaders}")
        self._form = json.loads(config["data_spec"])[1]
        names, formats = list(_names(self._form)), config["data_format"]
        if len(names) != len(formats):
            raise ValueError(f"{len(names)} leaves with {len(formats)} formats")
        given = self._decode if isinstance(self._decode, Mapping) else ()
        if unknown := [each for each in given if each not in names]:
            index.refused(0, f"there is no field {unknown[0]!r} to decode, but {', '.join(map(repr, names))}")
        self.leaves = [self._leaf(name, kind) for name, kind in zip(names, formats, strict=True)]
        if is_tokens:
            dtype = _dtype(formats[0])
            if dtype is None:
                index.refused(0, "its ids are bfloat16, which numpy does not have")
            self.dtype = dtype

    def _leaf(self, name: str, encoding: str) -> Field:
        kind = encoding.partition(":")[0]
        usual = dict(_DECODERS)
        if kind in ("no_header_tensor", "no_header_numpy") and _dtype(encoding) is not None:
            usual[encoding] = partial(_flat, _dtype(encoding))
        elif kind in ("file", "image", "text"):
            usual[encoding] = _DECODERS[kind]
        return field(name, encoding, usual, self._decode)

    def rows_of(self, shard: Shard) -> int:
        return shard.samples if self.block_size is None else shard.ids // self.block_size

    def extent(self, number: int, row: int) -> tuple[int, int]:
        if self.block_size is None:
            return super().extent(number, row)
        width, shard = self.block_size * self.dtype.itemsize, self._shards[number]
        start = 4 * (shard.samples + 2) + row * width
        if start + width > self.files[number].size:
            self.files[number].damaged(start, f"the ids from {row * self.block_size:,} on should be here")
        return start, width

    def decoded(self, raw: bytes, number: int, row: int) -> Any:
        if self.block_size is not None:
            return _flat(self.dtype, raw)
        if not raw and self.leaves:
            return self._row(number, row)
        parts = self.parts(raw, number, row, [None] * len(self.leaves))
        values = [self.value(leaf, part, number, row) for leaf, part in zip(self.leaves, parts, strict=True)]
        return _built(self._form, iter(values))

    def _row(self, number: int, row: int) -> Any:
        try:
            batches, size = self._tables.get(number, self._table)
            return batches[row // size].slice(row % size, 1).to_pylist()[0]
        except FormatError:
            raise
        except Exception as error:
            unreadable(f"{self.files[number].path}, sample {row:,}", error)

    def _table(self, number: int) -> tuple[Any, int]:
        need_pyarrow("LitData")
        import pyarrow as pa

        file, samples = self.files[number], self._shards[number].samples
        end = file.read(max(0, file.size - 12), min(12, file.size))
        length = struct.unpack_from("<I", end)[0] if end.endswith(_MARK) and len(end) == 12 else file.size
        if length > file.size - 12:
            file.damaged(file.size, "its samples are empty, and it does not end with an Arrow table of them")
        content = file.read(file.size - 12 - length, length)
        if self.max_sample_bytes is not None:
            table = _ArrowTable(file, file.size - 12 - length, length)
            messages = find_messages(table, lambda start, stop: content[start:stop])  # type: ignore[arg-type]
            for rows, (start, end) in zip(messages.rows.tolist(), messages.extents.tolist(), strict=True):
                check_block(file.path, rows, unpacked_bytes(content[start:end]), self.max_sample_bytes)
        opened = pa.ipc.open_file(pa.py_buffer(content))
        batches = [opened.get_batch(at) for at in range(opened.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # an invalid offset would crash the process
        sizes = [batch.num_rows for batch in batches]
        if sum(sizes) != samples or len(set(sizes[:-1])) > 1 or max(sizes, default=0) not in sizes[:1]:
            raise ValueError(f"it has {sum(sizes):,} rows in batches of {sizes[:3]}, and not {samples:,}")
        return (batches, sizes[0]), length


class _ArrowTable(NamedTuple):
    """The Arrow file inside a chunk, with the attributes and methods that `find_messages` uses."""

    file: AnyFile
    start: int
    size: int

    def damaged(self, at: int, what: str) -> NoReturn:
        self.file.damaged(self.start + at, what)

    def refused(self, at: int, what: str) -> NoReturn:
        self.file.refused(self.start + at, what)


def _keys(form: Any) -> Sequence[Any]:
    """Returns the keys of a dict, list or tuple in a sample's structure. Raises ValueError for other types."""
    kind, count = form["type"], len(form["children_spec"])
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys: list[Any] = json.loads(form["context"])
        if len(keys) == count:
            return keys
    if kind in ("builtins.list", "builtins.tuple"):
        return range(count)
    raise ValueError(f"a part of the samples is of type {kind!r}, which penstock does not read")


def _names(form: Any, name: str = "") -> Iterator[str]:
    """Yields the dotted path of each leaf in a sample's structure."""
    if form["type"] is None:
        yield name
        return
    for key, child in zip(_keys(form), form["children_spec"], strict=True):
        yield from _names(child, f"{name}.{key}" if name else str(key))


def _built(form: Any, leaves: Iterator[Any]) -> Any:
    if form["type"] is None:
        return next(leaves)
    parts = [_built(child, leaves) for child in form["children_spec"]]
    if form["type"] == "builtins.tuple":
        return tuple(parts)
    return parts if form["type"] == "builtins.list" else dict(zip(_keys(form), parts, strict=True))


def _dtype(encoding: str) -> np.dtype[Any] | None:
    """Returns the dtype of arrays stored without a header, or None if numpy lacks that dtype (bfloat16)."""
    kind, _, code = encoding.partition(":")
    name = (_NUMPY if kind.endswith("numpy") else _TENSORS)[int(code)]
    return None if name == "bfloat16" else np.dtype(name)


def _flat(dtype: np.dtype[Any] | None, raw: bytes) -> NDArray[Any]:
    return np.frombuffer(raw, dtype).copy()  # writable


def _shaped(order: str, names: Sequence[str], raw: bytes) -> NDArray[Any]:
    """Decodes an array whose dtype and shape are stored before its numbers."""
    code, axes = struct.unpack_from(f"{order}2I", raw)
    shape = struct.unpack_from(f"{order}{axes}I", raw, 8)
    values = np.frombuffer(raw[8 + 4 * axes :], names[code])
    if math.prod(shape) != len(values):
        raise ValueError(f"{len(values):,} numbers are not an array of shape {shape}")
    return values.reshape(shape).copy()


_DECODERS: dict[str, Any] = {
    "str": bytes.decode,
    "text": bytes.decode,
    "bytes": None,
    "file": None,
    "bool": partial(number_of, "<?"),
    "int": partial(number_of, "<q"),
    "float": partial(number_of, "<d"),
    "tensor": partial(_shaped, ">", _TENSORS),
    "numpy": partial(_shaped, "<", _NUMPY),
    "jpeg": _image,
    "image": _image,
    "pil": pixels,
}
