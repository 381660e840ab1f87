"""Copies of batches in recycled memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._deliver.delivery import Delivery
from penstock._fill.cast import Field
from penstock._fill.out import converted
from penstock._memory.free import FreeSlabs
from penstock._memory.guests import HANDLERS
from penstock._memory.layout import Writer
from penstock._memory.lease import Leases
from penstock._memory.slabs import Slabs
from penstock._memory.tree import flatten, unflatten


class Copies:
    """Copies batches into slabs, which come back when the caller drops the copy. `most` slabs keep their pages."""

    def __init__(self, most: int, field: Field | None, deliver: Delivery | None) -> None:
        self._most = most
        self._field = field
        self._deliver = deliver
        self._slabs = Slabs(None)
        self._leases = Leases(shared=False)
        self._free = FreeSlabs()
        self._lent = 0

    def copy(self, tree: object) -> Any:
        """The tree with its arrays in a slab that is lent."""
        leaves, spec = flatten(tree)
        fields = [None] * len(leaves) if self._field is None else self._field.of(spec)
        slab, needed = self._take(), 0
        try:
            while True:
                writer = Writer(self._slabs.root(slab, needed))
                made = [self._copied(leaf, field, writer) for leaf, field in zip(leaves, fields, strict=True)]
                self._slabs.learn(writer.used)
                if not writer.overflow:
                    break
                needed = writer.used
        except BaseException:
            self._free.put(slab)
            raise
        if writer.used:
            self._leases.lend(slab, writer.root)
            self._lent += 1
        else:
            self._free.put(slab)
        return unflatten(spec, made)

    def _take(self) -> int:
        returned = self._leases.collect()
        if returned:
            self._lent -= len(returned)
            for slab in returned:
                self._free.put(slab)
            for slab in self._free.surplus(max(0, self._most - self._lent)):
                self._slabs.cool(slab)
        taken = self._free.take()
        return self._lent if taken is None else taken  # all slabs are lent, so this number is new

    def _copied(self, leaf: Any, field: Field | None, writer: Writer) -> Any:
        kind, deliver = type(leaf), self._deliver
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
