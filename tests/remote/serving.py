"""Servers for the tests: files by http with ranges, and a proxy that breaks answers by a seeded plan."""

from __future__ import annotations

import hashlib
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.testing._serving import Answering, Closing, running

FAULTS = ("delay", "reset", "503", "429", "408", "hang up", "truncated", "short", "long", "range")
FAULTS_OF_HEAD = FAULTS[:6]  # a wrong length in an answer without a body cannot be noticed


class Server(Closing):
    """Serves the files of a folder, with ranges, ETags and If-Match. `log` has the requests: method, path, range."""

    def __init__(self, folder: Path, **about: Any) -> None:
        super().__init__(Handler)
        self.folder, self.log = folder, list[tuple[str, str, str]]()
        self.headers = list[dict[str, str]]()
        self.etags: bool = about.get("etags", True)
        self.ranges: bool = about.get("ranges", True)
        self.status: Callable[[str], int] = about.get("status", lambda path: 0)
        self.latency: float = about.get("latency", 0.0)

    def error(self, path: str, headers: dict[str, str]) -> bytes:
        """What is sent with a status that is not the file's own."""
        return b"<Error><Code>Refused</Code></Error>"


class Handler(Answering):
    server: Server

    def do_GET(self) -> None:
        server, path = self.server, unquote(self.path.partition("?")[0])
        server.log.append((self.command, path, self.headers.get("Range", "")))
        server.headers.append(dict(self.headers))
        time.sleep(server.latency)
        file = server.folder / path.lstrip("/")
        if status := server.status(self.path):
            return self.answer(status, server.error(self.path, dict(self.headers)))
        if not file.is_file():
            return self.answer(404, b"")
        content = file.read_bytes()
        about = {"Last-Modified": formatdate(file.stat().st_mtime, usegmt=True)}
        if server.etags:
            tag = about["ETag"] = f'"{hashlib.md5(content).hexdigest()}"'
            if self.headers.get("If-Match", tag) != tag:
                return self.answer(412, b"")
        return self.answer_range(content, about) if server.ranges else self.answer(200, content, about)


@contextmanager
def serving(folder: Path, **about: Any) -> Iterator[Server]:
    with Server(folder, **about) as server, running(server):
        yield server


class Proxy(Closing):
    """Forwards requests to another server, and breaks a share of the answers. `faults` counts them by kind.

    The plan is a function of the seed and the number of the request. No more than `in_a_row` requests for one range
    are broken one after another.
    """

    def __init__(self, upstream: str, seed: int, share: float = 0.3, in_a_row: int = 3, handler: Any = None) -> None:
        super().__init__(handler or Breaking)
        self.upstream = upstream.removeprefix("http://")
        self.share, self.in_a_row = share, in_a_row
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._broken: Counter[tuple[str, ...]] = Counter()
        self.faults: Counter[str] = Counter()
        self.requests = 0

    def fault(self, request: tuple[str, ...]) -> str:
        """What happens to a request; "" for nothing."""
        with self._lock:
            self.requests += 1
            kinds = FAULTS if request[0] == "GET" else FAULTS_OF_HEAD
            kind = self._random.choice(kinds) if self._random.random() < self.share else ""
            if not kind or self._broken[request] >= self.in_a_row:
                self._broken[request] = 0
                return ""
            self._broken[request] += 1
            self.faults[kind] += 1
            return kind


class Breaking(Answering):
    server: Proxy

    def do_GET(self) -> None:
        fault = self.server.fault((self.command, self.path, self.headers.get("Range", "")))
        try:
            self._forward(fault)
        except OSError:
            self.close_connection = True

    def _forward(self, fault: str) -> None:
        if fault == "delay":
            time.sleep(0.05)
        if fault in ("503", "429", "408"):
            return self._send(int(fault), [("Retry-After", "0")], b"busy", 4)
        if fault == "reset":
            return self._reset()
        if fault == "hang up":
            self.close_connection = True
            return None
        connection = HTTPConnection(self.server.upstream, timeout=30)
        try:
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            body = answer.read()
            length = int(answer.headers.get("Content-Length") or len(body))  # chunks have none
        finally:
            connection.close()
        dropped = ("content-length", "connection", "transfer-encoding", "date", "server")
        about = [(name, value) for name, value in answer.getheaders() if name.lower() not in dropped]
        return self._broken(fault, answer.status, about, body, length)

    def _broken(self, fault: str, status: int, about: list[tuple[str, str]], body: bytes, length: int) -> None:
        if fault == "truncated":
            self.close_connection = True
            return self._send(status, about, body[: len(body) // 2], length)
        if fault == "short":
            return self._send(status, about, body[:-1], max(0, len(body) - 1))
        if fault == "long":
            return self._send(status, about, body + b"?", len(body) + 1)
        if fault == "range":
            shift = re.compile(r"bytes (\d+)-(\d+)/")
            moved = [
                (name, shift.sub(lambda m: f"bytes {int(m[1]) + 1}-{int(m[2]) + 1}/", value)) for name, value in about
            ]
            return self._send(status, moved, body, length)
        return self._send(status, about, body, length)

    def _send(self, status: int, about: list[tuple[str, str]], body: bytes, length: int) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {length}", *(f"{n}: {v}" for n, v in about)]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        self.wfile.write(head if self.command == "HEAD" else head + body)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


@contextmanager
def breaking(upstream: str, seed: int, **about: Any) -> Iterator[Proxy]:
    with Proxy(upstream, seed, **about) as proxy, running(proxy):
        yield proxy
