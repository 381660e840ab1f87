"""The rank of this process, from the environment variables of the program that started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Shard(NamedTuple):
    """A rank, and the number of ranks."""

    rank: int
    world: int


# In this order: under torchrun or mpirun in a SLURM job, SLURM's variables count the launchers that it started.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
)


def from_environment(environment: Mapping[str, str]) -> Shard:
    """The shard of this process from the first launcher whose variables are set; (0, 1) if there is none."""
    for launcher, *names in _LAUNCHERS:
        values = [environment.get(name) for name in names]
        if values == [None, None]:
            continue
        settings = " and ".join(
            f"{name} is not set" if value is None else f"{name}={value!r}"
            for name, value in zip(names, values, strict=True)
        )
        try:
            rank, world = (int(value) for value in values if value is not None)
        except ValueError:  # one of them is missing, or is not a number
            rank, world = -1, 0
        if 0 <= rank < world:
            return Shard(rank, world)
        raise ValueError(
            f'shard="auto" cannot tell which rank this process is: {settings}. {launcher} sets both, the rank '
            "counted from 0 and the number of ranks. Start the program with it, unset its variables, or pass "
            "shard=(rank, world)."
        )
    return Shard(0, 1)
