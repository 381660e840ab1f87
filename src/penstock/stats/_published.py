"""Converts figures to text and back, because `penstock top` reads the figures of loaders in other processes.

Figures are written every two seconds inside the caller's `next()`. So the text includes only what `penstock top`
shows, and the code avoids `dataclasses.asdict`, which takes ten times as long.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from penstock._measure import page
from penstock.stats._figures import (
    Bucket,
    BudgetFigures,
    CacheFigures,
    CommitFigures,
    Decision,
    FirstBatch,
    Machine,
    Memory,
    MixtureFigures,
    Moment,
    Outage,
    PackingFigures,
    Period,
    SlowSample,
    SourceFigures,
    Spans,
    Stats,
    WorkerFigures,
)

_NESTED: dict[type, dict[str, type]] = {
    Stats: {"epoch": Period, "life": Period, "first_batch": FirstBatch, "memory": Memory, "machine": Machine}
    | {
        "outage": Outage,
        "budget": BudgetFigures,
        "packing": PackingFigures,
        "commits": CommitFigures,
        "mixture": MixtureFigures,
    },
    Period: {"waits": Spans, "works": Spans, "cache": CacheFigures},
}
_LISTED: dict[type, dict[str, type]] = {
    Stats: {"decisions": Decision, "history": Moment},
    Period: {"workers": WorkerFigures, "slowest": SlowSample, "sample_times": Bucket},
    MixtureFigures: {"sources": SourceFigures},
}
_WHOLE = slice(None)
_PARTS = {"history": slice(-21, None), "decisions": slice(-1, None), "workers": slice(64), "sources": slice(64)}
"""The part of each long list that is published. 21 moments of the history cover ten seconds, for live displays."""


@dataclass(frozen=True, slots=True)
class Published:
    """The figures of a loader in another process. `at` is when they were published, in seconds since 1970."""

    pid: int
    at: float
    stats: Stats


def publish(by: object, stats: Stats) -> None:
    """Makes the figures visible in `penstock top`, until newer ones are published or `by` is deallocated."""
    page.publish(by, to_text(stats))


def to_text(stats: Stats) -> bytes:
    plain = _plain(stats) | {"settings": dict(stats.settings)}
    return json.dumps({"pid": os.getpid(), "at": time.time(), "stats": plain}, default=str).encode()


_kinds = {kind for inner in (*_NESTED.values(), *_LISTED.values()) for kind in inner.values()}
_names: dict[type, tuple[str, ...]] = {kind: tuple(field.name for field in fields(kind)) for kind in (Stats, *_kinds)}
_values = {kind: attrgetter(*names) for kind, names in _names.items()}


def _plain(figures: Any) -> dict[str, Any]:
    kind = type(figures)
    plain = dict(zip(_names[kind], _values[kind](figures), strict=True))
    for name in _NESTED.get(kind, ()):
        if plain[name] is not None:
            plain[name] = _plain(plain[name])
    for name in _LISTED.get(kind, ()):
        plain[name] = _table(plain[name][_PARTS.get(name, _WHOLE)])
    return plain


def _table(figures: Sequence[Any]) -> list[Any]:
    """Packs figures into a list: field names, then the values of each object. It is shorter and faster than dicts."""
    if not figures:
        return []
    kind = type(figures[0])
    return [_names[kind], *map(_values[kind], figures)]


def from_text(text: bytes) -> Published:
    """Parses the output of `to_text`, possibly of another version. Raises ValueError for any other text."""
    try:
        plain = json.loads(text)
        return Published(int(plain["pid"]), float(plain["at"]), _built(Stats, plain["stats"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"This is not a page of a loader: {error!r}") from error


def _built(kind: type, plain: Mapping[str, Any]) -> Any:
    """Rebuilds an object from the result of `_plain`. Unknown fields are ignored."""
    given = {name: plain[name] for name in _names[kind] if name in plain}
    for name, inner in _NESTED.get(kind, {}).items():
        if given.get(name) is not None:
            given[name] = _built(inner, given[name])
    for name, inner in _LISTED.get(kind, {}).items():
        names, *rows = given.get(name) or [[]]
        given[name] = tuple(_built(inner, dict(zip(names, row, strict=True))) for row in rows)
    return kind(**given)
