"""Counts the loaders of this process that have run on penstock's engine, and those that have run on torch's."""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from typing import Any

import torch.utils.data


@dataclass(frozen=True)
class LoaderUse:
    """How many iterations over loaders of one class have begun on each engine.

    `on_torch` counts iterators, so a torch loader with persistent workers counts only once. `reason` says why
    penstock's engine was not used.

    >>> print(LoaderUse("my.Loader", on_penstock=2, on_torch=0))
    my.Loader: 2 on penstock, 0 on torch
    """

    loader_class: str
    on_penstock: int
    on_torch: int
    reason: str | None = None

    def __str__(self) -> str:
        counts = f"{self.on_penstock} on penstock, {self.on_torch} on torch"
        return f"{self.loader_class}: {counts}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Status:
    """The result of `status()`, with one entry for each loader class.

    >>> import penstock.torch
    >>> penstock.torch.status().enabled
    False
    """

    enabled: bool
    loaders: tuple[LoaderUse, ...]

    def __str__(self) -> str:
        state = "every torch loader" if self.enabled else "only penstock.torch.DataLoader"
        lines = [f"penstock's engine is used by {state}. Iterations begun so far:"]
        return "\n  ".join([*lines, *map(str, self.loaders or ["none"])])


@dataclass
class _Count:
    on_penstock: int = 0
    on_torch: int = 0
    reason: str | None = None


_counts: dict[str, _Count] = {}


def begun_on_penstock(loader: Any) -> None:
    _count(type(loader)).on_penstock += 1


def begun_on_torch(loader: Any, reason: str) -> None:
    _count(type(loader)).on_torch += 1
    warn_once(loader, reason, stacklevel=7)  # the line that calls iter()


def warn_once(loader: Any, reason: str, stacklevel: int = 2) -> None:
    """Warns, once for each loader class, that a loader runs on torch's engine, and says why."""
    count = _count(type(loader))
    if count.reason is None:
        count.reason = reason
        text = f"{type(loader).__name__} uses torch's engine, not penstock's: {reason}."
        warnings.warn(text, stacklevel=stacklevel)


def served() -> int:
    """Returns the number of iterations that were started on penstock's engine in this process."""
    return sum(count.on_penstock for count in _counts.values())


def status_of(enabled: bool) -> Status:
    used = [LoaderUse(name, each.on_penstock, each.on_torch, each.reason) for name, each in _counts.items()]
    return Status(enabled, (*used, *_never_seen()))


def _count(kind: type) -> _Count:
    return _counts.setdefault(_name(kind), _Count())


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _never_seen() -> list[LoaderUse]:
    """Finds uncounted loader classes that override `__iter__`, by searching all live objects."""
    # No hook is called if such an `__iter__` makes no iterator of torch's or penstock's.
    theirs = torch.utils.data.DataLoader
    kinds = {type(each) for each in gc.get_objects() if issubclass(type(each), theirs)}
    own = sorted(_name(kind) for kind in kinds if kind.__iter__ is not theirs.__iter__)
    reason = "its own __iter__ has made no iterator of torch's or penstock's so far"
    return [LoaderUse(name, 0, 0, reason) for name in own if name not in _counts]
