"""`TFRecord` reads TensorFlow's record files by key, without TensorFlow.

    a record:  its length (8 bytes) | CRC of the length (4) | its content | CRC of the content (4)

Numbers are little-endian. Both CRCs are masked CRC-32Cs. The content is usually a `tf.train.Example`, a protobuf
message with a map from names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

import numpy as np

from penstock._files.access import FileOptions
from penstock._files.index import Arrays
from penstock._files.local import AnyFile
from penstock._files.paths import Paths
from penstock.errors import FormatError
from penstock.formats._crc32c import crc32c, masked
from penstock.formats._extents import Extents, compact, refuse_compressed
from penstock.formats._protobuf import BYTES, FOUR, VARINT, MessageError, fields, floats_of, numbers

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")


class TFRecord(Extents):
    """A dataset of the records in TFRecord files. A sample is a dict with the features of a `tf.train.Example`.

    A feature with exactly one value becomes that value: an int, a float32 or bytes. A feature with no value or with
    several values becomes an array, or a list of bytes. Features named in `arrays` always become arrays or lists;
    name those whose number of values varies. With `decode=False` a sample is the bytes of the record, and with
    `decode=function` it is what the function returns for these bytes. Images stay bytes, as in TensorFlow, so decode
    them in your own code.

    Checksums are verified. The checksums of lengths are verified once, when the index is built, and the checksum of a
    record is verified whenever the record is read, at about 300 MB/s. `check=False` skips the checksums of records.
    Paths may be URLs (docs/remote.md). Compressed files raise an error.

    `storage`, `cache` and similar arguments apply to remote files: see `penstock.formats`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> record = "1200000000000000241f64250a100a0e0a056c6162656c12051a030a0107368c84b9"  # {"label": 7}
    >>> path = Path(tempfile.mkdtemp(), "train.tfrecord")
    >>> path.write_bytes(2 * bytes.fromhex(record))
    68
    >>> [sample["label"].item() for sample in TFRecord(path)]
    [7, 7]
    """

    suffixes = (".tfrecord", ".tfrecords")
    kind = "tfrecord-1"

    def __init__(
        self,
        paths: Paths,
        decode: bool | Callable[[bytes], Any] = True,
        *,
        arrays: Iterable[str] = (),
        check: bool = True,
        **files: Unpack[FileOptions],
    ) -> None:
        if not isinstance(decode, bool) and not callable(decode):
            raise TypeError(f"decode must be True, False, or a function of the bytes of a record, got {decode!r}.")
        if isinstance(arrays, str):
            raise TypeError(f"arrays must be a list of names, got the str {arrays!r}. Pass [{arrays!r}].")
        self.decode, self.arrays, self.check = decode, frozenset(arrays), check
        super().__init__(paths, **files)

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        if len(first_bytes) < _HEAD.size:
            return False
        _, check = _HEAD.unpack_from(first_bytes)
        return masked(crc32c(first_bytes[:8])) == int(check)

    @staticmethod
    def find(file: AnyFile) -> Arrays:
        refuse_compressed(file)
        starts, at = array("q"), 0
        while at < file.size:
            starts.append(at)
            head = file.read(at, min(_HEAD.size, file.size - at))
            length, check = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            if masked(crc32c(head[:8])) != check:
                file.damaged(at, "a record should begin here, but the checksum of its length is wrong")
            at += _HEAD.size + length + _TAIL.size
        if at > file.size:
            file.damaged(starts[-1], f"the record that begins here ends after the file, at byte {file.size:,}")
        starts.append(at)
        return {"starts": compact(np.array(starts, np.int64), file.size)}

    def decoded(self, raw: bytes, number: int, row: int) -> Any:
        content = raw[_HEAD.size : -_TAIL.size]
        file, start = self.files[number], self.extent(number, row)[0]
        if _HEAD.unpack_from(raw)[0] != len(content):
            file.has_changed()
        if self.check and masked(crc32c(content)) != _TAIL.unpack_from(raw, len(raw) - 4)[0]:
            file.damaged(start, f"the checksum of the {len(content):,} bytes of record {row:,} is wrong")
        if self.decode is False:
            return content
        if self.decode is not True:
            try:
                return self.decode(content)
            except Exception as error:
                error.add_note(f"While decoding {file.path}, record {row:,}, byte {start:,}.")
                raise
        try:
            return example(content, self.arrays)
        except (MessageError, UnicodeDecodeError) as error:
            raise FormatError(
                f"{file.path}, record {row:,}, byte {start:,}: it is not a tf.train.Example: {error}. Pass "
                "decode=False to get its bytes, or a function that decodes them."
            ) from None


def example(message: bytes, arrays: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the features of a `tf.train.Example`, sorted by name. (A protobuf map has no fixed order.)"""
    features: dict[str, Any] = {}
    for number, some in _fields(memoryview(message)):
        if number != 1:
            raise MessageError("it has other fields than features, as a tf.train.SequenceExample does")
        for _, entry in _fields(some):
            named = dict(_fields(entry))
            name = str(bytes(named.get(1, b"")), "utf-8")
            features[name] = _values(named.get(2, memoryview(b"")), name in arrays)
    return dict(sorted(features.items()))


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yields (field number, content) for each field. Raises MessageError if a field does not hold bytes."""
    if not isinstance(message, memoryview):
        raise MessageError("a number was found where a message should be")
    for number, wire_type, found in fields(message):
        if wire_type != BYTES:
            raise MessageError(f"field {number} is of wire type {wire_type}")
        yield number, found


def _values(feature: memoryview, is_list: bool) -> Any:
    """Returns a feature's values or, if there is only one and `is_list` is False, that value itself."""
    found: Any = np.empty(0, np.float32)
    for kind, message in _fields(feature):
        if kind == 1:
            found = [bytes(each) for _, each in _fields(message)]
        elif kind == 2:
            floats = [floats_of(each) for each in numbers(message, FOUR)]
            found = np.concatenate([np.empty(0, np.float32), *floats])
        elif kind == 3:
            found = np.array([each - (each >> 63 << 64) for each in numbers(message, VARINT)], np.int64)
        else:
            raise MessageError(f"a feature has no list of kind {kind}")
    return found if is_list or len(found) != 1 else found[0]
