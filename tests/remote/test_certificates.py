"""https: a certificate that is not valid is an error at once, with the remedy; one of a given authority is read."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from certificates import signed_certificate

from penstock._remote.store import remotes
from penstock.errors import RemoteError
from penstock.formats import TextLines
from remote.serving import Server, running


@contextmanager
def encrypted(folder: Path, address: str = "IP:127.0.0.1", days: int = 2) -> Iterator[tuple[str, Path]]:
    """A file by https: its URL, and the certificate of the authority."""
    (folder / "x.txt").write_text("one\n")
    tls = signed_certificate(folder, address, days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    with Server(folder) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with running(server):
            yield server.url.replace("http:", "https:") + "/x.txt", Path(tls.authority)


def trusting(authority: Path) -> dict[str, Any]:
    return {"client_options": {"root_certificate": authority.read_text()}}


def test_an_unknown_authority_is_an_error_at_once_with_the_remedy(folder: Path) -> None:
    with encrypted(folder) as (url, _):
        said = r"not valid \(UnknownIssuer\).*tried once.*SSL_CERT_FILE.*root_certificate"
        with pytest.raises(RemoteError, match=said):
            TextLines(url)


def test_the_authority_is_given_as_an_option(folder: Path) -> None:
    with encrypted(folder) as (url, authority):
        assert list(TextLines(url, storage=trusting(authority))) == ["one"]


def test_the_authority_is_given_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with encrypted(folder) as (url, authority):
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert list(TextLines(url)) == ["one"]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"days": -1}, r"\(Expired\)\. It was tried once\. It has expired, or the clock"),
        ({"address": "DNS:other.example"}, r"\(NotValidForName\w*\)\. .* tried once\. It belongs to another host"),
    ],
)
def test_a_known_authority_does_not_make_all_certificates_valid(folder: Path, about: Any, said: str) -> None:
    with encrypted(folder, **about) as (url, authority):
        ((remote, key),) = remotes([url], trusting(authority))
        with pytest.raises(RemoteError, match=said):
            remote.find(key)
