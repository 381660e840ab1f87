"""The worker's half of a feed. Each feed has its own (`_feed/`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock._work.samples import SampleFetcher

if TYPE_CHECKING:
    from penstock._fill.cast import Empty
    from penstock._wire.task import Mended, Task
    from penstock._work.focus import Focus
    from penstock._work.job import Job


class Fetch:
    """Gets the samples of a task. `mark` is where a stream with a state is, after the task that was last begun."""

    mark: bytes | None = None

    def __init__(self, focus: Focus) -> None:
        self._focus = focus
        self._job = focus.job
        self._samples = SampleFetcher(focus)
        self.look_up()

    def look_up(self) -> None:
        """Finds the methods of the dataset: at the beginning, and whenever the dataset was changed."""

    def gather(self, task: Task, empty: Empty) -> tuple[object, int] | None:
        """The whole batch and its number of rows, if the dataset can make it at once."""
        return None

    def samples(self, task: Task) -> tuple[Sequence[Any], Mended | None] | None:
        """The samples, one for each row, and which failed; None at the end of a stream."""
        raise NotImplementedError

    def counts(self, task: Task) -> bool:
        """If ranks end together: True if the task, whose batch is made, is a step of the epoch of every rank.

        If it is not, the stream has ended.
        """
        return True

    # How samples are named needs the task, and nothing of this object.

    @staticmethod
    def names(job: Job, task: Task) -> Sequence[Any]:
        """The key of each row, if rows have keys."""
        return ()

    @staticmethod
    def key(job: Job, task: Task, item: Any, row: int) -> Any:
        """What names the sample of a row that was made from `item`."""
        return item
