"""The outcomes that a runner can return for a task.

`mark` is the position of the stream after the task, even if the task failed. `mark` is None if the task did not
read a stream, or if the stream has no state.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock._wire.task import Mended


class Done(NamedTuple):
    """A batch made from `rows` samples. `mended` lists the samples that failed and were left out or replaced."""

    batch: object
    rows: int
    mended: Mended | None = None
    mark: bytes | None = None


class AtEnd(NamedTuple):
    """The result of a task for which the stream had no samples left."""

    mark: bytes | None = None


class Errored(NamedTuple):
    """The result of a failed task. `error` belongs to the user, so `where` and `notes` are not added to it."""

    error: BaseException
    where: str
    notes: tuple[str, ...] = ()
    mark: bytes | None = None
