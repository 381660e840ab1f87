"""A web server that needs secrets. A redirect to another server is followed without the secrets.

obstore follows redirects by itself. When the host changes, obstore drops the headers `authorization` and `cookie`,
but keeps all others, such as `x-api-key`. obstore also sends the first URL in the `referer` header, including a
signature in the query. No option changes this behaviour. So penstock uses `http.client` for a server that needs
secrets.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPException, InvalidURL
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from penstock._remote.client import CERTIFICATES, Client, HttpAnswer, ServerAddress, WebServer
from penstock._remote.objects import NO_RANGES, Objects, is_strong
from penstock._remote.retry import RequestFailed, RequestFault, answered
from penstock._remote.store import Page, StoredObject, attempt
from penstock._remote.urls import split

_HOPS = 10
_MOVED = (301, 302, 303, 307, 308)
# Headers that obstore does not send to another host, and headers that are not secret.
_KEPT_BACK = {"authorization", "cookie", "proxy-authorization", "accept", "accept-language", "user-agent"}
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_REASONS = (  # OpenSSL's words, with the names that rustls has for the same problems
    ("Hostname mismatch", "NotValidForName"),
    ("IP address mismatch", "NotValidForName"),
    ("expired", "Expired"),
    ("not yet valid", "NotValidYet"),
    ("local issuer", "UnknownIssuer"),
    ("self-signed", "UnknownIssuer"),
)
_STRICT = "Make the certificate again: since version 3.13, Python refuses some that it accepted before (RFC 5280)."


def has_secrets(root: str, user: str, storage: Mapping[str, Any]) -> bool:
    """True if a redirect could make obstore send this web server's secrets to another server."""
    client = Client(root, user, storage)
    if not client.headers.keys() <= _KEPT_BACK or "/?" in root:
        return True
    # obstore treats a redirect to http on the same host and port as the same server.
    return bool(root.startswith("https") and client.allows_http and client.options.get("default_headers"))


class Origin:
    """A store on one web server. The headers and the query are sent only to this server (scheme, host and port)."""

    def __init__(self, root: str, user: str, storage: Mapping[str, Any]) -> None:
        self._storage = storage
        self._client = Client(root, user, storage)
        self._query = root.partition("/?")[2]
        self._elsewhere: dict[str, tuple[Objects, str]] = {}  # by key: the store and the key of the last redirect
        try:
            self.server = WebServer(root, self._client)
        except ValueError:
            failed = RequestFailed(
                RequestFault.FINAL, "the URL, or that of its proxy, has no valid host and port", "Check them."
            )
        else:
            return
        raise failed  # without the ValueError as context, which may show the URL

    def find(self, key: str) -> StoredObject:
        found = self._ask(key, "GET", {"range": "bytes=0-0"})
        if isinstance(found, HttpAnswer) and found.status == 416:  # an empty file
            found = self._ask(key, "HEAD", {})
        if isinstance(found, HttpAnswer):
            return _stored(key, found)
        store, there = found
        return attempt(store, lambda: store.find(there))._replace(key=key)

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        key = stored.key
        how = {"range": f"bytes={start}-{stop - 1}"}
        if is_strong(stored.token):
            how["if-match"] = f'"{stored.token}"'
        elsewhere = self._elsewhere.get(key)
        if elsewhere is not None:
            try:
                return _read(*elsewhere, stored, start, stop)
            except RequestFailed as failed:
                if failed.fault not in (RequestFault.FINAL, RequestFault.MISSING):
                    raise
                self._elsewhere.pop(key, None)  # ask for a new redirect, because its signature may expire in minutes
        found = self._ask(key, "GET", how)
        if not isinstance(found, HttpAnswer):
            return _read(*found, stored, start, stop)
        if found.status == 416:
            raise answered(416, "the server answered 416")
        now = _stored(key, found)
        if (now.size, now.token or stored.token) != (stored.size, stored.token):
            raise RequestFailed(RequestFault.CHANGED, f"the object has {now.size:,} bytes now, or another ETag")
        if not found.headers.get("content-range", "").startswith(f"bytes {start}-{stop - 1}/"):
            raise RequestFailed(RequestFault.ODD, "the answer has another range")
        return found.body

    def write(self, key: str, content: bytes) -> None:
        raise RequestFailed(RequestFault.FINAL, "penstock does not write to web servers")

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        raise RequestFailed(RequestFault.FINAL, "web servers have no list of files", "Name the files one by one.")

    def _ask(self, key: str, method: str, how: Mapping[str, str]) -> HttpAnswer | tuple[Objects, str]:
        """Sends a request and returns the response.

        After a redirect to another server, returns a store for the other server, and the object's key in that store.
        """
        target = "/" + quote(key, safe="/:@!$&'()*+,;=~-._") + (f"?{self._query}" if self._query else "")
        for _ in range(_HOPS):
            answer = self.server.ask(method, target, {**self._client.headers, **how})
            if answer.status in (200, 206, 416):
                return answer
            if answer.status not in _MOVED:
                raise answered(answer.status, f"the server answered {answer.status}")
            try:
                url = urljoin(self.server.place + target, answer.headers.get("location", "")).partition("#")[0]
                there = ServerAddress.of(url)
            except ValueError:
                raise RequestFailed(
                    RequestFault.FINAL, f"the server answered {answer.status} without a URL to follow"
                ) from None
            if there == self.server.address:
                parts = urlsplit(url)
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                continue
            self._elsewhere[key] = found = self._other_server(url, there)
            return found
        raise RequestFailed(RequestFault.FINAL, f"the server redirects more than {_HOPS} times")

    def _other_server(self, url: str, there: ServerAddress) -> tuple[Objects, str]:
        """Returns a store for another server, and the object's key in that store. The user's headers are left out."""
        here = self.server.address
        if here.scheme == "https" and there.scheme == "http" and not self._client.allows_http:
            raise RequestFailed(
                RequestFault.FINAL,
                f"{here.host} redirects from https to {there.host} by http, which is not encrypted",
                'Pass the URL of the file itself, or storage={"allow_http": True}.',
            )
        root, key, user = split(url)
        client = {name: value for name, value in self._client.options.items() if name != "default_headers"}
        return Objects(root, user, {**self._storage, "client_options": client}), key

    def failed(self, error: Exception) -> RequestFailed:
        host = self.server.place.partition("://")[2]
        if isinstance(error, ssl.SSLCertVerificationError):
            why = next((name for words, name in _REASONS if words in str(error)), error.verify_message)
            said = f"the certificate of the server is not valid ({why})"
            return RequestFailed(RequestFault.FINAL, said, CERTIFICATES.get(why, _STRICT))
        if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
            return RequestFailed(RequestFault.FINAL, f"{host} does not speak https", "Pass http:// if it has no TLS.")
        if isinstance(error, InvalidURL):
            return RequestFailed(
                RequestFault.FINAL, "the URL has a space or a control character", "Encode it: %20 is a space."
            )
        if isinstance(error, TimeoutError):
            return RequestFailed(RequestFault.PASSING, f"no answer from {host} in time")
        if not isinstance(error, (HTTPException, OSError)):  # neither the network nor the server can cause it
            came = f"the request could not be made ({type(error).__name__}: {error})"
            return RequestFailed(RequestFault.FINAL, came, "Check the URL and the headers in storage=.")
        said = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        remedy = "Check the name of the host and the network."
        return RequestFailed(RequestFault.PASSING, f"the connection to {host} failed ({said})", remedy)


def _read(store: Objects, key: str, stored: StoredObject, start: int, stop: int) -> Any:
    return attempt(store, lambda: store.read(stored._replace(key=key), start, stop))


def _stored(key: str, answer: HttpAnswer) -> StoredObject:
    headers = answer.headers
    ranged = _RANGE.match(headers.get("content-range", ""))
    if ranged is None and answer.status == 206:
        raise RequestFailed(RequestFault.ODD, "the answer has no Content-Range")
    if ranged is None and answer.body:
        raise RequestFailed(RequestFault.FINAL, *NO_RANGES)
    try:
        size = int(ranged[3]) if ranged else int(headers.get("content-length", "0"))
    except ValueError as error:  # also digits that are too many for int()
        raise RequestFailed(RequestFault.ODD, f"the answer is malformed (ValueError: {error})") from None
    token = headers.get("etag", "").removeprefix('"').removesuffix('"')
    if not token and "last-modified" in headers:
        with suppress(ValueError, TypeError):
            token = f"at {parsedate_to_datetime(headers['last-modified']).isoformat()}"
    return StoredObject(key, size, token)
