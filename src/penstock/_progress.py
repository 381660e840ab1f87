"""`penstock.progress`, a progress bar for a loop over a loader or any other iterable."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from penstock._at_work import is_worker_process
from penstock._printable import printable
from penstock._system.exit import ends_at_exit
from penstock._system.interrupts import finalizer, interrupts_deferred
from penstock._system.platform import register_at_fork

T = TypeVar("T")

# A bar is drawn by the thread that reads the loader, between two batches, because a loader cannot fork its workers in
# a process with a second thread. Drawing takes a millisecond or two, and the pause until the next drawing is 200
# times as long, so drawing takes half a percent of the time.
_SOONEST, _LATEST, _REST = 0.1, 1.0, 200
_WIDTH = 24  # characters in a bar, if there is room
_RECENT_SECONDS = 10.0  # the time window over which the rate is measured


def progress(iterable: Iterable[T], description: str = "", *, total: int | None = None) -> Iterator[T]:
    """Iterates over `iterable` and shows a progress bar in the terminal.

    For a loader, the bar shows the batches per second, the share of the time that the loop waits for batches, the
    number of busy workers, and the time left. Any other iterable works too; pass its length as `total` if `len()`
    does not work for it. `description` is shown before the bar. Bars of nested loops are shown together, and only the
    outermost bar stays on the screen at the end. Text that the loop prints appears above the bars.

    Without a terminal or a notebook, nothing is shown, and `iter(iterable)` itself is returned. A bar is drawn at
    most a few times per second, and costs a fraction of a microsecond per batch.

        >>> import penstock
        >>> loader = penstock.DataLoader(range(6), batch_size=4)
        >>> [batch.tolist() for batch in penstock.progress(loader, "epoch 1")]
        [[0, 1, 2, 3], [4, 5]]
    """
    iterator = iter(iterable)
    display = _where()
    if display is None:
        return iterator
    length = _length(iterator, iterable) if total is None else total
    before = getattr(iterator, "steps_before", 0)  # a resumed epoch's length includes them
    return _with_bar(iterator, Bar(description, length, getattr(iterable, "stats", None), before), display)


def _length(*candidates: Any) -> int | None:
    """Returns the length of the first candidate that has a length, or None if there is no such candidate."""
    for candidate in candidates:
        try:
            return len(candidate)
        except Exception:
            continue
    return None


def _with_bar(iterator: Iterator[T], bar: Bar, display: type[Display]) -> Generator[T, None, None]:
    clock, showing = time.perf_counter, Showing(bar)
    try:
        due = _screen.add(bar, display)
        for item in iterator:
            yield item
            bar.count += 1
            if clock() >= due:
                due = _screen.draw()
    except GeneratorExit:
        raise  # a generator that is dropped cannot raise anything: see `Showing`
    except BaseException:  # its traceback keeps this frame, and so `showing`, alive
        showing.close()
        raise
    showing.close()


class Showing:
    """Keeps a bar on the screen until `close()` is called or this object is deallocated."""

    _bar: Bar | None = None  # until __init__ has set it

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        bar.showing = weakref.ref(self)
        ends_at_exit(self)

    def close(self) -> None:
        with interrupts_deferred():
            _screen.remove(self._bar)

    at_exit = close
    __del__ = finalizer(close)


class Bar:
    def __init__(self, description: str, total: int | None, stats: Any, before: int = 0) -> None:
        self.description, self.total = description, total
        self.count = self._before = before
        self.showing: Callable[[], Showing | None]
        self.begun = self.now = time.perf_counter()
        self._stats = stats if callable(stats) else None
        self._noted: deque[tuple[float, int]] = deque([(self.begun, before)])

    def note(self, now: float) -> None:
        self.now = now
        self._noted.append((now, self.count))
        while len(self._noted) > 2 and self._noted[1][0] < now - _RECENT_SECONDS:
            self._noted.popleft()

    @property
    def rate(self) -> float:
        """Items per second: over the last few seconds or, after the loop has ended, over the whole loop."""
        done = self.total is not None and self.count >= self.total
        then, count = (self.begun, self._before) if done else self._noted[0]
        return (self.count - count) / (self.now - then) if self.now > then else 0.0

    @property
    def left(self) -> float | None:
        """The estimated number of seconds until the end, or None if it is unknown."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.count) / self.rate

    def words(self) -> list[str]:
        from penstock.stats._units import count

        whole = "" if self.total is None else f"/{self.total:,}"
        words = [f"{self.count:,}{whole}"]
        figures = self._figures()
        if self.rate:
            words.append(f"{count(self.rate)} {'batches' if figures else 'items'}/s")
        words += figures
        left = self.left
        words.append(clock_time(self.now - self.begun) if not left else f"{clock_time(left)} left")
        return words

    def _figures(self) -> list[str]:
        from penstock.stats import Stats
        from penstock.stats._recent import recent
        from penstock.stats._units import share

        stats = self._stats and self._stats()
        if not isinstance(stats, Stats):
            return []
        now = recent(stats)
        figures = [f"waiting {share(now.waiting)}"]
        return [*figures, f"{now.busy:.0f} of {now.workers} busy"] if now.workers else figures


def clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class Display(Protocol):
    def __init__(self) -> None: ...
    def draw(self, bars: list[Bar]) -> None: ...
    def close(self) -> None: ...


class Screen:
    """The bars that are currently shown, outermost first. Nested loops or several threads can show more than one."""

    def __init__(self) -> None:
        self.display: Display | None = None
        self._bars: list[Bar] = []
        self._lock = threading.RLock()  # reentrant: the garbage collector may end a loop while a bar is drawn

    def add(self, bar: Bar, display: type[Display]) -> float:
        with self._lock, interrupts_deferred():
            # A bar is also removed here because a finalizer does not run if an interrupt comes at its entry.
            self._bars = [*(one for one in self._bars if one.showing()), bar]
            if self.display is None:
                self.display = display()
            return self.draw()

    def remove(self, bar: Bar | None) -> None:
        with self._lock:
            if bar in self._bars:  # not in a child that was forked in the loop
                if len(self._bars) == 1:
                    self.draw()
                self._bars.remove(bar)
                if not self._bars:
                    self._close()

    def draw(self) -> float:
        """Draws all bars. Returns the time at which to draw them again."""
        begun, busy = time.perf_counter(), time.thread_time()
        with self._lock, interrupts_deferred():  # an interrupt could stop rich in the middle of a line
            try:
                for bar in self._bars:
                    bar.note(begun)
                if self.display is not None:
                    self.display.draw(list(self._bars))
            except (OSError, ValueError):  # the terminal is gone, but the loop must go on
                self._close()
        took = time.thread_time() - busy
        return time.perf_counter() + min(_LATEST, max(_SOONEST, _REST * took))

    def _close(self) -> None:
        display, self.display = self.display, None
        if display is not None:
            with suppress(OSError, ValueError):
                display.close()


class _Terminal:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.streams = sys.stdout, sys.stderr
        # Output that is redirected to a file must not go to the terminal instead.
        redirected = sys.stdout is not None and sys.stdout.isatty()
        console = Console(stderr=True, highlight=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=redirected)
        self._live.start()

    def draw(self, bars: list[Bar]) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        names = [Text(printable(bar.description), no_wrap=True) for bar in bars]
        texts = [Text(printable("  ".join(bar.words())), no_wrap=True, overflow="ellipsis") for bar in bars]
        taken = max(name.cell_len for name in names) + max(text.cell_len for text in texts) + 6
        width = min(_WIDTH, max(4, self._live.console.width - taken))
        for bar, name, text in zip(bars, names, texts, strict=True):
            drawn = Text() if bar.total is None else ProgressBar(bar.total or 1, bar.count, width=width)
            grid.add_row(*([name] if any(names) else []), drawn, text)
        self._live.update(grid, refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Notebook:
    def __init__(self) -> None:
        display = importlib.import_module("IPython.display").display
        self._handle: Any = display(_text(""), raw=True, display_id=True)

    def draw(self, bars: list[Bar]) -> None:
        lines = []
        for bar in bars:
            full = 0 if not bar.total else round(_WIDTH * min(1.0, bar.count / bar.total))
            drawn = [] if bar.total is None else ["█" * full + "░" * (_WIDTH - full)]
            lines.append("  ".join([*filter(None, [bar.description]), *drawn, *bar.words()]))
        self._handle.update(_text("\n".join(lines)), raw=True)

    def close(self) -> None: ...


def _text(text: str) -> dict[str, str]:
    return {"text/plain": text}


_screen = Screen()


def _after_fork_in_child() -> None:
    """Drops the parent's bars in a forked child, and restores the standard streams that rich replaced."""
    global _screen
    if isinstance(_screen.display, _Terminal):
        sys.stdout, sys.stderr = _screen.display.streams
    _screen = Screen()


register_at_fork(after_in_child=_after_fork_in_child)


def _where() -> type[Display] | None:
    """Returns the class that draws bars in this process. Returns None if bars cannot or must not be drawn.

    No bars are drawn in a worker, or if there is neither a terminal nor a notebook.
    """
    if is_worker_process():
        return None
    return _Notebook if _in_notebook() else _Terminal if _is_terminal() else None


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # standard error is missing, or closed
        return False
