"""Connection settings (time limits, proxies, certificates, headers), shared by obstore and `http.client`."""

from __future__ import annotations

import base64
import os
import re
import ssl
import time
import weakref
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from penstock._remote.options import client_options

_DEFAULTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "120s", "pool_max_idle_per_host": "32"}
_DURATION = re.compile(r"([\d.]+) ?(ms|s|sec|seconds|m|min|minutes)?")
_UNITS = {"ms": 0.001, "m": 60.0, "min": 60.0, "minutes": 60.0}
_PORTS = {"http": 80, "https": 443}
_PIECE = 1 << 20  # bytes of an answer that are read at once

CERTIFICATES = {  # by the beginning of rustls' name for the problem
    "UnknownIssuer": "If its authority is a private one, name the file with the certificate of the authority in "
    'SSL_CERT_FILE, or pass the text of that file: storage={"client_options": {"root_certificate": text}}.',
    "NotValidForName": "It belongs to another host: use the name in the certificate.",
    "Expired": "It has expired, or the clock of this machine is wrong: renew it on the server.",
    "NotValidYet": "It is not valid yet: check the clock of this machine.",
}
"""Advice to the user for each problem with a certificate."""


class Client:
    """The connection settings for one store. `options` holds the settings under obstore's names."""

    def __init__(self, root: str, user: str, storage: Mapping[str, Any]) -> None:
        self.options: dict[str, Any] = {**_DEFAULTS, **client_options(root, storage)}
        if user:
            self.options["default_headers"] = {
                **self.options.get("default_headers", {}),
                "authorization": _basic(user),
            }

    @property
    def headers(self) -> dict[str, str]:
        given = {str(name).lower(): value for name, value in self.options.get("default_headers", {}).items()}
        return {"accept": "*/*", "user-agent": self.options.get("user_agent", "penstock"), **given}

    @property
    def allows_http(self) -> bool:
        return _is_true(self.options.get("allow_http"))

    def seconds(self, name: str) -> float:
        found = _DURATION.fullmatch(str(self.options[name]))
        return float(found[1]) * _UNITS.get(found[2] or "s", 1.0) if found else 30.0

    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
        if text := self.options.get("root_certificate"):
            context.load_verify_locations(cadata=text if isinstance(text, str) else text.decode())
        if _is_true(self.options.get("allow_invalid_certificates")):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


class ServerAddress(NamedTuple):
    """The part of a URL that identifies a web server. Secrets for one address are never sent to another."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        if not parts.hostname or not port or parts.scheme not in _PORTS:
            raise ValueError("not a URL of a web server")
        return cls(parts.scheme, parts.hostname, port)


class HttpAnswer(NamedTuple):
    """A response from a web server. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WebServer:
    """Makes requests to one web server, from any number of threads. Raises ValueError for an invalid URL or proxy."""

    def __init__(self, url: str, client: Client) -> None:
        self.address = ServerAddress.of(url)
        self.place = f"{self.address.scheme}://{urlsplit(url).netloc}"  # the URL without path and query
        self._client = client
        self._proxy, self._proxy_headers = self._find_proxy()
        self._idle: list[HTTPConnection] = []  # a thread that takes a connection is the only one that uses it
        # __del__ is not used, because in a reference cycle sockets may be finalized before it, and would warn.
        weakref.finalize(self, _close, self._idle)

    def _find_proxy(self) -> tuple[tuple[str, int] | None, dict[str, str]]:
        """Returns the proxy's address (None for no proxy) and headers, as set by the options or the environment."""
        scheme, host, _ = self.address
        url = self._client.options.get("proxy_url") or ("" if proxy_bypass(host) else getproxies().get(scheme, ""))
        if not url:
            return None, {}
        parts = urlsplit(url if "//" in url else f"//{url}")
        user = unquote(parts.netloc.rpartition("@")[0])
        return (parts.hostname or "", parts.port or 80), {"proxy-authorization": _basic(user)} if user else {}

    def ask(self, method: str, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        """Sends one request and returns the response. Raises OSError or HTTPException if the connection fails."""
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection, is_new = self._connection(), True
            try:
                return self._asked(connection, method, target, headers)
            except (HTTPException, OSError):
                connection.close()
                if is_new:
                    raise  # only a new connection raises: the server may have closed an idle one

    def _connection(self) -> HTTPConnection:
        """Returns a connection, through the proxy if there is one. The first request opens the connection."""
        scheme, host, port = self.address
        peer, timeout = self._proxy or (host, port), self._client.seconds("connect_timeout")
        if scheme == "http":
            return HTTPConnection(*peer, timeout=timeout)
        connection = HTTPSConnection(*peer, timeout=timeout, context=self._client.trust())
        if self._proxy:
            connection.set_tunnel(host, port, self._proxy_headers)
        return connection

    def _asked(self, connection: HTTPConnection, method: str, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        if self._proxy and self.address.scheme == "http":
            headers, target = {**headers, **self._proxy_headers}, self.place + target
        connection.request(method, target, headers=headers)
        assert connection.sock is not None
        connection.sock.settimeout(self._client.seconds("read_timeout"))
        response = connection.getresponse()
        answer = HttpAnswer(response.status, {k.lower(): v for k, v in response.getheaders()}, self._body(response))
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def _body(self, response: HTTPResponse) -> bytes:
        """Returns the whole body of a response with status 206. For any other status, returns only the beginning."""
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


def _close(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on", "y")
