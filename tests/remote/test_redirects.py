"""Secrets for a server reach no other one, wherever it redirects to: to other ports, and other names."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from certificates import signed_certificate

from penstock._remote import store
from penstock._remote.retry import Patience
from penstock._remote.store import Remote, attempt, remotes
from penstock.errors import RemoteError
from penstock.formats import TextLines
from remote.serving import Handler, Server, breaking, running, serving

SECRET = "hunter2"
QUERY = f"X-Amz-Signature={SECRET}"
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {  # the user, the query and the options
    "header": ("", "", {"headers": {"X-Token": SECRET}}),
    "default header": ("", "", {"client_options": {"default_headers": {"x-api-key": SECRET}}}),
    "authorization": ("", "", {"headers": {"Authorization": f"Bearer {SECRET}"}}),
    "cookie": ("", "", {"headers": {"cookie": f"session={SECRET}"}}),
    "user": (f"me:{SECRET}@", "", {}),
    "query": ("", QUERY, {}),
    "all": (f"me:{SECRET}@", QUERY, {"headers": {"x-token": SECRET, "cookie": SECRET}}),
}


class Moving(Server):
    """Redirects all requests to `to`, with the same path."""

    to = ""
    code = 302


class Redirecting(Handler):
    server: Moving

    def do_GET(self) -> None:
        if self.path.startswith("http"):  # as a proxy is asked
            self.path = "/" + self.path.split("/", 3)[3]
        if not self.server.to:
            return super().do_GET()
        self.server.headers.append(dict(self.headers))
        self.server.log.append((self.command, self.path, self.headers.get("Range", "")))
        where = self.server.to + self.path.partition("?")[0]
        return self.answer(self.server.code, b"moved", {"Location": where})


@contextmanager
def moving(folder: Path) -> Iterator[Moving]:
    server = Moving(folder)
    server.RequestHandlerClass = Redirecting  # type: ignore[assignment]
    with server, running(server):
        yield server


@pytest.fixture
def here(folder: Path) -> Iterator[Moving]:
    (folder / "x.txt").write_text("one\ntwo\nthree\n")
    with moving(folder) as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READING", "FINDING"):
        monkeypatch.setattr(store, name, Patience(0.1, first=0.001, longest=0.01, odd=2))


def url_at(server: Server, way: str, name: str = "x.txt") -> tuple[str, dict[str, Any]]:
    user, query, storage = WAYS[way]
    return server.url.replace("//", f"//{user}") + f"/{name}" + (f"?{query}" if query else ""), storage


def remote_at(server: Server, way: str) -> tuple[Remote, str]:
    url, storage = url_at(server, way)
    return remotes([url], storage)[0]


def sent(server: Server) -> str:
    assert server.headers
    return f"{server.headers} {server.log}"


def carries(server: Server, way: str) -> bool:
    """True if the server got the secret, as it is or as basic auth has it."""
    return any(form in sent(server) for form in (SECRET, "bWU6aHVudGVyMg"))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize(("way", "code"), [*((way, 302) for way in WAYS), *(("all", n) for n in (301, 303, 308))])
def test_another_server_gets_no_secret_and_is_read(
    way: str, code: int, name: str, here: Moving, folder: Path
) -> None:
    with serving(folder) as there:
        here.to, here.code = there.url.replace("127.0.0.1", name), code
        url, storage = url_at(here, way)
        assert list(TextLines(url, storage=storage, cache=False)) == ["one", "two", "three"]
        if way != "query":  # which the log of this server leaves out
            assert carries(here, way)
        assert not carries(there, way)
        assert "Referer" not in sent(there) or way not in ("query", "all")


@pytest.mark.parametrize("way", WAYS)
def test_the_same_server_gets_its_secrets_again(way: str, here: Moving, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "x.txt").write_text("inside\n")
    served = Redirecting.do_GET

    def moved(self: Redirecting) -> None:
        if self.path.startswith("/x.txt"):
            return self.answer(302, b"", {"Location": f"/in{self.path}"})
        return served(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Redirecting, "do_GET", moved)
        url, storage = url_at(here, way)
        assert list(TextLines(url, storage=storage, cache=False)) == ["inside"]
    if way not in ("query",):
        assert carries(here, way)


def test_a_redirect_that_expires_is_asked_for_again(here: Moving, folder: Path) -> None:
    with serving(folder) as there, serving(folder) as later:
        here.to = there.url
        remote, key = remote_at(here, "header")
        found = remote.find(key)
        assert bytes(remote.read(found, 0, 3)) == b"one"
        asked = len(here.log)
        assert bytes(remote.read(found, 4, 7)) == b"two" and len(here.log) == asked
        there.status = lambda path: 403
        here.to = later.url
        assert bytes(remote.read(found, 4, 7)) == b"two"
        assert not carries(later, "header")


@contextmanager
def encrypted(folder: Path) -> Iterator[tuple[Moving, str]]:
    """A server by https, and the certificate of its authority."""
    tls = signed_certificate(folder, "IP:127.0.0.1", 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server = Moving(folder)
    server.RequestHandlerClass = Redirecting  # type: ignore[assignment]
    with server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with running(server):
            yield server, Path(tls.authority).read_text()


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_http_after_https_gets_no_secret(way: str, allowed: bool, folder: Path) -> None:
    (folder / "x.txt").write_text("one\n")
    with encrypted(folder) as (secure, authority), serving(folder) as there:
        secure.to = there.url
        url, given = url_at(secure, way)
        client = {"root_certificate": authority, **given.get("client_options", {})}
        storage = {**given, "client_options": client} | ({"allow_http": True} if allowed else {})
        ((remote, key),) = remotes([url.replace("http:", "https:")], storage)
        if allowed:
            assert remote.find(key).size == 4
            assert not carries(there, way)
            return
        with pytest.raises(RemoteError, match=r"http") as raised:
            remote.find(key)
        assert SECRET not in str(raised.value) and there.headers == []


def test_by_https_certificates_are_checked(folder: Path) -> None:
    (folder / "x.txt").write_text("one\n")
    with encrypted(folder) as (secure, authority):
        url = f"{secure.url.replace('http:', 'https:')}/x.txt?{QUERY}"
        with pytest.raises(RemoteError, match=r"not valid \(UnknownIssuer\).*tried once.*SSL_CERT_FILE"):
            TextLines(url)
        assert list(TextLines(url, storage={"root_certificate": authority})) == ["one"]
        assert list(TextLines(url, storage={"allow_invalid_certificates": True})) == ["one"]


def test_a_circle_and_a_redirect_to_nowhere_are_errors(here: Moving) -> None:
    remote, key = remote_at(here, "header")
    here.to = here.url
    with pytest.raises(RemoteError, match="redirects more than 10 times"):
        remote.find(key)
    for here.to in ("gopher://x", "http://[", "http://h:99999999"):
        with pytest.raises(RemoteError, match="without a URL to follow"):
            remote.find(key)


def test_a_proxy_is_used_and_told_its_own_password(here: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", here.url.replace("//", "//you:password@"))
    monkeypatch.setenv("no_proxy", "")
    ((remote, key),) = remotes(["http://elsewhere.example/x.txt"], {"headers": {"x-token": SECRET}})
    assert remote.find(key).size == 14
    about = {name.lower(): value for name, value in here.headers[-1].items()}
    assert about["host"] == "elsewhere.example" and about["x-token"] == SECRET
    assert about["proxy-authorization"] == "Basic eW91OnBhc3N3b3Jk"


def test_secrets_with_broken_answers_give_the_bytes(here: Moving, folder: Path, monkeypatch: Any) -> None:
    """The client for secrets is as careful as obstore: for each fault, what comes is right or asked for again."""
    monkeypatch.setattr(store, "READING", Patience(20.0, first=0.001, longest=0.01, odd=9))
    monkeypatch.setattr(store, "FINDING", Patience(20.0, first=0.001, longest=0.01, odd=9))
    content = bytes(range(256)) * 40
    (folder / "x.txt").write_bytes(content)
    with breaking(here.url, seed=3, share=0.8) as proxy:
        remote, key = remote_at(proxy, "all")  # type: ignore[arg-type]
        found = remote.find(key)
        assert found.size == len(content)
        for start in range(0, len(content), 1000):
            stop = min(start + 1000, len(content))
            assert bytes(remote.read(found, start, stop)) == content[start:stop]
        assert len(proxy.faults) > 5
    del remote
    gc.collect()


def test_a_changed_file_a_missing_one_and_an_empty_one(here: Moving, folder: Path) -> None:
    (folder / "empty").write_bytes(b"")
    url, storage = url_at(here, "header", "empty")
    ((remote, key),) = remotes([url], storage)
    assert remote.find(key).size == 0
    remote, key = remote_at(here, "header")
    found = remote.find(key)
    (folder / "x.txt").write_text("ONE\ntwo\nthree\n")
    with pytest.raises(RemoteError) as raised:
        remote.read(found, 0, 3)
    assert raised.value.changed
    (folder / "x.txt").unlink()
    with pytest.raises(FileNotFoundError):
        remote.find(key)
    (folder / "x.txt").write_text("one\n")
    here.ranges = False
    with pytest.raises(RemoteError, match="whole file instead of a part"):
        remote.find(key)


@pytest.mark.parametrize("error", [ImportError("no obstore"), RemoteError("forked"), MemoryError()], ids=repr)
def test_an_error_that_is_not_the_servers_is_neither_converted_nor_retried(error: Exception) -> None:
    """A redirect to another host may load the library for that host inside of a request."""

    class Converting:
        def failed(self, error: Exception) -> Any:
            raise AssertionError(f"{error!r} was converted")

    def fail() -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        attempt(cast(Any, Converting()), fail)
    assert caught.value is error
