"""The board: a table of tasks in shared memory, from which worker processes take tasks by themselves.

With the board, a free worker need not wait for the parent, which may be busy with a training step. And no task waits
behind a slow task in the queue of one worker.

- To post a task, the parent writes a notice (the task's record) into a slot, marks the slot OPEN, and sends a token
  (slot, seq) through a pipe that all workers read. Reading the token orders the parent's writes before the worker's
  reads, on any processor. Tokens are read in the order of posting; the only reader of a stream relies on this.
- The worker that reads a token claims the task. Only the claim decides which worker gets the task. A claim changes
  OPEN to CLAIMED under a record lock on one byte of the board's file. The kernel releases the lock if the holder
  dies. If the task was rescinded, the claim fails, because the slot is free or holds another seq. But even a failing
  claim holds the lock for a moment, and a second worker may then want to claim the slot's new task. So claims wait
  for the lock. If the second claim gave up instead, the new task would stay open without a token.
- When a worker has died, the board shows which slot the worker had claimed. The parent sends tokens again for all
  open tasks, in case the worker died after reading a token.
- A leave is a request that any one worker exit. Before a worker reads a token, it compares the numbers of wanted and
  taken leaves, and exits if more are wanted than taken. So a worker never exits while it holds a token or a task. A
  token that names no task wakes a waiting worker. Leaves are taken and withdrawn under one lock. The board records
  which workers took leaves.

The file has far more slots than are ever used. But the file is sparse: a page takes no memory until the first write
to the page.
"""

from __future__ import annotations

import os
import struct

from penstock._memory.mapping import grow, mapped, view_of
from penstock._system.platform import fcntl
from penstock._wire.task import NOTICE, Notice
from penstock.errors import InternalError

SLOTS = 1 << 16

_FREE, _OPEN, _CLAIMED = range(3)

# A slot consists of state bytes, the claimant's id as an 8-byte word, and the notice.
_STRIDE = 128  # two cache lines, so that neighbours share none
_STATE, _AT, _VOID = range(3)
_CLAIMANT = 1  # in 8-byte words
_NOTICE = 16
_WORDS = _STRIDE // 8

# Slot 0 holds no task, so that a token can name no task. It has two words: the number of leaves that were wanted, and
# the number that were taken. After all slots come the ids of the workers that took a leave, in order, one word each.
# Last comes one byte per worker, which says whether the worker has done its last task.
_NO_SLOT = 0
_WANTED, _TAKEN = 8, 9
_TAKERS = SLOTS * _WORDS
_ENDINGS = (_TAKERS + SLOTS) * 8

TOKEN = struct.Struct("<2q")  # slot, seq
NO_TASK = TOKEN.pack(_NO_SLOT, -1)


class Board:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        size = _ENDINGS + SLOTS
        if os.fstat(fd).st_size < size:
            grow(fd, size)
        self._memory = view_of(mapped(fd, size))
        self._words = self._memory.cast("q")
        self._free: list[int] = []
        self._unused = iter(range(1, SLOTS))

    def post(self, *notice: int) -> int:
        """Posts the task with these `Notice` fields. Returns the index of its slot."""
        slot = self._free.pop() if self._free else next(self._unused, _NO_SLOT)
        if slot == _NO_SLOT:
            raise InternalError(f"{SLOTS - 1} tasks are posted, and the board has no room for another.")
        base = slot * _STRIDE
        NOTICE.pack_into(self._memory, base + _NOTICE, *notice)
        self._memory[base + _VOID] = 0
        self._memory[base + _STATE] = _OPEN
        return slot

    def claim(self, slot: int, seq: int, worker: int) -> Notice | None:
        """Claims the task `seq` for a worker. Returns the task's notice, or None if the task is no longer open."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, slot)
        try:
            base = slot * _STRIDE
            if self._memory[base + _STATE] != _OPEN:
                return None
            notice = Notice._make(NOTICE.unpack_from(self._memory, base + _NOTICE))
            if notice.seq != seq:
                return None
            self._memory[base + _AT] = 0
            self._words[slot * _WORDS + _CLAIMANT] = worker
            self._memory[base + _STATE] = _CLAIMED
            return notice
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)

    def rescind(self, slot: int) -> bool:
        """Takes back an open task. Never waits. Returns False if a worker has claimed, or is claiming, the task."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except OSError:
            return False
        try:
            is_open = self.is_open(slot)
            if is_open:
                self._memory[slot * _STRIDE + _STATE] = _FREE
            return is_open
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)

    def void(self, slot: int) -> None:
        """Marks the task as unwanted. The worker that runs the task stops before the next step."""
        self._memory[slot * _STRIDE + _VOID] = 1

    def clear(self, slot: int) -> None:
        self._memory[slot * _STRIDE + _STATE] = _FREE
        self._free.append(slot)

    def is_open(self, slot: int) -> bool:
        return self._memory[slot * _STRIDE + _STATE] == _OPEN

    def claimant(self, slot: int) -> int | None:
        is_claimed = self._memory[slot * _STRIDE + _STATE] == _CLAIMED
        return self._words[slot * _WORDS + _CLAIMANT] if is_claimed else None

    def begin(self, slot: int, at: int) -> bool:
        """Records that step `at` (from 0) of the task begins. Returns False if the task is unwanted."""
        self._memory[slot * _STRIDE + _AT] = at
        return not self._memory[slot * _STRIDE + _VOID]

    def at(self, slot: int) -> int:
        """Returns the index, within the task, of the step that the worker began last."""
        return self._memory[slot * _STRIDE + _AT]

    def doing(self, slot: int) -> tuple[int, int, int]:
        notice = Notice._make(NOTICE.unpack_from(self._memory, slot * _STRIDE + _NOTICE))
        return notice.seq, notice.epoch, notice.step + self.at(slot)

    def want_leave(self) -> None:
        """Requests that any one worker exit. The caller must also send NO_TASK, which wakes a waiting worker."""
        self._words[_WANTED] += 1

    @property
    def wanted_leaves(self) -> int:
        return self._words[_WANTED] - self._words[_TAKEN]

    def withdraw_leaves(self) -> int:
        """Withdraws and counts open exit requests. Does nothing and returns 0 while a worker is accepting one."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _NO_SLOT)
        except OSError:
            return 0
        try:
            withdrawn = self.wanted_leaves
            self._words[_WANTED] -= withdrawn
            return withdrawn
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _NO_SLOT)

    def take_leave(self, worker: int) -> bool:
        words = self._words
        if words[_WANTED] == words[_TAKEN]:
            return False
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, _NO_SLOT)
        try:
            taken = words[_TAKEN]
            if words[_WANTED] <= taken:
                return False
            words[_TAKERS + taken % SLOTS] = worker
            words[_TAKEN] = taken + 1
            return True
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _NO_SLOT)

    def took_leave(self, worker: int) -> bool:
        return worker in self._words[_TAKERS:][: self._words[_TAKEN]]

    def end(self, worker: int) -> None:
        """Records that a worker has finished its last task. The worker's exit functions may still be running."""
        self._memory[_ENDINGS + worker % SLOTS] = 1

    def is_ending(self, worker: int) -> bool:
        return bool(self._memory[_ENDINGS + worker % SLOTS])
