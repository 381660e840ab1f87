"""Real servers, each in a process of its own: moto speaks S3's protocol, nginx serves files."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from obstore.store import S3Store

# obstore's threads, its connections and the cache folder, as in tests/remote.
from remote.conftest import (  # noqa: F401
    cache,
    connections_are_closed,
    obstore_has_begun,
    the_runners_threads_do_not_count,
)

NGINX = """
user {user}; # pytest's folders are closed to others
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 2;
events {{ worker_connections 256; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[str]:
    """A server, once it answers. It is ended by its id."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            until = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                with socket.socket() as knocking:
                    if knocking.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            else:
                raise RuntimeError(f"{command[0]} does not answer: {log.read_text()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that nginx serves."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def nginx(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    assert command, "nginx is not installed: make remote"
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, root=served, user=getpass.getuser()))
    with running([command, "-p", str(folder), "-c", "nginx.conf"], port, folder / "log") as url:
        yield url


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, tmp_path_factory.mktemp("moto") / "log") as url:
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
        yield url


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The endpoint, with credentials where obstore finds them by itself."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return moto


def bucket_of(endpoint: str) -> S3Store:
    """The bucket, to write to."""
    keys = {"access_key_id": "planted-key", "secret_access_key": "planted-secret", "region": "us-east-1"}
    return S3Store("bucket", endpoint=endpoint, client_options={"allow_http": True}, **keys)
