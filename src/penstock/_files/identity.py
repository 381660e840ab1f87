"""The identity of a file: whether two files have the same content is decided by it everywhere.

A list of files contains each identity once. Indexes, pieces in the cache and shared decoded blocks belong to an
identity. `AnyFile.identity` returns it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    """Identifies the content of a file. `name` is unique to the file; it is hashed, never shown (see `identified`).

    `version` changes with the content: the time of a local file; the ETag or time of a remote one. It is "" if the
    store sends neither. Then other content of the same size looks the same, so nothing is kept beyond this process.
    """

    name: str
    size: int
    version: str

    @property
    def lasts(self) -> bool:
        """True if another process, or a later run, can distinguish this content from any other."""
        return bool(self.version)

    @property
    def digest(self) -> str:
        """A digest: the same in all processes, different for all other identities."""
        return digest_of([self])

    @property
    def place(self) -> str:
        """A digest of the name alone, which stays the same when the content changes."""
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def fingerprint(files: Iterable[tuple[str, int, object]]) -> str:
    """Returns a text that is the same for copies of the files: from names without folders, sizes and checks.

    It does not include times and ETags, which differ between copies.
    """
    listed = [(path.rpartition("/")[2], size, check) for path, size, check in files]
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:16]
    what = "1 file" if len(listed) == 1 else f"{len(listed):,} files"
    return f"{what}, {sum(size for _, size, _ in listed):,} bytes, {digest}"


def digest_of(identities: Iterable[Identity], *more: object) -> str:
    """Returns one digest of several files and of the values in `more`."""
    about = [tuple(identity) for identity in identities], more
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]  # repr: different lists have different ones
