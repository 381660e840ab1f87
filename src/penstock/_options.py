"""The settings of a loader, which are validated before anything is started."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from penstock._fill.cast import Cast
from penstock._memory.guests import ranks_of_libraries
from penstock._system.warnings import warn_caller
from penstock.backends import _base as backends
from penstock.plan._blocks import WINDOW
from penstock.plan._samplers import order_of
from penstock.plan._seeds import check_generator

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext  # takes 8 ms, and only processes need it

OnError = Literal["raise", "skip", "replace"]
LastBatch = Literal["keep", "drop", "pad", "rollover"]
Casting = Literal["checked", "unsafe"]

# Steps that each worker may be ahead of the caller.
DEFAULT_PREFETCH_FACTOR = 2


class Shard(NamedTuple):
    """A rank, and the number of ranks."""

    rank: int
    world: int


ONE = Shard(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `DataLoader` besides the dataset, with their defaults resolved."""

    batch_size: int | None
    shuffle: bool | str  # or "blocks"
    window: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Any
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Any
    multiprocessing_context: str | BaseContext | None
    generator: np.random.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    backend: str
    ray_options: Mapping[str, Any] | None
    seed: int | None
    retries: int
    hang: float | None
    shard: Shard
    last_batch: str
    on_error: str
    max_errors: int | None
    dtype: Any
    casting: str
    max_workers: int | None
    auto: tuple[str, ...]  # the settings that are tuned: they are the present numbers here
    is_unsplit: bool  # with a seed, all ranks would read the same: neither shard= nor a sampler splits the data

    @classmethod
    def resolve(cls, *, is_stream: bool, **given: Any) -> Options:
        """The options for the caller's arguments; raises if one is not allowed."""
        given = {name: int(v) if isinstance(v, np.integer) else v for name, v in given.items()}
        given["auto"] = _automatic(is_stream, given)
        _check_values(given)
        _check_workers(given)
        sampler = given["sampler"] if given["batch_sampler"] is None else given["batch_sampler"]
        given["is_unsplit"] = given["seed"] is not None and given["shard"] is None and not splits(sampler)
        given["shard"] = shard_of(given["shard"])
        _check_order(is_stream, given)
        _check_split(given)
        given["last_batch"] = _last_batch(is_stream, given)
        given["drop_last"] = given["last_batch"] == "drop"
        _check_errors(is_stream, given)
        if isinstance(given["dtype"], Mapping):
            given["dtype"] = dict(given["dtype"])
        Cast.of(given["dtype"], given["casting"])
        if given["batch_sampler"] is not None:
            given["batch_size"] = None
        workers = given["num_workers"]
        if given["prefetch_factor"] is None and workers > 0:
            given["prefetch_factor"] = DEFAULT_PREFETCH_FACTOR
        if given["shuffle"] == "blocks":
            given["window"] = given["window"] or WINDOW
        else:
            given["shuffle"] = bool(given["shuffle"])
        given["persistent_workers"] = workers > 0 and given["persistent_workers"] is not False
        given["backend"] = (given["backend"] or backends.DEFAULT) if workers else "inline"
        _check_machine(given["backend"], workers)
        if given["pin_memory"]:
            warn_caller(
                "pin_memory=True has no effect on numpy batches: pinning is for tensors that go to an accelerator.",
                UserWarning,
            )
        if given["pin_memory_device"]:
            warn_caller("pin_memory_device is deprecated and ignored, as in torch.", UserWarning)
        return cls(**given)

    @property
    def context(self) -> Any:
        """What the backend is made with."""
        return self.ray_options if backends.is_ray(self.backend) else self.multiprocessing_context

    @property
    def cast(self) -> Cast | None:
        """The conversion of numbers in a batch, or None."""
        return Cast.of(self.dtype, self.casting)


def is_int(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def _one_of(name: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        *words, last = (f'"{one}"' if isinstance(one, str) else str(one) for one in allowed)
        raise ValueError(f"{name} must be {', '.join(words)} or {last}, got {value!r}.")


def _automatic(is_stream: bool, given: dict[str, Any]) -> tuple[str, ...]:
    """Replaces "auto" by the number to begin with; returns the names of these settings."""
    auto = tuple(name for name in ("num_workers", "prefetch_factor") if isinstance(given[name], str))
    for name in auto:
        if given[name] != "auto":
            raise ValueError(f'{name} must be an integer or "auto", got {given[name]!r}.')
    most = given["max_workers"]
    if "num_workers" in auto:
        # Two are as quick as twenty with the first batch. A stream may have one reader only.
        given["num_workers"] = 1 if is_stream else min(2, _usable(), most if is_int(most, 1) else 2)
    elif most is not None:
        raise ValueError(f'max_workers={most!r} limits num_workers="auto", but num_workers={given["num_workers"]!r}.')
    if "prefetch_factor" in auto:
        if given["num_workers"] == 0:
            raise ValueError('prefetch_factor="auto" needs workers: give num_workers="auto", or 1 or more.')
        given["prefetch_factor"] = DEFAULT_PREFETCH_FACTOR
    return auto


# The least value of each integer, whether it may be None, and its meaning.
_INTEGERS = {
    "num_workers": (0, False, ' (num_workers=0 to load in the calling process), or "auto"'),
    "max_workers": (1, True, ", or None for no limit of yours"),
    "retries": (0, False, ""),
    "prefetch_factor": (1, True, ', or None, or "auto" (how many steps each worker may be ahead)'),
    "batch_size": (1, True, ", or None for samples that are not batched"),
    "max_errors": (0, True, " (how many samples of an epoch may fail), or None for no limit"),
    "window": (1, True, f" (how many blocks may be needed at a time), or None for {WINDOW}"),
}


def _check_values(given: dict[str, Any]) -> None:
    """Checks each argument by itself."""
    for name, (least, or_none, meaning) in _INTEGERS.items():
        if not is_int(given[name], least) and not (or_none and given[name] is None):
            raise ValueError(f"{name} must be an integer of at least {least}{meaning}, got {given[name]!r}.")
    seed, timeout = given["seed"], given["timeout"]
    if seed is not None and not (is_int(seed, 0) and seed < 1 << 64):
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, or None, got {seed!r}.")
    number = isinstance(timeout, (int, float, np.floating)) and not isinstance(timeout, bool)
    if not number or not timeout >= 0:
        raise ValueError(f"timeout must be a non-negative number of seconds (0: no limit), got {timeout!r}.")
    hang = given["hang"]
    if hang is not None and not (isinstance(hang, (int, float, np.floating)) and 0 < hang < math.inf):
        raise ValueError(f"hang must be a positive number of seconds, or None (never), got {hang!r}.")
    for name in ("pin_memory", "drop_last", "in_order"):
        if not isinstance(given[name], (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False, got {given[name]!r}.")
    _one_of("shuffle", given["shuffle"], True, False, None, "blocks")
    _one_of("persistent_workers", given["persistent_workers"], True, False, None)
    _one_of("last_batch", given["last_batch"], None, "keep", "drop", "pad", "rollover")
    _one_of("on_error", given["on_error"], "raise", "skip", "replace")
    _one_of("backend", given["backend"], None, *backends.known())
    for name in ("collate_fn", "worker_init_fn"):
        if given[name] is not None and not callable(given[name]):
            raise TypeError(f"{name} must be callable, got {type(given[name]).__name__}.")
    check_generator(given["generator"])
    if seed is not None and given["generator"] is not None:
        raise ValueError(
            f"seed={seed} and generator= were both given, but the generator is only for drawing a seed. Leave one of "
            "them out."
        )


# Settings that have no meaning without workers, and the values that count as not given.
_NEED_WORKERS: dict[str, tuple[Any, ...]] = {
    "prefetch_factor": (None,),
    "timeout": (0, 0.0),
    "hang": (None,),
    "persistent_workers": (None, False),
    "multiprocessing_context": (None,),
    "ray_options": (None,),
}


def _check_workers(given: dict[str, Any]) -> None:
    backend, context = given["backend"], given["multiprocessing_context"]
    if given["num_workers"] == 0:
        if backend is not None and backends.is_ray(backend):
            raise ValueError(f'backend="{backend}" needs workers: give num_workers=1 or more, or leave backend= out.')
        for name, unset in _NEED_WORKERS.items():
            if given[name] not in unset:
                raise ValueError(
                    f"{name}={given[name]!r} needs workers: give num_workers=1 or more, or leave this argument out."
                )
    name = backend or backends.DEFAULT
    processes = backends.has_processes(name)
    if given["hang"] is not None and not backends.can_kill(name):
        raise ValueError(f'hang={given["hang"]!r} needs processes: with backend="{backend}" no worker can be killed.')
    if given["ray_options"] is not None:
        if not backends.is_ray(name):
            raise ValueError(f'ray_options has no meaning with backend="{name}": leave one out.')
        from penstock.backends._ray.settings import check

        check(given["ray_options"])
    if context is None:
        return
    if not processes:
        raise ValueError(f'multiprocessing_context has no meaning with backend="{backend}": leave one out.')
    # Raises what torch raises: ValueError for an unknown name, TypeError for anything but a context.
    from penstock.backends._process.methods import choose_method

    choose_method(context)


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


# How samplers name the rank that they read for, and the number of ranks: torch's and ours, and accelerate's.
_SPLITS = (("rank", "num_replicas"), ("process_index", "num_processes"))


def splits(sampler: object) -> bool:
    """True if a sampler, or one inside of it, gives this rank its own part of the keys."""
    with suppress(Exception):  # attributes of the user's
        for _ in range(8):  # an object that has every attribute, such as a mock, has no innermost sampler
            for names in _SPLITS:
                rank, world = (getattr(sampler, name, None) for name in names)
                if is_int(rank, 0) and is_int(world, 2):
                    return True
            inner = getattr(sampler, "batch_sampler", None)
            sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return False


def _check_split(given: dict[str, Any]) -> None:
    shard, sampler = given["shard"], given["sampler"] if given["batch_sampler"] is None else given["batch_sampler"]
    if shard.world > 1 and splits(sampler):
        raise ValueError(
            f"shard={tuple(shard)} and {type(sampler).__name__} both split the data: each rank would get only a part "
            "of its part. Leave out one of them. (A library that adds the sampler has a setting for it; in "
            "Lightning: use_distributed_sampler=False.)"
        )


def shard_of(given: Any) -> Shard:
    """The shard that the argument `shard=` says; raises if it says none."""
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
    return Shard(int(rank), int(world))


# In this order: under torchrun or mpirun in a SLURM job, SLURM's variables count the launchers that it started.
_TORCHRUN = ("torchrun", "RANK", "WORLD_SIZE")
_SCHEDULERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
)


def this_rank(environment: Mapping[str, str]) -> Shard:
    """The shard of this process: from torchrun's variables, a library that has ranks, or a scheduler's variables.

    (0, 1) if there are none.
    """
    return _of_variables(environment, _TORCHRUN) or _of_libraries() or _of_variables(environment, *_SCHEDULERS) or ONE


def _of_libraries() -> Shard | None:
    found = ranks_of_libraries()
    return None if found is None else Shard(*found)


_has_warned = False


def warn_of_ranks(dataset: object) -> None:
    """Warns, once in a process, if this is one of several ranks. Nothing splits the data of the loader."""
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


def _of_variables(environment: Mapping[str, str], *launchers: tuple[str, str, str]) -> Shard | None:
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
                return Shard(rank, world)
        raise ValueError(
            f'shard="auto" cannot tell which rank this process is: {settings}. {launcher} sets both: the '
            "rank, counted from 0, and the number of ranks. Start the program with it, unset both, or pass "
            "shard=(rank, world)."
        )
    return None


def _last_batch(is_stream: bool, given: dict[str, Any]) -> str:
    """The treatment of an incomplete last batch; raises if it is not possible with the other settings."""
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
    if choice is None:
        choice = "drop" if drop_last else "pad" if shard.world > 1 else "keep"
    foreign = is_stream or given["batch_sampler"] is not None or not _is_order(given["sampler"])
    if choice in ("pad", "rollover") and foreign:
        what = "a stream" if is_stream else "a sampler of your own"
        default = " (the default with shard=)" if given["last_batch"] is None else ""
        raise ValueError(
            f'last_batch="{choice}"{default} is not possible with {what}: the number of batches is known only at '
            'its end. Choose last_batch="drop" (all ranks have the same number of batches; up to one per rank '
            'is dropped) or "keep" (nothing is dropped; some ranks have one batch fewer).'
        )
    return str(choice)


def _is_order(sampler: Any) -> bool:
    return sampler is None or order_of(sampler, 0) is not None


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
    if on_error == "replace" and not _is_order(given["sampler"]) and given["batch_size"] in (None, 1):
        raise ValueError(
            'With a sampler of your own, on_error="replace" takes the replacement from the same batch, '
            f"and with batch_size={given['batch_size']} there is no other sample in it. Use larger batches, "
            'on_error="skip", or shuffle= instead of sampler=.'
        )


# Seconds of processor time that a forked worker takes to start, about half of it in the parent. Other start methods
# take up to 30 times as long.
_START = 0.015


def _check_machine(backend: str, workers: int) -> None:
    if not backends.has_processes(backend):
        return
    if not (hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")):
        raise RuntimeError(
            f"Worker processes need Linux (memfd and pidfd), but this is {sys.platform}. "
            'Use backend="thread", or num_workers=0.'
        )
    usable = _usable()
    if workers > usable:
        slow, start = "", workers * _START / usable
        if start > 1:
            slow = (
                f" Starting {workers} processes on {usable} CPUs takes {start:.0f} s or more, and "
                f"num_workers={usable} keeps all CPUs busy."
            )
        warn_caller(
            f"num_workers={workers} is more than the {usable} CPUs that this process may use. This helps only if "
            f'samples wait for I/O, and then backend="thread" does the same with less memory.{slow}',
            UserWarning,
        )


def _usable() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
