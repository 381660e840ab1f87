"""Files that formats read by position. `AnyFile` is the interface, and `File` is a local file."""

from __future__ import annotations

import io
import os
import stat
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from penstock._files.damage import raise_unless_damage
from penstock._files.identity import Identity
from penstock._system.platform import CLOSED_IN_PROGRAMS, NO_WAIT, advise_to_read, pread
from penstock._system.shortage import is_shortage
from penstock.errors import FormatError, RemoteError

_MOST_OPEN = 256  # a process may usually have 1024 descriptors
_LONGEST = 1 << 30  # bytes of one read: the kernel returns at most 2 GB
_DAMAGED = "The file is damaged, or has another format than its name says: copy it or write it again"


class AnyFile:
    """A file that is read by position and must not change: a `File` or a `RemoteFile`.

    The files of a format are in `self.files`. They can be pickled, and read from any number of threads.

    `path` names the file in messages, without credentials. `modified` shows whether the content has changed: it is
    the modification time of a local file in nanoseconds, or the ETag or modification time of a remote one.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from penstock.formats import TextLines
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> path.write_text("one\\ntwo\\n")
    8
    >>> [file] = TextLines(path).files
    >>> file.size, file.read(4, 3)
    (8, b'two')
    """

    __slots__ = ("modified", "path", "size")

    path: str
    size: int
    modified: int | str

    @property
    def identity(self) -> Identity:
        return Identity(self.path, self.size, str(self.modified))

    def read(self, start: int, length: int) -> bytes:
        """Returns exactly `length` bytes, starting at the offset `start`."""
        raise NotImplementedError

    def read_each(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterable[bytes]:
        """Returns the bytes of several extents (byte ranges), in the given order."""
        raise NotImplementedError

    def peek(self, start: int, length: int) -> bytes:
        """Reads a few bytes, such as a header. Unlike `read`, this does not fetch a whole piece of a remote file."""
        return self.read(start, length)

    def neighbour(self, name: str) -> AnyFile:
        """Returns the file with this name in the same folder. Raises FileNotFoundError if there is none."""
        raise NotImplementedError

    def open(self) -> BinaryIO:
        """Returns a read-only file object with a position, for a library that needs one.

        Each call returns a new object, so that threads do not share a position. The object holds no descriptor of its
        own.
        """
        return cast(BinaryIO, _FileObject(self))

    def beyond(self, start: int, length: int) -> NoReturn:
        """Raises FormatError, because this read goes beyond the end of the file."""
        self.damaged(start, f"{length:,} bytes were expected here, but the file ends at byte {self.size:,}")

    def refused(self, place: int, what: str) -> NoReturn:
        """Raises FormatError for the byte offset `place`. `what` says what is wrong there and what to do."""
        raise FormatError(f"{self.path}, byte {place:,}: {what}.")

    def damaged(self, place: int, what: str) -> NoReturn:
        self.refused(place, f"{what}. {_DAMAGED}")

    @contextmanager
    def decoding(self, what: str) -> Iterator[None]:
        """Converts a library's errors inside the `with` block to FormatError if they are about the file's content.

        `what` names the part that is read, such as "chunk 3". A lack of memory, a deleted file and other system
        errors keep their type, and get a note with the path.
        """
        try:
            yield
        except (FormatError, RemoteError):
            raise
        except Exception as error:
            raise_unless_damage(error, f"{self.path}, {what}")
            said = " ".join(str(error).split()).rstrip(".")[:300]
            raise FormatError(
                f"{self.path}, {what}: it cannot be read ({type(error).__name__}: {said}). {_DAMAGED}."
            ) from error

    def has_changed(self) -> NoReturn:
        raise FormatError(
            f"{self.path} has changed since the dataset was made, when it had {self.size:,} bytes, so the positions "
            "of its samples are not valid. Make the dataset again when no program writes to the file."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {self.size:,} bytes)"


class File(AnyFile):
    """A local file, read by position. Reading raises FormatError if the file has changed since it was opened."""

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self, path: str, known: tuple[int, int] | None = None) -> None:
        """`known` is (size, modification time), for unpickling. If `known` is None, both are looked up."""
        if known is None:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path} is not a regular file. Name a file with samples.")
            known = found.st_size, found.st_mtime_ns
        self.path, (self.size, self.modified) = path, known
        # Opened at the first read. Threads share it, forked workers inherit it, and a pickled copy opens its own. If
        # too many files are open, the one that was opened first is closed until it is read again.
        self._descriptor: Descriptor | None = None

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.size:  # before memory is allocated for them
            self.beyond(start, length)
        descriptor = self.descriptor()  # this reference keeps it open even if another thread closes the file
        try:
            found = pread(descriptor.number, length, start)
            while 0 < len(found) < length:
                more = pread(descriptor.number, min(length - len(found), _LONGEST), start + len(found))
                if not more:
                    break
                found += more
        except OSError as error:
            if is_shortage(error):
                raise
            raise FormatError(
                f"{self.path}, byte {start:,}: {length:,} bytes cannot be read: {error}. Check the disk."
            ) from error
        if len(found) != length:
            self.has_changed()
        return found

    def read_each(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
        descriptor = self.descriptor()
        if len(starts) > 1:  # a disk is faster if it gets many requests at once
            for start, length in zip(starts, lengths, strict=True):
                advise_to_read(descriptor.number, start, length)
        return map(self.read, starts, lengths)

    def map(self) -> NDArray[np.uint8]:
        """Maps the file read-only. If a program truncates the file, reading past the new end kills this process."""
        from penstock._files.mapping import mapped

        return mapped([self])[0][: self.size]

    def descriptor(self) -> Descriptor:
        """Returns the file's descriptor, open for as long as the caller keeps the `Descriptor` object."""
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = Descriptor(self.path)
            self.check_unchanged(descriptor)
            self._descriptor = descriptor
            _open_files.append(weakref.ref(self))
            while len(_open_files) > _MOST_OPEN:
                first = _open_files.popleft()()
                if first is not None and first is not self:
                    first._descriptor = None
        return descriptor

    def neighbour(self, name: str) -> File:
        return File(os.path.join(os.path.dirname(self.path), name))

    def check_unchanged(self, descriptor: Descriptor) -> None:
        found = os.fstat(descriptor.number)
        if (found.st_size, found.st_mtime_ns) != (self.size, self.modified):
            self.has_changed()

    def __reduce__(self) -> tuple[Any, ...]:
        return File, (self.path, (self.size, self.modified))


_open_files: deque[weakref.ref[File]] = deque()


class _FileObject(io.RawIOBase):
    """An unbuffered file object.

    A buffer would gain nothing: libraries read only what they need, and remote files are read in pieces anyway.
    """

    def __init__(self, file: AnyFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (0, self._at, self._file.size)[whence]
        if at < 0:
            raise ValueError(f"byte {at:,} of {self._file.path} is before its beginning.")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        rest = self._file.size - self._at
        length = rest if size is None or size < 0 else min(size, rest)
        found = self._file.read(self._at, length) if length > 0 else b""
        self._at += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)


class Descriptor:
    """A file descriptor, closed when this object is freed. Threads keep a reference to the object while they read."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        # O_NONBLOCK is for a pipe that has replaced the file. It is then refused, because its size and time differ.
        self.number = os.open(path, os.O_RDONLY | CLOSED_IN_PROGRAMS | NO_WAIT)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # globals may be gone at exit
        number: int | None = getattr(self, "number", None)
        if number is not None:
            close(number)
