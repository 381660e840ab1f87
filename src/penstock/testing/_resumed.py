"""Asserts that a loader resumes with the same batches, wherever it is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.testing._same import default_settings, difference, in_sentence, in_words, opened


def assert_resumes_everywhere(
    make_loader: Callable[..., Any],
    settings: Iterable[Mapping[str, Any]] | None = None,
    *,
    steps: int | None = None,
) -> None:
    """Asserts that a state taken anywhere in an epoch resumes with the batches of the plain loop, byte for byte.

    A loader with the first of these settings (by default those of `assert_same_everywhere`) is stopped before the
    first batch, after each batch and after the epoch; a loader with the second setting loads each of these states and
    reads to the end of the epoch. Then the second is stopped and the third resumed, and so on, until the last is
    stopped and the first resumed. States go through JSON, unless the dataset, the sampler or the stream puts objects
    into them that JSON cannot hold.

    `make_loader(**settings)` makes a new loader in each call; it should pass `seed=`. The batches of two epochs are
    kept for the comparison, and an epoch of n batches is read n / 2 times for each setting: `steps` limits how many
    batches of an epoch are read.

    >>> import penstock
    >>> assert_resumes_everywhere(lambda **settings: penstock.DataLoader(range(9), 2, seed=1, **settings))
    """
    everywhere = default_settings(make_loader) if settings is None else list(settings)
    with opened(make_loader, {"num_workers": 0}) as loader:
        expected = [list(islice(loader, steps)), list(islice(loader, steps))]
    for stopped, resumed in zip(everywhere, everywhere[1:] + everywhere[:1], strict=True):
        with opened(make_loader, stopped) as loader:
            states = _states(loader, steps)
        with opened(make_loader, resumed) as loader:
            for where, epoch, done, state in states:
                loader.load_state_dict(state)
                found = islice(loader, None if steps is None else steps - done)
                how = f"Stopped {where} with {in_words(stopped)}, resumed with {in_words(resumed)}"
                _compare(found, expected[epoch], epoch, done, how)


def _states(loader: Any, steps: int | None) -> list[tuple[str, int, int, Any]]:
    """States of one epoch, each with where it was taken: in words, the epoch to resume, and its batches so far."""
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
    """Asserts that `found` are the batches of the epoch after the first `done`."""
    at = done
    for batch in found:
        if at == len(expected):
            raise AssertionError(
                f"{how}: the epoch continues after batch {at - 1}, which should be its last."
            )
        differs = difference(batch, expected[at])
        if differs is not None:
            raise AssertionError(
                f"{how}: batch {at} of epoch {epoch} differs from that of a run without a stop"
                f"{in_sentence(differs)}.{_ADVICE}"
            )
        at += 1
    if at < len(expected):
        raise AssertionError(f"{how}: epoch {epoch} ends before batch {at}.")


def _through_json(state: Any) -> Any:
    try:
        return json.loads(json.dumps(state))
    except TypeError:  # the caller must save it in another format
        return state


_ADVICE = (
    "\n  The likely cause: a sample depends on earlier samples, by a counter, a cache or a generator of the "
    "dataset's own (use penstock.rng(), or define state_dict() and load_state_dict()); or no seed= was given."
)
