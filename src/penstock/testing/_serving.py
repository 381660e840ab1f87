"""Serves the files of a folder by http, with ranges and ETags: remote files for the laws of formats."""

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
    """The URL of a server for the files of a folder, which ends with the block."""
    with _Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """Closes the connections that clients keep open, when it ends."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, address: Any) -> None:
        self._open.add(request)
        super().process_request(request, address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, address: Any) -> None:
        """Does nothing: a client that has gone is no error."""

    def server_close(self) -> None:
        super().server_close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        folder = self.server.folder.resolve()
        file = (folder / unquote(self.path.partition("?")[0]).lstrip("/")).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            return self._answer(404, b"")
        content = file.read_bytes()
        about = {"ETag": f'"{zlib.crc32(content):08x}"'}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None:
            return self._answer(200, content, about)
        first, last = int(found[1]), min(int(found[2]), len(content) - 1)
        if first > last:
            return self._answer(416, b"")
        about["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return self._answer(206, content[first : last + 1], about)

    def _answer(self, status: int, body: bytes, about: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (about or {}).items()]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        try:
            self.wfile.write(head if self.command == "HEAD" else head + body)
        except OSError:
            self.close_connection = True
