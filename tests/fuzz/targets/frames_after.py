"""Frames after the handshake, in both directions: numbers, lengths, figures, strays. Pickles there are trusted."""

from __future__ import annotations

import struct
import threading
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from penstock._measure.gauges import Gauges
from penstock._wire.reply import REPLY
from penstock.backends._ray.actor import Inbox
from penstock.backends._ray.exchange import Exchange, Posted
from penstock.backends._ray.link import BROKEN, CHANGE, GARBLED, READY, REPLIED, STACK, TASK, TOLD, VOID, head
from penstock.backends._ray.remote import RemoteWorker, RemoteWorkerState
from tests.fuzz.fed import Fed

ALLOWED = GARBLED  # the connection ends, and the worker counts as lost


@cache
def figures() -> bytes:
    return bytes(Gauges(None).tell(0))


def seeds() -> list[bytes]:
    told = figures()
    reply = REPLY.pack(4, 1, 0, 0, 0, 3, 0, 100, 5, 0, 0)
    stray = struct.pack("<2q", 4, 10)
    replied = head(REPLIED, 4, 0, 100, 1, len(told)) + reply + told + stray + bytes(100) + bytes(10)
    return [
        b"d" + head(READY, len(told)) + told + replied,
        b"d" + replied + head(TOLD, 1, 4, 0, 0) + b"text",
        b"d" + head(BROKEN, 3) + b"abc",
        b"w" + head(VOID, 3) + head(STACK, 1) + head(CHANGE, 4) + b"data" + head(TASK, 8, 1, 0) + bytes(200),
    ]


class Nowhere:
    """A cluster without nodes."""

    def is_there(self) -> bool:
        return False


def attack(data: bytes) -> None:
    link = Fed(data[1:])
    if data[:1] == b"w":
        _worker(link)
    else:
        _driver(link)


def _worker(link: Fed) -> None:
    inbox: Any = Inbox.__new__(Inbox)  # without its thread
    inbox._link, inbox._gauges, inbox._main = link, Gauges(None), threading.get_ident()
    inbox.void, inbox.doing, inbox.orders = set(), (-1, 0), SimpleQueue()
    while inbox._receive_one():
        pass


def _driver(link: Fed) -> None:
    """A worker that has connected, with a task."""
    exchange: Any = Exchange(Nowhere(), False)  # type: ignore[arg-type]
    remote = RemoteWorker(1, 0)
    remote.link, remote.state = link, RemoteWorkerState.STARTING
    exchange._remotes[1] = remote
    exchange._ledger.hire(1, 0)
    exchange._posted[4] = Posted(bytes(8), bytes(8), 0, 0, 1, np.zeros(4096, np.uint8))
    exchange._ledger.post(4, 0)
    while True:
        exchange._receive(remote, link)
