"""Histories of the weights of a mixture, as a loader keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.source._history import WeightHistory
from penstock.source._mixture import MixtureDataset

Change = tuple[int, int, Mapping[str, float]]


def changed(data: MixtureDataset, *changes: Change) -> WeightHistory:
    """Returns the history with these changes: epoch, position and weights."""
    history = WeightHistory.of(data)
    for epoch, position, weights in changes:
        history = history.changed(epoch, position, weights, 0, 16)
    return history


def state_of(data: MixtureDataset) -> dict[str, Any]:
    return WeightHistory.of(data).as_dict()


def load(data: MixtureDataset, state: Any, seed: int = 0) -> WeightHistory:
    return WeightHistory.of(data).loaded(state, seed)


def first(history: WeightHistory, n: int) -> list[Any]:
    """Returns the first samples of the first epoch."""
    return [history.mixture[key] for key in history.order(0, 16).at(0, np.arange(n)).tolist()]
