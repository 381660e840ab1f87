"""One epoch for several consumers. Each batch goes to one of the consumers, and each sample is read only once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._session.reading import Batches
from penstock._system.ending import END, NoBatch, raises_instead
from penstock._system.interrupts import LOOK_AGAIN, InterruptSafeCondition, finalizer, interrupts_deferred
from penstock._wire.failure import caught

if TYPE_CHECKING:
    from penstock._session.semantics import Position


class Consumer(AbstractContextManager["Consumer"]):
    """One of the iterators that `DataLoader.share` returns. It must be used by one thread at a time."""

    _shared: SharedEpoch | None = None  # for `close`, if an interrupt came in the constructor

    def __init__(self, shared: SharedEpoch, number: int) -> None:
        self._number, self._shared = number, shared

    def __iter__(self) -> Consumer:
        return self

    @raises_instead
    def __next__(self) -> Any:
        assert self._shared is not None
        return self._shared.next(self._number)

    def close(self) -> None:
        """Leaves the epoch. Batches that were waiting for this consumer go to the other consumers."""
        with interrupts_deferred():
            if self._shared is not None:
                self._shared.leave(self._number)

    def __exit__(self, *error: object) -> None:
        self.close()

    __del__ = finalizer(close)


class _Item(NamedTuple):
    """A batch or a NoBatch, with the steps that are reported as handed out once a consumer receives it."""

    steps: list[tuple[int, bytes | None, int]]
    batch: Any


_ENDED = _Item([], END)


class _NextCall:
    """A call to `next()`. If the call is interrupted, the batch in `item` is lost: no queue contains that batch."""

    item: _Item | None = None


class SharedEpoch:
    """An epoch that several consumers read.

    The epoch holds only weak references to its consumers: a consumer that is garbage collected leaves the epoch. The
    reader reports each step to this object, not directly to `position`, because a batch that is still waiting for its
    consumer does not count as handed out.
    """

    def __init__(self, reader: Batches, position: Position, consumers: int, in_turn: bool, window: int) -> None:
        self._reader, self._position = reader, position
        self._steps: list[tuple[int, bytes | None, int]] = []  # of the batch that was read last
        self._end: tuple[bytes | None, Mapping[int, bytes]] = None, {}
        self._in_turn = in_turn
        self._window = window
        # Its lock protects all attributes below. It is not held while a batch is read, so a consumer whose batch is
        # already here gets it at once.
        self._changes = InterruptSafeCondition()
        self._reading: _NextCall | None = None
        self._queues: dict[int, deque[_Item]] = {number: deque() for number in range(consumers)}
        self._left: deque[_Item] = deque()  # items of consumers that have left
        self._turn = 0
        self._ended = False
        self._ended_by = ""  # what interrupted a call to next()
        self.consumers: list[weakref.ref[Consumer]] = []  # by number

    def passed(self, step: int, mark: bytes | None, worker: int) -> None:
        self._steps.append((step, mark, worker))

    def finish(self, end: bytes | None, ends: Mapping[int, bytes]) -> None:
        self._end = end, ends

    def next(self, number: int) -> Any:
        call = _NextCall()
        try:
            while not self._find(number, call):
                self._read(call)
                self._pass_on(number, call)
        except BaseException as error:
            if call.item is not None or (self._steps and self._reading is call):
                self._end_by(error)
            raise
        finally:
            if self._reading is call:  # after an error or an interrupt: another thread may read
                self._stop_reading()
        return call.item.batch  # type: ignore[union-attr]  # `_find` has set it

    def leave(self, number: int) -> None:
        with self._changes.lock:
            self._left.extend(self._queues.pop(number, ()))
            self._wake()

    def _find(self, number: int, call: _NextCall) -> bool:
        """Waits for the consumer's next batch. Returns False if this thread must read the next batch itself."""
        while True:
            with self._changes.lock:
                if self._ended_by:
                    raise RuntimeError(
                        f"This epoch was ended by {self._ended_by} in one of its consumers: a batch may be lost. "
                        "Call share() again."
                    )
                queue = self._queues.get(number)
                if queue:
                    call.item = queue[0]
                    queue.popleft()
                    for step in call.item.steps:
                        self._position.passed(*step)
                    self._wake()
                    return True
                if queue is None or (self._ended and not self._left):
                    self._queues.pop(number, None)  # later calls find the end again
                    call.item = _ENDED
                    return True
                if self._reading is None and len(self._queues[self._owner(number)]) < self._window:
                    self._reading = call
                    return False
                bell = self._changes.bell()
                self._remove_dead_consumers()
            bell.acquire(timeout=LOOK_AGAIN)

    def _remove_dead_consumers(self) -> None:
        """Removes garbage-collected consumers whose finalizer was interrupted before it called `leave`."""
        for number, consumer in enumerate(self.consumers):
            if consumer() is None and number in self._queues:
                self.leave(number)

    def _owner(self, asking: int) -> int:
        if not self._in_turn:
            return asking
        return min((number for number in self._queues if number >= self._turn), default=min(self._queues))

    def _read(self, call: _NextCall) -> None:
        """Stores the next batch in `call.item`, which stays None at the end of the epoch.

        If a step failed, its error is stored in place of the batch. Any other error is raised.
        """
        if self._left:
            call.item = self._left[0]
            self._left.popleft()
            return
        try:
            batch = self._reader.take()
        except Exception as error:
            if not self._steps:
                raise
            batch = NoBatch(caught(error))
        if batch is not END:
            call.item = _Item(self._steps, batch)
            self._steps = []

    def _pass_on(self, asking: int, call: _NextCall) -> None:
        with self._changes.lock:
            item = call.item
            if item is None:
                self._ended = True
            elif not self._queues or (not self._in_turn and asking not in self._queues):
                self._left.append(item)
            else:
                owner = self._owner(asking)
                self._queues[owner].append(item)
                self._turn = owner + 1
            call.item = None
            self._stop_reading()

    def _stop_reading(self) -> None:
        with self._changes.lock:
            self._reading = None
            self._wake()

    def _end_by(self, interrupt: BaseException) -> None:
        """Ends the epoch for all consumers after an interrupt, because a batch may have been lost."""
        with interrupts_deferred(), self._changes.lock:
            self._ended_by, self._ended = type(interrupt).__name__, False
            self._reader.close()
            self._changes.tell()

    def _wake(self) -> None:
        """Wakes all consumers. Ends the epoch once every batch has been handed out or every consumer has left."""
        if self._ended and not self._left and not any(self._queues.values()):
            self._position.finish(*self._end)
        if not self._queues and self._reading is None:
            self._reader.close()
            # Otherwise the two would refer to each other and keep the loader alive.
            self._reader.position = self._position
        self._changes.tell()


def share(reader: Batches, consumers: int, in_turn: bool, window: int) -> list[Consumer]:
    position = reader.position
    try:
        epoch = reader.position = SharedEpoch(reader, position, consumers, in_turn, window)
        made = [Consumer(epoch, number) for number in range(consumers)]
        epoch.consumers = [weakref.ref(consumer) for consumer in made]
        return made
    except BaseException:
        reader.close()
        reader.position = position
        raise
