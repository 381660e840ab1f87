"""The handshake: a token, then what each side is. Nothing is unpickled before the token was checked.

    worker   connects --token, hello--> waits for WELCOME --unpacks the job--> READY, or BROKEN with the error
    driver   listens on the node's address; a wrong token is dropped

The token is 32 random bytes, which Ray gives to the worker with its arguments.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import ssl
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

from penstock._memory.guests import GUESTS
from penstock.backends._ray.link import WORKER_PATIENCE, Link

TOKEN_SIZE = 32
_LENGTH = struct.Struct("<q")
_MOST = 1 << 16  # bytes of a hello
_SECONDS = 10.0  # that each side gives the other, for each message


_TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


class Hello(NamedTuple):
    """What a worker says of itself. `clock`: its `time.perf_counter_ns`, when it said so."""

    worker: int
    pid: int
    node: str
    clock: int
    versions: Mapping[str, str]


class Tls(NamedTuple):
    """The files of certificates that Ray itself uses."""

    certificate: str
    key: str
    authority: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Tls | None:
        """The files that this node's environment names; None if Ray does not use TLS."""
        if environment.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            return None
        files = [environment.get(name, "") for name in _TLS_FILES]
        for name, file in zip(_TLS_FILES, files, strict=True):
            if not os.path.isfile(file):
                raise RuntimeError(
                    f"RAY_USE_TLS is set, so batches are sent over TLS too, with the certificates that Ray uses; but "
                    f"{name}={file!r} is no file on this node."
                )
        return cls(*files)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Each side shows its certificate, and checks that of the other."""
        purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
        context = ssl.create_default_context(purpose, cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def versions() -> dict[str, str]:
    """What must be the same on both sides, or should be."""
    ours: str = sys.modules["penstock"].__version__
    found = {"python": platform.python_version(), "penstock": ours, "numpy": np.__version__}
    for guest in GUESTS:
        found[guest] = ""
        with suppress(PackageNotFoundError):
            found[guest] = version(guest)
    return found


def refusal(ours: Mapping[str, str], theirs: Mapping[str, str], node: str) -> str:
    """Why a worker on this node cannot be used; "" if it can."""
    major = ".".join(ours["python"].split(".")[:2])
    wrong = []
    if not theirs["python"].startswith(f"{major}."):
        wrong.append(f"Python {theirs['python']}, and the driver has Python {ours['python']}")
    if theirs["penstock"] != ours["penstock"]:
        wrong.append(f"penstock {theirs['penstock']}, and the driver has penstock {ours['penstock']}")
    if not wrong:
        return ""
    return (
        f"Node {node} has {'; it has '.join(wrong)}. Install the same versions on all nodes, for example by "
        'ray_options={"runtime_env": {"pip": [...]}}.'
    )


def difference(ours: Mapping[str, str], theirs: Mapping[str, str], node: str) -> str:
    """What differs and may make batches differ; "" if nothing does. Guests count if this process uses them."""
    names = ["numpy", *(guest for guest in GUESTS if guest in sys.modules)]
    found = [
        f"{name} {theirs[name]}, and the driver has {name} {ours[name]}"
        for name in names
        if theirs.get(name) and ours[name] and theirs[name] != ours[name]
    ]
    if not found:
        return ""
    return f"Node {node} has {'; it has '.join(found)}: batches may differ from those made here."


def listen(address: str) -> socket.socket:
    """A socket that listens on this address of the node alone, at a port that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1024)
    listener.setblocking(False)
    return listener


def connect(address: tuple[str, int], encrypted: bool, token: bytes, hello: Hello) -> Link:
    """In the worker: a link to the driver, which has the token and the hello."""
    tls = Tls.of({**os.environ, "RAY_USE_TLS": "1"}) if encrypted else None
    try:
        sock = socket.create_connection(address, _SECONDS)
    except OSError as error:
        raise ConnectionError(
            f"Node {hello.node} cannot reach the driver at {address[0]}, port {address[1]} ({error}). Workers "
            "connect to the process that trains, at a port that the system chooses: look at firewalls between nodes."
        ) from error
    try:
        context = None if tls is None else tls.context(server=False)
        link = Link(sock, WORKER_PATIENCE, context, server=address[0])
        link.limit(_SECONDS)
        link.shake_hands()
        said = json.dumps(hello).encode()
        link.send(token, _LENGTH.pack(len(said)), said)
        link.limit(None)
        return link
    except BaseException:
        sock.close()
        raise


def admit(link: Link, token: bytes) -> Hello | None:
    """In the driver: who has connected; None if it does not have the token."""
    link.limit(_SECONDS)
    link.shake_hands()
    if not secrets.compare_digest(bytes(link.receive(TOKEN_SIZE)), token):
        return None
    (length,) = _LENGTH.unpack(link.receive(_LENGTH.size))
    if not 0 < length <= _MOST:
        return None
    said: Any = json.loads(bytes(link.receive(length)))
    link.limit(None)
    return Hello(*said)


def new_token() -> bytes:
    return secrets.token_bytes(TOKEN_SIZE)


def this_process(worker: int, node: str, clock: int) -> Hello:
    return Hello(worker, os.getpid(), node, clock, versions())
