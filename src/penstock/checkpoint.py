"""The resume state: which batches were handed out, as one small plain value.

It is data for JSON and nothing else: nothing in it is evaluated or unpickled. All of it is checked before
any of it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import StateError

VERSION = 1


@dataclass(frozen=True, slots=True)
class State:
    """`steps` steps of the epoch were handed out from its beginning on, and those in `beyond` besides.

    `about` is what must be the same where the state is loaded: else the steps would be others.
    """

    epoch: int
    steps: int
    beyond: tuple[int, ...] = ()
    seed: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "penstock": VERSION,
            "epoch": self.epoch,
            "steps": self.steps,
            "beyond": _as_ranges(self.beyond),
            "seed": self.seed,
            "about": dict(self.about),
        }

    @classmethod
    def parse(cls, value: object) -> State:
        """The state in what `as_dict` gave, perhaps by way of a JSON file; else a StateError."""
        if not isinstance(value, Mapping):
            raise StateError(
                f"A resume state is a dict as state_dict() gives it, not {type(value).__name__}."
            )
        if "penstock" not in value:
            raise StateError(
                f"This is no resume state of penstock's: it has no field 'penstock', but {_names(value)}."
            )
        if value["penstock"] != VERSION:
            raise StateError(
                f"The resume state has version {value['penstock']!r}, and this penstock knows version {VERSION}. "
                "Load it with the penstock that made it."
            )
        missing = [name for name in ("epoch", "steps", "beyond", "seed", "about") if name not in value]
        if missing:
            raise StateError(
                f"The resume state is damaged: it has no {', '.join(map(repr, missing))}, only {_names(value)}."
            )
        seed, about = value["seed"], value["about"]
        if not isinstance(about, Mapping):
            raise StateError(f"The resume state is damaged: 'about' is {about!r}, not a dict.")
        return cls(
            _number(value, "epoch"),
            _number(value, "steps"),
            _from_ranges(value["beyond"], value["steps"]),
            None if seed is None else _number(value, "seed"),
            dict(about),
        )

    def check(self, about: Mapping[str, Any]) -> None:
        """Raises a StateError that names the field, unless the loader is about the same."""
        for name in {**about, **self.about}:
            then, now = self.about.get(name), about.get(name)
            if then != now:
                raise StateError(
                    f"The resume state is of another loader: {name} was {then!r} when it was taken, and is {now!r} "
                    "here. Make the loader as it was, or begin anew without the state."
                )


class Progress:
    """What was handed out of one epoch so far."""

    def __init__(self, epoch: int, steps: int = 0, beyond: Iterable[int] = ()) -> None:
        self.epoch = epoch
        self.steps = steps
        self.beyond = set(beyond)
        self.is_over = False

    def passed(self, step: int) -> None:
        """This step was handed out, as a batch or as an error."""
        if step != self.steps:
            self.beyond.add(step)
            return
        self.steps += 1
        while self.steps in self.beyond:
            self.beyond.remove(self.steps)
            self.steps += 1


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
        found = [step for first, last in value for step in range(first, last + 1)]  # type: ignore[attr-defined]
        if found != sorted(set(found)) or (found and found[0] <= steps):
            raise ValueError
    except (TypeError, ValueError):
        raise StateError(
            f"The resume state is damaged: 'beyond' is {value!r}, not growing pairs of steps after {steps}."
        ) from None
    return tuple(found)


def _number(value: Mapping[str, Any], name: str) -> int:
    number = value[name]
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 64:
        raise StateError(
            f"The resume state is damaged: {name!r} is {number!r}, not a whole number from 0 on."
        )
    return number


def _names(value: Mapping[Any, Any]) -> str:
    return ", ".join(sorted(map(repr, value))[:8]) or "nothing"
