"""The resume state: which batches were handed out, as one small plain value.

It is data for JSON, but for what the user's own objects put into it: nothing in it is evaluated or unpickled. All
of it is checked before any of it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._resume.marks import opened
from penstock._resume.reading import Mark
from penstock.errors import StateError
from penstock.plan import OrderPlan, Plan

VERSION = 1

# More steps than can come early: no loader is so far ahead.
_MOST_BEYOND = 10**6

# What may be another where another number of ranks goes on with an order.
_SHAPE = ("world", "batch_size", "last_batch")


@dataclass(frozen=True, slots=True)
class State:
    """`steps` steps of the epoch were handed out from its beginning on, and those in `beyond` besides.

    `consumed` is how far all ranks have used up the order with these steps; None if it is not a function. `mark` is
    where a sampler or stream with a state was then, or earlier (in bytes while nobody has asked for it); `dataset` is
    the state of one that has keys.
    `about` is what must be the same where the state is loaded: else the steps would be others.
    """

    epoch: int
    steps: int
    beyond: tuple[int, ...] = ()
    seed: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    consumed: int | None = 0
    mark: bytes | Mark | None = None
    dataset: Any = None

    @property
    def begun(self) -> bool:
        """Whether any step of the epoch was handed out."""
        return bool(self.steps or self.beyond)

    def as_dict(self) -> dict[str, Any]:
        as_plain = plain(self.epoch, self.steps, self.beyond, self.about, self.consumed, self.mark)
        return {**as_plain, "seed": self.seed, "dataset": self.dataset}

    @classmethod
    def parse(cls, value: object) -> State:
        """The state in what `as_dict` gave, perhaps by way of a JSON file; else a StateError."""
        if not isinstance(value, Mapping):
            raise StateError(
                f"A resume state is the dict that state_dict() gave, not a {type(value).__name__}. If it was saved "
                "as JSON, pass json.loads(text); to begin anew, load nothing."
            )
        if "penstock" not in value:
            raise StateError(_foreign(value))
        if _differ(value["penstock"], VERSION):
            raise StateError(
                f"The resume state has version {value['penstock']!r}, and this penstock knows version {VERSION}. "
                "Load it with the penstock that made it."
            )
        missing = [name for name in cls.__slots__ if name not in value]
        if missing:
            raise StateError(f"The resume state is damaged: it lacks {', '.join(map(repr, missing))}. {ANEW}")
        about, mark = value["about"], _mark(value["mark"])
        if not isinstance(about, Mapping):
            raise StateError(f"The resume state is damaged: 'about' is {about!r}, not a dict. {ANEW}")
        world = _number({"world": 1, **about}, "world")  # the states of torch's loaders have none
        if not world:
            raise StateError(
                f"The resume state is damaged: 'world' is 0, and there is at least one rank. {ANEW}"
            )
        if mark is not None and mark.read > _number(value, "steps") * world:
            raise StateError(
                f"The resume state is damaged: 'mark' is of batch {mark.read}, and 'steps' is only {value['steps']}. "
                f"{ANEW}"
            )
        return cls(
            _number(value, "epoch", 1 << 62),
            _number(value, "steps", 1 << 62),
            _from_ranges(value["beyond"], value["steps"]),
            _number_or_none(value, "seed"),
            dict(about),
            _number_or_none(value, "consumed"),
            mark,
            value["dataset"],
        )

    def check(self, about: Mapping[str, Any]) -> None:
        """Raises a StateError that names the field, unless the loader is about the same.

        An order goes on with any number of ranks, and then also in other batches.
        """
        world = self.about.get("world")
        elsewhere = world != about.get("world")
        for name in {**about, **self.about}:
            then, now = self.about.get(name), about.get(name)
            if _differ(then, now) and not (elsewhere and name in _SHAPE):
                raise StateError(
                    f"The resume state is of another loader: {_changed(name, then, now)} here. Make the loader as it "
                    "was, or begin anew without the state."
                )
        if elsewhere and "rollover" in (self.about.get("last_batch"), about.get("last_batch")):
            raise StateError(
                f"The resume state was taken with world={world}, and here it is {about.get('world')}. With "
                'last_batch="rollover" an epoch begins with what those before it left over, and that is another for '
                f"another number of ranks. Go on with world={world}."
            )
        if elsewhere and (self.consumed is None or self.beyond):
            why = (
                "Its steps came out of order, so that no number of samples from the beginning on says which are left."
                if self.beyond
                else f"What comes next is known only to what is read ({about.get('order')}), and is dealt in turn "
                "to as many ranks as there were. Only orders of penstock's (in sequence, shuffle=True, its samplers "
                "without a generator) go on with another number."
            )
            raise StateError(
                f"The resume state was taken with world={world}, and here it is {about.get('world')}. {why} "
                f"Go on with world={world}, or take the state at the end of an epoch."
            )

    def dealt_anew(self, plan: Plan | None, world: int) -> State:
        """The state, with its steps numbered as if all had been dealt to as many ranks as there are now.

        `plan` is that of the whole epoch. Steps that it does not have are a StateError.
        """
        consumed, steps, sound = self.consumed, self.steps, [self.steps]
        if isinstance(plan, OrderPlan):
            size = plan.order.size(self.epoch)
            if consumed is None and self.begun and not plan.rollover:
                raise StateError(
                    "The resume state is damaged: 'consumed' is None, of an order whose samples can be counted. "
                    f"{ANEW}"
                )
            if consumed is not None:
                if consumed > (0 if plan.rollover else size):
                    raise StateError(
                        f"The resume state is damaged: 'consumed' is {consumed}, of an order of {size} samples"
                        f"{', which is dealt from its beginning' if plan.rollover else ''}. {ANEW}"
                    )
                plan = replace(plan, start=consumed)
                steps = plan.first_step
                # The last step may be short: where those before were of another shape, it is then one more.
                sound = [steps, steps + 1] if consumed == size else [steps]
            most = replace(plan, rank=0).steps(self.epoch)
            last = self.beyond[-1] + 1 if self.beyond else steps
            if last > most:
                raise StateError(
                    f"The resume state is damaged: it is of {last} steps, and epoch {self.epoch} has {most}. {ANEW}"
                )
        elif consumed is not None:
            sound = [0]  # nothing else is written where there is no order
        if self.steps not in sound and (not consumed or self.about.get("world") == world):
            raise StateError(
                f"The resume state is damaged: 'steps' is {self.steps}, and by 'consumed', which is {consumed}, it "
                f"would be {sound[0]}. {ANEW}"
            )
        return replace(self, steps=steps)


def plain(
    epoch: int,
    steps: int,
    beyond: Iterable[int],
    about: Mapping[str, Any],
    consumed: int | None,
    mark: bytes | Mark | None,
) -> dict[str, Any]:
    place = opened(mark)
    return {
        "penstock": VERSION,
        "epoch": epoch,
        "steps": steps,
        "beyond": _as_ranges(beyond) if beyond else [],
        "seed": None,
        "about": dict(about),
        "consumed": consumed,
        "mark": None if place is None else place._asdict(),
        "dataset": None,
    }


def _as_ranges(steps: Iterable[int]) -> list[list[int]]:
    """Sorted steps as [first, last] pairs."""
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and ranges[-1][1] == step - 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return ranges


def _from_ranges(value: object, steps: int) -> tuple[int, ...]:
    try:
        if sum(max(0, last - first + 1) for first, last in value) > _MOST_BEYOND:  # type: ignore[attr-defined]
            raise ValueError
        found = [step for first, last in value for step in range(first, last + 1)]  # type: ignore[attr-defined]
        if found != sorted(set(found)) or (found and found[0] <= steps):
            raise ValueError
    except (TypeError, ValueError):
        raise StateError(
            f"The resume state is damaged: 'beyond' is {value!r}, not growing pairs of at most {_MOST_BEYOND} steps "
            f"after {steps}. {ANEW}"
        ) from None
    return tuple(found)


def _number(value: Mapping[str, Any], name: str, end: int = 1 << 64) -> int:
    number = value[name]
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < end:
        raise StateError(
            f"The resume state is damaged: {name!r} is {number!r}, not a whole number from 0 to 2**"
            f"{end.bit_length() - 1} - 1. {ANEW}"
        )
    return number


def _number_or_none(value: Mapping[str, Any], name: str) -> int | None:
    return None if value[name] is None else _number(value, name)


def _mark(value: object) -> Mark | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and set(value) == set(Mark._fields):
        states, kept = value["states"], value["kept"]
        sound = all(part is None or isinstance(part, Mapping) for part in (states, kept))
        read = _number(value, "read")
        sound = sound and (states != {} or not read)  # else what was read would be read again
        if sound and {*(states or ()), *(kept or ())} <= {"iterable", "iterator"}:
            return Mark(read, _copied(states), _copied(kept))
    raise StateError(
        f"The resume state is damaged: 'mark' is {value!r}, not what was read and the states then. {ANEW}"
    )


def _copied(states: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if states is None else dict(states)


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # arrays, which nobody has put there
        return True


ANEW = "Take another checkpoint, or begin the epoch anew without a state."

# What is in `about`, where its names and values are not the user's.
_SAID = {"kind": "the way samples are read", "generators": "the number of generators given to it"}
_KINDS = {
    "keys": "by key, in batches",
    "key": "by key, one by one",
    "pull": "a stream, in batches",
    "pull_one": "a stream, one by one",
    "items": "a stream with load(), in batches",
    "item": "a stream with load(), one by one",
}


def _changed(name: str, then: object, now: object) -> str:
    if name == "kind":
        then, now = (_KINDS.get(str(value), value) for value in (then, now))
    return f"{_SAID.get(name, name)} was {then!r} when it was taken, and is {now!r}"


def _foreign(value: Mapping[Any, Any]) -> str:
    """Why this is no state of ours."""
    if "_snapshot" in value or "_num_yielded" in value:
        return (
            "This is a state of torchdata's StatefulDataLoader, and penstock's order is another. Finish the epoch "
            "with torchdata, or begin it anew without the state."
        )
    return (
        f"This is no resume state of penstock's: it lacks the field 'penstock', and has {_names(value)}. Of a "
        "training checkpoint, pass the part that state_dict() gave; to begin anew, load nothing."
    )


def _names(value: Mapping[Any, Any]) -> str:
    return ", ".join(sorted(map(repr, value))[:8]) or "no other"
