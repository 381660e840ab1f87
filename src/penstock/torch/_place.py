"""Where an iterator with torch's semantics is in its epoch: what it has handed out, and what that came from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock._resume.marks import asked, known, opened, taken
from penstock._resume.progress import Progress
from penstock._resume.reading import Mark, Reading, by_next, has_state, renew
from penstock._resume.state import State
from penstock._wire.task import Task
from penstock.errors import StateError
from penstock.torch import _generators as generators
from penstock.torch import _private as private
from penstock.torch._order import Order

if TYPE_CHECKING:
    from penstock.torch._state import Saved


class Copy:
    """How far one copy of the dataset is, a worker's or the caller's: its last mark, and batches since then."""

    def __init__(self, mark: bytes | Mark | None = None, more: int = 0) -> None:
        self._mark = mark
        self.more = more

    def moved(self, mark: bytes | None) -> None:
        """It gave a batch, or an error in the place of one."""
        if mark is None:
            self.more += 1
        else:
            self._mark, self.more = mark, 0

    @property
    def mark(self) -> Mark | None:
        return opened(self._mark)

    @property
    def known(self) -> Mark | None:
        """The mark; None also where it could not be taken."""
        return known(self._mark)

    def in_next_epoch(self) -> Copy:
        """The copy when another epoch of a stream begins."""
        try:
            kept = None if self.mark is None else self.mark.kept
        except StateError:
            return Copy(self._mark)  # nor is it known what was kept
        return Copy() if kept is None else Copy(Mark(0, {}, kept))


class Place:
    """The place of an iterator that begins: at the beginning, or where a state was taken.

    `before` is the place of the loader in the epoch before, and `lives` says that those workers live on.
    """

    def __init__(
        self, loader: Any, saved: Saved | None = None, before: Place | None = None, *, lives: bool = False
    ) -> None:
        # A loader that has no state has torch's own sampler, and is asked for no marks.
        self.is_tracked = "_saved" in loader.__dict__
        self._saved = saved
        self.dataset = loader.dataset
        self._workers: int = before._workers if before is not None and lives else loader.num_workers
        self.is_stream = private.is_stream(loader)
        self.progress = Progress(State(0, 0) if saved is None else saved.state, None)
        self._first = self.progress.steps
        end = None if before is None or before.order is None else before.order.end
        begin = end if saved is None else saved.state.mark
        self.order: Order | None = None if self.is_stream else Order(loader, self.progress, begin)
        self.generators = generators.given_to(loader) if self.order is None else self.order.generators
        self.base_seed: int | None = None
        copies = max(1, self._workers) if self.is_stream or has_state(self.dataset) else 0
        self._copies = [Copy() for _ in range(copies)]
        self._seat = 0
        # What was resumed at its end was not made what it was there, since nothing was left to read: that is done
        # for the epoch after it.
        self._restores = saved is not None or (before is not None and before._began_at_end)
        self._began_at_end: bool = False
        if saved is not None:
            self.base_seed = saved.base_seed
            self._copies = saved.copies or self._copies
            self._seat = saved.seat
            here = [] if self._workers else [copy.mark for copy in self._copies]
            self._began_at_end = any(map(_is_end, [opened(begin), *here]))
        elif before is not None:
            if lives:
                self.base_seed = before.base_seed
                self._copies = [Copy(copy._mark) for copy in before._copies]
            if self.is_stream and (lives or (not self._workers and before.progress.is_over)):
                self._copies = [copy.in_next_epoch() for copy in before._copies]
        # Of a stream that has a state and is read in this process: what reads it.
        self._fetcher: Any = None
        self._reading: Reading | None = None

    @property
    def seat(self) -> int:
        """Whose turn it is: of a stream's copies, some may have ended."""
        return self._seat if self.is_stream else self.progress.steps % max(1, self._workers)

    @property
    def count(self) -> int:
        """How many copies of the dataset there are of which it must be known how far they are."""
        return len(self._copies)

    @property
    def given(self) -> list[str]:
        """The states of `generators`: as they were before the sampler drew from them, or as they are."""
        if self.order is not None:
            return self.order.given
        return [generators.text_of(each.get_state()) for each in self.generators]

    @property
    def copies(self) -> list[Copy]:
        """How far they are now."""
        if self._workers or not self._copies:
            return self._copies
        if self.is_stream:
            return [asked(self.dataset, self._read_here)]
        return [asked(self.dataset, lambda: Copy(Mark(0, {"iterable": self.dataset.state_dict()})))]

    def _read_here(self) -> Copy:
        """How far the caller's own copy of a stream is."""
        reading = self._reading
        if reading is None or self.progress.steps == self._first:
            return self._copies[0]  # a generator that was not asked yet has done nothing about a state
        reading.ended = self._fetcher.ended
        mark = reading.mark()
        assert mark is not None
        return Copy(mark)

    # How an iterator begins.

    def restore(self) -> None:
        """Makes generators and sampler what they were, and the dataset, where the caller's own copy is read."""
        if self._saved is not None:
            generators.set_all(self.generators, self._saved.given)
        if not self._restores:
            return
        if self.order is not None:
            self.order.restore()
        mark = self._copies[0].mark if self._copies and not self._workers else None
        if mark is None or mark.states is None:
            return
        if mark.kept:
            with generators.lent({}):
                renew(self.dataset, mark.kept)
        elif "iterable" in mark.states:
            self.dataset.load_state_dict(mark.states["iterable"])

    @contextmanager
    def beginning(self, *, seed: bool = True, sampler: bool = True) -> Iterator[None]:
        """Around what torch does to begin: its base seed is drawn, its sampler begun, or both.

        What was drawn before the state was taken is drawn from nobody's generator now.
        """
        saved = self._saved
        if self.order is not None and self.is_tracked and sampler:
            self.order.prepare()
        if saved is None or (saved.base_seed if seed else saved.origin) is None:
            yield
            return
        with generators.lent(saved.states):
            yield
        if not sampler or saved.origin is None:  # else the order goes on from them
            generators.set_all(self.generators, saved.given)

    def seeded(self, drawn: int) -> int:
        """The seed that workers have theirs from: the one that torch has drawn, or else that of the state."""
        if self.base_seed is None:
            self.base_seed = drawn
        return self.base_seed

    def keys(self, begun: Iterator[Any]) -> Iterator[Any]:
        """What is drawn for each step that was not handed out; `begun` is what torch has begun for all."""
        saved = self._saved
        if self.order is None or not self.is_tracked:
            return begun
        if saved is not None and saved.origin is not None:
            return self.order.resumed(begun, saved.origin, saved.states, saved.given)
        return self.order.fresh(begun)

    def open_stream(self, fetcher: Any, size: int) -> None:
        """The caller's own copy of a stream goes on where it was; this is what reads it."""
        mark, stream = self._copies[0].known, fetcher.dataset_iter
        if mark is not None:
            fetcher.ended = mark.states is None
            if mark.states and "iterator" in mark.states:
                stream.load_state_dict(mark.states["iterator"])
        for _ in range(self._copies[0].more):
            with suppress(Exception):  # it was raised the first time
                deque(islice(by_next(stream), size), maxlen=0)
        if self.is_tracked and (has_state(self.dataset) or has_state(stream)):
            self._fetcher, self._reading = fetcher, Reading(self.dataset)
            self._reading.begin(stream)

    # How it goes on.

    def passed(self, task: Task, worker: int) -> None:
        """A worker's step was handed out, as a batch or as an error."""
        self.progress.passed(task.step, None)
        if self._copies:
            self._copies[worker].moved(task.mark)
            self._seat = (worker + 1) % self._workers

    def passed_inline(self) -> None:
        """A step that was done in this process was."""
        self.progress.passed(self.progress.steps, None)
        if self._copies:
            self._copies[0].more += 1

    def end(self, ends: Iterable[tuple[int, bytes]] = ()) -> None:
        """All of the epoch was handed out, and whoever asked for more was told so; `ends`: see `Run`."""
        self.progress.is_over = True
        for worker, mark in ends:
            self._copies[worker].moved(mark)
        if self._reading is not None and not _is_end(self._copies[0].known):
            self._reading.gave = self.progress.steps > 0
            end = taken(self.dataset, self._reading.end)
            self._copies = self._copies if end is None else [Copy(end)]
        self._fetcher = self._reading = None


def _is_end(mark: Mark | None) -> bool:
    return mark is not None and mark.states is None
