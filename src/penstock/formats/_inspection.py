"""Descriptions of datasets, for `penstock inspect` and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """A field of the samples.

    `name` is "" if a sample is a single value. `shape` is the field's shape in the first sample, or None if the value
    has no shape or if there is no sample.

    >>> FieldInfo("label", "int64", ())
    FieldInfo(name='label', dtype='int64', shape=())
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A description of files and their samples.

    `files`, `samples` and `blocks` are counts, and `bytes` is the total size of the files. `first` holds the first
    few samples. `block_samples` is the smallest and the largest number of samples in a block, or None if there are no
    blocks.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from penstock.formats import TextLines
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> path.write_text("one\\ntwo\\n")
    8
    >>> found = TextLines(path).inspect()
    >>> found.samples, found.bytes, [field.dtype for field in found.fields]
    (2, 8, ['str'])
    """

    format: str
    files: int
    samples: int
    bytes: int
    fields: tuple[FieldInfo, ...]
    blocks: int
    first: tuple[Any, ...]
    block_samples: tuple[int, int] | None = None


def fields_of(sample: Any, name: str = "") -> Iterator[FieldInfo]:
    """Yields the fields of a sample. Nested fields have dotted names, such as "a.b"."""
    inner: Mapping[Any, Any] | None = None
    if isinstance(sample, Mapping):
        inner = sample
    elif isinstance(sample, tuple):
        inner = dict(zip(getattr(sample, "_fields", range(len(sample))), sample, strict=True))
    if inner is None:
        yield _field(name, sample)
        return
    for key, value in inner.items():
        yield from fields_of(value, f"{name}.{key}" if name else str(key))


def _field(name: str, value: Any) -> FieldInfo:
    if isinstance(value, (np.ndarray, np.generic)):
        return FieldInfo(name, str(value.dtype), value.shape)
    sized = isinstance(value, (Sequence, bytes))
    return FieldInfo(name, type(value).__name__, (len(value),) if sized else ())
