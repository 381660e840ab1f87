"""The format of a trace; how a loader writes one is in tests/conformance/test_traces.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import overlapping, read

from penstock._measure.gauges import TracedTask
from penstock.stats import _trace
from penstock.stats._trace import Trace

MS = 1_000_000


def task(seat: int, began: int, step: int, steps: int = 1) -> TracedTask:
    return TracedTask(seat, began, began + 5 * MS, began + 7 * MS, began + 8 * MS, step, 0, step, steps)


def fill(trace: Trace, tasks: int) -> None:
    for step in range(tasks):
        trace.task(task(0, time.perf_counter_ns(), step), "worker 0")


def test_a_trace_has_a_row_for_the_caller_and_for_each_worker(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Trace(path, 'a "name"') as trace:
        now = time.perf_counter_ns()
        trace.span("wait", now, now + 8 * MS, step=0, epoch=0)
        trace.task(task(0, now, 0), "worker 0", keys="[1, 2]")
        trace.task(task(1, now + MS, 1), "worker 1", keys="[3, 4]")
        trace.task(task(0, now + 9 * MS, 2, steps=4), "worker 0")
        trace.instant("lost", now + 9 * MS, who="worker 1")
    found = read(path)
    assert list(found.rows) == ["caller", "worker 0", "worker 1"]
    names = [span.name for span in found.rows["worker 0"]]
    assert names == ["fetch", "collate", "write", "wait", "fetch", "collate", "write"]
    first, *_, fetch, _, _ = found.rows["worker 0"]
    assert first.args == {"step": 0, "epoch": 0, "keys": "[1, 2]"}
    assert fetch.args == {"step": 2, "steps": 4, "epoch": 0}
    assert round(first.ended - first.began) == 5000
    assert found.instants == [("lost", {"who": "worker 1"})]
    assert not any(any(overlapping(spans)) for spans in found.rows.values())


def test_an_empty_trace_is_valid(tmp_path: Path) -> None:
    Trace(tmp_path / "trace.json").close()
    assert read(tmp_path / "trace.json") == ({}, [])


def test_what_began_before_the_trace_is_left_out(tmp_path: Path) -> None:
    before = time.perf_counter_ns()
    with Trace(tmp_path / "trace.json") as trace:
        trace.span("work", before, time.perf_counter_ns())
        trace.instant("lost", before)
    assert read(tmp_path / "trace.json") == ({}, [])


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text())
def test_any_text_can_be_a_key_or_a_name(tmp_path_factory: pytest.TempPathFactory, name: str, key: str) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with Trace(path, name) as trace:
        trace.task(task(0, time.perf_counter_ns(), 0), "worker 0", keys=key)
    span = read(path).rows["worker 0"][0]
    assert span.args.get("keys", "") == key.encode(errors="backslashreplace").decode()


def test_a_program_that_is_killed_leaves_whole_events(tmp_path: Path) -> None:
    code = """
import itertools, sys, time
from penstock._measure.gauges import TracedTask
from penstock.stats._trace import Trace

trace = Trace(sys.argv[1])
print("begun", flush=True)
for step in itertools.count():
    now = time.perf_counter_ns()
    record = TracedTask(step % 3, now, now + 10, now + 20, now + 30, step, 0, step, 1)
    trace.task(record, f"worker {step % 3}", keys="x" * (step % 100))
"""
    path = tmp_path / "trace.json"
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline() == b"begun\n"
        while path.stat().st_size < 300_000:
            assert program.poll() is None
            time.sleep(0.001)
        program.send_signal(signal.SIGKILL)
    found = read(path, complete=False)
    assert sum(map(len, found.rows.values())) > 1000
    # The system may have written some pages of a piece only.
    for page in range(1, 20):
        part = tmp_path / "part.json"
        part.write_bytes(path.read_bytes()[: 4096 * page])
        read(part, complete=False)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trace_that_was_not_closed_is_whole_after_a_normal_exit(tmp_path: Path, workers: int) -> None:
    code = f"""
import penstock, sys
loader = penstock.DataLoader(range(40), 8, num_workers={workers})
trace = loader.trace(sys.argv[1])
for batch in loader: pass
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "trace.json"], check=True)
    assert {span.args.get("step") for span in read(tmp_path / "trace.json").rows["caller"]} >= {0, 4}


def test_events_are_in_the_file_after_a_second(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with Trace(path) as trace:
        now = time.perf_counter_ns()
        trace.span("wait", now, now + 1_100_000_000)
        assert [span.name for span in read(path, complete=False).rows["caller"]] == ["wait"]


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        now = time.perf_counter_ns()
        tracemalloc.start()
        try:
            for step in range(3000):
                trace.task(task(step % 8, now + step * 9 * MS // 8, step), "worker 0", keys="[1, 2, 3]")
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (tmp_path / "trace.json").stat().st_size > 1_000_000
    assert most < 500_000


def test_a_trace_that_is_too_large_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_trace, "MOST_BYTES", 200_000)
    path = tmp_path / "trace.json"
    trace = Trace(path)
    with pytest.warns(RuntimeWarning, match="viewers can hardly open more: it ends here"):
        fill(trace, 5000)
    trace.close()
    read(path)
    assert 200_000 < path.stat().st_size < 300_000


def test_a_full_disk_ends_the_trace_and_not_the_program() -> None:
    trace = Trace("/dev/full")
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        fill(trace, 5000)
    trace.close()


def test_a_reader_that_takes_a_little_at_a_time_gets_everything(tmp_path: Path) -> None:
    """Writing to a pipe whose buffer is smaller than a piece."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    with Trace(path) as trace:
        fill(trace, 3000)
    reader.join()
    whole = tmp_path / "trace.json"
    whole.write_bytes(got[0])
    assert sum(span.name == "fetch" for span in read(whole).rows["worker 0"]) == 3000


def test_a_forked_child_does_not_end_the_trace_of_its_parent(tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        child = os.fork()
        if not child:
            trace.close()
            os._exit(0)
        os.waitpid(child, 0)
        now = time.perf_counter_ns()
        trace.span("wait", now, now + 1)
    assert len(read(tmp_path / "trace.json").rows["caller"]) == 1


def test_a_second_close_does_nothing(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json")
    trace.close()
    trace.close()
    trace.span("wait", time.perf_counter_ns(), time.perf_counter_ns())
    read(tmp_path / "trace.json")
