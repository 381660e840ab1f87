"""The counters of workers. Each worker writes to its own row of memory, which the caller can read at any time.

No messages are sent. An 8-byte word is written atomically, so a reader in another process sees either the old or the
new value. A row belongs to a seat, so a replacement worker continues the counters of the worker it replaces. The
memory has a head, followed by one row for each seat:

    head   how long the caller has waited for batches so far; when the caller's current wait began (0 if there is
           none); and whether workers keep a record of each task
    row    the counters, a histogram of sample times, three lists of slowest samples (two for the last two epochs, one
           for all epochs), and records of the last tasks
"""

from __future__ import annotations

import heapq
import os
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from penstock._measure.cached import CacheCounts, OngoingOutage
from penstock._measure.histogram import BUCKETS, bucket
from penstock._memory.mapping import mapped, view_of

_WAITED, _WAITING, _TRACING = range(3)  # words of the head
_HEAD = 4096  # bytes: one page of memory, which the caller writes and workers read


class Counts(NamedTuple):
    """The counters of one worker. Times and durations are in nanoseconds of `time.perf_counter_ns`."""

    pid: int = 0
    pil: int = 0  # 1 if PIL has opened images in the worker's process, and penstock.image none
    outage: int = 0  # when the worker began to wait for a store that does not answer, or 0
    born: int = 0  # when the worker was started
    ready: int = 0  # when the worker could take its first task
    first: int = 0  # when the first samples were fetched
    since: int = 0  # when the current task began, or 0 if the worker is idle
    tasks: int = 0
    steps: int = 0
    busy: int = 0  # the total duration of all tasks
    timed: int = 0  # the total duration of the steps that were timed in detail; without any, all is fetching
    fetching: int = 0  # the part of `timed` that was spent fetching samples
    writing: int = 0  # the part of `timed` that was spent writing results
    waited_task: int = 0  # how long the worker had no task although the caller waited
    waited_room: int = 0  # how long the worker was idle because enough batches were ready
    cpu: int = 0
    delayed: int = 0  # how long the worker's thread was ready to run, but had no processor
    cache_hits: int = 0
    cache_misses: int = 0
    cache_waited: int = 0
    cache_fetched: int = 0
    cache_evicted: int = 0
    cache_requests: int = 0
    cache_retries: int = 0
    cache_nbytes: int = 0
    cache_decoded: int = 0

    @property
    def fetch(self) -> int:
        return self.busy * self.fetching // self.timed if self.timed else self.busy

    @property
    def write(self) -> int:
        return self.busy * self.writing // max(1, self.timed)

    @property
    def collate(self) -> int:
        return self.busy - self.fetch - self.write

    def plus(self, other: Counts) -> Counts:
        """Adds the counters of an earlier worker in the same seat."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _ADDED}
        return self._replace(pil=self.pil | other.pil, born=other.born, ready=other.ready, first=other.first, **sums)

    def minus(self, before: Counts) -> Counts:
        return self._replace(**{name: getattr(self, name) - getattr(before, name) for name in _ADDED})


_ADDED = Counts._fields[7:]


class Slow(NamedTuple):
    """A slow sample. `path` is the sample's file, or "" if unknown. The beginning of a long path is cut off."""

    ns: int
    epoch: int
    step: int
    key: str
    path: str = ""


class RowCopy(NamedTuple):
    """A packed copy of one worker's counters. A copy is made when an epoch begins, and unpacked only if needed."""

    seat: int
    row: bytes

    def counts(self) -> Counts:
        return Counts._make(_COUNTS.unpack_from(self.row))

    def times(self) -> bytes:
        """Returns the histogram of this worker's times per sample, as 8-byte words."""
        return self.row[8 * _TIMES :]


class TracedTask(NamedTuple):
    """For traces: when a task began, when its samples were fetched, when its batch was made, and when it ended.

    In a bundle, only the first step is timed, so `fetched` and `made` are estimates.
    """

    seat: int
    began: int
    fetched: int
    made: int
    ended: int
    seq: int
    epoch: int
    step: int
    steps: int


_COUNTS = struct.Struct(f"{len(Counts._fields)}q")
_PIL, _OUTAGE, _READY, _FIRST, _SINCE, _TIMED, _WAITED_TASK, _CACHED = map(
    Counts._fields.index, ("pil", "outage", "ready", "first", "since", "timed", "waited_task", "cache_hits")
)
_MOMENTS = [Counts._fields.index(name) for name in ("outage", "born", "ready", "first", "since")]
_TOLD = struct.Struct("2q")  # the number of words of the row, and the number of records
_TASKS = struct.Struct("4q")  # since, tasks, steps, busy
_PARTS = struct.Struct("3q")  # timed, fetching, writing
_IDLE = struct.Struct("4q")  # waited_task, waited_room, cpu, delayed
_CACHE = struct.Struct(f"{len(CacheCounts.NAMES)}q")  # cache_hits and so on
_TIMES = 32  # the offset of the histogram, in words
_SLOWEST = _TIMES + BUCKETS
_COPY = struct.Struct(f"{8 * _SLOWEST}s")
MOST_SLOW = 10
_NAME = 96  # bytes for a key and a path together
_SLOW = struct.Struct(f"3qq{_NAME}s")  # ns, epoch, step, the length of the text, and the text: a key and a path
_ENTRY = 16  # words
_STORE_AT = _SLOWEST + 3 * MOST_SLOW * _ENTRY  # the offset of the name of a store that does not answer, in words
_STORE_NAME = 200  # bytes
_STORE = struct.Struct(f"q{_STORE_NAME}s")
_RECORDED = 31
_RECORDS = 512
_RECORD = struct.Struct("8q")
_RING = 1024  # the offset of the records, in words
_TOLD_WHOLE, _TOLD_COUNTS = struct.Struct(f"{8 * _RING}s"), struct.Struct(f"{8 * _TIMES}s")
_ROW = _RING + _RECORDS * 8
_ROWS = 1024  # further seats share rows

assert _COUNTS.size <= 8 * _RECORDED and _SLOW.size <= 8 * _ENTRY and 8 * _STORE_AT + _STORE.size <= 8 * _RING

# Samples that take less than this on average are not timed one by one, because timing takes 0.2 µs per sample.
TIMED = 20_000  # ns

# At most one step in this period is timed in detail: that takes 3 µs, and reading the CPU time is a system call.
_EVERY = 10_000_000  # ns

# How long a thread had no processor is read from a file once in this period, because that takes 12 µs.
_DELAY_EVERY = 100_000_000  # ns

_clock = time.perf_counter_ns


def delay_ns(thread: str = "thread-self") -> int:
    """Returns how long a thread was runnable without getting a CPU, in ns, or 0 if this time is unknown."""
    try:
        with open(f"/proc/{thread}/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class Gauges:
    """The counters of all workers, one row each, in the shared file `fd`, or in private memory if it is None."""

    SIZE = _HEAD + _ROWS * _ROW * 8  # most pages are never touched, so they take no memory

    def __init__(self, fd: int | None) -> None:
        self.memory = mapped(fd, self.SIZE)
        self.words = view_of(self.memory).cast("q")  # all threads share it, so no thread may slice it: see `view_of`
        self.seats: frozenset[int] = frozenset()  # seats that have had a worker; replaced, never changed
        self._read: dict[int, int] = {}  # by seat: the number of records read so far
        self.nodes: Mapping[int, str] = {}  # by seat: the name of a worker's machine; replaced, never changed

    # For the caller.

    def all(self) -> dict[int, Counts]:
        return {seat: self.counts(seat) for seat in sorted(self.seats)}

    def begin_wait(self, now: int) -> None:
        self.words[_WAITING] = now

    def end_wait(self, now: int) -> None:
        words = self.words
        words[_WAITED] += now - words[_WAITING]
        words[_WAITING] = 0

    def counts(self, seat: int) -> Counts:
        return Counts._make(_COUNTS.unpack_from(self.memory, self.row(seat) * 8))

    def copy(self, seat: int) -> RowCopy:
        return RowCopy(seat, *_COPY.unpack_from(self.memory, self.row(seat) * 8))

    def slowest(self, seat: int, epoch: int | None = None) -> list[Slow]:
        """Returns the worker's slowest samples: of all epochs, or of one of the last two."""
        found = self.table(seat, 0 if epoch is None else 1 + epoch % 2)
        return [slow for slow in found if epoch in (None, slow.epoch)]

    def table(self, seat: int, number: int) -> list[Slow]:
        """Returns the slowest samples in table 0 (all epochs), 1 (the last even epoch) or 2 (the last odd epoch)."""
        found = []
        for at in range(MOST_SLOW):
            start = self.entry(seat, number) + at * _ENTRY * 8
            ns, epoch, step, length, text = _SLOW.unpack_from(self.memory, start)
            if length:
                key, _, path = text[:length].partition(b"\0")
                found.append(Slow(ns, epoch, step, key.decode(errors="replace"), path.decode(errors="ignore")))
        return found

    def outage(self, seats: Iterable[int]) -> OngoingOutage | None:
        """Returns the longest outage of a store that currently delays one of these workers."""
        waiting = [(since, seat) for seat in seats if (since := self.words[self.row(seat) + _OUTAGE])]
        if not waiting:
            return None
        since, seat = min(waiting)
        length, text = _STORE.unpack_from(self.memory, (self.row(seat) + _STORE_AT) * 8)
        return OngoingOutage(text[: max(0, length)].decode(errors="ignore"), since)

    def show_outage(self, seat: int, outage: OngoingOutage | None) -> None:
        row = self.row(seat)
        if outage is not None:
            text = outage.store.encode()[:_STORE_NAME]
            _STORE.pack_into(self.memory, (row + _STORE_AT) * 8, len(text), text)
        self.words[row + _OUTAGE] = 0 if outage is None else outage.since

    def trace(self, on: bool) -> None:
        self.words[_TRACING] = on

    def records(self, seat: int) -> list[TracedTask]:
        """Returns the task records that a worker has written since the last call, but at most the newest 512."""
        recorded = self.recorded(seat)
        places = _record_places(self.row(seat) * 8, self._read.get(seat, 0), recorded)
        self._read[seat] = recorded
        return [TracedTask(seat, *_RECORD.unpack_from(self.memory, at)) for at in places]

    # For workers that share no memory with the caller: rows are sent as bytes, and their clocks differ by `shift`.

    def tell(self, seat: int, *, whole: bool = True, since: int | None = None) -> bytes:
        """Returns a worker's counters as bytes, to be sent to another process.

        If `whole` is True, they include the histogram and the slowest samples. If `since` is given, they include the
        records of tasks from this number on.
        """
        start, recorded = self.row(seat) * 8, self.recorded(seat)
        told: bytes
        (told,) = (_TOLD_WHOLE if whole else _TOLD_COUNTS).unpack_from(self.memory, start)
        places = _record_places(start, recorded if since is None else since, recorded)
        records = b"".join([_RECORD.pack(*_RECORD.unpack_from(self.memory, at)) for at in places])
        return _TOLD.pack(len(told) // 8, len(places)) + told + records

    def hear(self, seat: int, told: bytes | bytearray, shift: int) -> None:
        """Stores counters that `tell` returned in another process. Adds `shift` to times, in nanoseconds."""
        count, records = _TOLD.unpack_from(told)
        row = array("q", told[_TOLD.size : _TOLD.size + 8 * count])
        for at in _MOMENTS:
            if row[at]:
                row[at] += shift
        start = self.row(seat) * 8
        heard = _RECORD.iter_unpack(told[_TOLD.size + 8 * count :])
        for at, record in zip(_record_places(start, row[_RECORDED] - records, row[_RECORDED]), heard, strict=True):
            _RECORD.pack_into(self.memory, at, *(moment + shift for moment in record[:4]), *record[4:])
        struct.pack_into(f"{8 * count}s", self.memory, start, row.tobytes())

    def waited(self) -> int:
        """Returns how long the caller has waited for batches so far, in nanoseconds."""
        since = self.words[_WAITING]
        return self.words[_WAITED] + (_clock() - since if since else 0)

    def hear_caller(self, waited: int, tracing: int) -> None:
        """Stores the head that the caller's process has sent: the time waited, and whether to keep task records."""
        self.words[_WAITED], self.words[_TRACING] = waited, tracing

    @property
    def tracing(self) -> int:
        return self.words[_TRACING]

    def recorded(self, seat: int) -> int:
        return self.words[self.row(seat) + _RECORDED]

    def begun(self, seat: int, at: int) -> None:
        """Records when this worker began its current task. The time 0 means that it has no task."""
        self.words[self.row(seat) + _SINCE] = at

    def row(self, seat: int) -> int:
        """Returns the offset of a worker's row in `words`."""
        return _HEAD // 8 + seat % _ROWS * _ROW

    def entry(self, seat: int, number: int) -> int:
        return _HEAD + (seat % _ROWS * _ROW + _SLOWEST + number * MOST_SLOW * _ENTRY) * 8


def _record_places(start: int, first: int, stop: int) -> list[int]:
    """Returns the byte offsets of task records `first` to `stop - 1`, except overwritten ones."""
    return [start + (_RING + number % _RECORDS * 8) * 8 for number in range(max(first, stop - _RECORDS), stop)]


class _PublishedCounts(CacheCounts):
    """The cache counters of a worker. They also show store outages to the caller."""

    __slots__ = ("_gauges", "_seat")

    def __init__(self, gauges: Gauges, seat: int, *counts: int) -> None:
        super().__init__(*counts)
        self._gauges, self._seat, self.warns = gauges, seat, False

    def show(self, outage: OngoingOutage | None) -> None:
        self._gauges.show_outage(self._seat, outage)


class Gauge:
    """Measures one worker: with `detailed`, the parts of each step, and with `times`, each sample."""

    def __init__(self, gauges: Gauges, seat: int, pid: int, cpu_ns: Callable[[], int]) -> None:
        self._memory = view_of(gauges.memory)
        self._head, row = self._memory.cast("q"), gauges.row(seat)
        self._words, self._at = self._head[row : row + _ROW], row * 8
        counts = gauges.counts(seat)
        self._tasks, self._steps, self._busy = counts.tasks, counts.steps, counts.busy
        self._timed = counts.timed, counts.fetching, counts.writing
        self._idle = counts.waited_task, counts.waited_room
        self._cpu_ns, self._cpu_before = cpu_ns, counts.cpu - cpu_ns()
        self._delayed, self._delay, self._delay_due = counts.delayed, delay_ns(), 0
        self.cache = _PublishedCounts(gauges, seat, *counts[_CACHED:])
        # The tables of slowest samples: their byte offsets, and for each a heap of pairs (ns, index in the table).
        self._tables = [gauges.entry(seat, number) for number in range(3)]
        found = [gauges.table(seat, number) for number in range(3)]
        self._slow = [[(slow.ns, at) for at, slow in enumerate(one)] for one in found]
        for heap in self._slow:
            heapq.heapify(heap)
        self._epochs = [-1, *(one[0].epoch if one else -1 for one in found[1:])]
        self._epoch = 1  # the table of the current epoch
        self.detailed, self.times = False, True  # nothing is known about the first samples
        self.fetched = self.made = 0
        self._shares = 1.0, 0.0  # the shares of fetching and writing in the last step that was timed in detail
        self._due = 0  # when the next step is timed in detail
        self._began = self._noted = born = _clock()
        self._waited, self._busy_then = self._caller_waited(born), self._busy  # when `_noted` was set
        _COUNTS.pack_into(self._memory, self._at, pid, 0, 0, born, 0, counts.first, 0, *counts[_SINCE + 1 :])

    def ready(self) -> None:
        self._noted = self._words[_READY] = _clock()

    def begin(self) -> None:
        now = self._began = self._words[_SINCE] = _clock()
        if now > self._due:
            self.detailed, self.fetched, self.made = True, 0, 0
            self._due = now + _EVERY
            self.flush(now)

    def stepped(self, samples: int) -> None:
        """Records the times of a task's first step, if it was timed in detail. Other steps are assumed to be similar.

        `samples` is the number of samples in the step, or 0 if the step failed or the number is unknown.
        """
        now, began = _clock(), self._began
        self.detailed = False
        fetched = self.fetched or now  # 0 if there was an error
        took, fetching, writing = max(1, now - began), fetched - began, now - (self.made or now)
        self._shares = fetching / took, writing / took
        timed = self._timed
        self._timed = timed[0] + took, timed[1] + fetching, timed[2] + writing
        _PARTS.pack_into(self._memory, self._at + 8 * _TIMED, *self._timed)
        if not self._words[_FIRST]:
            self._words[_FIRST] = fetched
        if samples > 0:
            each = fetching // samples
            if not self.times:
                self._words[_TIMES + bucket(each)] += samples
            self.times = each > TIMED

    def end(self, task: Any, steps: int = 1) -> None:
        now, began = _clock(), self._began
        self._tasks += 1
        self._steps += steps
        self._busy += now - began
        _TASKS.pack_into(self._memory, self._at + 8 * _SINCE, 0, self._tasks, self._steps, self._busy)
        if self.cache.changed:
            self.cache.changed = False
            _CACHE.pack_into(self._memory, self._at + 8 * _CACHED, *self.cache.words())
        if now > self._due:
            self.flush(now)
        if self._head[_TRACING]:
            self._due = 0
            self._record(began, now, task, steps)

    def flush(self, now: int = 0) -> None:
        """Updates the worker's idle time, its CPU time, and the time that it was runnable but had no CPU.

        This method is called between two tasks, and once without `now` after the last task.
        """
        last, now = not now, now or _clock()
        idle = (now - self._noted) - (self._busy - self._busy_then)
        # If the caller waited, the worker was idle because it had no task; otherwise because it had no room.
        waited = self._caller_waited(now)
        wanting = max(0, min(idle, waited - self._waited))
        self._idle = self._idle[0] + wanting, self._idle[1] + idle - wanting
        self._noted, self._busy_then, self._waited = now, self._busy, waited
        if last or now > self._delay_due:
            self._delay_due = now + _DELAY_EVERY
            # PIL imports the plugin to open its first image. penstock.image uses PIL too, but not for JPEGs.
            self._words[_PIL] = "PIL.JpegImagePlugin" in sys.modules and "penstock._pixels" not in sys.modules
            delay = delay_ns()
            # Nothing is added if the kernel does not count, or if the file cannot be opened.
            self._delayed += max(0, delay - self._delay)
            self._delay = max(delay, self._delay)
        cpu = self._cpu_before + self._cpu_ns()
        _IDLE.pack_into(self._memory, self._at + 8 * _WAITED_TASK, *self._idle, cpu, self._delayed)

    def _record(self, began: int, now: int, task: Any, steps: int) -> None:
        fetching, writing = self._shares
        at = self._at + (_RING + self._words[_RECORDED] % _RECORDS * 8) * 8
        took = now - began
        parts = began, began + int(took * fetching), now - int(took * writing), now
        # The thread of `prefetch` has no tasks, so the number of the batch is recorded as the step.
        which = (-1, 0, self._tasks - 1) if task is None else (task.seq, task.epoch, task.step)
        _RECORD.pack_into(self._memory, at, *parts, *which, steps)
        self._words[_RECORDED] += 1

    def _caller_waited(self, now: int) -> int:
        since = self._head[_WAITING]
        return self._head[_WAITED] + (now - since if since else 0)

    # Samples one by one.

    def begin_epoch(self, epoch: int) -> None:
        table = self._epoch = 1 + epoch % 2
        if epoch != self._epochs[table]:
            self._epochs[table] = epoch
            self._slow[table].clear()
            for at in range(MOST_SLOW):
                _SLOW.pack_into(self._memory, self._tables[table] + at * _ENTRY * 8, 0, 0, 0, 0, b"")

    def sample(self, ns: int) -> bool:
        """Counts the time of a sample. Returns True if it is slow enough to be passed to `note`."""
        self._words[_TIMES + bucket(ns)] += 1
        if ns < TIMED:
            return False
        return len(slow := self._slow[self._epoch]) < MOST_SLOW or ns > slow[0][0]

    def note(self, slow: Slow) -> None:
        """Adds a sample to the tables of slowest samples, if it is slow enough."""
        text = _named(slow)
        for table in (0, self._epoch):
            heap = self._slow[table]
            if len(heap) < MOST_SLOW:
                at = len(heap)
                heapq.heappush(heap, (slow.ns, at))
            elif slow.ns > heap[0][0]:
                at = heap[0][1]
                heapq.heapreplace(heap, (slow.ns, at))
            else:
                continue
            _SLOW.pack_into(self._memory, self._tables[table] + at * _ENTRY * 8, *slow[:3], len(text), text)


def _named(slow: Slow) -> bytes:
    key, path = slow.key.encode().replace(b"\0", b" ")[:_NAME], os.fsencode(slow.path)
    room = _NAME - len(key) - 1
    if not path or room < 16:
        return key
    return key + b"\0" + (path if len(path) <= room else "…".encode() + path[3 - room :])


class NoGauge:
    """A stand-in for `Gauge` that measures nothing."""

    detailed = times = False
    fetched = made = 0
    cache = None

    def begin_epoch(self, epoch: int) -> None:
        pass

    def sample(self, ns: int) -> bool:
        return False

    def note(self, slow: Slow) -> None:
        pass


NO_GAUGE = NoGauge()
