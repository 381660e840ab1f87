"""Serves the files of a folder over HTTP, with ranges and ETags, to test formats with remote files."""

from __future__ import annotations

import re
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    with _Server(folder) as server, running(server):
        yield server.url


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


class Closing(ThreadingHTTPServer):
    """A server on the loopback interface. Closing it also closes connections that clients keep open."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._open: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, address: Any) -> None:
        self._open.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, address: Any) -> None:
        """Ignores errors, because clients may disconnect at any time."""

    def server_close(self) -> None:
        super().server_close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Answering(BaseHTTPRequestHandler):
    """A request handler that sends each response in a single write, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def answer_range(self, content: bytes, about: dict[str, str]) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None:
            return self.answer(200, content, about)
        first, last = int(found[1]), min(int(found[2]), len(content) - 1)
        if first > last:
            return self.answer(416, b"")
        about["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self.answer(206, content[first : last + 1], about)

    def answer(self, status: int, body: bytes, about: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (about or {}).items()]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        try:
            # In one write, because Nagle's algorithm would delay a second one by 40 ms.
            self.wfile.write(head if self.command == "HEAD" else head + body)
        except OSError:
            self.close_connection = True


class _Server(Closing):
    def __init__(self, folder: Path) -> None:
        super().__init__(_RequestHandler)
        self.folder = folder


class _RequestHandler(Answering):
    server: _Server

    def do_GET(self) -> None:
        folder = self.server.folder.resolve()
        file = (folder / unquote(self.path.partition("?")[0]).lstrip("/")).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            return self.answer(404, b"")
        content = file.read_bytes()
        return self.answer_range(content, {"ETag": f'"{zlib.crc32(content):08x}"'})
