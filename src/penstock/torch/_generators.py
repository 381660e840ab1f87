"""States of random generators as plain data, so that the same numbers can be drawn again."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch


def text_of(state: torch.Tensor) -> str:
    """The state of a torch generator, 5 KB, as text."""
    return b64encode(state.numpy().tobytes()).decode()


def tensor_of(text: str) -> torch.Tensor:
    """The state in a text from `text_of`; any exception if it is damaged."""
    return torch.frombuffer(bytearray(b64decode(text, validate=True)), dtype=torch.uint8)


class _Global(NamedTuple):
    """A generator that the whole process shares. `parse` reverses `plain`, and raises if the state is damaged."""

    take: Callable[[], Any]
    put: Callable[[Any], object]
    plain: Callable[[Any], Any]
    parse: Callable[[Any], Any]


def _parse_torch(plain: Any) -> torch.Tensor:
    state = tensor_of(plain)
    torch.Generator().set_state(state)
    return state


def _take_numpy() -> Any:
    return np.random.get_state(legacy=False)


def _plain_numpy(state: Any) -> Any:
    if state["bit_generator"] != "MT19937":  # the user's own, whose state may hold anything
        return None
    words, position = state["state"].values()
    return [b64encode(words.tobytes()).decode(), position, state["has_gauss"], state["gauss"]]


def _parse_numpy(plain: Any) -> Any:
    words, *rest = plain
    state = ("MT19937", np.frombuffer(b64decode(words, validate=True), np.uint32), *rest)
    np.random.RandomState().set_state(state)
    return state


def _plain_random(state: Any) -> Any:
    _, words, normal = state
    return [b64encode(np.array(words, np.uint32).tobytes()).decode(), normal]


def _parse_random(plain: Any) -> Any:
    words, normal = plain
    state = (3, tuple(np.frombuffer(b64decode(words, validate=True), np.uint32).tolist()), normal)
    random.Random().setstate(state)
    return state


_GLOBALS = {
    "torch": _Global(torch.get_rng_state, torch.set_rng_state, text_of, _parse_torch),
    "numpy": _Global(_take_numpy, np.random.set_state, _plain_numpy, _parse_numpy),
    "random": _Global(random.getstate, random.setstate, _plain_random, _parse_random),
}


def take() -> dict[str, Any]:
    """The states of the global generators, as plain data."""
    return {name: kind.plain(kind.take()) for name, kind in _GLOBALS.items()}


def parse(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The states among the results of `take`, ready for `lent`; any exception if one is damaged."""
    return {name: kind.parse(plain[name]) for name, kind in _GLOBALS.items() if name in plain}


@contextmanager
def lent(states: Mapping[str, Any], given: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Sets global generators to these states for the block, and then puts back all of them, and those in `given`."""
    before = {name: kind.take() for name, kind in _GLOBALS.items()}
    theirs = [(each, each.get_state()) for each in given]
    try:
        for name, state in states.items():
            _GLOBALS[name].put(state)
        yield
    finally:
        for name, state in before.items():
            _GLOBALS[name].put(state)
        for each, state in theirs:
            each.set_state(state)


def given_to(*holders: object) -> list[torch.Generator]:
    """The generators that these objects were given, each once."""
    found = (getattr(holder, "generator", None) for holder in holders)
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def texts_of(generators: Iterable[torch.Generator]) -> list[str]:
    """The present states of these generators, as text."""
    return [text_of(each.get_state()) for each in generators]


def set_all(generators: Iterable[torch.Generator], texts: Iterable[str]) -> None:
    """Sets the generators to the states in these texts."""
    for generator, text in zip(generators, texts, strict=True):
        generator.set_state(tensor_of(text))
