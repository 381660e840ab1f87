"""URLs: their parts, and how messages show them: without user, password and query, which may hold credentials."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PARTS = re.compile(r"(?P<scheme>[^:]+)://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
_QUERY = re.compile(r"\?[\w.~-]+=.*", re.DOTALL)  # of other schemes than http: there a ? may be part of a pattern
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>,)]+")
_WEB = ("http", "https")
# Parameters that sign a URL, so that the same object has others tomorrow.
_SIGNING = re.compile(
    r"x-(amz|goog|oss|cos|ms)-.*|sig|se|sp|sv|sr|st|spr|skoid|sktid|skt|ske|sks|skv|expires|signature|policy"
    r"|key-pair-id|awsaccesskeyid|googleaccessid|token|access_token|hdnts|hmac",
    re.IGNORECASE,
)


class Parts(NamedTuple):
    """A URL as a store and the key of an object in it. `root` may hold a signed query; `user` is "name:password"."""

    root: str
    key: str
    user: str


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def scheme_of(url: str) -> str:
    found = _URL.match(url)
    return found[1].lower() if found else ""


def is_web(url: str) -> bool:
    """True for http and https, which have no listing of files."""
    return scheme_of(url) in _WEB


def split(url: str) -> Parts:
    """The store of a URL, and the key of an object in it. Only http and https have queries and encoded letters."""
    if is_web(url):
        scheme, place, path, query = _parts(url)
        user, _, host = place.rpartition("@")
        return Parts(f"{scheme}://{host}" + (f"/?{query}" if query else ""), unquote(path).lstrip("/"), unquote(user))
    scheme, _, rest = url.partition("://")
    place, _, key = rest.partition("/")
    return Parts(f"{scheme.lower()}://{place}", key, "")


def redacted(url: str) -> str:
    """The URL as messages show it."""
    if is_web(url):
        scheme, place, path, _ = _parts(url)
        return f"{scheme}://{place.rpartition('@')[2]}{path}"
    scheme, mark, rest = url.partition("://")
    place, slash, key = rest.partition("/")
    user, _, host = place.rpartition("@")
    return scheme + mark + (host if ":" in user else place) + slash + _QUERY.sub("", key)


def unsigned(url: str) -> str:
    """The URL without user and signature, which is the same for all users and at all times."""
    query = _parts(url)[3] if is_web(url) else ""
    kept = [(name, value) for name, value in parse_qsl(query, True) if not _SIGNING.fullmatch(name)]
    return redacted(url) + (f"?{urlencode(kept)}" if kept else "")


def scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    """A text of a library, with its URLs redacted, and without these secrets."""
    text = _IN_TEXT.sub(lambda found: redacted(found[0]), text)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _parts(url: str) -> tuple[str, str, str, str]:
    found = _PARTS.match(url)
    if found is None:
        raise ValueError(f"{url[:20]!r}... is not a URL of the form scheme://host/path.")
    return found["scheme"].lower(), found["place"], found["path"], found["query"] or ""
