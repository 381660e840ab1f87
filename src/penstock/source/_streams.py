"""Implements the methods `map`, `filter`, `batch` and `shuffle` of `IterableDataset`.

Each method returns a stage: a stream that wraps another stream and reads it item by item. The state of a stage
includes the state of the wrapped stream, so a stage can be resumed exactly where the wrapped stream can. If the
wrapped stream has no state, the stage has no state. A loader then resumes by reading from the beginning.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from penstock._at_work import at_work
from penstock._resume.reading import Mark, Reading, initial, opened, taken
from penstock._system.ending import END, NoBatch, raises_instead
from penstock.errors import StateError
from penstock.plan._order import Permutation
from penstock.plan._seeds import mix
from penstock.source._dataset import IterableDataset
from penstock.source._nested import shown
from penstock.source._stages import name_of, noted

T_co = TypeVar("T_co", covariant=True)


class WrappedStream(IterableDataset[T_co]):
    """A stream that wraps another stream. Subclasses may change the samples."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self.dataset = dataset
        self._next: Mark | None = None  # where the next pass begins, if a loaded state says so
        self._end: bytes | None = None  # where the last pass ended, if it reached the end of the stream
        self._is_fresh = True  # no pass has begun

    def __iter__(self) -> Iterator[Any]:
        mark, start = self._next, self._next or self._beginning()
        self._next, self._end, self._is_fresh = None, None, False
        return self._reader(mark, start)

    def _reader(self, mark: Mark | None, start: Mark) -> StageReader:
        return StageReader(self, mark, start)

    def _beginning(self) -> Mark:
        """Returns the mark (the saved position) at which a new pass begins."""
        found: Mark | None = None
        if self._end is not None:
            with suppress(StateError):
                end = opened(self._end)
                found = None if end is None else end.next_epoch()
        elif self._is_fresh:
            found = opened(initial(self.dataset, is_fresh=True))
        return found or Mark(0, {})

    def begin_with(self, end: Mark) -> None:
        """Sets the next pass to the epoch that follows the mark `end`."""
        self._next = end.next_epoch()

    def finish(self, reading: Reading) -> None:
        self._end = taken(self.dataset, reading.mark)

    def take(self, reading: Reading) -> Any:
        return taken_from(reading)

    @property
    def load(self) -> Callable[[Any], Any]:
        """Makes a sample from an item. The attribute is missing if the wrapped stream has no `load`."""
        load: Callable[[Any], Any] | None = getattr(self.dataset, "load", None)
        if load is None:
            raise AttributeError(f"{type(self.dataset).__name__} has no load")
        return self._loading(load)

    def _loading(self, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return load

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return shown(self.dataset)


def taken_from(reading: Reading) -> Any:
    items = reading.take(1)
    return items[0] if items else END


class StageReader:
    """One pass over a `WrappedStream`. The reader's state is the position in the wrapped stream.

    `mark` is the position from which the wrapped stream is read, or None for its beginning. `start` is the
    position before the first item of this pass.
    """

    def __init__(self, stage: WrappedStream[Any], mark: Mark | None, start: Mark) -> None:
        self._stage = stage
        self._open(mark, start)

    def _open(self, mark: Mark | None, start: Mark) -> None:
        self._reading, self._start = Reading(self._stage.dataset), start
        self._reading.open(mark)
        if mark is not None and mark.kept and not mark.at_end:
            self._reading.open()  # now, not at the first item: only an open stream shows whether it has a state

    def __iter__(self) -> StageReader:
        return self

    @raises_instead
    def __next__(self) -> Any | NoBatch:
        item = self._take()
        if item is END and not self._start.at_end:
            self._stage.finish(self._reading)
        return item

    def _take(self) -> Any:
        return self._stage.take(self._reading)

    @property
    def state_dict(self) -> Callable[[], dict[str, Any]]:
        self._check_state()
        return self._state

    @property
    def load_state_dict(self) -> Callable[[dict[str, Any]], None]:
        self._check_state()
        return self._load

    def _check_state(self) -> None:
        if not self._reading.has_state and not self._start.at_end:
            raise AttributeError(f"{type(self._stage.dataset).__name__} has no state")

    def _state(self) -> dict[str, Any]:
        return self._known(self._position())

    def _load(self, state: dict[str, Any]) -> None:
        mark = mark_in(state)
        if mark.at_end:
            self._stage.begin_with(mark)
        self._open(mark, mark)

    def _position(self) -> Mark | None:
        """Returns the position in the wrapped stream, or None if an exception has made the position unknown."""
        return self._start if self._reading.read == self._start.read else self._reading.mark()

    def _known(self, mark: Mark | None) -> dict[str, Any]:
        if mark is None:
            raise StateError(
                f"{type(self._stage.dataset).__name__} raised an exception, and its position after that is not "
                "known. Resume from a state that was taken before."
            )
        return mark._asdict()


def mark_in(state: Any) -> Mark:
    """Returns the mark in the state of a `StageReader`. Raises StateError if the state has no mark."""
    try:
        return Mark.parse(state["read"], state["states"], state["kept"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"This is not the state of a stream made by map, filter, batch or shuffle: {error}."
        ) from None


class MappedStream(WrappedStream[T_co]):
    """The samples of a stream, each passed through a function: see `IterableDataset.map`."""

    def __init__(self, dataset: Iterable[Any], fn: Callable[[Any], Any]) -> None:
        super().__init__(dataset)
        if not callable(fn):
            raise TypeError(f"map() takes a function, but got a {type(fn).__name__}.")
        self.fn = fn

    def take(self, reading: Reading) -> Any:
        item = taken_from(reading)
        return item if item is END or hasattr(self.dataset, "load") else self._applied(item)

    def _loading(self, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda item: self._applied(load(item))

    def _applied(self, sample: Any) -> Any:
        return applied(self.fn, sample, self)

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.map({name_of(self.fn)})"


def applied(fn: Callable[[Any], Any], sample: Any, stage: object) -> Any:
    try:
        return fn(sample)
    except Exception as error:
        failed = noted(error, f"In the stream {shown(stage)}.")
    try:
        raise failed
    finally:
        del failed  # its traceback refers to this frame


class FilteredStream(WrappedStream[T_co]):
    """Those samples of a stream for which a function returns true: see `IterableDataset.filter`.

    If the wrapped stream has a `load`, the filter calls it, because the function needs the loaded samples.
    """

    def __init__(self, dataset: Iterable[Any], predicate: Callable[[Any], Any]) -> None:
        super().__init__(dataset)
        if not callable(predicate):
            raise TypeError(f"filter() takes a function, but got a {type(predicate).__name__}.")
        self.predicate = predicate

    def take(self, reading: Reading) -> Any:
        load = getattr(self.dataset, "load", None)
        while (item := taken_from(reading)) is not END:
            sample = item if load is None else load(item)
            if applied(self.predicate, sample, self):
                return sample
        return END

    @property
    def load(self) -> Callable[[Any], Any]:
        raise AttributeError("the samples of a filtered stream are loaded already")

    def __len__(self) -> int:
        raise TypeError(f"{self!r} has no len(): how many samples it has is known only when they were read.")

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.filter({name_of(self.predicate)})"


class BatchedStream(WrappedStream[Any]):
    """Lists of samples from a stream: see `IterableDataset.batch`."""

    def __init__(self, dataset: Iterable[Any], size: int, drop_last: bool = False) -> None:
        super().__init__(dataset)
        self.size, self.drop_last = _positive("size", size), drop_last

    def take(self, reading: Reading) -> Any:
        items = reading.take(self.size)
        return items if len(items) == self.size or (items and not self.drop_last) else END

    def _loading(self, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda items: list(map(load, items))

    def __len__(self) -> int:
        n = super().__len__()
        return n // self.size if self.drop_last else -(-n // self.size)

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.batch({self.size})"


class ShuffledStream(WrappedStream[T_co]):
    """A stream whose samples are shuffled in groups of `buffer` samples: see `IterableDataset.shuffle`.

    In a loader with penstock's semantics, the order depends on `seed` and on the loader's seed and epoch. Otherwise,
    the order depends on `seed` and on `epoch`, which counts the passes.
    """

    def __init__(self, dataset: Iterable[Any], buffer: int, seed: int = 0) -> None:
        super().__init__(dataset)
        self.buffer, self.seed = _positive("buffer", buffer), operator.index(seed)
        self.epoch = 0
        self._depth = 0  # the number of shuffled streams inside, so that each has its own order
        inner = dataset
        while isinstance(inner, WrappedStream):
            self._depth += isinstance(inner, ShuffledStream)
            inner = inner.dataset

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next pass. Loaders with penstock's semantics ignore this number."""
        self.epoch = epoch

    def _reader(self, mark: Mark | None, start: Mark) -> ShuffledReader:
        return ShuffledReader(self, mark, start)

    def draw_order(self) -> int:
        if at_work.source is not None:
            # The seed of the step's generator, not a number drawn from it: a resume may open a stream twice.
            words: Any = at_work.source.rng().bit_generator.seed_seq
            return mix(self.seed, self._depth, *words.generate_state(2, np.uint64).tolist())
        self.epoch += 1
        return mix(self.seed, self._depth, self.epoch - 1)

    def __repr__(self) -> str:
        return f"{shown(self.dataset)}.shuffle({self.buffer})"


class ShuffledReader(StageReader):
    """One pass over a `ShuffledStream`.

    The items of each window (`buffer` items) are handed out in random order. For each item handed out, one item of
    the next window is read, so at most `buffer` items are held.

    The state is small, because it holds no items. It holds the stream's position at the beginning of the current
    window, and the number of its items that have been handed out. After a resume, at most two windows are read again.
    """

    # Rejected: exchanging each item for a random one in the buffer. An item could then stay in the buffer for ever,
    # so the state would have to hold all items.

    _stage: ShuffledStream[Any]

    def __init__(self, stage: ShuffledStream[Any], mark: Mark | None, start: Mark) -> None:
        self._buffer, self._key = stage.buffer, stage.draw_order()
        super().__init__(stage, mark, start)

    def _open(self, mark: Mark | None, start: Mark) -> None:
        super()._open(mark, start)
        self._window = -1  # the number of the current window
        self._now: list[Any] = []  # its items, with None in place of those that were handed out
        self._order: list[int] = []
        self._came = 0
        self._ahead: list[Any] = []  # the items of the next window that were read so far
        self._begins: dict[int, bytes | None] = {}  # the positions at which this window and the next one begin

    def _take(self) -> Any:
        if self._came < len(self._now):
            self._read_one()  # before an item is taken out: if this raises, no item is lost
        else:
            while self._read_one():
                pass
            self._turn()
            if not self._now:
                return END
        at = self._order[self._came]
        item, self._now[at] = self._now[at], None
        self._came += 1
        return item

    def _read_one(self) -> bool:
        """Reads one item of the next window. Returns False if that window is complete or the stream has ended."""
        if len(self._ahead) == self._buffer or self._reading.ended:
            return False
        if not self._ahead and self._reading.has_state and self._window + 1 not in self._begins:
            self._begins[self._window + 1] = taken(self._reading.source, self._position)
        item = taken_from(self._reading)
        if item is not END:
            self._ahead.append(item)
        return item is not END

    def _turn(self) -> None:
        self._now, self._ahead, self._came = self._ahead, [], 0
        self._begins.pop(self._window, None)
        self._window += 1
        n = len(self._now)
        self._order = Permutation(n, mix(self._key, self._window)).at(np.arange(n)).tolist() if n else []

    def _state(self) -> dict[str, Any]:
        if self._start.at_end:
            mark: Mark | None = self._start
        elif self._reading.ended and not self._ahead and self._came == len(self._now):
            mark = self._reading.mark()
        else:
            mark = opened(self._begins[self._window]) if self._window in self._begins else self._start
        about = {"window": max(self._window, 0), "came": self._came, "key": self._key, "epoch": self._stage.epoch}
        return {"start": self._known(mark), **about}

    def _load(self, state: dict[str, Any]) -> None:
        try:
            window, came, self._key, epoch = (operator.index(state[name]) for name in _COUNTS)
            mark = mark_in(state["start"])
        except (KeyError, TypeError) as error:
            raise StateError(f"This is not the state of a stream made by shuffle: {error!r}.") from None
        self._stage.epoch = epoch
        if mark.at_end:
            self._stage.begin_with(mark)
        self._open(mark, mark)
        self._window = window - 1
        if mark.at_end or not came:
            return
        while self._read_one():
            pass
        self._turn()
        if came > len(self._now):
            raise StateError(
                f"The state says that {came} items of a window have come, but the stream has only {len(self._now)} "
                "there now. Resume with the data that the state was taken with."
            )
        for at in self._order[:came]:
            self._now[at] = None
            self._read_one()
        self._came = came


_COUNTS = ("window", "came", "key", "epoch")


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name} must be an integer of 1 or more, got {value!r}.")
    return operator.index(value)
