"""Guests: libraries whose arrays may be in a batch beside numpy's.

The core imports no guest, and names none outside `GUESTS`. A class belongs to a guest if its module, or the module
of one of its base classes, is inside the guest's package. The first time such a class is seen, the module that
`GUESTS` names for it is imported; its `GUEST` then says how leaves of the class are stored in a slab, pickled,
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
"""Top-level package of a guest -> the module of penstock that knows its classes, as `GUEST`."""


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
"""Modules of libraries that give processes ranks -> the rank and the number of ranks, or None or an exception."""


def ranks_of_libraries() -> tuple[int, int] | None:
    """The rank of this process and the number of ranks, from a library that was imported and has started them."""
    for name, ranks in RANKS.items():
        module = sys.modules.get(name)
        with suppress(Exception):  # not in a run of the library, or it has changed
            found = None if module is None else ranks(module)
            if found is not None and 0 <= found[0] < found[1]:
                return int(found[0]), int(found[1])
    return None


MakeLeaf = Callable[[tuple[int, ...], Any, Any, int], Any]
"""Makes a leaf that is a view: arguments are shape, dtype, an array of bytes, and the first byte in it.

`np.ndarray` is one. The others are module-level functions, so that a layout pickles them by name and the receiving
process imports what they need.
"""

Spot = tuple[MakeLeaf, tuple[int, ...], Any, int]
"""Where a leaf is in its slab: its MakeLeaf, followed by the MakeLeaf's arguments without the array of bytes."""

Reduce = Callable[[Any], Any]
"""Like `__reduce_ex__(5)` of its argument; may return PickleBuffers, or NotImplemented for pickle's own way."""


class Handler(NamedTuple):
    """How the leaves of one class are copied, pinned, stored and converted."""

    copy: Callable[[Any], Any]
    pin: Callable[[Any], Any]
    """Copies to pinned memory, from which an accelerator reads faster."""
    store: Callable[[Any, Writer], Spot | None] | None = None
    """Puts the bytes into the slab; returns None for a leaf that must be pickled."""
    cast: Callable[[Any, Any, Any], Any] | None = None
    """Converts to the dtype of a `_fill.cast.FieldCast`, in memory from a `_fill.cast.Empty`."""


class Guest(Protocol):
    """What the core needs to know about a library."""

    reducers: Mapping[type, Reduce]
    """By exact class: how an object inside other objects of a batch is pickled."""

    def handler(self, kind: type) -> Handler | None:
        """How leaves of this class are handled; None if they have no special treatment."""

    def shipping(self) -> Mapping[type, Reduce]:
        """Reducers by exact class, for one pickle of a dataset. They may remember what that pickle already holds."""

    def is_parameters(self, state_dict: Any) -> bool:
        """True if this `state_dict` method returns a model's parameters and not a position in a stream."""

    def can_pin(self) -> bool:
        """True if an accelerator is available."""

    def limit_threads(self, most: int) -> None:
        """Limits the library to this number of threads in this process."""


_met: dict[str, Guest] = {}

REDUCERS: dict[type, Reduce] = {}
"""The reducers of all guests seen so far, and of numpy's arrays."""


def guest_in(module: object) -> Guest | None:
    """The guest whose package contains the module of this name."""
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
    """The top-level package of the guest that a class belongs to; None if it belongs to none."""
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((name for name in packages if name in GUESTS), None)


def all_met() -> bool:
    """False if the package of a guest is imported in this process, but none of its classes was seen yet."""
    for name in GUESTS:  # noqa: SIM110 - any() takes 0.3 us more for each pickle
        if name not in _met and name in sys.modules:
            return False
    return True


def can_pin() -> bool:
    """True if an installed guest has an accelerator. Imports the guests."""
    for name in GUESTS:
        with suppress(ImportError):
            guest = guest_in(name)
            if guest is not None and guest.can_pin():
                return True
    return False


def meet_imported() -> None:
    """Imports the modules for the guests whose packages are imported in this process, before it is forked."""
    for name in GUESTS:
        if name in sys.modules:
            guest_in(name)


def limit_threads(most: int) -> None:
    """Limits the guests that are imported to this number of threads in this process."""
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
"""The handler of any class: None for a class that belongs to no guest."""


class Shipping(dict[type, "Reduce | None"]):
    """For one pickle of a dataset: `shipping[type(part)]` is the reducer of a class, or None for pickle's own way."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[Guest] = []

    def __missing__(self, kind: type) -> Reduce | None:
        guest = guest_in(kind.__module__)
        if guest is not None and guest not in self._asked:
            self._asked.append(guest)
            self.update(guest.shipping())
        return self.setdefault(kind, None)
