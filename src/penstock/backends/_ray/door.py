"""The door accepts connections from workers to the driver, and keeps out all others.

One thread accepts all connections and does their handshakes, without waiting for any of them. A connection is a
*stranger* until the other end has proved that it has the token. Then the connection becomes a link with its own
thread. A stranger occupies a descriptor and a few hundred bytes for at most ten seconds. There are at
most `MOST` strangers:

- If one more connects, the door picks the network address with the most strangers, and drops one of its strangers at
  random. So a machine that floods the door displaces its own connections. A worker on that machine gets in
  eventually, because the worker keeps trying and the choice is random. (If the oldest stranger were dropped, fast
  connections would shut the worker out for good. If the newest stranger were dropped, silent connections would shut
  the worker out.)
- Before the door drops a stranger, it reads the bytes that the stranger has sent: they may contain the proof.
- If there is no descriptor or memory for another connection, the door drops a stranger and pauses accepting.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from penstock._system.descriptors import close, close_in_child, no_fork
from penstock._system.interrupts import LiveObjects
from penstock._system.threads import started
from penstock.backends._ray import handshake
from penstock.backends._ray.challenge import TOKEN_SIZE
from penstock.backends._ray.handshake import Hello
from penstock.backends._ray.link import DRIVER_PATIENCE, Link

MOST = 128
"""The maximum number of strangers. Each stranger takes one of the (usually 1,024) descriptors of the process."""

_SECONDS = 10.0  # for a whole handshake
_PAUSE = 0.1  # seconds without accepting, after accepting has failed
_AT_ONCE = 16  # connections to accept before strangers are read again


class Stranger:
    def __init__(self, sock: socket.socket, host: str, token: bytes, tls: ssl.SSLContext | None) -> None:
        self.sock = sock
        # Only the first half of an IPv6 address, because a machine can choose the second half itself.
        self.network = socket.inet_pton(sock.family, host.partition("%")[0])[:8]
        self.deadline = time.monotonic() + _SECONDS
        self.challenge, self.handshake = handshake.awaited(token, tls)

    def hear(self) -> bool:
        """Receives bytes and answers them. Returns True once the other end has proved that it has the token."""
        data = self.sock.recv(self.handshake.wants)
        if not data:
            raise EOFError("the connection has ended")
        self._send(self.handshake.receive(data))
        return self.handshake.is_done

    def _send(self, said: bytes) -> None:
        if said and self.sock.send(said) < len(said):
            raise BrokenPipeError("the other end does not read the answer")

    def drop(self, error: Exception | None = None) -> None:
        if error is not None:
            with suppress(OSError):
                self._send(self.handshake.last_words(error))
        self.sock.close()


class Door:
    """Listens on a free port of `address`, and calls `serve(link, hello)` in a new thread for each worker."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, serve: Callable[[Link, Hello], None]) -> None:
        self._tls, self._serve = tls, serve
        self.token = secrets.token_bytes(TOKEN_SIZE)
        self.refused = 0  # connections dropped because the other end did not prove that it is a worker
        self._closed = False
        # Reentrant, because the garbage collector may close an engine in any thread, also in one that has the lock.
        self._lock = threading.RLock()
        self._links: dict[threading.Thread, Link] = {}
        self.strangers: dict[int, Stranger] = {}  # by descriptor, oldest first
        self._watch = select.poll()
        with no_fork():
            self._listener = handshake.listen(address)
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            close_in_child(self._bell)
            _living.add(self)
        try:
            self._thread = started("penstock-door", self._keep, self._stop)
        except BaseException:
            self._listener.close()
            close(self._bell)
            raise

    @property
    def address(self) -> tuple[str, int]:
        host, port, *_ = self._listener.getsockname()
        return host, port

    # In the thread of the door.

    def _keep(self) -> None:
        listening = self._listener.fileno()
        self._watch.register(listening, select.POLLIN)
        self._watch.register(self._bell, select.POLLIN)
        paused = 0.0  # when accepting resumes; 0 if it is not paused
        try:
            while not self._closed:
                found = [fd for fd, _ in self._watch.poll(self._wait(paused))]
                for fd in found:
                    if fd in self.strangers:
                        self._hear(self.strangers[fd])
                self._drop_late()
                if not paused and listening in found and not self._accept():
                    paused = time.monotonic() + _PAUSE
                    self._watch.modify(listening, 0)
                elif paused and time.monotonic() >= paused:
                    paused = 0.0
                    self._watch.modify(listening, select.POLLIN)
        finally:
            for stranger in [*self.strangers.values()]:
                self._drop(stranger)

    def _wait(self, paused: float) -> float | None:
        """Returns the milliseconds until a handshake times out or accepting resumes, or None if neither will."""
        oldest = next(iter(self.strangers.values()), None)
        due = [] if oldest is None else [oldest.deadline]
        if paused:
            due.append(paused)
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def _accept(self) -> bool:
        """Accepts waiting connections. Returns False if accepting one fails, for example for lack of descriptors."""
        for _ in range(_AT_ONCE):
            try:
                with no_fork():  # until it is among the strangers, which a forked child closes
                    sock, (host, *_) = self._listener.accept()
                    sock.setblocking(False)
                    stranger = Stranger(sock, host, self.token, self._tls)
                    self.strangers[sock.fileno()] = stranger
            except BlockingIOError:
                return True
            except (OSError, MemoryError):  # no descriptor, no memory, or a connection that has ended already
                self._make_room()
                return False
            self._watch.register(sock, select.POLLIN)
            if len(self.strangers) > MOST:
                self._make_room()
        return True

    def _make_room(self) -> None:
        networks = Counter(stranger.network for stranger in self.strangers.values())
        for network, _ in networks.most_common(1):
            # Not from `random`, whose generator belongs to the caller.
            self._expel(secrets.choice([each for each in self.strangers.values() if each.network == network]))

    def _expel(self, stranger: Stranger) -> None:
        """Drops a stranger, unless bytes that have just arrived prove that the other end has the token."""
        self._hear(stranger)
        if stranger.sock.fileno() in self.strangers:
            self._drop(stranger)

    def _hear(self, stranger: Stranger) -> None:
        try:
            if stranger.hear():
                self._admit(stranger)
        except BlockingIOError:
            pass
        except Exception as error:  # no input may end this thread
            self._drop(stranger, error)

    def _admit(self, stranger: Stranger) -> None:
        hello = handshake.told(stranger.challenge.hello)
        stranger.sock.setblocking(True)
        with no_fork():  # it becomes a link before it is removed from the strangers
            link = Link(stranger.sock, DRIVER_PATIENCE, stranger.handshake.secure)
            self._forget(stranger)
        try:
            with self._lock:  # `_live` must find the entry of its thread
                thread = started("penstock-link", partial(self._live, link, hello), link.cut)
                self._links[thread] = link
        except RuntimeError:  # no thread can be started
            link.close()

    def _forget(self, stranger: Stranger) -> None:
        if self.strangers.pop(stranger.sock.fileno(), None) is not None:
            self._watch.unregister(stranger.sock)

    def _drop(self, stranger: Stranger, error: Exception | None = None) -> None:
        self.refused += 1
        with no_fork():
            self._forget(stranger)
            stranger.drop(error)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for stranger in [*self.strangers.values()]:
            if now < stranger.deadline:
                break
            self._expel(stranger)

    # In the threads of links.

    def _live(self, link: Link, hello: Hello) -> None:
        try:
            self._serve(link, hello)
        finally:
            link.cut()
            link.close()
            with self._lock:
                self._links.pop(threading.current_thread(), None)

    # The end.

    def _stop(self) -> None:
        if not self._closed:
            self._closed = True
            os.eventfd_write(self._bell, 1)

    def close(self, deadline: float) -> None:
        """Cuts all connections, and waits until their threads have ended or the deadline has passed."""
        self._stop()
        self._join(self._thread, deadline)  # from here on, there are no new links
        with self._lock:
            links = {**self._links}
        for link in links.values():
            link.cut()
        for thread in links:
            self._join(thread, deadline)
        self._listener.close()
        if self._bell >= 0:
            bell, self._bell = self._bell, -1
            close(bell)

    @staticmethod
    def _join(thread: threading.Thread, deadline: float) -> None:
        if thread is not threading.current_thread():  # the garbage collector may close the engine in this thread
            thread.join(max(0.0, deadline - time.monotonic()))

    def leave_to_parent(self) -> None:
        """Closes a forked child's copies of the port and of the strangers' connections. The parent's stay open."""
        for sock in (self._listener, *(stranger.sock for stranger in self.strangers.values())):
            with suppress(OSError):
                os.close(sock.detach())


_living = LiveObjects[Door]()


def _leave_all_to_parent() -> None:
    for door in _living:
        door.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
