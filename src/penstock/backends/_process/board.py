"""The board: tasks that worker processes take for themselves, in shared memory.

A worker that is free must not have to wait for the parent, which may be busy with a training step;
and a task must not wait behind a slow one in some worker's queue. So nobody assigns tasks: they
stand on the board, and a free worker claims one.

- Posting writes a record into a slot, marks the slot OPEN, and sends a token (slot and seq) down a
  pipe that all workers read. Reading the token tells a worker where to look, and orders the
  parent's writes before the worker's reads, on any processor. Tokens are read in the order of
  posting, which the only reader of a stream relies on.
- What counts is the claim: OPEN becomes CLAIMED under a record lock on one byte of the board's file.
  The kernel releases such a lock when its holder dies, so no lock ever dies with a worker. The token
  of a task that was rescinded claims nothing, though the slot may hold another task by then: its seq
  is not that one's. Whoever comes with such a token has the lock for a moment too, so a claim waits
  for it: given up, the task would stay open and nobody would come for it again.
- When a worker is dead, the board says exactly which slot it had claimed, and tokens are sent again
  for what is still open, in case it died with one in its hand.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import NamedTuple

from penstock._memory.mapping import Mapping

_FREE, _OPEN, _CLAIMED = 0, 1, 2

_RECORD = struct.Struct("<12q")
_WORKER = struct.Struct("<q")
_STRIDE = 128  # two cache lines: neighbours do not share one
_STATE = 0
_AT = 1
_VOID = 2
_CLAIMANT = 8
_FIELDS = 16

TOKEN = struct.Struct("<2q")  # slot, seq


class Record(NamedTuple):
    """A task as it stands on the board; its keys are at the beginning of its slab."""

    seq: int
    run: int
    epoch: int
    step: int
    kind: int
    payload: int  # bytes of the keys; negative: they are pickled
    steps: int
    updates: int  # how much of their log must have been applied
    extent: int
    length: int
    start: int
    capacity: int


class Board:
    """`slots` places for tasks. The parent posts, rescinds and clears; workers claim."""

    def __init__(self, fd: int, slots: int) -> None:
        self._fd = fd
        self.slots = slots
        size = slots * _STRIDE
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        self._memory = memoryview(Mapping(fd, size).buffer).cast("B")

    def post(self, slot: int, *record: int) -> None:
        """Puts up a task; `record` has the fields of Record, in their order."""
        base = slot * _STRIDE
        _RECORD.pack_into(self._memory, base + _FIELDS, *record)
        self._memory[base + _VOID] = 0
        self._memory[base + _STATE] = _OPEN

    def claim(self, slot: int, seq: int, worker: int) -> Record | None:
        """The task `seq` is this worker's from now on; None if it is not to be had."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, slot)
        try:
            base = slot * _STRIDE
            if self._memory[base + _STATE] != _OPEN:
                return None
            record = Record._make(_RECORD.unpack_from(self._memory, base + _FIELDS))
            if record.seq != seq:
                return None
            self._memory[base + _AT] = 0
            _WORKER.pack_into(self._memory, base + _CLAIMANT, worker)
            self._memory[base + _STATE] = _CLAIMED
            return record
        finally:
            self._unlock(slot)

    def rescind(self, slot: int) -> bool:
        """Takes an open task off the board. False if a worker has claimed it, or is at it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except OSError:
            return False
        try:
            if self._memory[slot * _STRIDE + _STATE] != _OPEN:
                return False
            self._memory[slot * _STRIDE + _STATE] = _FREE
            return True
        finally:
            self._unlock(slot)

    def void(self, slot: int) -> None:
        """Nobody wants what the slot's task gives: it may end before its last step."""
        self._memory[slot * _STRIDE + _VOID] = 1

    def clear(self, slot: int) -> None:
        """The slot's task is done with."""
        self._memory[slot * _STRIDE + _STATE] = _FREE

    def claimant(self, slot: int) -> int | None:
        """Which worker has claimed the slot."""
        base = slot * _STRIDE
        if self._memory[base + _STATE] != _CLAIMED:
            return None
        (worker,) = _WORKER.unpack_from(self._memory, base + _CLAIMANT)
        return int(worker)

    def begin(self, slot: int, at: int) -> bool:
        """The claimant is at this of the task's steps, the first being 0. False: nobody wants what is left."""
        self._memory[slot * _STRIDE + _AT] = at
        return not self._memory[slot * _STRIDE + _VOID]

    def at(self, slot: int) -> int:
        """Which of the task's steps the claimant is at."""
        return self._memory[slot * _STRIDE + _AT]

    def doing(self, slot: int) -> tuple[int, int, int]:
        """The seq of the slot's task, and the epoch and the step that the claimant is at."""
        record = Record._make(_RECORD.unpack_from(self._memory, slot * _STRIDE + _FIELDS))
        return record.seq, record.epoch, record.step + self.at(slot)

    def is_open(self, slot: int) -> bool:
        return self._memory[slot * _STRIDE + _STATE] == _OPEN

    def _unlock(self, slot: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)
