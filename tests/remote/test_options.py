"""Options of stores by obstore's names, those of other libraries and variables; and what is said of wrong ones."""

from __future__ import annotations

import os
import pickle
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import signed_certificate

from penstock import cli
from penstock._remote import store
from penstock._remote.options import client_options, named
from penstock._remote.retry import Patience
from penstock._remote.store import Remote, remotes
from penstock.errors import RemoteError
from penstock.formats import JsonLines
from remote.serving import Handler, Server, running

NOWHERE = "http://127.0.0.1:1"
KEYS = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name in ("READING", "FINDING"):
        monkeypatch.setattr(store, name, Patience(0.0))


@pytest.fixture
def bucket(folder: Path, server: Server) -> str:
    """The URL of a server, which has a bucket with a file."""
    (folder / "bucket").mkdir()
    (folder / "bucket" / "x.jsonl").write_text("1\n2\n")
    return server.url


@pytest.mark.parametrize(
    "variables",
    [
        {"AWS_ENDPOINT_URL": "{}", "AWS_ALLOW_HTTP": "true"},
        {"AWS_ENDPOINT_URL": "{}"},
        {"AWS_ENDPOINT_URL_S3": "{}"},
        {"AWS_ENDPOINT": "{}"},
        {"AWS_ENDPOINT_URL_S3": "{}", "AWS_ENDPOINT_URL": NOWHERE, "AWS_REGION": "eu-west-1"},
    ],
)
def test_a_variable_names_the_server(variables: dict[str, str], bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, **variables}.items():
        monkeypatch.setenv(name, value.format(bucket))
    assert list(JsonLines("s3://bucket/x.jsonl", cache=False)) == [1, 2]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_server_in_storage_is_preferred_to_the_variables(
    name: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, NOWHERE)
    storage = {"endpoint": bucket, "skip_signature": True}
    assert list(JsonLines("s3://bucket/x.jsonl", storage=storage, cache=False)) == [1, 2]


@pytest.mark.parametrize(
    "storage",
    [
        {"endpoint_url": "{}", "aws_access_key_id": "an-id", "aws_secret_access_key": "a-secret"},
        {"aws_endpoint": "{}", "access_key": "an-id", "secret_key": "a-secret", "region_name": "eu-west-1"},
        {"AWS_ENDPOINT_URL": "{}", "key": "an-id", "secret": "a-secret", "token": "a-token"},
        {"endpoint": "{}", "anon": True, "allow_http": True, "timeout": 5},
        {"client_kwargs": {"endpoint_url": "{}", "region_name": None, "verify": False}, "anon": True, "key": None},
        {"config": {"endpoint": "{}"}, "anonymous": "true", "client_options": {"timeout": "5s"}},
    ],
)
def test_other_libraries_names_are_understood(storage: dict[str, Any], bucket: str) -> None:
    def at(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: at(inner) for name, inner in value.items()}
        return value.format(bucket) if isinstance(value, str) else value

    assert list(JsonLines("s3://bucket/x.jsonl", storage=at(storage), cache=False)) == [1, 2]


@pytest.mark.parametrize(
    ("url", "storage", "expected"),
    [
        ("s3://b", {"key": "i", "secret": "s", "token": "t"},
         {"access_key_id": "i", "secret_access_key": "s", "session_token": "t"}),
        ("gs://b", {"endpoint_url": "http://h", "token": "anon"}, {"base_url": "http://h", "skip_signature": True}),
        ("gs://b", {"google_service_account": Path("/k.json")}, {"service_account": "/k.json"}),
        ("az://b", {"AZURE_STORAGE_ACCOUNT_NAME": "me", "sas_token": "s"}, {"account_name": "me", "sas_key": "s"}),
        ("https://h", {"headers": {"a": "b"}, "timeout": 1.5},
         {"client_options": {"default_headers": {"a": "b"}, "timeout": "1500ms"}}),
    ],
)  # fmt: skip
def test_options_get_the_names_of_the_library(url: str, storage: dict[str, Any], expected: dict[str, Any]) -> None:
    assert named(url, storage, {}) == expected
    assert named(url, expected, {"AWS_ENDPOINT": "not read"} if url.startswith("az") else {}) == expected


def test_variables_about_connections_are_read_below_storage() -> None:
    variables = {"AWS_ALLOW_HTTP": "true", "AWS_PROXY_URL": "http://p", "AZURE_TIMEOUT": "1s"}
    assert client_options("s3://b", {}, variables) == {"allow_http": "true", "proxy_url": "http://p"}
    given = {"client_options": {"proxy_url": "http://q"}, "endpoint": "http://h"}
    assert client_options("s3://b", given, {"AWS_PROXY_URL": "http://p"}) == {
        "proxy_url": "http://q",
        "allow_http": True,
    }


def test_workers_read_from_the_server_of_the_variable_where_the_dataset_was_made(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket)
    ((remote, key),) = remotes(["s3://bucket/x.jsonl"], {"anon": True})
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    sent = pickle.loads(pickle.dumps(remote))
    assert sent.find(key).size == 4
    assert sent.identity(key) != Remote("s3://bucket", "", {"anon": True}).identity(key)


@pytest.mark.parametrize(
    ("url", "storage", "said"),
    [
        ("s3://b/k", {"endpont": "SECRET"}, "'endpont', which s3:// does not have. Did you mean 'endpoint'?"),
        ("s3://b/k", {"regoin": 5}, "'regoin', which s3:// does not have. Did you mean 'region'?"),
        ("s3://b/k", {"no_such": "SECRET"}, "'no_such', which s3:// does not have. Some that exist: endpoint"),
        ("s3://b/k", {"client_options": {"tiemout": "SECRET"}}, "Did you mean 'timeout'?"),
        ("gs://b/k", {"base_ulr": "SECRET"}, "Did you mean 'base_url'?"),
        ("az://b/k", {"acount_key": "SECRET"}, "Did you mean 'account_key'?"),
        ("https://h/k", {"region": "SECRET"}, "'region', which https:// does not have. Some that exist: allow_http"),
        ("s3://b/k", {"profile_name": "SECRET"}, "Profiles are not read."),
        ("az://b/k", {"connection_string": "SECRET"}, "Pass its parts"),
        ("s3://b/k", {"endpoint": "http://h", "endpoint_url": "http://SECRET"}, "are the same option. Pass one."),
        ("gs://b/k", {"token": "SECRET"}, "can only be 'anon'"),
        ("s3://b/k", {"endpoint": "SECRET:9000"}, "storage['endpoint'] is not a URL. It names the server of s3://"),
        ("az://b/k", {"endpoint": "SECRET:9000"}, "storage['endpoint'] is not a URL"),
        ("gs://b/k", {"endpoint_url": "SECRET:9000"}, "storage['endpoint_url'] is not a URL"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it_and_the_right_one(
    url: str, storage: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError) as raised:
        remotes([url], storage)[0][0].find("k")
    assert said in str(raised.value) and "SECRET" not in str(raised.value)
    assert raised.value.__context__ is None  # the library's own error has the values
    assert capfd.readouterr().err == ""  # no panic


def test_a_wrong_option_beside_the_variable_of_a_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", NOWHERE)
    with pytest.raises(ValueError, match="Did you mean 'region'"):
        remotes(["s3://b/k"], {"regon": "eu-west-1"})[0][0].find("k")


def test_an_option_of_a_wrong_type_is_named() -> None:
    with pytest.raises(TypeError, match=r"storage\['region'\] must be text, True or False, but it is of type int"):
        remotes(["s3://b/k"], {"region": 5})
    with pytest.raises(TypeError, match=r"storage\['client_options'\] must be a dict"):
        remotes(["s3://b/k"], {"client_options": "timeout=5"})


def test_a_variable_that_is_no_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(ValueError, match=r"The variable AWS_ENDPOINT_URL is not a URL"):
        remotes(["s3://b/k"], {})


def test_a_panic_of_the_library_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):  # as Rust's, it is no Exception, and belongs to no module
        pass

    import obstore

    def panic(*args: Any, **options: Any) -> Any:
        raise PanicException("called `Result::unwrap()` on SECRET-key")

    monkeypatch.setattr(obstore.store, "from_url", panic)
    with pytest.raises(RemoteError, match=r"k cannot be found: PanicError: .*unwrap.* on \*\*\*") as raised:
        remotes(["s3://b/k"], {"secret_access_key": "SECRET-key"})[0][0].find("k")
    assert "SECRET" not in repr(raised.value) and raised.value.__context__ is None


def test_a_panic_while_an_object_is_written_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Panicking:
        def put(self, key: str, content: bytes) -> None:
            raise PanicException("unwrap")

    import obstore

    monkeypatch.setattr(obstore.store, "from_url", lambda *args, **options: Panicking())
    with pytest.raises(RemoteError, match="k cannot be written: PanicError"):
        remotes(["s3://b/k"], {})[0][0].write("k", b"content")


# What is said of a connection that fails.


def failed(storage: dict[str, Any], url: str = "s3://bucket/x.jsonl") -> str:
    with pytest.raises(RemoteError) as raised:
        remotes([url], {"anon": True, **storage})[0][0].find("x.jsonl")
    return str(raised.value)


def test_a_failed_connection_names_the_host_and_the_cause(bucket: str) -> None:
    assert "no connection to 127.0.0.1:1 (Connection refused). It was" in failed({"endpoint": NOWHERE})
    host = bucket.removeprefix("http://")
    assert f"{host} does not speak https. It was tried once. Pass the server with http://" in failed(
        {"endpoint": f"https://{host}"}
    )
    assert f"{host} is to be read by http://, but allow_http is false" in failed(
        {"endpoint": bucket, "allow_http": False}
    )
    through = failed({"endpoint": bucket, "proxy_url": NOWHERE})
    assert f"no connection to {host} (Connection refused by 127.0.0.1:1)" in through


def test_the_host_in_a_message_is_without_user_and_password() -> None:
    said = failed({"endpoint": "http://me:hunter2@127.0.0.1:1"})
    assert "no connection to 127.0.0.1:1 (Conn" in said and "hunter2" not in said


class Regional(Server):
    """Refuses as S3 does, if it is asked for a bucket of another region."""

    how = "malformed"


class _Regional(Handler):
    server: Regional

    def do_GET(self) -> None:
        region = {"x-amz-bucket-region": "eu-central-1"}
        if self.server.how == "malformed":
            body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>"
            self.answer(400, body, region)
        else:
            self.answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", region)


@pytest.fixture
def regional(folder: Path) -> Iterator[Regional]:
    with Regional(folder) as server, running(server):
        server.RequestHandlerClass = _Regional
        yield server


@pytest.mark.parametrize("how", ["malformed", "redirect"])
def test_the_region_that_s3_names_is_in_the_message(regional: Regional, how: str) -> None:
    regional.how = how
    storage = {"endpoint": regional.url, "key": "an-id", "secret": "a-secret"}
    for url in ("s3://b/x.jsonl", "s3://b/x/"):
        with pytest.raises(RemoteError, match=r"the bucket is in the region eu-central-1, and another one was asked"):
            JsonLines(url, storage=storage)


def test_the_region_is_asked_with_the_certificates_of_the_store(folder: Path) -> None:
    tls = signed_certificate(folder, "IP:127.0.0.1", 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    with Regional(folder) as server:
        server.RequestHandlerClass, server.how = _Regional, "redirect"
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with running(server):
            trusted = {"root_certificate": Path(tls.authority).read_text()}
            endpoint = server.url.replace("http:", "https:")
            said = failed({"endpoint": endpoint, "client_options": trusted})
    assert "the bucket is in the region eu-central-1" in said


def test_a_refused_head_is_told_by_the_code_of_a_get(folder: Path) -> None:
    with Server(folder, status=lambda path: 403) as server, running(server):
        said = failed({"endpoint": server.url})
    assert "the server answered 403" in said and "(Refused)" in said


# The command.


def test_inspect_takes_options(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", "s3://bucket/x.jsonl", "--storage", f"endpoint_url={bucket}", "--storage", "anon=true"]
    assert cli.main(arguments) == 0
    assert "JsonLines: 2 samples" in capsys.readouterr().out
    assert cli.main(["inspect", "s3://bucket/x.jsonl", "--storage", "endpont=x"]) == 1
    assert "Did you mean 'endpoint'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["inspect", "s3://bucket/x.jsonl", "--storage", "hunter2"])
    said = capsys.readouterr().err
    assert "--storage: it is not of the form KEY=VALUE" in said and "hunter2" not in said
