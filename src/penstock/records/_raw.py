"""The bytes of a file by position, for every thread and process that asks."""

from __future__ import annotations

import os
import stat
from typing import Any, NoReturn

from penstock.errors import RecordError

_AHEAD = 1000  # places that the system is told of before they are read


class RawFile:
    """A file that is read by position and must not change.

    Read with `pread`, which knows no current position: threads share one descriptor, forked workers inherit
    it, and a copy that was pickled opens its own. Refused: a memory map. Where its file is cut off while it
    is in use, a look behind the end kills the process.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.hint = ""  # at what else damage may come from
        self._open()
        self.size, self._time = self._stat()

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise RecordError(f"{self.path} is not a regular file.")
        return found.st_size, found.st_mtime_ns

    def read(self, start: int, size: int) -> bytes:
        """Exactly these bytes."""
        try:
            found = os.pread(self._fd, size, start)
        except OSError as error:
            raise RecordError(
                f"{self.path}, byte {start:,}: {size:,} bytes cannot be read: {error}."
            ) from error
        if len(found) != size:
            self.damaged(
                start, f"{size:,} bytes were expected, and the file ends after {len(found):,} of them"
            )
        return found

    def read_each(self, starts: list[int], size: int) -> bytearray:
        """So many bytes from each of these places, behind each other."""
        found = bytearray()
        for first in range(0, len(starts), _AHEAD):
            some = starts[first : first + _AHEAD]
            for start in some:  # a disk reads many at once in less time than one after the other
                os.posix_fadvise(self._fd, start, size, os.POSIX_FADV_WILLNEED)
            for start in some:
                found += self.read(start, size)
        return found

    def damaged(self, offset: int, what: str) -> NoReturn:
        raise RecordError(
            f"{self.path}, byte {offset:,}: {what}. The file is damaged, or of another kind than its name says: "
            f"it has to be copied or made again.{self.hint}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fd"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        if self._stat() != (self.size, self._time):
            raise RecordError(
                f"{self.path} has changed since it was first opened, when it had {self.size:,} bytes: where its "
                "records begin is not known any more. Open it again when nothing writes to it."
            )

    def __del__(self) -> None:
        fd: int | None = self.__dict__.pop("_fd", None)
        if fd is not None:
            os.close(fd)
