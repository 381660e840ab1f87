"""Caffe's LMDB of Datum."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from operator import index as as_int
from typing import Any, Literal, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock.errors import RecordError
from penstock.records.datum import Datum, DatumError, dump, parse
from penstock.records.lmdbfile import LMDBFile
from penstock.source.dataset import Dataset


class CaffeLMDB(Dataset[Any]):
    """The samples of Caffe's LMDB, in the order of their keys: `(array, label)`, channels first."""

    def __init__(self, path: str | os.PathLike[str], color: Literal["bgr", "rgb"] = "bgr", labels: bool = True) -> None:
        self.path = os.fspath(path)
        self._file = LMDBFile(os.path.join(self.path, "data.mdb") if os.path.isdir(self.path) else self.path)

    def __len__(self) -> int:
        return len(self._file)

    def _datum(self, at: int) -> Datum:
        try:
            return parse(self._file.value(at))
        except DatumError as error:
            raise RecordError(...) from None


def write_caffe_lmdb(
    path: str | os.PathLike[str], items: Iterable[tuple[NDArray[Any] | bytes, SupportsIndex]]
) -> int:
    """Writes Caffe's LMDB, and returns how many items there were. Needs the package `lmdb`.

    An item is `(array, label)`: an array of uint8 or float32, channels first, or the bytes of an encoded image. The keys
    are their numbers. The folder gets its name when all is written; it must not be there before.
    """
    try:
        import lmdb
    except ImportError:
        raise ImportError("write_caffe_lmdb needs the package lmdb: pip install 'penstock[lmdb]'.") from None
    ...
