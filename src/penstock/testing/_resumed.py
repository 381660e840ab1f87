"""Asserts that a loader that was stopped goes on as if it had not been, wherever it is stopped and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.testing._same import difference, in_sentence, in_words, made, taken


def assert_resumes_everywhere(
    make_loader: Callable[..., Any],
    settings: Iterable[Mapping[str, Any]] | None = None,
    *,
    steps: int | None = None,
) -> None:
    """A state taken anywhere in an epoch goes on with the batches of the plain loop, byte for byte.

    A loader with the first of these settings (by default those of `assert_same_everywhere`) is stopped before the
    first batch, after each one and after the epoch, and one with the second setting loads each of these states and
    reads on to the epoch's end; then the second is stopped and the third resumed, and so on, until the last is
    stopped and the first resumed. States go through JSON, if JSON can carry what the dataset, the sampler or the
    stream puts into them.

    `make_loader(**settings)` makes the loader, each time anew; it should give it a `seed=`. The batches of two
    epochs are kept for the comparison, and an epoch of n batches is read n / 2 times for each setting: `steps`
    limits how many batches of an epoch are read.

    >>> import penstock
    >>> assert_resumes_everywhere(lambda **settings: penstock.DataLoader(range(9), 2, seed=1, **settings))
    """
    everywhere = taken(make_loader) if settings is None else list(settings)
    with made(make_loader, {"num_workers": 0}) as loader:
        expected = [list(islice(loader, steps)), list(islice(loader, steps))]
    for stopped, resumed in zip(everywhere, everywhere[1:] + everywhere[:1], strict=True):
        with made(make_loader, stopped) as loader:
            states = _states(loader, steps)
        with made(make_loader, resumed) as loader:
            for where, epoch, done, state in states:
                loader.load_state_dict(state)
                found = islice(loader, None if steps is None else steps - done)
                how = f"Stopped {where} with {in_words(stopped)}, resumed with {in_words(resumed)}"
                _compare(found, expected[epoch], epoch, done, how)


def _states(loader: Any, steps: int | None) -> list[tuple[str, int, int, Any]]:
    """States of one epoch: where each was taken, in words and as the batches of an epoch that were handed out."""
    states = [("before the first batch", 0, 0, _through_json(loader.state_dict()))]
    batches, done = iter(loader), 0
    while done != steps:
        try:
            next(batches)
        except StopIteration:
            states.append(("after the epoch", 1, 0, _through_json(loader.state_dict())))
            break
        done += 1
        states.append((f"after batch {done - 1}", 0, done, _through_json(loader.state_dict())))
    return states


def _compare(found: Iterable[Any], expected: list[Any], epoch: int, done: int, how: str) -> None:
    """What was found are the batches of the epoch after those that had been handed out."""
    at = done
    for batch in found:
        if at == len(expected):
            raise AssertionError(f"{how}: the epoch goes on after batch {at - 1}, its last.")
        differs = difference(batch, expected[at])
        if differs is not None:
            raise AssertionError(
                f"{how}: batch {at} of epoch {epoch} is not as without stopping{in_sentence(differs)}.{_ADVICE}"
            )
        at += 1
    if at < len(expected):
        raise AssertionError(f"{how}: the stream ends before batch {at} of epoch {epoch}.")


def _through_json(state: Any) -> Any:
    try:
        return json.loads(json.dumps(state))
    except TypeError:  # it is the user's to save
        return state


_ADVICE = (
    "\n  Most often a sample depends on what was done before it: on a counter, a cache or a generator of the "
    "dataset's own (use penstock.rng(), or give it state_dict() and load_state_dict()); or no seed= was given."
)
