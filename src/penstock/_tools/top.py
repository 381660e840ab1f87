"""The command `penstock top`, which shows the user's running loaders (published by `_measure/page.py`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock._measure import page
from penstock._options import Show, shown_names
from penstock._printable import printable
from penstock._system.platform import HAS_PROCESSES, SYSTEM
from penstock.stats._figures import Period, Stats, WorkerFigures
from penstock.stats._published import Published, from_text
from penstock.stats._recent import recent
from penstock.stats._shown import ALWAYS
from penstock.stats._units import count, seconds, share, size

EVERY = 1.0  # seconds between two updates of the display

QUIET = 5.0
"""A loader counts as paused after this many seconds without new figures. Loaders publish every two seconds."""

SETTINGS = [*ALWAYS, *(name for name in shown_names(Show.LINE) if name not in ALWAYS)]
"""The names of the loader settings to show, in this order."""

NONE = (
    "No penstock loader of this user runs now. A loader is listed half a second after its first batch, "
    "until it is closed."
)


@dataclass(frozen=True, slots=True)
class Loader:
    """A running loader: its latest published statistics, and the shortened command line of its process."""

    pid: int
    program: str
    published: Published

    @property
    def stats(self) -> Stats:
        return self.published.stats

    def paused(self, now: float) -> float:
        """Returns how many seconds ago the loader last published statistics, or 0 if the loader is not paused."""
        quiet = now - self.published.at
        return quiet if quiet > QUIET else 0.0


def run(pid: int | None, once: bool) -> int:
    if not HAS_PROCESSES:
        print(f"penstock top: this is {SYSTEM}, but running loaders can be found only on Linux.", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    if once or not console.is_terminal or console.is_dumb_terminal:
        if not console.is_terminal:
            console.width = 200  # nothing is cut off in a file or a pipe
        found = loaders(pid)
        console.print(view(found, pid, time.time()))
        return 1 if pid is not None and not found else 0
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(view(loaders(pid), pid, time.time()), refresh=True)
                time.sleep(EVERY)
    except KeyboardInterrupt:
        return 0


def loaders(pid: int | None = None, uid: int | None = None) -> list[Loader]:
    """Returns a user's running loaders, or only those of the process `pid`, sorted by process id."""
    found = {}
    for one in page.find(os.geteuid() if uid is None else uid):
        try:
            published = from_text(one.text)
            loader = Loader(one.pid, program(_arguments(one.pid)), published)
            details(loader, 0.0)
        except Exception:  # of another version, or not a page: one process cannot break the list
            continue
        # A forked child inherits the page of its parent's loader, which is listed for the parent only.
        if pid in (None, one.pid) and published.pid == _pid_inside(one.pid):
            found[one.inode] = loader
    return [loader for _, loader in sorted(found.items(), key=lambda item: (item[1].pid, item[0]))]


def _pid_inside(pid: int) -> int:
    """Returns the id of a process inside its own container, or -1 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return -1
    numbers = [line for line in status.splitlines() if line.startswith("NSpid:")]
    return int(numbers[0].split()[-1]) if numbers else pid


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def program(arguments: Sequence[str]) -> str:
    """Returns the command line without the interpreter, its options, and the script's folder."""
    rest = list(arguments)
    if rest and Path(rest[0]).name.startswith("python"):
        del rest[0]
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if option == "-m":
                return " ".join(rest)
            if option == "-c":
                return "python -c"
            if option in ("-W", "-X"):
                del rest[:1]
        if not rest:
            return "python"
    return " ".join([*(Path(word).name for word in rest[:1]), *rest[1:]])


# The display. All text from other programs passes through `_text`: otherwise rich would interpret markup in it, and
# the terminal would interpret escape sequences.


def _text(value: object, style: str = "") -> Text:
    return Text(printable(str(value)), style=style)


def view(found: Sequence[Loader], pid: int | None, now: float) -> RenderableType:
    if not found:
        return Text(NONE if pid is None else f"Process {pid} has no penstock loader that can be read. {NONE}")
    if pid is None:
        return listing(found, now)
    return Group(*(part for loader in found for part in (*details(loader, now), Text())))


def listing(found: Iterable[Loader], now: float) -> RenderableType:
    table, verdicts = Table(box=None, pad_edge=False, header_style="bold"), Table.grid(padding=(0, 2, 0, 0))
    for name in ("pid", "program", "dataset"):
        table.add_column(name, no_wrap=True, max_width=32, justify="right" if name == "pid" else "left")
    for name in ("epoch", "step", "batches/s", "waiting", "workers", "memory"):
        table.add_column(name, no_wrap=True, justify="right")
    for loader in found:
        stats = loader.stats
        now_, paused = recent(stats), loader.paused(now)
        table.add_row(
            str(loader.pid),
            _text(loader.program),
            _text(stats.name),
            _text(stats.epoch_number),
            f"{stats.epoch.batches:,}",
            "-" if paused or stats.outage else count(now_.rate),
            Text("-") if paused or stats.outage else waiting(now_.waiting),
            f"{now_.workers}",
            size(stats.memory.lent + stats.memory.pooled + stats.memory.strays),
        )
        verdict = f"No batch for {seconds(paused)}." if paused and not stats.outage else stats.verdict
        if verdict:
            verdicts.add_row(str(loader.pid), _text(stats.name), _text(verdict))
    return Group(table, Text(), verdicts) if verdicts.row_count else table


def details(loader: Loader, now: float) -> list[RenderableType]:
    stats, paused = loader.stats, loader.paused(now)
    now_, epoch, memory = recent(stats), stats.epoch, stats.memory
    settings = ", ".join(f"{name}={stats.settings[name]!r}" for name in SETTINGS if name in stats.settings)
    parts: list[RenderableType] = [
        _text(f"{stats.name}, {loader.program} (pid {loader.pid})", style="bold"),
        _text(settings, style="dim"),
        Text(),
    ]
    rows = [
        ("epoch", f"{stats.epoch_number}, {epoch.batches:,} batches in {seconds(epoch.seconds)}"),
        ("rate", f"{count(now_.rate)} batches/s now, {count(epoch.rate)} in this epoch; {_volume(epoch)}"),
        ("waiting", f"{share(now_.waiting)} of the time now, {share(epoch.waiting)} in this epoch; {_waits(epoch)}"),
        ("workers", f"{now_.workers}, of which {now_.busy:.1f} are busy; {_troubles(epoch)}"),
        ("memory", f"{size(memory.lent)} lent, {size(memory.pooled)} pooled, {size(memory.strays)} strays"),
    ]
    if paused:
        rows[1:3] = [("rate", f"No batch for {seconds(paused)}.")]
    if verdict := stats.verdict:
        rows.append(("verdict", verdict))
    if stats.decisions:
        last = stats.decisions[-1]
        rows.append(("tuning", f"{last.workers} workers since {seconds(last.at)}: {last.reason}"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    for name, text in rows:
        grid.add_row(name, _text(text))
    parts.append(grid)
    if epoch.workers:
        parts += [Text(), workers(epoch.workers)]
    return parts


def workers(figures: Iterable[WorkerFigures]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker")
    for name in ("steps", "busy", "fetch", "collate", "write", "waits: task", "room", "CPU"):
        table.add_column(name, justify="right")
    for one in figures:
        whole = one.busy + one.waited_task + one.waited_room
        parts = (one.busy, one.fetch, one.collate, one.write, one.waited_task, one.waited_room, one.cpu)
        shares = [share(part / whole) if whole else "-" for part in parts]
        table.add_row(_text(one.name, style="" if one.alive else "dim"), f"{one.steps:,}", *shares)
    return table


def _waits(period: Period) -> str:
    waits = period.waits
    return f"median {seconds(waits.median)}, p95 {seconds(waits.p95)}, longest {seconds(waits.longest)}"


def _volume(period: Period) -> str:
    time = period.seconds or 1.0
    return f"{count(period.samples / time)} samples/s, {size(period.nbytes / time)}/s"


def _troubles(period: Period) -> str:
    return f"{period.replaced} replaced, {period.repeated} steps repeated, {period.skipped} samples skipped"


def waiting(value: float) -> Text:
    return Text(share(value), style="green" if value < 0.05 else "yellow" if value < 0.3 else "red")
