"""The door: where workers connect. Each connection gets a thread, and whoever does not have the token is dropped."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from penstock._descriptors import no_fork
from penstock._threads import started
from penstock.backends._ray import handshake
from penstock.backends._ray.handshake import Hello
from penstock.backends._ray.link import DRIVER_PATIENCE, Link


class Door:
    """Listens on one address, at a free port. `serve(link, hello)` is the life of one connection, in its thread."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, serve: Callable[[Link, Hello], None]) -> None:
        self._tls, self._serve = tls, serve
        self.token = handshake.new_token()
        self.refused = 0
        self._closed = False
        self._lock = threading.Lock()
        self._links: dict[threading.Thread, Link] = {}
        with no_fork():
            self._listener = handshake.listen(address)
        self._bell, self._ring = os.pipe2(os.O_CLOEXEC)
        self._thread = started("penstock-door", self._accept, self._stop)

    @property
    def address(self) -> tuple[str, int]:
        host, port, *_ = self._listener.getsockname()
        return host, port

    def _accept(self) -> None:
        watch = select.poll()
        watch.register(self._listener, select.POLLIN)
        watch.register(self._bell, select.POLLIN)
        while not self._closed:
            watch.poll()
            with suppress(OSError, RuntimeError):  # the other side is gone already, or no thread is to be had
                with no_fork():
                    sock, _ = self._listener.accept()
                self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        link = Link(sock, DRIVER_PATIENCE, self._tls)
        with self._lock:  # before the thread looks for itself there
            thread = started("penstock-link", partial(self._live, link), link.cut)
            self._links[thread] = link

    def _live(self, link: Link) -> None:
        try:
            hello = None
            with suppress(OSError, EOFError, ValueError, TypeError):  # it is silent, or says what no worker says
                hello = handshake.admit(link, self.token)
            if hello is not None:
                self._serve(link, hello)
            else:
                self.refused += 1
        finally:
            link.cut()
            link.close()
            with self._lock:
                self._links.pop(threading.current_thread(), None)

    def _stop(self) -> None:
        """Ends the thread that accepts connections."""
        if not self._closed:
            self._closed = True
            os.write(self._ring, b"\0")

    def close(self, deadline: float) -> None:
        """Cuts all connections, and waits until their threads have ended, or the deadline has passed."""
        self._stop()
        with self._lock:
            links = {**self._links}
        for link in links.values():
            link.cut()
        for thread in (self._thread, *links):
            if thread is not threading.current_thread():  # in which the garbage collector has found the engine
                thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()
        for fd in (self._bell, self._ring):
            if fd >= 0:
                os.close(fd)
        self._bell = self._ring = -1
