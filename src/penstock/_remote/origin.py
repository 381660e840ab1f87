"""A web server that is sent secrets, and no other server is: where it redirects to is read without them.

obstore follows redirects by itself. It drops the headers `authorization` and `cookie` on the way to another host, but
sends on all others, as `x-api-key`, and names the URL that it came from, with the signature in its query. It cannot
be told not to. So requests with such secrets are made here, with `http.client`.
"""

from __future__ import annotations

import re
import ssl
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from penstock._remote.client import CERTIFICATES, Client
from penstock._remote.objects import Objects, is_strong
from penstock._remote.retry import RequestFailed, RequestFault, answered
from penstock._remote.store import Page, StoredObject
from penstock._remote.urls import split

_HOPS = 10
_PIECE = 1 << 20
_MOVED = (301, 302, 303, 307, 308)
# Headers that obstore does not send to another host, and those that are no secret.
_KEPT_BACK = {"authorization", "cookie", "proxy-authorization", "accept", "accept-language", "user-agent"}
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_REASONS = (  # OpenSSL's words, and rustls' names, which obstore shows
    ("Hostname mismatch", "NotValidForName"),
    ("IP address mismatch", "NotValidForName"),
    ("expired", "Expired"),
    ("not yet valid", "NotValidYet"),
)


class _HttpAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def has_secrets(root: str, user: str, storage: Mapping[str, Any]) -> bool:
    """True for a web server that is sent something which obstore would pass on to other servers."""
    client = Client(root, user, storage)
    headers = client.headers.keys()
    if not headers <= _KEPT_BACK or "/?" in root:
        return True
    # By http, on the same port, obstore takes it for the same server.
    return bool(root.startswith("https") and client.allows_http and client.options.get("default_headers"))


class Origin:
    """A store of one web server. Only this host, at this port, and by this scheme, gets the headers and the query."""

    def __init__(self, root: str, user: str, storage: Mapping[str, Any]) -> None:
        self._storage = storage
        self._client = Client(root, user, storage)
        self._place, _, self._query = root.partition("/?")
        self._idle: list[HTTPConnection] = []  # a connection is of one thread at a time
        # Not __del__: in a cycle, such as that of an error, sockets may be finalized before it, and would warn.
        weakref.finalize(self, _close, self._idle)
        self._elsewhere: dict[str, tuple[Objects, str]] = {}  # by key
        try:
            self._origin = _origin_of(self._place)
            self._via = self._client.proxy(*self._origin[:2])
        except ValueError:
            failed = RequestFailed(
                RequestFault.FINAL, "the URL, or that of its proxy, has no valid host and port", "Check them."
            )
        else:
            return
        raise failed  # without the error itself, which may show the URL

    def find(self, key: str) -> StoredObject:
        found = self._asked(key, "GET", {"range": "bytes=0-0"})
        if isinstance(found, _HttpAnswer) and found.status == 416:  # an empty file
            found = self._asked(key, "HEAD", {})
        if not isinstance(found, _HttpAnswer):
            store, there = found
            return store.find(there)._replace(key=key)
        return _stored(key, found)

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        key = stored.key
        how = {"range": f"bytes={start}-{stop - 1}"}
        if is_strong(stored.token):
            how["if-match"] = f'"{stored.token}"'
        if key in self._elsewhere:
            store, there = self._elsewhere[key]
            try:
                return store.read(stored._replace(key=there), start, stop)
            except RequestFailed as failed:
                if failed.fault not in (RequestFault.FINAL, RequestFault.MISSING):
                    raise
                del self._elsewhere[key]  # a redirect may be signed for some minutes: ask for another
        found = self._asked(key, "GET", how)
        if not isinstance(found, _HttpAnswer):
            store, there = found
            return store.read(stored._replace(key=there), start, stop)
        if found.status == 416:
            raise answered(416, "the server answered 416")
        now = _stored(key, found)
        if (now.size, now.token or stored.token) != (stored.size, stored.token):
            raise RequestFailed(RequestFault.CHANGED, f"the object has {now.size:,} bytes now, or another ETag")
        if not found.headers.get("content-range", "").startswith(f"bytes {start}-{stop - 1}/"):
            raise RequestFailed(RequestFault.ODD, "the answer has another range")
        return found.body

    def write(self, key: str, content: bytes) -> None:
        raise RequestFailed(RequestFault.FINAL, "files of web servers are not written")

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        raise RequestFailed(RequestFault.FINAL, "web servers have no list of files", "Name the files one by one.")

    def _asked(self, key: str, method: str, how: dict[str, str]) -> _HttpAnswer | tuple[Objects, str]:
        """The answer of this server, or the store and the key that it redirects to."""
        target = "/" + quote(key, safe="/:@!$&'()*+,;=~-._") + (f"?{self._query}" if self._query else "")
        for _ in range(_HOPS):
            answer = self._exchanged(method, target, how)
            if answer.status in (200, 206, 416):
                return answer
            if answer.status not in _MOVED:
                raise answered(answer.status, f"the server answered {answer.status}")
            try:
                url = urljoin(self._place + target, answer.headers.get("location", "")).partition("#")[0]
                there = _origin_of(url)
            except ValueError:
                raise RequestFailed(
                    RequestFault.FINAL, f"the server answered {answer.status} without a URL to follow"
                ) from None
            if there == self._origin:
                parts = urlsplit(url)
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                continue
            self._elsewhere[key] = found = self._stranger(url, there)
            return found
        raise RequestFailed(RequestFault.FINAL, f"the server redirects more than {_HOPS} times")

    def _stranger(self, url: str, there: tuple[str, str, int]) -> tuple[Objects, str]:
        """The store of another server, which gets no headers, and the key in it."""
        if self._origin[0] == "https" and there[0] == "http" and not self._client.allows_http:
            raise RequestFailed(
                RequestFault.FINAL,
                f"{self._origin[1]} redirects from https to {there[1]} by http, which is not encrypted",
                'Pass the URL of the file itself, or storage={"allow_http": True}.',
            )
        root, key, user = split(url)
        client = {name: value for name, value in self._client.options.items() if name != "default_headers"}
        return Objects(root, user, {**self._storage, "client_options": client}), key

    def _exchanged(self, method: str, target: str, how: dict[str, str]) -> _HttpAnswer:
        try:
            while True:
                connection, is_new = (self._idle.pop(), False) if self._idle else (self._connection(), True)
                try:
                    answer = self._sent(connection, method, target, how)
                except (HTTPException, OSError):
                    connection.close()
                    if is_new:
                        raise
                    continue  # the server may have closed it while it was idle
                return answer
        except (HTTPException, OSError) as error:
            failed = self._failed(error)
        raise failed

    def _sent(self, connection: HTTPConnection, method: str, target: str, how: dict[str, str]) -> _HttpAnswer:
        headers = {**self._client.headers, **how}
        if self._via and self._origin[0] == "http":
            headers, target = {**headers, **self._via.headers}, self._place + target
        connection.request(method, target, headers=headers)
        assert connection.sock is not None
        connection.sock.settimeout(self._client.seconds("read_timeout"))
        response = connection.getresponse()
        answer = _HttpAnswer(response.status, {k.lower(): v for k, v in response.getheaders()}, self._body(response))
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def _body(self, response: HTTPResponse) -> bytes:
        """The whole answer, within the time for a request. Only the beginning of one that is no part of a file."""
        wanted = response.status == 206
        until = time.monotonic() + self._client.seconds("timeout")
        parts = []
        while part := response.read(_PIECE):
            parts.append(part)
            if not wanted:
                response.will_close = True
                return part
            if time.monotonic() > until:
                raise TimeoutError("timed out")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _connection(self) -> HTTPConnection:
        scheme, host, port = self._origin
        timeout = self._client.seconds("connect_timeout")
        at = (self._via.host, self._via.port) if self._via else (host, port)
        if scheme == "http":
            return HTTPConnection(*at, timeout=timeout)
        connection = HTTPSConnection(*at, timeout=timeout, context=self._client.trust())
        if self._via:
            connection.set_tunnel(host, port, self._via.headers)
        return connection

    def _failed(self, error: Exception) -> RequestFailed:
        host = self._place.partition("://")[2]
        if isinstance(error, ssl.SSLCertVerificationError):
            why = next((name for words, name in _REASONS if words in str(error)), "UnknownIssuer")
            return RequestFailed(
                RequestFault.FINAL, f"the certificate of the server is not valid ({why})", CERTIFICATES[why]
            )
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            return RequestFailed(RequestFault.FINAL, f"{host} does not speak https", "Pass http:// if it has no TLS.")
        if isinstance(error, InvalidURL):
            return RequestFailed(
                RequestFault.FINAL, "the URL has a space or a control character", "Encode it: %20 is a space."
            )
        if isinstance(error, TimeoutError):
            return RequestFailed(RequestFault.PASSING, f"no answer from {host} in time")
        said = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        remedy = "Check the name of the host and the network."
        return RequestFailed(RequestFault.PASSING, f"the connection to {host} failed ({said})", remedy)


def _close(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _stored(key: str, answer: _HttpAnswer) -> StoredObject:
    headers = answer.headers
    ranged = _RANGE.match(headers.get("content-range", ""))
    if ranged is None and answer.status == 206:
        raise RequestFailed(RequestFault.ODD, "the answer has no Content-Range")
    if ranged is None and answer.body:
        raise RequestFailed(
            RequestFault.FINAL,
            "the server answered with the whole file instead of a part",
            "It cannot serve ranges of bytes, as Python's http.server cannot. Use another server, or copy the file.",
        )
    size = int(ranged[3]) if ranged else int(headers.get("content-length", "0"))
    token = headers.get("etag", "").removeprefix('"').removesuffix('"')
    if not token and "last-modified" in headers:
        with suppress(ValueError, TypeError):
            token = f"at {parsedate_to_datetime(headers['last-modified']).isoformat()}"
    return StoredObject(key, size, token)


def _origin_of(url: str) -> tuple[str, str, int]:
    """The scheme, the host and the port."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme] if parts.scheme in ("http", "https") else 0
    if not parts.hostname or not port:
        raise ValueError("not a URL of a web server")
    return parts.scheme, parts.hostname, port
