"""What became of a task: the value that a runner returns.

Each has a mark, if the task read a stream with a state: where the stream is after the task, even if the task failed.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock._wire.task import Mended


class Done(NamedTuple):
    """The batch is made from `rows` samples; `mended` tells of those that failed and were left out or replaced."""

    batch: object
    rows: int
    mended: Mended | None = None
    mark: bytes | None = None


class AtEnd(NamedTuple):
    """The stream has no samples left for the task."""

    mark: bytes | None = None


class Errored(NamedTuple):
    """The task failed. `where` says at which sample of which step, and `notes` what else the error's reader needs.

    Both are kept beside the error, because it is the user's object.
    """

    error: BaseException
    where: str
    notes: tuple[str, ...] = ()
    mark: bytes | None = None
