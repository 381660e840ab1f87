"""The only module that imports obstore, which reads S3, Google Cloud Storage, Azure and web servers.

obstore's own retries are switched off, because penstock retries requests itself and counts every attempt. (obstore
would not retry the statuses 408 and 429.)
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from penstock._remote import options
from penstock._remote.client import CERTIFICATES, Client, WebServer
from penstock._remote.retry import RequestFailed, RequestFault, answered, is_passing
from penstock._remote.store import Page, StoredObject
from penstock._remote.urls import is_web, redacted
from penstock._system.interrupts import LiveObjects
from penstock._system.panics import NO_PANICS
from penstock._system.platform import register_at_fork
from penstock.errors import RemoteError

NO_RANGES = (
    "the server answered with the whole file instead of a part",
    "It cannot serve ranges of bytes, as Python's http.server cannot. Use another server, or copy the file.",
)
"""The failure and remedy that are reported if a server does not support range requests."""

_PAGE = 1000  # objects; S3 lists no more in one response
# The reaction to an error depends on its class or, if that says nothing, on the status in its message. The rest of
# the message is meant for debugging, and only adds words. If obstore changes it, at worst a request is retried in
# vain.
_STATUSES = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "NotModifiedError": 412,
    "PermissionDeniedError": 403,
    "PreconditionError": 412,
    "UnauthenticatedError": 401,
}
_STATUS = re.compile(r"status code: (\d{3})([A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z.]{1,60})</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
_ASKED = re.compile(r"performing [A-Z]+ (https?://\S+)")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode|Unknown)\b")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"|InvalidCertificate\(\s*(\w+)')
_PEER = re.compile(r'ConnectError\(\s*"[^"]*",\s*([0-9a-f.:\[\]]+),')  # the address, which may be that of a proxy
_CAUSES = (  # the library's words, and penstock's
    ("IncompleteMessage", "the server closed it without an answer"),
    ("Parse(", "the answer is not HTTP"),
)
_S3_SERVER = "AWS_ENDPOINT_URL_S3"
# Cloud services that give credentials to their machines. obstore asks them last.
_METADATA = re.compile(r"169\.254\.1(69\.254|70\.2)/|metadata\.google\.internal|/latest/(api/token|meta-data)")
_NO_CREDENTIALS = (
    "Set them as for the tools of the cloud (environment variables, a role), pass them in storage=, or, for public "
    'data, storage={"skip_signature": True}.'
)
_SAID = {
    "Connect": "no connection to {}",
    "Timeout": "no answer from {} in time",
    "Interrupted": "the answer from {} broke off",
}

_started_in: int | None = None  # the process in which obstore has started its threads


class Objects:
    """A store that is accessed through obstore. `storage` has the form that `options.named` returns."""

    def __init__(self, root: str, user: str, storage: Mapping[str, Any]) -> None:
        obstore = _imported()
        settings = {"retry_config": {"max_retries": 0}, **storage}
        settings.pop("client_options", None)
        self._client = Client(root, user, storage)
        self._is_web, self._is_s3 = is_web(root), root.startswith("s3")
        make, place = obstore.store.HTTPStore if self._is_web else obstore.store.from_url, root
        if self._is_s3 and _S3_SERVER in os.environ and "endpoint" in settings:
            # obstore prefers this variable to the option `endpoint`, but not to an option with the name of the
            # variable, which `from_url` does not accept.
            make, place = obstore.store.S3Store, root.partition("://")[2]
            settings["config"] = {_S3_SERVER.lower(): settings.pop("endpoint")}
        try:
            with NO_PANICS:
                self._store = make(place, client_options=self._client.options, **settings)
            _live.add(self)
        except MemoryError:
            raise
        except Exception as error:
            refused = options.unknown(root, error)
            failed = _failed(error)
        else:
            return
        raise refused or RequestFailed(RequestFault.FINAL, failed.came, "Check the URL and the options in storage=.")

    def find(self, key: str) -> StoredObject:
        if not self._is_web:
            try:
                return _stored(self._store.head(key))
            except Exception as error:
                if _status_of(error) not in (400, 403):
                    raise
            # Only the response to a GET says why.
        return self._peeked(key)

    def _peeked(self, key: str) -> StoredObject:
        """Finds an object by reading its first byte, because a URL signed for GET cannot be used for HEAD."""
        try:
            answer = self._store.get(key, options={"range": (0, 1)})
        except Exception as error:
            if _status_of(error) == 416:  # an empty file
                return _stored(self._store.head(key))
            raise
        answer.bytes()
        return _stored(answer.meta)

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        how: dict[str, Any] = {"range": (start, stop)}
        if is_strong(stored.token):
            how["if_match"] = f'"{stored.token}"'
        answer = self._store.get(stored.key, options=how)
        now = _stored(answer.meta)
        if (now.size, now.token or stored.token) == (stored.size, stored.token):
            return answer.bytes()
        raise RequestFailed(RequestFault.CHANGED, f"the object has {now.size:,} bytes now, or another ETag")

    def write(self, key: str, content: bytes) -> None:
        if self._is_web:  # some servers would take a PUT for something else
            raise RequestFailed(RequestFault.FINAL, "penstock does not write to web servers")
        self._store.put(key, content)

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        if deep:
            for objects in self._store.list(folder or None, offset=after or None, chunk_size=_PAGE):
                yield Page(list(map(_stored, objects)), [])
        else:
            page = self._store.list_with_delimiter(folder or None)
            yield Page(list(map(_stored, page["objects"])), list(page["common_prefixes"]))

    def failed(self, error: Exception) -> RequestFailed:
        return (self._is_s3 and self._wrong_region(str(error))) or _failed(error)

    def _wrong_region(self, text: str) -> RequestFailed | None:
        """Returns an error with the bucket's region (if it is known), or None if the region was not the problem."""
        head, asked = text.partition("\n\nDebug source")[0], _ASKED.search(text)
        named = _REGION.search(head)
        if "redirect without LOCATION" in head:
            region = self._region_at(asked[1]) if asked else ""
        elif named and "AuthorizationHeaderMalformed" in head:
            region = named[1]
        else:
            return None
        if not region:
            return RequestFailed(
                RequestFault.FINAL, "the bucket is in another region", 'Pass it: storage={"region": "..."}.'
            )
        remedy = f'Pass storage={{"region": "{region}"}}, or set AWS_REGION={region}.'
        return RequestFailed(
            RequestFault.FINAL, f"the bucket is in the region {region}, and another one was asked", remedy
        )

    def _region_at(self, url: str) -> str:
        """Asks S3, without a signature, for the region of the bucket in a URL. Returns "" if S3 does not say."""
        try:
            answer = WebServer(url, self._client).ask("HEAD", urlsplit(url).path or "/", {})
        except (OSError, ValueError, HTTPException):
            return ""
        # Every response of S3 has this header, but obstore does not expose headers.
        region = answer.headers.get("x-amz-bucket-region", "")
        return region if re.fullmatch(r"[a-z0-9-]{1,40}", region) else ""


_live = LiveObjects[Objects]()


def _leak() -> None:
    """Keeps the parent's stores in a forked child forever, because freeing one may block.

    obstore then closes its connections, for which it needs a lock that a thread of the parent may have held.
    """
    for store in _live:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # a global would be cleared at the interpreter's exit


register_at_fork(after_in_child=_leak)


def is_strong(token: str) -> bool:
    """True if the token is a strong ETag, as If-Match requires. Other tokens are weak ETags or times ("at ...")."""
    return bool(token) and not token.startswith(("W/", "at "))


def _imported() -> Any:
    global _started_in
    if _started_in is not None and _started_in != os.getpid():
        raise RemoteError(
            f"This process ({os.getpid()}) was forked from one ({_started_in}) that had read remote files, and the "
            "threads of obstore do not survive a fork: each read would wait for ever. Leave multiprocessing_context "
            'out, or pass multiprocessing_context="forkserver".'
        )
    try:
        import obstore
    except ImportError as error:
        raise ImportError('Remote files need obstore: pip install ".[remote]" in a clone of penstock') from error
    _started_in = os.getpid()
    return obstore


def _stored(meta: Any) -> StoredObject:
    time = meta["last_modified"]
    token = (meta["e_tag"] or "").removeprefix('"').removesuffix('"')
    if not token and time is not None and time.timestamp() > 0:  # obstore returns 1970 if the server sends no time
        token = f"at {time.isoformat()}"
    return StoredObject(meta["path"], meta["size"], token)


def _failed(error: Exception) -> RequestFailed:
    """Converts an obstore error to RequestFailed. Keeps few words of its text, which contains URLs and responses."""
    text, kind = str(error), type(error).__name__
    head = text.partition("\n\nDebug source")[0]
    status = _status_of(error)
    if _METADATA.search(head) and not is_passing(status):
        return RequestFailed(RequestFault.FINAL, "no credentials were found", _NO_CREDENTIALS)
    if status:
        said, code = _STATUS.search(head), _CODE.search(text)
        words = f"{said[1]}{said[2].rstrip()}" if said else f"{status}"
        came = f"the server answered {words}" + (f" ({code[1]})" if code else "")
        return answered(status, came)
    if kind == "NotSupportedError" or "non-partial response" in head:
        return RequestFailed(RequestFault.FINAL, *NO_RANGES)
    if "Requested " in head or "Content-Range" in head:
        return RequestFailed(RequestFault.ODD, f"the answer has another range: {head.rpartition('error: ')[2]}")
    if "invalid list response" in head:
        return RequestFailed(RequestFault.ODD, "the list of objects is cut off or is not XML")
    if "redential" in head:
        return RequestFailed(RequestFault.FINAL, "no credentials were found", _NO_CREDENTIALS)
    return _broken(kind, head, text)


def _broken(kind: str, head: str, text: str) -> RequestFailed:
    """Works like `_failed`, for a request that got no response from the server."""
    cause = _CAUSE.search(text)
    why = next(filter(None, cause.groups()), "") if cause else ""
    if "ertificate" in text:
        remedy = next((said for start, said in CERTIFICATES.items() if why.startswith(start)), "")
        return RequestFailed(
            RequestFault.FINAL, f"the certificate of the server is not valid ({why or 'refused'})", remedy
        )
    broken = _KIND.search(text)
    if kind != "GenericError" or (broken is None and not _ASKED.search(head)):
        return RequestFailed(RequestFault.FINAL, f"{kind}: {head[:300]}")
    host = _host(head)
    if "BadScheme" in text:
        return RequestFailed(
            RequestFault.FINAL, f"{host} is to be read by http://, but allow_http is false", "Pass https://."
        )
    if "InvalidContentType" in text:
        return RequestFailed(
            RequestFault.FINAL, f"{host} does not speak https", "Pass the server with http:// if it has no TLS."
        )
    how = broken[1] if broken else ""
    said = _SAID.get(how, "the connection to {} failed").format(host)
    why = why or next((words for word, words in _CAUSES if word in text), "")
    at = _PEER.search(text)
    if why and at and at[1] != host:
        why = f"{why} by {at[1]}"
    remedy = "Check the name of the host and the network." if how == "Connect" else ""
    return RequestFailed(RequestFault.PASSING, f"{said} ({why})" if why else said, remedy)


def _host(head: str) -> str:
    """Returns the host that a failed request was sent to. The options may replace the URL's host."""
    asked = _ASKED.search(head)
    return redacted(asked[1]).partition("://")[2].partition("/")[0] if asked else "the server"


def _status_of(error: Exception) -> int:
    """Returns the HTTP status that caused obstore's error, or 0 if there was no response."""
    known = _STATUSES.get(type(error).__name__)
    if known is not None:
        return known
    found = _STATUS.search(str(error).partition("\n\nDebug source")[0])
    return int(found[1]) if found else 0
