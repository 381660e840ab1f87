"""What a stranger sends to the driver's port: it is dropped, and nothing of it is unpickled."""

from __future__ import annotations

import json
import pickle

from penstock.backends._ray import handshake
from penstock.backends._ray.handshake import Hello
from tests.fuzz.fed import Fed

# Whatever the door suppresses for a stranger.
ALLOWED = (OSError, EOFError, ValueError, TypeError)
JSON = True
TOKEN = bytes(range(32))


def seeds() -> list[bytes]:
    said = json.dumps(Hello(1, 2, "node", 3, handshake.versions())).encode()
    return [TOKEN + len(said).to_bytes(8, "little") + said]


def mended(data: bytes) -> bytes:
    """With the token, and the length of what follows."""
    said = data[data.find(b"[") :] if b"[" in data else data[40:]
    return TOKEN + len(said).to_bytes(8, "little") + said


def attack(data: bytes) -> None:
    loads, pickle.loads = pickle.loads, _never
    try:
        hello = handshake.admit(Fed(data), TOKEN)
    finally:
        pickle.loads = loads
    if hello is not None:
        assert type(hello) is Hello and data.startswith(TOKEN)


def _never(*_: object) -> None:
    raise AssertionError("a stranger's bytes were unpickled")
