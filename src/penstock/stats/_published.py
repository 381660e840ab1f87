"""Converts figures to text and back, because `penstock top` reads the figures of loaders in other processes.

Figures are written every two seconds inside the caller's `next()`. So the text includes only what `penstock top`
shows, and the code avoids `dataclasses.asdict`, which takes ten times as long.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

from penstock._measure import page
from penstock.stats._figures import Stats

_WHOLE = slice(None)
_PARTS = {"history": slice(-21, None), "decisions": slice(-1, None), "workers": slice(64), "sources": slice(64)}
"""The part of each long list that is published. For live displays, the last ten seconds (21 moments) are enough."""


@dataclass(frozen=True, slots=True)
class Published:
    """The figures of a loader in another process. `at` is the time of publication, in seconds since 1970."""

    pid: int
    at: float
    stats: Stats


def publish(by: object, stats: Stats) -> None:
    """Makes the figures visible in `penstock top`, until newer figures are published or `by` is deallocated."""
    page.publish(by, to_text(stats))


def to_text(stats: Stats) -> bytes:
    plain = _plain(stats) | {"settings": dict(stats.settings)}
    return json.dumps({"pid": os.getpid(), "at": time.time(), "stats": plain}, default=str).encode()


def _figures_in(kind: type) -> dict[str, tuple[type, bool]]:
    """Maps the name of each field that holds figures to (class of the figures, True if the field is a tuple)."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for part in get_args(hint) or (hint,):
            if isinstance(part, type) and is_dataclass(part):
                found[name] = part, get_origin(hint) is tuple
    return found


def _all_from(kind: type) -> Iterator[tuple[type, dict[str, tuple[type, bool]]]]:
    yield kind, (found := _figures_in(kind))
    for inner, _ in found.values():
        yield from _all_from(inner)


_inner = dict(_all_from(Stats))
_names: dict[type, tuple[str, ...]] = {kind: tuple(field.name for field in fields(kind)) for kind in _inner}
_values = {kind: attrgetter(*names) for kind, names in _names.items()}


def _plain(figures: Any) -> dict[str, Any]:
    kind = type(figures)
    plain = dict(zip(_names[kind], _values[kind](figures), strict=True))
    for name, (_, is_listed) in _inner[kind].items():
        if is_listed:
            plain[name] = _table(plain[name][_PARTS.get(name, _WHOLE)])
        elif plain[name] is not None:
            plain[name] = _plain(plain[name])
    return plain


def _table(figures: Sequence[Any]) -> list[Any]:
    """Packs figures into a list: the field names, then each object's values. Dicts would be longer and slower."""
    if not figures:
        return []
    kind = type(figures[0])
    return [_names[kind], *map(_values[kind], figures)]


def from_text(text: bytes) -> Published:
    """Parses the output of `to_text`, possibly from another version. Raises ValueError for any other text."""
    try:
        plain = json.loads(text)
        return Published(int(plain["pid"]), float(plain["at"]), _built(Stats, plain["stats"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"This is not a page of a loader: {error!r}") from error


def _built(kind: type, plain: Mapping[str, Any]) -> Any:
    """Rebuilds an object from the result of `_plain`. Unknown fields are ignored."""
    given = {name: plain[name] for name in _names[kind] if name in plain}
    for name, (inner, is_listed) in _inner[kind].items():
        if is_listed:
            names, *rows = given.get(name) or [[]]
            given[name] = tuple(_built(inner, dict(zip(names, row, strict=True))) for row in rows)
        elif given.get(name) is not None:
            given[name] = _built(inner, given[name])
    return kind(**given)
