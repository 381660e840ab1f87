"""The settings of a loader, each declared once, in `Options`. Backends declare their own arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock._fill.cast import Cast
from penstock._fill.pad import Pad, check_called, checked_buckets, padding_of
from penstock._memory.guests import ranks_of_libraries
from penstock._system.limits import usable_cpus
from penstock._system.platform import SYSTEM
from penstock._system.threads import has_gil
from penstock._system.warnings import warn_caller
from penstock.backends import _base as backends
from penstock.plan._blocks import WINDOW
from penstock.plan._samplers import order_of
from penstock.plan._seeds import check_generator

Balance = Literal["tokens", "quadratic"]
OnError = Literal["raise", "skip", "replace"]
LastBatch = Literal["keep", "drop", "pad", "rollover"]
Casting = Literal["checked", "unsafe"]

# The number of steps that each worker may be ahead of the caller.
DEFAULT_PREFETCH_FACTOR = 2


class RankShard(NamedTuple):
    rank: int
    world: int


ONE = RankShard(0, 1)


# The declaration of a setting.


class Face(Enum):
    """How the torch-compatible loader treats a setting."""

    ABSENT = "does not take it"
    OURS = "takes it although torch's class does not, and passes it on to the loader behind it"
    PASSED = "takes it as torch's class does, and passes it on to the loader behind it"
    ORDER = "takes it as torch's class does, which makes samplers of it"
    ACTED = "takes it as torch's class does, and acts on it by itself"

    @property
    def is_theirs(self) -> bool:
        return self not in (Face.ABSENT, Face.OURS)


class Show(IntEnum):
    """Where the value of a setting is shown. Each level includes the levels before it."""

    NOWHERE = 0
    FIGURES = 1  # with the figures of the loader, if it is not the default
    LINE = 2  # in the one line of `penstock top`
    ALWAYS = 3  # with the figures, even if it is the default


Check = Callable[[str, Any], None]
"""A function that takes the name and the value of a setting, and raises if the value is not allowed."""


def _anything(name: str, value: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    default: Any
    check: Check = _anything
    unset: tuple[Any, ...] | None = None  # what a loader without workers accepts as "not given"; None: any value
    face: Face
    needs_seed: str = ""  # why the loader with torch's semantics takes the setting only with `seed=`
    show: Show = Show.NOWHERE
    tuned: int = 0  # the number that "auto" starts with; 0 if the setting cannot be "auto"
    live: bool = False  # it may be changed while the loader runs


def _option(default: Any, check: Check = _anything, *, face: Face = Face.OURS, **more: Any) -> Any:
    return field(metadata={Option: Option(default=default, check=check, face=face, **more)})


# The checks of single values.


def is_int(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def _integer(least: int, meaning: str = "", *, or_none: bool = False) -> Check:
    def check(name: str, value: object) -> None:
        if not is_int(value, least) and not (or_none and value is None):
            raise ValueError(f"{name} must be an integer of at least {least}{meaning}, got {value!r}.")

    return check


def _one_of(*allowed: object) -> Check:
    def check(name: str, value: object) -> None:
        if value not in allowed:
            *words, last = (f'"{one}"' if isinstance(one, str) else str(one) for one in allowed)
            raise ValueError(f"{name} must be {', '.join(words)} or {last}, got {value!r}.")

    return check


def _a_backend(name: str, value: object) -> None:
    _one_of(None, *backends.known())(name, value)


def _true_or_false(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def _callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}.")


def _collate_fn(name: str, value: object) -> None:
    _callable(name, value)
    check_called(value)


def _timeout(name: str, value: Any) -> None:
    number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not number or not value >= 0:
        raise ValueError(f"{name} must be a non-negative number of seconds (0: no limit), got {value!r}.")


def _hang(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, (int, float, np.floating)) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a positive number of seconds, or None (never), got {value!r}.")


def _seed(name: str, value: Any) -> None:
    if value is not None and not (is_int(value, 0) and value < 1 << 64):
        raise ValueError(f"{name} must be an integer from 0 to 2**64 - 1, or None, got {value!r}.")


def _generator(name: str, value: Any) -> None:
    check_generator(value)


def _lengths(name: str, value: Any) -> None:
    if value is None or callable(value):
        return
    found = np.asarray(value)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(
            f"{name} must be one integer for each sample, a function that returns the length of a sample, or None, "
            f"got an array of {found.dtype} with the shape {found.shape}."
        )


def _buckets(name: str, value: Any) -> None:
    checked_buckets(name, value)


BY_LENGTH = ("batch_tokens", "lengths", "max_length", "batch_multiple", "buckets", "balance", "accumulate")
"""The names of the settings that need the lengths of samples."""


# Why the loader with torch's semantics needs a seed for some settings.

_BY_NUMBER = "the batches depend on the number of workers, as in torch. Give seed=, or a number."
_RAISES = "a sample that fails is an error, as in torch."
_NO_LENGTHS = "the order is torch's, which knows no lengths."
_NO_BLOCKS = "the order is torch's, which knows no blocks."


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a loader, with all defaults filled in. A test compares them with the public signatures."""

    batch_size: int | None = _option(
        1,
        _integer(1, ", or None for samples that are not batched", or_none=True),
        face=Face.ORDER,
        show=Show.ALWAYS,
    )
    shuffle: bool | str = _option(  # or "blocks"
        False,
        _one_of(True, False, None, "blocks"),
        face=Face.ORDER,
        needs_seed=f"{_NO_BLOCKS} Give seed=, or sampler=penstock.BlockSampler(blocks).",
        show=Show.LINE,
    )
    window: int | None = _option(
        None,
        _integer(1, f" (how many blocks may be needed at a time), or None for {WINDOW}", or_none=True),
        needs_seed=_NO_BLOCKS,
    )
    batch_tokens: int | None = _option(
        None,
        _integer(1, " (tokens in a batch, padding included), or None", or_none=True),
        needs_seed=_NO_LENGTHS,
        show=Show.LINE,
    )
    lengths: Any = _option(None, _lengths, needs_seed=_NO_LENGTHS)
    max_length: int | None = _option(
        None,
        _integer(1, ", or None for no limit", or_none=True),
        needs_seed=_NO_LENGTHS,
        show=Show.FIGURES,
    )
    batch_multiple: int = _option(1, _integer(1), needs_seed=_NO_LENGTHS, show=Show.FIGURES)
    buckets: tuple[int, ...] | None = _option(None, _buckets, needs_seed=_NO_LENGTHS, show=Show.FIGURES)
    balance: str | None = _option(None, _one_of(None, "tokens", "quadratic"), needs_seed=_NO_LENGTHS, show=Show.LINE)
    accumulate: int = _option(1, _integer(1), needs_seed=_NO_LENGTHS, show=Show.FIGURES)
    sampler: Any = _option(None, face=Face.ORDER)
    batch_sampler: Any = _option(None, face=Face.ORDER)
    num_workers: int = _option(
        0,
        _integer(0, ' (num_workers=0 to load in the calling process), or "auto"'),
        face=Face.PASSED,
        needs_seed=_BY_NUMBER,
        show=Show.ALWAYS,
        tuned=1,
        live=True,
    )
    backend: str = _option(
        None,
        _a_backend,
        needs_seed="workers are processes of this machine, as in torch: a worker that is lost with its node cannot "
        "be replaced.",
        show=Show.ALWAYS,
    )
    prefetch_factor: int | None = _option(
        None,
        _integer(1, ', or None, or "auto" (how many steps each worker may be ahead)', or_none=True),
        unset=(None,),
        face=Face.PASSED,
        needs_seed="nothing is tuned, as in torch. Give seed=, or a number.",
        show=Show.ALWAYS,
        tuned=DEFAULT_PREFETCH_FACTOR,
    )
    persistent_workers: bool = _option(
        None, _one_of(True, False, None), unset=(None, False), face=Face.PASSED, show=Show.FIGURES
    )
    in_order: bool = _option(True, _true_or_false, face=Face.PASSED, show=Show.LINE)
    seed: int | None = _option(None, _seed, show=Show.LINE)
    generator: np.random.Generator | None = _option(None, _generator, face=Face.ACTED)
    timeout: float = _option(0, _timeout, unset=(0, 0.0), face=Face.PASSED, show=Show.FIGURES)
    retries: int = _option(2, _integer(0), face=Face.ABSENT, show=Show.FIGURES)
    hang: float | None = _option(
        None,
        _hang,
        unset=(None,),
        needs_seed="a worker that is killed cannot be replaced, as in torch.",
        show=Show.FIGURES,
    )
    on_error: str = _option("raise", _one_of("raise", "skip", "replace"), needs_seed=_RAISES, show=Show.FIGURES)
    max_errors: int | None = _option(
        None,
        _integer(0, " (how many samples of an epoch may fail), or None for no limit", or_none=True),
        needs_seed=_RAISES,
    )
    max_workers: int | None = _option(
        None,
        _integer(1, ", or None for the default limit", or_none=True),
        needs_seed=_BY_NUMBER,
        show=Show.FIGURES,
    )
    shard: RankShard = _option(
        None, needs_seed="the order is torch's: give each rank its DistributedSampler(dataset) as sampler=."
    )
    last_batch: str = _option(
        None,
        _one_of(None, "keep", "drop", "pad", "rollover"),
        needs_seed="an incomplete last batch is handled as in torch, by drop_last=True or False.",
    )
    drop_last: bool = _option(False, _true_or_false, face=Face.ORDER)
    collate_fn: Any = _option(None, _collate_fn, face=Face.PASSED)
    worker_init_fn: Any = _option(None, _callable, face=Face.PASSED)
    commit: bool = _option(
        False,
        _true_or_false,
        needs_seed="a batch is not a function of its position, so it cannot come again.",
        show=Show.FIGURES,
    )
    dtype: Any = _option(None)
    casting: str = _option("checked")
    pin_memory: bool = _option(False, _true_or_false, face=Face.ACTED, show=Show.FIGURES)
    pin_memory_device: str = _option("", face=Face.ACTED)

    # Derived from the arguments.
    auto: tuple[str, ...]
    """The names of the automatically tuned settings. Their fields hold the current values."""
    is_unsplit: bool
    """True if ranks would read the same samples: with a seed, but without `shard=` or a sampler that splits them."""
    for_backends: Mapping[str, Any]
    """Maps the names of arguments that only backends understand to the values that the caller gave."""

    @classmethod
    def resolve(cls, *, is_stream: bool, **given: Any) -> Options:
        """Checks the caller's arguments. Arguments that are not declared here are kept for the backends."""
        given = {name: int(v) if isinstance(v, np.integer) else v for name, v in given.items()}
        given["for_backends"] = {name: given.pop(name) for name in [*given] if name not in OPTIONS}
        given["auto"] = _automatic(is_stream, given)
        for name, option in OPTIONS.items():
            option.check(name, given[name])
        _check_seed(given)
        _check_workers(given)
        sampler = given["sampler"] if given["batch_sampler"] is None else given["batch_sampler"]
        given["is_unsplit"] = given["seed"] is not None and given["shard"] is None and not splits(sampler)
        given["shard"] = shard_of(given["shard"])
        _check_order(is_stream, given)
        _check_split(given["shard"], sampler)
        given["last_batch"] = _last_batch(is_stream, given)
        given["drop_last"] = given["last_batch"] == "drop"
        _check_errors(is_stream, given)
        _check_lengths(is_stream, given)
        if isinstance(given["dtype"], Mapping):
            given["dtype"] = dict(given["dtype"])
        Cast.of(given["dtype"], given["casting"])
        if given["batch_sampler"] is not None or given["batch_tokens"] is not None:
            given["batch_size"] = None
        workers = given["num_workers"]
        if given["prefetch_factor"] is None and workers > 0:
            given["prefetch_factor"] = DEFAULT_PREFETCH_FACTOR
        if given["shuffle"] == "blocks":
            given["window"] = given["window"] or WINDOW
        else:
            given["shuffle"] = bool(given["shuffle"])
        given["persistent_workers"] = workers > 0 and given["persistent_workers"] is not False
        if workers and given["backend"] is None and _backend(given) != backends.PROCESS:
            _warn_of_threads()
        given["backend"] = _backend(given) if workers else backends.INLINE
        options = cls(**given)
        backends.registered(options.backend).check(options.context, workers)
        if given["pin_memory"]:
            warn_caller(
                "pin_memory=True has no effect on numpy batches: pinning is for tensors that go to an accelerator.",
                UserWarning,
            )
        if given["pin_memory_device"]:
            warn_caller("pin_memory_device is deprecated and ignored, as in torch.", UserWarning)
        return options

    def by_length(self) -> dict[str, Any]:
        """Returns the `BY_LENGTH` settings (except `lengths`) that differ from their defaults, for resume states."""
        found = {name: getattr(self, name) for name in BY_LENGTH if name != "lengths"}
        found = {name: value for name, value in found.items() if value != OPTIONS[name].default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @property
    def power(self) -> int:
        """The exponent in the cost of a batch: rows * padded length ** power."""
        return 2 if self.balance == "quadratic" else 1

    @property
    def padding(self) -> Pad | None:
        return padding_of(self.collate_fn)

    @property
    def context(self) -> Any:
        """The value of the argument that the backend declares, such as `multiprocessing_context`, or None."""
        return backends.registered(self.backend).given_in(self.for_backends)

    @property
    def cast(self) -> Cast | None:
        return Cast.of(self.dtype, self.casting)

    def shown(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in shown_names() if OPTIONS[name].face is not Face.ACTED}
        if self.collate_fn is not None and not hasattr(self.collate_fn, "into"):  # a default one has `into`
            found["collate_fn"] = getattr(self.collate_fn, "__qualname__", type(self.collate_fn).__qualname__)
        threads = backends.registered(self.backend).threads
        free = {} if has_gil() else {"gil": False}
        return {**found, **free, "threads": threads, "auto": self.auto, "shard": list(self.shard)}

    def value(self, name: str) -> Any:
        """Returns the final value of a setting. Arguments for backends are returned as they were given."""
        return self.for_backends[name] if name in self.for_backends else getattr(self, name)


OPTIONS: dict[str, Option] = {each.name: each.metadata[Option] for each in fields(Options) if Option in each.metadata}


def shown_names(least: Show = Show.FIGURES) -> list[str]:
    return [name for name, option in OPTIONS.items() if option.show >= least]


def _automatic(is_stream: bool, given: dict[str, Any]) -> tuple[str, ...]:
    """Replaces each "auto" in `given` with a starting value. Returns the names of the settings that were "auto"."""
    auto = tuple(name for name, option in OPTIONS.items() if option.tuned and isinstance(given[name], str))
    for name in auto:
        if given[name] != "auto":
            raise ValueError(f'{name} must be an integer or "auto", got {given[name]!r}.')
    most = given["max_workers"]
    if "num_workers" in auto:
        # With two workers, the first batch comes as soon as with twenty. A stream may have only one reader.
        given["num_workers"] = 1 if is_stream else min(2, usable_cpus(), most if is_int(most, 1) else 2)
    elif most is not None:
        raise ValueError(f'max_workers={most!r} limits num_workers="auto", but num_workers={given["num_workers"]!r}.')
    if "prefetch_factor" in auto:
        if given["num_workers"] == 0:
            raise ValueError('prefetch_factor="auto" needs workers: give num_workers="auto", or 1 or more.')
        given["prefetch_factor"] = DEFAULT_PREFETCH_FACTOR
    return auto


def _check_seed(given: dict[str, Any]) -> None:
    seed = given["seed"]
    if seed is not None and given["generator"] is not None:
        raise ValueError(
            f"seed={seed} and generator= were both given, but the generator is only for drawing a seed. Leave one of "
            "them out."
        )


def _backend(given: dict[str, Any]) -> str:
    """Returns the name of the backend. If none is given: `PROCESS` if a start method is given, else `DEFAULT`."""
    method = given["for_backends"].get(backends.registered(backends.PROCESS).argument)
    return given["backend"] or (backends.DEFAULT if method is None else backends.PROCESS)


@cache
def _warn_of_threads() -> None:
    warn_caller(
        f"Workers are threads here, because worker processes need Linux, and this is {SYSTEM}. Threads help if "
        "samples wait for I/O or release the GIL, as numpy and image decoders do, but not if they are pure Python "
        "code. They share the generators of random and numpy.random: draw from penstock.rng() instead. Pass "
        'backend="thread" to confirm this, or num_workers=0.'
    )


def _check_workers(given: dict[str, Any]) -> None:
    """Raises ValueError if a setting needs workers and there are none, or if a setting needs another backend."""
    name, of_backends = _backend(given), given["for_backends"]
    backend = backends.registered(name)
    if given["num_workers"] == 0:
        if backend.needs_workers:
            raise ValueError(f'backend="{name}" needs workers: give num_workers=1 or more, or leave backend= out.')
        unset = {name: one.unset for name, one in OPTIONS.items() if one.unset is not None}
        for setting, value in {**{one: given[one] for one in unset}, **of_backends}.items():
            if value not in unset.get(setting, (None,)):
                raise ValueError(
                    f"{setting}={value!r} needs workers: give num_workers=1 or more, or leave this argument out."
                )
    if given["hang"] is not None and not backend.kills:
        raise ValueError(f'hang={given["hang"]!r} needs processes: with backend="{name}" no worker can be killed.')
    for argument, value in of_backends.items():
        if value is not None and argument != backend.argument:
            raise ValueError(f'{argument} has no meaning with backend="{name}": leave one out.')


def _check_order(is_stream: bool, given: dict[str, Any]) -> None:
    names = {"shuffle": bool(given["shuffle"])}
    for name, of in (("sampler", "keys"), ("batch_sampler", "lists of keys")):
        value = given[name]
        names[name] = value is not None
        if names[name] and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
            raise TypeError(f"{name} must be an iterable of {of}, got {type(value).__name__}.")
    chosen = [name for name, is_given in names.items() if is_given]
    if is_stream and chosen:
        raise ValueError(
            f"A stream (IterableDataset) decides its own order, so {chosen[0]} cannot be given with it. Shuffle "
            "inside its __iter__."
        )
    if given["window"] is not None and given["shuffle"] != "blocks":
        raise ValueError(
            f'window={given["window"]} needs shuffle="blocks", whose blocks it counts, but shuffle is '
            f"{given['shuffle']!r}."
        )
    if names["sampler"] and names["shuffle"]:
        raise ValueError("sampler and shuffle are mutually exclusive: the sampler determines the order.")
    if names["batch_sampler"]:
        clashes = {"batch_size": given["batch_size"] != 1, **names, "drop_last": bool(given["drop_last"])}
        wrong = [name for name, clash in clashes.items() if clash and name != "batch_sampler"]
        if wrong:
            raise ValueError(f"batch_sampler is mutually exclusive with {', '.join(wrong)}: it yields whole batches.")
    elif given["batch_size"] is None and given["drop_last"]:
        raise ValueError("batch_size=None disables batching and is mutually exclusive with drop_last.")


# The attributes of a sampler for its rank and the number of ranks: in torch and penstock, and in accelerate.
_SPLITS = (("rank", "num_replicas"), ("process_index", "num_processes"))


def splits(sampler: object) -> bool:
    """True if a sampler, or a sampler that it wraps, gives each rank its own part of the keys."""
    with suppress(Exception):  # attributes of the user's objects may raise
        for _ in range(8):  # a limit, because a mock has every attribute, and so the loop would never end
            for names in _SPLITS:
                rank, world = (getattr(sampler, name, None) for name in names)
                if is_int(rank, 0) and is_int(world, 2):
                    return True
            inner = getattr(sampler, "batch_sampler", None)
            sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return False


def _check_split(shard: RankShard, sampler: object) -> None:
    if shard.world > 1 and splits(sampler):
        raise ValueError(
            f"shard={tuple(shard)} and {type(sampler).__name__} both split the data: each rank would get only a part "
            "of its part. Leave out one of them. (A library that adds the sampler has a setting for it; in "
            "Lightning: use_distributed_sampler=False.)"
        )


def shard_of(given: Any) -> RankShard:
    if given is None:
        return ONE
    if isinstance(given, str) and given == "auto":
        return this_rank(os.environ)
    try:
        rank, world = given
    except (TypeError, ValueError):
        rank = world = None
    if not is_int(rank) or not is_int(world, 1):
        raise ValueError(
            'shard must be None, "auto" or (rank, world): the rank, counted from 0, and the number of ranks, '
            f"got {given!r}."
        )
    if not 0 <= rank < world:
        raise ValueError(
            f"shard=({rank}, {world}) is rank {rank} of {world} ranks, but ranks are counted from 0 to {world - 1}. "
            'Pass shard=(rank, world), or "auto" to use the rank from the launcher.'
        )
    return RankShard(int(rank), int(world))


# In this order, because under torchrun or mpirun in a SLURM job, SLURM's variables count the launchers it started.
_TORCHRUN = ("torchrun", "RANK", "WORLD_SIZE")
_SCHEDULERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
)


def this_rank(environment: Mapping[str, str]) -> RankShard:
    """Returns (rank, number of ranks), or (0, 1) if nothing shows that this process is one of several ranks.

    Looks, in this order, at torchrun's environment variables, imported libraries, and the environment variables of
    Open MPI and SLURM.
    """
    found = _of_variables(environment, _TORCHRUN) or ranks_of_libraries()
    return RankShard(*(found or _of_variables(environment, *_SCHEDULERS) or ONE))


_has_warned = False


def warn_of_ranks(dataset: object) -> None:
    """Warns, at most once, if this process is one of several ranks but the data is not split among the ranks."""
    global _has_warned
    if _has_warned:
        return
    with suppress(ValueError):
        rank, world = this_rank(os.environ)
        if world > 1 and not splits(dataset):
            _has_warned = True
            warn_caller(
                f"This is rank {rank} of {world}, and the loader has seed= without shard=, so every rank gets the "
                'same batches. Use shard="auto": each rank gets its part of each step. If each rank has its own '
                "dataset, or only one rank reads, say so with shard=(0, 1).",
                UserWarning,
            )


def _of_variables(environment: Mapping[str, str], *launchers: tuple[str, str, str]) -> RankShard | None:
    for launcher, *names in launchers:
        values = [environment.get(name) for name in names]
        if values == [None, None]:
            continue
        settings = " and ".join(
            f"{name} is not set" if value is None else f"{name}={value!r}"
            for name, value in zip(names, values, strict=True)
        )
        with suppress(ValueError):  # one of them is missing, or is not a number
            rank, world = (int(value) for value in values if value is not None)
            if 0 <= rank < world:
                return RankShard(rank, world)
        raise ValueError(
            f'shard="auto" cannot tell which rank this process is: {settings}. {launcher} sets both: the '
            "rank, counted from 0, and the number of ranks. Start the program with it, unset both, or pass "
            "shard=(rank, world)."
        )
    return None


def _last_batch(is_stream: bool, given: dict[str, Any]) -> str:
    """Returns how to treat an incomplete last batch. Raises ValueError if settings contradict each other."""
    choice, shard, drop_last = given["last_batch"], given["shard"], given["drop_last"]
    if drop_last and choice not in (None, "drop"):
        raise ValueError(f'drop_last=True means last_batch="drop", but last_batch={choice!r} was given too.')
    if shard.world > 1 and given["seed"] is None:
        raise ValueError(
            f"shard={tuple(shard)} needs seed=, the same number on every rank: without it each rank would draw "
            "a seed of its own, and their orders would differ."
        )
    unbatched = given["batch_sampler"] is not None or given["batch_size"] is None
    if choice in ("drop", "rollover") and shard.world == 1 and unbatched:
        raise ValueError(
            f'last_batch="{choice}" works only if the loader makes the batches. Do not give it with batch_sampler '
            "or batch_size=None."
        )
    by_tokens = given["batch_tokens"] is not None
    if by_tokens and choice in ("pad", "rollover"):
        raise ValueError(
            f'last_batch="{choice}" is not possible with batch_tokens={given["batch_tokens"]}, because batches have '
            "no fixed number of samples. Leave it out: every rank has a batch in each step anyway."
        )
    if choice is None:
        choice = "drop" if drop_last else "pad" if shard.world > 1 and not by_tokens else "keep"
    foreign = is_stream or given["batch_sampler"] is not None or not is_order(given["sampler"])
    if choice in ("pad", "rollover") and foreign:
        what = "a stream" if is_stream else "a sampler of your own"
        default = " (the default with shard=)" if given["last_batch"] is None else ""
        raise ValueError(
            f'last_batch="{choice}"{default} is not possible with {what}: the number of batches is known only at '
            'its end. Choose last_batch="drop" (all ranks have the same number of batches; up to one per rank '
            'is dropped) or "keep" (nothing is dropped; some ranks have one batch fewer).'
        )
    return str(choice)


def is_order(sampler: Any) -> bool:
    return sampler is None or order_of(sampler, 0) is not None


def _check_lengths(is_stream: bool, given: dict[str, Any]) -> None:
    """Checks the settings that concern lengths. Makes `pad` and the loader agree on `buckets` and `max_length`."""
    tokens, balance, pad = given["batch_tokens"], given["balance"], padding_of(given["collate_fn"])
    for name in ("max_length", "batch_multiple", "buckets", "lengths", "accumulate"):
        value, default = given[name], OPTIONS[name].default
        if value is default or (name == "lengths" and balance) or (name != "accumulate" and tokens is not None):
            continue
        if name == "accumulate" and balance and tokens is None:
            continue
        needed = {"lengths": "batch_tokens= or balance=", "accumulate": "balance= and batch_size="}
        shown = "=" if name == "lengths" else f"={value!r}"
        raise ValueError(f"{name}{shown} has a meaning only with {needed.get(name, 'batch_tokens=')}.")
    if tokens is None and pad is not None and pad.batch_tokens is not None:  # the padding of another loader
        given["collate_fn"] = given["collate_fn"].with_padding(replace(pad, batch_tokens=None))
    if tokens is None and balance is None:
        return
    setting = f"balance={balance!r}" if tokens is None else f"batch_tokens={tokens}"
    if is_stream:
        raise ValueError(
            f"{setting} needs a dataset with keys: the lengths of a stream's samples are not known in advance. Use "
            "penstock.pad and a fixed batch_size, or sort the samples inside the stream."
        )
    if given["batch_sampler"] is not None or not is_order(given["sampler"]):
        name = "batch_sampler" if given["batch_sampler"] is not None else "sampler"
        raise ValueError(
            f"{setting} and {name}= are mutually exclusive here: the loader must know the order of all samples. Use "
            "shuffle=, or one of penstock's samplers without a generator."
        )
    if tokens is not None and given["batch_size"] != 1:
        raise ValueError(f"batch_size={given['batch_size']!r} and {setting} both decide the batches: leave one out.")
    if tokens is None and (given["batch_size"] is None or given["last_batch"] == "rollover"):
        other = "batch_size=None" if given["batch_size"] is None else 'last_batch="rollover"'
        raise ValueError(f"{setting} and {other} are mutually exclusive: samples are dealt within complete batches.")
    if tokens is not None:
        _match_padding(given, pad)


def _match_padding(given: dict[str, Any], pad: Pad | None) -> None:
    """Makes `pad` use the buckets and the token budget of the plan, so that no batch is wider than planned."""
    given["buckets"] = checked_buckets("buckets", given["buckets"]) or None
    if pad is None:
        if given["buckets"] and (given["collate_fn"] is None or hasattr(given["collate_fn"], "into")):
            raise ValueError(
                f"buckets={list(given['buckets'])} are padded lengths, but the default collate function does not "
                "pad. Pass collate_fn=penstock.pad(), or a function of your own that pads to these lengths."
            )
        return
    for name, its in (("max_length", pad.max_length), ("buckets", pad.buckets or None)):
        if given[name] is not None and its not in (None, given[name]):
            raise ValueError(
                f"{name}={given[name]!r} was given to the loader, and {name}={its!r} to penstock.pad. Leave one out."
            )
    given["buckets"] = given["buckets"] or pad.buckets or None
    if given["buckets"] and (pad.multiple > 1 or pad.ragged):
        other = f"multiple={pad.multiple}" if pad.multiple > 1 else "ragged=True"
        raise ValueError(
            f"buckets={list(given['buckets'])} and penstock.pad({other}) are mutually exclusive. Leave one out."
        )
    budgeted = replace(pad, buckets=given["buckets"] or (), batch_tokens=int(given["batch_tokens"]))
    given["collate_fn"] = given["collate_fn"].with_padding(budgeted)


def _check_errors(is_stream: bool, given: dict[str, Any]) -> None:
    on_error, most = given["on_error"], given["max_errors"]
    if most is not None and on_error == "raise":
        raise ValueError(
            f'max_errors={most} needs on_error="skip" or "replace": otherwise the first error is raised.'
        )
    if on_error == "replace" and is_stream:
        raise ValueError(
            'on_error="replace" needs a dataset with keys: a stream has no other sample to fetch instead. '
            'Use on_error="skip".'
        )
    if on_error == "replace" and not is_order(given["sampler"]) and given["batch_size"] in (None, 1):
        raise ValueError(
            'With a sampler of your own, on_error="replace" takes the replacement from the same batch, '
            f"and with batch_size={given['batch_size']} there is no other sample in it. Use larger batches, "
            'on_error="skip", or shuffle= instead of sampler=.'
        )
