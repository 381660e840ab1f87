"""How web servers are reached, declared once: time limits, proxies and certificates.

obstore is given these settings under its own names. `origin.py`, which makes its own requests, takes the same.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from penstock._remote.options import client_options

_DEFAULTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "120s", "pool_max_idle_per_host": "32"}
_DURATION = re.compile(r"([\d.]+) ?(ms|s|sec|seconds|m|min|minutes)?")
_UNITS = {"ms": 0.001, "m": 60.0, "min": 60.0, "minutes": 60.0}

CERTIFICATES = {  # by the beginning of the name that rustls has for what is wrong
    "UnknownIssuer": "If its authority is a private one, name the file with the certificate of the authority in "
    'SSL_CERT_FILE, or pass the text of that file: storage={"client_options": {"root_certificate": text}}.',
    "NotValidForName": "It belongs to another host: use the name in the certificate.",
    "Expired": "It has expired, or the clock of this machine is wrong: renew it on the server.",
    "NotValidYet": "It is not valid yet: check the clock of this machine.",
}
"""What to do about a certificate that is not valid."""


class Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]


class Client:
    """The settings of connections to one server. `options` has them with obstore's names."""

    def __init__(self, root: str, user: str, storage: Mapping[str, Any]) -> None:
        self.options: dict[str, Any] = {**_DEFAULTS, **client_options(root, storage)}
        if user:
            self.options["default_headers"] = {
                **self.options.get("default_headers", {}),
                "authorization": basic(user),
            }

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request, with names in lower case."""
        given = {str(name).lower(): value for name, value in self.options.get("default_headers", {}).items()}
        return {"accept": "*/*", "user-agent": self.options.get("user_agent", "penstock"), **given}

    @property
    def allows_http(self) -> bool:
        return _is_true(self.options.get("allow_http"))

    def seconds(self, name: str) -> float:
        """One of the time limits."""
        found = _DURATION.fullmatch(str(self.options[name]))
        return float(found[1]) * _UNITS.get(found[2] or "s", 1.0) if found else 30.0

    def proxy(self, scheme: str, host: str) -> Proxy | None:
        """The proxy of the options or of the environment. Raises ValueError if its URL is not valid."""
        url = self.options.get("proxy_url") or ("" if proxy_bypass(host) else getproxies().get(scheme, ""))
        if not url:
            return None
        parts = urlsplit(url if "//" in url else f"//{url}")
        user = unquote(parts.netloc.rpartition("@")[0])
        return Proxy(parts.hostname or "", parts.port or 80, {"proxy-authorization": basic(user)} if user else {})

    def trust(self) -> ssl.SSLContext:
        """The certificates that are trusted."""
        context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
        if text := self.options.get("root_certificate"):
            context.load_verify_locations(cadata=text if isinstance(text, str) else text.decode())
        if _is_true(self.options.get("allow_invalid_certificates")):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on", "y")
