"""The figures of loaders with torch's semantics, of penstock's class and of torch's own."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock._engine.engine import Engine
from penstock._session.measures import Measures
from penstock.stats import Stats
from penstock.torch import _private as private
from penstock.torch._core import core_of

_SHOWN = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "in_order", "timeout", "pin_memory")


class Measured:
    """The figures of one loader. They do not refer to it."""

    def __init__(self, loader: Any) -> None:
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.runs = itertools.count()  # of all its iterators: torch's loader does not count epochs
        self._settings: dict[str, Any] = {}
        name = f"{type(loader).__name__}({type(loader.dataset).__name__})"
        self.measures = Measures(name, self._settings.copy, partial(_living, self.engines))
        self.look(loader)

    def look(self, loader: Any) -> None:
        """Notes the present settings of the loader."""
        self._settings.update({name: getattr(loader, name, None) for name in _SHOWN})
        backend = "process" if loader.num_workers else "inline"
        self._settings.update(backend=backend, seed=None, one_reader=False, face="penstock.torch")


def _living(engines: Iterable[Engine]) -> list[Engine]:
    return [engine for engine in tuple(engines) if engine.is_ours() and not engine.closed]


_all: weakref.WeakKeyDictionary[Any, Measured] = weakref.WeakKeyDictionary()


def measured(loader: Any) -> Measured:
    """The figures of a loader with torch's semantics."""
    found = _all.get(loader)
    if found is None:
        found = _all[loader] = Measured(loader)
    return found


def stats(loader: Any) -> Stats:
    """The figures of a loader that runs on penstock's engine, also of one of torch's class after `enable()`.

    See `penstock.DataLoader.stats`.
    """
    return measures_of(loader).stats()


def close(loader: Any) -> None:
    """Stops the workers of a loader with torch's semantics, and what measures them."""
    found = _all.get(loader)
    if found is not None:
        for engine in _living(found.engines):
            if not private.is_stream(loader):
                engine.take_back()  # its iterator is at its end, if it has handed out its last batch
            engine.close()
        found.measures.close()


def measures_of(loader: Any) -> Measures:
    seeded = getattr(loader, "_ours", {}).get("seed") is not None
    return core_of(loader)._measures if seeded else measured(loader).measures
