"""Fetches the samples of a step one by one. Samples that fail can be left out or replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._measure.gauges import Slow
from penstock._system.interrupts import import_whole
from penstock._system.panics import raise_ordinary
from penstock._system.shortage import is_shortage
from penstock._wire.failure import Failure, keep, safe_text
from penstock._wire.task import Mended, Task, shorten, shorten_key
from penstock._work.paths import path_of
from penstock.plan._seeds import mix

if TYPE_CHECKING:
    from penstock._work.focus import Focus

# How many other samples are tried in place of one that failed. Even if half of all samples were bad, only one
# replacement in 65,000 would fail.
_MOST_REPLACEMENTS = 16


_NOT_BAD = (
    "A lack of memory, descriptors or disk space is not a bad sample: on_error= does not skip it. Use fewer workers "
    "or smaller batches, or raise the limit."
)


class SampleFetcher:
    """Fetches samples one by one. `mends` is True if samples that fail are left out or replaced."""

    def __init__(self, focus: Focus) -> None:
        self._focus = focus
        self._job = focus.job
        self.mends = focus.job.on_error != "raise"

    def fetch(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> tuple[list[Any], Mended | None]:
        """Returns `[get(key) for key in keys]`. Leaves out or replaces samples that fail, depending on `on_error`."""
        found = self._mend(get, keys) if self.mends else (self._get(get, keys), None)
        self._focus.loop = None
        return found

    def _get(self, get: Callable[[Any], Any], keys: Sequence[Any], first: int = 0) -> list[Any]:
        focus, left = self._focus, iter(keys)
        focus.loop = keys, left, range(first, first + len(keys))
        try:
            return self._timed(get, left) if focus.gauge.times else [get(key) for key in left]
        except BaseException as error:
            focus.name_sample()
            raise_ordinary(error)
            raise

    def _timed(self, get: Callable[[Any], Any], left: Any) -> list[Any]:
        samples, gauge, clock = [], self._focus.gauge, perf_counter_ns
        gauge.begin_epoch(self._focus.task.epoch)
        before = clock()
        for key in left:
            samples.append(get(key))
            now = clock()
            if gauge.sample(now - before):
                self._note_slow(now - before)
            before = now
        return samples

    def _note_slow(self, ns: int) -> None:
        focus, task = self._focus, self._focus.task
        item, row = focus.sample()
        key = focus.naming.key(self._job, task, item, row)
        focus.gauge.note(Slow(ns, task.epoch, task.step, safe_text(key, repr), path_of(self._job.dataset, item)))

    def _mend(self, get: Callable[[Any], Any], keys: Sequence[Any]) -> tuple[list[Any], Mended | None]:
        focus, task, job = self._focus, self._focus.task, self._job
        key_of, rngs = focus.naming.key, focus.rngs  # looked up once, because the loop below runs for each sample
        kept = Failure.capture if focus.alone else keep
        samples: list[Any] = []
        mended = Mended([], [], [])
        most = _MOST_REPLACEMENTS if job.on_error == "replace" else 0
        for row, key in enumerate(keys):
            tried: list[Any] = []
            while len(tried) <= most:
                item = self._another(task, row, len(tried)) if tried else key
                rngs.clear()
                try:
                    samples += self._get(get, [item], row)
                except Exception as error:
                    if is_shortage(error):
                        focus.notes.append(_NOT_BAD)
                        raise
                    if 0 < most == len(tried):
                        others = f"{len(tried) - 1} others before it: {shorten(tried[1:])}"
                        named = shorten_key(key)
                        focus.notes.append(f"It was meant to replace sample {named}, which failed, as did {others}.")
                        raise
                    mended.errors.append((key_of(job, task, item, row), kept(error, where=focus.where())))
                    tried.append(item)
                else:
                    mended.keys.append(key_of(job, task, item, row))
                    mended.rows.append(row)
                    break
        return samples, mended if mended.errors else None

    def _another(self, task: Task, row: int, attempt: int) -> Any:
        """Draws a replacement from all keys of the epoch or, if the order is unknown, from the keys of the step."""
        import_whole("penstock._work.seeding")
        from penstock._work.seeding import REPLACE  # late: see InlineBackend

        order, rows = self._job.order, self._job.local_rows
        of = self._job.number(task.step), row if rows is None else rows[row]
        number = mix(self._job.seed, task.epoch, *of, attempt, REPLACE)
        if order is None:
            return plain(task.keys)[number % len(task.keys)]
        return order.at(task.epoch, np.array([number % order.size(task.epoch)])).tolist()[0]


def plain(keys: Any) -> Any:
    """Returns the keys as datasets expect them: an array is converted to a list of Python integers."""
    return keys.tolist() if isinstance(keys, np.ndarray) else keys
