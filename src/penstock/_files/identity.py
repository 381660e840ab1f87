"""The identity of a file. All of penstock uses it to decide whether two files have the same content.

A list of files contains each identity once. Indexes, cached pieces and shared decoded blocks belong to an identity.
`AnyFile.identity` returns it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    """Identifies the content of a file. `name` is unique to the file, and never shown (see `identified`).

    `version` is the modification time of a local file, or the ETag or modification time of a remote one. It is "" if
    the store sends neither. Then new content may have the same identity, so nothing is kept beyond this process.
    """

    name: str
    size: int
    version: str

    @property
    def lasts(self) -> bool:
        """True if the identity also identifies this content in other processes and in later runs."""
        return bool(self.version)

    @property
    def digest(self) -> str:
        """A digest that is the same in all processes, and different for every other identity."""
        return digest_of([self])

    @property
    def place(self) -> str:
        """A digest of the name. It stays the same when the content changes."""
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def fingerprint(files: Iterable[tuple[str, int, object]]) -> str:
    """Returns a short text that is the same for all copies of the files.

    It is computed from the sizes, the checksums and the file names without their folders. Times and ETags are not
    included, because they differ between copies.
    """
    listed = [(path.rpartition("/")[2], size, check) for path, size, check in files]
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:16]
    what = "1 file" if len(listed) == 1 else f"{len(listed):,} files"
    return f"{what}, {sum(size for _, size, _ in listed):,} bytes, {digest}"


def digest_of(identities: Iterable[Identity], *more: object) -> str:
    """Returns one digest of several identities and of the values in `more`."""
    about = [tuple(identity) for identity in identities], more
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]  # different lists have a different repr
