"""Delivery of torch batches: pinned, where the loader has `pin_memory=True` and an accelerator is available."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from penstock._deliver.delivery import Delivery
from penstock.torch import _private as private


def delivery_of(loader: Any) -> Delivery | None:
    """The delivery of a loader with `seed=`; None if batches are handed out as they are."""
    if not (loader.pin_memory and torch.accelerator.is_available()):
        return None
    device = torch.accelerator.current_accelerator()
    return pinning(None if device is None else device.type)


def pinning(device: str | None) -> Delivery:
    """Pins a whole batch by torch's own rules: nested containers, and objects with a `pin_memory` method."""
    return partial(private.pin, device=device)
