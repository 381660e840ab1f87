"""What strangers send before they are known: to the driver's port, and to a worker that asks a false driver.

Nobody is admitted without the token, and nothing is unpickled.
"""

from __future__ import annotations

import json
import pickle
from functools import cache

from penstock.backends._ray import handshake
from penstock.backends._ray.challenge import PREFACE, PROOF_SIZE, DriverEnd, Refused, WorkerEnd
from penstock.backends._ray.handshake import Handshake, Hello

ALLOWED = (Refused, ValueError)
JSON = True
TOKEN, OURS, THEIRS = bytes(range(32)), bytes(32), b"n" * 32


@cache
def hello() -> bytes:
    return json.dumps(Hello(1, 2, "node", 3, handshake.versions())).encode()


@cache
def seeds() -> list[bytes]:
    """A whole handshake, as each end hears it."""
    driver, worker = DriverEnd(TOKEN, OURS), WorkerEnd(TOKEN, THEIRS, hello())
    answer = driver.receive(worker.greeting)
    said = worker.receive(answer)
    return [b"d" + worker.greeting + said, b"w" + answer + b"\6"]


def mended(data: bytes) -> bytes:
    """With the right proof and length, as a worker with the token would send them."""
    if data[:1] != b"d":
        return data
    said = data[data.find(b"[") :][: 1 << 16] if b"[" in data else data[110:]
    proof = seeds()[0][1 + len(PREFACE) + 32 :][:PROOF_SIZE]
    return b"d" + PREFACE + THEIRS + proof + len(said).to_bytes(4, "little") + said


def attack(data: bytes) -> None:
    loads, pickle.loads = pickle.loads, _never
    try:
        if data[:1] == b"w":
            _worker(data[1:])
        else:
            _driver(data[1:])
    finally:
        pickle.loads = loads


def _driver(data: bytes) -> None:
    challenge = DriverEnd(TOKEN, OURS)
    heard = _hear(Handshake(challenge, None), data)
    if heard:
        proof = seeds()[0][1 + len(PREFACE) + 32 :][:PROOF_SIZE]
        assert data.startswith(PREFACE + THEIRS + proof), "admitted without a proof"
        handshake.told(challenge.hello)


def _worker(data: bytes) -> None:
    heard = _hear(Handshake(WorkerEnd(TOKEN, THEIRS, hello()), None), data)
    assert not heard or data.startswith(seeds()[1][1:-1]), "a false driver was believed"


def _hear(end: Handshake, data: bytes) -> bool:
    """Gives the bytes to one end in pieces, as they come from the network."""
    end.begin()
    at = 0
    while not end.is_done and at < len(data):
        size = min(end.wants, 1 + data[at] % 50)
        end.receive(data[at : at + size])
        at += size
    return end.is_done


def _never(*_: object) -> None:
    raise AssertionError("a stranger's bytes were unpickled")
