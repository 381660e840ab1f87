"""One epoch for several consumers: each batch goes to one of them, and each sample is read once."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from penstock._ending import END, Instead, raises_instead
from penstock._epoch.readers import Batches
from penstock._wire.failure import caught


class Consumer(AbstractContextManager["Consumer"]):
    """One of the iterators that `DataLoader.share` returns, for one thread at a time."""

    def __init__(self, shared: SharedEpoch, number: int) -> None:
        self._shared = shared
        self._number = number

    def __iter__(self) -> Consumer:
        return self

    @raises_instead
    def __next__(self) -> Any:
        return self._shared.next(self._number)

    def close(self) -> None:
        """Leaves the epoch, and the batches that wait for this consumer, to the other consumers."""
        self._shared.leave(self._number)

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Item(NamedTuple):
    """A batch, or an Instead, and the steps that are done when it is handed out."""

    steps: list[tuple[int, bytes | None]]
    batch: Any


_ENDED = _Item([], END)


class SharedEpoch:
    """Knows its consumers by number, and does not keep them alive: one that is dropped leaves the epoch.

    The reader reports to it (see `Told`), and not to the loader's progress, since a batch that waits for its consumer
    is not handed out yet.
    """

    def __init__(self, reader: Batches, consumers: int, in_turn: bool, window: int) -> None:
        self._reader = reader
        self._told, reader.told = reader.told, self
        self.epoch = self._told.epoch
        self._steps: list[tuple[int, bytes | None]] = []  # of the batch that was read last
        self._end: bytes | None = None
        self._in_turn = in_turn
        self._window = window
        # One lock for all attributes below. It is not held while a batch is read, so a consumer whose batch is here
        # gets it at once. It is reentrant: the garbage collector may drop a consumer in the thread that holds it.
        self._changed = threading.Condition()
        self._reading: object = None
        self._queues: dict[int, deque[_Item]] = {number: deque() for number in range(consumers)}
        self._left: deque[_Item] = deque()  # from consumers that have left
        self._turn = 0
        self._ended = False

    def passed(self, step: int, mark: bytes | None) -> None:
        self._steps.append((step, mark))

    def finish(self, end: bytes | None) -> None:
        self._end = end

    def next(self, number: int) -> Any:
        me = object()
        try:
            while (item := self._find(number, me)) is None:
                self._pass_on(number, self._read())
        finally:
            if self._reading is me:  # after an error or an interrupt: another thread may read
                self._stop_reading()
        return item.batch

    def leave(self, number: int) -> None:
        with self._changed:
            self._left.extend(self._queues.pop(number, ()))
            self._wake()

    def _find(self, number: int, me: object) -> _Item | None:
        """Waits for the consumer's next batch; returns None if the calling thread, `me`, has to read one."""
        with self._changed:
            while True:
                queue = self._queues.get(number)
                if queue:
                    item = queue.popleft()
                    for step, mark in item.steps:
                        self._told.passed(step, mark)
                    self._wake()
                    return item
                if queue is None or (self._ended and not self._left):
                    self._queues.pop(number, None)  # the end stays the end
                    return _ENDED
                if self._reading is None and len(self._queues[self._owner(number)]) < self._window:
                    self._reading = me
                    return None
                # With a timeout: an interrupt that comes just before `wait` does not end it.
                self._changed.wait(1.0)

    def _owner(self, asking: int) -> int:
        """The consumer that gets the next batch."""
        if not self._in_turn:
            return asking
        return min((number for number in self._queues if number >= self._turn), default=min(self._queues))

    def _read(self) -> _Item | None:
        """The next batch, or the error in its place; None at the end. Raises errors that belong to no batch."""
        if self._left:
            return self._left.popleft()
        try:
            batch = self._reader.take()
        except BaseException as error:
            if not self._steps:
                raise
            batch = Instead(caught(error))
        if batch is END:
            return None
        steps, self._steps = self._steps, []
        return _Item(steps, batch)

    def _pass_on(self, asking: int, item: _Item | None) -> None:
        with self._changed:
            if item is None:
                self._ended = True
            elif not self._queues or (not self._in_turn and asking not in self._queues):
                self._left.append(item)
            else:
                owner = self._owner(asking)
                self._queues[owner].append(item)
                self._turn = owner + 1
            self._stop_reading()

    def _stop_reading(self) -> None:
        with self._changed:
            self._reading = None
            self._wake()

    def _wake(self) -> None:
        """Something has changed: the epoch may be over, the last consumer may have left, or others need not wait."""
        if self._ended and not self._left and not any(self._queues.values()):
            self._told.finish(self._end)
        if not self._queues and self._reading is None:
            self._reader.close()
            self._reader.told = self._told  # else the two refer to each other, and keep the loader alive
        self._changed.notify_all()


def share(reader: Batches, consumers: int, in_turn: bool, window: int) -> list[Consumer]:
    epoch = SharedEpoch(reader, consumers, in_turn, window)
    return [Consumer(epoch, number) for number in range(consumers)]
