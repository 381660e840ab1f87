"""Which decoded blocks of a table stay in shared memory: decided from the claims of all loaders of a machine.

Each loader has a claim. A block that a claim needs stays; the others may go. So programs and ranks that are at
different places, or read in different orders, never drop the blocks of each other: each of them decodes a block at
most once, and finds it decoded if another one has needed it lately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._cache.uses import Uses

MOST_NEEDS = 4096
"""Blocks that a claim needs at most: as many as an inventory has rows."""

ROW = np.dtype([(name, "<i8") for name in ("block", "pid", "fd", "inode", "nbytes", "number")])
"""A block that a process has decoded. `number` counts the decodings of the table. In a free row all are 0."""

Rows = NDArray[Any]
"""An array of ROW."""


class Claim(NamedTuple):
    """The blocks that one loader wants to be kept.

    `needs` are those whose use is near. `keep` is for an order in which any block may be used at any time: bytes of
    blocks that are kept besides, the last ones that were decoded. In a block order it is None.
    """

    needs: NDArray[np.int64]
    keep: int | None


def near(uses: Uses, position: int) -> NDArray[np.int64]:
    """The blocks whose use is near for a loader at this position: the one that is used first comes first."""
    first, stop = uses.first, uses.stop
    # Workers are ahead of the loader, by less than a block's samples are spread over: later uses are far away.
    # A rank that has just begun may be a few steps behind, and have no claim yet.
    spread = int((stop - first).max(initial=0))
    found = (stop > position - spread // 8) & (first < position + 2 * spread)
    return uses.blocks[found][:MOST_NEEDS]


def surplus(rows: Rows, claims: Sequence[Claim], coming: int = 0) -> NDArray[np.bool_]:
    """Marks the rows that go, when a block of `coming` bytes is added. Those without a claim go, the oldest first."""
    keep = max((claim.keep for claim in claims if claim.keep is not None), default=0)
    newest = np.argsort(-rows["number"])
    free = ~_needed(rows, claims)[newest]
    gone = np.zeros(len(rows), np.bool_)
    gone[newest[free]] = rows["nbytes"][newest[free]].cumsum() + coming > keep
    return gone & (rows["pid"] > 0)


def place(rows: Rows, claims: Sequence[Claim], most: int) -> int | None:
    """The row for a new block, of at most `most`: a free one, one more, or the oldest that no claim needs.

    None if each row is needed. If one were dropped then, its loader would decode the block again, and drop another.
    """
    free = np.flatnonzero(rows["pid"] == 0)
    if len(free):
        return int(free[0])
    if len(rows) < most:
        return len(rows)
    others = np.flatnonzero(~_needed(rows, claims))
    return int(others[np.argmin(rows["number"][others])]) if len(others) else None


def _needed(rows: Rows, claims: Sequence[Claim]) -> NDArray[np.bool_]:
    return np.isin(rows["block"], np.concatenate([np.empty(0, np.int64), *(claim.needs for claim in claims)]))
