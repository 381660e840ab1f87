"""The base class of formats whose shards are listed in an `index.json`: MosaicML's MDS and LitData.

    a shard:  n, the number of samples | the offset of each sample, and the end of the last | other data | the samples

Numbers have 4 bytes and are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._cache.lru import LruCache
from penstock._files.access import FileOptions
from penstock._files.damage import raise_unless_damage
from penstock._files.local import AnyFile
from penstock._files.paths import Paths
from penstock._files.remote import RemoteFile
from penstock._remote.parallel import in_parallel
from penstock._remote.store import IN_FLIGHT
from penstock.errors import FormatError, SampleTooLarge
from penstock.formats._decoders import Decoder, _image, _json
from penstock.formats._extents import Extents
from penstock.formats._format import Format

Decode = bool | Mapping[str, Decoder | None]
_KEEP = 64 << 20  # the maximum size in bytes of the sample offsets that a process keeps
_CHANNELS: dict[str, tuple[int, ...]] = {"L": (), "RGB": (3,), "RGBA": (4,)}  # the last axis, by Pillow's modes


class Shard(NamedTuple):
    """A shard, as described by the index. `nbytes` is its size, and `check` is a checksum or None."""

    name: str
    samples: int
    nbytes: int
    check: str | None = None
    ids: int = 0  # the number of token ids, in a dataset of tokens


class Sharded(Extents):
    """A dataset of shards listed in index files. Each shard is a block. Subclasses define `listed` and `decoded`."""

    suffixes = ("index.json",)

    def __init__(self, paths: Paths, **files: Unpack[FileOptions]) -> None:
        Format.__init__(self, paths, **files)
        shards: dict[str, tuple[AnyFile, Shard]] = {}  # a merged index lists the shards of other indexes again
        for index in self.files:
            listed = _checked(index, partial(self.listed, index, _parsed(index)))
            threads = IN_FLIGHT if isinstance(index, RemoteFile) else 1
            opened = in_parallel(partial(_opened, index), listed, threads)
            for file, shard in zip(opened, listed, strict=True):
                shards.setdefault(file.identity.name, (file, shard))
        self._shards = [shard for _, shard in shards.values()]
        self.files = [file for file, _ in shards.values()]
        self._heads: LruCache[int, NDArray[np.uint32]] = LruCache(_KEEP)
        self.set_rows([self.rows_of(shard) for shard in self._shards])

    def listed(self, index: AnyFile, about: Any) -> list[Shard]:
        """Returns the shards that an index lists. `about` is the parsed index. An invalid index raises an error."""
        raise NotImplementedError

    def rows_of(self, shard: Shard) -> int:
        return shard.samples

    blocks = Format.blocks  # each file is one block

    ranges = Format.ranges  # the whole file, as its head is needed too

    def checks(self) -> Sequence[object]:
        return [shard.check for shard in self._shards]

    def extent(self, number: int, row: int) -> tuple[int, int]:
        starts = self._heads.get(number, self._head)
        start = int(starts[row])
        return start, int(starts[row + 1]) - start

    def _head(self, number: int) -> tuple[NDArray[np.uint32], int]:
        """Returns (array, its size in bytes). The array holds the offset of each sample, and the end of the last."""
        file, n = self.files[number], self._shards[number].samples
        head = np.frombuffer(file.read(0, min(file.size, 4 * (n + 2))), "<u4", min(file.size // 4, n + 2))
        if len(head) < n + 2 or head[0] != n:
            file.damaged(0, f"the index says that the shard has {n:,} samples, but its first bytes say otherwise")
        starts = head[1:]
        if starts[0] < 4 * len(head) or starts[-1] > file.size or (np.diff(starts.astype(np.int64)) < 0).any():
            file.damaged(4, "the positions of its samples do not fit the file")
        return starts, starts.nbytes

    def parts(self, raw: bytes, number: int, row: int, fixed: Sequence[int | None]) -> list[bytes]:
        """Splits a sample into its fields. `fixed` holds each field's size, or None if the sample stores the size."""
        free, ends = fixed.count(None), [0]
        if len(raw) >= 4 * free:
            sizes = iter(struct.unpack_from(f"<{free}I", raw))
            ends = [*accumulate((next(sizes) if size is None else size for size in fixed), initial=4 * free)]
        if ends[-1] != len(raw):
            start = self.extent(number, row)[0]
            self.files[number].damaged(start, f"the {len(raw):,} bytes of a sample are not its fields")
        return [raw[start:stop] for start, stop in pairwise(ends)]

    def value(self, field: Field, raw: bytes, number: int, row: int) -> Any:
        if field.refusal:
            raise FormatError(f"{self.files[number].path}, sample {row:,}: {field.refusal}")
        if field.function is None:
            return raw
        where = f"{self.files[number].path}, sample {row:,}, field {field.name!r}"
        function: Any = field.function
        try:
            if function is _image or function is _json:
                return function(raw, where, self.max_sample_bytes)
            return function(raw)
        except SampleTooLarge:
            raise
        except Exception as error:
            if field.is_given:  # the error of a user's function keeps its type
                error.add_note(f"While decoding {where}.")
                raise
            raise_unless_damage(error, where)
            said = str(error).rstrip(".")
            raise FormatError(
                f"{where}: its {len(raw):,} bytes cannot be read as {field.encoding}: {said}. The shard is damaged: "
                f"copy it or write it again, or keep the bytes with decode={{{field.name!r}: None}}."
            ) from error


class Field(NamedTuple):
    """A field of the samples.

    `function` decodes the field's bytes; None keeps the bytes. `is_given` is True if the user has passed the
    function. `refusal` says why the field cannot be read, or is "" if it can be read.
    """

    name: str
    encoding: str
    function: Decoder | None = None
    is_given: bool = False
    refusal: str = ""


def field(name: str, encoding: str, usual: Mapping[str, Any], decode: Decode) -> Field:
    """Returns the `Field` with this name. `usual` maps each encoding to its usual decoding function."""
    if isinstance(decode, Mapping) and name in decode:
        return Field(name, encoding, decode[name], True)
    if encoding in usual:
        is_image = usual[encoding] in (_image, pixels)
        return Field(name, encoding, None if is_image and decode is False else usual[encoding])
    is_pickle = encoding in ("pkl", "pickle")
    why = "is a pickle, which can run any program when it is loaded" if is_pickle else "penstock does not know"
    refusal = (
        f"the field {name!r} is encoded as {encoding!r}, which {why}. Pass a function of its bytes, "
        f"decode={{{name!r}: function}}, or keep the bytes with None in its place."
    )
    return Field(name, encoding, refusal=refusal)


def _parsed(index: AnyFile) -> Any:
    try:
        return json.loads(index.peek(0, index.size))
    except (ValueError, RecursionError) as error:
        index.damaged(0, f"it is not JSON: {str(error)[:100]}")


def _checked(index: AnyFile, read: Callable[[], list[Shard]]) -> list[Shard]:
    """Returns the shards from `read()`. Raises FormatError if the index is invalid."""
    try:
        shards = read()
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        index.damaged(0, f"it does not describe shards as expected ({type(error).__name__}: {error})")
    for shard in shards:
        numbers = shard.samples, shard.nbytes
        if type(shard.name) is not str or ".." in shard.name.split("/") or shard.name.startswith("/"):
            index.damaged(0, f"{shard.name!r} is not the name of a shard beside it")
        if any(type(number) is not int or not 0 <= number < 1 << 32 for number in numbers):
            index.damaged(0, f"{shard.name} cannot have {numbers[0]!r} samples in {numbers[1]!r} bytes")
    return shards


def _opened(index: AnyFile, shard: Shard, _: object) -> AnyFile:
    try:
        file = index.neighbour(shard.name)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no {shard.name!r} beside {index.path}, which lists it. Copy the folder again, with all shards."
        ) from None
    if file.size != shard.nbytes:
        file.damaged(0, f"it has {file.size:,} bytes, but {index.path} says {shard.nbytes:,}")
    return file


def number_of(form: str, raw: bytes) -> Any:
    return struct.unpack(form, raw)[0]


def pixels(raw: bytes) -> NDArray[np.uint8]:
    """Decodes an uncompressed Pillow image: width, height, length of the mode (4 bytes each), mode, pixels."""
    width, height, length = struct.unpack_from("<3I", raw)
    mode, data = raw[12 : 12 + length].decode(), np.frombuffer(raw[12 + length :], np.uint8)
    if mode not in _CHANNELS:
        raise ValueError(f"penstock does not read images of mode {mode!r}")
    return data.reshape(height, width, *_CHANNELS[mode]).copy()
