"""Shows the figures of a loader as plain text, at most 100 characters wide, with the verdict at the top."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from penstock._printable import printable
from penstock.stats._figures import CacheFigures, Period, Spans, Stats, WorkerFigures
from penstock.stats._shown import settings_of
from penstock.stats._units import brief, count, seconds, share, size

WIDTH = 100
_MOST_WORKERS = 16  # rows; further workers are added up in one row
_MOST_SLOW = 5
_MOST_SOURCES = 8


def table(stats: Stats) -> str:
    return _joined(_head(stats), _wrapped("", stats.verdict), *_figures(stats))


_COLOURS = {"good": "#2e8b57", "fair": "#b97e00", "poor": "#d4501f", "none": "#8b929a"}


def html(stats: Stats) -> str:
    """Returns the table as HTML for a notebook. The colour of the line beside the verdict shows the judgement."""
    from penstock.stats._verdict import judgement

    colour = _COLOURS[judgement(stats)]
    verdict = escape(printable(stats.verdict))
    said = f'<p style="margin:8px 0;padding:4px 12px;border-left:4px solid {colour}">{verdict}</p>'
    name, *settings = (escape(printable(line)) for line in _head(stats))
    small = f'<div style="opacity:0.7">{" ".join(settings)}</div>'
    figures = f'<pre style="line-height:1.3">{escape(_joined(*_figures(stats)))}</pre>'
    return f"<div><strong>{name}</strong>{small}{said}{figures}</div>"


def _figures(stats: Stats) -> Iterator[Iterable[str]]:
    yield _periods(stats)
    yield _workers(stats.epoch)
    yield _rest(stats)


def _joined(*parts: Iterable[str]) -> str:
    return "\n\n".join("\n".join(map(printable, lines)) for part in parts if (lines := list(part)))


def _head(stats: Stats) -> Iterator[str]:
    yield _cut(stats.name)
    settings = settings_of(stats.settings)
    yield from _wrapped("", ", ".join(f"{name}={_cut(repr(value), 60)}" for name, value in settings.items()))


# A column for the epoch, and one for all epochs unless both are the same.


def _periods(stats: Stats) -> Iterator[str]:
    columns = {f"epoch {count(stats.epoch_number)}": stats.epoch, "all epochs": stats.life}
    if stats.life.batches == stats.epoch.batches:
        del columns["all epochs"]
    rows: list[tuple[str, ...]] = [("", *columns)]
    rows += [(name, *map(show, columns.values())) for name, show in ROWS]
    rows += [
        (name, *map(count, numbers))
        for name, field in TROUBLES.items()
        if any(numbers := [getattr(period, field) for period in columns.values()])
    ]
    if any(period.cache for period in columns.values()):
        caches = [period.cache or CacheFigures() for period in columns.values()]
        for field, (name, show) in CACHE_ROWS.items():
            if any(getattr(one, field) for one in caches):
                rows.append((name, *map(show, caches)))
    yield from _aligned(rows)


def _spans(spans: Spans) -> str:
    # In one unit each: two columns of these are the widest lines.
    return f"{brief(spans.median)} / {brief(spans.p95)} / {brief(spans.longest)}"


def _ready(period: Period) -> str:
    return f"{count(period.ready)} ({share(period.ready / max(1, period.batches))})"


def _wait(period: Period) -> str:
    return f"{seconds(period.waits.total)} ({share(period.waiting)})"


def _work(period: Period) -> str:
    return f"{seconds(period.works.total)} ({share(1 - period.waiting if period.works.total else 0.0)})"


def _hits(cache: CacheFigures) -> str:
    return f"{count(cache.hits)} ({share(cache.hits / max(1, cache.hits + cache.misses))})"


CACHE_ROWS: dict[str, tuple[str, Callable[[CacheFigures], str]]] = {
    "hits": ("cache hits", _hits),
    "misses": ("pieces waited for", lambda cache: f"{count(cache.misses)}, {seconds(cache.waited)}"),
    "fetched": ("pieces fetched", lambda cache: count(cache.fetched)),
    "evicted": ("pieces evicted", lambda cache: count(cache.evicted)),
    "requests": ("requests to stores", lambda cache: f"{count(cache.requests)}, {size(cache.nbytes)}"),
    "retries": ("requests repeated", lambda cache: count(cache.retries)),
    "decoded": ("blocks decoded", lambda cache: count(cache.decoded)),
}
TROUBLES = {"crashed workers": "replaced", "repeated steps": "repeated", "skipped samples": "skipped"}
ROWS: tuple[tuple[str, Callable[[Period], str]], ...] = (
    ("batches", lambda period: count(period.batches)),
    ("  ready when asked for", _ready),
    ("samples", lambda period: count(period.samples)),
    ("bytes", lambda period: size(period.nbytes)),
    ("wall clock", lambda period: seconds(period.seconds)),
    ("batches a second", lambda period: count(period.rate)),
    ("loop waited for data", _wait),
    ("  median / p95 / longest", lambda period: _spans(period.waits)),
    ("loop worked", _work),
    ("  median / p95 / longest", lambda period: _spans(period.works)),
    ("  CPU time of its process", lambda period: seconds(period.caller_cpu)),
)


# The workers of the epoch.


_COLUMNS = ("worker", "steps", "busy", "fetch", "collate", "write", "no task", "no room", "CPU time")


def _workers(period: Period) -> Iterator[str]:
    if not period.workers:
        return
    shown = period.workers[:_MOST_WORKERS]
    rows: list[tuple[str, ...]] = [_COLUMNS]
    rows += [_worker(_cut(_name(worker), 24), [worker]) for worker in shown]
    if len(period.workers) > len(shown):
        others = period.workers[len(shown) :]
        rows.append(_worker(f"{len(others)} more", others))
    nodes = sorted({worker.node for worker in period.workers})
    for node in nodes if len(nodes) > 1 else ():
        there = [worker for worker in period.workers if worker.node == node]
        rows.append(_worker(_cut(f"{len(there)} on {node or 'no node yet'}", 24), there))
    if len(period.workers) > 1:
        rows.append(_worker("all", period.workers))
    yield from _aligned(rows)


def _name(worker: WorkerFigures) -> str:
    # The table has separate rows for machines.
    name = worker.name.replace(f" on {worker.node}", "") if worker.node else worker.name
    return name if worker.alive else f"worker {worker.seat} (ended)"


def _worker(name: str, workers: Sequence[WorkerFigures]) -> tuple[str, ...]:
    def total(part: str) -> float:
        return float(sum(getattr(worker, part) for worker in workers))

    whole = total("busy") + total("waited_task") + total("waited_room")
    parts = ("busy", "fetch", "collate", "write", "waited_task", "waited_room")
    shares = (share(total(part) / whole) if whole else "-" for part in parts)
    return (name, count(total("steps")), *shares, seconds(total("cpu")))


# All other figures, each on its own line.


def _rest(stats: Stats) -> Iterator[str]:
    first, memory, machine = stats.first_batch, stats.memory, stats.machine
    if first is not None:
        parts = {"start": first.start, "workers": first.boot, "first samples": first.sample, "rest": first.rest}
        shown = " + ".join(f"{name} {seconds(value)}" for name, value in parts.items() if value)
        ship = f" (of the start, {seconds(first.ship)} for sending the dataset)" if first.ship else ""
        yield from _wrapped("first batch", f"{seconds(first.total)}" + (f" = {shown}{ship}" if shown else ""))
    budget = stats.budget
    if budget is not None:
        rows = budget.samples / max(1, budget.batches)
        text = f"{budget.used:.1%} used, {budget.padding:.1%} of it padding, {rows:.1f} samples in a batch"
        yield from _wrapped("token budget", text)
    packing = stats.packing
    if packing is not None:
        lost = packing.truncated_tokens + packing.dropped_tokens
        text = f"{packing.fill:.2%} of the rows filled, {packing.documents:,} documents in {packing.rows:,} rows"
        text += f", {packing.split:,} split" if packing.split else ""
        text += f", {packing.repeated:,} beside a copy" if packing.repeated else ""
        yield from _wrapped("packing", text + (f", {lost:,} tokens left out" if lost else ""))
    if stats.mixture is not None:
        sources = sorted(stats.mixture.sources, key=lambda source: -source.share)
        more = len(sources) - _MOST_SOURCES
        names = [
            f"{_cut(each.name, 30)} {each.share:.2%} ({each.asked:.2%} asked, {each.passes:.2f} passes)"
            for each in sources[:_MOST_SOURCES]
        ]
        yield from _wrapped("mixture", ", ".join(names) + (f", and {more} more" if more > 0 else ""))
    commits = stats.commits
    if commits is not None:
        again = f", {count(commits.twice)} commits of batches that were committed before" if commits.twice else ""
        yield from _wrapped("commits", f"{count(commits.committed)} committed, {count(commits.open)} open{again}")
    slowest = stats.epoch.slowest or stats.life.slowest
    if slowest:
        keys = (f"{_cut(slow.name, 60)}: {seconds(slow.seconds)}" for slow in slowest[:_MOST_SLOW])
        yield from _wrapped("slowest samples", ", ".join(keys))
    strays = f", {size(memory.strays)} outside of the pool" if memory.strays else ""
    yield from _wrapped("memory", f"{size(memory.lent)} lent, {size(memory.pooled)} pooled{strays}")
    most = "" if machine.memory_limit is None else f" of {size(machine.memory_limit)}"
    cpus = f"{count(machine.cpus)} CPU{'' if machine.cpus == 1 else 's'}"
    limits = [cpus, f"{size(machine.memory_used)}{most} memory used"]
    if machine.throttled:
        limits.append(f"throttled for {seconds(machine.throttled)}")
    if machine.swapped:
        limits.append(f"{size(machine.swapped)} in swap space")
    yield from _wrapped("machine", ", ".join(limits))
    if stats.decisions:
        last = stats.decisions[-1]
        text = f"num_workers={last.workers} after {seconds(last.at)}: {last.reason}"
        yield from _wrapped("last decision", text)


# Layout.


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *cells in rows:
        line = first.ljust(widths[0])
        yield "  ".join([line, *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]).rstrip()


def _wrapped(name: str, text: str) -> list[str]:
    """Returns a name and a text as wrapped lines. Continuation lines are aligned with the start of the text."""
    indent = f"{name:<17}" if name else ""
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False
    )


def _cut(text: str, most: int = WIDTH) -> str:
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
