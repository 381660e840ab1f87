"""The resume state of a torch loader without a seed: one plain value, checked before any of it is used.

With a seed, the loader behind it has the state (see `core.py`). Without, order and randomness are torch's, so it
holds what the epoch was drawn from. Nothing in it is evaluated or unpickled; what a dataset or a sampler of the
caller's own puts into its state is as plain as they make it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import torch

from penstock._resume.marks import opened
from penstock._resume.reading import Mark, has_state
from penstock._resume.state import State
from penstock.errors import StateError
from penstock.torch import _generators as generators
from penstock.torch import _private as private
from penstock.torch._place import Copy, Place

# The field that only these states have.
PART = "torch"
_GLOBALS = ("torch", "numpy", "random")


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that was loaded."""

    plain: Mapping[str, Any]
    state: State
    base_seed: int | None
    origin: dict[str, Any] | None  # see Order, as the two that follow
    states: dict[str, Any]
    given: list[str]
    copies: list[Copy] | None
    seat: int


def state_of(loader: Any) -> dict[str, Any]:
    """Where the iterator is that was begun last: plain data."""
    if private.is_pipe(loader.dataset):
        warnings.warn(_NO_STATE, stacklevel=3)
        return {}
    saved: Saved | None = loader._saved
    if saved is not None:
        return dict(saved.plain)
    place: Place | None = loader._place
    begun = place is not None and not place.progress.is_over
    if place is None or not begun:
        # Persistent workers, if there are any, are held by the loader.
        place = Place(loader, before=place, lives=place is not None and loader._iterator is not None)
    order = place.order if begun else None
    mark = None if place.order is None else place.order.mark
    state = place.progress.as_dict()
    state["about"], state["mark"] = _about(loader, place), None if mark is None else mark._asdict()
    state[PART] = {
        "base_seed": place.base_seed,
        "origin": None if order is None or order.origin is None else dict(order.origin),
        "generators": place.given,
        "workers": [_plain(copy) for copy in place.copies],
        "seat": place.seat if place.is_stream else 0,  # by key, the step says it
    }
    return state


def _plain(copy: Copy) -> dict[str, Any]:
    mark = copy.mark
    return {"more": copy.more} | ({} if mark is None else {"states": mark.states, "kept": mark.kept})


def _about(loader: Any, place: Place) -> dict[str, Any]:
    """What must not change between a state and its loading."""
    dataset, order = loader.dataset, place.order
    return {
        "kind": "torch's, a stream" if order is None else "torch's, by key",
        "length": len(dataset) if order is not None and isinstance(dataset, Sized) else None,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        **({} if order is None else order.about),
        "generators": len(place.generators),
        "num_workers": loader.num_workers if place.count else None,
    }


def loaded(loader: Any, value: object) -> Saved:
    """What `state_of` gave, perhaps by way of a JSON file, if it is of such a loader; else a StateError."""
    state, place = State.parse(value), Place(loader)
    state.check(_about(loader, place))
    assert isinstance(value, Mapping)
    try:
        return _parse(value, state, place)
    except StateError:
        raise
    except Exception as error:
        raise StateError(
            f"The resume state is damaged: its part {PART!r} cannot be read ({type(error).__name__}: {error}). Take "
            "another checkpoint, or begin the epoch anew without a state."
        ) from error


def check_maker(value: object, seed: int | None) -> None:
    """Raises a StateError that says whose state it is, unless it is of a loader with a seed, or of one without."""
    if not isinstance(value, Mapping):
        return
    if seed is None and "penstock" in value and PART not in value:
        raise StateError(
            f"The resume state was taken from a loader with seed={value.get('seed')}, and this one has no seed. Give "
            "it that one, or begin anew without the state."
        )
    if seed is not None and "penstock" in value and PART in value:
        raise StateError(
            f"The resume state was taken from a loader without a seed, and this one has seed={seed}. Make it "
            "without, or begin anew without the state."
        )


def _parse(value: Mapping[str, Any], state: State, place: Place) -> Saved:
    part, order = value[PART], place.order
    base_seed, origin, seat = part["base_seed"], part["origin"], part["seat"]
    if state.steps and (base_seed is None or (order is not None and origin is None)):
        raise ValueError(f"it does not say what its {state.steps} steps came from")
    states: dict[str, Any] = {}
    numbers = {"base_seed": base_seed or 0, "seat": seat}
    if origin is not None:
        states = generators.parse({name: origin[name] for name in _GLOBALS if name in origin})
        numbers |= {name: number for name, number in origin.items() if name not in _GLOBALS}
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 64:
            raise ValueError(f"{name} is {number!r}")
    given = list(part["generators"])
    for generator, text in zip(place.generators, given, strict=True):
        torch.Generator(generator.device).set_state(generators.tensor_of(text))
    mark = opened(state.mark)
    if mark is not None:
        _check_owner(mark, None if order is None else order.sampler)
    copies = [_copy(entry, place.dataset) for entry in part["workers"]]
    if len(copies) != place.count:
        raise ValueError(f"it is of {len(copies)} copies of the dataset, not of {place.count}")
    return Saved(dict(value), state, base_seed, origin, states, given, copies, seat)


def _copy(entry: Mapping[str, Any], dataset: Any) -> Copy:
    more = entry["more"]
    if isinstance(more, bool) or not isinstance(more, int) or more < 0:
        raise ValueError(f"more is {more!r}")
    if "states" not in entry:
        return Copy(None, more)
    states, kept = (None if part is None else dict(part) for part in (entry["states"], entry["kept"]))
    if not {*(states or ()), *(kept or ())} <= {"iterable", "iterator"}:
        raise ValueError(f"states and kept are {states!r} and {kept!r}")
    _check_owner(mark := Mark(0, states, kept), dataset)
    return Copy(mark, more)


def _check_owner(mark: Mark, owner: Any) -> None:
    """Raises a StateError unless the owner can take its state. What its iterator can do shows when there is one."""
    if "iterable" in {**(mark.states or {}), **(mark.kept or {})} and not has_state(owner):
        raise StateError(
            f"The resume state has a state for {type(owner).__name__}, which has no load_state_dict() here. Give the "
            "loader what it had when the state was taken, or begin anew without the state."
        )


_NO_STATE = (
    "torch's engine seeds and shards DataPipes, and does not say how far it is: this state is empty, and loading it "
    "begins anew."
)
