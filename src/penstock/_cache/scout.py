"""Fetches the pieces that a loader will need, before it needs them: threads beside the loader, in its process."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from functools import partial

from penstock._at_work import working_at
from penstock._cache.agendas import Publisher
from penstock._cache.cache import Cache
from penstock._cache.lookout import InPieces, Lookout, WantedPiece
from penstock._measure.cached import CacheCounts, Counting
from penstock._system.threads import started
from penstock.plan._forecast import Forecast

AHEAD = 512 << 20
"""Bytes that are fetched ahead of time at most: some seconds of a fast network."""

NEAR = 128 << 20
"""Bytes for which the cache makes room in any case, but not more than a quarter of the cache: see `lookout`."""

THREADS = 16
"""Pieces that are fetched at a time."""

_FIRST = 4  # pieces that are fetched at a time until the first batch was handed out: workers wait for theirs

_PAUSE = 0.02  # seconds after which a scout looks how far its loader is
_SHARE = 10  # a scout looks for a tenth of the time at most: to list 100,000 pieces takes 0.2 s
_LONGEST = 1.0  # seconds between two looks: the first one of an epoch may take half a second
_AFTER_FAILURE = 10.0  # seconds without fetches, after a piece that could not be kept
_MOMENT = 0.1  # seconds after which a fetch that waits sees that the scout is closed


class Scout:
    """Fetches pieces ahead of a loader, from `start()` on, until it is closed or dropped. `__foresee__` returns it.

    It raises nothing. A piece that cannot be fetched is left to the worker that needs it: its error names the sample.
    """

    def __init__(
        self, forecast: Forecast, dataset: InPieces, cache: Cache, ahead: int = AHEAD, threads: int = THREADS
    ) -> None:
        self._lookout = Lookout(forecast, dataset, cache, ahead, min(NEAR, cache.limit // 4))
        self._fetches = _Fetches(threads, forecast.counts or CacheCounts())
        # The thread refers to the lookout only while it looks, so it ends when the scout is dropped.
        self._work = partial(_look_out, self._fetches, weakref.ref(self._lookout))
        self._thread: threading.Thread | None = None

    def joins(self, other: Scout) -> bool:
        """Fetches for the other scout as well, if both are of the same loader and folder. Before both are started."""
        return self._lookout.joins(other._lookout)

    def start(self) -> None:
        with suppress(RuntimeError):  # no thread is to be had: workers fetch what they need themselves
            self._thread = started("penstock-scout", self._work, self._fetches.stop)

    def close(self) -> None:
        """Ends the scout. Fetches that are under way end in the background."""
        self._fetches.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():  # the garbage collector may run in it
            thread.join(0.2)


class _Stopped(Exception):
    """The scout was closed while a fetch waited for its next try."""


class _Fetches:
    """The fetches of a scout that are under way, `most` at a time."""

    def __init__(self, most: int, counts: CacheCounts) -> None:
        self.stopped = False
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # takes no lock of Python's
        self._counting = Counting(counts)
        self._most = most
        self._threads = 0
        self._lock = threading.Lock()  # of the attributes that fetches change
        self._coming: dict[str, int] = {}
        self._queue: deque[WantedPiece] = deque()  # of those that are coming
        self._failed: set[str] = set()
        self._start: int | None = None  # the position of the loader at the first look
        self._done = 0
        self._seen: object = None  # position and finished fetches at the last look
        self._not_before = 0.0

    def stop(self) -> None:
        self.stopped = True
        self.bell.put(None)

    def wait(self, least: float) -> None:
        """Waits for the next look: until a fetch has ended, or a moment, but not less than `least` seconds."""
        until = time.monotonic() + least
        with suppress(queue.Empty):
            self.bell.get(timeout=max(least, _PAUSE))
        while not self.stopped and (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self.bell.get(timeout=left)

    def rest(self) -> None:
        """The folder cannot be used."""
        self._not_before, self._seen = time.monotonic() + _AFTER_FAILURE, None

    def look(self, lookout: Lookout, publisher: Publisher) -> None:
        """Starts the fetches that are due."""
        if time.monotonic() < self._not_before:
            return
        agenda, position = lookout.agenda(), lookout.position
        self._start = position if self._start is None else self._start
        if agenda is not None:
            lookout.cache.publish(publisher, agenda)
            self._failed = set()
            counts = self._counting.cache
            counts.needed, counts.limit = max(counts.needed, lookout.at_once()), lookout.cache.limit
        if self._seen == (position, self._done):
            return
        self._seen = position, self._done
        publisher.move(position)
        with self._lock:
            coming, failed = dict(self._coming), set(self._failed)
        # Twice as many as there are threads: none of them has to wait for the next look.
        for piece in lookout.look(2 * self._most - len(coming), coming, failed):
            with self._lock:
                self._coming[piece.name] = piece.nbytes
                self._queue.append(piece)
                if self._threads >= (_FIRST if position == self._start else self._most):
                    continue
                self._threads += 1
            started("penstock-fetch", partial(self._fetch, lookout.cache), self.stop)

    def _fetch(self, cache: Cache) -> None:
        """A thread that fetches, until nothing is left to fetch."""
        while (piece := self._next()) is not None:
            failed = True
            with working_at(self._counting), suppress(Exception):
                failed = not cache.fetch(piece.name, partial(piece.make, self._pause))
                if failed:
                    self.rest()
            with self._lock:
                del self._coming[piece.name]
                if failed:
                    self._failed.add(piece.name)
                self._done += 1
            self.bell.put(None)

    def _pause(self, seconds: float) -> None:
        """Waits between two tries, unless the scout is closed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 or self.stopped:
            if self.stopped:
                raise _Stopped
            time.sleep(min(left, _MOMENT))

    def _next(self) -> WantedPiece | None:
        with self._lock:
            if self._queue and not self.stopped:
                return self._queue.popleft()
            self._threads -= 1
            return None


def _look_out(fetches: _Fetches, reference: weakref.ref[Lookout]) -> None:
    """The thread of a scout. It says nothing of a folder that cannot be used: workers warn of that."""
    lookout = reference()
    if lookout is None:
        return
    publisher = lookout.cache.publisher()
    try:
        while lookout is not None and not fetches.stopped:
            begun = time.thread_time()
            try:
                fetches.look(lookout, publisher)
            except OSError:
                lookout.forget()
                fetches.rest()
            lookout = None
            fetches.wait(min(_SHARE * (time.thread_time() - begun), _LONGEST))
            lookout = reference()
    except Exception:
        if not fetches.stopped:
            import logging

            # In the log: a thread has no line of the user's to which a warning could point.
            logging.getLogger("penstock").warning(
                "Nothing is fetched ahead of time any more, because of the error below: each worker waits for its "
                "own downloads. The samples are the same. If the error is not of your dataset, please report it.",
                exc_info=True,
            )
    finally:
        publisher.close()
