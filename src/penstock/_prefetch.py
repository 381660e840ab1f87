"""The thread behind `prefetch`, which reads the source and copies each batch into recycled memory.

Two queues connect the thread and its consumer (see `Gate`): one for permits and one for batches. The thread makes one
batch for each permit, and the consumer returns a permit for each batch that it takes. There are `depth` permits, so
at most `depth` batches are read ahead.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from penstock._fill.cast import FieldCast, converted
from penstock._measure.gauges import Gauge, Gauges
from penstock._memory.guests import HANDLERS
from penstock._memory.layout import Writer
from penstock._memory.slabs import Leases, Slabs
from penstock._memory.tree import flatten, unflatten
from penstock._schedule.slabs import SlabStates
from penstock._system.ending import END, NoBatch
from penstock._system.interrupts import LOOK_AGAIN, InterruptSafeCondition, call_at_end
from penstock._system.threads import started
from penstock._wire.failure import caught

_END = object()


class Sweep:
    """One pass over the source, with its own permits and batches. Batches of earlier sweeps are dropped."""

    def __init__(self, loaded: bool, state: Any, loads: int = 0) -> None:
        self.loaded = loaded  # it continues from a state that was loaded
        self.loads = loads  # how many states were loaded before it
        self.is_open = False  # `iter(source)` was called for it
        self.is_over = False  # True once the consumer has reached its end
        self.state = state  # the source's state after the last delivered batch
        self.state_is_known = state is not None


class Produced(NamedTuple):
    """The result of one `next()` on the source: a batch, END, or a NoBatch that holds an error."""

    sweep: Sweep | None
    batch: Any = None
    state: Any = None
    nbytes: int = 0


class Gate:
    """The two queues between the reading thread and its consumer."""

    def __init__(self, owner: object) -> None:
        # `put` takes no Python lock, because the garbage collector may call it at any moment.
        self.permits: queue.SimpleQueue[Sweep | None] = queue.SimpleQueue()
        self.made: queue.SimpleQueue[Produced] = queue.SimpleQueue()
        self.changes = InterruptSafeCondition()  # wakes threads that wait for the state of a sweep
        # Wakes the thread when the owner is deallocated, even if the owner is in a reference cycle. The thread itself
        # refers only to the gate.
        self._owner = call_at_end(owner, partial(self.permits.put, None))
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped or self._owner() is None

    def stop(self) -> None:
        self._stopped = True
        self.permits.put(None)

    def take(self) -> Produced:
        while True:
            with suppress(queue.Empty):
                return self.made.get(timeout=LOOK_AGAIN)

    def drain(self) -> None:
        with suppress(queue.Empty):
            while True:
                self.made.get_nowait()


def start(gate: Gate, producer: Producer) -> threading.Thread:
    return started("penstock-prefetch", partial(produce, gate, weakref.ref(producer)), gate.stop)


class Copies:
    """Copies batches into slabs (reused blocks of memory). If `pin` is True, tensors go to pinned memory instead."""

    def __init__(self, most: int, field: FieldCast | None, pin: bool) -> None:
        self._field = field
        self._pin = pin
        self._slabs = Slabs(None)
        self._leases = Leases(shared=False)
        # At most `most` slabs keep their pages for reuse. `spare` is `most` minus the slabs in use.
        self._states = SlabStates(most)
        self.copied = 0  # bytes of the last copy

    def memory(self) -> tuple[int, int, int]:
        """Returns three byte counts: slabs in use, free slabs, and other memory (always 0)."""
        lent = self._leases.nbytes
        return lent, max(0, self._slabs.nbytes - lent), 0

    def copy(self, tree: object) -> Any:
        """Copies a tree of arrays and other objects. The new arrays are in a slab that is lent to the caller."""
        leaves, spec = flatten(tree)
        fields = [None] * len(leaves) if self._field is None else self._field.of(spec)
        states, cold = self._states, list[Any]()
        for slab in self._leases.collect():
            states.spare += 1
            states.free(slab, cold)
        for command in cold:
            self._slabs.cool(command.slab)
        slab = states.take()
        states.spare -= 1
        try:
            # A batch that is larger than all before it gets ordinary memory; later slabs are large enough.
            writer = Writer(self._slabs.root(slab))
            made = [_copied(*each, writer, self._pin) for each in zip(leaves, fields, strict=True)]
        except BaseException:
            self._leases.give_back(slab)
            raise
        self.copied = writer.used
        self._slabs.learn(writer.used)
        self._leases.lend(slab, writer.root, writer.used)
        return unflatten(spec, made)


def _copied(leaf: Any, field: FieldCast | None, writer: Writer, pin: bool) -> Any:
    kind = type(leaf)
    if field is not None:
        made = converted(leaf, field, writer.empty)
        if made is not leaf:
            handler = HANDLERS[type(made)] if pin else None
            return made if handler is None else handler.pin(made)
    if (kind is np.ndarray or kind is np.memmap) and not leaf.dtype.hasobject:
        out = writer.empty(leaf.shape, leaf.dtype)
        np.copyto(out, leaf)
        return out
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    handler = HANDLERS[kind]
    if handler is None:
        return leaf
    if pin:
        return handler.pin(leaf)
    spot = handler.store and handler.store(leaf, writer)
    if spot is None or spot[3] < 0:  # only the array's own library can copy it, or it does not fit
        return handler.copy(leaf)
    make, shape, how, start = spot
    return make(shape, how, writer.root, start)


class Producer:
    """Reads the source and copies its batches. Hold the lock `turn` to use any attribute except `wanted`."""

    def __init__(self, source: Any, copies: Copies) -> None:
        kind = type(source)
        self._source = source
        self._call = callable(source) and not hasattr(kind, "__iter__")
        if not (self._call or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            raise TypeError(
                f"prefetch() takes an iterable of batches, or a function that returns one, got {kind.__name__}."
            )
        is_iterator = hasattr(kind, "__next__")
        self._reset = getattr(source, "reset", None) if is_iterator else None
        self.can_restart = not is_iterator or self._reset is not None
        self.has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self.wanted: Sweep | None = None  # set by the consumer
        self.loads = 0  # how many states were loaded
        self.turn = threading.Lock()  # held by the thread for each batch, and by the consumer to load a state
        self._reading: Sweep | None = None  # the sweep that the iterator belongs to
        self._iterator: Iterator[Any] | None = None
        self._count = 0
        self._copies = copies
        self.gauges = Gauges(None)
        self.gauges.seats |= {0}
        self._gauge: Gauge | None = None  # made by the thread, whose processor time it measures

    def make_timed(self, sweep: Sweep, changes: InterruptSafeCondition) -> Produced:
        """Calls `make`, and adds the time taken to the reading thread's counters."""
        gauge = self._gauge
        if gauge is None:
            gauge = self._gauge = Gauge(self.gauges, 0, threading.get_native_id(), time.thread_time_ns)
            gauge.ready()
        gauge.begin()
        made = self.make(sweep, changes)
        if gauge.detailed:
            gauge.stepped(0)
        gauge.end(None)
        return made

    def make(self, sweep: Sweep, changes: InterruptSafeCondition) -> Produced:
        """Reads and copies the next batch. Gives END after the last batch, and a NoBatch after an error."""
        number = 0
        try:
            if sweep is not self._reading:
                try:
                    self._open(sweep)
                finally:
                    if not sweep.state_is_known:
                        sweep.state = self._state_if_any()
                        sweep.state_is_known = True
                        changes.tell()
            number, self._count = self._count, self._count + 1
            given = _END if self._iterator is None else next(self._iterator, _END)
            if self._gauge is not None and self._gauge.detailed:
                self._gauge.fetched = perf_counter_ns()
            if given is _END:
                self._iterator = None
                return Produced(sweep, END, state=self.state())
            return Produced(sweep, self._copies.copy(given), self.state(), self._copies.copied)
        except BaseException as error:  # also SystemExit: the consumer decides whether the program ends
            note = f"While batch {number} of the source was read ahead."
            return Produced(sweep, NoBatch(caught(error, note)), state=self._state_if_any())

    def open_unwanted(self, sweep: Sweep) -> None:
        """Calls `iter(source)` for a sweep that a reset replaced before the sweep could start."""
        # If the source is a loader, each iter() begins another epoch. Without this call, the epoch after a reset
        # would depend on how far the reading thread had come.
        with suppress(BaseException):  # no consumer waits for this sweep
            self._open(sweep)

    def _open(self, sweep: Sweep) -> None:
        sweep.is_open = True
        again, self._reading, self._count = self._reading is not None, sweep, 0
        self.leave()
        if again and not sweep.loaded and self._reset is not None:
            self._reset()
        self._iterator = iter(self._source() if self._call else self._source)

    def leave(self) -> None:
        """Closes the source's iterator at once, without waiting for the garbage collector."""
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if iterator is not self._source and close is not None:
            close()

    def state(self) -> Any:
        return self._source.state_dict() if self.has_state else None

    def _state_if_any(self) -> Any:
        """Returns the source's state, or None if `state_dict()` raises."""
        with suppress(BaseException):  # if the thread ended, the consumer would wait forever
            return self.state()
        return None


def produce(gate: Gate, reference: weakref.ref[Producer]) -> None:
    """Main loop of the reading thread: makes one batch for each permit."""
    has_read = False
    while (sweep := gate.permits.get()) is not None and not gate.stopped:
        producer = reference()
        if producer is None:
            break
        with producer.turn:
            if producer.wanted is sweep:
                has_read = True
                gate.made.put(producer.make_timed(sweep, gate.changes))
            elif not sweep.is_open and sweep.loads == producer.loads:
                has_read = True
                producer.open_unwanted(sweep)
        # The thread ends when the prefetcher is dropped, even if the source refers to the prefetcher.
        del producer
    producer = reference()
    if producer is not None and has_read:  # otherwise another thread may be reading
        del producer._copies  # batches that are lent stay valid
        producer.leave()
    gate.drain()  # an error in the queue keeps the gate alive, through this thread's frames in the traceback
