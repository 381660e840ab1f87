"""Caffe's LMDB files of Datum messages, and Caffe's mean images (`.binaryproto`). Only writing needs `lmdb`."""

from __future__ import annotations

import io
import math
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from operator import index as as_int
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access, FileOptions
from penstock._files.index import Arrays, Index
from penstock._files.local import AnyFile
from penstock._files.paths import FilePath, Paths
from penstock.errors import FormatError
from penstock.formats._format import BLOCK, FileRows
from penstock.formats._protobuf import BYTES, FOUR, VARINT, MessageError, fields, floats_of, numbers
from penstock.records._datum import Datum, dump, parse
from penstock.records._lmdbfile import find_values, is_lmdb, value_of
from penstock.records._samples import RecordSamples
from penstock.source._packed import PackedList

if TYPE_CHECKING:
    from penstock.image import Transform
    from penstock.image._dataset import StoredImage

Channels = Literal["bgr", "rgb"]
_MAP = 1 << 40  # bytes of address space, not of memory; as in Caffe
_PER_TRANSACTION = 1000  # items, as in Caffe


class CaffeLMDB(RecordSamples):
    """The samples of Caffe's LMDB files of Datum messages, in key order. A sample is `(array, label)`.

    The array has the axes (channels, height, width). Raw data is uint8, and `float_data` is float32. Encoded images
    are decoded (which needs the extra "image"), gray ones to a single channel. Three uint8 channels are in Caffe's
    order, BGR; `color="rgb"` reverses them.

    With a `transform` from `penstock.image`, a sample is `(image, label)`, and the transform determines the order of
    the channels. Use `Transform(color="bgr")` for a network that was trained with Caffe. `labels=False` leaves the
    labels out.

    No LMDB library is needed. Any number of threads and processes may read at once, as long as no program writes.
    `path` is the folder, or the file in it, or a list of these; each may be a URL. `keys` holds the keys, which are
    read once and kept together with the positions of their values (docs/formats.md). LMDB has no checksums, so a
    wrong byte inside a value may not be detected. All other damage raises `RecordError`. `max_sample_bytes` limits
    the size of a value and, if the value is an encoded image, also the size of the decoded pixels. A larger sample
    fails. A `transform` has its own limit.

    `storage`, `cache`, `cache_bytes` and `cache_shared` are for remote files, and are explained in
    `penstock.formats`.
    """

    suffixes = (".mdb",)
    kind = "lmdb-1"

    def __init__(
        self,
        path: Paths,
        transform: Transform | None = None,
        labels: bool = True,
        color: Channels = "bgr",
        **files: Unpack[FileOptions],
    ) -> None:
        if color not in ("bgr", "rgb"):
            raise ValueError(f"color must be 'bgr' or 'rgb', but it is {color!r}.")
        if transform is not None and color != "bgr":
            raise ValueError(
                f"color={color!r} applies only without a transform, which has its own: {transform.color!r}."
            )
        self._color = color
        super().__init__(path, transform, labels, **files)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        """True if a file that begins with these bytes is an LMDB file."""
        return is_lmdb(first_bytes)

    @staticmethod
    def find(file: AnyFile) -> Arrays:
        return find_values(file)

    def _find_indexes(self, access: Access) -> list[Index]:
        # Beside data.mdb, LMDB keeps the locks of its readers, in a file that holds no samples.
        self.files = [file for file in self.files if os.path.basename(file.path) != "lock.mdb"] or self.files
        return super()._find_indexes(access)

    @cached_property
    def keys(self) -> PackedList[bytes]:
        """The keys of the database, in the order of the samples."""
        found = [PackedList.of_bytes(index["keys"], index["key_edges"]) for index in self.indexes]
        return found[0] if len(found) == 1 else PackedList(chain.from_iterable(found))

    def extent(self, number: int, row: int) -> tuple[int, int]:
        index = self.indexes[number]
        return int(index["starts"][row]), int(index["sizes"][row])

    def _firsts(self, number: int) -> NDArray[np.int64]:
        ends = self.indexes[number]["sizes"].cumsum()
        return ends.searchsorted(np.arange(BLOCK, ends[-1] if len(ends) else 0, BLOCK))

    def ranges(self, rows: FileRows) -> list[tuple[int, int]]:
        """Returns the byte ranges (start, stop) of the values, merged if less than a page apart."""
        index, some = self.indexes[rows.file], slice(rows.first, rows.stop)
        starts, sizes = index["starts"][some], index["sizes"][some]
        order = np.lexsort((sizes, starts))
        begins, ends = starts[order], (starts + sizes)[order]
        apart = begins[1:] - ends[:-1] > int(index["page"][0])
        return list(zip(begins[np.append(True, apart)].tolist(), ends[np.append(apart, True)].tolist(), strict=True))

    def checks(self) -> Sequence[object]:
        return [(index.check("keys"), index.check("starts"), index.check("sizes")) for index in self.indexes]

    def stored(self, raw: bytes, number: int, row: int) -> Any:
        datum, name = self._datum(raw, number, row)
        limit = self.max_sample_bytes
        array: NDArray[Any] = _decoded(bytes(datum.data), name, limit) if datum.encoded else datum.array()
        if self._color == "rgb" and array.dtype == np.uint8 and len(array) == 3:
            array = array[::-1]
        array = array.copy()  # not a view of the bytes that were read
        return (array, datum.label) if self.labels else array

    def image(self, raw: bytes, number: int, row: int) -> StoredImage:
        datum, name = self._datum(raw, number, row)
        if datum.encoded:
            return bytes(datum.data), datum.label, name
        array = datum.array()
        return (array[::-1] if len(array) == 3 else array).transpose(1, 2, 0), datum.label, name

    def _value(self, raw: bytes, number: int, row: int) -> memoryview:
        start = self.extent(number, row)[0]
        found = value_of(raw, start, int(self.indexes[number]["page"][0]))
        if found is None:
            key = self._key(number, row)
            self.files[number].damaged(start, f"the value of key {key!r} should begin here, but does not")
        return found

    def _key(self, number: int, row: int) -> bytes:
        return self.keys[self.edges.item(number) + row]

    def _datum(self, raw: bytes, number: int, row: int) -> tuple[Datum, str]:
        """Returns the Datum in these bytes, and a name for error messages."""
        found = self._value(raw, number, row)
        start = self.extent(number, row)[0] + len(raw) - len(found)
        name = f"{self.files[number].path}, key {self._key(number, row)!r}, byte {start:,}"
        try:
            return parse(found), name
        except MessageError as error:
            raise FormatError(
                f"{name}: this is not a Caffe Datum: {error}. The file is damaged, or has another format."
            ) from None


def _decoded(data: bytes, name: str, limit: int | None) -> NDArray[np.uint8]:
    """Returns the pixels as Caffe decodes them: channels first, in BGR order, and one channel for a gray image."""
    from penstock._pixels import decode  # late: raw data does not need its libraries

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
    """Writes an LMDB folder of Datum messages for Caffe, and returns the number of items.

    Needs `pip install ".[lmdb]"`.

    An item is `(content, label)`. The content is a uint8 or float32 array with channels first, or the bytes of an
    encoded image. The key of an item is its index, padded with zeros. The folder must not exist yet; it gets its
    final name when all items have been written.
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
    """Returns the mean image in Caffe's `mean_file`.

    Its shape is (channels, height, width), with channels in BGR order. Pass it as `mean` to a `Transform` with
    `color="bgr"`. For RGB, reverse the channels with `mean[::-1]`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "mean.binaryproto")  # one channel of 1 x 2 pixels
    >>> path.write_bytes(bytes.fromhex("0801100118012002" "2a08") + np.array([3, 4], "<f4").tobytes())
    18
    >>> read_caffe_mean(path).tolist()
    [[[3.0, 4.0]]]
    """
    message = memoryview(Path(path).read_bytes())
    try:
        return _mean(message)
    except MessageError as error:
        raise FormatError(
            f"{os.fspath(path)}: these {len(message):,} bytes are not a Caffe mean image: {error}."
        ) from error


def _mean(message: memoryview) -> NDArray[np.float32]:
    """Returns the array in a BlobProto. The shape is in field 7 or, in older files, in fields 1 to 4."""
    sizes = dict.fromkeys((1, 2, 3, 4), 1)
    shape: list[int] = []
    values = [np.empty(0, np.float32)]
    for field, wire_type, found in fields(message):
        if field in sizes and wire_type == VARINT:
            sizes[field] = found
        elif field == 5 and wire_type in (BYTES, FOUR):
            values.append(floats_of(found))
        elif field == 7 and wire_type == BYTES:
            shape += numbers(found, VARINT)
        else:
            raise MessageError(f"a mean image has no field {field} of wire type {wire_type}")
    shape = shape or list(sizes.values())
    image = np.concatenate(values)
    if len(shape) not in (3, 4) or shape[:-3] not in ([], [1]) or not 0 < math.prod(shape) == image.size:
        raise MessageError(f"{image.size:,} values do not form an image of shape {tuple(shape)}")
    return image.reshape(shape[-3:])
