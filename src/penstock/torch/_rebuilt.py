"""Keeps penstock's arguments when another library rebuilds one of our loaders from the loader's attributes.

accelerate, Ray Train and Opacus create a loader of torch's class from the attributes that torch's constructor has
set, and would drop every argument that only penstock has. Lightning creates a loader of the same class from
`vars(loader)`. All of these libraries pass on `timeout`. So `timeout` is a number that also carries penstock's own
arguments, as a `Given`. A loader created with such a `timeout` uses penstock's iterators with these arguments, or
raises an error.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from penstock._fill.cast import Cast
from penstock._options import OPTIONS, Face, shard_of
from penstock.backends._base import arguments

DEFAULTS: dict[str, Any] = {
    **{name: option.default for name, option in OPTIONS.items() if option.face is Face.OURS},
    **{name: None for name in arguments() if name not in inspect.signature(DataLoader.__init__).parameters},
}
"""The default values of penstock's own arguments, which torch's constructor does not have."""


def is_default(name: str, value: object) -> bool:
    default = DEFAULTS.get(name)
    # None is compared with `is`, because a numpy dtype may be equal to None.
    return value is default if default is None else value == default


@dataclass(frozen=True)
class Given:
    """A loader's arguments that torch's constructor does not have. Default values are left out.

    `auto` holds the names of the settings that penstock tunes. `by_blocks` is True for `shuffle="blocks"`.
    `own_order` is True if no sampler was given.
    """

    arguments: Mapping[str, Any]
    cast: Cast | None
    auto: tuple[str, ...]
    by_blocks: bool
    own_order: bool

    def split(self) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
        """Returns three dicts: penstock's arguments (with defaults), "auto" settings, and block-shuffling settings.

        `dtype` and `casting` are left out, because `cast` holds both settings.
        """
        ours = {name: self.arguments.get(name, default) for name, default in DEFAULTS.items()}
        window = ours.pop("window")
        for name in ("dtype", "casting"):
            del ours[name]
        if ours["seed"] is not None:
            ours["seed"] = operator.index(ours["seed"])
        by_blocks = {"window": window} | ({"shuffle": "blocks"} if self.by_blocks else {})
        return ours, dict.fromkeys(self.auto, "auto"), by_blocks

    @property
    def named(self) -> dict[str, Any]:
        blocks = {"shuffle": "blocks"} if self.by_blocks else {}
        return {**self.arguments, **dict.fromkeys(self.auto, "auto"), **blocks}

    @property
    def shown(self) -> dict[str, Any]:
        """The arguments to show in messages: all but `lengths`, which may be long."""
        return {name: value for name, value in self.named.items() if name != "lengths"}

    def __bool__(self) -> bool:
        return bool(self.named)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.shown.items())


class _Number:
    given: Given


class _Whole(_Number, int):
    pass


class _Seconds(_Number, float):
    pass


def with_given(timeout: Any, given: Given) -> Any:
    """Returns `timeout` as a number that carries `given`, or as a plain number if `given` is empty."""
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        return timeout
    whole = isinstance(timeout, int)
    if not given:
        return (int(timeout) if whole else float(timeout)) if isinstance(timeout, _Number) else timeout
    number: _Number = _Whole(timeout) if whole else _Seconds(timeout)
    number.given = given
    return number


def given_in(timeout: object) -> Given | None:
    return timeout.given if isinstance(timeout, _Number) else None


def adopt(loader: Any) -> bool:
    """Gives penstock's arguments to a loader that another library created from one of ours.

    Returns False for other loaders. Raises ValueError if the loader cannot keep an argument.
    """
    given = given_in(getattr(loader, "timeout", None))
    if given is None:
        return False
    shard = shard_of(given.arguments.get("shard"))
    if shard.world > 1:
        raise ValueError(
            f"This {type(loader).__name__} was made from a loader with shard={given.arguments['shard']!r}. The "
            "library that made it gives each rank its own batches, and so would shard=: each rank would get only a "
            "part of its part. Leave shard= out, or do not give the loader to that library."
        )
    if given.arguments.get("last_batch") in ("drop", "rollover"):
        raise ValueError(
            f"This {type(loader).__name__} was made from a loader with last_batch="
            f"{given.arguments['last_batch']!r}, and its length would be wrong. Use drop_last=True, or leave "
            "last_batch= out."
        )
    balance = given.arguments.get("balance")
    if balance is not None and type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(
            f"This {type(loader).__name__} was made from a loader with balance={balance!r}, which decides which "
            "samples each rank gets. But the library that made it divides or skips batches by itself. Leave balance= "
            'out; or use shard="auto", and do not give the loader to that library.'
        )
    ours, auto, by_blocks = given.split()
    # The library decides what each rank reads, so there is nothing to warn about.
    ours["shard"] = (0, 1) if ours["seed"] is not None else None
    auto = auto if loader.num_workers else {}
    vars(loader).update(_ours=ours, _cast=given.cast, _auto=auto, _by_blocks=by_blocks)
    if given.own_order and ours["seed"] is not None:
        for sampler in _samplers(loader):
            if type(sampler) is RandomSampler:
                # accelerate gives it a generator. Without one it draws from torch's global generator, which the
                # seed sets while samplers are read.
                sampler.generator = None
    return True


def refusal(loader: Any, reason: str) -> str:
    return (
        f"This {type(loader).__name__} was made from a penstock.torch.DataLoader with "
        f"{given_in(loader.timeout)}, and cannot keep these arguments: {reason}. Leave the arguments out, or iterate "
        "over the penstock.torch.DataLoader itself."
    )


def _samplers(loader: Any) -> Iterator[Any]:
    """Yields each sampler of a loader once, including samplers nested inside other samplers."""
    left = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    seen: set[int] = set()
    while left:
        sampler = left.pop()
        if sampler is not None and id(sampler) not in seen:
            seen.add(id(sampler))
            yield sampler
            left += [vars(sampler).get(name) for name in ("batch_sampler", "sampler") if hasattr(sampler, "__dict__")]
