"""Splits URLs into parts, and hides the parts that may be secret (user, password and query) in messages."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PARTS = re.compile(r"(?P<scheme>[^:]+)://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
# The query of a URL that is not http. A ? alone may be part of a pattern.
_QUERY = re.compile(r"\?(?=[^?/\\]*[=&%]|\w{9}).*", re.DOTALL)
_AT = re.compile(r"@|%(?:25)*40", re.IGNORECASE)
_COLON = re.compile(r":|%(?:25)*3a", re.IGNORECASE)
_USER_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:[/\\]+)\S*(?:@|%40)", re.IGNORECASE)
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>,)]+")
_MARK = re.compile(r":|//|\\\\")
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d*)?")
# Schemes whose URLs begin with a bucket, not with a user. In `abfs://container@account.host`, nothing is secret.
_BUCKETS = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "hf", "memory", "oss", "gcs")
_CONTAINER = re.compile(r"(abfss?|adl|azure|az)://[\w$-]+@[\w.-]+", re.IGNORECASE)
_WEB = ("http", "https")


class _Signature(NamedTuple):
    """How a store signs URLs. URLs that differ only in signing parameters refer to the same object."""

    needs: frozenset[str]  # a URL is signed if its query has all of these, and its host matches `hosts`
    names: re.Pattern[str]  # the signing parameters; others, such as `versionId` or `id`, may select the content
    hosts: re.Pattern[str] = re.compile("")


def _signed(needs: str, more: str = "", hosts: str = "") -> _Signature:
    names = "|".join([*needs.split(), *more.split()])
    return _Signature(frozenset(needs.split()), re.compile(names), re.compile(hosts))


_AZURE = r"\.(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|cloudapi\.de)|storage\.azure\.net)(:\d+)?$"
_SIGNATURES = (
    # S3 and the many stores with its protocol, whose hosts may have any name.
    _signed(
        "x-amz-algorithm x-amz-credential x-amz-date x-amz-signature",
        "x-amz-expires x-amz-signedheaders x-amz-security-token x-amz-content-sha256",
    ),
    _signed("awsaccesskeyid expires signature", "x-amz-security-token"),
    # CloudFront, with a policy or without.
    _signed("key-pair-id signature expires", "hash-algorithm"),
    _signed("key-pair-id signature policy", "hash-algorithm"),
    # Google Cloud Storage.
    _signed(
        "x-goog-algorithm x-goog-credential x-goog-date x-goog-signature",
        "x-goog-expires x-goog-signedheaders",
    ),
    _signed("googleaccessid expires signature"),
    # Azure: the names are short enough for other servers to use them, too.
    _signed(
        "sig sv",
        "ss srt sp se st spr sip sr si skoid sktid skt ske sks skv saoid suoid scid sdd ses sduoid skdutid",
        _AZURE,
    ),
    # Alibaba's OSS, and Tencent's COS.
    _signed(
        "x-oss-credential x-oss-date x-oss-signature",
        "x-oss-signature-version x-oss-expires x-oss-additional-headers x-oss-security-token",
    ),
    _signed("ossaccesskeyid expires signature", "security-token"),
    _signed(
        "q-sign-algorithm q-ak q-signature",
        "q-sign-time q-key-time q-header-list q-url-param-list x-cos-security-token",
    ),
)


class UrlParts(NamedTuple):
    root: str  # the store, with the query if there is one
    key: str
    user: str  # "name:password", or ""


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def scheme_of(url: str) -> str:
    found = _URL.match(url)
    return found[1].lower() if found else ""


def is_web(url: str) -> bool:
    return scheme_of(url) in _WEB


def split(url: str) -> UrlParts:
    """Splits a URL into store, key and user. The characters ? and % are special only in http and https URLs."""
    if is_web(url):
        scheme, place, path, query = _parts(url)
        user, _, host = place.rpartition("@")
        return UrlParts(
            f"{scheme}://{host}" + (f"/?{query}" if query else ""), unquote(path).lstrip("/"), unquote(user)
        )
    scheme, _, rest = url.partition("://")
    place, _, key = rest.partition("/")
    return UrlParts(f"{scheme.lower()}://{place}", key, "")


def check_host(url: str) -> None:
    """Raises ValueError if a URL's host is not valid, as in `ftp://user:pass/word@host`."""
    # A URL without a valid host must not be cut at its slashes, because a part of it may end inside the password.
    rest = url.partition("://")[2]
    if _AT.search(rest):  # with a slash too many (ftp:///user:pass@host), the password is not in the host's place
        rest = rest.lstrip("/\\")
    place = re.split(r"[/\\?#]", rest, maxsplit=1)[0]
    host = _AT.split(place)[-1]
    if scheme_of(url) in _BUCKETS:  # a colon alone may be in the name of a bucket (arn:aws:s3:...)
        is_wrong = _COLON.search(place) and _AT.search(rest) and not place.startswith("arn:")
    else:
        is_wrong = ":" in host and not _HOST.fullmatch(host)
    if is_wrong:
        raise ValueError(
            f"{redacted(url)!r} has no valid host. In a user or password, write a slash as %2F, and @ as %40."
        )


def redacted(url: str) -> str:
    """Returns the URL in a form fit for messages, without the user, password or query.

    `url` may also be a path, because the user may have mistyped a URL. If it is unclear where the password ends,
    everything up to the last @ is hidden. Two different URLs may therefore give the same result, unlike with
    `faithful`.
    """
    found = _URL.match(url)
    if found is None:
        return _unlike_url(url)
    rest = url[found.end() :].lstrip("/\\")
    asked = re.search(r"[?#]", rest) if is_web(url) else _QUERY.search(rest)
    head, tail = (rest[: asked.start()], rest[asked.start() :]) if asked else (rest, "")
    place = re.split(r"[/\\]", head, maxsplit=1)[0]
    is_plain = not _AT.search(place) and not _COLON.search(place)
    if _AT.search(tail) and not (is_plain and len(place) < len(head)):
        return f"{found[0]}***"
    ats = list(_AT.finditer(head))
    if ats and not (is_plain and (scheme_of(url) in _BUCKETS or "." in place)) and not _CONTAINER.match(url):
        inside = ats[-1].end() <= len(place)
        head = ("" if inside else "***@") + head[ats[-1].end() :]
    elif _COLON.search(place) and not _HOST.fullmatch(place):
        head = "***"
    return found[0] + head


def _unlike_url(text: str) -> str:
    """Returns a path for messages. If the path may be a mistyped URL, any possible secret is hidden."""
    plain = unquote(unquote("".join(text.split())))
    mark = _MARK.search(plain)
    if mark is None:
        return text
    if (at := plain.rfind("@")) > mark.start():
        return f"***@{re.split('[?#]', plain[at + 1 :])[0]}"
    asked = re.search(r"\?[^/]*=", plain)
    return plain[: asked.start()] if asked else text


def faithful(root: str, key: str) -> str:
    """Returns the URL of an existing object, without user and query. The result is unique within a store."""
    scheme, _, place = root.partition("/?")[0].partition("://")
    host = place if _CONTAINER.fullmatch(root) else _AT.split(place)[-1]
    return f"{scheme}://{host}/{key if is_web(root) else _QUERY.sub('', key)}"


def suspicious(rest: str) -> list[str]:
    """Returns the parts of `rest` (a URL without scheme) that may be secret.

    These parts are the text before the last @, and the query. Each of the two is also split at characters such as :
    and &, and the pieces are returned as well.
    """
    ats = list(_AT.finditer(rest))
    hidden = [rest[: ats[-1].start()]] if ats else []
    hidden.append(rest.partition("?")[2])
    return [part for each in hidden for part in (each, *re.split(r"[:/\\@?#=&]", each))]


def local(path: str, reader: str) -> str:
    """Returns `path`. If the file is missing and `path` looks like a URL, raises an error that hides the password."""
    if redacted(path) != path and not os.path.exists(path):
        raise FileNotFoundError(
            f"{reader}: there is no local file {redacted(path)!r}. It looks like a URL: copy the file to a disk."
        )
    return path


def identified(root: str, key: str, user: str) -> str:
    """Returns a string that is the same for all signed URLs of an object, and different for other objects.

    The string contains no password, but may contain other credentials, so it must never be shown.
    """
    if not is_web(root):
        scheme, _, place = root.partition("://")
        before, mark, host = place.rpartition("@")
        return f"{scheme}://{before.partition(':')[0]}{mark}{host}/{key}"
    scheme, host, _, query = _parts(root)
    before = user.partition(":")[0]
    rest = _unsigned(host, query)
    # `split` has decoded the key: encode the characters that would end the path.
    path = key.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return f"{scheme}://{before}{'@' if before else ''}{host}/{path}" + (f"?{rest}" if rest else "")


def _unsigned(host: str, query: str) -> str:
    """Removes the signing parameters from a query. Changes nothing if a signing parameter occurs twice."""
    parts = query.split("&")
    names = [unquote(part.partition("=")[0]).lower() for part in parts]
    for needs, signing, hosts in _SIGNATURES:
        if needs <= {*names} and hosts.search(host):
            signs = [signing.fullmatch(name) is not None for name in names]
            if len({name for name, does in zip(names, signs, strict=True) if does}) == sum(signs):
                return "&".join(part for part, does in zip(parts, signs, strict=True) if not does)
    return query


def scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    """Returns a library's message with URLs redacted and secrets replaced by ***."""
    text = _USER_IN_TEXT.sub(r"\1", text)
    text = _IN_TEXT.sub(lambda found: redacted(found[0]), text)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _parts(url: str) -> tuple[str, str, str, str]:
    found = _PARTS.match(url)
    if found is None:
        raise ValueError(f"{url[:20]!r}... is not a URL of the form scheme://host/path.")
    return found["scheme"].lower(), found["place"], found["path"], found["query"] or ""
