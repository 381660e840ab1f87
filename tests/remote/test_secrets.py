"""No credentials are shown: for each kind of store, each way to give them, and each way to fail."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import ssl
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from certificates import signed_certificate

import penstock
from penstock._remote import store
from penstock._remote.retry import Patience
from penstock.formats import JsonLines, Tokens
from remote.serving import Server, breaking, running

SECRET = "hunter2/+=&@:hunter2"
ENCODED = quote(SECRET, safe="")
# A part that any way to write it has, and what a header has.
FORMS = ("hunter2", *(base64.b64encode(each.encode()).decode().rstrip("=") for each in (SECRET, f"me:{SECRET}")))
KEY = base64.b64encode(SECRET.encode()).decode()  # Azure's keys are base64
KINDS = ("http", "s3", "gs", "az", "sas")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READING", "FINDING"):
        monkeypatch.setattr(store, name, Patience(0.1, first=0.001, longest=0.01, odd=2))


def given(kind: str, server: str) -> tuple[str, dict[str, Any]]:
    """The URL of a folder and the options, with a secret wherever there may be one."""
    options: dict[str, Any] = {"client_options": {"default_headers": {"x-token": SECRET}}}
    if kind == "http":
        return server.replace("//", f"//me:{ENCODED}@") + "/bucket", options
    if kind == "s3":
        keys = {"access_key_id": SECRET, "secret_access_key": SECRET, "session_token": SECRET, "region": "eu-west-1"}
        return "s3://bucket", {**options, **keys, "endpoint": server}
    if kind == "gs":
        return "gs://bucket", {**options, "base_url": server, "bearer_token": SECRET}
    keys = {"account_key": KEY} if kind == "az" else {"sas_key": "sv=1&sig=hunter2%2Bhunter2%3D"}
    return "az://bucket", {**options, **keys, "account_name": "me", "endpoint": server}


def url_of(base: str, name: str) -> str:
    return f"{base}/{name}" + (f"?X-Amz-Signature={ENCODED}" if base.startswith("http") else "")


class Seen:
    """All that was shown. `check()` raises if a secret was among it."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, *values: Any) -> None:
        self.texts += [value if isinstance(value, str) else f"{value!s} {value!r}" for value in values]

    def failing(self, call: Callable[[], Any]) -> None:
        with pytest.raises(Exception) as raised:
            call()
        error: BaseException | None = raised.value
        self.add("".join(traceback.format_exception(error)))
        while error is not None:
            self.add(error, *getattr(error, "__notes__", []), vars(error), error.args)
            error = error.__cause__ or error.__context__

    def check(self) -> None:
        found = [text for text in self.texts for form in FORMS if form in text]
        assert self.texts and found == []


@pytest.fixture
def seen(capfd: pytest.CaptureFixture[str]) -> Iterator[Seen]:
    """Warnings, the log and what is printed are looked at, too."""
    seen = Seen()
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: seen.add(logging.Formatter().format(record))  # type: ignore[method-assign]
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield seen
        seen.add(*(warning.message for warning in caught), *capfd.readouterr())
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    seen.check()


class Echoing(Server):
    """Repeats in its errors all that it was sent, as stores do when a signature is wrong."""

    def error(self, path: str, headers: dict[str, str]) -> bytes:
        return f"<Error><Code>Refused</Code><Message>{path} {headers} {SECRET}</Message></Error>".encode()


@pytest.fixture
def echoing(folder: Path) -> Iterator[Echoing]:
    (folder / "bucket").mkdir()
    (folder / "bucket" / "x.jsonl").write_text("".join(f"{number}\n" for number in range(50)))
    with Echoing(folder) as server, running(server):
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_refuses_shows_none(kind: str, echoing: Echoing, seen: Seen) -> None:
    base, storage = given(kind, echoing.url)
    url = url_of(base, "x.jsonl")
    data = JsonLines(url, storage=storage, cache=False)
    assert data[0] == 0
    for status in (401, 403, 404, 409, 412, 503):
        echoing.status = lambda path, status=status: status
        seen.failing(lambda: pickle.loads(pickle.dumps(data))[0])
        seen.failing(lambda: JsonLines(url, storage=storage))
        seen.failing(lambda: JsonLines(url_of(base, "*.jsonl"), storage=storage))
        seen.failing(lambda: penstock.open(base, storage=storage))
        seen.failing(lambda: penstock.open(url_of(base, "x.rec"), storage=storage))
    with penstock.DataLoader(pickle.loads(pickle.dumps(data)), num_workers=1, backend="thread") as loader:
        seen.failing(lambda: list(loader))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_answer_shows_none(kind: str, echoing: Echoing, seen: Seen) -> None:
    with breaking(echoing.url, seed=0) as proxy:
        base, storage = given(kind, proxy.url)
        proxy.fault = lambda request: ""  # type: ignore[method-assign]
        data = JsonLines(url_of(base, "x.jsonl"), storage=storage, cache=False)
        for fault in ("reset", "hang up", "truncated", "short", "long", "range"):
            proxy.fault = lambda request, fault=fault: fault  # type: ignore[method-assign]
            seen.failing(lambda: pickle.loads(pickle.dumps(data))[0])
            if fault != "short":  # the first byte of a file is not looked at
                seen.failing(lambda: JsonLines(url_of(base, "*.jsonl"), storage=storage))


@pytest.mark.parametrize("kind", KINDS)
def test_no_server_and_a_changed_file_show_none(kind: str, folder: Path, echoing: Echoing, seen: Seen) -> None:
    base, storage = given(kind, echoing.url)
    data = JsonLines(url_of(base, "x.jsonl"), storage=storage, cache=False)
    (folder / "bucket" / "x.jsonl").write_text("1\n")
    seen.failing(lambda: pickle.loads(pickle.dumps(data))[0])
    base, storage = given(kind, "http://127.0.0.1:1")
    seen.failing(lambda: JsonLines(url_of(base, "x.jsonl"), storage=storage))
    seen.failing(lambda: Tokens(url_of(base, "x.bin"), "uint16", 5, storage=storage))


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_is_refused_shows_none(kind: str, folder: Path, seen: Seen) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls = signed_certificate(folder, "IP:127.0.0.1", 2)
    context.load_cert_chain(tls.certificate, tls.key)
    with Server(folder) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with running(server):
            base, storage = given(kind, server.url.replace("http:", "https:"))
            seen.failing(lambda: JsonLines(url_of(base, "x.jsonl"), storage=storage))


@pytest.mark.parametrize(
    ("url", "storage"),
    [
        ("s3://bucket/x.jsonl", {"no_such_option": SECRET}),
        ("s3://bucket/x.jsonl", {"endpoint": f"http://me:{ENCODED}@127.0.0.1:1", "skip_signature": True}),
        ("s3://bucket/x.jsonl", {"endpoint": SECRET, "skip_signature": True}),
        ("s3://bucket/x.jsonl", {"skip_signature": SECRET}),
        ("s3://bucket/x.jsonl", {"client_options": {"default_headers": {"x-token": SECRET + "\n"}}}),
        ("s3://bucket/x.jsonl", {"client_options": {"proxy_url": f"nosuch://me:{ENCODED}@h"}}),
        ("s3://bucket/x.jsonl", {"client_options": {"timeout": SECRET}}),
        ("s3://bucket/x.jsonl", {"client_options": {"root_certificate": SECRET}}),
        (f"s3://me:{ENCODED}@bucket/x.jsonl", {"no_such_option": 1}),
        ("gs://bucket/x.jsonl", {"service_account_key": json.dumps({"private_key": SECRET})}),
        ("gs://bucket/x.jsonl", {"service_account_key": json.dumps({
            "private_key": f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n", "private_key_id": "1",
            "client_email": "a@b", "client_id": "1"})}),
        ("gs://bucket/x.jsonl", {"service_account_key": SECRET}),
        ("gs://bucket/x.jsonl", {"service_account": f"/none/{SECRET}"}),
        ("az://bucket/x.jsonl", {"account_name": "me", "account_key": SECRET}),
        ("az://bucket/x.jsonl", {"account_name": "me", "sas_key": SECRET}),
        (f"az://bucket/x.jsonl?sv=1&sig={ENCODED}", {"account_name": "me"}),
        (f"http://me:{ENCODED}@127.0.0.1:1/x?sig={ENCODED}", {"no_such_option": SECRET}),
        (f"http://me:{ENCODED}@[nohost/x?sig={ENCODED}", {}),
        (f"nosuch://me:{ENCODED}@h/x.jsonl", {"key": SECRET}),
        (f"memory://h/x.jsonl?sig={ENCODED}", {"key": SECRET}),
    ],
)  # fmt: skip
def test_options_that_are_refused_show_none(url: str, storage: dict[str, Any], seen: Seen) -> None:
    nowhere = {"metadata_endpoint": "http://127.0.0.1:1"} if url.startswith("s3") else {}
    seen.failing(lambda: JsonLines(url, storage={**nowhere, **storage}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_PROXY_URL", f"nosuch://me:{ENCODED}@h"),
        ("AWS_PROXY_URL", f"http://me:{ENCODED}@127.0.0.1:1"),
        ("AWS_TIMEOUT", SECRET),
        ("AWS_ENDPOINT_URL", SECRET),
        ("AWS_ENDPOINT_URL_S3", f"http://me:{ENCODED}@127.0.0.1:1"),
    ],
)
def test_variables_that_are_refused_show_none(
    name: str, value: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    storage = {"skip_signature": True} | ({} if "ENDPOINT" in name else {"endpoint": "http://127.0.0.1:1"})
    seen.failing(lambda: JsonLines("s3://bucket/x.jsonl", storage=storage))


def test_arguments_that_are_refused_show_none(tmp_path: Path, seen: Seen) -> None:
    url = f"http://me:{ENCODED}@127.0.0.1:1/x.jsonl?sig={ENCODED}"
    seen.failing(lambda: JsonLines(str(tmp_path), cache=url))
    seen.failing(lambda: JsonLines(url, storage=SECRET))  # type: ignore[arg-type]
    seen.failing(lambda: JsonLines(url, storage={"client_options": SECRET}))
    seen.failing(lambda: penstock.open(url, no_such=1))
    seen.failing(lambda: penstock.formats.RecordFile(url))
    seen.failing(lambda: JsonLines([url, tmp_path / "none"]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_and_reported_has_none(
    kind: str, echoing: Echoing, cache: Path, tmp_path: Path, seen: Seen
) -> None:
    base, storage = given(kind, echoing.url)
    data = JsonLines(url_of(base, "x.jsonl"), storage=storage)
    with penstock.DataLoader(data, batch_size=5, num_workers=1) as loader:
        assert len(list(loader)) == 10
        stats = loader.stats()
        seen.add(repr(loader.state_dict()), stats, str(stats.to_dict()), loader, data, data.paths, data.inspect())
        loader.report(tmp_path / "report.html")
        loader.trace(tmp_path / "trace.json")
    seen.add((tmp_path / "report.html").read_text(), (tmp_path / "trace.json").read_bytes().decode("latin-1"))
    kept = [each for each in cache.rglob("*") if each.is_file()]
    assert kept
    seen.add(*(each.read_bytes().decode("latin-1") + each.name for each in kept))


def test_the_test_would_notice(seen: Seen) -> None:
    noticing = Seen()
    noticing.failing(lambda: int(f"https://h/x?sig={quote(SECRET)}"))
    with pytest.raises(AssertionError):
        noticing.check()
    seen.add("checked")
