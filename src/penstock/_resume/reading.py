"""An iterable of the user's that is read batch by batch, and that can say where it is if it has a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, repeat
from typing import Any, NamedTuple, NoReturn

from penstock._memory.guests import guest_in
from penstock.errors import StateError


class Mark(NamedTuple):
    """Where a reading is: after `read` batches, with these states of the iterable and of its iterator.

    None in their place: at its end, where nothing is left. `kept` is their states there: with them the next epoch
    begins, and so they are in a mark before that epoch's first batch too.
    """

    read: int
    states: dict[str, Any] | None
    kept: dict[str, Any] | None = None


def has_state(thing: object) -> bool:
    """True if `state_dict` and `load_state_dict` save and restore a position in the data.

    Those that a model class brings along are about its parameters.
    """
    take = getattr(thing, "state_dict", None)
    if not callable(take) or not callable(getattr(thing, "load_state_dict", None)):
        return False
    guest = guest_in(getattr(take, "__module__", None))
    return guest is None or not guest.is_parameters(take)


def by_next(items: Iterator[Any]) -> Iterator[Any]:
    """The same items, by `next` alone: what is its own iterator may begin again whenever `iter()` is called."""
    return map(next, repeat(items))


class Reading:
    """An iterable that is being read. `read` counts the batches, `ended` says that there are no more.

    `gave` says that the epoch has items, also such as were read before. `renewed` says that the iterable was made
    what it was at an end: see `renew`.
    """

    def __init__(self, source: Iterable[Any], *, renewed: bool = False) -> None:
        self.read = 0
        self.ended = self.gave = False
        self.source: Any = source
        self._items: Iterator[Any] | None = iter(())  # None: it is iterated when it is first asked
        self._stateful: dict[str, Any] = {}
        self._kept: dict[str, Any] | None = None
        self._renewed = renewed

    def open(self, mark: Mark | None = None) -> bool:
        """Begins, or goes on where the mark was made.

        True: nothing that was drawn from random generators meanwhile is part of what is read from here on.
        """
        if mark is None:
            self.begin(iter(self.source))
            return False
        self.read, self.ended = mark.read, mark.states is None
        if mark.states is None:
            self._kept = mark.kept
        elif mark.kept:
            renew(self.source, mark.kept)
            self._items, self._renewed = None, True
        else:
            self.begin(_restored(self.source, mark.states))
            self.gave = True
        return True

    def begin(self, items: Iterator[Any]) -> None:
        """Begins with an iterator that there is already."""
        self._items = by_next(items)
        # An iterable that is its own iterator may begin again in `iter()`, so it is restored after that.
        parts = {"iterator": items} if items is self.source else {"iterable": self.source, "iterator": items}
        self._stateful = {name: part for name, part in parts.items() if has_state(part)}

    def take(self, size: int) -> list[Any]:
        """The next batch of so many items, or what is left."""
        self.read += 1  # also where it raises: what comes after that is the next batch
        if self._items is None:
            self.open()
        assert self._items is not None
        taken = list(islice(self._items, size))
        if len(taken) < size:
            self._items = iter(())  # some iterators begin again when asked after their end
            self.ended = True
        if self._renewed and not taken:
            self._raise_nothing()
        self._renewed, self.gave = False, self.gave or bool(taken)
        return taken

    def _raise_nothing(self) -> NoReturn:
        name = type(self.source).__name__
        raise StateError(
            f"{name} gives nothing, though iterated twice, after its state from the end of the epoch before was "
            "loaded. A state that was taken there must not say that nothing is left in any epoch to come. Where "
            f"{name} has a method for it (set_epoch), tell it that another epoch begins."
        )

    def end(self) -> Mark | None:
        """The mark that the next epoch begins with. None: there is no state, or the epoch had no items."""
        kept = self._keep() if self.gave or self._kept else None
        return None if kept is None else Mark(0, {}, kept)

    def mark(self) -> Mark | None:
        """Where it is; None if neither the iterable nor its iterator has a state."""
        if not self._stateful:
            return None
        if self.ended:
            return Mark(self.read, None, self._keep())
        return Mark(self.read, {name: part.state_dict() for name, part in self._stateful.items()})

    def _keep(self) -> dict[str, Any] | None:
        """The states at the end, if there are any. What is its own iterator does not end with its epoch."""
        if self._kept is not None or not self._stateful:
            return self._kept
        parts = self._stateful.items()
        return {"iterable" if part is self.source else name: part.state_dict() for name, part in parts}


def renew(source: Any, kept: Mapping[str, Any]) -> None:
    """Makes an iterable what it was when an epoch had ended, so that the next `iter()` begins the one after it."""
    items = _restored(source, kept)
    if "iterator" in kept:
        return  # which has ended, whatever it would give: some are of a dataset that has grown since
    with suppress(Exception):  # what an item raises it raises again
        if not list(islice(by_next(items), 1)):
            return  # it was at its end, and no longer is when it is iterated again
    del items
    _restore(source, kept["iterable"])  # it was before the next epoch


def _restored(source: Any, states: Mapping[str, Any]) -> Iterator[Any]:
    if "iterable" in states:
        _restore(source, states["iterable"])
    items: Iterator[Any] = iter(source)
    if "iterator" in states:
        _restore(items, states["iterator"])
    return items


def _restore(part: Any, state: Any) -> None:
    if not has_state(part):
        raise StateError(
            f"The resume state has a state for {type(part).__name__}, which has no load_state_dict() here. Give the "
            "loader what it had when the state was taken, or begin anew without the state."
        )
    part.load_state_dict(state)
