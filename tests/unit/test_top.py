"""`penstock top`: figures that travel by page, and what is made of them."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import figures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Begin, forge, programs, session
from rich.console import Console

from penstock._measure import page
from penstock._tools import top as top
from penstock.stats import CacheFigures, Decision, Memory, Moment, Period, Spans, Stats
from penstock.stats._published import Published, from_text, to_text
from penstock.stats._recent import Recent, recent

COMMAND = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())", "top"]

numbers = st.floats(0, 1e9, allow_nan=False)
workers = st.builds(figures.worker, st.integers(0, 99), name=st.text(max_size=5), alive=st.booleans(), fetch=numbers)
spans = st.builds(Spans, st.integers(0, 1 << 40), numbers, numbers, numbers, numbers)
crews = st.lists(workers, max_size=4).map(tuple)
caches = st.none() | st.builds(CacheFigures, st.integers(0, 1 << 50), waited=numbers)
amounts = st.integers(0, 1 << 50)
periods = st.builds(Period, seconds=numbers, batches=amounts, waits=spans, workers=crews, cache=caches)
decisions = st.builds(Decision, numbers, st.integers(0, 9), st.integers(0, 9), st.text(max_size=5))
all_stats = st.builds(
    Stats,
    name=st.text(max_size=10),
    settings=st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3),
    epoch=periods,
    life=periods,
    memory=st.builds(Memory, st.integers(0, 1 << 50)),
    decisions=st.lists(decisions, max_size=1).map(tuple),
    history=st.integers(0, 20).map(figures.moments),
)


@settings(max_examples=50, deadline=None)
@given(all_stats)
def test_figures_come_out_of_a_text_as_they_went_in(stats: Stats) -> None:
    published = from_text(to_text(stats))
    assert published.stats == stats
    assert published.pid == os.getpid() and abs(published.at - time.time()) < 60


def test_only_the_latest_part_of_a_long_history_is_published() -> None:
    stats = figures.stats(history=figures.moments(1000))
    published = from_text(to_text(stats)).stats
    assert published.history == stats.history[-21:]
    assert recent(published) == recent(stats)
    assert len(to_text(stats)) < 10_000


def test_a_text_of_another_version_is_read_without_what_is_unknown_here() -> None:
    plain = json.loads(to_text(figures.stats()))
    plain["stats"]["mood"] = "good"
    del plain["stats"]["memory"]
    plain["stats"]["epoch"]["workers"][0].append("shoes")
    for row in plain["stats"]["epoch"]["workers"][1:]:
        row.append(44)
    assert from_text(json.dumps(plain).encode()).stats == figures.stats(memory=Memory())


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"pid": 1, "at": 2, "stats": {}}', b"\xff"])
def test_what_is_no_page_of_a_loader_says_so(text: bytes) -> None:
    with pytest.raises(ValueError):
        from_text(text)


def _nested(plain: Any) -> list[tuple[Any, Any]]:
    """The places of a text of JSON: a container and a key or index each."""
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [place for key, value in inside for place in [(plain, key), *_nested(value)]]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["?", None, -1, 1e999, [], {}, [[[]]], {"a": 1}]), st.booleans())
def test_a_malformed_page_is_left_out_and_the_others_are_shown(where: int, what: Any, gone: bool) -> None:
    plain = json.loads(to_text(figures.stats()))
    places = _nested(plain)
    container, key = places[where % len(places)]
    if gone:
        del container[key]
    else:
        container[key] = what
    good, bad = threading.Event(), threading.Event()  # any two objects
    page.publish(good, to_text(figures.stats(name="a good one")))
    page.publish(bad, json.dumps(plain).encode())
    try:
        found = top.loaders(os.getpid())
        assert "a good one" in [loader.stats.name for loader in found]
        console = Console(width=200)
        with console.capture() as shown:
            for pid in (None, os.getpid()):
                console.print(top.view(found, pid, time.time()))
        assert "a good one" in shown.get()
    finally:
        page.withdraw(good)
        page.withdraw(bad)


def test_memory_of_the_same_name_that_is_no_page_is_left_out() -> None:
    fd = os.memfd_create(page.NAME)
    try:
        for text in (b"", b"\1", b"\1" * 8, b"\1" * 9000):
            os.pwrite(fd, text, 0)
            assert top.loaders(os.getpid()) == []
    finally:
        os.close(fd)


def test_recent_figures_are_those_of_the_last_seconds() -> None:
    slow = figures.moments(100, rate=2.0, waiting=0.9)
    last = slow[-1]
    fast = tuple(
        dataclasses.replace(
            row,
            at=last.at + row.at,
            batches=last.batches + row.batches,
            waited=last.waited + row.waited,
            worked=last.worked + row.worked,
        )
        for row in figures.moments(40, rate=50.0, waiting=0.1, workers=4)
    )
    assert recent(lasting(slow + fast)) == Recent(pytest.approx(50.0), pytest.approx(0.1), 3.0, 4)
    # Of a long history some rows are dropped: what is left of it is as good.
    assert recent(lasting((slow + fast)[::12])) == Recent(pytest.approx(50.0), pytest.approx(0.1), 3.0, 4)


def lasting(history: tuple[Moment, ...]) -> Stats:
    """A loader with this history, two seconds after its last row."""
    last, rate = history[-1], history[-1].batches - history[-2].batches
    more = (last.at - history[-2].at) / 2.0
    waiting = (last.waited - history[-2].waited) / (last.at - history[-2].at)
    waits, works = Spans(9, last.waited + 2 * waiting), Spans(9, last.worked + 2 - 2 * waiting)
    life = Period(batches=last.batches + round(rate / more), waits=waits, works=works)
    return figures.stats(history=history, life=life)


def test_recent_figures_are_those_of_the_life_before_there_is_a_history() -> None:
    assert recent(figures.stats(history=())) == Recent(10.0, 0.25, 0.0, 2)


@given(all_stats)
def test_recent_figures_are_shares_and_rates_whatever_was_measured(stats: Stats) -> None:
    now = recent(stats)
    assert 0 <= now.waiting <= 1 and now.busy >= 0


@pytest.mark.parametrize(
    ("arguments", "short"),
    [
        (["/usr/bin/python3", "/home/me/train.py", "--lr", "0.1"], "train.py --lr 0.1"),
        (["python", "-u", "-W", "error", "train.py"], "train.py"),
        (["python3.11", "-m", "project.train", "x"], "project.train x"),
        (["python", "-c", "import this"], "python -c"),
        (["python"], "python"),
        (["/opt/bin/torchrun", "train.py"], "torchrun train.py"),
        ([], ""),
    ],
)
def test_a_command_line_in_short(arguments: list[str], short: str) -> None:
    assert top.program(arguments) == short


def loader(stats: Stats | None = None, at: float = 1000.0, program: str = "train.py") -> top.Loader:
    return top.Loader(4242, program, Published(4242, at, stats or figures.stats()))


def shown(thing: Any, width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(thing)
    return out.getvalue()


def test_a_row_has_the_figures_of_a_loader() -> None:
    text = shown(top.view([loader()], None, now=1000.5))
    header, row, _, *verdict = (" ".join(line.split()) for line in text.splitlines())
    assert header == "pid program dataset epoch step batches/s waiting workers memory"
    assert row == "4242 train.py Photos 3 100 10 25 % 2 5.24 MB"
    assert " ".join(verdict) == f"4242 Photos {figures.stats().verdict}"


def test_a_loader_that_publishes_nothing_is_shown_as_paused() -> None:
    text = shown(top.view([loader()], None, now=1065.0))
    assert "No batch for 65 s." in text and "25 %" not in text and figures.stats().verdict[:20] not in text
    assert "No batch for 65 s." in shown(top.view([loader()], 4242, now=1065.0))


def test_text_of_the_program_is_no_markup() -> None:
    named = loader(figures.stats(name="[red]Photos[/]", settings={"backend": "[/]"}), program="[b]train.py")
    for pid in (None, 4242):
        text = shown(top.view([named], pid, now=1000.0))
        assert "[red]Photos[/]" in text and "[b]train.py" in text


def test_the_details_have_a_row_for_each_worker() -> None:
    text = shown(top.view([loader()], 4242, now=1000.5))
    assert "Photos, train.py (pid 4242)" in text and "batch_size=64" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "pid 7000 50 75 % 60 % 10 % 5 % 5 % 20 % 50 %" in rows
    assert figures.stats().verdict in " ".join(text.split())
    assert "10 batches/s now, 10 in this epoch; 640 samples/s, 10.5 MB/s" in text


PUBLISHING = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import figures
from penstock._measure import page
from penstock.stats._published import to_text
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
class Publisher: pass
"""


@pytest.fixture
def begin(top_forge: socket.socket, tmp_path: Path) -> Iterator[Begin]:
    with programs(top_forge, tmp_path, PUBLISHING.format(tests=str(Path(__file__).parents[1]))) as begins:
        yield begins


@pytest.fixture(scope="module")
def top_forge() -> Iterator[socket.socket]:
    with forge("import penstock.stats._published, penstock._measure.page") as control:
        yield control


TWO_LOADERS = """
first, second = Publisher(), Publisher()
page.publish(first, to_text(figures.stats(name="Photos")))
page.publish(second, to_text(figures.stats(name="Captions")))
print("published", flush=True)
signal.pause()
"""


def test_two_loaders_of_a_process_are_two_rows_until_it_is_killed(begin: Begin) -> None:
    program = begin(TWO_LOADERS)
    program.line()
    assert [one.stats.name for one in top.loaders(program.pid)] == ["Photos", "Captions"]
    assert program.pid in [one.pid for one in top.loaders()]
    os.kill(program.pid, signal.SIGKILL)
    program.end()
    assert top.loaders(program.pid) == []


def test_a_page_that_a_child_has_inherited_is_shown_once_and_not_after_its_publisher(begin: Begin) -> None:
    """A fork that Python does not know of, as in a library."""
    program = begin("""
        import ctypes
        loader = Publisher()
        page.publish(loader, to_text(figures.stats()))
        pid = ctypes.PyDLL(None).fork()
        if pid == 0:
            signal.pause()
        print(pid, flush=True)
        signal.pause()
    """)
    child = int(program.line())
    assert {found.pid for found in page.find(os.geteuid())} >= {child, program.pid}
    assert [one.pid for one in top.loaders() if one.pid in (child, program.pid)] == [program.pid]
    os.kill(program.pid, signal.SIGKILL)
    program.control.recv(100)
    program.returncode = -9
    assert [one.pid for one in top.loaders() if one.pid in (child, program.pid)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_root_does_not_list_the_loaders_of_others(begin: Begin) -> None:
    program = begin("os.setresuid(65534, 65534, 65534)\n" + TWO_LOADERS)
    program.line()
    assert top.loaders(program.pid) == []
    assert len(top.loaders(program.pid, uid=65534)) in (0, 2)  # 0 where even root may not look


@pytest.mark.parametrize("end", ["loader.close()", "del loader"])
@pytest.mark.parametrize(
    ("made", "backend"),
    [
        ("DataLoader(np.arange(1000), batch_size=4)", "inline"),
        ("DataLoader(np.arange(1000), batch_size=4, num_workers=2)", "process"),
        ("DataLoader(np.arange(1000), batch_size=4, num_workers=2, backend='thread')", "thread"),
        ("prefetch([np.arange(4)] * 100)", "prefetch"),
    ],
)
def test_a_loader_is_listed_while_it_runs_and_no_longer(begin: Begin, made: str, backend: str, end: str) -> None:
    program = begin(f"""
        import numpy as np, penstock
        for _ in penstock.DataLoader(np.arange(8), 4):  # short: it never has a page
            pass
        loader = penstock.{made}
        assert not page._pages
        while not page._pages:
            for batch in loader:
                pass
        print("published", flush=True)
        signal.sigwait([signal.SIGUSR1])
        {end}
        print("gone", flush=True)
        signal.sigwait([signal.SIGUSR1])
    """)
    assert program.line() == "published"
    (found,) = top.loaders(program.pid)
    assert found.stats.name == {"prefetch": "prefetch(list)"}.get(backend, "DataLoader(ndarray)")
    assert found.stats.settings["backend"] == backend
    assert found.stats.life.batches > 0 and found.published.pid == program.pid
    pids = {one.pid for one in page.find(os.geteuid())}
    assert not pids & {pid for pid in session(program.pid) if pid != program.pid}  # workers have no page
    os.kill(program.pid, signal.SIGUSR1)
    assert program.line() == "gone"
    assert top.loaders(program.pid) == []
    os.kill(program.pid, signal.SIGUSR1)
    assert program.end()[0] == 0


def test_without_a_terminal_the_command_prints_once(begin: Begin) -> None:
    program = begin(TWO_LOADERS)
    program.line()
    ran = subprocess.run(COMMAND, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stderr == ""
    rows = [line.split() for line in ran.stdout.splitlines()]
    # The program is forked from a forge, and so has its command line: python -c.
    assert [row[:4] for row in rows if row[:2] == [str(program.pid), "python"]] == [
        [str(program.pid), "python", "-c", name] for name in ("Photos", "Captions")
    ]
    detailed = subprocess.run([*COMMAND, str(program.pid)], capture_output=True, text=True)
    assert detailed.returncode == 0 and "pid 7001" in detailed.stdout


def test_a_process_without_a_loader_is_an_error() -> None:
    ran = subprocess.run([*COMMAND, str(os.getpid())], capture_output=True, text=True)
    assert ran.returncode == 1
    assert f"Process {os.getpid()} has no penstock loader" in ran.stdout


def test_in_a_terminal_it_is_live_until_ctrl_c(begin: Begin) -> None:
    program = begin("""
        loader = Publisher()
        for name in ("Before", "After"):
            page.publish(loader, to_text(figures.stats(name=name)))
            print("published", flush=True)
            signal.sigwait([signal.SIGUSR1])
    """)
    program.line()
    terminal, its = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "20"}
    with subprocess.Popen([*COMMAND], stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        seen = ""
        while "Before" not in seen:
            seen += os.read(terminal, 10_000).decode()
        os.kill(program.pid, signal.SIGUSR1)
        program.line()
        while "After" not in seen:
            seen += os.read(terminal, 10_000).decode()
        process.send_signal(signal.SIGINT)
        rest = b""
        while b"\x1b[?1049l" not in rest:  # the alternate screen is left
            rest += os.read(terminal, 10_000)
        assert process.wait(20) == 0
    os.close(terminal)
