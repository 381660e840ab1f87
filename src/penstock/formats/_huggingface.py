"""Reads Hugging Face datasets without creating a Python object for each value."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._cache.lru import LruCache
from penstock._files.local import File
from penstock._files.too_large import LIMIT, checked_limit, refuse_large
from penstock._printable import counted
from penstock.formats._blocks import KEEP
from penstock.formats._decoders import Decoder
from penstock.formats._format import Format
from penstock.formats._inspection import FieldInfo
from penstock.formats._table import Table, need_pyarrow
from penstock.source._nested import Lengths, gathers_numpy

_LOOKED_AT = 15  # rows in a fingerprint, besides the first


class HuggingFace(Table):
    """A dataset with the rows of a map-style `datasets.Dataset`, read directly from its Arrow table.

    The effects of `select`, `shuffle`, `filter` and similar methods are kept, as are the columns chosen by
    `set_format`. Numbers are numpy scalars and lists of numbers are numpy arrays, where the dataset itself returns
    Python ints and lists. Dates are datetime64. If the dataset has a format (`with_format`, `with_transform`), or
    features that must be decoded (images, audio), the dataset creates the samples itself, and `is_direct` is False.
    Workers share a memory-mapped table; a dataset in memory is sent to them. Needs `pip install ".[huggingface]"`.

    `decode={"image": function}` decodes a column of images by a function of bytes, for example a
    `penstock.image.Transform`. The dataset itself then does not decode the column, so rows are read directly. With
    None in place of the function, the sample has the bytes.

    Reading a sample with an image raises an error if, according to the image's header, its pixels have more than
    `max_sample_bytes`.
    """

    _part = "record batch"

    def __init__(
        self,
        dataset: Any,
        *,
        decode: Mapping[str, Decoder | None] | None = None,
        max_sample_bytes: int | None = LIMIT,
    ) -> None:
        need_pyarrow("HuggingFace", "huggingface")
        _check(dataset)
        self.max_sample_bytes = checked_limit(max_sample_bytes)
        super().__init__(KEEP)
        self.dataset, self.decode = dataset, decode
        self._look()

    def _look(self) -> None:
        import pyarrow as pa

        dataset, self.files = self.dataset, []
        names = _direct_columns(dataset, self.decode or ())
        self.is_direct = names is not None
        self._pictures = [] if self.is_direct else _picture_columns(dataset)
        table = dataset._data.table
        self._set_schema(pa.schema([field for field in table.schema if names is None or field.name in names]))
        if self.decode and not self.is_direct:
            _refuse_decode(dataset, self.decode)
        self._set_decode(self.decode)
        self._batches = self._set_batches(table)
        self.edges = np.array([0, len(dataset)])
        self._chosen: NDArray[Any] | None = None
        if dataset._indices is not None:
            self._chosen = dataset._indices.column(0).to_numpy()

    @property
    def paths(self) -> list[str]:
        """The paths of the dataset's files, or an empty list if the dataset is in memory."""
        return [each["filename"] for each in self.dataset.cache_files]

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """The index of the first row of each record batch, followed by the total number of rows.

        If `select` or `shuffle` has chosen the rows, or if `is_direct` is False, all rows form one block.
        """
        return self._starts if self._chosen is None and self.is_direct else self.edges

    @property
    def __lengths__(self) -> Lengths:
        if not self.is_direct:
            raise AttributeError("its samples are made by the dataset, so their lengths are not known")
        lengths = super().__lengths__
        return lengths if self._chosen is None else lambda: lengths()[self._chosen]

    def sample(self, row: int) -> Any:
        if not self.is_direct:
            self._check_images([row])
            return self.dataset[row]
        return super().sample(row)

    def _stored_sample(self, row: int) -> dict[str, Any]:
        return super()._stored_sample(row if self._chosen is None else self._chosen.item(row))

    def _bytes_of(self, image: dict[str, Any], column: str, row: int) -> bytes:
        if image["bytes"] is None and image["path"] and os.path.isfile(image["path"]):
            file = File(image["path"])  # as load_dataset("imagefolder") leaves it
            return file.read(0, file.size)
        return super()._bytes_of(image, column, row)

    def samples(self, keys: Sequence[int], rows: NDArray[np.int64]) -> list[Any]:
        if not self.is_direct:
            self._check_images(rows.tolist())
            samples: list[Any] = self.dataset.__getitems__(rows.tolist())
            return samples
        return super().samples(keys, rows)

    def _check_images(self, rows: Sequence[int]) -> None:
        """Raises SampleTooLarge if the dataset would decode an image of more than `max_sample_bytes`."""
        limit, table = self.max_sample_bytes, self.dataset._data.table
        if limit is None:
            return
        for name in self._pictures:
            for row in rows:
                stored = row if self._chosen is None else self._chosen.item(row)
                (value,) = table.column(name).slice(stored, 1).to_pylist()
                for image in value if isinstance(value, list) else [value]:
                    nbytes = _pixel_bytes(image)
                    if nbytes > limit:
                        refuse_large(f"{self!r}, row {row:,}, {name!r}", nbytes, limit)

    def _groups(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Sequence[int], list[int]]]:
        return super()._groups(rows if self._chosen is None else self._chosen[rows].astype(np.int64))

    @gathers_numpy
    def __gather__(self, keys: Any, empty: Any) -> Any:
        return super().__gather__(keys, empty) if self.is_direct else NotImplemented

    def _read(self, block: int) -> list[Any]:
        return [self._batches[block]]

    def _is_mapped(self, block: int) -> bool:
        return True

    def _place(self, block: int) -> str:
        return f"record batch {block:,} of {self!r}"

    @cached_property
    def _fingerprint(self) -> str | None:
        """A digest of the column names and a few rows. A copy of the dataset has the same digest."""
        n, table = len(self), self.dataset._data.table
        if not n:
            return None
        rows = sorted({(n - 1) * part // _LOOKED_AT for part in range(_LOOKED_AT + 1)})
        stored = rows if self._chosen is None else self._chosen[rows].tolist()
        values = [[column.slice(row, 1).to_pylist() for column in table.columns] for row in stored]
        digest = hashlib.sha256(repr((table.column_names, values)).encode()).hexdigest()[:16]
        return f"{n:,} rows, {digest}"

    def fields(self) -> tuple[FieldInfo, ...]:
        return super().fields() if self.is_direct else Format.fields(self)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: self.__dict__[name] for name in ("dataset", "decode", "keep", "max_sample_bytes")}
        return {**own, "_kept": LruCache(self.keep)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self), 'sample')}: {', '.join(self.columns)})"


def _check(dataset: Any) -> None:
    from penstock.source._dataset import is_stream

    if is_stream(dataset):
        raise TypeError(
            "HuggingFace reads map-style datasets by key, and this one is a stream (streaming=True). Pass it to the "
            "DataLoader itself, or load it without streaming=True."
        )
    if isinstance(dataset, dict):
        raise TypeError(f"HuggingFace reads one dataset, and this is a dict of them. Choose one: {sorted(dataset)}.")
    if not all(hasattr(dataset, name) for name in ("_data", "_indices", "features", "cache_files")):
        raise TypeError(
            f"HuggingFace reads a datasets.Dataset, but got a {type(dataset).__name__}. Pass what "
            'datasets.load_dataset(..., split="train") or datasets.load_from_disk(folder) returns.'
        )


def _direct_columns(dataset: Any, decoded: Collection[str]) -> list[str] | None:
    """Returns the column names if samples can be read directly from the Arrow table, otherwise None.

    `decoded` holds the columns that penstock decodes.
    """
    given = dataset.format
    if given["type"] is not None or given["format_kwargs"] or given["output_all_columns"]:
        return None
    names = [name for name in dataset.column_names if name in given["columns"]]
    decodes = getattr(dataset.features, "_column_requires_decoding", None)  # private: Image, Audio and others
    if not names or decodes is None or any(decodes.get(name, True) for name in names if name not in decoded):
        return None
    return names


def _refuse_decode(dataset: Any, decode: Collection[str]) -> NoReturn:
    given = dataset.format
    if given["type"] is not None or given["format_kwargs"] or given["output_all_columns"]:
        raise ValueError(
            f"decode= needs a dataset without a format, but its format is {given['type']!r}: pass "
            "dataset.with_format(None)."
        )
    decodes = getattr(dataset.features, "_column_requires_decoding", {})
    others = [name for name in given["columns"] if decodes.get(name, True) and name not in decode]
    raise ValueError(
        f"decode= names only {', '.join(map(repr, decode))}, but the dataset must also decode "
        f"{', '.join(map(repr, others))}. Name that in decode= too, or leave it out with dataset.remove_columns."
    )


def _picture_columns(dataset: Any) -> list[str]:
    inner = {name: getattr(feature, "feature", feature) for name, feature in dataset.features.items()}
    inner = {name: feature[0] if isinstance(feature, list) else feature for name, feature in inner.items()}
    pictures = [name for name, feature in inner.items() if type(feature).__name__ == "Image" and feature.decode]
    return [name for name in pictures if name in dataset.format["columns"]]


def _pixel_bytes(image: Any) -> int:
    """Returns the size in bytes of an image's pixels according to its header, or 0 if the header is unreadable."""
    from PIL import Image  # late, because other datasets do not need it

    if not image or not (image["bytes"] or image["path"]):
        return 0
    try:
        with Image.open(io.BytesIO(image["bytes"]) if image["bytes"] else image["path"]) as opened:
            return opened.width * opened.height * len(opened.getbands()) * (4 if opened.mode in ("I", "F") else 1)
    except Exception:  # the dataset itself will raise an error for it
        return 0
