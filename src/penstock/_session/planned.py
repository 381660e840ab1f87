"""Figures about planning: the shares of a mixture's sources, padding, and committed batches."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._feed import Feed
from penstock._resume.commits import CommittedEpochs
from penstock._resume.state import Epochs
from penstock.plan import ComputedPlan
from penstock.stats._figures import BudgetFigures, CommitFigures, MixtureFigures, SourceFigures


def planned(feed: Feed, epochs: Epochs, reweighed: list[tuple[int, int]]) -> dict[str, Any]:
    """Returns the planning figures for `Stats`. `reweighed` lists the (epoch, step) of each change of weights."""
    found: dict[str, Any] = {}
    if isinstance(epochs, CommittedEpochs):
        found["commits"] = CommitFigures(*epochs.figures())
    progress = epochs.progress
    plan = None if progress is None else progress.plan
    if progress is None or not isinstance(plan, ComputedPlan):
        return found
    epoch, step = progress.epoch, progress.reached
    costs = plan.costs(epoch, step)
    if costs is not None:
        batches, samples, tokens, padded, budget = costs
        padding, used = 1 - tokens / max(1, padded), padded / max(1, budget)
        found["budget"] = BudgetFigures(batches, samples, tokens, padding, used)
    packing = plan.packing(epoch, step)
    if packing is not None:
        found["packing"] = packing
    if feed.history is not None:
        sources = feed.history.shares(cast("Any", plan.order), epoch, *plan.given(epoch, step), _lengths(plan))
        found["mixture"] = MixtureFigures(_shares(sources), tuple(reweighed))
    return found


def _lengths(plan: ComputedPlan) -> NDArray[np.int64] | None:
    """Returns the lengths of all samples if the plan was made from lengths, otherwise None."""
    table = getattr(plan, "lengths", None) or getattr(getattr(plan, "windows", None), "lengths", None)
    table = table[0] if isinstance(table, tuple) else table
    return None if table is None else table.numbers


def _shares(sources: list[tuple[str, float, int, int, float | None]]) -> tuple[SourceFigures, ...]:
    """Computes each source's figures from the tuples that `WeightHistory.shares` returns."""
    weights, samples = sum(source[1] for source in sources), sum(source[2] for source in sources)
    known = all(mean is not None for *_, mean in sources)
    tokens = [count * (mean or 0.0) for _, _, count, _, mean in sources]
    found = []
    for (name, weight, count, length, _), part in zip(sources, tokens, strict=True):
        shares = weight / weights, count / max(1, samples)
        of_tokens = (part, part / max(1, sum(tokens))) if known else (None, None)
        found.append(SourceFigures(name, *shares, count, count / max(1, length), *of_tokens))
    return tuple(found)
