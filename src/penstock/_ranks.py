"""Which of the processes that train together this one is, by what the program that started them says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Shard(NamedTuple):
    """A rank, and of how many."""

    rank: int
    world: int


# In this order: under torchrun or mpirun in a SLURM job, SLURM's variables count what it started, the launchers.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
)


def from_environment(environment: Mapping[str, str]) -> Shard:
    """The shard that the first launcher found there gives to this process; the whole, (0, 1), where there is none."""
    for launcher, *names in _LAUNCHERS:
        values = [environment.get(name) for name in names]
        if values == [None, None]:
            continue
        said = " and ".join(
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
            f'shard="auto" cannot tell which rank this process is: {said}. {launcher} sets both, the rank counted '
            "from 0 and the number of ranks. Start the program with it, unset what is left of it, or pass "
            "shard=(rank, world)."
        )
    return Shard(0, 1)
