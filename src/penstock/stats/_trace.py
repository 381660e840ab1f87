"""Writes a trace of a loader, in the JSON format that Perfetto and chrome://tracing open.

The file is a JSON array with one event on each line. Events are collected in memory and written in groups. If the
program is killed, the last events are lost and the closing bracket is missing. Both viewers can open such a file.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from typing import Any

from penstock._measure.gauges import TracedTask
from penstock._printable import printable
from penstock._system import trust
from penstock._system.interrupts import interrupts_deferred

_CALLER, _FIRST_WORKER = 1, 2  # rows; for Perfetto, row 0 is the kernel's idle thread
# No event crosses a page boundary: if a program is killed while it writes, the kernel has written only whole pages.
_PAGE = 4096  # bytes
_PIECE = 1 << 16  # characters
_LATEST = 1_000_000_000  # ns: a killed program loses at most the events of the last second
# Viewers load the whole file into memory, and take minutes for a larger one.
MOST_BYTES = 1 << 30


class Trace:
    """Records events in the file `path`. All times are in nanoseconds of `time.perf_counter_ns`.

    Events from before the trace was opened are left out. If the disk is full or the file exceeds MOST_BYTES, the
    trace ends with a warning, and the program continues.
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "penstock") -> None:
        self.path = os.fspath(path)
        self._pid, self._lock = os.getpid(), threading.RLock()  # a signal handler may close the loader
        self._began = self._written_at = time.perf_counter_ns()
        self._piece: list[str] = []
        self._size, self._written = 0, 0
        self._ended: dict[int, int] = {}  # by the worker's row: when its last task was done
        self.closed = False
        with interrupts_deferred():
            self._fd = trust.open_named(self.path)
        named = f'"pid":{self._pid},"args":{{"name":{_text(name)}}}'
        self._put(f'[\n{{"name":"process_name","ph":"M",{named}}}', self._began)
        self._name_row(_CALLER, "caller")

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def span(self, name: str, began: int, ended: int, **details: Any) -> None:
        self._span(_CALLER, name, began, ended, _arguments(details))

    def task(self, record: TracedTask, worker: str, keys: str = "") -> None:
        """Records a worker's task, and the worker's wait before the task."""
        seat, began, fetched, made, ended, _, epoch, step, steps = record
        row = _FIRST_WORKER + seat
        if row not in self._ended:
            self._name_row(row, worker)
        elif began > self._ended[row]:
            self._span(row, "wait", self._ended[row], began, "")
        self._ended[row] = ended
        which = {"step": step, "epoch": epoch} if steps == 1 else {"step": step, "steps": steps, "epoch": epoch}
        short = _arguments(which)
        self._span(row, "fetch", began, fetched, _arguments({**which, "keys": keys}) if keys else short)
        self._span(row, "collate", fetched, made, short)
        self._span(row, "write", made, ended, short)

    def instant(self, name: str, at: int, **details: Any) -> None:
        stamp = (at - self._began) / 1000
        if stamp >= 0:
            place = f'"ts":{stamp:.3f},"pid":{self._pid},"tid":{_CALLER}'
            self._put(f',\n{{"name":"{name}","ph":"i","s":"p",{place}{_arguments(details)}}}', at)

    def close(self) -> None:
        if os.getpid() == self._pid:  # a forked child has a copy of the piece, and the same file
            with self._lock:
                self._end()

    def _span(self, row: int, name: str, began: int, ended: int, arguments: str) -> None:
        stamp, length = (began - self._began) / 1000, (ended - began) / 1000
        if stamp >= 0 and length >= 0:
            place = f'"ts":{stamp:.3f},"dur":{length:.3f},"pid":{self._pid},"tid":{row}'
            self._put(f',\n{{"name":"{name}","ph":"X",{place}{arguments}}}', ended)

    def _name_row(self, row: int, name: str) -> None:
        place = f'"ph":"M","pid":{self._pid},"tid":{row}'
        self._put(f',\n{{"name":"thread_name",{place},"args":{{"name":{_text(name)}}}}}', self._began)
        self._put(f',\n{{"name":"thread_sort_index",{place},"args":{{"sort_index":{row}}}}}', self._began)

    def _put(self, event: str, now: int) -> None:
        with self._lock:
            if self.closed:
                return
            room = _PAGE - (self._written + self._size) % _PAGE
            if len(event) > room:
                event = " " * room + event
            self._piece.append(event)
            self._size += len(event)
            if self._size > _PIECE or now - self._written_at > _LATEST:
                self._written_at = now
                self._write()
                if self._written > MOST_BYTES:
                    self._end()
                    self._warn(f"has {self._written / 1e9:.1f} GB, and viewers can hardly open more")

    def _end(self) -> None:
        if not self.closed:
            self._piece.append("\n]\n")
            self._write()
            self._stop()

    def _write(self) -> None:
        try:
            with interrupts_deferred():
                data = "".join(self._piece).encode()
                self._piece, self._size = [], 0
                self._written += len(data)
                while data and not self.closed:  # a pipe or a nearly full disk may accept only a part
                    data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._stop()
            self._warn(f"could not be written ({error})")

    def _stop(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._fd)

    def _warn(self, why: str) -> None:
        text = printable(f"The trace {self.path} {why}: it ends here. The loader goes on.")
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _arguments(details: dict[str, Any]) -> str:
    return f',"args":{json.dumps({key: _plain(value) for key, value in details.items()})}' if details else ""


def _plain(value: Any) -> Any:
    """Escapes lone surrogates, which a user's key may contain but JSON text may not."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _text(value: str) -> str:
    return json.dumps(_plain(value))
