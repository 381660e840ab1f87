"""`Megatron` reads Megatron-LM's indexed datasets: a `.bin` with ids, and an `.idx` with the starts of sequences.

    the .idx:  MMIDIDX and two zeros | version (8 bytes) | dtype code (1) | number of sequences (8) | n (8)
               | length of each sequence (4) | offset of each sequence in the .bin (8)
               | n sequence numbers (8): the first sequence of each document, then the total number of sequences
               | in some datasets, one more byte for each sequence

Numbers are little-endian. The sequences fill the .bin without gaps.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import FileOptions
from penstock._files.index import Arrays, for_each
from penstock._files.local import AnyFile, File
from penstock._files.paths import FilePath, Paths, given_paths
from penstock._files.remote import RemoteFile
from penstock._remote.urls import is_url
from penstock.errors import FormatError
from penstock.formats._extents import Extents, compact
from penstock.formats._format import Format

MAGIC = b"MMIDIDX\0\0"
_HEAD = struct.Struct("<9sQBQQ")
_OLD = b"TNTIDX"
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


class Megatron(Extents):
    """A dataset of the sequences in Megatron-LM's indexed datasets. Sample i is an array with the ids of sequence i.

    `prefix` is a path without `.bin` or `.idx`, as in Megatron's `--data-path`. It may also be a list of such paths,
    a pattern that matches `.idx` files, or a folder with such files. The attribute `dtype` is the dtype of the ids. A
    sequence is a document, unless the dataset was written with `--split-sentences`. The attribute `documents` holds
    the index of each document's first sequence, followed by the total number of sequences.

    Sequences differ in length, so batches need `penstock.pack`, a `collate_fn` such as `penstock.pad()`, or
    `batch_size=1`. The lengths are known from the index.

    `storage`, `cache`, `cache_bytes` and `cache_shared` apply to remote files: see `penstock.formats`.
    """

    suffixes = (".idx",)

    kind = "megatron-1"

    def __init__(self, prefix: Paths, **files: Unpack[FileOptions]) -> None:
        Format.__init__(self, list(map(idx_path, given_paths(prefix, "Megatron"))), **files)
        indexes = self.index(self.kind, self.find)
        self.files = list(for_each(_bin_of, self.files))
        self._set_indexes(indexes)
        dtypes = [_DTYPES[int(index["code"][0])] for index in self.indexes]
        if len(set(dtypes)) > 1:
            raise FormatError(f"the files have ids of several dtypes, {sorted(set(dtypes))}. Read them one by one.")
        self.dtype = np.dtype(dtypes[0])
        for file, index in zip(self.files, self.indexes, strict=True):
            if file.size != index["starts"][-1]:
                raise FormatError(
                    f"{file.path} has {file.size:,} bytes, but its .idx describes {index['starts'][-1]:,}. One of "
                    "the two is cut off, or they do not belong together: copy both again."
                )

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.startswith(MAGIC)

    @staticmethod
    def find(file: AnyFile) -> Arrays:
        """Returns the index of a dataset, read from its `.idx` file and checked.

        The index holds the offset of each sequence, the end of the last one, the first sequence of each document, and
        the dtype code.
        """
        head = file.read(0, min(file.size, _HEAD.size))
        if head.startswith(_OLD):
            file.refused(0, "this is Megatron's older format, TNTIDX. Write the dataset again with a newer Megatron")
        if len(head) < _HEAD.size or not head.startswith(MAGIC):
            file.damaged(0, "an index of Megatron begins with MMIDIDX, but this file does not")
        _, version, code, n, documents = _HEAD.unpack(head)
        if version != 1 or code not in _DTYPES:
            file.damaged(9, f"version {version} with the dtype of code {code} is not known")
        size = _HEAD.size + 12 * n + 8 * documents
        if file.size not in (size, size + n):
            file.damaged(
                18, f"{n:,} sequences and {documents:,} numbers of documents need {size:,} bytes, not {file.size:,}"
            )
        lengths = np.frombuffer(file.read(_HEAD.size, 4 * n), "<i4").astype(np.int64)
        pointers = np.frombuffer(file.read(_HEAD.size + 4 * n, 8 * n), "<i8")
        firsts = np.frombuffer(file.read(_HEAD.size + 12 * n, 8 * documents), "<i8")
        starts = np.concatenate([[0], (lengths * np.dtype(_DTYPES[code]).itemsize).cumsum()])
        wrong = np.flatnonzero((lengths < 0) | (pointers != starts[:-1]))
        if len(wrong):
            at = int(wrong[0])
            file.damaged(
                _HEAD.size + 4 * n + 8 * at,
                f"sequence {at:,}, of {lengths[at]:,} ids, should begin at byte {starts[at]:,}, not {pointers[at]:,}",
            )
        if not documents or firsts[0] != 0 or firsts[-1] != n or (np.diff(firsts) < 0).any():
            file.damaged(_HEAD.size + 12 * n, f"the numbers of documents do not go from 0 to {n:,}")
        return {"starts": compact(starts, int(starts[-1])), "documents": firsts, "code": np.array([code])}

    @property
    def documents(self) -> NDArray[np.int64]:
        """The index of each document's first sequence, followed by the total number of sequences."""
        inside = [first + index["documents"][:-1] for first, index in zip(self.edges, self.indexes, strict=False)]
        return np.concatenate([*inside, self.edges[-1:]])

    def __lengths__(self) -> NDArray[np.int64]:
        """Returns the number of ids in each sequence, from the index, without reading ids."""
        sizes = [np.diff(index["starts"].astype(np.int64)) for index in self.indexes]
        return np.concatenate([np.empty(0, np.int64), *sizes]) // self.dtype.itemsize

    def decoded(self, raw: bytes, number: int, row: int) -> NDArray[Any]:
        return np.frombuffer(raw, self.dtype).copy()  # writable


def _bin_of(index: AnyFile) -> AnyFile:
    if isinstance(index, RemoteFile):
        return index.beside(".bin")
    path = os.path.splitext(index.path)[0] + ".bin"
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Megatron: there is no {path!r}, which has the ids that {index.path!r} describes. The two files belong "
            "together: copy both."
        )
    return File(path)


def idx_path(path: FilePath | AnyFile) -> FilePath | AnyFile:
    """Returns the `.idx` path for a prefix or a `.bin`, or `path` itself if it is a folder or a pattern."""
    if isinstance(path, AnyFile):
        return path
    text = os.fspath(path)
    if is_url(text) and not text.endswith((".bin", ".idx", "/")) and not set("*?[") & set(text):
        return f"{text}.idx"
    if text.endswith(".bin"):
        return text.removesuffix(".bin") + ".idx"
    return f"{text}.idx" if os.path.isfile(f"{text}.idx") else path


def dtype_beside(file: AnyFile) -> np.dtype[Any] | None:
    """Returns the dtype that the `.idx` beside a local `.bin` names, or None if there is no valid `.idx`."""
    stem, end = os.path.splitext(file.path)
    if end != ".bin" or not isinstance(file, File):
        return None
    try:
        magic, version, code, _, _ = _HEAD.unpack(File(f"{stem}.idx").read(0, _HEAD.size))
    except (OSError, FormatError):
        return None
    known = magic == MAGIC and version == 1 and code in _DTYPES
    return np.dtype(_DTYPES[code]) if known else None
