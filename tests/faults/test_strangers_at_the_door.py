"""Connections to the driver of programs that are not its workers: many, slow, noisy, recorded, false.

The driver is this process, on a stand-in for Ray (see `standin.py`); the sockets are real.
"""

from __future__ import annotations

import os
import random
import re
import resource
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from standin import Slow, is_up, on, plain

from penstock.backends._ray import door as doors
from penstock.backends._ray import handshake
from penstock.backends._ray.challenge import NONCE_SIZE, PREFACE, PROOF_SIZE, TOKEN_SIZE, DriverEnd
from penstock.backends._ray.door import MOST, Door
from penstock.backends._ray.handshake import Hello, connect, this_process
from penstock.backends._ray.link import Link
from penstock.errors import WorkerLost
from penstock.testing._laws import same, until

pytestmark = pytest.mark.usefixtures("warmed_up")


# A program that opens connections: `count` that say nothing and stay; or one after the other, until it is ended.
STRANGERS = """
import resource, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
while not count or len(held) < count:
    held.append(socket.create_connection((host, port), 30))
    if not count:
        del held[:-500]
    if len(held) == 200:
        print("many", flush=True)
print("all", flush=True)
sys.stdin.read()
"""


@contextmanager
def strangers(address: tuple[str, int], count: int = 0) -> Iterator[Any]:
    """In the block another program has connections to this address: so many, or more and more of them."""
    command = [sys.executable, "-ISc", STRANGERS, address[0], str(address[1]), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Visitors:
    """A door, and who came in."""

    def __init__(self) -> None:
        self.came: list[Hello] = []
        self.door = Door("127.0.0.1", None, self.serve)

    def serve(self, link: Link, hello: Hello) -> None:
        self.came.append(hello)
        with suppress(EOFError, OSError):
            link.receive(1)

    def comes(self, worker: int) -> None:
        """A worker comes in, and leaves."""
        with closing(connect(self.door.address, False, self.door.token, this_process(worker, "here", 0))):
            until(lambda: worker in [hello.worker for hello in self.came], f"worker {worker} has come in")

    def __enter__(self) -> Visitors:
        return self

    def __exit__(self, *error: object) -> None:
        self.door.close(time.monotonic() + 5)


# Many.


def test_thousands_of_silent_connections_cost_no_thread_few_descriptors_and_no_batch(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_SECONDS", 100.0)  # they stay, also where this takes long
    with on(Slow(), 2, retries=9) as loader:
        same(list(loader), plain(Slow(), 2))
        until(lambda: is_up(loader), "both workers are up")
        (backend,) = cluster.made
        before, state = (threads(), descriptors()), random.getstate()
        with strangers(backend._door.address, 2_000) as process:
            while process.stdout.readline() != "all\n":
                pass
            until(lambda: len(backend._door.strangers) == MOST, "there are as many as there may be")
            until(lambda: backend._door.refused >= 2_000 - MOST, "the others were dropped")
            assert threads() <= before[0] and random.getstate() == state
            assert descriptors() <= before[1] + MOST + 2  # and the pipes to that program
            loader.set_epoch(0)
            found, killed = [], loader.workers[0].pid
            for step, batch in enumerate(loader):
                found.append(batch)
                if step == 3:
                    os.kill(killed, signal.SIGKILL)
            same(found, plain(Slow(), 2))
            until(lambda: is_up(loader) and len(loader.workers) == 2, "another worker has come in past them")
            assert killed not in [worker.pid for worker in loader.workers]


def test_workers_come_in_while_another_program_hammers_at_the_door() -> None:
    with Visitors() as visitors, strangers(visitors.door.address) as process:
        assert process.stdout.readline() == "many\n"
        for worker in range(10):
            dropped = visitors.door.refused
            visitors.comes(worker)
            until(lambda dropped=dropped: visitors.door.refused > dropped, "strangers come and go")
        assert len(visitors.door.strangers) <= MOST + 1  # one is accepted before another is dropped


def test_strangers_of_one_address_take_no_place_of_another() -> None:
    """A worker that is slow to answer stays, while ten times as many strangers come from elsewhere as have room."""
    with Visitors() as visitors, ExitStack() as block:
        address = visitors.door.address
        slow = block.enter_context(socket.create_connection(address, 10, ("127.0.0.9", 0)))
        until(lambda: len(visitors.door.strangers) == 1, "it has come")
        for _ in range(10 * MOST):
            block.enter_context(socket.create_connection(address, 10))
        until(lambda: visitors.door.refused >= 9 * MOST, "those that were too many were dropped")
        slow.sendall(PREFACE + bytes(NONCE_SIZE))
        assert len(slow.recv(1000)) == len(PREFACE) + NONCE_SIZE + PROOF_SIZE


# Slow, noisy.


def test_a_byte_now_and_then_does_not_prolong_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_SECONDS", 1.0)
    with Visitors() as visitors, socket.create_connection(visitors.door.address, 10) as slow:
        began = time.monotonic()
        slow.settimeout(0.2)
        for byte in PREFACE + bytes(NONCE_SIZE):
            with suppress(ConnectionError):  # it is closed
                slow.sendall(bytes([byte]))
            try:
                assert slow.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was waited for")
        assert time.monotonic() - began > 0.9
        until(lambda: visitors.door.refused == 1, "it is counted")
        visitors.comes(1)


def test_garbage_changes_no_batch(cluster: Any) -> None:
    noise = np.random.default_rng(0)
    with on(Slow(), 2) as loader:
        found, batches = [], iter(loader)
        found.append(next(batches))
        (backend,) = cluster.made
        for count, batch in enumerate(batches, 1):
            found.append(batch)
            with socket.create_connection(backend._door.address, 10) as noisy, suppress(ConnectionError):
                known = PREFACE + bytes(NONCE_SIZE) if count % 2 else b""
                noisy.sendall(known + noise.bytes(int(noise.integers(40, 5_000))))
                while noisy.recv(1000):
                    pass
        same(found, plain(Slow(), 2))
        until(lambda: backend._door.refused == len(found) - 1, "all were dropped")


# Recorded, reflected, false.


class Wiretap:
    """Passes the bytes of one connection on to a door, and notes those of the worker."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._door = address
        self.said = b""
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def _pass_on(self) -> None:
        with self._listener, self._listener.accept()[0] as worker, socket.create_connection(self._door) as door:
            back = threading.Thread(target=self._copy, args=(door, worker, lambda data: None))
            back.start()
            self._copy(worker, door, self._note)
            back.join()

    def _note(self, data: bytes) -> None:
        self.said += data

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, note: Callable[[bytes], None]) -> None:
        with suppress(OSError):
            while data := source.recv(1000):
                note(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        self._thread.join()


def heard_until_the_end(sock: socket.socket) -> bytes:
    heard = b""
    with suppress(ConnectionError):
        while data := sock.recv(1000):
            heard += data
    return heard


def test_a_recorded_handshake_is_worth_nothing() -> None:
    with Visitors() as visitors:
        tap = Wiretap(visitors.door.address)
        with closing(connect(tap.address, False, visitors.door.token, this_process(1, "here", 0))):
            until(lambda: visitors.came, "the worker has come in")
        tap.join()
        assert visitors.door.token not in tap.said and b"here" in tap.said
        with socket.create_connection(visitors.door.address, 10) as replayer, suppress(ConnectionError):
            replayer.sendall(tap.said)
            assert len(heard_until_the_end(replayer)) <= len(PREFACE) + NONCE_SIZE + PROOF_SIZE
        until(lambda: visitors.door.refused == 1, "it is dropped")
        assert len(visitors.came) == 1


def test_the_drivers_own_proof_is_worth_nothing_to_a_stranger() -> None:
    with Visitors() as visitors, socket.create_connection(visitors.door.address, 10) as stranger:
        stranger.sendall(PREFACE + b"n" * NONCE_SIZE)
        proof = stranger.recv(1000)[-PROOF_SIZE:]
        stranger.sendall(proof + (2).to_bytes(4, "little") + b"[]")
        assert heard_until_the_end(stranger) == b""
        until(lambda: visitors.door.refused == 1, "it is dropped")
        assert not visitors.came


class FalseDriver:
    """Answers one worker in the place of the driver, without the token, and notes what the worker says."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._answer, self.said = answer, b""
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        with self._listener, self._listener.accept()[0] as worker, suppress(ConnectionError):
            while len(self.said) < len(PREFACE) + NONCE_SIZE:
                self.said += worker.recv(1000)
            worker.sendall(self._answer(self.said))
            self.said += heard_until_the_end(worker)

    def join(self) -> None:
        self._thread.join()


def another_token(greeting: bytes) -> bytes:
    return DriverEnd(b"x" * 32, b"n" * NONCE_SIZE).receive(greeting)


def its_own_words(greeting: bytes) -> bytes:
    return greeting + greeting[-PROOF_SIZE:]


def another_version(greeting: bytes) -> bytes:
    return b"penstock\x09"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (another_token, "it does not have the token of this loader"),
        (its_own_words, "it does not have the token of this loader"),
        (lambda greeting: bytes(100_000), "it does not speak penstock's protocol"),
        (another_version, "version 9 of penstock's handshake, .* install the same version"),
    ],
    ids=["another token", "its own words", "another protocol", "another version"],
)
def test_a_worker_refuses_a_false_driver_and_says_why(answer: Callable[[bytes], bytes], why: str) -> None:
    false = FalseDriver(answer)
    with pytest.raises(ConnectionError, match=rf"^Node here refuses to work for the driver at 127\.0\.0\.1, .*{why}"):
        connect(false.address, False, secrets.token_bytes(TOKEN_SIZE), this_process(1, "here", 0))
    false.join()
    assert len(false.said) == len(PREFACE) + NONCE_SIZE  # not its hello, nor its proof


class Explosive:
    """Whoever unpickles it writes a file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.file),)


def test_a_worker_process_unpickles_nothing_of_a_false_driver(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from penstock._wire.pickling import dumps
    from penstock.backends._ray.link import CHANGE, WELCOME, head

    change = dumps(Explosive(str(tmp_path / "unpickled")))
    frames = head(WELCOME) + head(CHANGE, len(change)) + change
    false = FalseDriver(lambda greeting: another_token(greeting) + b"\6" + frames)
    monkeypatch.setattr(Door, "address", property(lambda door: false.address))
    with on(Slow(), 2, num_workers=1, retries=0) as loader, pytest.raises(WorkerLost, match="exited with code 1"):
        list(loader)
    false.join()
    assert len(false.said) == len(PREFACE) + NONCE_SIZE and not (tmp_path / "unpickled").exists()


# Without descriptors.


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_the_door_waits_and_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []
    wait = Door._wait

    def counted(door: Door, paused: float) -> float | None:
        rounds.append(paused)
        return wait(door, paused)

    monkeypatch.setattr(Door, "_wait", counted)
    with Visitors() as visitors, ExitStack() as block:
        socks = [block.enter_context(socket.socket()) for _ in range(5)]
        with no_descriptor_left():
            for sock in socks:
                sock.connect(visitors.door.address)  # by the system: nothing is accepted
            until(lambda: len({*rounds}) > 5, "the door has paused five times, and tried again")
            assert len(rounds) < 40  # a few for each pause of 0.1 s
            assert not visitors.door.strangers and visitors.door._thread.is_alive()
        visitors.comes(1)
        until(lambda: len(visitors.door.strangers) == 5, "those that waited are heard now")


def test_strangers_give_their_descriptors_back_to_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_SECONDS", 100.0)
    with Visitors() as visitors, ExitStack() as block:
        for _ in range(5):
            block.enter_context(socket.create_connection(visitors.door.address, 10))
        until(lambda: len(visitors.door.strangers) == 5, "all have come")
        worker = block.enter_context(socket.socket())
        worker.settimeout(30)
        with no_descriptor_left():
            worker.connect(visitors.door.address)
            worker.sendall(PREFACE + bytes(NONCE_SIZE))
            assert len(worker.recv(1000)) == len(PREFACE) + NONCE_SIZE + PROOF_SIZE


# Forked children.


def test_a_forked_child_of_the_driver_holds_neither_its_port_nor_a_connection(cluster: Any) -> None:
    with on(Slow(), 2) as loader:
        batches = iter(loader)
        next(batches)
        until(lambda: is_up(loader), "both workers are up")
        (backend,) = cluster.made
        address = backend._door.address
        with socket.create_connection(address, 10) as silent:
            until(lambda: backend._door.strangers, "a stranger is there")
            ours = {stranger.sock.fileno() for stranger in backend._door.strangers.values()}
            ours |= {backend._door._listener.fileno(), backend._door._bell}
            ours |= {remote.link._sock.fileno() for remote in backend._remotes.values()}
            theirs = {os.readlink(f"/proc/self/fd/{fd}") for fd in ours}
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(writer, b"!")
                signal.pause()
            try:
                assert os.read(reader, 1) == b"!"  # it has begun
                held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
                assert not {what for what in theirs & held if what.startswith("socket:")}
                assert len([fd for fd in ours if os.path.exists(f"/proc/{pid}/fd/{fd}")]) == 0
                loader.close()
                assert silent.recv(1) == b""
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address, 10)
                socket.create_server(address).close()
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(reader)
                os.close(writer)


# A driver that is stopped.


DRIVER = """
import sys, time
from penstock.backends._ray.door import Door
def serve(link, hello):
    print(hello.worker, flush=True)
door = Door("127.0.0.1", None, serve)
print(door.address[1], door.token.hex(), flush=True)
sys.stdin.read()
door.close(time.monotonic() + 5)
"""


def test_a_worker_waits_for_a_driver_that_is_stopped() -> None:
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        port, token = driver.stdout.readline().split()
        os.kill(driver.pid, signal.SIGSTOP)
        later = threading.Timer(0.5, os.kill, (driver.pid, signal.SIGCONT))
        later.start()
        began = time.monotonic()
        with closing(connect(("127.0.0.1", int(port)), False, bytes.fromhex(token), this_process(7, "here", 0))):
            assert driver.stdout.readline() == "7\n" and time.monotonic() - began >= 0.4
        later.join()
        driver.communicate()


def test_a_worker_that_is_dropped_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Visitors() as visitors:
        hear, dropped = doors.Stranger.hear, []

        def drop_twice(stranger: doors.Stranger) -> bool:
            if len(dropped) < 2:
                dropped.append(stranger)
                raise ConnectionError("dropped")
            return hear(stranger)

        monkeypatch.setattr(doors.Stranger, "hear", drop_twice)
        visitors.comes(1)
        assert len(dropped) == visitors.door.refused == 2


def test_a_worker_gives_up_in_time_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        said = re.escape("has not finished a handshake within 0.3 s (")
        with pytest.raises(ConnectionError, match=said):
            connect(silent.getsockname(), False, secrets.token_bytes(TOKEN_SIZE), this_process(1, "here", 0))
        assert 0.3 <= time.monotonic() - began < 20  # by default it is 60
