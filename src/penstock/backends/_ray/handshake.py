"""The handshake: both sides prove that they have the token, and then the worker describes itself.

    worker   connects --challenge, hello--> waits for WELCOME --unpacks the job--> READY, or BROKEN with the error
    driver   listens on the node's address, and drops connections without the token (see `door.py`)

Ray passes the token, 32 random bytes, to the worker. The token is never sent over the connection (see
`challenge.py`). Neither side unpickles anything before the other side has proved that it has the token.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import numpy as np

from penstock._memory.guests import GUESTS
from penstock.backends._ray.challenge import (
    NONCE_SIZE,
    Challenge,
    ChallengeState,
    DriverEnd,
    Refused,
    WorkerEnd,
)
from penstock.backends._ray.link import WORKER_PATIENCE, Link, Secure

_CONNECT = 10.0  # seconds for a connection to be made
_PATIENCE = WORKER_PATIENCE / 1000  # seconds for all attempts of a worker, because the driver may be suspended
_PAUSE = 0.02, 0.2  # seconds between two attempts
_PIECE = 1 << 14  # the most bytes of TLS to receive at once


_TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


class Hello(NamedTuple):
    """A worker's description of itself. `clock` is the worker's `time.perf_counter_ns()` when it makes the hello."""

    worker: int
    pid: int
    node: str
    clock: int
    versions: Mapping[str, str]


class TlsFiles(NamedTuple):
    """The certificate files that Ray itself uses."""

    certificate: str
    key: str
    authority: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TlsFiles | None:
        """Returns the files that Ray's environment variables name, or None if Ray does not use TLS."""
        if environment.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            return None
        files = [environment.get(name, "") for name in _TLS_FILES]
        for name, file in zip(_TLS_FILES, files, strict=True):
            if not os.path.isfile(file):
                raise RuntimeError(
                    f"RAY_USE_TLS is set, so batches are sent over TLS too, with the certificates that Ray uses; but "
                    f"{name}={file!r} is not a file on this node."
                )
        return cls(*files)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Returns a TLS context in which each side presents its certificate and verifies the other side's."""
        purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
        context = ssl.create_default_context(purpose, cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def versions() -> dict[str, str]:
    """Returns the versions of Python and of some packages. The driver compares the worker's with its own."""
    ours: str = sys.modules["penstock"].__version__
    found = {"python": platform.python_version(), "penstock": ours, "numpy": np.__version__}
    for guest in GUESTS:
        found[guest] = ""
        with suppress(PackageNotFoundError):
            found[guest] = version(guest)
    return found


def refusal(ours: Mapping[str, str], theirs: Mapping[str, str], node: str) -> str:
    """Returns why a worker on this node cannot be used, or "" if it can."""
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
    """Returns a warning if array libraries on the node have other versions (so batches may differ), or ""."""
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
    """Returns a socket that listens on a free port of this address only."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1024)
    listener.setblocking(False)
    return listener


class Handshake:
    """One side of a handshake, without I/O: a challenge (see `challenge.py`), with TLS if `secure` is given."""

    def __init__(self, challenge: Challenge, secure: Secure | None) -> None:
        self._challenge, self.secure = challenge, secure
        self._is_shaken = False  # True after TLS's own handshake

    @property
    def is_done(self) -> bool:
        return self._challenge.state is ChallengeState.DONE

    @property
    def wants(self) -> int:
        """The maximum number of bytes to receive now. Bytes that follow the handshake are left for the link."""
        return self._challenge.wants if self.secure is None else _PIECE

    def begin(self) -> bytes:
        return self._challenge.greeting if self.secure is None else self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """Returns the bytes to send in reply. After Refused or an SSLError, the caller must close the connection."""
        if self.secure is None:
            return self._challenge.receive(data)
        self.secure.incoming.write(data)
        tls = self.secure.tls
        with suppress(ssl.SSLWantReadError):
            if not self._is_shaken:
                tls.do_handshake()
                self._is_shaken = True
                self._write(self._challenge.greeting)
            while self._challenge.wants:
                self._write(self._challenge.receive(tls.read(self._challenge.wants)))
        return self.secure.outgoing.read()

    def last_words(self, error: Exception) -> bytes:
        words = error.answer if isinstance(error, Refused) else b""
        if self.secure is None:
            return words
        with suppress(ssl.SSLError):
            self._write(words)
        return self.secure.outgoing.read()

    def _write(self, said: bytes) -> None:
        if said and self.secure is not None:
            self.secure.tls.write(said)


def connect(address: tuple[str, int], encrypted: bool, token: bytes, hello: Hello) -> Link:
    """Connects a worker to the driver. Tries again if the driver drops the connection (see `door.py`)."""
    tls = TlsFiles.of({**os.environ, "RAY_USE_TLS": "1"}) if encrypted else None
    context = None if tls is None else tls.context(server=False)
    deadline = time.monotonic() + _PATIENCE
    while True:
        sock = _reach(address, hello.node)
        try:
            challenge = WorkerEnd(token, secrets.token_bytes(NONCE_SIZE), json.dumps(hello).encode())
            secure = None if context is None else Secure(context, address[0])
            _shake_hands(sock, Handshake(challenge, secure), deadline)
            return Link(sock, WORKER_PATIENCE, secure)
        except Refused as error:
            sock.close()
            raise ConnectionError(
                f"Node {hello.node} refuses to work for the driver at {address[0]}, port {address[1]}: {error}. If "
                "that is unexpected, another program has the port now, or answers in the place of the driver. It was "
                "sent nothing but a random number, and nothing of it was unpickled."
            ) from error
        except (EOFError, ConnectionError, TimeoutError) as error:
            sock.close()
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"Node {hello.node} has reached the driver at {address[0]}, port {address[1]}, which has not "
                    f"finished a handshake within {_PATIENCE:g} s ({error}). It may be stopped, or have no "
                    "descriptor left (ulimit -n), or other programs keep connecting to that port."
                ) from error
        except BaseException:
            sock.close()
            raise
        # The pause is random, because other workers may have been dropped at the same moment.
        time.sleep(secrets.SystemRandom().uniform(*_PAUSE))


def _reach(address: tuple[str, int], node: str) -> socket.socket:
    try:
        return socket.create_connection(address, _CONNECT)
    except OSError as error:
        raise ConnectionError(
            f"Node {node} cannot reach the driver at {address[0]}, port {address[1]} ({error}). Workers connect to "
            "the process that trains, at a port that the system chooses: look at firewalls between nodes."
        ) from error


def _shake_hands(sock: socket.socket, handshake: Handshake, deadline: float) -> None:
    said = handshake.begin()
    while True:
        # Not 0, which would make the socket non-blocking.
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.sendall(said)
        if handshake.is_done:
            sock.settimeout(None)
            return
        data = sock.recv(handshake.wants)
        if not data:
            raise EOFError("the connection was closed")
        said = handshake.receive(data)


def told(said: bytes) -> Hello:
    """Parses a hello. Raises ValueError if the bytes are not a hello."""
    try:
        worker, pid, node, clock, versions = json.loads(said)
    except (ValueError, TypeError, RecursionError):
        raise ValueError("the message is not a hello") from None
    if [*map(type, (worker, pid, node, clock, versions))] != [int, int, str, int, dict]:
        raise ValueError("the message is not a hello")
    return Hello(worker, pid, node, clock, versions)


def awaited(token: bytes, context: ssl.SSLContext | None) -> tuple[DriverEnd, Handshake]:
    challenge = DriverEnd(token, secrets.token_bytes(NONCE_SIZE))
    return challenge, Handshake(challenge, None if context is None else Secure(context))


def this_process(worker: int, node: str, clock: int) -> Hello:
    return Hello(worker, os.getpid(), node, clock, versions())
