"""Writes Caffe's LMDB of Datum, with the library `lmdb`."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from operator import index as as_int
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock.records._datum import dump

_MAP = 1 << 40  # bytes of address space, not of memory; as in Caffe
_PER_TRANSACTION = 1000  # items, as in Caffe


def write_caffe_lmdb(
    path: str | os.PathLike[str], items: Iterable[tuple[NDArray[Any] | bytes, SupportsIndex]]
) -> int:
    """Writes Caffe's LMDB and returns the number of items. Needs `pip install ".[lmdb]"`.

    An item is `(array, label)`: uint8 or float32, channels first, or the bytes of an encoded image. Keys are the
    numbers of the items, padded with zeros. The folder must not exist; it gets its name when all items are written.
    """
    try:
        import lmdb
    except ImportError as error:
        raise ImportError(
            'write_caffe_lmdb needs lmdb: pip install ".[lmdb]" in a clone of penstock'
        ) from error
    final = os.fspath(path)
    if os.path.lexists(final):
        raise FileExistsError(f"{final} already exists, and write_caffe_lmdb writes only to a new folder.")
    part = f"{final}.{secrets.token_hex(4)}.part"
    try:
        with lmdb.open(part, map_size=_MAP, lock=False, sync=False) as environment:
            transaction = environment.begin(write=True)
            count = 0
            for count, item in enumerate(items, 1):
                transaction.put(b"%010d" % (count - 1), dump(*_checked(count - 1, item)), append=True)
                if count % _PER_TRANSACTION == 0:
                    transaction.commit()
                    transaction = environment.begin(write=True)
            transaction.commit()
            environment.sync(True)
        os.rename(part, final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return count


def _checked(number: int, item: Any) -> tuple[NDArray[Any] | bytes, int]:
    try:
        content, label = item
    except (TypeError, ValueError):
        raise TypeError(
            f"item {number} must be a pair (array or bytes, label), but it is a {type(item).__name__}."
        ) from None
    _check_content(number, content)
    wrong = f"item {number}: a label must be a 32-bit integer in Caffe, but it is {label!r}."
    try:
        label = as_int(label)
    except TypeError:
        raise TypeError(wrong) from None
    if not -(1 << 31) <= label < 1 << 31:
        raise ValueError(wrong)
    return content, label


def _check_content(number: int, content: Any) -> None:
    if (isinstance(content, bytes) and not content) or (isinstance(content, np.ndarray) and not content.size):
        raise ValueError(f"item {number} is empty, which Caffe cannot read.")
    if isinstance(content, bytes):
        return
    if (
        not isinstance(content, np.ndarray)
        or content.ndim != 3
        or content.dtype not in (np.uint8, np.float32)
    ):
        kind = (
            f"{content.dtype} of shape {content.shape}" if isinstance(content, np.ndarray) else type(content)
        )
        raise TypeError(
            f"item {number} must be an array of uint8 or float32 with the axes (channels, height, width), or the "
            f"bytes of an encoded image, but it is {kind}."
        )
