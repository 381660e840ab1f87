"""Decides which decoded blocks of a table stay in shared memory, based on the claims of all loaders on the machine.

A block that any loader claims is never dropped. So programs and ranks that are at different positions, or read
the samples in different orders, never drop each other's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._cache.uses import Uses

MOST_NEEDS = 4096
"""The largest number of blocks in a claim."""

ROW = np.dtype([(name, "<i8") for name in ("block", "pid", "fd", "inode", "nbytes", "number")])
"""The dtype of an inventory's rows. A free row is all zeros.

Every other row describes a decoded block, and names the process that holds the block. `number` is the block's
sequence number among all decoded blocks of the table.
"""

Rows = NDArray[Any]
"""An array with the dtype ROW."""


class Claim(NamedTuple):
    """The decoded blocks that one loader wants to keep in shared memory."""

    needs: NDArray[np.int64]  # blocks that the loader will use soon
    keep: int | None  # bytes of other blocks to keep, newest first; None if the loader reads block by block


def near(uses: Uses, position: int) -> NDArray[np.int64]:
    """Returns the blocks that a loader at this position has just used or will use soon, in order of use."""
    first, stop = uses.first, uses.stop
    # `spread` is the number of positions over which a block's samples are spread. Workers are less far ahead.
    # A rank that has just begun may be a few steps behind, and have no claim yet.
    spread = int((stop - first).max(initial=0))
    found = (stop > position - spread // 8) & (first < position + 2 * spread)
    return uses.blocks[found][:MOST_NEEDS]


def surplus(rows: Rows, claims: Sequence[Claim], coming: int = 0) -> NDArray[np.bool_]:
    """Returns a mask of the blocks to drop before `coming` bytes are added.

    Selects unclaimed blocks, oldest first, until the remaining unclaimed blocks and the `coming` bytes fit into the
    largest `keep` of all claims.
    """
    keep = max((claim.keep for claim in claims if claim.keep is not None), default=0)
    newest = np.argsort(-rows["number"])
    free = ~_needed(rows, claims)[newest]
    gone = np.zeros(len(rows), np.bool_)
    gone[newest[free]] = rows["nbytes"][newest[free]].cumsum() + coming > keep
    return gone & (rows["pid"] > 0)


def place(rows: Rows, claims: Sequence[Claim], most: int) -> int | None:
    """Returns the row in which to store a new block, or None if all `most` rows hold claimed blocks.

    Free rows are used first, then new rows, then the row of the oldest unclaimed block.
    """
    free = np.flatnonzero(rows["pid"] == 0)
    if len(free):
        return int(free[0])
    if len(rows) < most:
        return len(rows)
    # A needed block is not replaced, because its loader would decode it again, and replace another one.
    others = np.flatnonzero(~_needed(rows, claims))
    return int(others[np.argmin(rows["number"][others])]) if len(others) else None


def _needed(rows: Rows, claims: Sequence[Claim]) -> NDArray[np.bool_]:
    return np.isin(rows["block"], np.concatenate([np.empty(0, np.int64), *(claim.needs for claim in claims)]))
