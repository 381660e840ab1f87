"""Names that backends and the engine still import; see `_memory.slabs`."""

from __future__ import annotations

from penstock._memory.arena import Arena
from penstock._memory.slabs import BUNDLE, Slabs

__all__ = ["BUNDLE", "Pool"]


def Pool(arena: Arena) -> Slabs:
    return Slabs(arena.fd)
