"""Scouts: background threads that fetch pieces of remote files before the loader needs them."""

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
"""The largest number of bytes to fetch ahead of time. A fast network transfers this much in a few seconds."""

NEAR = 128 << 20
"""The value of `near` in `lookout`, in bytes. In a small cache, `near` is a quarter of the cache's limit instead."""

THREADS = 16

_FIRST = 4  # the number until the first batch is handed out, because workers wait for their own downloads

_PAUSE = 0.02  # seconds after which a scout checks the position of its loader
_SHARE = 10  # looks take at most a tenth of the time, because listing 100,000 pieces takes 0.2 s
_LONGEST = 1.0  # longest time in seconds between two looks; the first look of an epoch may take half a second
_AFTER_FAILURE = 10.0  # seconds without fetches after a piece could not be written to the folder
_MOMENT = 0.1  # seconds after which a waiting fetch notices that the scout is closed


class Scout:
    """Fetches pieces ahead of a loader. Ignores errors, because workers fetch whatever is missing."""

    def __init__(self, forecast: Forecast, dataset: InPieces, cache: Cache, ahead: int = AHEAD) -> None:
        self._lookout = Lookout(forecast, dataset, cache, ahead, min(NEAR, cache.limit // 4))
        self._fetches = _Fetches(forecast.counts or CacheCounts())
        # The thread has only a weak reference between two looks, so it ends when the scout is dropped.
        self._work = partial(_look_out, self._fetches, weakref.ref(self._lookout))
        self._thread: threading.Thread | None = None

    def joins(self, other: Scout) -> bool:
        """Adds the datasets of `other`: see `Lookout.joins`. Neither scout may have been started."""
        return self._lookout.joins(other._lookout)

    def start(self) -> None:
        with suppress(RuntimeError):  # if no thread can be started, workers fetch what they need
            self._thread = started("penstock-scout", self._work, self._fetches.stop)

    def close(self) -> None:
        """Stops the scout. Fetches in flight end in the background, and are not retried."""
        self._fetches.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():  # the garbage collector may run in it
            thread.join(0.2)


class _Stopped(Exception):
    """Raised if the scout is closed while a fetch waits for its next retry."""


class _Fetches:
    def __init__(self, counts: CacheCounts) -> None:
        self.stopped = False
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # written in C, so it takes no lock of Python's
        self._counting = Counting(counts)
        self._threads = 0
        self._lock = threading.Lock()  # guards the attributes that fetching threads change
        self._coming: dict[str, int] = {}  # sizes of the pieces that are being fetched, by name
        self._queue: deque[WantedPiece] = deque()  # the pieces in `_coming` that no thread has started to fetch
        self._failed: set[str] = set()
        self._start: int | None = None  # the position of the loader at the first look
        self._done = 0
        self._seen: object = None  # position and number of finished fetches at the last look
        self._not_before = 0.0

    def stop(self) -> None:
        self.stopped = True
        self.bell.put(None)

    def wait(self, least: float) -> None:
        """Waits up to 20 ms for a fetch to end, but at least `least` seconds in any case."""
        until = time.monotonic() + least
        with suppress(queue.Empty):
            self.bell.get(timeout=max(least, _PAUSE))
        while not self.stopped and (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self.bell.get(timeout=left)

    def rest(self) -> None:
        """Pauses fetching for a while, because the cache folder cannot be used."""
        self._not_before, self._seen = time.monotonic() + _AFTER_FAILURE, None

    def look(self, lookout: Lookout, publisher: Publisher) -> None:
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
        # Twice as many as there are threads, so that no thread has to wait for the next look.
        for piece in lookout.look(2 * THREADS - len(coming), coming, failed):
            with self._lock:
                self._coming[piece.name] = piece.nbytes
                self._queue.append(piece)
                if self._threads >= (_FIRST if position == self._start else THREADS):
                    continue
                self._threads += 1
            started("penstock-fetch", partial(self._fetch, lookout.cache), self.stop)

    def _fetch(self, cache: Cache) -> None:
        """The main function of a fetching thread: fetches pieces until the queue is empty."""
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
        """Waits before a retry. Raises _Stopped if the scout is closed in the meantime."""
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
    """The main function of a scout's thread: looks for pieces to fetch until the scout is closed or dropped."""
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
                # Without a warning: workers warn if the cache folder cannot be used.
                lookout.forget()
                fetches.rest()
            lookout = None
            fetches.wait(min(_SHARE * (time.thread_time() - begun), _LONGEST))
            lookout = reference()
    except Exception:
        if not fetches.stopped:
            import logging

            # A log record, not a warning, because no line of the user's code in this thread could be named.
            logging.getLogger("penstock").warning(
                "Fetching ahead has stopped because of the error below: each worker waits for its own downloads. The "
                "samples are the same. If the error does not come from your dataset, please report it.",
                exc_info=True,
            )
    finally:
        publisher.close()
