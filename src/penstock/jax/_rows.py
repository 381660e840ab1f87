"""Computes which rows of a global batch each process loads, given the sharding of the batch."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from penstock.plan import LocalRows


def checked(sharding: Any) -> Sharding | None:
    if sharding is None:
        return None
    if isinstance(sharding, Sharding):
        if sharding.addressable_devices:
            return sharding
        raise ValueError(
            f"{sharding} has no device of this process ({jax.process_index()} of {jax.process_count()}), so there is "
            "nothing to load here. Make the loader only in processes that have such devices, or use all devices."
        )
    raise TypeError(
        "sharding must be a jax.sharding.Sharding of the global batch, such as NamedSharding(mesh, P('data')), or "
        f"None, got {type(sharding).__name__}."
    )


def for_rank(sharding: Any, ndim: int) -> Any:
    """Returns the sharding for an array with `ndim` axes. Entries for axes that the array lacks are dropped."""
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > ndim:
        spec = PartitionSpec(*tuple(sharding.spec)[:ndim])
        return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return sharding


def parts(sharding: Any) -> int:
    """Returns the number of parts into which the sharding splits the rows of a batch."""
    rows = sharding.num_devices  # a multiple of the number of parts
    return len({index.indices(rows) for (index, *_) in for_rank(sharding, 1).devices_indices_map((rows,)).values()})


def local_rows(sharding: Any, batch_size: int) -> LocalRows | None:
    """Returns the rows of a global batch that this process loads, or None if this process loads all rows."""
    return rows_of_processes(sharding, batch_size)[jax.process_index()]


def rows_of_processes(sharding: Any, batch_size: int) -> dict[int, LocalRows | None]:
    """Maps each process that has devices of the sharding to the rows that this process loads (None: all rows).

    Any two processes load either the same rows or disjoint sets of rows. So everything that depends on the rows of a
    process, such as the random numbers of a step, is the same in all processes that load a row. If two processes
    share some of the rows that they need, each process loads the rows of both processes.
    """
    try:
        tiles = for_rank(sharding, 1).devices_indices_map((batch_size,))
    except ValueError as error:
        raise ValueError(
            f"batch_size={batch_size} cannot be split by {sharding}: with sharding=, batch_size is the number of "
            "rows of the global batch, on all processes together, and must be a multiple of the number of parts "
            "into which the sharding splits the first axis."
        ) from error
    starts: dict[int, set[int]] = {}
    rows: dict[int, range] = {}
    for device, (index, *_) in tiles.items():
        tile = range(*index.indices(batch_size))
        rows[tile.start] = tile
        starts.setdefault(device.process_index, set()).add(tile.start)
    groups: list[set[int]] = []  # disjoint sets of tiles
    for held in starts.values():
        common = [group for group in groups if group & held]
        groups = [group for group in groups if not group & held] + [held.union(*common)]
    found: dict[int, LocalRows | None] = {}
    for process, held in starts.items():
        group = next(group for group in groups if group & held)
        each = tuple(row for start in sorted(group) for row in rows[start])
        found[process] = None if len(each) == batch_size else each
    return found
