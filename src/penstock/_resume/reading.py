"""Reads a user's sampler or stream batch by batch, and resumes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, repeat
from types import GeneratorType
from typing import Any, NamedTuple, TypeVar

from penstock._memory.guests import guest_in
from penstock._wire.failure import described
from penstock._wire.pickling import dumps, loads
from penstock.errors import StateError

T = TypeVar("T")


class Mark(NamedTuple):
    """A position in an iterable.

    `read` is the number of batches before the position. `states` has the states of the iterable and of its iterator.

    At the end of an epoch, `states` is None, and `kept` has the states from which the next epoch starts. The mark at
    the beginning of the next epoch has the same `kept`, and its `states` is empty. If `kept` has the key "fresh", the
    iterable was not at the end of an epoch when `kept` was made, so the next epoch may have no items.
    """

    read: int
    states: dict[str, Any] | None
    kept: dict[str, Any] | None = None

    @classmethod
    def parse(cls, read: int, states: object, kept: object) -> Mark:
        parts = [states, kept]
        # If `states` is empty, the iterable is read from its beginning, so no batch was read before.
        if not all(part is None or _is_sound(part) for part in parts) or (states == {} and read):
            raise ValueError(f"after {read} batches, states and kept are {states!r} and {kept!r}")
        return cls(read, *(dict(part) if isinstance(part, Mapping) else None for part in parts))

    @property
    def at_end(self) -> bool:
        return self.states is None

    def next_epoch(self) -> Mark | None:
        """Returns the mark at which the next epoch starts, or None if the iterable has no state."""
        return None if self.kept is None else Mark(0, {}, self.kept)

    def check_owner(self, iterable: object) -> None:
        """Raises StateError if the mark has a state for the iterable, but the iterable cannot load it."""
        if "iterable" in {**(self.states or {}), **(self.kept or {})}:
            _check_stateful(iterable)  # the iterator does not exist yet, and cannot be checked


def _is_sound(states: object) -> bool:
    names = set(states) if isinstance(states, Mapping) else {None}
    return names <= {"iterable", "iterator", "fresh"} and not ("fresh" in names and "iterable" not in names)


def has_state(thing: object) -> bool:
    """True if `thing` can save and load its position in the data. False for a model, which saves parameters."""
    take = getattr(thing, "state_dict", None)
    if not callable(take) or not callable(getattr(thing, "load_state_dict", None)):
        return False
    guest = guest_in(getattr(take, "__module__", None))
    return guest is None or not guest.is_parameters(take)


def by_next(items: Iterator[Any]) -> Iterator[Any]:
    """Yields the items without calling `iter()`, because some iterators start over in `iter()`."""
    return map(next, repeat(items))


class Reading:
    """One pass over an iterable. Before `open` is called, or if `open` fails, the pass has no items.

    `read` counts the batches read so far. `gave` is True if the epoch has had any items or errors, including those
    before a resume.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.read = 0
        self.ended = self.gave = False
        self.source: Any = source
        self._items: Iterator[Any] | None = iter(())  # None if `iter()` is to be called for the first batch
        self._iterator: Any = None
        self._raised = False  # the last batch raised, and it is unknown whether the iterator can continue
        self._broken = False  # an exception has ended the iterator
        self.was_cut_off = False  # True if the pass ended before the iterator did
        self._passed: tuple[int, Exception] | None = None  # a skipped batch, and what it raised
        self._stateful: dict[str, Any] = {}
        self._kept: dict[str, Any] | None = None
        self._renewed = False

    @property
    def has_state(self) -> bool:
        return bool(self._stateful)

    @property
    def has_begun_state(self) -> bool:
        """True if the iterator has a state: this state belongs to the pass even before the first item is read.

        At that time, the iterable's own state may still belong to the previous pass, for example if `__iter__` is a
        generator function.
        """
        return "iterator" in self._stateful and not self.ended

    def open(self, mark: Mark | None = None) -> bool:
        """Starts or continues the pass.

        Returns True if restoring a state may have drawn random numbers. The caller must then seed the generators
        again.
        """
        if mark is not None:
            self.prepare(mark)
        if mark is None or not (mark.at_end or mark.kept):
            self.begin(iter(self.source), mark)
            self.gave = mark is not None
        return mark is not None

    def prepare(self, mark: Mark) -> None:
        """Restores the iterable's state, before `iter()` is called. At the end of an epoch, restores nothing."""
        self.read, self.ended = mark.read, mark.at_end
        if mark.states is None:
            self._kept = mark.kept
        elif mark.kept:
            _renew(self.source, mark.kept, self.restore)
            self._items, self._renewed = None, "fresh" not in mark.kept
        elif "iterable" in mark.states:
            self.restore(self.source, mark.states["iterable"])

    def restore(self, part: Any, state: Any) -> None:
        """Loads a state into the iterable or its iterator. Raises StateError if `part` cannot load a state."""
        _check_stateful(part)
        part.load_state_dict(state)

    def begin(self, items: Iterator[Any], mark: Mark | None = None) -> None:
        """Starts reading from the iterator `items`.

        If `mark` has a state of the iterable, this state must have been restored before the call.
        """
        if mark is not None and mark.states and "iterator" in mark.states:
            self.restore(items, mark.states["iterator"])
        self._items, self._iterator = by_next(items), items
        # An iterable that is its own iterator may start over in `iter()`, so it is restored afterwards.
        parts = {"iterator": items} if items is self.source else {"iterable": self.source, "iterator": items}
        self._stateful = {name: part for name, part in parts.items() if has_state(part)}

    def take(self, size: int, through: Callable[[Iterator[Any]], Iterator[Any]] = iter) -> list[Any]:
        """Reads the next batch: `size` items, or fewer at the end. `through` may wrap the iterator to time it."""
        self.read += 1  # even if this raises, because the error then takes the place of the batch
        if self._items is None:
            self.open()
        assert self._items is not None
        try:
            taken = list(through(islice(self._items, size)))
        except BaseException:
            self.note_error()
            raise
        if len(taken) < size:
            self._items = iter(())  # some iterators start over if they are asked again after their end
            self.ended = True
            self._broken = self._broken or (self._raised and not taken)
        self._raised = False
        if taken:
            self._passed = None
        if self._renewed and not taken:
            name = type(self.source).__name__
            raise StateError(
                f"{name} yields no items, though iterated twice, after loading the state that it had at the end of "
                "the previous epoch. A state taken there must not make all later epochs empty. If "
                f"{name} has a method that starts an epoch (set_epoch), call it before the next epoch."
            )
        self._renewed, self.gave = False, self.gave or bool(taken)
        return taken

    def note_error(self) -> None:
        """Records that the iterator raised an exception. An exception ends a generator, but not every iterator."""
        self.gave = True
        self._broken = self.ended = isinstance(self._iterator, GeneratorType)
        self._raised, self._renewed = "iterator" not in self._stateful, False

    def note_batch(self) -> None:
        """Records that the iterator returned a batch, and so has recovered from any earlier error."""
        self._raised = False

    def is_broken(self) -> bool:
        return self._broken

    def pass_over(self, until: int, size: int, before: Callable[[int], object] = lambda number: None) -> None:
        """Reads and discards the batches before batch `until`.

        These batches belong to other ranks, or came before a resume. `before(index)` is called before each batch. A
        StateError is raised at once. Any other exception is kept for `raise_last_error`.
        """
        while self.read < until and not self.ended:
            before(self.read)
            try:
                self.take(size)
            except StateError:
                raise
            except Exception as error:
                self._passed = self.read - 1, error

    def raise_last_error(self, since: int) -> None:
        """Raises the exception that ended the iterable, if it came from a skipped batch with index `since` or later.

        Such a batch belongs to another rank. If only the other rank raised the exception, the epoch would end on this
        rank without an error.
        """
        passed, self._passed = self._passed if self.ended and self._broken else None, None
        if passed is not None and passed[0] >= since:
            raise passed[1]

    def mark(self) -> Mark | None:
        """Returns the current position, or None if the position is unknown.

        The position is unknown if neither the iterable nor its iterator has a state. After an exception, the position
        is known only if the iterator has a state. While the position is unknown, the previous mark stays valid.
        """
        if not self._stateful or self._broken or self._raised:
            return None
        if self.ended:
            return Mark(self.read, None, self._keep())
        return Mark(self.read, {name: part.state_dict() for name, part in self._stateful.items()})

    def end(self) -> Mark | None:
        """Ends the pass. Returns the mark at which the next epoch starts, or None if there is no such mark.

        There is no mark in any of these cases:

        - `end` was called before.
        - Neither the iterable nor its iterator has a state.
        - An exception ended the epoch.
        - The epoch had no items. A mark would require the next epoch to have items.
        """
        self._broken = self._broken or self._raised
        try:
            kept = self._keep() if self.gave or self._kept else None
        finally:
            self.close()
        return None if kept is None else Mark(0, {}, kept)

    def close(self) -> None:
        self._stateful, self._kept, self._items, self.ended = {}, None, iter(()), True

    def _keep(self) -> dict[str, Any] | None:
        if self._kept is not None or not self._stateful or self._broken:
            return self._kept
        parts = self._stateful.items()
        kept = {"iterable" if part is self.source else name: part.state_dict() for name, part in parts}
        # An iterable that is its own iterator, and has not reached its end, is not between two epochs. The next epoch
        # may have no items.
        return kept | {"fresh": True} if self.was_cut_off and self._iterator is self.source else kept


def initial(source: Any, *, is_fresh: bool) -> bytes | None:
    """Returns a pickled mark for the start of the next epoch, or None if the iterable's state cannot be used.

    `is_fresh` is True if no epoch has begun yet. Otherwise, the iterable's state may be a position inside an epoch
    that was left early. An iterable that is its own iterator continues from this position, so the state is used. Any
    other iterable starts over, so its state is not used.
    """
    if not has_state(source) or not (is_fresh or hasattr(type(source), "__next__")):
        return None
    with suppress(Exception):  # some iterables have a state only while they are iterated
        return dumps(Mark(0, {}, {"iterable": source.state_dict(), "fresh": True}))
    return None


def _renew(source: Any, kept: Mapping[str, Any], restore: Callable[[Any, Any], None]) -> None:
    """Restores an iterable to its state between two epochs, so that the next `iter()` starts the new epoch.

    Loading the state is not enough: after a load, many iterables continue from the loaded state at the first
    `iter()`, and start over only at the second `iter()`.
    """
    if "iterator" not in kept and _is_at(source, kept["iterable"]):
        return
    if "iterable" in kept:
        restore(source, kept["iterable"])
    items: Iterator[Any] = iter(source)
    if "iterator" in kept:
        restore(items, kept["iterator"])
        return  # that epoch is over, even if the iterator has more items because the dataset has grown since
    first: list[Any] | None = None
    with suppress(Exception):  # the epoch raises the exception of an item again
        first = list(islice(by_next(items), 1))
    if (first == [] and "fresh" not in kept) or _is_at(source, kept["iterable"]):
        return  # this was the end of the epoch, or the state is unchanged, so the next `iter()` starts an epoch
    del items
    restore(source, kept["iterable"])  # `iter()` has already started the next epoch, so go back to its beginning


def _is_at(part: Any, state: Any) -> bool:
    with suppress(Exception):  # the user's code, and states that cannot be compared
        return has_state(part) and bool(part.state_dict() == state)
    return False


def _check_stateful(part: object) -> None:
    if not has_state(part):
        raise StateError(
            f"The resume state has a state for {type(part).__name__}, which has no load_state_dict() here. Give the "
            "loader the object that it had when the state was taken, or start without the state."
        )


# ---- marks that are sent: pickled at once, because the user's objects change before a mark arrives ----
#
# If a mark cannot be taken, its step does not fail, because the caller may never ask for a state. A StateError that
# says why is sent instead, and is raised when the mark is needed.


def taken(owner: object, take: Callable[[], Mark | None]) -> bytes | None:
    """Returns the mark from `take()`, pickled unless it is None. If `take` raises, returns a pickled StateError."""
    try:
        mark = take()
        return None if mark is None else dumps(mark)
    except Exception as error:
        return dumps(_refusal(owner, error))


def asked(owner: object, take: Callable[[], T]) -> T:
    try:
        return take()
    except Exception as error:
        raise _refusal(owner, error) from error


def opened(mark: bytes | Mark | None) -> Mark | None:
    """Unpickles a mark. Raises StateError if the mark could not be taken or cannot be unpickled."""
    if not isinstance(mark, bytes):
        return mark
    try:
        found: Mark | StateError = loads(mark)
    except Exception as error:
        why = f"the state that a worker sent cannot be unpickled here ({described(error)})."
        raise StateError(f"The loader has no state now: {why}") from error
    if isinstance(found, StateError):
        try:
            raise found
        finally:
            del found  # breaks a cycle: its traceback refers to this frame
    return found


def known(mark: bytes | Mark | None) -> Mark | None:
    """Works like `opened`, but returns None instead of raising StateError."""
    with suppress(StateError):
        return opened(mark)
    return None


def refusal(mark: bytes | None) -> str:
    """Returns the message about a lost position: why the position could not be saved, or how to avoid the loss."""
    try:
        opened(mark)
    except StateError as error:
        return str(error)
    return (
        "A stream with state_dict() and load_state_dict() continues in another worker. A stream that hands out light "
        "items and defines load(item) is read in the calling process, and loses nothing if a worker crashes."
    )


def _refusal(owner: object, error: Exception) -> StateError:
    return StateError(
        f"The loader has no state now: {type(owner).__name__} has state_dict() and load_state_dict(), but its state "
        f"cannot be taken ({described(error)}). Fix its state_dict(); or remove both methods, then it is read from "
        "its beginning after a resume."
    )
