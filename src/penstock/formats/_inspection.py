"""Descriptions of datasets, for `penstock inspect` and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """A field of the samples. `name` is "" if a sample is one value; `shape` is that of the first sample, or None."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """A description of files and their samples. `blocks` is the number of blocks; `first` has the first samples.

    `block_samples` has the fewest and the most samples of a block; None if there is no block.
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
    """Yields the fields of a sample. The names of nested fields are joined by dots."""
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
