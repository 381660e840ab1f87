"""The command `penstock explain`, which prints the samples of a step from a resume state."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock._printable import printable
from penstock._resume.state import State, content
from penstock._session.explanation import Explanation, check_dealt, explained
from penstock._tools.profile.target import TargetError, check_arguments, target
from penstock.errors import StateError
from penstock.plan import Order, OrderPlan, Sequential, Shuffled
from penstock.plan._blocks import WINDOW
from penstock.plan._windows import MOST_RANKS
from penstock.source._history import WeightHistory

# A state that describes no other settings may be enough to compute the steps. With others, the plan needs the loader.
_KNOWN = {"kind", "length", "files", "order", "batch_size", "last_batch", "world", "dtype", "sampler"}


def run(path: str, step: int, epoch: int | None, loader: str | None) -> int:
    try:
        print(explanation(path, step, epoch, loader))
    except (OSError, ValueError, IndexError, StateError, TargetError) as error:
        print(printable(f"penstock explain: {error}", lines=True), file=sys.stderr)
        return 1
    return 0


def explanation(path: str, step: int, epoch: int | None, loader: str | None) -> Explanation:
    saved = _read(path)
    state = State.parse(saved)
    epoch = state.epoch if epoch is None else epoch
    if loader is not None:
        found: Explanation = _loaded(loader, saved, state).explain(step, epoch)
        return found
    plan, mixture = _plan(state), None
    if plan is None and isinstance(state.dataset, Mapping) and "stages" in state.dataset:
        history = WeightHistory.of_state(state.dataset, state.seed or 0)
        if history is not None:
            plan, mixture = _plan_of_mixture(state, history), history.mixture
    if plan is None:
        raise ValueError(
            f"{path} does not have all that determines the samples of a step: the order of blocks or of a sampler, "
            "packing, and batches by length need the dataset (and a state before the first batch of "
            "an epoch does not say whether they are used). Name your loader, or a function without arguments that "
            "makes it, as in --loader train.py:make_loader. No data is read."
        )
    if state.dealt is not None and epoch == state.epoch:
        check_dealt(step, epoch, state.dealt[0])
        plan = replace(plan, start=state.dealt[1])
    return explained(plan, mixture, epoch, step)


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except ValueError as error:  # also for bytes that are not UTF-8
            raise ValueError(
                f"{path} is not a JSON file ({error}). Save the state of the loader with "
                "json.dump(loader.state_dict(), file)."
            ) from None


def _plan(state: State) -> OrderPlan | None:
    """Rebuilds the plan from the state. Returns None if the state alone is not enough."""
    about, plain = state.about, {"kind", "length", "order", "batch_size", "last_batch", "world", "sampler"}
    more = [name for name, value in about.items() if name not in _KNOWN and value is not None]
    length, order = about.get("length"), about.get("order")
    if more or not plain <= about.keys() or about["sampler"] is not None or about["kind"] not in ("keys", "key"):
        return None
    if order not in ("in sequence", "shuffled") or not isinstance(length, int) or state.seed is None:
        return None
    if length < 0 or about["world"] > MOST_RANKS or about["last_batch"] not in ("keep", *_ENDS.values()):
        return None
    keys = Sequential(length) if order == "in sequence" else Shuffled(length, state.seed)
    return _of_order(keys, about)


def _plan_of_mixture(state: State, history: WeightHistory) -> OrderPlan | None:
    """Rebuilds a mixture's plan from the state. Returns None if the plan does not use the mixture's own order."""
    about = state.about
    if state.seed is None or not {"batch_size", "world"} <= about.keys():
        return None
    if about.get("last_batch") not in ("keep", *_ENDS.values()):
        return None
    plan = _of_order(history.order(state.seed, WINDOW), about)
    return plan if content(plan, None) == about.get("sampler") else None


def _of_order(order: Order, about: Mapping[str, Any]) -> OrderPlan:
    end = {name: about["last_batch"] == value for name, value in _ENDS.items()}
    return OrderPlan(order, about["batch_size"], world=about["world"], **end)


_ENDS = {"drop_last": "drop", "padded": "pad", "rollover": "rollover"}


def _loaded(name: str, saved: Mapping[str, Any], state: State) -> Any:
    found = target(name)
    if not hasattr(found, "explain") and callable(found):
        check_arguments(found, name)
        found = found()
    if not hasattr(found, "explain") or not hasattr(found, "load_state_dict"):
        raise TargetError(
            f"{name} is not a loader, and does not make one: it is of type {type(found).__name__}. Name a "
            "penstock.DataLoader, a penstock.torch.DataLoader with seed=, or a function without arguments that makes "
            "one."
        )
    then, now = state.about.get("world"), found.state_dict()["about"].get("world")
    if then != now:
        raise ValueError(
            f"The state was taken with world={then}, and {name} has world={now}. Its steps have the samples of all "
            f"ranks only if the loader is made with the same number of ranks: shard=(0, {then})."
        )
    found.load_state_dict(saved)
    return found
