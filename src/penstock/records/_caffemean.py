"""Caffe's `.binaryproto`: the mean image that `compute_image_mean` writes, as a protobuf message, BlobProto."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import RecordError
from penstock.records._datum import BYTES, FOUR, VARINT, DatumError, block, floats_of, integer

_AXES = (1, 2, 3, 4)  # num, channels, height, width: in older files
_DATA, _SHAPE = 5, 7
_DIM = 1  # of a shape


def read_caffe_mean(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """The mean image of Caffe's `mean_file`: (channels, height, width), the channels in Caffe's order, BGR.

    Pass it as `mean` to a `Transform` with `color="bgr"`; for RGB reverse the channels: `mean[::-1]`.
    """
    message = memoryview(Path(path).read_bytes())
    try:
        return _mean(message)
    except DatumError as error:
        raise RecordError(
            f"{os.fspath(path)}: these {len(message):,} bytes are not a Caffe mean image: {error}."
        ) from error


def _mean(message: memoryview) -> NDArray[np.float32]:
    sizes: dict[int, int] = {}
    shape: list[int] = []
    values: list[NDArray[np.float32]] = []
    at = 0
    while at < len(message):
        tag, at = integer(message, at)
        field, wire_type = tag >> 3, tag & 7
        if field in _AXES and wire_type == VARINT:
            sizes[field], at = integer(message, at)
        elif field == _SHAPE and wire_type == BYTES:
            inner, at = block(message, at)
            shape += _dimensions(inner)
        elif field == _DATA and wire_type == BYTES:
            inner, at = block(message, at)
            values.append(floats_of(inner))
        elif field == _DATA and wire_type == FOUR:
            values.append(floats_of(message[at : at + 4]))
            at += 4
        else:
            raise DatumError(f"a mean image has no field {field} of wire type {wire_type}")
    shape = shape or [sizes.get(axis, 1) for axis in _AXES]
    image = np.concatenate(values) if values else np.empty(0, np.float32)
    if len(shape) not in (3, 4) or shape[:-3] not in ([], [1]) or not 0 < math.prod(shape) == image.size:
        raise DatumError(f"{image.size:,} values do not form an image of shape {tuple(shape)}")
    return image.reshape(shape[-3:])


def _dimensions(message: memoryview) -> list[int]:
    found: list[int] = []
    at = 0
    while at < len(message):
        tag, at = integer(message, at)
        if tag == _DIM << 3 | BYTES:
            packed, at = block(message, at)
            inside = 0
            while inside < len(packed):
                size, inside = integer(packed, inside)
                found.append(size)
        elif tag == _DIM << 3 | VARINT:
            size, at = integer(message, at)
            found.append(size)
        else:
            raise DatumError("the shape cannot be read")
    return found
