"""Delivery: what happens to a batch after it was opened and before the caller gets it.

    slab --Layout.open--> tree of views --Delivery--> what the caller gets

Where batches are delivered there is a `deliver: Delivery | None`. None hands out the views themselves, as numpy
arrays and whatever guests made of them, and costs nothing. A face has a Delivery where its users want the batch
elsewhere: penstock.torch pins batches. `prefetch` copies its batches anyway, so its Delivery makes that copy of each
guest's leaf, and there is no second one.
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock._memory.guests import HANDLERS, can_pin


class Delivery(Protocol):
    """Makes of an opened batch what the caller gets. Called once for each batch, in the thread that consumes it."""

    def __call__(self, batch: Any, /) -> Any: ...


def pinning() -> Delivery | None:
    """Copies a leaf into pinned memory if its class can be pinned; None if no accelerator is available."""
    return _pinned if can_pin() else None


def _pinned(leaf: Any, /) -> Any:
    handler = HANDLERS[type(leaf)]
    return leaf if handler is None else handler.pin(leaf)
