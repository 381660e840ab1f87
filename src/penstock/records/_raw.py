"""Reads a file by position, from any number of threads and processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any, NoReturn

from penstock._system.shortage import is_shortage
from penstock.errors import RecordError

_AHEAD = 1000  # reads that the kernel is told of in advance


class RawFile:
    """A file that is read by position and must not change.

    It is read with `pread`, which has no current position: threads share one descriptor, forked workers inherit
    it, and a pickled copy opens its own. Refused: a memory map. If the file is cut off while it is mapped,
    reading beyond the end kills the process.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.hint = ""  # another possible cause, appended to the message about damage
        self._open()
        self.size, self._time = self._stat()

    def _open(self) -> None:
        # A pipe in the place of a file is refused by `_stat`, and not waited for.
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise RecordError(f"{self.path} is not a regular file.")
        return found.st_size, found.st_mtime_ns

    def read(self, start: int, size: int) -> bytes:
        """Exactly `size` bytes from `start` on."""
        try:
            found = os.pread(self._fd, size, start)
        except OSError as error:
            if is_shortage(error):
                raise
            raise RecordError(f"{self.path}, byte {start:,}: {size:,} bytes cannot be read: {error}.") from error
        if len(found) != size:
            self.damaged(start, f"{size:,} bytes were expected, but the file ends after {len(found):,} of them")
        return found

    def read_each(self, starts: list[int], size: int) -> bytearray:
        """`size` bytes from each start, concatenated."""
        found = bytearray()
        for first in range(0, len(starts), _AHEAD):
            some = starts[first : first + _AHEAD]
            for start in some:  # a disk serves many requests at once in less time than one by one
                os.posix_fadvise(self._fd, start, size, os.POSIX_FADV_WILLNEED)
            for start in some:
                found += self.read(start, size)
        return found

    def damaged(self, offset: int, what: str) -> NoReturn:
        raise RecordError(
            f"{self.path}, byte {offset:,}: {what}. The file is damaged, or has another format than its name "
            f"says: copy it or write it again.{self.hint}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fd"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        if self._stat() != (self.size, self._time):
            raise RecordError(
                f"{self.path} has changed since it was first opened, when it had {self.size:,} bytes, so the "
                "positions of its records are not valid. Open it again when no program writes to it."
            )

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # globals may be gone at the exit
        fd: int | None = self.__dict__.pop("_fd", None)
        if fd is not None:
            close(fd)
