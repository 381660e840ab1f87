"""States of random generators as plain data, so that the same numbers can be drawn again."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch


def text_of(state: Any) -> str:
    """The state of a generator (of torch's: 5 KB), a tensor or an array, as text."""
    return b64encode(np.asarray(state).tobytes()).decode()


def tensor_of(text: str) -> torch.Tensor:
    """The state in a text from `text_of`; any exception if it is damaged."""
    return torch.frombuffer(bytearray(b64decode(text, validate=True)), dtype=torch.uint8)


def _plain_numpy(state: Any) -> Any:
    if state["bit_generator"] != "MT19937":  # the user's own, whose state may hold anything
        return None
    words, position = state["state"].values()
    return [text_of(words), position, state["has_gauss"], state["gauss"]]


class _Global(NamedTuple):
    """A generator that the whole process shares. `parse` reverses `plain`."""

    take: Callable[[], Any]
    put: Callable[[Any], object]
    plain: Callable[[Any], Any]
    parse: Callable[[Any], Any]


_GLOBALS = {
    "torch": _Global(torch.get_rng_state, torch.set_rng_state, text_of, tensor_of),
    "numpy": _Global(
        lambda: np.random.get_state(legacy=False),
        np.random.set_state,
        _plain_numpy,
        lambda plain: ("MT19937", tensor_of(plain[0]).numpy().view(np.uint32), *plain[1:]),
    ),
    "random": _Global(
        random.getstate,
        random.setstate,
        lambda state: [text_of(np.array(state[1], np.uint32)), state[2]],
        lambda plain: (3, tuple(tensor_of(plain[0]).numpy().view(np.uint32).tolist()), *plain[1:]),
    ),
}


def take() -> dict[str, Any]:
    """The states of the global generators, as plain data."""
    return {name: kind.plain(kind.take()) for name, kind in _GLOBALS.items()}


def parse(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The states among the results of `take`, ready for `lent`; any exception if one is damaged."""
    states = {name: kind.parse(plain[name]) for name, kind in _GLOBALS.items() if name in plain}
    with lent(states):  # raises if one is damaged
        return states


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
    return [text_of(each.get_state()) for each in generators]


def set_all(generators: Iterable[torch.Generator], texts: Iterable[str]) -> None:
    for generator, text in zip(generators, texts, strict=True):
        generator.set_state(tensor_of(text))
