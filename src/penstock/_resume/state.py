"""The resume state: a small dict that says which batches were handed out.

The dict can be saved as JSON, unless the user's own objects add data that JSON cannot hold. Nothing in the dict is
evaluated or unpickled, and the whole dict is checked before any part of it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from penstock._resume.reading import Mark, has_state, opened
from penstock.errors import StateError
from penstock.plan import BlockOrder, ComputedPlan, OrderPlan, Plan, SamplerPlan, Selected, Sequential, Shuffled
from penstock.plan._order import ENDLESS

VERSION = 1

# The largest number of steps in `beyond`. No loader hands out more steps early.
MOST_BEYOND = 10**6

_LATER = ("epoch", "steps", "beyond", "consumed")  # the parts of a state that differ between epochs

# These settings may differ if the number of ranks is different when an order continues.
_SHAPE = ("world", "batch_size", "last_batch")

ANEW = "Take another checkpoint, or restart the epoch without a state."


class State(NamedTuple):
    """A resume state: which steps of an epoch were handed out, and where to continue.

    - `steps`: the number of steps handed out before the first gap. `beyond`: the steps handed out after the gap.
    - `consumed`: how far all ranks together came in the order before the gap (see `ComputedPlan.consumed`). None if
      the epoch can only continue with the same number of ranks.
    - `mark`: the position of a sampler or stream that has a state. The position may be earlier than the last step
      handed out. The mark stays pickled until it is needed.
    - `dataset`: the state of a dataset with keys.
    - `about`: a description of the loader. A loader whose steps would be different refuses the state.
    - `later`: the states of later epochs that began before all batches of this epoch were committed.
    - `dealt`: the values that `steps` and `consumed` had when the number of ranks changed in this epoch. None if the
      number has not changed.
    """

    epoch: int
    steps: int
    beyond: tuple[int, ...] = ()
    seed: int | None = None
    about: Mapping[str, Any] = {}  # never changed
    consumed: int | None = 0
    mark: bytes | Mark | None = None
    dataset: Any = None
    later: tuple[State, ...] = ()
    dealt: tuple[int, int] | None = None

    @property
    def begun(self) -> bool:
        """True if any step of the epoch, or of a later epoch, counts as handed out."""
        return bool(self.steps or self.beyond or (self.later and any(each.begun for each in self.later)))

    def as_dict(self) -> dict[str, Any]:
        mark = opened(self.mark)
        plain = {
            "beyond": _as_ranges(self.beyond),
            "about": dict(self.about),
            "mark": None if mark is None else mark._asdict(),
        }
        state = {"penstock": VERSION, **self._asdict(), **plain}
        del state["later"], state["dealt"]
        if self.dealt is not None:
            state["dealt"] = list(self.dealt)
        return with_later(state, [each.as_dict() for each in self.later])

    @classmethod
    def parse(cls, value: object) -> State:
        """Restores a State from the result of `as_dict`, even after JSON. Raises StateError for any other value."""
        if not isinstance(value, Mapping):
            raise StateError(
                f"A resume state is the dict that state_dict() returned, not a {type(value).__name__}. If it was "
                "saved as JSON, pass json.loads(text); to start without a state, load nothing."
            )
        if "penstock" not in value:
            if "_snapshot" in value or "_num_yielded" in value:
                raise StateError(
                    "This is a state of torchdata's StatefulDataLoader, whose order penstock cannot make. Finish "
                    "the epoch with torchdata, or restart it without the state."
                )
            names = ", ".join(sorted(map(repr, value))[:8]) or "no other"
            raise StateError(
                f"This is not a resume state of penstock's: it lacks the field 'penstock', and has {names}. From "
                "a checkpoint, pass the part that state_dict() returned; to start without a state, load nothing."
            )
        if _differ(value["penstock"], VERSION):
            raise StateError(
                f"The resume state has version {value['penstock']!r}, but this penstock knows version {VERSION}. "
                "Load it with the penstock that made it."
            )
        value = {"later": [], "dealt": None, **value}  # most states have neither
        missing = [name for name in cls._fields if name not in value]
        if missing:
            raise damaged(f"it lacks {', '.join(map(repr, missing))}")
        about, steps = value["about"], number(value, "steps", 1 << 62)
        if not isinstance(about, Mapping):
            raise damaged(f"'about' is {about!r}, not a dict")
        world = number({"world": 1, **about}, "world")  # torch's semantics have no ranks
        if not world:
            raise damaged("'world' is 0, but there is at least one rank")
        mark = _mark(value["mark"])
        if mark is not None and mark.read > steps * world:
            raise damaged(f"'mark' is after batch {mark.read}, but 'steps' is only {steps}")
        epoch, beyond = number(value, "epoch", 1 << 62), _from_ranges(value["beyond"], steps)
        seed = None if value["seed"] is None else number(value, "seed")
        # A position, or a `Place`.
        consumed = None if value["consumed"] is None else number(value, "consumed", 1 << 96)
        dealt = _dealt(value["dealt"], steps, consumed)
        found = cls(epoch, steps, beyond, seed, dict(about), consumed, mark, value["dataset"], (), dealt)
        return found._replace(later=found._later(value))

    def _later(self, value: Mapping[str, Any]) -> tuple[State, ...]:
        """Returns the states of later epochs. They share seed and `about`, and have their own `_LATER` fields."""
        given = value["later"]
        if not isinstance(given, (list, tuple)) or not all(_is_later(each) for each in given):
            raise damaged(f"'later' is {given!r}, not a list of epochs")
        size = len(self.beyond)
        found: list[State] = []
        for epoch, each in enumerate(given, self.epoch + 1):
            later = State.parse({**value, **each, "mark": None, "dataset": None, "later": [], "dealt": None})
            size += len(later.beyond)
            if later.epoch != epoch or size > MOST_BEYOND:
                raise damaged(f"'later' is {given!r}, not the epochs from {self.epoch + 1} on")
            found.append(later)
        return tuple(found)

    def check(self, about: Mapping[str, Any]) -> None:
        """Raises StateError if the state does not fit a loader with this description.

        With penstock's own orders, the number of ranks may differ. In this case, `batch_size` and `last_batch` may
        differ, too.
        """
        world = self.about.get("world")
        elsewhere = world != about.get("world")
        for name in {**about, **self.about}:
            then, now = self.about.get(name), about.get(name)
            if name == "files" and (then is None or now is None):
                continue  # a state of an older version, or samples that are in memory now
            if _differ(then, now) and not (elsewhere and name in _SHAPE):
                if name == "files":
                    raise StateError(_OTHER_FILES.format(then=then, now=now))
                if name == "kind":
                    then, now = (_KINDS.get(str(value), value) for value in (then, now))
                raise StateError(
                    f"The resume state belongs to another loader: {_NAMES.get(name, name)} was {then!r} when it was "
                    f"taken, and is {now!r} here. Make the loader as it was, or start without the state."
                )
        if not elsewhere:
            return
        otherwise = ", or take the state at the end of an epoch"
        if "rollover" in (self.about.get("last_batch"), about.get("last_batch")):
            why = (
                'With last_batch="rollover" an epoch starts with the samples that earlier epochs left over, which '
                "depend on the number of ranks."
            )
            otherwise = ""
        elif self.beyond or self.later:
            why = "Its steps were not handed out in order, so the number of samples does not say which are left."
        elif self.consumed is None:
            why = (
                f"Only {about.get('order')} knows the next samples, which were dealt to {world} ranks. Only "
                "penstock's orders (in sequence, shuffled, its samplers without a generator) can continue with "
                "another number."
            )
        else:
            return
        raise StateError(
            f"The resume state was taken with world={world}, and here it is {about.get('world')}. {why} "
            f"Continue with world={world}{otherwise}."
        )

    def dealt_anew(self, plan: Plan | None, world: int) -> State:
        """Returns this state with `steps` as the plan counts them. Raises StateError if state and plan disagree."""
        consumed, steps, expected = self.consumed, self.steps, range(self.steps, self.steps + 1)
        elsewhere = self.about.get("world") != world
        if isinstance(plan, ComputedPlan):
            fault = plan.fault(self.epoch, consumed, self.steps if consumed is not None else int(self.begun))
            if fault is not None:
                raise damaged(fault)
            if consumed is not None:
                plan = plan.rest(consumed, steps)
                expected = plan.expected(self.epoch)
                if elsewhere:
                    plan.check_regrouped(steps, self._stride(), consumed)
                if elsewhere or steps not in expected or not _of_first_rank(plan).has(self.epoch, steps - 1):
                    steps = plan.first_step
            last, first_rank = self.beyond[-1] + 1 if self.beyond else steps, _of_first_rank(plan)
            if last and not first_rank.has(self.epoch, last - 1):
                raise damaged(f"it has {last} steps, but epoch {self.epoch} has {first_rank.steps(self.epoch)}")
        elif consumed is not None:
            expected = range(1)  # without an order, `consumed` is only known before the first step
        if self.steps not in expected and (not consumed or not elsewhere):
            counted = f"by 'consumed', which is {consumed}, it would be {expected[0]}"
            raise damaged(f"'steps' is {self.steps}, but {counted}")
        return self._replace(steps=steps)

    def _stride(self) -> int:
        """Returns how many samples all ranks together take per step. Without a batch size, each rank takes one."""
        size = self.about.get("batch_size")
        each = size if isinstance(size, int) and size > 0 else 1
        return each * number({"world": 1, **self.about}, "world")


def _of_first_rank(plan: ComputedPlan) -> ComputedPlan:
    """Returns the plan of rank 0. No rank has more steps than rank 0."""
    return replace(plan, rank=0)  # type: ignore[type-var]  # every computed plan is a dataclass


class Progress:
    """The steps of one epoch that have been handed out, and the latest known position of the sampler or stream."""

    def __init__(self, begin: State, plan: Plan | None) -> None:
        self.epoch = begin.epoch
        self.is_over = False
        self.plan = plan
        self.begin = begin
        self._about = begin.about
        # The number of steps without a gap, and the last mark. The tuple is replaced as a whole, so that another
        # thread may take a state at any moment (see `_now`).
        self._at: tuple[int, bytes | None] = begin.steps, None
        self._beyond: dict[int, bytes | None] = dict.fromkeys(begin.beyond)  # their marks; older steps are ignored
        self._end: bytes | None = None

    def passed(self, step: int, mark: bytes | None, worker: int = -1) -> None:
        (first, last), beyond = self._at, self._beyond
        if step != first:
            beyond[step] = mark
            return
        steps, last = first + 1, mark or last
        if not beyond:
            self._at = steps, last
            return
        while steps in beyond:
            steps, last = steps + 1, beyond[steps] or last
        self._at = steps, last
        for passed in range(first + 1, steps):  # only after `_at` is set: see `_now`
            beyond.pop(passed, None)

    def _now(self) -> tuple[int, list[int], bytes | None]:
        """Returns the number of steps before the first gap, the steps handed out after the gap, and the last mark.

        Another thread may hand out steps at the same time.
        """
        at, beyond = None, self._beyond
        while at is not self._at:
            at = self._at
            beyond = self._beyond.copy()  # atomic (decision 0057)
        steps, last = at
        return steps, sorted(step for step in beyond if step > steps), last

    def finish(self, end: bytes | None, ends: Mapping[int, bytes] = {}) -> None:  # never changed
        """Records that the epoch is over. The next epoch starts at the mark `end` (see `Run.end`)."""
        # An epoch without batches keeps no mark, because a mark would require the next epoch to have batches.
        self._end = end if self.reached else None
        self.is_over = True

    def __copy__(self) -> Progress:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _beyond=self._beyond.copy())
        return made

    @property
    def steps(self) -> int:
        return self._at[0]

    @property
    def reached(self) -> int:
        """The first step that has not been handed out."""
        return self.steps

    @property
    def mark(self) -> bytes | Mark | None:
        """The latest known position of the sampler or stream. After the epoch, the start of the next epoch."""
        return self._end if self.is_over else self._at[1] or self.begin.mark

    @property
    def beyond(self) -> list[int]:
        """The steps that have been handed out although an earlier step has not."""
        return self._now()[1]

    def handed_out(self) -> tuple[int, list[int]]:
        steps, beyond, _ = self._now()
        return steps, beyond

    def as_dict(self) -> dict[str, Any]:
        """Returns the state as a dict, without the seed and the dataset's state."""
        (steps, beyond, mark), plan, consumed = self._now(), self.plan, None
        if not steps and not beyond:
            consumed = 0
        elif "sampler" not in self._about:  # only once in an epoch, because hashing many keys takes time
            self._about = {**self._about, "sampler": content(plan, self._about.get("length"))}
        if isinstance(plan, ComputedPlan) and consumed is None:
            consumed = plan.consumed(self.epoch, steps)
        state = State(self.epoch, steps, tuple(beyond), None, self._about, consumed, mark or self.begin.mark)
        return state._replace(dealt=self.begin.dealt).as_dict()


class Epochs:
    """The epochs of a loader. A loader that replaces this loader takes over this object."""

    progress_type: type[Progress] = Progress

    def __init__(self) -> None:
        self.next = 0
        self.are_fresh = True  # no epoch was begun, and no state was loaded
        self.begun: int | None = None
        self.progress: Progress | None = None  # of the epoch that was begun last
        self.loaded: State | None = None
        self.resumed: State | None = None  # the state that was loaded last, also after its epoch has begun

    @property
    def current(self) -> int:
        """The epoch that began last. Before the first `iter()`, and after `set`, the epoch that will begin next."""
        return self.next if self.begun is None else self.begun

    def set(self, epoch: int) -> None:
        self.next, self.begun = epoch, None
        self.progress = self.loaded = self.resumed = None

    def load(self, state: State) -> None:
        self.set(state.epoch)
        self.loaded = self.resumed = state
        self.are_fresh = False

    def start(self) -> State:
        if self.loaded is not None:
            return self.loaded
        before = self.progress
        return State(self.next, 0, mark=before.mark if before is not None and before.is_over else None)

    @property
    def later(self) -> tuple[State, ...]:
        """The states of the epochs after the next epoch, if the loaded state has any."""
        return () if self.loaded is None else self.loaded.later

    def check_read(self) -> None:
        """Raises RuntimeError if the next epoch cannot begin yet."""

    def as_dict(self, about: Callable[[], dict[str, Any]], beginning: Callable[..., bytes | None]) -> dict[str, Any]:
        """Returns the state as `Progress.as_dict` does. `beginning()` gives the mark of an epoch that begins now."""
        progress = self.progress if self.loaded is None else None
        if progress is not None and not progress.is_over:
            return progress.as_dict()
        start = self.start()
        if not start.begun:
            mark = start.mark if self.loaded is not None else start.mark or beginning(is_fresh=self.are_fresh)
            start = start._replace(about=about(), mark=mark)
        return start.as_dict()

    def restores(self) -> bool:
        """True if the sampler or stream must load its saved state, because no live object has that state."""
        begun = None if self.progress is None else self.progress.begin.mark
        return self.loaded is not None or (isinstance(begun, Mark) and begun.at_end)

    def begin(self, progress: Progress) -> None:
        # The order of the assignments matters: another thread may take a state between them.
        self.progress, self.loaded, self.are_fresh = progress, None, False
        self.begun, self.next = self.next, self.next + 1

    def copy(self) -> Epochs:
        """Returns a copy that does not change when the loader hands out more batches."""
        made = copy.copy(self)
        made.progress = copy.copy(self.progress)
        return made


def content(plan: Plan | None, length: int | None) -> str | None:
    """Returns a short description of the sampler's keys, to detect a state that belongs to another sampler.

    Returns None if the keys follow from the dataset's length, if the sampler has its own state, or if nothing is
    known about the sampler's keys.
    """
    if type(plan) is OrderPlan:
        plain = Sequential(length or 0), Shuffled(length or 0, getattr(plan.order, "seed", 0))
        return None if plan.order in plain else _content(plan.order, plan.order)
    if isinstance(plan, ComputedPlan):
        return _content(plan.order, *plan.content())
    if not isinstance(plan, SamplerPlan) or has_state(plan.sampler):
        return None
    number = None
    with suppress(Exception):  # the user's code; a state can do without this
        number = len(plan.sampler)  # type: ignore[arg-type]
    size = getattr(plan.sampler, "batch_size", None) if plan.batched else None
    known = [f"{number} {'batches' if plan.batched else 'keys'}"] if number is not None else []
    return " ".join(known + ([f"of {size}"] if isinstance(size, int) else [])) or None


def _content(order: Any, *parts: Any) -> str:
    """Returns an order as text, with a digest of `parts`."""
    digest = blake2b(digest_size=8)
    for part in parts:
        _digest(digest, part)
    base: Any = order.order if isinstance(order, Selected) else order
    of_blocks = isinstance(base, BlockOrder)
    blocks = f" in {len(base.edges) - 1} blocks, window {base.window}" if of_blocks else ""
    # The size of a mixture changes with its weights.
    size = ENDLESS if hasattr(order, "identity") else order.size(0)
    return f"{'endless' if size >= ENDLESS else size} keys{blocks}, {digest.hexdigest()}"


def _digest(digest: blake2b, value: Any) -> None:
    """Hashes all fields of an order except the seed, which a state stores separately.

    If an object has an attribute `identity`, only this attribute is hashed, so that a mixture whose weights change
    keeps its digest.
    """
    identity = getattr(value, "identity", None)
    if identity is not None:
        digest.update(type(value).__name__.encode())
        _digest(digest, identity)
    elif is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for part in fields(value):
            if part.name != "seed" and part.compare:
                _digest(digest, getattr(value, part.name))
    elif getattr(type(value), "__repr__", None) == object.__repr__:  # its text would be its address
        digest.update(type(value).__name__.encode())
    elif isinstance(value, np.ndarray):
        digest.update(np.ascontiguousarray(value).data)
    else:
        digest.update(f" {value} ".encode())


def damaged(why: str) -> StateError:
    return StateError(f"The resume state is damaged: {why}. {ANEW}")


def number(value: Mapping[str, Any], name: str, end: int = 1 << 64) -> int:
    found = value[name]
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < end:
        raise damaged(f"{name!r} is {found!r}, not an int from 0 to 2**{end.bit_length() - 1} - 1")
    return found


def with_later(state: dict[str, Any], later: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns `state` with the `_LATER` fields of each state in `later`, if there are any, under the key "later"."""
    parts = [{name: each[name] for name in _LATER} for each in later]
    return {**state, "later": parts} if parts else state


def _is_later(value: object) -> bool:
    return isinstance(value, Mapping) and set(value) == set(_LATER)


def _as_ranges(steps: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and ranges[-1][1] == step - 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return ranges


def _from_ranges(value: object, steps: int) -> tuple[int, ...]:
    try:
        if sum(max(0, last - first + 1) for first, last in value) > MOST_BEYOND:  # type: ignore[attr-defined]
            raise ValueError
        found = [step for first, last in value for step in range(first, last + 1)]  # type: ignore[attr-defined]
        if found != sorted(set(found)) or (found and found[0] <= steps):
            raise ValueError
    except (TypeError, ValueError):
        most = f"at most {MOST_BEYOND} steps after {steps}"
        raise damaged(f"'beyond' is {value!r}, not increasing pairs of {most}") from None
    return tuple(found)


def _dealt(value: object, steps: int, consumed: int | None) -> tuple[int, int] | None:
    if value is None:
        return None
    with suppress(TypeError, ValueError, StateError):
        pair: list[Any] = list(value)  # type: ignore[call-overload]
        before, used = (number({"dealt": each}, "dealt", 1 << 96) for each in pair)
        if before <= steps and consumed is not None and used <= consumed:
            return before, used
    raise damaged(f"'dealt' is {value!r}, not the steps and samples before the others")


def _mark(value: object) -> Mark | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and set(value) == set(Mark._fields):
        read = number(value, "read")
        with suppress(ValueError):
            return Mark.parse(read, value["states"], value["kept"])
    raise damaged(f"'mark' is {value!r}, not a number of batches with the states after them")


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # arrays, which a damaged state may hold
        return True


_OTHER_FILES = (
    "The resume state was taken with other files. Then: {then}. Here: {now}. The same position would be other "
    "samples. Use the files as they were, or start without the state. If you know that the samples are the same, in "
    'the same order, remove state["about"]["files"] before you load the state.'
)

# The names and values in `about` that a user does not know.
_NAMES = {"kind": "the way samples are read", "generators": "the number of generators given to it"}
_KINDS = {
    "keys": "by key, in batches",
    "key": "by key, one by one",
    "pull": "a stream, in batches",
    "pull_one": "a stream, one by one",
    "items": "a stream with load(), in batches",
    "item": "a stream with load(), one by one",
}
