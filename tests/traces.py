"""Reads a trace strictly, by the description of the Trace Event Format: what our own tests hold every trace to.

Perfetto itself reads one in `make browser`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FIELDS = {
    "X": {"name", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "ph", "ts", "s", "pid", "tid"},
    "M": {"name", "ph", "pid"},
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


class Span(NamedTuple):
    name: str
    began: float  # µs
    ended: float
    args: dict[str, Any]


class Read(NamedTuple):
    """`rows`: the spans of each row, by its name, in order of time. `instants`: name and arguments."""

    rows: dict[str, list[Span]]
    instants: list[tuple[str, dict[str, Any]]]


def read(path: Path, complete: bool = True) -> Read:
    """Raises AssertionError for what the format does not allow. `complete=False`: the closing bracket is missing."""
    text = path.read_text(encoding="ascii")
    if not complete:
        assert text.rstrip(" ").endswith("}"), "it ends with a whole event"
        text += "]"
    events = json.loads(text, parse_constant=_no_constant)
    assert isinstance(events, list)
    names: dict[int, str] = {}
    spans: dict[int, list[Span]] = defaultdict(list)
    instants = []
    for event in events:
        kind = event["ph"]
        missing, unknown = FIELDS[kind] - event.keys(), event.keys() - FIELDS[kind] - {"args", "tid"}
        assert not missing and not unknown, event
        assert isinstance(event["name"], str) and isinstance(event.get("args", {}), dict)
        assert isinstance(event["pid"], int) and isinstance(event.get("tid", 1), int)
        if kind == "M":
            value = event["args"][METADATA[event["name"]]]
            if event["name"] == "thread_name":
                assert event["tid"] not in names, "a row is named once"
                names[event["tid"]] = value
            continue
        assert event["ts"] >= 0
        if kind == "i":
            assert event["s"] in "gpt"
            instants.append((event["name"], event.get("args", {})))
        else:
            assert event["dur"] >= 0
            end = round(event["ts"] + event["dur"], 3)
            spans[event["tid"]].append(Span(event["name"], event["ts"], end, event.get("args", {})))
    assert spans.keys() <= names.keys(), "every row has a name"
    return Read({names[row]: sorted(found, key=lambda span: span[1:3]) for row, found in spans.items()}, instants)


def overlapping(spans: list[Span]) -> Iterator[tuple[Span, Span]]:
    """Spans of a row that are drawn over each other, by more than what rounding makes."""
    for before, after in pairwise(spans):
        if after.began < before.ended - 0.002:
            yield before, after


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
