"""A link: a TCP connection between the driver and one worker, which carries frames.

A frame consists of a head and data. The head is six numbers, the first of which is the kind of the frame. Any thread
may send. One thread receives, with blocking calls, directly into the memory where the bytes belong. `post` queues
frames. `push` sends them: large ones in a separate thread, so that the caller need not wait for a slow reader. Later
frames queue up behind them.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock._system.interrupts import LiveObjects
from penstock._system.threads import started

HEAD = struct.Struct("<6q")
STRAY = struct.Struct("<2q")  # after a reply, for each of its strays: seq and length

# Kinds of frames, to the worker and from it.
WELCOME, TASK, CHANGE, VOID, STACK, LEAVE = range(6)
READY, BROKEN, REPLIED, TOLD = range(10, 14)

# A machine that is off, or cut off, does not answer. The kernel notices after 10 s, whatever Python does. While bytes
# wait to be acknowledged, keepalive has no effect, but TCP_USER_TIMEOUT does. That timeout also runs while the other
# side does not read, so it is longer in a worker, because the driver may be suspended (Ctrl-Z, a debugger).
_KEEPALIVE = {socket.TCP_KEEPIDLE: 4, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}
DRIVER_PATIENCE, WORKER_PATIENCE = 10_000, 60_000  # milliseconds

_LARGE = 1 << 16  # bytes

GARBLED = (OSError, EOFError, ValueError, LookupError, OverflowError, struct.error, MemoryError)
"""Errors raised if a frame is malformed or the connection is lost. After any of them, the link is closed."""

_MOST_PARTS = 512  # in one system call (IOV_MAX is 1024)
_ZEROS = (0,) * 5


def head(kind: int, *numbers: int) -> bytes:
    """Packs the head of a frame. Numbers that are not given are 0."""
    return HEAD.pack(kind, *numbers, *_ZEROS[len(numbers) :])


class Link:
    """One end of a connection after the handshake. `secure` is the TLS state, or None without encryption."""

    def __init__(self, sock: socket.socket, patience: int, secure: Secure | None = None) -> None:
        self._sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send_unpaced(sock)
        self._tls = None if secure is None else _TlsSocket(sock, secure)
        self._outbox: deque[memoryview] = deque()
        self._sending = threading.Lock()
        _living.add(self)

    # Receiving: one thread.

    def receive_head(self) -> tuple[int, ...]:
        return HEAD.unpack(self.receive(HEAD.size))

    def receive(self, size: int) -> bytearray:
        """Receives `size` bytes. Allocates memory only as bytes arrive, in case the size is wrong."""
        data = bytearray(min(size, _LARGE))
        self.receive_into(data)
        while len(data) < size:
            more = bytearray(min(size - len(data), len(data)))
            self.receive_into(more)
            data += more
        return data

    def receive_into(self, buffer: Any) -> None:
        """Fills the buffer. Raises EOFError if the connection ends before the buffer is full."""
        view = memoryview(buffer).cast("B")
        while view:
            if self._tls is not None:
                got = self._tls.receive_into(view)
            else:
                got = self._sock.recv_into(view, 0, socket.MSG_WAITALL)
            if not got:
                raise EOFError("the connection has ended")
            view = view[got:]

    # Sending: any thread.

    def send(self, *parts: Any) -> None:
        """Sends one frame, and waits until the operating system has accepted all of it."""
        with self._sending:
            self._outbox.extend(_views(parts))
            self._send_all()

    def post(self, *parts: Any) -> None:
        self._outbox.extend(_views(parts))  # atomic

    def push(self) -> None:
        """Sends queued frames, unless another thread is sending. A failure cuts the link; `receive` then raises."""
        if self._outbox and self._sending.acquire(blocking=False):
            if self._outbox_bytes() > _LARGE:
                # The new thread releases the lock when it is done.
                try:
                    started("penstock-sender", self._send_and_release, self.cut)
                except RuntimeError:  # the interpreter exits, or no thread can be started
                    self._send_and_release()
            else:
                self._send_and_release()

    def _outbox_bytes(self) -> int:
        while True:
            with suppress(RuntimeError):  # another thread has added a frame meanwhile
                return sum(map(len, self._outbox))

    def _send_and_release(self) -> None:
        try:
            self._send_all()
        except (OSError, ValueError):
            self._outbox.clear()
            self.cut()
        finally:
            self._sending.release()
        self.push()  # the frames that were queued meanwhile

    def _send_all(self) -> None:
        outbox = self._outbox
        while outbox:
            parts = [outbox[at] for at in range(min(len(outbox), _MOST_PARTS))]
            sent = self._sock.sendmsg(parts) if self._tls is None else self._tls.send(parts)
            while sent:
                if sent < len(outbox[0]):
                    outbox[0] = outbox[0][sent:]
                    break
                sent -= len(outbox.popleft())

    # The end.

    def cut(self) -> None:
        """Ends the connection in both directions. Threads that receive or send get an error at once."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def leave_to_parent(self) -> None:
        """Closes the descriptor in a forked child, without ending the parent's connection."""
        with suppress(OSError):
            os.close(self._sock.detach())


def _send_unpaced(sock: socket.socket) -> None:
    """Replaces BBR as the connection's congestion control, because BBR's timers cost CPU time."""
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr"):
        for algorithm in (b"cubic", b"reno"):  # Linux's default, and one that every user may choose
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
                return


def _views(parts: Sequence[Any]) -> list[memoryview]:
    return [view for part in parts if len(view := memoryview(part).cast("B"))]


class Secure:
    """TLS over two buffers, without I/O. `server` names the other end, or is "" if this end is the server."""

    def __init__(self, context: ssl.SSLContext, server: str = "") -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        side: dict[str, Any] = {"server_hostname": server} if server else {"server_side": True}
        self.tls = context.wrap_bio(self.incoming, self.outgoing, **side)


class _TlsSocket:
    """TLS on a blocking socket. Unlike with `ssl.SSLSocket`, one thread may read while others write."""

    def __init__(self, sock: socket.socket, secure: Secure) -> None:
        self._sock = sock
        self._in, self._out, self._tls = secure.incoming, secure.outgoing, secure.tls
        self._lock = threading.Lock()  # guards the TLS object and its buffers
        self._wire = threading.Lock()  # keeps the order of sent bytes; taken before the other lock

    def receive_into(self, view: memoryview) -> int:
        while True:
            with self._lock, suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                return self._tls.read(len(view), view)  # type: ignore[return-value]
            data = self._sock.recv(1 << 18)
            if not data:
                return 0
            with self._lock:
                self._in.write(data)

    def send(self, parts: list[memoryview]) -> int:
        with self._wire:
            with self._lock:
                sent = self._tls.write(parts[0][: 1 << 20])
                data = self._out.read()
            self._sock.sendall(data)  # without the lock: both ends may send much at the same time
        return sent


_living = LiveObjects[Link]()


def _leave_all_to_parent() -> None:
    for link in _living:
        link.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
