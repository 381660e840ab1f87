"""What a loader writes to its trace, with every backend."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import Read, overlapping, read

import penstock

BACKENDS = [(None, 0), ("thread", 2), ("process", 2)]


class Rows:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> Any:
        return np.full(1000, key)


class Named(Rows):
    def __getitem__(self, key: Any) -> Any:
        return np.zeros(3)


def loader(backend: str | None, workers: int, **options: Any) -> penstock.DataLoader[Any]:
    return penstock.DataLoader(Rows(), batch_size=4, num_workers=workers, backend=backend, **options)


def steps_of(found: Read, name: str) -> list[int]:
    """The steps of the first epoch in which a worker did this, each step of a bundle by itself."""
    rows = [spans for row, spans in found.rows.items() if row != "caller"]
    spans = [span for spans in rows for span in spans if span.name == name and span.args["epoch"] == 0]
    return sorted(span.args["step"] + i for span in spans for i in range(span.args.get("steps", 1)))


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_every_step_is_in_the_trace_with_its_keys(backend: str | None, workers: int, tmp_path: Path) -> None:
    with loader(backend, workers) as batches, batches.trace(tmp_path / "trace.json"):
        for _ in batches:
            pass
    found = read(tmp_path / "trace.json")
    assert steps_of(found, "fetch") == list(range(10))
    assert steps_of(found, "collate") == list(range(10))
    fetches = [span.args for spans in found.rows.values() for span in spans if span.name == "fetch"]
    assert any(args["keys"].startswith("[0, 1, 2, 3") for args in fetches if args["step"] == 0)
    assert {span.name for span in found.rows["caller"]} == {"wait", "deliver", "work"}
    delivered = [span for span in found.rows["caller"] if span.name == "deliver"]
    assert sum(span.args.get("steps", 1) for span in delivered) == 10
    assert not any(any(overlapping(spans)) for spans in found.rows.values())


def test_the_rows_are_the_caller_and_the_workers(tmp_path: Path) -> None:
    with loader("process", 2) as batches, batches.trace(tmp_path / "trace.json"):
        for _ in range(5):
            for _ in batches:
                pass
    rows = read(tmp_path / "trace.json").rows.keys()
    assert "caller" in rows and rows <= {"caller", "worker 0", "worker 1"}


@pytest.mark.parametrize("persistent", [True, False])
def test_a_trace_covers_several_epochs(persistent: bool, tmp_path: Path) -> None:
    with loader("process", 1, persistent_workers=persistent) as batches, batches.trace(tmp_path / "trace.json"):
        for _ in range(3):
            for _ in batches:
                pass
    found = read(tmp_path / "trace.json")
    epochs = [span.args["epoch"] for span in found.rows["caller"] if span.name == "deliver"]
    assert sorted(set(epochs)) == [0, 1, 2]


def test_a_trace_may_begin_and_end_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    with loader("process", 1, prefetch_factor=1, timeout=60) as batches:
        epoch = iter(batches)
        for _ in range(3):
            next(epoch)
        with batches.trace(tmp_path / "first.json"):
            for _ in range(3):
                next(epoch)
        next(epoch)
        with batches.trace(tmp_path / "second.json"):
            assert len(list(epoch)) == 3
    first, second = (read(tmp_path / f"{name}.json") for name in ("first", "second"))
    assert [s.args["step"] for s in first.rows["caller"] if s.name == "deliver"] == [3, 4, 5]
    assert [s.args["step"] for s in second.rows["caller"] if s.name == "deliver"] == [7, 8, 9]
    assert not set(steps_of(first, "fetch")) & set(steps_of(second, "fetch"))


def test_closing_the_loader_ends_the_trace(tmp_path: Path) -> None:
    batches = loader("process", 1)
    trace = batches.trace(tmp_path / "trace.json")
    for _ in batches:
        pass
    batches.close()
    assert trace.closed
    assert steps_of(read(tmp_path / "trace.json"), "fetch") == list(range(10))


def test_one_trace_at_a_time(tmp_path: Path) -> None:
    with loader(None, 0) as batches:
        with (
            batches.trace(tmp_path / "one.json"),
            pytest.raises(RuntimeError, match=r"already writes .*one\.json"),
        ):
            batches.trace(tmp_path / "two.json")
        batches.trace(tmp_path / "two.json")


def test_a_lost_worker_and_its_replacement_are_in_the_trace(tmp_path: Path) -> None:
    with loader("process", 1, timeout=60) as batches, batches.trace(tmp_path / "trace.json"):
        epoch = iter(batches)
        next(epoch)
        (pid,) = [worker.pid for worker in batches._session.engines.all()[0].backend.workers]  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)
        assert len(list(epoch)) == 9
    instants = dict(read(tmp_path / "trace.json").instants)
    assert instants["lost"]["worker"] == f"worker 0 (pid {pid})"
    assert "SIGKILL" in instants["lost"]["how"]
    assert instants["replaced"] == {"worker": "worker 0", "instead_of": f"worker 0 (pid {pid})"}


def test_a_resize_is_in_the_trace(tmp_path: Path) -> None:
    with loader("process", 1, timeout=60) as batches, batches.trace(tmp_path / "trace.json"):
        epoch = iter(batches)
        next(epoch)
        batches.num_workers = 2
        list(epoch)
    instants = read(tmp_path / "trace.json").instants
    assert ("resized", {"workers": 2}) in instants and ("started", {"worker": "worker 1"}) in instants


def test_a_hostile_key_is_text(tmp_path: Path) -> None:
    hostile = '"}],\n\x00</script>\ud800'
    sampler = [[hostile, "é"]]
    with (
        penstock.DataLoader(Named(), batch_sampler=sampler, num_workers=1) as batches,
        batches.trace(tmp_path / "trace.json"),
    ):
        list(batches)
    (fetch,) = [span for span in read(tmp_path / "trace.json").rows["worker 0"] if span.name == "fetch"]
    assert fetch.args["keys"] == repr([hostile, "é"])


def test_prefetch_has_a_trace_too(tmp_path: Path) -> None:
    with penstock.prefetch([np.zeros(5) for _ in range(8)]) as batches:
        batches.trace(tmp_path / "trace.json")
        assert len(list(batches)) == 8
    found = read(tmp_path / "trace.json")
    assert found.rows.keys() == {"caller", "the reading thread"}
    steps = [span.args["step"] for span in found.rows["the reading thread"] if span.name == "fetch"]
    assert steps[:8] == list(range(8))  # it may read ahead
    assert sum(span.name == "deliver" for span in found.rows["caller"]) == 8


def test_a_trace_keeps_no_loader_alive(tmp_path: Path) -> None:
    batches = loader("process", 1)
    trace = batches.trace(tmp_path / "trace.json")
    epoch = iter(batches)
    next(epoch)
    gone = weakref.ref(batches)
    del batches, epoch
    gc.collect()
    assert gone() is None
    trace.close()
    read(tmp_path / "trace.json")
