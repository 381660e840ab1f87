"""The samples that `write.py` has written by the packages of others, and that tests expect to read."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

COUNT = 20


def png(n: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (3, 2), (n, 0, 255 - n)).save(out, "PNG")
    return out.getvalue()


def pixels(n: int) -> Any:
    return np.full((2, 3, 3), (n, 0, 255 - n), np.uint8)


MDS_COLUMNS = {
    "array": "ndarray",
    "bytes": "bytes",
    "fixed": "ndarray:int16:2,3",
    "float": "float32",
    "image": "png",
    "int": "int",
    "json": "json",
    "large": "str_int",
    "text": "str",
    "typed": "ndarray:float32",
    "uint8": "uint8",
}


def mds(n: int) -> dict[str, Any]:
    """A sample of MDS, in the order of the columns, which MosaicML sorts by name."""
    return {
        "array": np.arange(n + 1, dtype=np.float64).reshape(1, -1),
        "bytes": b"x" * n,
        "fixed": np.full((2, 3), n, np.int16),
        "float": np.float32(n / 3),
        "image": pixels(n),
        "int": n,
        "json": {"n": [n, None]},
        "large": 10**20 + n,
        "text": f"é{n}" * (n % 3),
        "typed": np.arange(n % 4 + 1, dtype=np.float32),
        "uint8": np.uint8(n),
    }


def tree(n: int) -> dict[str, Any]:
    """A sample of LitData with arrays: its leaves are stored one after the other."""
    return {
        "int": n,
        "text": f"é{n}",
        "bytes": b"x" * n,
        "float": n / 3,
        "flat": np.arange(n + 1),
        "shaped": np.full((2, n), n, np.float32),
        "nested": [n, (n, n % 2 == 0)],
    }


def row(n: int) -> dict[str, Any]:
    """A sample of LitData of plain values, which it stores as Arrow."""
    return {"id": n, "text": f"é{n}", "list": [n] * (n % 3)}


TOKENS = np.arange(7 * COUNT, dtype=np.int32)
BLOCK_SIZE = 5


def tokens(n: int) -> Any:
    """The ids of one document."""
    return TOKENS[7 * n : 7 * n + 7]


def example(n: int) -> dict[str, Any]:
    """The features of a `tf.train.Example`, sorted by name."""
    return {
        "floats": np.arange(n + 2, dtype=np.float32) / 2,
        "image": png(n),
        "label": np.int64(n - 3),
        "many": [b"a%d" % n, b"b" * n],
        "weight": np.float32(n / 4),
    }
