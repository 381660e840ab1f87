"""The producer: the source, read in a thread, and the copies of its batches."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock._prefetch.copies import Copies
from penstock._prefetch.gate import Gate, Made, Sweep
from penstock._wire.failure import annotate

_END = object()


class Producer:
    """Reads the source and copies its batches. Everything but `wanted` is for the thread that holds `turn`."""

    def __init__(self, source: Any, copies: Copies) -> None:
        kind = type(source)
        self._source = source
        self._call = callable(source) and not hasattr(kind, "__iter__")
        if not (self._call or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            raise TypeError(
                f"prefetch() takes an iterable of batches, or a function that returns one, got {kind.__name__}."
            )
        is_iterator = hasattr(kind, "__next__")
        self._reset: Callable[[], object] | None = getattr(source, "reset", None) if is_iterator else None
        self.can_restart = not is_iterator or self._reset is not None
        self.has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self.wanted: Sweep | None = None  # set by the consumer
        self.turn = threading.Lock()  # held by the thread for each batch, and by the consumer to load a state
        self._reading: Sweep | None = None  # the sweep that the iterator belongs to
        self._iterator: Iterator[Any] | None = None
        self._count = 0
        self._copies = copies

    def make(self, sweep: Sweep) -> Made:
        """The next batch of the source, or the error in its place, or the end."""
        number = 0
        try:
            if sweep is not self._reading:
                try:
                    self._open(sweep)
                finally:
                    if not sweep.opened.is_set():
                        sweep.first = self._state_if_any()
                        sweep.opened.set()
            number, self._count = self._count, self._count + 1
            given = _END if self._iterator is None else next(self._iterator, _END)
            if given is _END:
                self._iterator = None
                return Made(sweep, is_end=True, state=self.state())
            return Made(sweep, self._copies.copy(given), state=self.state())
        except BaseException as error:  # also SystemExit: the consumer decides whether the program ends
            note = f"While batch {number} of the source was read ahead."
            return Made(sweep, error=annotate(_not_the_end(error), note), state=self._state_if_any())

    def _open(self, sweep: Sweep) -> None:
        again, self._reading, self._count = self._reading is not None, sweep, 0
        self.leave()
        if again and not sweep.loaded and self._reset is not None:
            self._reset()
        self._iterator = iter(self._source() if self._call else self._source)

    def leave(self) -> None:
        """Closes the iterator now, and not when the garbage collector finds it."""
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if iterator is not self._source and close is not None:
            close()

    def end(self) -> None:
        del self._copies  # batches that are lent stay valid
        self.leave()

    def state(self) -> Any:
        """The state of the source, if it has one."""
        return self._source.state_dict() if self.has_state else None

    def _state_if_any(self) -> Any:
        """The state, or None if it cannot be had: for use while an error is being handled."""
        with suppress(Exception):
            return self.state()
        return None


def _not_the_end(error: BaseException) -> BaseException:
    """The error to raise: a StopIteration of the source's other methods would be taken for the end."""
    if not isinstance(error, StopIteration):
        return error
    wrong = RuntimeError("The source raised StopIteration, and not at its end.")
    wrong.__cause__ = error
    return wrong


def produce(gate: Gate, reference: weakref.ref[Producer]) -> None:
    """The thread: makes one batch for each permit.

    It refers to the producer only while it makes a batch. So dropping a prefetcher ends its thread, even if the
    source refers to the prefetcher.
    """
    has_read = False
    while (sweep := gate.permits.get()) is not None and not gate.stopped:
        producer = reference()
        if producer is None:
            return
        with producer.turn:
            if producer.wanted is sweep:
                has_read = True
                gate.made.put(producer.make(sweep))
        del producer
    producer = reference()
    if producer is not None and has_read:  # otherwise another thread may be reading
        producer.end()
