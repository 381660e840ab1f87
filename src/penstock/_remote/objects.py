"""The only module that imports obstore: S3, Google Cloud Storage, Azure, and servers of files by http.

obstore repeats failed requests by itself, but not those with the status 408 or 429. It is told not to, so that its
tries and ours do not multiply, and all are counted.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from penstock._remote.retry import Failed, Fault
from penstock._remote.store import SERVERS, Page, Stored
from penstock._remote.urls import is_web
from penstock.errors import RemoteError

_CLIENT = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "120s", "pool_max_idle_per_host": "32"}
_PAGE = 1000  # objects: what S3 returns at once
_STATUS = re.compile(r"status code: (\d{3})([A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z.]{1,60})</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode|Unknown)\b")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"|InvalidCertificate\(\s*(\w+)')
# The services of clouds that give credentials to their machines: the last place where obstore looks for some.
_METADATA = re.compile(r"169\.254\.1(69\.254|70\.2)/|metadata\.google\.internal|/latest/(api/token|meta-data)")
_NO_CREDENTIALS = (
    "Set them as for the tools of the cloud (environment variables, a role), pass them in storage=, or, for public "
    'data, storage={"skip_signature": True}.'
)
_CERTIFICATES = {  # by the beginning of the name that rustls has for what is wrong
    "UnknownIssuer": "If its authority is a private one, name the file with the certificate of the authority in "
    'SSL_CERT_FILE, or pass the text of that file: storage={"client_options": {"root_certificate": text}}.',
    "NotValidForName": "It belongs to another host: use the name in the certificate.",
    "Expired": "It has expired, or the clock of this machine is wrong: renew it on the server.",
    "NotValidYet": "It is not valid yet: check the clock of this machine.",
}
_AGAIN = {408, 425, 429}
_SAID = {"Connect": "no connection", "Timeout": "no answer in time", "Interrupted": "the answer broke off"}

_started_in: int | None = None  # the process in which obstore has started its threads


class Objects:
    """A store that obstore reads."""

    def __init__(self, root: str, user: str, storage: Mapping[str, Any]) -> None:
        obstore = _imported()
        settings = {"retry_config": {"max_retries": 0}, **storage}
        client: dict[str, Any] = {**_CLIENT, **settings.pop("client_options", {})}
        if user:
            client["default_headers"] = {**client.get("default_headers", {}), "authorization": _basic(user)}
        if any(str(each).startswith("http://") for each in (root, *map(settings.get, SERVERS))):
            client.setdefault("allow_http", True)
        for name in SERVERS:
            if name in settings and not is_web(str(settings[name])):  # obstore would panic
                raise Failed(Fault.FINAL, f"{name} is not a URL", f'Pass storage={{"{name}": "https://host"}}.')
        self._is_web = is_web(root)
        make = obstore.store.HTTPStore if self._is_web else obstore.store.from_url
        try:
            self._store = make(root, client_options=client, **settings)
        except Exception as error:
            failed = _failed(error)
        else:
            return
        raise Failed(Fault.FINAL, failed.came, "Check the URL and the options in storage=.")

    def find(self, key: str) -> Stored:
        try:
            return self._peeked(key) if self._is_web else _stored(self._store.head(key))
        except Exception as error:
            failed = _failed(error)
        raise failed

    def _peeked(self, key: str) -> Stored:
        """Asks for the first byte: a URL that is signed for GET is not valid for HEAD."""
        try:
            answer = self._store.get(key, options={"range": (0, 1)})
        except Exception as error:
            if "status code: 416" in str(error):  # an empty file
                return _stored(self._store.head(key))
            raise
        answer.bytes()
        return _stored(answer.meta)

    def read(self, stored: Stored, start: int, stop: int) -> Any:
        options: dict[str, Any] = {"range": (start, stop)}
        if is_strong(stored.token):
            options["if_match"] = f'"{stored.token}"'
        try:
            answer = self._store.get(stored.key, options=options)
            now = _stored(answer.meta)
            if (now.size, now.token or stored.token) == (stored.size, stored.token):
                return answer.bytes()
            failed = Failed(Fault.CHANGED, f"the object has {now.size:,} bytes now, or another ETag")
        except Exception as error:
            failed = _failed(error)
        raise failed

    def write(self, key: str, content: bytes) -> None:
        if self._is_web:  # some servers would take it for something else
            raise Failed(Fault.FINAL, "files of web servers are not written")
        try:
            self._store.put(key, content)
            return
        except Exception as error:
            failed = _failed(error)
        raise failed

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        try:
            if not deep:
                page = self._store.list_with_delimiter(folder or None)
                yield Page(list(map(_stored, page["objects"])), list(page["common_prefixes"]))
                return
            for objects in self._store.list(folder or None, offset=after or None, chunk_size=_PAGE):
                yield Page(list(map(_stored, objects)), [])
            return
        except Exception as error:
            failed = _failed(error)
        raise failed


def is_strong(token: str) -> bool:
    """True for an ETag by which a server can be asked for this content only; a weak one never matches."""
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


def _stored(meta: Any) -> Stored:
    time = meta["last_modified"]
    token = (meta["e_tag"] or "").removeprefix('"').removesuffix('"')
    if not token and time is not None and time.timestamp() > 0:  # without a time, obstore returns that of 1970
        token = f"at {time.isoformat()}"
    return Stored(meta["path"], meta["size"], token)


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def _failed(error: Exception) -> Failed:
    """What an error of obstore means. Its text has URLs and answers of servers: only a few words of it are kept."""
    if isinstance(error, Failed):
        return error
    text, kind = str(error), type(error).__name__
    head = text.partition("\n\nDebug source")[0]
    status = _STATUS.search(head)
    code = _CODE.search(text)
    if _METADATA.search(head) and not (status and _is_passing(int(status[1]))):
        return Failed(Fault.FINAL, "no credentials were found", _NO_CREDENTIALS)
    if status:
        number = int(status[1])
        came = f"the server answered {number}{status[2].rstrip()}" + (f" ({code[1]})" if code else "")
        return _answered(number, came)
    if isinstance(error, FileNotFoundError):
        return _answered(404, "there is no such object")
    if kind == "NotSupportedError" and "ange request" in text:
        return Failed(
            Fault.FINAL,
            "the server answered with the whole file instead of a part",
            "It cannot serve ranges of bytes, as Python's http.server cannot. Use another server, or copy the file.",
        )
    if "Requested " in head or "Content-Range" in head:
        return Failed(Fault.ODD, f"the answer has another range: {head.rpartition('error: ')[2]}")
    if "invalid list response" in head:
        return Failed(Fault.ODD, "the list of objects is cut off or is not XML")
    if "redirect without LOCATION" in head:
        return Failed(Fault.FINAL, "the bucket is in another region", 'Pass it: storage={"region": "..."}.')
    if "redential" in head:
        return Failed(Fault.FINAL, "no credentials were found", _NO_CREDENTIALS)
    return _broken(kind, head, text)


def _broken(kind: str, head: str, text: str) -> Failed:
    """The failure of a connection, or of a call that was never sent."""
    cause = _CAUSE.search(text)
    why = next(filter(None, cause.groups()), "") if cause else ""
    if "ertificate" in text:
        remedy = next((said for start, said in _CERTIFICATES.items() if why.startswith(start)), "")
        return Failed(Fault.FINAL, f"the certificate of the server is not valid ({why or 'refused'})", remedy)
    broken = _KIND.search(text)
    if broken is None or kind != "GenericError":
        return Failed(Fault.FINAL, f"{kind}: {head[:300]}")
    said = _SAID.get(broken[1], "the connection failed")
    remedy = "Check the name of the host and the network." if broken[1] == "Connect" else ""
    return Failed(Fault.PASSING, f"{said} ({why})" if why else said, remedy)


def _is_passing(status: int) -> bool:
    return status in _AGAIN or status >= 500


def _answered(status: int, came: str) -> Failed:
    """What the status of an answer means."""
    if _is_passing(status):
        return Failed(Fault.PASSING, came, "The store is overloaded or down: try again later.")
    if status in (404, 410):
        return Failed(Fault.MISSING, came, "Check the URL: names are case-sensitive.")
    if status == 412:
        return Failed(Fault.CHANGED, came)
    if status in (401, 403):
        return Failed(
            Fault.FINAL,
            came,
            "Check the credentials, and that they may read this object; a signed URL may have expired.",
        )
    if status == 416:
        return Failed(Fault.CHANGED, came)
    return Failed(Fault.FINAL, came, "Check the URL and the options in storage=.")
