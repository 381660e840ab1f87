"""No workers: each task is done in `poll`, by the caller. This is what every backend must equal."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from penstock._memory.layout import Writer
from penstock._memory.slabs import Slabs
from penstock._wire.failure import annotate
from penstock._wire.task import Task
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock._work.runner import Runner
from penstock._work.samples import StreamEnded
from penstock.backends._base import Doing, Ended, Failed, Filled, Outcome
from penstock.errors import InternalError


class InlineBackend:
    """A plain loop in the calling thread."""

    most_steps = 1
    copies_dataset = False
    leaves_nothing = True
    clock = staticmethod(time.monotonic)

    def __init__(self, job: Job) -> None:
        self._slabs = Slabs(None)
        self._runner = (job.make_runner or Runner)(job, "the calling process")
        self._posted: deque[tuple[Task, int]] = deque()
        self._worker = -1

    @property
    def workers(self) -> list[Any]:
        return []

    def hire(self, worker: int, seat: int) -> None:
        self._worker = worker

    def retire(self) -> None:
        raise InternalError("without workers, there is none to leave")

    def post(self, task: Task, slab: int, seat: int) -> None:
        self._posted.append((task, slab))

    def cool(self, slab: int) -> None:
        self._slabs.cool(slab)

    def encode(self, change: Change) -> bytes:
        return b""

    def update(self, change: bytes) -> None:
        self._runner.fetch.look_up()  # the dataset is the caller's own

    def flush(self) -> None:
        pass

    def rescind(self, seq: int) -> bool:
        self._posted = deque(entry for entry in self._posted if entry[0].seq != seq)
        return True

    def poll(self, timeout: float | None) -> list[Outcome]:
        if not self._posted:
            return []
        task, slab = self._posted.popleft()
        writer = Writer(self._slabs.root(slab))
        try:
            # What it imports takes 15 ms: numpy.random. Other backends have it in their workers only.
            with self._runner.borrowed(task):
                tree = self._runner.run(task, writer)
        except StreamEnded:
            return [Ended(task.seq, self._worker, self._runner.mark)]
        except KeyboardInterrupt:
            raise  # not the sample's, but the caller's own: workers do not see it
        except BaseException as error:
            told = annotate(error, self._runner.where(task))
            return [Failed(task.seq, self._worker, told, self._runner.mark)]
        self._slabs.learn(writer.used)
        return [
            Filled(
                task.seq,
                self._worker,
                self._runner.rows,
                writer.used,
                0.0,
                writer.root,
                tree,
                self._runner.mended,
                self._runner.mark,
            )
        ]

    def open(self, outcome: Filled) -> object:
        return outcome.held

    def doing(self, seq: int | None) -> list[Doing]:
        return []  # nobody waits for the caller

    def wake(self) -> None:
        pass  # nobody waits: the caller does the work

    def close(self) -> None:
        self._posted.clear()
