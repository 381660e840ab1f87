"""Keeps track of waiting tasks, of the tasks that each worker has, and of workers that must exit. Does no I/O.

    task     WAITING --deal--> AT a worker --answering--> ARRIVING --answered--> forgotten
             WAITING --rescind--> forgotten
             AT a worker --rescind--> VOID --answering, answered--> forgotten
             AT a worker, ARRIVING, VOID --lose--> forgotten if it is the worker's oldest task or VOID, else WAITING
    worker   COMING --join--> idle or at work --leave--> gone        any --halt--> HALTED --lose--> gone

Tasks wait at the driver for the next free worker. A worker whose tasks are quick gets a second task, so that it does
not idle while its reply is in flight.

Workers answer their tasks in order. A task that is rescinded while a worker has it becomes void, and the driver drops
the answer. The task's slab (the memory for the batch) is free at once, because only the driver writes to slabs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

ANY = -1
"""The seat (worker slot) of a task that any worker may take."""

_MOST = 2  # tasks that one worker may have


class Ledger:
    """The state of all tasks and workers. If `assigned` is True, each task is for one seat."""

    def __init__(self, assigned: bool = False) -> None:
        self._assigned = assigned
        self._waiting: dict[int, list[int]] = {}  # seat, or ANY -> seqs, lowest first
        self._seat_of: dict[int, int] = {}  # seq -> the seat that it was posted for
        self._coming: dict[int, int] = {}  # worker -> seat
        self._seats: dict[int, int] = {}  # worker that has joined -> seat
        self._hands: dict[int, deque[int]] = {}  # worker that has joined -> seqs, oldest first
        self._quick: set[int] = set()  # workers whose tasks are quick
        self._halted: set[int] = set()  # workers that get no more tasks
        self._free: dict[int, None] = {}  # workers without a task
        self._ready: dict[int, None] = {}  # workers that may get a second task
        self._holder: dict[int, int] = {}  # seq -> worker
        self._void: set[int] = set()
        self._arriving: set[int] = set()
        self._leaves = 0  # the number of workers that must still leave
        self._ended: set[int] = set()  # seats whose workers leave after their last task

    # Tasks.

    def post(self, seq: int, seat: int) -> None:
        self._seat_of[seq] = seat if self._assigned else ANY
        self._wait(seq)

    def _wait(self, seq: int) -> None:
        insort(self._waiting.setdefault(self._seat_of[seq], []), seq)

    def rescind(self, seq: int) -> bool:
        """Withdraws a task, which frees its slab. Returns False if the task's answer has arrived or is arriving."""
        if seq not in self._seat_of or seq in self._arriving:
            return False
        if seq in self._holder:
            self._void.add(seq)
        else:
            waiting = self._waiting[self._seat_of[seq]]
            del waiting[bisect_left(waiting, seq)]
        del self._seat_of[seq]
        return True

    def answering(self, worker: int, seq: int) -> bool:
        """Records that a worker's answer to its oldest task is arriving. Returns False if the answer is unwanted."""
        hand = self._hands.get(worker)
        if not hand or hand[0] != seq:
            raise ValueError(f"worker {worker} answers task {seq}, but it has the tasks {list(hand or ())}")
        if seq in self._void:
            return False
        self._arriving.add(seq)
        return True

    def answered(self, worker: int, quick: bool) -> None:
        """Records that a worker's oldest task is done. If the task was `quick`, the worker may now have two tasks."""
        self._forget(self._hands[worker].popleft())
        (self._quick.add if quick else self._quick.discard)(worker)
        self._sort(worker)

    def _forget(self, seq: int) -> None:
        self._seat_of.pop(seq, None)
        self._holder.pop(seq, None)
        self._void.discard(seq)
        self._arriving.discard(seq)

    def deal(self) -> list[tuple[int, int]]:
        """Assigns waiting tasks, lowest `seq` first. Returns (worker, seq) pairs in sending order."""
        dealt: list[tuple[int, int]] = []
        for seat, waiting in self._waiting.items():
            while waiting and (worker := self._next_worker(seat)) is not None:
                seq = waiting.pop(0)
                self._hands[worker].append(seq)
                self._holder[seq] = worker
                self._sort(worker)
                dealt.append((worker, seq))
        return dealt

    def _next_worker(self, seat: int) -> int | None:
        for some in (self._free, self._ready):
            for worker in some:
                if seat == ANY or seat == self._seats[worker]:
                    return worker
        return None

    def _sort(self, worker: int) -> None:
        """Updates `_free` and `_ready`: whether a worker has no task, or may get a second one."""
        self._free.pop(worker, None)
        self._ready.pop(worker, None)
        if worker in self._halted:
            return
        tasks = len(self._hands[worker])
        if not tasks:
            self._free[worker] = None
        elif tasks < _MOST and worker in self._quick and not self._leaves:
            self._ready[worker] = None

    # Workers.

    def hire(self, worker: int, seat: int) -> None:
        self._coming[worker] = seat

    def join(self, worker: int) -> None:
        self._seats[worker] = self._coming.pop(worker)
        self._hands[worker] = deque()
        self._sort(worker)

    def halt(self, worker: int) -> None:
        """Stops giving tasks to a worker whose connection has ended, because the tasks would be lost."""
        if worker in self._hands:
            self._halted.add(worker)
            self._sort(worker)

    def lose(self, worker: int) -> int | None:
        """Removes a dead worker. Returns the task it may have been running. The worker's other tasks wait again."""
        hand = self._hands.get(worker, deque())
        first = hand[0] if hand and hand[0] not in self._void else None
        for at, seq in enumerate(hand):
            if at == 0 or seq in self._void:
                self._forget(seq)
            else:
                del self._holder[seq]
                self._wait(seq)
        self._remove(worker)
        return first

    def _remove(self, worker: int) -> None:
        self._coming.pop(worker, None)
        self._seats.pop(worker, None)
        self._hands.pop(worker, None)
        self._free.pop(worker, None)
        self._ready.pop(worker, None)
        self._quick.discard(worker)
        self._halted.discard(worker)

    def has(self, worker: int) -> int | None:
        """Returns the task that this worker is running (its oldest), or None."""
        hand = self._hands.get(worker)
        return hand[0] if hand else None

    def holder(self, seq: int) -> int | None:
        return self._holder.get(seq)

    @property
    def all_joined(self) -> bool:
        return not self._coming

    # Leaving.

    def want_leave(self, seat: int = ANY) -> None:
        """Asks a worker to exit: the one in `seat` after its last task, or the first idle one if `seat` is `ANY`."""
        if seat == ANY:
            self._leaves += 1
            for worker in tuple(self._ready):
                self._sort(worker)
        else:
            self._ended.add(seat)

    def withdraw_leaves(self) -> int:
        withdrawn, self._leaves = self._leaves, 0
        for worker in self._hands:
            self._sort(worker)
        return withdrawn

    def leave(self) -> list[int]:
        """Removes and returns the workers that should exit now. Prefers workers that have not connected yet."""
        if not self._leaves and not self._ended:
            return []
        left = [*self._coming, *self._free][: self._leaves]
        self._leaves -= len(left)
        for worker, seat in [*self._coming.items(), *self._seats.items()] if self._ended else ():
            if seat in self._ended and not self._hands.get(worker) and not self._waiting.get(seat):
                left.append(worker)
                self._ended.discard(seat)
        for worker in left:
            self._remove(worker)
        if left and not self._leaves:
            for worker in self._hands:
                self._sort(worker)
        return left

    def check(self) -> None:
        """Raises AssertionError if an invariant does not hold. Visits every task, so only tests call this."""
        waiting = [seq for seqs in self._waiting.values() for seq in seqs]
        at = [seq for hand in self._hands.values() for seq in hand]
        assert len({*waiting, *at}) == len(waiting) + len(at), "a task is in one place"
        assert all(seqs == sorted(seqs) for seqs in self._waiting.values()), "the lowest seqs are dealt first"
        assert {*waiting, *at} - self._void == self._seat_of.keys(), "a task that is not rescinded is somewhere"
        assert self._holder == {seq: worker for worker, hand in self._hands.items() for seq in hand}
        assert self._void <= {*at} and self._arriving <= {*at} and not self._void & self._arriving
        assert all(len(hand) <= _MOST for hand in self._hands.values()), "no worker hoards tasks"
        assert self._hands.keys() == self._seats.keys() and not self._seats.keys() & self._coming.keys()
        assert self._free.keys() == {worker for worker, hand in self._hands.items() if not hand} - self._halted
        assert self._halted <= self._hands.keys() and not self._halted & self._ready.keys()
        assert self._ready.keys() <= self._quick and self._leaves >= 0
