"""One epoch for several consumers: each batch goes to one of them, and each sample is read once."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple

from penstock._epoch.readers import Batches


class Consumer:
    """One of the iterators that `DataLoader.share` returns. It is for one thread at a time."""

    def __init__(self, epoch: Epoch, number: int) -> None:
        self._epoch = epoch
        self._number = number

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Any:
        return self._epoch.next(self._number)

    def close(self) -> None:
        """Leaves the epoch to the others, with the batches that wait for this one."""
        self._epoch.leave(self._number)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class _Item(NamedTuple):
    """A batch, or the error in its place, and the steps that are done when it is handed out."""

    steps: list[tuple[int, bytes | None]]
    batch: Any
    error: BaseException | None


class _Noted:
    """Told by the reader in place of the loader's progress: a batch that waits is not handed out yet."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.steps: list[tuple[int, bytes | None]] = []
        self.end: bytes | None = None

    def passed(self, step: int, mark: bytes | None) -> None:
        self.steps.append((step, mark))

    def finish(self, end: bytes | None) -> None:
        self.end = end


class Epoch:
    """The epoch that is shared. It knows its consumers by number, so that one that is forgotten leaves it."""

    def __init__(self, reader: Batches, consumers: int, in_turn: bool, window: int) -> None:
        self._reader = reader
        self._told = reader.told
        self._noted = reader.told = _Noted(self._told.epoch)
        self._in_turn = in_turn
        self._window = window
        # One lock for all that follows, which is not held while a batch is read: whose batch is here has it at once.
        # It may be taken again by its own thread, in which the garbage collector may forget a consumer.
        self._changed = threading.Condition()
        self._reading: object = None
        self._queues: dict[int, deque[_Item]] = {number: deque() for number in range(consumers)}
        self._left: deque[_Item] = deque()  # of consumers that left
        self._turn = 0
        self._ended = False

    def next(self, number: int) -> Any:
        me = object()
        try:
            while (item := self._find(number, me)) is None:
                self._pass_on(number, self._read())
        finally:
            self._stop_reading(me)
        if item.error is not None:
            error = item.error
            del item
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which must not hold it in turn
        return item.batch

    def leave(self, number: int) -> None:
        with self._changed:
            self._left.extend(self._queues.pop(number, ()))
            self._close_if_left()
            self._changed.notify_all()

    def _find(self, number: int, me: object) -> _Item | None:
        """The consumer's next batch, once it is there; None where its thread, `me`, shall read one."""
        with self._changed:
            while True:
                queue = self._queues.get(number)
                if queue:
                    return self._hand_out(queue.popleft())
                if queue is None or (self._ended and not self._left):
                    self._queues.pop(number, None)  # nothing is given to it any more
                    raise StopIteration
                if self._reading is None and len(self._queues[self._owner(number)]) < self._window:
                    self._reading = me
                    return None
                # Not for ever: an interrupt that comes just before does not end a wait.
                self._changed.wait(1.0)

    def _hand_out(self, item: _Item) -> _Item:
        for step, mark in item.steps:
            self._told.passed(step, mark)
        self._settle()
        self._changed.notify_all()
        return item

    def _settle(self) -> None:
        if self._ended and not self._left and not any(self._queues.values()):
            self._told.finish(self._noted.end)

    def _owner(self, asking: int) -> int:
        """Whose the next batch is, of those who have not left."""
        if not self._in_turn:
            return asking
        return min((number for number in self._queues if number >= self._turn), default=min(self._queues))

    def _read(self) -> _Item | None:
        """The next batch, or the error in its place; None at the end. An error that is no batch's is raised."""
        if self._left:
            return self._left.popleft()
        batch = error = None
        try:
            batch = next(self._reader)
        except StopIteration:
            return None
        except BaseException as caught:
            if not self._noted.steps:
                raise
            error = caught
        steps, self._noted.steps = self._noted.steps, []
        return _Item(steps, batch, error)

    def _pass_on(self, asking: int, item: _Item | None) -> None:
        with self._changed:
            self._reading = None
            if item is None:
                self._ended = True
                self._settle()
            elif not self._queues or (not self._in_turn and asking not in self._queues):
                self._left.append(item)
            else:
                owner = self._owner(asking)
                self._queues[owner].append(item)
                self._turn = owner + 1
            self._close_if_left()
            self._changed.notify_all()

    def _stop_reading(self, me: object) -> None:
        """After an error or an interrupt: another thread may read on."""
        if self._reading is me:
            with self._changed:
                self._reading = None
                self._close_if_left()
                self._changed.notify_all()

    def _close_if_left(self) -> None:
        """By whoever is the last, but not while another thread is inside the reader."""
        if not self._queues and self._reading is None:
            self._reader.close()


def share(reader: Batches, consumers: int, in_turn: bool, window: int) -> list[Consumer]:
    epoch = Epoch(reader, consumers, in_turn, window)
    return [Consumer(epoch, number) for number in range(consumers)]
