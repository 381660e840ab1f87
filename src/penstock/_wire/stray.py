"""A stray: a batch that did not fit into its slab, in a memfd that the worker made for it.

The worker sends the memfd through a socket, before the reply that refers to it. The parent maps the memfd and
closes the descriptor; the memory is unmapped with the last array of the batch.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from penstock._descriptors import close, close_in_child, no_fork
from penstock._memory.arena import mapped
from penstock._memory.layout import Writer

_STRAY = struct.Struct("<2q")  # seq, worker
_FD = struct.Struct("i")


@contextmanager
def stray_writer(strays: socket.socket, seq: int, worker: int, nbytes: int) -> Iterator[Writer]:
    """In the worker: a writer on a memfd, which is sent when the block ends, unless it was too small as well."""
    fd = os.memfd_create("penstock-stray", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    writer = Writer(np.frombuffer(mapped(fd, nbytes), np.uint8), is_stray=True)
    yield writer
    if not writer.overflow:
        socket.send_fds(strays, [_STRAY.pack(seq, worker)], [fd])
    os.close(fd)


class Strays:
    """In the parent: strays that were received, and not yet taken by the reply that they belong to."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._received: dict[tuple[int, int], int] = {}

    def receive(self) -> None:
        """Receives all that were sent, without waiting.

        Also those whose replies are still to come: else a worker might wait for room in the socket.
        """
        with socket.socket(fileno=os.dup(self.fd)) as strays, suppress(BlockingIOError):
            while True:
                # Not socket.recv_fds: it does not pass on its flags (Python 3.11).
                with no_fork():
                    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                    data, control, _, _ = strays.recvmsg(_STRAY.size, socket.CMSG_LEN(_FD.size), flags)
                    if not control:
                        raise OSError(
                            errno.EMFILE,
                            "No file descriptor is left for a batch that outgrew its memory: raise ulimit -n.",
                        )
                    (fd,) = _FD.unpack(control[0][2])
                    close_in_child(fd)
                self._received[_STRAY.unpack(data)] = fd

    def take(self, seq: int, worker: int, size: int) -> NDArray[np.uint8]:
        """The memory of the stray that belongs to a reply, which was sent after it."""
        if (seq, worker) not in self._received:
            self.receive()
        memory = mapped(self._received[seq, worker], size)
        self._close((seq, worker))
        return np.frombuffer(memory, np.uint8)

    def close(self) -> None:
        """Closes all that were not taken. An interrupted call can be repeated."""
        while self._received:
            self._close(next(iter(self._received)))

    def _close(self, key: tuple[int, int]) -> None:
        with no_fork():
            close(self._received.pop(key))  # removed first: closed twice, the number may be another file's
