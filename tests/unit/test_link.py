"""Frames over a connection: whole, in order, and no sender waits for a receiver that does not read."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import environment, new_certificate
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends._ray import handshake
from penstock.backends._ray.challenge import NONCE_SIZE, PREFACE, PROOF_SIZE
from penstock.backends._ray.door import Door
from penstock.backends._ray.handshake import Hello, TlsFiles, connect, this_process
from penstock.backends._ray.link import DRIVER_PATIENCE, Link, Secure, head


def pair(tls: TlsFiles | None = None) -> tuple[Link, Link]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
    both = (None, None) if tls is None else shaken(tls)
    ours, theirs = (Link(end, DRIVER_PATIENCE, secure) for end, secure in zip(ends, both, strict=True))
    return ours, theirs


def shaken(tls: TlsFiles) -> tuple[Secure, Secure]:
    """Two ends of TLS whose handshake is done."""
    ours, theirs = Secure(tls.context(server=False), "127.0.0.1"), Secure(tls.context(server=True))
    for one, other in [(ours, theirs), (theirs, ours)] * 2:
        with suppress(ssl.SSLWantReadError):
            one.tls.do_handshake()
        other.incoming.write(one.outgoing.read())
    return ours, theirs


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A certificate that is its own authority, as in a cluster with one."""
    return new_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def links(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    ends = pair(request.getfixturevalue("certificate") if request.param == "tls" else None)
    yield ends
    for end in ends:
        end.cut()
        end.close()


def test_frames_arrive_whole_and_in_order(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    frames = [os.urandom(size) for size in (0, 1, 7, 100_000, 3, 3_000_000, 1)]
    for frame in frames:
        ours.post(head(len(frame)), frame[: len(frame) // 2], frame[len(frame) // 2 :])
        ours.push()
    for frame in frames:
        assert theirs.receive_head()[0] == len(frame)
        assert theirs.receive(len(frame)) == frame


def test_a_connection_is_not_paced_by_bbr() -> None:
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError:
            pytest.skip("BBR is not there, or may not be chosen")
        with closing(Link(sock, DRIVER_PATIENCE)):
            assert not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr")


def test_a_congestion_control_other_than_bbr_stays() -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        with closing(Link(sock, DRIVER_PATIENCE)):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"reno")


def test_both_sides_may_send_much_at_the_same_time(links: tuple[Link, Link]) -> None:
    data = os.urandom(8_000_000)
    for link in links:
        link.post(data)
        link.push()
    for link in links:
        assert link.receive(len(data)) == data


def test_a_post_does_not_wait_for_an_end_that_does_not_read(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    began = time.monotonic()
    for _ in range(4):
        ours.post(bytes(4_000_000))
        ours.push()
    assert time.monotonic() - began < 60  # and not for ever
    assert len(theirs.receive(16_000_000)) == 16_000_000


def test_a_cut_link_wakes_the_thread_that_receives(links: tuple[Link, Link]) -> None:
    ours, _ = links
    woken: list[type] = []
    receiving = threading.Event()

    def receive() -> None:
        receiving.set()
        try:
            ours.receive(100)
        except (EOFError, OSError) as error:
            woken.append(type(error))

    thread = threading.Thread(target=receive)
    thread.start()
    receiving.wait()
    ours.cut()
    thread.join(10)
    assert woken


def test_many_threads_may_post_and_no_frame_is_torn(links: tuple[Link, Link]) -> None:
    ours, theirs = links

    def post(number: int) -> None:
        for _ in range(200):
            ours.post(head(number, 500 * number), bytes([number]) * (500 * number))
            ours.push()

    threads = [threading.Thread(target=post, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for _ in range(800):
        number, size, *_ = theirs.receive_head()
        assert theirs.receive(size) == bytes([number]) * size
    for thread in threads:
        thread.join()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=12))
def test_any_frames_are_received_as_they_were_sent(frames: list[bytes]) -> None:
    ours, theirs = pair()
    try:
        ours.send(*frames)
        assert theirs.receive(sum(map(len, frames))) == b"".join(frames)
    finally:
        for link in (ours, theirs):
            link.close()


def test_a_forked_child_has_no_part_in_a_link() -> None:
    ours, theirs = pair()
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        ours.close()
        with pytest.raises((EOFError, ConnectionError)):  # although the child lives
            theirs.receive(1)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        theirs.close()


# The door.


class Visitors:
    """A door, and who came in."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self.came: list[Hello] = []
        self.event = threading.Event()
        self.door = Door("127.0.0.1", None if tls is None else tls.context(server=True), self.serve)

    def serve(self, link: Link, hello: Hello) -> None:
        self.came.append(hello)
        self.event.set()
        with suppress(EOFError, OSError):
            link.receive(1)

    def __enter__(self) -> Visitors:
        return self

    def __exit__(self, *error: object) -> None:
        self.door.close(time.monotonic() + 5)


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def say(address: tuple[str, int], said: bytes) -> bytes:
    """Says this, and returns what is answered until the connection ends."""
    heard = b""
    with socket.create_connection(address, 10) as sock, suppress(OSError):  # it may be closed before all was said
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        while data := sock.recv(1000):
            heard += data
    return heard


def test_who_has_the_token_comes_in() -> None:
    with Visitors() as visitors:
        link = connect(visitors.door.address, False, visitors.door.token, this_process(7, "here", 123))
        assert visitors.event.wait(10)
        assert visitors.came[0].worker == 7 and visitors.came[0].node == "here" and visitors.door.refused == 0
        link.close()


@pytest.mark.parametrize(
    "said",
    [b"x" * 32, b"", b"GET / HTTP/1.1\r\n" * 10, b"x" * 31],
    ids=["wrong", "nothing", "another protocol", "too short"],
)
def test_a_wrong_token_is_dropped_and_counted(said: bytes) -> None:
    with Visitors() as visitors:
        assert say(visitors.door.address, said) == b""
        until(lambda: visitors.door.refused == 1)
        assert not visitors.came


def test_nothing_is_read_before_the_token_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake.json, "loads", lambda said: pytest.fail("it was read"))
    with Visitors() as visitors, socket.create_connection(visitors.door.address, 10) as stranger:
        stranger.sendall(PREFACE + b"n" * NONCE_SIZE)
        assert stranger.recv(1000).startswith(PREFACE)
        stranger.sendall(b"p" * PROOF_SIZE + (5).to_bytes(4, "little") + b"hello")
        until(lambda: visitors.door.refused == 1)
        assert not visitors.came


def test_the_door_is_at_one_address_only() -> None:
    with Visitors() as visitors:
        host, port = visitors.door.address
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.3", port), 10)


def test_a_door_that_is_closed_lets_nobody_in_and_leaves_nothing() -> None:
    with Visitors() as visitors:
        address = visitors.door.address
        with socket.create_connection(address, 10) as silent:  # says no token
            until(lambda: visitors.door.strangers)
            visitors.door.close(time.monotonic() + 5)
            assert silent.recv(1) == b"" and not visitors.door.strangers
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 10)


# TLS.


def test_the_certificates_are_those_of_ray(certificate: TlsFiles) -> None:
    assert TlsFiles.of({}) is None and TlsFiles.of({"RAY_USE_TLS": "0"}) is None
    assert TlsFiles.of(environment(certificate)) == certificate
    with pytest.raises(RuntimeError, match="RAY_TLS_SERVER_KEY='/none' is not a file on this node"):
        TlsFiles.of(environment(certificate) | {"RAY_TLS_SERVER_KEY": "/none"})


def test_an_encrypted_door_lets_in_who_has_certificate_and_token(
    certificate: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(certificate).items():
        monkeypatch.setenv(name, value)
    with Visitors(certificate) as visitors:
        link = connect(visitors.door.address, True, visitors.door.token, this_process(1, "here", 0))
        assert visitors.event.wait(10)
        link.close()


def test_an_encrypted_door_is_closed_to_others(
    certificate: TlsFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Visitors(certificate) as visitors:
        # Without patience: such a connection is tried again until the deadline.
        with monkeypatch.context() as impatient:
            impatient.setattr(handshake, "_PATIENCE", 0)
            with pytest.raises(ConnectionError, match="the driver at 127"):
                connect(visitors.door.address, False, visitors.door.token, this_process(1, "here", 0))
        until(lambda: visitors.door.refused == 1)
        for name, value in environment(new_certificate(tmp_path)).items():  # of another authority
            monkeypatch.setenv(name, value)
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(visitors.door.address, True, visitors.door.token, this_process(1, "here", 0))
        until(lambda: visitors.door.refused == 2)
        assert not visitors.came


# Versions.

OURS = {"python": "3.11.7", "penstock": "0.1", "numpy": "2.4.6", "torch": "2.13.0"}


def test_python_and_penstock_must_agree() -> None:
    assert handshake.refusal(OURS, OURS | {"python": "3.11.2"}, "n") == ""
    for theirs, said in (
        ({"python": "3.12.1"}, "Node 10.0.0.2 has Python 3.12.1, and the driver has Python 3.11.7"),
        ({"python": "3.1.1"}, "Python 3.1.1"),
        ({"penstock": "0.2"}, "penstock 0.2, and the driver has penstock 0.1"),
    ):
        assert said in handshake.refusal(OURS, OURS | theirs, "10.0.0.2")


def test_another_numpy_is_a_difference() -> None:
    assert handshake.difference(OURS, OURS, "n") == ""
    assert "numpy 1.26, and the driver has numpy 2.4.6" in handshake.difference(OURS, OURS | {"numpy": "1.26"}, "n")
