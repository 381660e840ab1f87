"""The identity of a file: the one answer to "is this the same content?", for all that is kept or compared.

A list of files has each identity once; an index, a piece in the cache, and a decoded block that processes share
belong to one. `AnyFile.identity` returns it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    """A file with this content. `name` differs for all other files; it is hashed, never shown (see `identified`).

    `version` changes with the content: the time of a local file; the ETag or time of a remote one. It is "" if the
    store tells neither. Then other content of the same size looks the same, so nothing is kept beyond this process.
    """

    name: str
    size: int
    version: str

    @property
    def lasts(self) -> bool:
        """True if another process, or a later run, can tell this content from any other."""
        return bool(self.version)

    @property
    def digest(self) -> str:
        """The same in all processes, different for all other identities."""
        return digest_of([self])

    @property
    def place(self) -> str:
        """The same for all contents that the file may ever have."""
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def fingerprint(files: Iterable[tuple[str, int, object]]) -> str:
    """The same for the same files in any folder or store: of names without folders, sizes, and checks of content.

    Times and ETags are not part of it: a copy has others.
    """
    listed = [(path.rpartition("/")[2], size, check) for path, size, check in files]
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:16]
    what = "1 file" if len(listed) == 1 else f"{len(listed):,} files"
    return f"{what}, {sum(size for _, size, _ in listed):,} bytes, {digest}"


def digest_of(identities: Iterable[Identity], *more: object) -> str:
    """One digest of several files, and of what else tells one thing from another."""
    about = [tuple(identity) for identity in identities], more
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]  # repr: no two lists have the same
