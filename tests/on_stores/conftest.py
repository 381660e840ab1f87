"""Real servers, each in a process of its own: moto speaks S3's protocol, Azurite Azure's, nginx serves files.

Google has no emulator that knows the protocol by which obstore lists: XML, which Google made after S3's. So a
stand-in of ours checks the tokens, as Google does, and moto answers.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# obstore's threads, its connections and the cache folder, as in tests/remote.
from remote.conftest import (  # noqa: F401
    cache,
    connections_are_closed,
    obstore_has_begun,
    the_runners_threads_do_not_count,
)

from on_stores.clouds import ACCOUNT, Google, Place, az_place, gs_place, new_container, s3_place, standing_in

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
        yield url


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = shutil.which("azurite-blob", path=os.pathsep.join([f"{sys.prefix}/bin", os.environ["PATH"]]))
    if command is None:
        pytest.skip("Azurite is not installed: make remote installs it where there is npm")
    folder, port = tmp_path_factory.mktemp("azurite"), free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    with running([command, *options, "--skipApiVersionCheck", "--disableTelemetry"], port, folder / "log") as url:
        for container, access in (("bucket", ""), ("public", "container")):
            new_container(url, container, access)
        yield f"{url}/{ACCOUNT}"


@pytest.fixture(scope="session")
def google(moto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with standing_in(moto, tmp_path_factory.mktemp("google")) as google:
        yield google


@pytest.fixture(autouse=True)
def no_credentials_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", params=["s3", "gs", "az"])
def place(request: pytest.FixtureRequest) -> Place:
    """A bucket of each cloud."""
    if request.param == "s3":
        return s3_place(request.getfixturevalue("moto"))
    if request.param == "gs":
        return gs_place(request.getfixturevalue("google"))
    return az_place(request.getfixturevalue("azurite"))
