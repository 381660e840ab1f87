"""The sections of the report as HTML. Each function returns one section, made from a `Stats` or a part of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from penstock.stats._facts import Facts
from penstock.stats._figures import Bucket, CacheFigures, Moment, Period, Stats, WorkerFigures
from penstock.stats._markup import (
    bars,
    facts,
    folded,
    legend,
    line,
    log_scale,
    plot,
    scale,
    section,
    stacked,
    table,
    text,
    time_scale,
    upright,
    whole_scale,
)
from penstock.stats._shown import settings_of
from penstock.stats._table import CACHE_ROWS, ROWS, TROUBLES
from penstock.stats._units import count, seconds, share, size
from penstock.stats._verdict import judgement

# These limits keep the page below 200 KB. Of a longer history, only every second, third, ... moment is shown.
MOST_MOMENTS = 300
MOST_WORKERS = 96
MOST_DECISIONS = 100

BEGINNING = Moment(0.0, 0, 0.0, 0.0, 0, 0, 0, 0, 0)

PARTS = (
    ("fetch", "fetch", "fetch"),
    ("collate", "collate", "collate"),
    ("write", "write", "write"),
    ("wait", "waited_task", "waited for a task"),
    ("room", "waited_room", "waited for room"),
)


def thinned(history: Sequence[Moment]) -> list[Moment]:
    """Returns BEGINNING (time 0), followed by at most MOST_MOMENTS evenly spaced moments of the history.

    The last moment of the history is always included. If the history is empty, returns an empty list.
    """
    step = math.ceil(len(history) / MOST_MOMENTS) or 1
    return [BEGINNING, *history[::-1][::step][::-1]] if history else []


def title(found: Facts) -> str:
    stats, period = found.stats, found.period
    length = f"{count(period.batches)} batches in {seconds(period.seconds)}"
    if period is stats.epoch and stats.life.epochs > 1:
        length += f" ({count(stats.life.batches)} in all {count(stats.life.epochs)} epochs)"
    return f"<header><h1>{text(stats.name, 120)}</h1><p>penstock, {found.scope}: {length}</p></header>"


def verdict(stats: Stats) -> str:
    return f'<section class="verdict {judgement(stats)}"><p>{text(stats.verdict, 2000)}</p></section>'


def tiles(found: Facts) -> str:
    stats, period = found.stats, found.period
    first = seconds(stats.first_batch.total) if stats.first_batch else "none yet"
    length = period.seconds or math.inf
    # As in the verdict, the time in which workers started is left out, unless there is no other time.
    after = " after the first" if found.enough and found.starting >= 0.01 * found.whole else ""
    tiles = (
        (f"waited for batches{after}", _large(share(found.waiting if found.enough else period.waiting))),
        ("batches", _large(f"{count(period.rate)} /s")),
        ("samples", _large(f"{count(period.samples / length)} /s")),
        ("data", _large(f"{size(period.nbytes / length)}/s")),
        ("first batch after", _large(first)),
    )
    return f'<dl class="tiles">{"".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)}</dl>'


def _large(value: str) -> str:
    """Returns text such as `25.9 MB/s` or `2 min 05 s` as HTML, with the units in smaller type than the numbers."""
    pairs = re.findall(r"(<?\d[\d.,]*) ?([^\d<]*)", value)
    shown = " ".join(f"{escape(number)}<span>{unit.strip()}</span>" for number, unit in pairs)
    return shown or f"<span>{value}</span>"


def _waiting(before: Moment, after: Moment) -> float | None:
    """Returns the share of time in which the caller waited, or None if the caller neither waited nor worked."""
    waited, worked = after.waited - before.waited, after.worked - before.worked
    return min(max(waited / (waited + worked), 0.0), 1.0) if waited + worked > 0 else None


def _over_time(
    columns: str, moments: Sequence[Moment], ys: list[tuple[float, str]], marks: list[str], label: str
) -> str:
    """Returns a chart over time. Its tooltips show the columns of the history whose indices are in `columns`."""
    end = moments[-1].at
    drawn = plot(marks, ys, time_scale(end), label)
    return f'<div data-columns="{columns}" data-end="{end:.3f}">{drawn}</div>'


def _edges(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """Returns, for each moment but the last, its position and that of the next moment, both from 0 to 1.

    In the charts, the interval between these positions shows the values of the later moment.
    """
    whole = moments[-1].at or 1.0
    return [(before.at / whole, after.at / whole) for before, after in pairwise(moments)]


def _counted(kind: str, moments: Sequence[Moment], values: Sequence[int], top: float) -> str:
    edges = _edges(moments)
    points = [(left, value / top) for (left, _), value in zip(edges, values, strict=True)]
    return line(kind, [*points, (1.0, values[-1] / top)])


NO_HISTORY = '<p class="note">Nothing yet: the history begins half a second after the first batch.</p>'


def timeline(moments: Sequence[Moment]) -> str:
    title, note = "Waiting and working", "The caller waits inside next(), and works between two batches."
    if not moments:
        return section(title, note, NO_HISTORY)
    shares = [_waiting(before, after) for before, after in pairwise(moments)]
    known = [(*edges, part) for edges, part in zip(_edges(moments), shares, strict=True) if part is not None]
    marks = [
        bars("work", ((left, right, part, 1.0) for left, right, part in known)),
        bars("wait", ((left, right, 0.0, part) for left, right, part in known)),
    ]
    ys = [(part, share(part)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    drawn = _over_time("3 2", moments, ys, marks, "Share of the time in which the caller waited, over time")
    return section(title, note, drawn, legend(("wait", "waited for a batch"), ("work", "worked on a batch")))


def ready(moments: Sequence[Moment]) -> str:
    title, note = "Ready batches", "Batches that were done and not handed out. At 0 the caller waits."
    if not moments:
        return section(title, note, NO_HISTORY)
    values = [moment.ready for moment in moments[1:]]
    ticks = whole_scale(max(values))
    marks = [_counted("ready", moments, values, ticks[-1])]
    ys = [(tick / ticks[-1], count(tick)) for tick in ticks]
    return section(title, note, _over_time("4", moments, ys, marks, "Ready batches over time"))


def memory(stats: Stats, moments: Sequence[Moment]) -> str:
    now = stats.memory
    title = "Memory of batches"
    note = f"Now {size(now.lent)} lent, {size(now.pooled)} pooled, {size(now.strays)} outside of the pool."
    if not moments:
        return section(title, note, NO_HISTORY)
    ticks = scale(max(moment.lent + moment.pooled for moment in moments))
    top = ticks[-1]
    held = list(zip(_edges(moments), moments[1:], strict=True))
    marks = [
        bars("lent", ((*edges, 0.0, moment.lent / top) for edges, moment in held)),
        bars("pooled", ((*edges, moment.lent / top, (moment.lent + moment.pooled) / top) for edges, moment in held)),
    ]
    ys = [(tick / top, size(tick)) for tick in ticks]
    drawn = _over_time("7 8", moments, ys, marks, "Memory of batches over time")
    meanings = legend(("lent", "lent to the caller"), ("pooled", "pooled for the next batches"))
    return section(title, note, drawn, meanings)


def workers(workers: Sequence[WorkerFigures], scope: str) -> str:
    title = "Workers"
    note = f"How the time of each worker was divided in {scope}. A worker that came later has a shorter bar."
    if not workers:
        return section(title, "The loader has no workers: the caller fetches its samples itself, inside next().")
    few = workers[:MOST_WORKERS]
    whole = max(worker.busy + worker.waited_task + worker.waited_room for worker in workers)
    rows = "".join(
        f"<span>{_who(worker)}</span>{stacked(_parts(worker), whole)}<span>{share(worker.share)} busy</span>"
        for worker in few
    )
    if len(workers) > len(few):
        note += f" The first {len(few)} of {len(workers)} workers are shown."
    many = " many" if len(few) > 24 else ""
    names = legend(*((kind, name) for kind, _, name in PARTS))
    heads = ["worker", "tasks", "steps", *(name for _, _, name in PARTS), "processor time"]
    cells = (
        [
            _who(worker),
            count(worker.tasks),
            count(worker.steps),
            *(seconds(getattr(worker, field)) for _, field, _ in PARTS),
            seconds(worker.cpu),
        ]
        for worker in few
    )
    numbers = folded("Figures of each worker", table(heads, cells, name="workers"))
    return section(title, note, f'<div class="rows{many}">{rows}</div>', names, numbers)


def _who(worker: WorkerFigures) -> str:
    return text(f"{worker.name}{'' if worker.alive else ' (ended)'}", 60)


def _parts(worker: WorkerFigures) -> Iterator[tuple[str, float, str]]:
    whole = worker.busy + worker.waited_task + worker.waited_room
    for kind, field, name in PARTS:
        value = getattr(worker, field)
        yield kind, value, f"{name}\n{seconds(value)}, {share(value / whole if whole else 0.0)}"


def samples(period: Period, scope: str) -> str:
    title = "Sample times"
    buckets = _filled(period.sample_times)
    if not buckets:
        fast = "Samples that take less than 20 µs on average are not timed one by one."
        why = fast if period.samples else "None yet."
        return section(title, why, *_slowest(period))
    total = sum(bucket.count for bucket in buckets)
    note = (
        f"Of {count(total)} timed samples of {scope} half took at most {seconds(_quantile(buckets, 0.5))}, and 99 % "
        f"at most {seconds(_quantile(buckets, 0.99))}. Both scales are logarithmic."
    )
    most = max(bucket.count for bucket in buckets)
    decades = math.ceil(math.log10(most)) or 1
    ys = [((0.3 + i) / (0.3 + decades), count(10.0**i)) for i in range(decades + 1)]
    n = len(buckets)
    columns = ((i / n, (i + 0.9) / n, 0.0, _height(each.count, decades)) for i, each in enumerate(buckets))
    marks = [bars("fetch", columns), *_hits(buckets)]
    limits = [buckets[0].low or buckets[0].high / 2, *(bucket.high for bucket in buckets)]
    drawn = plot(marks, ys, log_scale(limits, seconds), "Number of samples by the time they took", "low")
    rows = ([f"{seconds(each.low)} to {seconds(each.high)}", count(each.count)] for each in buckets if each.count)
    numbers = folded("Numbers of samples", table(["time", "samples"], rows, name="times"))
    return section(title, note, drawn, numbers, *_slowest(period))


def _height(number: int, decades: int) -> float:
    return (0.3 + math.log10(number)) / (0.3 + decades) if number else 0.0


def _hits(buckets: Sequence[Bucket]) -> Iterator[str]:
    wide = 1000 / len(buckets)
    for i, bucket in enumerate(buckets):
        tip = f"{seconds(bucket.low)} to {seconds(bucket.high)}\n{count(bucket.count)} samples"
        yield f'<rect class="hit" x="{i * wide:.5g}" y="0" width="{wide:.5g}" height="100" data-tip="{escape(tip)}"/>'


def _filled(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Returns the non-empty buckets, with empty buckets of the same relative width in the gaps between them."""
    filled: list[Bucket] = []
    for bucket in buckets:
        while bucket.count and filled and filled[-1].high < bucket.low * 0.99:
            low = filled[-1].high
            filled.append(Bucket(low, low * bucket.high / bucket.low, 0))
        if bucket.count:
            filled.append(bucket)
    return filled


def _quantile(buckets: Sequence[Bucket], part: float) -> float:
    left = part * sum(bucket.count for bucket in buckets)
    for bucket in buckets:
        left -= bucket.count
        if left <= 0:
            return bucket.high
    return buckets[-1].high


def _slowest(period: Period) -> Iterator[str]:
    if period.slowest:
        rows = (
            [text(each.name, 120), seconds(each.seconds), count(each.epoch), count(each.step), text(each.worker, 60)]
            for each in period.slowest
        )
        drawn = table(["sample", "time", "epoch", "step", "worker"], rows, texts=[0, 4], name="slowest")
        yield f'<h2 class="second">Slowest samples</h2>{drawn}'


def first(stats: Stats) -> str:
    first = stats.first_batch
    title = "First batch"
    if first is None:
        return section(title, "No batch yet.")
    parts = (
        ("pooled", "prepare memory, ask for workers", first.start - first.ship),
        ("write", "pickle and send the dataset", first.ship),
        ("fetch", "start of the first worker", first.boot),
        ("collate", "first samples", first.sample),
        ("room", "everything else", first.rest),
    )
    whole = sum(max(value, 0.0) for *_, value in parts)
    drawn = stacked([(kind, max(value, 0.0), f"{name}\n{seconds(value)}") for kind, name, value in parts], whole)
    rows = ([f'<i class="dot {kind}"></i>{name}', seconds(max(value, 0.0))] for kind, name, value in parts)
    note = f"{seconds(first.total)} from the first iter() to the first batch."
    return section(title, note, drawn, f'<div class="after">{table(["part", "time"], rows, name="first")}</div>')


def tuning(stats: Stats, moments: Sequence[Moment]) -> str:
    title = "Number of workers"
    note = 'Changes that num_workers="auto" made, with their reasons.' if stats.decisions else "It was not tuned."
    if not moments:
        return section(title, note, *_decisions(stats))
    ticks = whole_scale(max(max(moment.workers, moment.busy) for moment in moments))
    top, whole = ticks[-1], moments[-1].at or 1.0
    held = zip(_edges(moments), moments[1:], strict=True)
    marks = [
        bars("work", ((*edges, 0.0, moment.busy / top) for edges, moment in held)),
        _counted("workers", moments, [moment.workers for moment in moments[1:]], top),
        upright("mark", (each.at / whole for each in stats.decisions[-MOST_DECISIONS:] if each.at <= whole)),
    ]
    ys = [(tick / top, count(tick)) for tick in ticks]
    drawn = _over_time("6 5", moments, ys, marks, "Workers and busy workers over time")
    entries = [("workers", "workers"), ("work", "busy workers"), ("mark", "change")]
    return section(title, note, drawn, legend(*entries[: None if stats.decisions else 2]), *_decisions(stats))


def _decisions(stats: Stats) -> Iterator[str]:
    if stats.decisions:
        rows = (
            [seconds(each.at), count(each.workers), count(each.prefetch_factor), text(each.reason)]
            for each in stats.decisions[-MOST_DECISIONS:]
        )
        drawn = table(["at", "workers", "prefetch_factor", "reason"], rows, texts=[0, 3], name="decisions")
        yield f'<div class="after">{drawn}</div>'


def figures(stats: Stats) -> str:
    columns = [(f"epoch {stats.epoch_number}", stats.epoch), ("all epochs", stats.life)]
    if stats.life.epochs <= 1:
        del columns[0]
    periods = [period for _, period in columns]
    shows = *ROWS, ("tasks", lambda period: count(period.tasks))
    rows = [[name.replace("  ", "&emsp;"), *map(show, periods)] for name, show in shows]
    rows += [[name, *(count(getattr(period, field)) for period in periods)] for name, field in TROUBLES.items()]
    if stats.life.cache:
        caches = [period.cache or CacheFigures() for period in periods]
        rows += [[name, *map(show, caches)] for name, show in CACHE_ROWS.values()]
    return section("Figures", "", table(["", *(name for name, _ in columns)], rows, name="figures"))


def settings(stats: Stats) -> str:
    shown = settings_of(stats.settings)
    note = "Those that are not shown have their defaults."
    return section("Settings", note, facts((text(name), text(value)) for name, value in shown.items()))


def machine(stats: Stats) -> str:
    machine = stats.machine
    limit = "none" if machine.memory_limit is None else size(machine.memory_limit)
    delayed = sum(worker.delayed for worker in stats.life.workers)
    pairs = (
        ("processors to use", count(machine.cpus)),
        ("memory limit", limit),
        ("memory used", size(machine.memory_used)),
        *([("held back by the CPU limit", seconds(machine.throttled))] if machine.throttled else []),
        *([("in swap space", size(machine.swapped))] if machine.swapped else []),
        *([("workers waited for a processor", seconds(delayed))] if delayed else []),
    )
    return section("Machine", "", facts(pairs))


def history(moments: Sequence[Moment], recorded: int) -> str:
    heads = ["seconds", "batches", "per second", "waiting", "ready", "busy", "workers", "lent", "pooled"]
    rows = []
    for before, now in pairwise(moments):
        part = _waiting(before, now)
        rows.append(
            [
                f"{now.at:.2f}",
                count(now.batches),
                count((now.batches - before.batches) / ((now.at - before.at) or math.inf)),
                "" if part is None else share(part),
                *(count(number) for number in (now.ready, now.busy, now.workers)),
                size(now.lent),
                size(now.pooled),
            ]
        )
    every = f", {len(rows)} of {recorded} moments" if recorded > len(rows) else ""
    return f"<section>{folded(f'History{every}', table(heads, rows, texts=(), name='history'))}</section>"
