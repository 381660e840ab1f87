"""Computes a loader's `Stats` from its `Measures`. This module is imported late, because the import takes 10 ms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._measure.cached import CacheCounts
from penstock._measure.gauges import Counts, Slow
from penstock._measure.histogram import bounds, quantile
from penstock._measure.meter import MeterSnapshot, Totals, clock
from penstock._session.measures import Measures, displayed_name
from penstock.stats._figures import (
    Bucket,
    CacheFigures,
    FirstBatch,
    Machine,
    Memory,
    Moment,
    Outage,
    Period,
    SlowSample,
    Spans,
    Stats,
    WorkerFigures,
)
from penstock.stats._machine import machine, throttled

__all__ = ["moment", "stats", "throttled"]

_TIMES = ("fetch", "collate", "write", "waited_task", "waited_room", "cpu", "delayed")


def stats(measures: Measures) -> Stats:
    now, meter = measures.snapshot(), measures.meter
    epoch = _period(measures, now, measures.base, meter.longest(), measures.epoch)
    life = _period(measures, now, measures.nothing, meter.longest(ever=True), None)
    return Stats(
        measures.name,
        measures.settings(),
        epoch,
        life,
        measures.epoch,
        _first_batch(measures),
        _memory(measures),
        _machine(measures),
        decisions=tuple(measures.decisions),
        history=tuple(measures.history),
        outage=_outage(measures),
        **measures.planned(),
    )


def _outage(measures: Measures) -> Outage | None:
    found = [crew.gauges.outage(crew.seats) for crew in measures.crews()]
    seen = [one for one in (*found, measures.meter.scouts.outage) if one is not None and one.is_long]
    longest = max(seen, key=lambda one: one.seconds, default=None)
    return None if longest is None else Outage(longest.store, longest.seconds)


def _period(
    measures: Measures, now: MeterSnapshot, before: MeterSnapshot, longest: tuple[int, int], epoch: int | None
) -> Period:
    """Returns the statistics between two snapshots, for one epoch or, if `epoch` is None, for all epochs."""
    totals = now.sum().minus(before.sum())
    sums, known = totals.sums, before.workers()
    seats = {seat for crew in measures.crews() for seat in crew.seats}
    workers = {
        seat: counts.minus(known[seat]) if seat in known else counts for seat, counts in sorted(now.workers().items())
    }
    here = displayed_name(measures.settings())
    nodes = measures.meter.nodes(measures.live())
    figures = [_worker(seat, row, seat in seats, here, nodes.get(seat, "")) for seat, row in workers.items()]
    counted = now.histogram() - before.histogram()
    found = [Bucket(*bounds(at), int(count)) for at, count in enumerate(counted) if count > 0]
    slowest = measures.meter.slowest(measures.live(), epoch)
    return Period(
        seconds=(sums.wait + sums.work) * 1e-9,
        batches=sums.steps,
        samples=sums.rows,
        nbytes=sums.nbytes,
        waits=_spans(sums.steps, sums.wait, totals.waits, longest[0]),
        works=_spans(sums.steps, sums.work, totals.works, longest[1]),
        ready=sums.ready + sums.steps - totals.tasks,
        tasks=totals.tasks,
        caller_cpu=totals.cpu * 1e-9,
        workers=tuple(figures),
        slowest=tuple(_slow(slow, figures, seat) for seat, slow in slowest),
        sample_times=tuple(found),
        replaced=totals.replaced,
        repeated=totals.repeated,
        skipped=totals.skipped,
        epochs=measures.epochs if epoch is None else 1,
        cache=_cache(totals, list(workers.values()), measures.meter.scouts),
    )


def _first_batch(measures: Measures) -> FirstBatch | None:
    at = measures.first_batch()
    if at is None:
        return None
    parts = [(after - before) * 1e-9 for before, after in pairwise(at)]
    return FirstBatch((at[-1] - at[0]) * 1e-9, parts[0], measures.shipped, *parts[1:])


def _memory(measures: Measures) -> Memory:
    found = [crew.memory() for crew in measures.crews()]
    return Memory(*(sum(column) for column in zip(*found, strict=True))) if found else Memory()


def _machine(measures: Measures) -> Machine:
    inline = measures.settings().get("backend") == "inline"
    gauges = [(crew.gauges, seat) for crew in measures.crews() for seat in crew.seats]
    # A worker on another node has no pid here.
    rows = [each.counts(seat) for each, seat in gauges if seat not in each.nodes]
    found = machine([counts.pid for counts in rows if counts.pid and not inline], measures.throttled or 0.0)
    if measures.throttled is None:
        found = replace(found, throttled=0.0)
    # After an epoch, workers may be gone, and the program does something else. Then the last values count.
    if measures.strain is None or any(crew.open_answer() is not None for crew in measures.crews()):
        measures.strain = found
    return replace(found, throttled=measures.strain.throttled, swapped=measures.strain.swapped)


def moment(measures: Measures) -> Moment:
    sums, memory = measures.snapshot().sum().sums, _memory(measures)
    crews = list(measures.crews())
    return Moment(
        at=(clock() - measures.began) * 1e-9,
        batches=sums.steps,
        waited=sums.wait * 1e-9,
        worked=sums.work * 1e-9,
        ready=sum(crew.ready for crew in crews),
        busy=sum(counts.since > 0 for gauges in measures.live() for counts in gauges.all().values()),
        workers=sum(len(crew.seats) for crew in crews),
        lent=memory.lent,
        pooled=memory.pooled,
    )


def _spans(count: int, total: int, histogram: NDArray[np.int64], longest: int) -> Spans:
    counts = histogram.tolist()
    middle, most = (min(quantile(counts, share), longest * 1e-9) for share in (0.5, 0.95))
    return Spans(count, total * 1e-9, middle, most, longest * 1e-9)


def _worker(seat: int, counts: Counts, alive: bool, here: str, node: str) -> WorkerFigures:
    name = here.format(seat) or f"worker {seat} (pid {counts.pid}{f' on {node}' if node else ''})"
    times = {part: getattr(counts, part) * 1e-9 for part in _TIMES}
    return WorkerFigures(seat, name, alive, counts.tasks, counts.steps, **times, node=node, pil=bool(counts.pil))


def _cache(totals: Totals, workers: list[Counts], scouts: CacheCounts) -> CacheFigures | None:
    rows = *workers, totals
    sums: dict[str, Any] = {name: sum(getattr(row, f"cache_{name}", 0) for row in rows) for name in CacheCounts.NAMES}
    found = CacheFigures(**sums | {"waited": sums["waited"] * 1e-9})
    return None if found == CacheFigures() else replace(found, needed=scouts.needed, limit=scouts.limit)


def _slow(slow: Slow, figures: list[WorkerFigures], seat: int) -> SlowSample:
    key = int(slow.key) if slow.key.lstrip("-").isdecimal() else slow.key
    name = next((one.name for one in figures if one.seat == seat), f"worker {seat}")
    return SlowSample(key, slow.ns * 1e-9, slow.epoch, slow.step, name, slow.path)
