"""File identities. penstock assumes that two files with the same identity have the same content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    name: str  # unique to the file, and never shown (see `identified`)
    size: int
    version: str  # ETag or time; "" if unknown: then nothing is kept beyond this process, as content may change

    @property
    def lasts(self) -> bool:
        """True if the identity is also valid in other processes and in later runs of the program."""
        return bool(self.version)

    @property
    def digest(self) -> str:
        return digest_of([self])

    @property
    def place(self) -> str:
        """A digest of the file's name. The digest stays the same when the content changes."""
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def fingerprint(files: Iterable[tuple[str, int, object]]) -> str:
    """Returns a short string that is the same for all copies of the files, even if their times and ETags differ."""
    listed = [(path.rpartition("/")[2], size, check) for path, size, check in files]
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()[:16]
    what = "1 file" if len(listed) == 1 else f"{len(listed):,} files"
    return f"{what}, {sum(size for _, size, _ in listed):,} bytes, {digest}"


def digest_of(identities: Iterable[Identity], *more: object) -> str:
    about = [tuple(identity) for identity in identities], more
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]  # different lists have a different repr
