"""The states of slabs (blocks of memory, each for one batch): free, held by a step, or lent to the consumer.

    slab   FREE --take--> HELD --lend--> LENT --free--> FREE        HELD --free--> FREE

The free slab that was used most recently is taken first, because its memory is still in the processor's cache. Free
slabs beyond a limit are cooled, least recently used first: the system gets their memory pages back.
"""

from __future__ import annotations

from collections import Counter, deque

from penstock._schedule.commands import Command, Cool
from penstock._schedule.states import FREE, HELD, LENT, SlabState


class SlabStates:
    """The state of every slab. At most `spare` free slabs keep their memory pages."""

    def __init__(self, spare: int) -> None:
        self.spare = spare
        self.states: dict[int, SlabState] = {}
        self.warm: deque[int] = deque()  # free slabs; the one used most recently is at the right
        self.cold: list[int] = []  # free slabs without pages
        self._next = 0

    def take(self) -> int:
        """Returns a free slab, or a new slab if no slab is free. So no step ever waits for a slab."""
        if self.warm:
            slab = self.warm.pop()
        elif self.cold:
            slab = self.cold.pop()
        else:
            slab = self._next
            self._next = slab + 1
        self.states[slab] = HELD
        return slab

    def lend(self, slab: int) -> None:
        self.states[slab] = LENT

    def free(self, slab: int, out: list[Command]) -> None:
        self.states[slab] = FREE
        self.warm.append(slab)
        if len(self.warm) > self.spare:
            self.cool(out)

    def cool(self, out: list[Command]) -> None:
        while len(self.warm) > max(0, self.spare):
            coldest = self.warm.popleft()
            self.cold.append(coldest)
            out.append(Cool(coldest))

    def clear(self) -> None:
        self.states.clear()
        self.warm.clear()
        self.cold.clear()

    def check(self, held: list[int]) -> None:
        """Asserts that steps hold exactly the slabs in `held`, and checks the other invariants."""
        free = [*self.warm, *self.cold]
        assert len(self.warm) <= max(0, self.spare), "a limited number of free slabs keep their pages"
        assert max(Counter([*free, *held]).values(), default=1) == 1, "a slab has one holder"
        assert {slab for slab, state in self.states.items() if state is FREE} == set(free)
        assert {slab for slab, state in self.states.items() if state is HELD} == set(held)
        assert all(slab < self._next for slab in self.states), "no slab id is given twice"
