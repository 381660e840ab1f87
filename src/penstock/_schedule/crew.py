"""The crew: which workers are alive, in which seats (the workers' slots), and how many there should be.

    seat   EMPTY --Hire--> TAKEN --WorkerLost--> EMPTY, or GIVEN UP until the next run --> EMPTY
           TAKEN --WorkerLeft--> EMPTY

A worker that dies while it does a step uses up one of the step's retries, so the number of replacements is limited.
A worker that crashes at start-up uses up no retries. Instead, such crashes are counted for each seat, and a seat with
too many of them is given up.

To shrink, the crew sends one request to leave for each surplus worker. The first idle workers take the requests, so
it is not known in advance which seats become empty. Until these workers have left, the crew keeps its old size. A
worker that crashes in the meantime is replaced. Without a replacement, a worker that should stay would take the
request that is still open.

Each resize first withdraws the requests that no worker has taken. So a crew that grows again keeps its workers
instead of hiring new ones.
"""

from __future__ import annotations

from penstock._schedule.commands import Command, Hire, Retire


class Crew:
    """The workers of an engine. `size` is the intended number of workers.

    A seat is given up if more than `retries + 1` workers in a row crash there at start-up.
    """

    def __init__(self, size: int, retries: int) -> None:
        self.size = size
        self.leaving = 0  # workers that were asked to leave and have not left
        self._retries = retries
        self.seats: dict[int, int] = {}  # living worker -> seat
        # Seat -> number of workers lost there in a row, each without a step, and with no step filled in between.
        self.losses: dict[int, int] = {}
        self.next_worker = 0

    def __bool__(self) -> bool:
        return bool(self.seats)

    def __contains__(self, worker: int) -> bool:
        return worker in self.seats

    def hire(self, out: list[Command]) -> None:
        """Hires the missing workers for the lowest empty seats that have not been given up."""
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
        """Hires workers, or asks some workers to leave. `retained` is the number of withdrawn requests to leave."""
        self.size = size
        self.leaving -= retained
        self.forgive()  # seats that were given up are tried again: the crew may need fewer seats now
        for _ in range(len(self.seats) - self.leaving - size):
            self.leaving += 1
            out.append(Retire())
        self.hire(out)

    def dismiss(self, seat: int, out: list[Command]) -> None:
        self.size -= 1
        self.leaving += 1
        out.append(Retire(seat))

    def lost(self, worker: int, idle: bool) -> int:
        """Removes a dead worker and returns its seat. If the worker had no step, counts a start-up crash."""
        seat = self.seats.pop(worker)
        if idle:
            self.losses[seat] = self.losses.get(seat, 0) + 1
        return seat

    def left(self, worker: int) -> None:
        del self.seats[worker]
        self.leaving -= 1

    def worked(self, worker: int) -> None:
        """Resets the count of start-up crashes in this worker's seat, because the worker has done a step."""
        self.losses.pop(self.seats[worker], None)

    def forgive(self) -> None:
        """Allows seats that were given up to be filled again."""
        self.losses.clear()

    def given_up(self) -> list[int]:
        """Returns the seats that stay empty because too many workers have crashed there at start-up."""
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
