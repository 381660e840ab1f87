"""The crew: which workers are alive, in which seats, and how many there should be.

    seat   EMPTY --Hire--> TAKEN --WorkerLost--> EMPTY, or GIVEN UP until the next run --> EMPTY
           TAKEN --WorkerLeft--> EMPTY

A worker that dies while it does a step uses up a retry of that step, so replacing workers comes to an end. Workers
that crash at start-up use up no retries: losses without a step are counted per seat, and a seat with too many is
given up.

To shrink, the crew asks the surplus number of workers to leave. The first ones that become free leave, so it is not
known beforehand which seats become empty. Until they have left, the crew keeps its old size: a worker that crashes
meanwhile is replaced, because the requests to leave still stand. Each resize begins by withdrawing the requests that
no worker has taken, so a crew that grows again keeps these workers instead of hiring others.
"""

from __future__ import annotations

from penstock._schedule.commands import Command, Hire, Retire


class Crew:
    """`size` workers are wanted; a seat may lose `retries + 1` workers at start-up before it is given up."""

    def __init__(self, size: int, retries: int) -> None:
        self.size = size
        self.leaving = 0  # workers that were asked to leave and have not left
        self._retries = retries
        self.seats: dict[int, int] = {}  # living worker -> seat
        # Seat -> workers lost there in a row with no step in hand, and no step filled in between.
        self.losses: dict[int, int] = {}
        self.next_worker = 0

    def __bool__(self) -> bool:
        return bool(self.seats)

    def __contains__(self, worker: int) -> bool:
        return worker in self.seats

    def hire(self, out: list[Command]) -> None:
        """Hire the missing workers, into the lowest empty seats that are not given up."""
        taken = {*self.seats.values(), *self.given_up()}
        missing = self.size + self.leaving - len(taken)
        seat = 0
        while missing > 0:
            if seat not in taken:
                out.append(Hire(self.next_worker, seat))
                self.seats[self.next_worker] = seat
                self.next_worker += 1
                missing -= 1
            seat += 1

    def resize(self, size: int, retained: int, out: list[Command]) -> None:
        """Hire, or ask to leave, now that `retained` requests to leave were withdrawn.

        Seats that were given up are tried again, since there may be fewer seats now.
        """
        self.size = size
        self.leaving -= retained
        self.forgive()
        for _ in range(len(self.seats) - self.leaving - size):
            self.leaving += 1
            out.append(Retire())
        self.hire(out)

    def dismiss(self, seat: int, out: list[Command]) -> None:
        """Ask the worker in this seat to leave, for good."""
        self.size -= 1
        self.leaving += 1
        out.append(Retire(seat))

    def lost(self, worker: int, idle: bool) -> int:
        """Removes a dead worker, and returns its seat. `idle`: it had no step."""
        seat = self.seats.pop(worker)
        if idle:
            self.losses[seat] = self.losses.get(seat, 0) + 1
        return seat

    def left(self, worker: int) -> None:
        del self.seats[worker]
        self.leaving -= 1

    def worked(self, worker: int) -> None:
        """Called when this worker has done a step: workers in its seat do not crash at start-up."""
        self.losses.pop(self.seats[worker], None)

    def forgive(self) -> None:
        """Lets workers be hired again into seats that were given up."""
        self.losses.clear()

    def given_up(self) -> list[int]:
        """The seats that stay empty."""
        return [seat for seat, losses in self.losses.items() if losses > self._retries + 1]

    def check(self, is_running: bool) -> None:
        seats = list(self.seats.values())
        assert len(set(seats)) == len(seats), "a seat has one worker"
        assert all(worker < self.next_worker for worker in self.seats), "no worker id is given twice"
        assert self.leaving >= 0, "no worker leaves twice"
        assert not set(seats) & set(self.given_up()), "a seat that is given up is empty"
        if is_running:
            room = self.size + self.leaving
            assert len(seats) + len(self.given_up()) >= room, "a seat is empty only if it was given up"
