"""The resume state of a torch loader without a seed: plain data, checked before any of it is used.

A loader with a seed has the state of the penstock loader behind it (see `_core.py`). Without a seed, order and
randomness are torch's, so the state holds the random states that the epoch was drawn from. Nothing in it is evaluated
or unpickled; a dataset or sampler of the user's may put other data into its own state.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import torch

from penstock._resume.reading import Mark, opened
from penstock._resume.state import State, damaged, number
from penstock.errors import StateError
from penstock.torch import _generators as generators
from penstock.torch import _private as private
from penstock.torch._cursor import Copy, Cursor

# The field that only these states have.
PART = "torch"


@dataclass(frozen=True, slots=True)
class Saved:
    """A state that was loaded. `origin` and `given`: see `Sampling`; `states` are the random states in `origin`."""

    plain: Mapping[str, Any]
    state: State
    base_seed: int | None
    origin: dict[str, Any] | None
    states: dict[str, Any]
    given: list[str]
    copies: list[Copy]
    seat: int


def state_of(loader: Any) -> dict[str, Any]:
    """The state of the iterator that was begun last, as plain data."""
    if private.is_pipe(loader.dataset):
        warnings.warn(
            "torch's engine seeds and shards DataPipes, and does not tell its position: this state is empty, and "
            "loading it starts from the beginning.",
            stacklevel=3,
        )
        return {}
    saved: Saved | None = loader._saved
    if saved is not None:
        return dict(saved.plain)
    cursor: Cursor | None = loader._cursor
    begun = cursor is not None and not cursor.progress.is_over
    if cursor is None or not begun:
        # The loader holds persistent workers in its `_iterator`.
        cursor = Cursor(loader, before=cursor, lives=cursor is not None and loader._iterator is not None)
    sampling = cursor.sampling
    origin = sampling.origin if sampling is not None and begun else None
    mark = None if sampling is None else sampling.mark
    state = cursor.progress.as_dict()
    state["about"], state["mark"] = _about(loader, cursor), None if mark is None else mark._asdict()
    state[PART] = {
        "base_seed": cursor.base_seed,
        "origin": None if origin is None else dict(origin),
        "generators": cursor.given,
        "workers": [_plain(copy) for copy in cursor.copies],
        "seat": cursor.seat if cursor.is_stream else 0,  # by key, it follows from the step
    }
    return state


def _plain(copy: Copy) -> dict[str, Any]:
    mark = copy.mark
    return {"more": copy.more} | ({} if mark is None else {"states": mark.states, "kept": mark.kept})


def _about(loader: Any, cursor: Cursor) -> dict[str, Any]:
    """A description of the loader, which must be the same when the state is loaded."""
    dataset, sampling = loader.dataset, cursor.sampling
    return {
        "kind": "torch's, a stream" if sampling is None else "torch's, by key",
        "length": len(dataset) if sampling is not None and isinstance(dataset, Sized) else None,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        **({} if sampling is None else sampling.about),
        "generators": len(cursor.generators),
        "num_workers": loader.num_workers if cursor.count else None,
    }


def loaded(loader: Any, value: object) -> Saved:
    """The state in the result of `state_of`, possibly read from a JSON file; StateError if it does not fit."""
    state, cursor = State.parse(value), Cursor(loader)
    state.check(_about(loader, cursor))
    assert isinstance(value, Mapping)
    try:
        return _parse(value, state, cursor)
    except StateError:
        raise
    except Exception as error:
        why = f"its part {PART!r} cannot be read ({type(error).__name__}: {error})"
        raise damaged(why) from error


def check_maker(value: object, seed: int | None) -> None:
    """Raises a StateError if the state was taken with a seed and the loader has none, or the other way round."""
    if not isinstance(value, Mapping) or "penstock" not in value:
        return
    if seed is None and PART not in value:
        raise StateError(
            f"The resume state was taken from a loader with seed={value.get('seed')}, and this one has no seed. Give "
            "it that seed, or start without the state."
        )
    if seed is not None and PART in value:
        raise StateError(
            f"The resume state was taken from a loader without a seed, and this one has seed={seed}. Make the loader "
            "without seed=, or start without the state."
        )


def _parse(value: Mapping[str, Any], state: State, cursor: Cursor) -> Saved:
    part, sampling = value[PART], cursor.sampling
    base_seed, origin = part["base_seed"], part["origin"]
    if state.steps and (base_seed is None or (sampling is not None and origin is None)):
        raise ValueError(f"it does not say what its {state.steps} steps came from")
    states = {} if origin is None else generators.parse(origin)
    numbers = {"base_seed": base_seed or 0, "seat": part["seat"], **(origin or {})}
    for name in numbers.keys() - states.keys():
        number(numbers, name)
    given = list(part["generators"])
    for generator, text in zip(cursor.generators, given, strict=True):
        torch.Generator(generator.device).set_state(generators.tensor_of(text))
    mark = opened(state.mark)
    if mark is not None:
        mark.check_owner(None if sampling is None else sampling.sampler)
    copies = [_copy(entry, cursor.dataset) for entry in part["workers"]]
    if len(copies) != cursor.count:
        raise ValueError(f"it is of {len(copies)} copies of the dataset, not of {cursor.count}")
    return Saved(dict(value), state, base_seed, origin, states, given, copies, part["seat"])


def _copy(entry: Mapping[str, Any], dataset: Any) -> Copy:
    more, mark = number(entry, "more"), None
    if "states" in entry:
        mark = Mark.parse(0, entry["states"], entry["kept"])
        mark.check_owner(dataset)
    return Copy(mark, more)
