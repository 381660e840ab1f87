"""The lifeline: what ties the workers of one launcher to the parent.

It is a pipe whose write end only the parent holds: when the parent dies or closes it, the kernel kills every process
that has armed the read end (see `child.py`). With the pipe go the template, and a file for the last words of workers
that could not start. All of it ends when the launcher and the last handle of its workers are closed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from typing import TYPE_CHECKING

from penstock._descriptors import close, close_in_child, no_fork, open_memfd
from penstock._wire.failure import Failure, restore

if TYPE_CHECKING:
    from penstock.backends._process.template import Template

_LAST_WORDS = struct.Struct("=qq")  # pid, bytes that follow


def leave_last_words(words: int, exc: BaseException, where: str) -> None:
    """In a worker that cannot start: tells the parent why, in one atomic append."""
    data = Failure.capture(exc, where=where)
    os.write(words, _LAST_WORDS.pack(os.getpid(), len(data)) + data)


class Lifeline:
    """In the parent. The launcher is its first holder, and each handle of a worker is one more."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._holders = 1
        self.template: Template | None = None
        self.words = open_memfd("penstock-last-words")
        try:
            with no_fork():
                self.end, self._parents_end = os.pipe()
                close_in_child(self.end, self._parents_end)
        except BaseException:
            close(self.words)
            raise
        fcntl.fcntl(self.words, fcntl.F_SETFL, os.O_APPEND)

    def is_mine(self) -> bool:
        """False in a process that was forked from the one that made it."""
        return self._owner == os.getpid()

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        if self.template is not None:
            self.template.close()
        close(self.end, self._parents_end, self.words)

    def last_words(self, pid: int) -> BaseException | None:
        """Why the worker with this pid could not start, if it said so."""
        said = os.pread(self.words, os.fstat(self.words).st_size, 0)
        start = 0
        while start < len(said):
            author, length = _LAST_WORDS.unpack_from(said, start)
            start += _LAST_WORDS.size + length
            if author == pid:
                return restore(said[start - length : start])
        return None
