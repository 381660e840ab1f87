"""The position of an iterator with torch's semantics, saved as plain data that is checked before use.

The data includes the states of the random generators that the epoch's order was drawn from. Nothing in the data is
evaluated or unpickled. Only the state of a user's own dataset or sampler may contain other objects.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from penstock._resume.reading import Mark, asked, has_state, initial, known, opened, taken
from penstock._resume.state import Progress, State, damaged, number
from penstock._system.interrupts import with_loan
from penstock.errors import StateError
from penstock.source._nested import fingerprint_of
from penstock.torch import _private as private
from penstock.torch._sampling import (
    Ahead,
    Restored,
    Sampling,
    TemporaryStates,
    given_to,
    parse_states,
    sampler_of,
    set_all,
    take_states,
    texts_of,
)

# The field that only states without a seed have.
PART = "torch"


class CopyPosition:
    """The position of the caller's or a worker's copy of the dataset: `more` batches after `mark`."""

    def __init__(self, mark: bytes | Mark | None = None, more: int = 0) -> None:
        self.mark = mark
        self.more = more

    def moved(self, mark: bytes | None) -> None:
        """Records that this copy returned a batch or an error. `mark` is the copy's saved position, or None."""
        if mark is None:
            self.more += 1
        else:
            self.mark, self.more = mark, 0

    def next_epoch(self) -> CopyPosition:
        """Returns the start of the next epoch. The start is unknown if the end of the current epoch was not saved."""
        mark = known(self.mark)
        return CopyPosition(self.mark if mark is None else mark.next_epoch())

    def as_dict(self) -> dict[str, Any]:
        mark = opened(self.mark)
        return {"more": self.more} | ({} if mark is None else {"states": mark.states, "kept": mark.kept})

    @classmethod
    def parse(cls, plain: Mapping[str, Any], dataset: Any) -> CopyPosition:
        more, mark = number(plain, "more"), None
        if "states" in plain:
            mark = Mark.parse(0, plain["states"], plain["kept"])
            mark.check_owner(dataset)
        return cls(mark, more)


class LoadedState(NamedTuple):
    """A resume state, parsed and checked.

    `origin` and `given` are the attributes of `Sampling` with these names. `states` holds the random states in
    `origin`, parsed for `TemporaryStates`. `ahead` is the argument for `Ahead.of`. `ahead` is empty if the order and
    the base seed were drawn before the state was taken.
    """

    plain: Mapping[str, Any]
    state: State
    base_seed: int | None
    origin: dict[str, Any] | None
    states: dict[str, Any]
    given: list[str]
    copies: list[CopyPosition]
    seat: int
    ahead: dict[str, Any]


class Cursor:
    """The position of one iterator. The iterator starts at the beginning of an epoch or from a saved state.

    `before` is the cursor of the loader's previous epoch. `lives` is True if the workers of that epoch are reused.
    """

    def __init__(
        self, loader: Any, saved: LoadedState | None = None, before: Cursor | None = None, *, lives: bool = False
    ) -> None:
        # A loader of torch's own class (see `enable`) has no state, so its sampler and workers send no marks.
        self.is_tracked = "_saved" in loader.__dict__
        self._saved = saved
        self.dataset = loader.dataset
        self._workers: int = before._workers if before is not None and lives else loader.num_workers
        self.is_stream = private.is_stream(loader)
        if saved is None:
            end = None if before is None or before.sampling is None else before.sampling.end
            begin = end or self._beginning(None if self.is_stream else sampler_of(loader), before)
            self.progress = Progress(State(0, 0, mark=begin), None)
        else:
            self.progress = Progress(saved.state, None)
        self._first = self.progress.steps
        self.sampling: Sampling | None = None if self.is_stream else Sampling(loader, self.progress)
        self.length: int | None = None
        if not self.is_stream and isinstance(self.dataset, Sized):
            with suppress(Exception):  # the user's code: torch will raise the same error
                self.length = len(self.dataset)  # taken now, because it may grow during the epoch
        self.generators = given_to(loader) if self.sampling is None else self.sampling.generators
        self.base_seed: int | None = None
        copies = max(1, self._workers) if self.is_stream or has_state(self.dataset) else 0
        self._copies = [CopyPosition() for _ in range(copies)]
        self._seat = 0
        self._ahead = None if saved is None else Ahead.of(saved.ahead)
        # An epoch that was resumed at its end had nothing to read and restored nothing, so the next one restores.
        self._restores = saved is not None or (before is not None and before._began_at_end)
        self._began_at_end: bool = False
        if saved is not None:
            self.base_seed = saved.base_seed
            self._copies = saved.copies or self._copies
            self._seat = saved.seat
            here = [] if self._workers else [opened(copy.mark) for copy in self._copies]
            marks = [opened(saved.state.mark), *here]
            self._began_at_end = any(mark is not None and mark.at_end for mark in marks)
        elif before is not None and lives:
            self.base_seed = before.base_seed
            self._copies = [old.next_epoch() if self.is_stream else CopyPosition(old.mark) for old in before._copies]
        elif before is not None and self.is_stream and not self._workers and before.progress.is_over:
            self._copies = [copy.next_epoch() for copy in before._copies]
        if saved is None and self.is_stream and not self._workers and self._copies[0].mark is None:
            self._copies = [CopyPosition(self._beginning(self.dataset, before))]
        # For the caller's own copy of the dataset. `_fetcher`, through which torch reads a stream, is set if the
        # stream has a state.
        self._reading = Restored(self.dataset)
        self._fetcher: Any = None

    def _beginning(self, source: Any, before: Cursor | None) -> bytes | None:
        return initial(source, is_fresh=before is None) if self.is_tracked else None

    @classmethod
    def of(cls, loader: Any) -> Cursor:
        cursor = cls(loader, loader.__dict__.get("_saved"), loader.__dict__.get("_cursor"))
        cursor.restore()
        return cursor

    @property
    def seat(self) -> int:
        """The index of the worker that gets the next step. Workers whose stream has ended are skipped."""
        return self._seat if self.is_stream else self.progress.steps % max(1, self._workers)

    @property
    def copies(self) -> list[CopyPosition]:
        here = self._copies and not self._workers
        return [asked(self.dataset, self._copy_here)] if here else self._copies

    def _copy_here(self) -> CopyPosition:
        if not self.is_stream:
            return CopyPosition(Mark(0, {"iterable": self.dataset.state_dict()}))
        if self._fetcher is None:
            return self._copies[0]
        if self.progress.steps == self._first and not self._reading.has_begun_state:
            return self._copies[0]  # a generator that has not run yet has not used a state
        self._reading.ended = self._reading.ended or self._fetcher.ended
        mark = self._reading.mark()
        return self._copies[0] if mark is None else CopyPosition(mark)

    def restore(self) -> None:
        """Restores the random generators, the sampler, and the caller's own copy of the dataset."""
        if self._saved is not None:
            set_all(self.generators, self._saved.given)
        if not self._restores:
            return
        if self.sampling is not None:
            self.sampling.restore()
        mark = opened(self._copies[0].mark) if self._copies and not self._workers else None
        if mark is not None:
            if mark.kept:
                with_loan(TemporaryStates({}), self._reading.prepare, mark)
            else:
                self._reading.prepare(mark)

    def begin(self, work: Callable[[], object], iterator: Any = None, *, sampler: bool = True) -> None:
        """Calls `work`: torch's code for the base seed of `iterator`, for `iter(sampler)`, or for both.

        `work` may draw random numbers. If a loaded state was taken after the original draw, `work` draws the same
        numbers again, and the caller's generators do not advance.
        """
        if self.sampling is not None and self.is_tracked and sampler:
            self.sampling.prepare()
        saved = self._saved
        if saved is not None and (saved.origin if iterator is None else saved.base_seed) is None:
            saved = None
        if saved is None:
            work() if self._ahead is None else self._ahead.lent(work)
        else:
            with_loan(TemporaryStates(saved.states), work)
        if saved is not None and (not sampler or saved.origin is None):
            set_all(self.generators, saved.given)  # otherwise the sampler draws from them again
        if iterator is not None:
            self.base_seed = iterator._base_seed if self.base_seed is None else self.base_seed
            iterator._base_seed = self.base_seed

    def keys(self, begun: Iterator[Any]) -> Iterator[Any]:
        """Returns the keys of the remaining steps. `begun` is torch's iterator over all steps."""
        saved = self._saved
        if self.sampling is None or not self.is_tracked:
            return begun
        if saved is not None and saved.origin is not None:
            return self.sampling.resumed(begun, saved)
        steps = self.sampling.fresh(begun)
        return steps if self._ahead is None else self._ahead.steps(steps)

    def open_stream(self, fetcher: Any, size: int) -> None:
        """Moves the caller's own copy of a stream to the saved position. torch reads the stream through `fetcher`."""
        copy, reading = self._copies[0], self._reading
        reading.begin(fetcher.dataset_iter, known(copy.mark))
        until = reading.read + copy.more
        reading.pass_over(until, size)
        fetcher.ended = reading.ended
        if self.is_tracked and reading.has_state:
            self._fetcher = fetcher

    def passed(self, step: int, mark: bytes | None, worker: int) -> None:
        """Records that a worker's batch or error was handed out.

        `mark` is the position that the worker sent with this result, or None.
        """
        self.progress.passed(step, None if self.sampling is None else self.sampling.handed_out(step))
        if self._copies:
            self._copies[worker].moved(mark)
            self._seat = (worker + 1) % self._workers

    @property
    def steps_before(self) -> int:
        """The number of steps of this epoch that had been handed out when the loaded state was taken."""
        begin = self.progress.begin
        return begin.steps + len(begin.beyond)

    def passed_inline(self, *, failed: bool) -> None:
        """Does the same as `passed`, but for a loader without workers."""
        step = self.progress.steps
        self.progress.passed(step, None if self.sampling is None else self.sampling.handed_out(step))
        if self._copies:
            self._copies[0].more += 1
        if self._fetcher is not None:
            self._reading.note_error() if failed else self._reading.note_batch()

    def finish(self, end: bytes | None, ends: Mapping[int, bytes]) -> None:
        """Records that the caller has reached the epoch's end. `ends` maps workers to final stream positions."""
        self.progress.is_over = True
        for worker, mark in ends.items():
            self._copies[worker].moved(mark)
        if self._fetcher is not None and not self._began_at_end:
            self._reading.gave = self.progress.steps > 0
            here = taken(self.dataset, self._reading.end)
            if here is not None or self._reading.is_broken():
                self._copies = [CopyPosition(here)]
        self._fetcher = None


def state_of(loader: Any) -> dict[str, Any]:
    """Returns the state of the most recently started iterator, as plain data."""
    if isinstance(loader.dataset, private.PIPES):
        warnings.warn(
            "torch's engine reads DataPipes and does not report its position, so this state is empty: loading it "
            "starts from the beginning.",
            stacklevel=4,
        )
        return {}
    if loader._saved is not None:
        return dict(loader._saved.plain)
    cursor: Cursor | None = loader._cursor
    begun = cursor is not None and not cursor.progress.is_over
    if cursor is None or not begun:
        # The loader holds persistent workers in its `_iterator`.
        cursor = Cursor(loader, before=cursor, lives=cursor is not None and loader._iterator is not None)
    sampling = cursor.sampling
    origin = sampling.origin if sampling is not None and begun else None
    return {
        **cursor.progress.as_dict(),
        "about": _about(loader, cursor),
        PART: {
            "base_seed": cursor.base_seed,
            "origin": None if origin is None else dict(origin),
            "generators": texts_of(cursor.generators) if sampling is None else sampling.given,
            "workers": [copy.as_dict() for copy in cursor.copies],
            "seat": cursor.seat if cursor.is_stream else 0,  # with keys, it follows from the step
            "ahead": _ahead(loader, cursor),
        },
    }


def _ahead(loader: Any, cursor: Cursor) -> dict[str, Any]:
    """Returns the states of the global random generators that the rest of the epoch will use."""
    names = set() if cursor.sampling is None else cursor.sampling.draws_from
    if loader.num_workers and loader.generator is None and cursor.base_seed is None:
        names |= {"torch"}
    # A state is None if the user has given numpy another bit generator.
    return {name: state for name, state in take_states(sorted(names)).items() if state is not None}


def _about(loader: Any, cursor: Cursor) -> dict[str, Any]:
    """Returns a description of the loader. A state can be loaded only by a loader with the same description."""
    sampling = cursor.sampling
    return {
        "kind": "torch's, a stream" if sampling is None else "torch's, by key",
        "length": cursor.length,
        "files": fingerprint_of(loader.dataset),
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        **({} if sampling is None else sampling.about),
        "generators": len(cursor.generators),
        "num_workers": loader.num_workers if cursor._copies else None,
    }


def check_maker(value: object, seed: int | None) -> None:
    """Raises StateError if either the state or this loader has a seed, but not both."""
    if isinstance(value, Mapping) and "penstock" in value and (PART in value) != (seed is None):
        then = "without a seed" if seed is not None else f"with seed={value.get('seed')}"
        raise StateError(
            f"The resume state was taken from a loader {then}, and this one has "
            f"{'no seed' if seed is None else f'seed={seed}'}. Make the loader {then}, or start without the state."
        )


def loaded(loader: Any, value: Any) -> LoadedState:
    """Parses a state from `state_of`. Raises StateError if the state is damaged or does not fit the loader."""
    state, cursor = State.parse(value), Cursor(loader)
    state.check(_about(loader, cursor))
    try:
        return _parse(value, state, cursor)
    except StateError:
        raise
    except Exception as error:
        raise damaged(f"its part {PART!r} cannot be read ({type(error).__name__}: {error})") from error


def _parse(value: Mapping[str, Any], state: State, cursor: Cursor) -> LoadedState:
    part, sampling = value[PART], cursor.sampling
    base_seed, origin = part["base_seed"], part["origin"]
    if state.steps and (base_seed is None or (sampling is not None and origin is None)):
        raise ValueError(f"it lacks the random states that its {state.steps} steps were drawn from")
    states = {} if origin is None else parse_states(origin)
    numbers = {"base_seed": base_seed or 0, "seat": part["seat"], **(origin or {})}
    for name in numbers.keys() - states.keys():
        number(numbers, name)
    given = list(part["generators"])
    set_all([torch.Generator(each.device) for each in cursor.generators], given)
    mark = opened(state.mark)
    if mark is not None:
        mark.check_owner(None if sampling is None else sampling.sampler)
    copies = [CopyPosition.parse(plain, cursor.dataset) for plain in part["workers"]]
    if len(copies) != len(cursor._copies):
        raise ValueError(f"it has positions of {len(copies)} dataset copies, not of {len(cursor._copies)}")
    ahead = part.get("ahead") or {}  # a state of an older penstock has none
    ahead = {name: ahead[name] for name in parse_states(ahead)}
    return LoadedState(dict(value), state, base_seed, origin, states, given, copies, part["seat"], ahead)
