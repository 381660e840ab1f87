"""Programs and ranks that read one table at different speeds never decode each other's blocks again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from penstock._cache.claims import ROW, Claim, near, place, surplus
from penstock._cache.uses import uses
from penstock.plan import BlockOrder
from penstock.plan._forecast import Forecast
from penstock.plan._plan import OrderPlan


@dataclass
class Machine:
    """The inventory of a table, of at most `most` blocks, and the claims of the programs that live."""

    most: int
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, ROW))
    claims: dict[int, Claim] = field(default_factory=dict)
    decoded: int = 0

    def blocks(self) -> set[int]:
        return {*self.rows["block"][self.rows["pid"] > 0].tolist()}

    def drop(self) -> None:
        self.rows[surplus(self.rows, [*self.claims.values()])] = 0

    def add(self, block: int) -> bool:
        """Whether there is a place for it."""
        claims = [*self.claims.values()]
        if any(claim.keep is not None for claim in claims):
            self.rows[surplus(self.rows, claims, 1)] = 0
        row = place(self.rows, claims, self.most)
        if row is None:
            return False
        self.decoded += 1
        self.rows = np.append(self.rows, np.zeros(max(0, row + 1 - len(self.rows)), ROW))
        self.rows[row] = (block, 1, 0, 0, 1, self.decoded)
        return True


class Program:
    """A loader with a block order, at a position of its own, whose workers are up to `ahead` positions further."""

    def __init__(self, number: int, machine: Machine, order: BlockOrder, position: int) -> None:
        self.number, self.machine, self.position = number, machine, position
        self.forecast = Forecast(OrderPlan(order, batch_size=1), 0, lambda: self.position)
        self.edges, self.uses = order.edges, uses([(self.forecast, order.edges)])
        self.spread = int((self.uses.stop - self.uses.first).max())
        self.alone: set[int] = set()  # blocks that had no place, and are kept by the workers
        self.decoded: Counter[int] = Counter()
        self.size = int(order.edges[-1])
        self.look()

    def look(self) -> None:
        self.looked_at = self.position
        self.machine.claims[self.number] = Claim(near(self.uses, self.position), None)
        self.machine.drop()

    def go(self, steps: int, ahead: int) -> None:
        """The keeper's thread is late, but by less than one spread of a block."""
        self.position = min(self.position + steps, self.looked_at + self.spread, self.size)
        end = min(self.position + min(ahead, self.spread), self.size)
        keys = self.forecast.keys(self.position, end)
        for block in (self.edges.searchsorted(keys, "right") - 1).tolist():
            if block not in self.machine.blocks() | self.alone:
                self.decoded[block] += 1
                if not self.machine.add(block):
                    self.alone.add(block)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_each_program_decodes_a_block_at_most_once_however_they_drift(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=30), "rows of blocks")
    edges = np.cumsum([0, *sizes])
    machine = Machine(data.draw(st.integers(1, 40), "rows of the inventory"))
    keep = data.draw(st.sampled_from([None, 0, 5]), "bytes of a loader with a random order")
    if keep is not None:
        machine.claims[-1] = Claim(np.empty(0, np.int64), keep)
    programs: dict[int, Program] = {}
    for number in range(data.draw(st.integers(1, 4), "programs")):
        seed, window = data.draw(st.integers(0, 2), "seed"), data.draw(st.integers(1, 6), "window")
        order = BlockOrder(edges, window, seed)
        programs[number] = Program(number, machine, order, data.draw(st.integers(0, edges.item(-1)), "resumed at"))
    everyone = [*programs.values()]
    for _ in range(data.draw(st.integers(1, 60), "events")):
        program = programs[data.draw(st.sampled_from(sorted(programs)))]
        match data.draw(st.sampled_from(["go"] * 6 + ["look"] * 3 + ["die"])):
            case "go":
                program.go(data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40)))
            case "look":
                program.look()
                needed = {block for claim in machine.claims.values() for block in claim.needs.tolist()}
                assert len(machine.blocks() - needed) <= (keep or 0)  # the rest is gone, of dead programs too
            case "die" if len(programs) > 1:
                event("a program dies")
                del programs[program.number], machine.claims[program.number]
    event("some blocks had no place" if any(each.alone for each in everyone) else "all blocks had a place")
    for program in everyone:
        assert max(program.decoded.values(), default=0) <= 1


def test_programs_that_keep_together_decode_once() -> None:
    order = BlockOrder(np.arange(0, 1001, 10), 4, 0)
    machine = Machine(4096)
    programs = [Program(number, machine, order, 0) for number in range(3)]
    while programs[0].position < 1000:
        for program in programs:
            program.go(10, 30)
            program.look()
    assert machine.decoded == sum(sum(each.decoded.values()) for each in programs) == 100
