"""Decides from the claims of all loaders of a machine which decoded blocks of a table stay in shared memory.

Each loader has a claim. A block that is needed by a claim stays; the others may be dropped. So programs and ranks
that are at different positions, or read in different orders, never drop each other's blocks: each of them decodes a
block at most once, and finds it decoded if another one has needed it lately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._cache.uses import Uses

MOST_NEEDS = 4096
"""The largest number of blocks in a claim: as many as an inventory has rows."""

ROW = np.dtype([(name, "<i8") for name in ("block", "pid", "fd", "inode", "nbytes", "number")])
"""A block that a process has decoded. `number` counts the decoded blocks of the table. A free row is all zeros."""

Rows = NDArray[Any]
"""An array of ROW."""


class Claim(NamedTuple):
    """The blocks that one loader wants to be kept.

    `needs`: the blocks that it will use soon. `keep`: how many bytes of other blocks to keep, the newest ones, for an
    order in which any block may be used at any time; None for a block order.
    """

    needs: NDArray[np.int64]
    keep: int | None


def near(uses: Uses, position: int) -> NDArray[np.int64]:
    """Returns the blocks that a loader at this position will use soon, in the order of their first use."""
    first, stop = uses.first, uses.stop
    # Workers are ahead of the loader by less than the positions over which the samples of a block are spread.
    # A rank that has just begun may be a few steps behind, and have no claim yet.
    spread = int((stop - first).max(initial=0))
    found = (stop > position - spread // 8) & (first < position + 2 * spread)
    return uses.blocks[found][:MOST_NEEDS]


def surplus(rows: Rows, claims: Sequence[Claim], coming: int = 0) -> NDArray[np.bool_]:
    """Marks the rows to drop when a block of `coming` bytes is added: of those that no claim needs, the oldest."""
    keep = max((claim.keep for claim in claims if claim.keep is not None), default=0)
    newest = np.argsort(-rows["number"])
    free = ~_needed(rows, claims)[newest]
    gone = np.zeros(len(rows), np.bool_)
    gone[newest[free]] = rows["nbytes"][newest[free]].cumsum() + coming > keep
    return gone & (rows["pid"] > 0)


def place(rows: Rows, claims: Sequence[Claim], most: int) -> int | None:
    """Chooses the row for a new block: a free one, a new one below `most`, or the oldest that no claim needs.

    Returns None if all are needed. If one were dropped, its loader would decode the block again, and drop another.
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
