"""Which slabs are free. Only their ids: no memory, so that schedulers can use it too."""

from __future__ import annotations

from collections import deque


class FreeSlabs:
    """Free slabs. `warm` ones have their pages, the last one used at the right; `cold` ones gave them back."""

    __slots__ = ("cold", "warm")

    def __init__(self) -> None:
        self.warm: deque[int] = deque()
        self.cold: list[int] = []

    def __len__(self) -> int:
        return len(self.warm) + len(self.cold)

    def take(self) -> int | None:
        """The slab used last, which may still be in the processor's cache; None if no slab is free."""
        if self.warm:
            return self.warm.pop()
        return self.cold.pop() if self.cold else None

    def put(self, slab: int) -> None:
        """Adds a slab that has its pages."""
        self.warm.append(slab)

    def surplus(self, spare: int) -> list[int]:
        """Moves warm slabs to the cold ones until `spare` are left, coldest first. The caller frees their pages."""
        moved = [self.warm.popleft() for _ in range(len(self.warm) - spare)]
        self.cold += moved
        return moved

    def clear(self) -> None:
        self.warm.clear()
        self.cold.clear()
