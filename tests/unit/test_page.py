"""Pages of loaders: read by the same user only, never half written, and gone with their publisher."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import figures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Begin, forge, programs

from penstock._measure import page
from penstock.stats._published import to_text


class Publisher:
    """Stands for a loader's meter."""


def of_this_process() -> list[bytes]:
    return [found.text for found in page.find(os.geteuid()) if found.pid == os.getpid()]


def test_a_page_has_what_was_published_last() -> None:
    loader = Publisher()
    assert of_this_process() == []
    for text in (b"one", b"two, which is longer", b"", b"three"):
        page.publish(loader, text)
        assert of_this_process() == [text]


def test_each_publisher_has_a_page_and_it_goes_with_the_publisher() -> None:
    first, second = Publisher(), Publisher()
    page.publish(first, b"first")
    page.publish(second, b"second")
    assert sorted(of_this_process()) == [b"first", b"second"]
    del first
    assert of_this_process() == [b"second"]
    del second
    assert of_this_process() == [] and not page._pages


def test_a_page_that_is_withdrawn_is_gone_until_something_is_published() -> None:
    loader = Publisher()
    page.withdraw(loader)
    page.publish(loader, b"open")
    page.withdraw(loader)
    assert of_this_process() == []
    page.publish(loader, b"open again")
    assert of_this_process() == [b"open again"]


def test_a_publisher_that_a_finalizer_brings_back_gets_a_new_page() -> None:
    kept = []

    class Returning(Publisher):
        def __del__(self) -> None:
            kept.append(self)

    loader = Returning()
    loader.itself = loader  # type: ignore[attr-defined]
    page.publish(loader, b"before")
    del loader
    gc.collect()
    assert of_this_process() == []
    page.publish(kept[0], b"after")
    assert of_this_process() == [b"after"]
    kept[0].itself = None
    kept.clear()
    page._pages.clear()


def test_a_text_that_is_too_long_leaves_the_page_as_it_is() -> None:
    loader = Publisher()
    most = page.PUBLICATION_BYTES - page._HEAD.size
    page.publish(loader, b"x" * most)
    page.publish(loader, b"y" * (most + 1))
    assert of_this_process() == [b"x" * most]


def test_there_are_at_most_64_pages() -> None:
    loaders = [Publisher() for _ in range(page.MOST_PAGES + 3)]
    for loader in loaders:
        page.publish(loader, b"here")
    assert len(of_this_process()) == page.MOST_PAGES
    del loaders[0]
    page.publish(loaders[-1], b"now there is room")
    assert b"now there is room" in of_this_process()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=6), st.data())
def test_a_reader_finds_a_whole_text_wherever_the_next_one_was_interrupted(
    texts: list[bytes], data: st.DataObject
) -> None:
    """The publisher writes the text, its head and the counter, in this order, and may be stopped at any byte."""
    loader = Publisher()
    for text in texts:
        page.publish(loader, text)
    memory = page._pages[id(loader)].memory
    (count,) = page._COUNTER.unpack_from(memory, 0)
    at = page._FIRST + (count + 1) % 2 * page.PUBLICATION_BYTES
    half = data.draw(st.binary(max_size=4000))
    memory[at + page._HEAD.size : at + page._HEAD.size + len(half)] = half
    if data.draw(st.booleans()):
        struct.pack_into("QQ", memory, at, len(half) + 1, 0)
    assert of_this_process() == [texts[-1]]


def test_a_reader_that_sees_the_counter_before_the_text_finds_nothing() -> None:
    loader = Publisher()
    page.publish(loader, b"text")
    page._COUNTER.pack_into(page._pages[id(loader)].memory, 0, 2)
    assert of_this_process() == [b""]  # as zeros are the head of an empty text
    memory = page._pages[id(loader)].memory
    memory[page._FIRST : page._FIRST + 1] = b"\1"
    assert of_this_process() == []


def test_reading_beside_a_busy_publisher_never_gives_a_mixture(begin: Begin) -> None:
    """A text says how long it is and repeats one letter."""
    program = begin("""
        class Publisher: pass
        loader = Publisher()
        page.publish(loader, b"a")
        print("begun", flush=True)
        while True:
            for length in range(1, 20_000, 997):
                for letter in b"abcdef":
                    page.publish(loader, bytes([letter]) * length)
    """)
    assert program.line() == "begun"
    seen = set()
    until = time.monotonic() + 20
    while len(seen) < 30 and time.monotonic() < until:
        for found in (one for one in page.find(os.geteuid()) if one.pid == program.pid):
            assert set(found.text) == {found.text[0]} and len(found.text) % 997 == 1
            seen.add(found.text)
    assert len(seen) >= 30


def test_a_forked_child_neither_keeps_nor_writes_the_page_of_its_parent() -> None:
    loader = Publisher()
    page.publish(loader, b"of the parent")
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            before = of_this_process()
            page.publish(loader, b"of the child")
            its.sendall(repr((before, of_this_process())).encode())
            its.recv(1)
        finally:
            os._exit(0)
    assert ours.recv(1000).decode() == repr(([], [b"of the child"]))
    assert of_this_process() == [b"of the parent"]
    inodes = {found.inode for found in page.find(os.geteuid()) if found.pid in (pid, os.getpid())}
    assert len(inodes) == 2
    ours.sendall(b"x")
    os.waitpid(pid, 0)
    ours.close()
    its.close()


def test_a_program_that_is_killed_leaves_nothing(begin: Begin) -> None:
    program = begin("""
        import signal
        class Publisher: pass
        loader = Publisher()
        page.publish(loader, b"alive")
        print("published", flush=True)
        signal.pause()
    """)
    assert program.line() == "published"
    assert [found.text for found in page.find(os.geteuid()) if found.pid == program.pid] == [b"alive"]
    os.kill(program.pid, signal.SIGKILL)
    assert program.end()[0] == -signal.SIGKILL
    assert [found for found in page.find(os.geteuid()) if found.pid == program.pid] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_read_a_page() -> None:
    loader = Publisher()
    page.publish(loader, b"secret")
    fd = next(
        name for name in os.listdir("/proc/self/fd") if page.NAME in _link(f"/proc/self/fd/{name}")
    )  # the only page here
    code = f"""
import os
from penstock._measure import page
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print([found for uid in (0, 65534) for found in page.find(uid)])
for path in ("/proc/{os.getpid()}/fd", "/proc/{os.getpid()}/fd/{fd}"):
    try:
        os.listdir(path) if path.endswith("fd") else os.open(path, os.O_RDONLY)
    except PermissionError:
        print("refused")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[]\nrefused\nrefused\n", "")
    assert of_this_process() == [b"secret"]


def test_a_publication_takes_less_than_its_share() -> None:
    """Without `loader.stats()`: 0.3 ms of a second. The least of many processor times: other tests run beside."""
    loader, stats = Publisher(), figures.stats(history=figures.moments(1000))
    page.publish(loader, b"")
    took = []
    for _ in range(300):
        begun = time.process_time()
        page.publish(loader, to_text(stats))
        took.append(time.process_time() - begun)
    assert min(took) < 300e-6


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


@pytest.fixture
def begin(pages_forge: socket.socket, tmp_path: Path) -> Iterator[Begin]:
    with programs(pages_forge, tmp_path, "from penstock._measure import page\n") as begins:
        yield begins


@pytest.fixture(scope="module")
def pages_forge() -> Iterator[socket.socket]:
    with forge("from penstock._measure import page") as control:
        yield control
