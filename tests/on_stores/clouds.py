"""The same bucket in three clouds: how it is written to, and with which options penstock reads it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from obstore.store import AzureStore, S3Store
from remote.serving import Breaking, Proxy, running

ACCOUNT = "devstoreaccount1"
# Azurite's only key, which its documentation names.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Place:
    """A bucket. `endpoint` is the option that names the server, `keys` those that identify the user."""

    url: str
    store: Callable[[], Any]
    """The bucket to write to: a new one each time, since it keeps its connections."""
    endpoint: str
    server: str
    keys: dict[str, Any]
    wrong: dict[str, Any]
    """Keys that the server refuses."""
    public: str
    """The URL of a folder that anybody may read."""
    environment: dict[str, str]
    """Variables with the keys, where the cloud's own tools look for them."""

    @property
    def storage(self) -> dict[str, Any]:
        return {self.endpoint: self.server, **self.keys}

    @property
    def anybody(self) -> dict[str, Any]:
        """The options without credentials."""
        names = [name for name in ("account_name", "region") if name in self.keys]
        return {self.endpoint: self.server, "skip_signature": True, **{name: self.keys[name] for name in names}}

    @property
    def host(self) -> str:
        return "http://" + self.server.removeprefix("http://").partition("/")[0]

    def via(self, server: str) -> dict[str, Any]:
        """The options to read the bucket through a proxy."""
        return {**self.storage, self.endpoint: server + self.server.removeprefix(self.host)}


def s3_place(moto: str) -> Place:
    keys = {"access_key_id": "planted-id", "secret_access_key": "planted-secret", "region": "us-east-1"}
    found = {f"AWS_{name.upper()}": value for name, value in keys.items()}
    return Place("s3://bucket", new_bucket(moto, "bucket"), "endpoint", moto, keys, keys, "s3://bucket/public", found)


def send(url: str, method: str, content: bytes, headers: Mapping[str, str] | None = None) -> None:
    kind = {"Content-Type": "application/octet-stream"}
    asked = urllib.request.Request(url, content, {**kind, **(headers or {})}, method=method)
    urllib.request.urlopen(asked).close()


def new_bucket(moto: str, name: str) -> Callable[[], Any]:
    """A bucket of moto with a file that anybody may read."""
    send(f"{moto}/{name}", "PUT", b"")
    send(f"{moto}/{name}/public/x.jsonl", "PUT", b"1\n2\n", {"x-amz-acl": "public-read"})
    keys = {"access_key_id": "writer", "secret_access_key": "writer", "region": "us-east-1"}
    return lambda: S3Store(name, endpoint=moto, client_options={"allow_http": True}, **keys)


@contextmanager
def strict(moto: str) -> Iterator[None]:
    """moto checks who asks, and knows nobody."""
    for actions in (b"0", b"inf"):
        send(f"{moto}/moto-api/reset-auth", "POST", actions)
        if actions == b"0":
            yield


def az_place(azurite: str) -> Place:
    keys = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
    wrong = {**keys, "account_key": base64.b64encode(b"planted-secret").decode()}

    def store(container: str = "bucket") -> Any:
        return AzureStore(container, endpoint=azurite, client_options={"allow_http": True}, **keys)

    store("public").put("public/x.jsonl", b"1\n2\n")
    found = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}
    return Place("az://bucket", store, "endpoint", azurite, keys, wrong, "az://public/public", found)


def new_container(url: str, name: str, access: str) -> None:
    """Makes a container of Azurite, by a request that is signed with the key of the account."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    if access:
        headers["x-ms-blob-public-access"] = access
    lines = [f"{key}:{value}" for key, value in sorted(headers.items())]
    signed = "\n".join(["PUT", *[""] * 11, *lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    mark = hmac.digest(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mark).decode()}"
    asked = urllib.request.Request(f"{url}/{ACCOUNT}/{name}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(asked).close()


class Google(Proxy):
    """Stands in for Google's server: checks that the account has signed the token of each request, and forwards it.

    Objects below `public/` need none. All that a real one does with objects, moto does: Google's XML is like S3's.
    """

    def __init__(self, upstream: str, folder: Path) -> None:
        super().__init__(upstream, seed=0, share=0.0, handler=Checking)
        self.moto = upstream
        self._key = rsa.generate_private_key(65537, 2048)
        self.account = self._written(folder / "account.json", self._key)
        self.stranger = self._written(folder / "stranger.json", rsa.generate_private_key(65537, 2048))

    def _written(self, path: Path, key: rsa.RSAPrivateKey) -> Path:
        """The file that Google gives to a service account."""
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        about = {"private_key": pem, "private_key_id": "1", "client_email": "me@example.com", "client_id": "1"}
        path.write_text(json.dumps({"type": "service_account", "gcs_base_url": self.url, **about}))
        return path

    def refusal(self, path: str, authorization: str) -> int:
        """The status for a request that is refused; 0 for one that is not."""
        if not authorization:
            return 0 if "public" in path else 401
        head, _, mark = authorization.removeprefix("Bearer ").rpartition(".")
        try:
            signed = base64.urlsafe_b64decode(mark + "=" * (-len(mark) % 4))
            self._key.public_key().verify(signed, head.encode(), padding.PKCS1v15(), SHA256())
        except (InvalidSignature, ValueError):
            return 403
        return 0


class Checking(Breaking):
    server: Google

    def do_GET(self) -> None:
        if status := self.server.refusal(self.path, self.headers.get("Authorization", "")):
            self._send(status, [], body := b"<Error><Code>AccessDenied</Code></Error>", len(body))
        else:
            if "Authorization" in self.headers:
                self.headers.replace_header("Authorization", "AWS standin:signature")  # moto checks that there is one
            super().do_GET()


def gs_place(google: Google) -> Place:
    keys = {"service_account": str(google.account)}
    wrong = {"service_account": str(google.stranger)}
    store = new_bucket(google.moto, "google")
    found = {"GOOGLE_APPLICATION_CREDENTIALS": str(google.account)}
    return Place("gs://google", store, "base_url", google.url, keys, wrong, "gs://google/public", found)


@contextmanager
def standing_in(moto: str, folder: Path) -> Iterator[Google]:
    with Google(moto, folder) as google, running(google):
        yield google
