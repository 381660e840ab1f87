"""Copies of batches in recycled memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._deliver.delivery import Delivery
from penstock._fill.cast import Field, converted
from penstock._memory.guests import HANDLERS
from penstock._memory.layout import Writer
from penstock._memory.lease import Leases
from penstock._memory.slabs import Slabs
from penstock._memory.tree import flatten, unflatten
from penstock._schedule.slabs import SlabStates


class Copies:
    """Copies batches into slabs, which come back when the caller drops the copy. `most` slabs keep their pages."""

    def __init__(self, most: int, field: Field | None, deliver: Delivery | None) -> None:
        self._field = field
        self._deliver = deliver
        self._slabs = Slabs(None)
        self._leases = Leases(shared=False)
        self._states = SlabStates(most)  # lent slabs count too: `spare` is for the others

    def copy(self, tree: object) -> Any:
        """The tree with its arrays in a slab that is lent."""
        leaves, spec = flatten(tree)
        fields = [None] * len(leaves) if self._field is None else self._field.of(spec)
        slab, needed, deliver = self._take(), 0, self._deliver
        try:
            while True:
                writer = Writer(self._slabs.root(slab, needed))
                made = [_copied(*each, writer, deliver) for each in zip(leaves, fields, strict=True)]
                self._slabs.learn(writer.used)
                if not writer.overflow:
                    break
                needed = writer.used
        except BaseException:
            self._free(slab)
            raise
        if writer.used:
            self._leases.lend(slab, writer.root)
            self._states.lend(slab)
            self._states.spare -= 1
        else:
            self._free(slab)
        return unflatten(spec, made)

    def _take(self) -> int:
        for slab in self._leases.collect():
            self._states.spare += 1
            self._free(slab)
        return self._states.take()

    def _free(self, slab: int) -> None:
        commands: list[Any] = []
        self._states.free(slab, commands)
        for command in commands:
            self._slabs.cool(command.slab)


def _copied(leaf: Any, field: Field | None, writer: Writer, deliver: Delivery | None) -> Any:
    kind = type(leaf)
    if field is not None:
        made = converted(leaf, field, writer.empty)
        if made is not leaf:
            return made if deliver is None else deliver(made)
    if (kind is np.ndarray or kind is np.memmap) and not leaf.dtype.hasobject:
        out = writer.empty(leaf.shape, leaf.dtype)
        np.copyto(out, leaf)
        return out
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    handler = HANDLERS[kind]
    if handler is None:
        return leaf
    if deliver is not None:
        return deliver(leaf)
    spot = handler.store and handler.store(leaf, writer)
    if spot is None:
        return handler.copy(leaf)
    make, shape, how, start = spot
    return leaf if writer.overflow else make(shape, how, writer.root, start)
