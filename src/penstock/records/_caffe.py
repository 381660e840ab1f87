"""Caffe's files: LMDB of Datum, read and (with the library `lmdb`) written, and the mean image `.binaryproto`."""

from __future__ import annotations

import io
import math
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from operator import index as as_int
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._files.too_large import LIMIT, checked_limit
from penstock._remote.urls import local
from penstock.errors import RecordError
from penstock.records._datum import (
    BYTES,
    FOUR,
    VARINT,
    Datum,
    DatumError,
    dump,
    floats_of,
    integer,
    parse,
    value,
)
from penstock.records._lmdbfile import LMDBFile, is_lmdb
from penstock.records._samples import FilePath, Samples, StoredImage, position
from penstock.source._packed import PackedList

if TYPE_CHECKING:
    from penstock.image import Transform

Channels = Literal["bgr", "rgb"]
_MAP = 1 << 40  # bytes of address space, not of memory; as in Caffe
_PER_TRANSACTION = 1000  # items, as in Caffe


class CaffeLMDB(Samples):
    """Caffe's LMDB of Datum, in key order: samples `(array, label)` with the axes (channels, height, width).

    Raw data is uint8, and `float_data` is float32. Encoded images are decoded (which needs the extra "image"), gray
    ones to one channel. Three channels of uint8 are in Caffe's order, BGR; `color="rgb"` reverses them.

    With a `transform` of `penstock.image` a sample is `(image, label)`, in the transform's own order of channels: use
    `Transform(color="bgr")` for a network that was trained with Caffe. `labels=False` leaves the labels out.

    No LMDB library is needed. Any number of threads and processes may read at once, as long as no program writes.
    `path` is the folder, or the file in it; `keys` has the keys. LMDB has no checksums, so a wrong byte inside a
    value may not be noticed; all other damage raises `RecordError`. An encoded image of more than `max_sample_bytes`
    pixels and channels is an error, too; a `transform` has its own limit.
    """

    suffixes = (".mdb",)

    def __init__(
        self,
        path: FilePath,
        transform: Transform | None = None,
        labels: bool = True,
        color: Channels = "bgr",
        *,
        max_sample_bytes: int | None = LIMIT,
    ) -> None:
        self.max_sample_bytes = checked_limit(max_sample_bytes)
        if color not in ("bgr", "rgb"):
            raise ValueError(f"color must be 'bgr' or 'rgb', but it is {color!r}.")
        if transform is not None and color != "bgr":
            raise ValueError(
                f"color={color!r} applies only without a transform, which has its own: {transform.color!r}."
            )
        super().__init__(local(os.fspath(path), "CaffeLMDB"), transform, labels)
        self._file = LMDBFile(os.path.join(self.path, "data.mdb") if os.path.isdir(self.path) else self.path)
        self._color = color
        self.keys: PackedList[bytes] = self._file.keys

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        """True if a file that begins with these bytes is one of LMDB."""
        return is_lmdb(first_bytes)

    def __len__(self) -> int:
        return len(self._file)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} samples)"

    def _sample(self, at: int) -> Any:
        datum, name = self._datum(at)
        limit = self.max_sample_bytes
        array: NDArray[Any] = _decoded(bytes(datum.data), name, limit) if datum.encoded else datum.array()
        if self._color == "rgb" and array.dtype == np.uint8 and len(array) == 3:
            array = array[::-1]
        array = array.copy()  # not a view of the bytes that were read
        return (array, datum.label) if self.labels else array

    def _source(self, at: int) -> StoredImage:
        datum, name = self._datum(at)
        if datum.encoded:
            return bytes(datum.data), datum.label, name
        array = datum.array()
        return (array[::-1] if len(array) == 3 else array).transpose(1, 2, 0), datum.label, name

    def _datum(self, at: int) -> tuple[Datum, str]:
        at = position(at, len(self), self._file.path)
        name = f"{self._file.path}, key {self._file.keys[at]!r}, byte {self._file.offset(at):,}"
        try:
            return parse(self._file.value(at)), name
        except DatumError as error:
            raise RecordError(
                f"{name}: this is not a Caffe Datum: {error}. The file is damaged, or has another format."
            ) from None


def _decoded(data: bytes, name: str, limit: int | None) -> NDArray[np.uint8]:
    """The pixels with channels first, in BGR; one channel for a gray image, as Caffe decodes it."""
    from penstock.image._decode import decode  # late: raw data does not need its libraries

    gray = _is_gray(data)
    pixels = decode(data, "gray" if gray else "bgr", name, limit)
    return pixels[np.newaxis] if gray else pixels.transpose(2, 0, 1)


def _is_gray(data: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return Image.getmodebase(image.mode) == "L"
    except Exception:
        return False  # decoding it raises the error


def write_caffe_lmdb(path: FilePath, items: Iterable[tuple[NDArray[Any] | bytes, SupportsIndex]]) -> int:
    """Writes Caffe's LMDB and returns the number of items. Needs `pip install ".[lmdb]"`.

    An item is `(array, label)`: uint8 or float32, channels first, or the bytes of an encoded image. Keys are the
    numbers of the items, padded with zeros. The folder must not exist; it gets its name when all items are written.
    """
    try:
        import lmdb
    except ImportError as error:
        raise ImportError('write_caffe_lmdb needs lmdb: pip install ".[lmdb]" in a clone of penstock') from error
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
    is_array = isinstance(content, np.ndarray)
    if (content == b"") if isinstance(content, bytes) else (is_array and not content.size):
        raise ValueError(f"item {number} is empty, which Caffe cannot read.")
    sound = is_array and content.ndim == 3 and content.dtype in (np.uint8, np.float32)
    if not sound and not isinstance(content, bytes):
        kind = f"{content.dtype} of shape {content.shape}" if is_array else type(content)
        raise TypeError(
            f"item {number} must be an array of uint8 or float32 with the axes (channels, height, width), or the "
            f"bytes of an encoded image, but it is {kind}."
        )


def read_caffe_mean(path: FilePath) -> NDArray[np.float32]:
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
    """The array of a BlobProto: its floats are field 5, its shape is field 7 or, in older files, fields 1 to 4."""
    sizes = dict.fromkeys((1, 2, 3, 4), 1)
    shape: list[int] = []
    values = [np.empty(0, np.float32)]
    for field, wire_type, found in _fields(message):
        if field in sizes and isinstance(found, int):
            sizes[field] = found
        elif field == 5 and wire_type in (BYTES, FOUR) and not isinstance(found, int):
            values.append(floats_of(found))
        elif field == 7 and wire_type == BYTES and not isinstance(found, int):
            shape += _dimensions(found)
        else:
            raise DatumError(f"a mean image has no field {field} of wire type {wire_type}")
    shape = shape or list(sizes.values())
    image = np.concatenate(values)
    if len(shape) not in (3, 4) or shape[:-3] not in ([], [1]) or not 0 < math.prod(shape) == image.size:
        raise DatumError(f"{image.size:,} values do not form an image of shape {tuple(shape)}")
    return image.reshape(shape[-3:])


def _dimensions(message: memoryview) -> Iterator[int]:
    """The integers of a BlobShape, which are its field 1: one by one, or packed."""
    for field, wire_type, found in _fields(message):
        if field != 1 or wire_type not in (VARINT, BYTES):
            raise DatumError("the shape cannot be read")
        if isinstance(found, int):
            yield found
            continue
        at = 0
        while at < len(found):
            size, at = integer(found, at)
            yield size


def _fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    at = 0
    while at < len(message):
        tag, at = integer(message, at)
        found, at = value(message, at, tag & 7)
        yield tag >> 3, tag & 7, found
