"""Guests: libraries other than numpy, such as torch, whose arrays a batch may contain.

The core does not import any guest, and mentions guests only in `GUESTS`. A class belongs to a guest if the class or
one of its base classes is defined in the guest's package. When such a class is first seen, the penstock module listed
in `GUESTS` is imported. That module's `GUEST` object decides how leaves of the class are stored in a slab, pickled,
converted, copied and pinned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock._memory.forms import MemoTable
from penstock._system.interrupts import import_whole

if TYPE_CHECKING:
    from penstock._memory.layout import Writer

GUESTS = {"torch": "penstock.torch._tensors"}
"""Maps a guest's top-level package to the penstock module whose `GUEST` object handles the guest's classes."""


def _ranks_in_ray(train: Any) -> tuple[int, int] | None:
    context = train.get_context()
    return context.get_world_rank(), context.get_world_size()


def _ranks_in_jax(distributed: Any) -> tuple[int, int] | None:
    state = distributed.global_state  # jax.process_index() would start the backend
    return None if state.client is None else (state.process_id, state.num_processes)


RANKS: dict[str, Callable[[Any], tuple[int, int] | None]] = {
    "ray.train": _ranks_in_ray,
    "jax._src.distributed": _ranks_in_jax,
}
"""Maps the name of a module to a function that takes the module and returns (rank, number of ranks).

The function returns None or raises an exception if the module has not assigned ranks.
"""


def ranks_of_libraries() -> tuple[int, int] | None:
    """Asks the imported libraries for (rank, number of ranks). Returns None if no library has assigned ranks."""
    for name, ranks in RANKS.items():
        module = sys.modules.get(name)
        with suppress(Exception):  # the library has not started this process, or its interface has changed
            found = None if module is None else ranks(module)
            if found is not None and 0 <= found[0] < found[1]:
                return int(found[0]), int(found[1])
    return None


MakeLeaf = Callable[[tuple[int, ...], Any, Any, int], Any]
"""A function that makes a leaf as a view of a byte array, for example `np.ndarray`.

The arguments are a shape, a dtype, the byte array, and an offset into the byte array. Layouts pickle the function by
name, so it must be defined at module level. The receiving process imports the function's module.
"""

Spot = tuple[MakeLeaf, tuple[int, ...], Any, int]
"""The location of a leaf in its slab: a MakeLeaf function and its arguments, except the byte array."""


class LateLeaves(NamedTuple):
    """A batch of numpy arrays. When the caller opens the batch, `make` replaces the arrays with a guest's leaves.

    So a worker creates no objects of the guest, unless the whole batch must be pickled.
    """

    batch: Any
    make: MakeLeaf


Reduce = Callable[[Any], Any]
"""A function like `__reduce_ex__(5)`. May use PickleBuffers. Returns NotImplemented to let pickle use its default."""


class Handler(NamedTuple):
    """The functions for leaves of one class."""

    copy: Callable[[Any], Any]
    pin: Callable[[Any], Any]
    """Copies a leaf to pinned memory, which an accelerator reads faster than other memory."""
    store: Callable[[Any, Writer], Spot | None] | None = None
    """Writes a leaf's bytes into the slab. Returns the leaf's Spot, or None if the leaf must be pickled instead."""
    cast: Callable[[Any, Any, Any], Any] | None = None
    """Converts a leaf to the dtype of a `_fill.cast.FieldCast`. A `_fill.cast.Empty` allocates the result."""


class Guest(Protocol):
    """The interface of a guest's `GUEST` object: what penstock must know about a library such as torch."""

    reducers: Mapping[type, Reduce]
    """Maps exact classes to functions that pickle instances found inside other objects of a batch."""

    def handler(self, kind: type) -> Handler | None:
        """Returns the handler for leaves of this class, or None if the leaves need no handler."""

    def shipping(self) -> Mapping[type, Reduce]:
        """Returns a mapping from exact classes to functions that pickle instances found in a dataset.

        The functions may remember what they have pickled, so `shipping` is called once for each pickled dataset.
        """

    def is_parameters(self, state_dict: Any) -> bool:
        """True if this `state_dict` method returns a model's parameters, rather than a position in a stream."""

    def can_pin(self) -> bool:
        """True if an accelerator is available."""

    def limit_threads(self, most: int) -> None: ...


_met: dict[str, Guest] = {}

REDUCERS: dict[type, Reduce] = {}
"""Maps the class of numpy arrays, and the classes of guests seen so far, to functions that pickle instances."""


def guest_in(module: object) -> Guest | None:
    """Returns the guest that a module name belongs to, or None. Imports penstock's own module for that guest."""
    name = module.partition(".")[0] if isinstance(module, str) else ""
    if name not in GUESTS:
        return None
    guest = _met.get(name)
    if guest is None:
        import_whole(GUESTS[name])
        guest = _met[name] = import_module(GUESTS[name]).GUEST
        REDUCERS.update(guest.reducers)
    return guest


def guest_of(kind: type) -> str | None:
    """Returns the name of the guest that a class belongs to, such as "torch". Returns None for any other class."""
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((name for name in packages if name in GUESTS), None)


def all_met() -> bool:
    """True if penstock's own module is loaded for every imported guest."""
    for name in GUESTS:  # noqa: SIM110 - any() takes 0.3 us more for each pickle
        if name not in _met and name in sys.modules:
            return False
    return True


def can_pin() -> bool:
    """True if an accelerator is available to any guest. Imports guests that are installed."""
    for name in GUESTS:
        with suppress(ImportError):
            guest = guest_in(name)
            if guest is not None and guest.can_pin():
                return True
    return False


def meet_imported() -> None:
    """Imports penstock's own module for each imported guest. Called before a fork."""
    for name in GUESTS:
        if name in sys.modules:
            guest_in(name)


def tensor_functions() -> Any:
    """Returns the module `penstock.torch._arrays`. Imports torch."""
    guest_in("torch")
    return import_module("penstock.torch._arrays")


def limit_threads(most: int) -> None:
    for name, guest in _met.items():
        if name in sys.modules:
            guest.limit_threads(most)


def _handler(kind: type) -> Handler | None:
    for base in kind.__mro__:
        guest = guest_in(base.__module__)
        if guest is not None:
            return guest.handler(kind)
    return None


HANDLERS: Mapping[type, Handler | None] = MemoTable(_handler)
"""Maps any class to its handler, or to None if the class has no handler."""


class Shipping(dict[type, "Reduce | None"]):
    """For one dataset: maps each class to a function that pickles its instances, or to None for pickle's default."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[Guest] = []

    def __missing__(self, kind: type) -> Reduce | None:
        guest = guest_in(kind.__module__)
        if guest is not None and guest not in self._asked:
            self._asked.append(guest)
            self.update(guest.shipping())
        return self.setdefault(kind, None)
