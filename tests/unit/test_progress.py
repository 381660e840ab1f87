"""`penstock.progress`: what is seen in a terminal and in a notebook, and that the loop does not notice."""

from __future__ import annotations

import fcntl
import functools
import gc
import io
import os
import pty
import re
import signal
import socket
import struct
import sys
import termios
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import figures
import numpy as np
import pytest
from interrupting import in_modules, interrupt, sweep
from programs import Begin, forge, programs

import penstock
from penstock import _progress as module

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The stream of a test `in_a_terminal`; each drawing is due at once."""
    for name, value in {"TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "_LATEST", 0.0)
    return Terminal()


def in_a_terminal(test: Callable[..., None]) -> Callable[..., None]:
    """Puts the terminal in the place of stdout and stderr. Not the fixture: pytest sets them again for each phase."""

    @functools.wraps(test)
    def run(terminal: Terminal, **given: Any) -> None:
        before, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), terminal, terminal
        try:
            test(terminal=terminal, **given)
            assert (sys.stdout, sys.stderr) == (terminal, terminal)
        finally:
            sys.stdout, sys.stderr = before
        assert not module._screen._bars and module._screen.display is None

    return run


def lines(stream: io.StringIO) -> list[str]:
    """What was written, without control sequences."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*\w", "", stream.getvalue()))]


def test_without_a_terminal_it_is_the_iterator_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    items = iter([1, 2])
    assert penstock.progress(items) is items
    monkeypatch.setattr(sys, "stderr", None)
    assert penstock.progress(items) is items


@in_a_terminal
def test_a_dumb_terminal_is_none(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert list(penstock.progress([1, 2])) == [1, 2]
    assert terminal.getvalue() == ""


@in_a_terminal
def test_the_bar_counts_items_and_stays(terminal: Terminal) -> None:
    assert list(penstock.progress([3, 4, 5], "reading")) == [3, 4, 5]
    first, *_, last, rest = lines(terminal)
    assert first.startswith("reading") and "0/3" in first
    assert "3/3" in last and "items/s" in last and rest == ""
    assert terminal.getvalue().endswith(f"\n{SHOWN}")


@pytest.mark.parametrize(
    ("iterable", "total", "end"),
    [(range(1000), None, "1,000/1,000"), (iter([1, 2]), None, "2"), (iter([1, 2]), 5, "2/5"), ([], None, "0/0")],
)
@in_a_terminal
def test_the_length_is_known_given_or_missing(terminal: Terminal, iterable: Any, total: Any, end: str) -> None:
    count = sum(1 for _ in penstock.progress(iterable, total=total))
    words = lines(terminal)[-2].split()
    assert end in words and str(count) in end.replace(",", "")
    assert ("/" in end) == ("━" in lines(terminal)[-2])


@in_a_terminal
def test_a_length_that_raises_is_no_length(terminal: Terminal) -> None:
    class Sizeless:
        def __len__(self) -> int:
            raise KeyError("no length")

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    assert list(penstock.progress(Sizeless())) == [1, 2]


@in_a_terminal
def test_after_a_resume_the_bar_begins_where_the_epoch_does(terminal: Terminal) -> None:
    before = penstock.DataLoader(np.arange(20), 2, seed=0)
    batches = iter(before)
    for _ in range(4):
        next(batches)
    loader = penstock.DataLoader(np.arange(20), 2, seed=0)
    loader.load_state_dict(before.state_dict())
    assert len(list(penstock.progress(loader, "epoch 0"))) == 6
    first, *_, last, _ = lines(terminal)
    assert "4/10" in first and "10/10" in last


@in_a_terminal
def test_of_a_loader_it_shows_where_the_time_goes(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.DataLoader(np.arange(40), batch_size=4, num_workers=2) as loader:
        batches = [batch.tolist() for batch in penstock.progress(loader, "epoch 1")]
    assert len(batches) == 10
    last = lines(terminal)[-2]
    assert re.search(r"10/10  [\d.,]+ batches/s  waiting [\d.<]+ %  \d of 2 busy  0:0\d", last), last
    loader = penstock.DataLoader(np.arange(40), batch_size=4)
    assert len(list(penstock.progress(loader))) == 10
    assert re.search(r"10/10  [\d.,]+ batches/s  waiting [\d.<]+ %  0:0\d", lines(terminal)[-2])


def test_the_time_left_is_that_of_the_rate_of_late() -> None:
    bar = module.Bar("", 1000, None)
    start = bar.begun
    for second in range(1, 101):
        bar.count = second if second < 80 else 79 + 5 * (second - 79)
        bar.note(start + second)
    assert bar.rate == pytest.approx(5.0)
    assert bar.left == pytest.approx((1000 - bar.count) / 5.0)
    assert bar.words() == ["184/1,000", "5 items/s", "2:43 left"]
    bar.count = 1000
    bar.note(start + 200)
    assert bar.rate == pytest.approx(5.0) and bar.words()[-1] == "3:20"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.7, "1:00"), (3599.6, "1:00:00"), (9e3, "2:30:00"), (36_061, "10:01:01")]
)
def test_a_time_as_a_clock_shows_it(seconds: float, text: str) -> None:
    assert module.clock_time(seconds) == text


def test_figures_of_any_object_with_stats_are_shown() -> None:
    assert module.Bar("", None, lambda: figures.stats())._figures() == ["waiting 25 %", "1 of 2 busy"]
    assert module.Bar("", None, lambda: 44)._figures() == []
    assert module.Bar("", None, "no function")._figures() == []


@in_a_terminal
def test_nested_bars_are_shown_together_and_the_outermost_stays(terminal: Terminal) -> None:
    for _ in penstock.progress(range(2), "epochs"):
        for _ in penstock.progress(range(3), "batches"):
            pass
    shown = lines(terminal)
    at = next(number for number, line in enumerate(shown) if "batches" in line and "2/3" in line)
    assert "epochs" in shown[at - 1]
    assert any("epochs" in line and "1/2" in line for line in shown)
    assert "epochs" in shown[-2] and "2/2" in shown[-2] and "batches" not in shown[-2]
    assert terminal.getvalue().count(HIDDEN) == terminal.getvalue().count(SHOWN) == 1


@in_a_terminal
def test_what_the_loop_prints_is_above_the_bar(terminal: Terminal) -> None:
    for number in penstock.progress(range(3), "loop"):
        print("[red]line", number)
        assert sys.stdout is not terminal
    shown = lines(terminal)
    assert [line for line in shown if line.startswith("[red]line")] == [f"[red]line {n}" for n in range(3)]
    assert "3/3" in shown[-2]


@in_a_terminal
def test_output_to_a_file_stays_in_the_file(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", file)
        for number in penstock.progress(range(2)):
            print("line", number)
    assert file.getvalue() == "line 0\nline 1\n" and "line" not in terminal.getvalue()


@in_a_terminal
def test_text_of_the_program_is_no_markup(terminal: Terminal) -> None:
    list(penstock.progress([1], "[bold]mine[/]"))
    assert "[bold]mine[/]" in lines(terminal)[-2]


def _to_the_end() -> None:
    for _ in penstock.progress(range(2)):
        pass


def _left_early() -> None:
    for _ in penstock.progress(range(2)):
        break


@pytest.mark.parametrize("work", [_to_the_end, _left_early])
@in_a_terminal
def test_an_interrupt_at_any_point_of_the_drawing_leaves_the_terminal_as_it_was(
    terminal: Terminal, work: Callable[[], None]
) -> None:
    work()  # once before: rich remembers things
    for at in sweep(1 if "PENSTOCK_WIDE" in os.environ else 7):
        done = interrupt(work, at, in_modules("penstock/_progress.py"))
        if not done.where:
            break
        if done.ignored:  # at the very entry of a finalizer
            assert (done.came, len(done.ignored)) == (0, 1)
            done.ignored.clear()  # the traceback has the object that was finalized
            work()
        else:
            assert done.came == 1
        assert not module._screen._bars and module._screen.display is None, done.where
        assert (sys.stdout, sys.stderr) == (terminal, terminal), done.where
        assert terminal.getvalue().count(HIDDEN) == terminal.getvalue().count(SHOWN), done.where
    assert at > 50


class Boom(Exception):
    pass


def broken() -> None:
    for _ in penstock.progress(range(9)):
        break


def raising() -> None:
    with suppress(Boom):
        for _ in penstock.progress(range(9)):
            raise Boom


def raising_inside() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise Boom

    with pytest.raises(Boom):
        list(penstock.progress(items()))


def interrupted() -> None:
    with suppress(KeyboardInterrupt):
        for _ in penstock.progress(range(9)):
            signal.raise_signal(signal.SIGINT)


def dropped() -> None:
    shown = penstock.progress(range(9))
    next(shown)
    del shown


def never_begun() -> None:
    penstock.progress(range(9))


@pytest.mark.parametrize("leave", [broken, raising, raising_inside, interrupted, dropped, never_begun])
@in_a_terminal
def test_however_a_loop_ends_the_terminal_is_as_it_was(terminal: Terminal, leave: Callable[[], None]) -> None:
    leave()  # and see the fixture
    assert terminal.getvalue().count(HIDDEN) == terminal.getvalue().count(SHOWN)


@in_a_terminal
def test_a_loop_in_a_cycle_ends_with_the_collection(terminal: Terminal) -> None:
    cycle: list[Any] = [penstock.progress(range(9))]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert terminal.getvalue().endswith(SHOWN)


@in_a_terminal
def test_a_broken_loop_over_a_loader_abandons_the_epoch(terminal: Terminal) -> None:
    loader = penstock.DataLoader(np.arange(40), batch_size=4)
    for _ in penstock.progress(loader):
        break
    assert [batch.tolist() for batch in loader][:1] == [[0, 1, 2, 3]]


@in_a_terminal
def test_a_terminal_that_goes_away_does_not_end_the_loop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: str) -> int:
        raise OSError(5, "Input/output error")

    seen = []
    for item in penstock.progress(range(9)):
        seen.append(item)
        terminal.write = write  # type: ignore[method-assign]
    assert seen == list(range(9))


@in_a_terminal
def test_a_forked_child_prints_directly_and_draws_nothing(terminal: Terminal) -> None:
    """As a worker does that is started while a bar is shown."""
    shown = penstock.progress(range(9))
    next(shown)
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before = len(terminal.getvalue())
            direct = sys.stdout is terminal and sys.stderr is terminal
            for _ in shown:
                pass
            os.write(w, b"%d %d" % (direct, len(terminal.getvalue()) - before))
        finally:
            os._exit(0)
    os.close(w)
    os.waitpid(pid, 0)
    assert os.read(r, 100) == b"1 0"
    os.close(r)
    assert len(list(shown)) == 8


def test_in_a_notebook_it_replaces_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside ipykernel's interface, as far as it is used: `display` with an id, and the handle's `update`."""
    texts: list[str] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            texts.append(bundle["text/plain"])

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr(module, "_LATEST", 0.0)
    for _ in penstock.progress(range(2), "epochs"):
        for _ in penstock.progress(iter("abc")):
            pass
    assert texts[0].startswith("epochs  " + "░" * 24 + "  0/2")
    assert any("\n" in text and re.search(r"2  [\d.,]+ items/s", text) for text in texts)
    assert texts[-1].startswith("epochs  " + "█" * 24 + "  2/2") and "\n" not in texts[-1]


@in_a_terminal
def test_a_shell_without_a_kernel_is_no_notebook(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    list(penstock.progress([1]))
    assert "1/1" in terminal.getvalue()


@in_a_terminal
def test_a_batch_costs_less_than_half_a_microsecond(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the plain loop, in turn, by processor time; drawing takes a share of the time, not of the batches."""
    monkeypatch.setattr(module, "_LATEST", 1.0)
    items = list(range(100_000))

    def took(iterable: Any) -> float:
        begun = time.thread_time()
        for _ in iterable:
            pass
        return time.thread_time() - begun

    costs = [took(penstock.progress(items)) - took(items) for _ in range(9)]
    assert min(costs) / len(items) < 0.5e-6


@pytest.fixture(scope="module")
def progress_forge() -> Iterator[socket.socket]:
    with forge("import penstock, numpy, rich.live, rich.progress_bar, rich.table") as control:
        yield control


@pytest.fixture
def begin(progress_forge: socket.socket, tmp_path: Path) -> Iterator[Begin]:
    with programs(progress_forge, tmp_path) as begins:
        yield begins


def test_ctrl_c_in_a_real_terminal_leaves_it_as_it_was(begin: Begin) -> None:
    """With workers: the interrupt reaches them too, and all of it ends."""
    main, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    name = os.ttyname(its)
    program = begin(f"""
        import fcntl, os, signal, sys, termios, time
        terminal = os.open({name!r}, os.O_RDWR)
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        os.dup2(terminal, 2)
        os.environ["TERM"] = "xterm"
        import numpy as np, penstock
        loader = penstock.DataLoader(np.arange(10 ** 6), batch_size=4, num_workers=2)
        for batch in penstock.progress(loader, "epoch"):
            time.sleep(0.001)
    """)
    seen = ""
    while not re.search(r"epoch.*of 2 busy", seen):
        seen += os.read(main, 10_000).decode()
    os.write(main, b"\x03")
    while SHOWN not in seen:
        seen += os.read(main, 10_000).decode()
    returncode, _, _ = program.end()
    os.close(its)
    os.close(main)
    assert returncode in (-signal.SIGINT, 1)
