"""The worker's side of a feed. Each feed in `_feed/` has its own subclass of `Fetch`."""

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
    """Fetches the samples of a task. `mark` is the stream's position after the latest task (see `outcomes.py`)."""

    mark: bytes | None = None

    def __init__(self, focus: Focus) -> None:
        self._focus = focus
        self._job = focus.job
        self._samples = SampleFetcher(focus)
        self.look_up()

    def look_up(self) -> None:
        """Looks up the dataset's methods. Called at the start and after every change to the dataset."""

    def gather(self, task: Task, empty: Empty) -> tuple[object, int] | None:
        """Returns the whole batch and its number of rows, or None if the samples must be fetched and collated."""
        return None

    def samples(self, task: Task) -> tuple[Sequence[Any], Mended | None] | None:
        """Returns a sample for each row, and the failed samples, if any. Returns None at the end of a stream."""
        raise NotImplementedError

    def counts(self, task: Task) -> bool:
        """True if every rank has a batch for this step. If not, the epoch ends before this step on all ranks."""
        return True

    # Static, because the names of samples depend only on the task.

    @staticmethod
    def names(job: Job, task: Task) -> Sequence[Any]:
        """Returns the key of each row, or an empty sequence if rows have no keys."""
        return ()

    @staticmethod
    def key(job: Job, task: Task, item: Any, row: int) -> Any:
        """Returns the key of the sample in this row. The sample was made from `item`."""
        return item
