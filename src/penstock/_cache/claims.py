"""Decides which decoded blocks of a table stay in shared memory, from the claims of all loaders on the machine.

Each loader has a claim, which lists the blocks that it needs. A block that some claim needs stays, and all others may
be dropped. So programs and ranks that are at different positions, or read in different orders, never drop each
other's blocks. Each of them decodes a block at most once, and does not decode it at all if another one has needed it
recently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._cache.uses import Uses

MOST_NEEDS = 4096
"""The largest number of blocks in a claim, and of rows in an inventory (the list of shared blocks)."""

ROW = np.dtype([(name, "<i8") for name in ("block", "pid", "fd", "inode", "nbytes", "number")])
"""The dtype of an inventory's rows. Each row describes a decoded block and the process that has it.

`number` is the block's sequence number among all decoded blocks of the table. A free row is all zeros.
"""

Rows = NDArray[Any]
"""An array with the dtype ROW."""


class Claim(NamedTuple):
    """The decoded blocks that one loader wants to keep in shared memory.

    `needs` are the blocks that the loader will use soon. If the loader may use any block at any time, `keep` is the
    number of bytes of other blocks to keep, newest first. If it reads block by block, `keep` is None.
    """

    needs: NDArray[np.int64]
    keep: int | None


def near(uses: Uses, position: int) -> NDArray[np.int64]:
    """Returns the blocks that a loader at this position will use soon or has just used, in the order of their use."""
    first, stop = uses.first, uses.stop
    # `spread` is the number of positions over which a block's samples are spread. Workers are less far ahead.
    # A rank that has just begun may be a few steps behind, and have no claim yet.
    spread = int((stop - first).max(initial=0))
    found = (stop > position - spread // 8) & (first < position + 2 * spread)
    return uses.blocks[found][:MOST_NEEDS]


def surplus(rows: Rows, claims: Sequence[Claim], coming: int = 0) -> NDArray[np.bool_]:
    """Returns a boolean mask of the shared blocks (rows) to drop when a block of `coming` bytes is added.

    Blocks that a claim needs are never dropped. Of the others, the oldest are dropped until the rest, with the new
    block, fits into the largest `keep` of all claims.
    """
    keep = max((claim.keep for claim in claims if claim.keep is not None), default=0)
    newest = np.argsort(-rows["number"])
    free = ~_needed(rows, claims)[newest]
    gone = np.zeros(len(rows), np.bool_)
    gone[newest[free]] = rows["nbytes"][newest[free]].cumsum() + coming > keep
    return gone & (rows["pid"] > 0)


def place(rows: Rows, claims: Sequence[Claim], most: int) -> int | None:
    """Returns the index of the row for a new block: a free row, a new row, or the oldest row that no claim needs.

    There are at most `most` rows. Returns None if claims need all of them. If a needed block were replaced, its
    loader would decode it again, and replace another one.
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
