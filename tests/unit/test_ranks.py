"""Which rank this process is, and what may be said of its share and of the last batch."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    _options,
)
from penstock._options import this_rank

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "3"}
SLURM = {"SLURM_PROCID": "4", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*TORCHRUN, *SLURM, *OPEN_MPI):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "shard"),
    [({}, (0, 1)), (TORCHRUN, (2, 3)), (SLURM, (4, 8)), (OPEN_MPI, (0, 2)), ({"HOME": "/"}, (0, 1))],
    ids=str,
)
def test_each_launcher_is_understood(environment: dict[str, str], shard: tuple[int, int]) -> None:
    assert this_rank(environment) == shard


def test_the_launcher_nearest_to_the_program_is_asked() -> None:
    """A SLURM job may start one torchrun or mpirun for each node, and these start the ranks."""
    assert this_rank({**SLURM, **OPEN_MPI}) == (0, 2)
    assert this_rank({**SLURM, **OPEN_MPI, **TORCHRUN}) == (2, 3)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "2"}, r"RANK='2' and WORLD_SIZE is not set\. torchrun sets both"),
        ({"WORLD_SIZE": "2"}, "RANK is not set and WORLD_SIZE='2'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK='2' and WORLD_SIZE='2'\. .*the rank, counted from 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"RANK": "", "WORLD_SIZE": "1"}, "RANK=''"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"SLURM_NTASKS": "4"}, "SLURM_PROCID is not set and SLURM_NTASKS='4'"),
        ({"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_SIZE is not set. Open MPI sets both"),
        ({"RANK": "2", **SLURM}, "WORLD_SIZE is not set"),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_an_error_that_says_it(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        this_rank(environment)


def test_auto_is_resolved_when_the_loader_is_made(no_launcher: pytest.MonkeyPatch) -> None:
    assert DataLoader(range(9), shard="auto").shard == (0, 1)
    for name, value in TORCHRUN.items():
        no_launcher.setenv(name, value)
    loader = DataLoader(range(9), shard="auto", seed=0)
    assert loader.shard == (2, 3)
    no_launcher.setenv("RANK", "0")
    assert [batch.tolist() for batch in loader] == [[2], [5], [8]]


@pytest.mark.parametrize("shard", [(2, 2), (3, 2), (-1, 2)], ids=str)
def test_a_rank_that_there_is_not_is_refused(shard: tuple[int, int]) -> None:
    said = rf"rank {shard[0]} of 2 ranks, but ranks are counted from 0 to 1\. Pass shard=\(rank, world\)"
    with pytest.raises(ValueError, match=said):
        DataLoader(range(9), shard=shard, seed=0)


@pytest.mark.parametrize("shard", [(0, 0), (0,), (0, 1, 2), "other", 3, (0.0, 2), (True, 2), ("0", "2")], ids=str)
def test_what_is_no_shard_is_refused(shard: Any) -> None:
    with pytest.raises(ValueError, match=r'shard must be None, "auto" or \(rank, world\)'):
        DataLoader(range(9), shard=shard, seed=0)


def test_a_shard_may_be_of_numpy_integers() -> None:
    assert DataLoader(range(9), shard=np.array([1, 2]), seed=0).shard == (1, 2)  # type: ignore[arg-type]


def test_ranks_need_a_common_seed() -> None:
    with pytest.raises(ValueError, match=r"shard=\(1, 2\) needs seed=, the same number on every rank"):
        DataLoader(range(9), shard=(1, 2), shuffle=True)
    assert DataLoader(range(9), shard=(0, 1), shuffle=True).shard == (0, 1)


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({}, "keep"),
        ({"drop_last": True}, "drop"),
        ({"last_batch": "keep"}, "keep"),
        ({"last_batch": "drop"}, "drop"),
        ({"last_batch": "drop", "drop_last": True}, "drop"),
        ({"last_batch": "pad"}, "pad"),
        ({"shard": (0, 2)}, "pad"),
        ({"shard": (0, 2), "drop_last": True}, "drop"),
        ({"shard": (0, 2), "last_batch": "keep"}, "keep"),
        ({"shard": (0, 2), "last_batch": "drop"}, "drop"),
        ({"shard": (0, 2), "last_batch": "drop", "batch_size": None}, "drop"),
        ({"shard": (0, 2), "last_batch": "drop", "batch_sampler": [[0]]}, "drop"),
        ({"shard": (0, 2), "sampler": RandomSampler(range(9))}, "pad"),
        ({"shard": (0, 2), "sampler": SequentialSampler(range(9))}, "pad"),
        ({"shard": (0, 2), "sampler": SubsetRandomSampler([1])}, "pad"),
        ({"shard": (0, 2), "sampler": WeightedRandomSampler([1], 2)}, "pad"),
    ],
    ids=lambda value: re.sub(" object at 0x[0-9a-f]+", "", str(value)),
)
def test_the_last_batch_is_what_was_asked_for(given: dict[str, Any], resolved: str) -> None:
    loader = DataLoader(range(9), seed=0, **given)
    assert (loader.last_batch, loader.drop_last) == (resolved, resolved == "drop")


@pytest.mark.parametrize("name", ["shard", "last_batch"])
def test_ranks_cannot_be_changed_afterwards(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be set"):
        setattr(DataLoader([1]), name, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"last_batch": "fill"}, 'must be None, "keep", "drop", "pad" or "rollover", got \'fill\''),
        ({"last_batch": False}, "must be None"),
        ({"last_batch": "keep", "drop_last": True}, "drop_last=True means last_batch=\"drop\", but .*'keep'"),
        ({"last_batch": "pad", "drop_last": True}, "but last_batch='pad' was given too"),
        ({"last_batch": "drop", "batch_size": None}, "works only if the loader makes the batches"),
        ({"last_batch": "drop", "batch_sampler": [[0]]}, "works only if the loader makes the batches"),
        (
            {"last_batch": "pad", "sampler": [0]},
            'last_batch="pad" is not possible with a sampler of your own',
        ),
        ({"last_batch": "pad", "batch_sampler": [[0]]}, "is not possible with a sampler of your own"),
        ({"shard": (0, 2), "sampler": [0]}, r"\(the default with shard=\) is not possible with a sampler"),
        ({"shard": (0, 2), "batch_sampler": [[0]]}, r'Choose last_batch="drop" .* or "keep"'),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(range(9), seed=0, **given)


@pytest.mark.parametrize("given", [{"last_batch": "pad"}, {"shard": (0, 2)}], ids=str)
def test_a_stream_cannot_be_padded(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not possible with a stream: the number of batches"):
        DataLoader(Stream(), seed=0, **given)


def test_a_sampler_that_lost_its_order_since_cannot_be_padded_any_more() -> None:
    sampler: SubsetRandomSampler[Any] = SubsetRandomSampler([1, 2, 3])
    loader = DataLoader(range(9), sampler=sampler, shard=(0, 2), seed=0)
    assert len(list(loader)) == 2
    sampler.indices = ["a", "b"]
    with pytest.raises(ValueError, match="SubsetRandomSampler whose order was known"):
        iter(loader)


def test_the_samplers_of_a_rank_show_its_share() -> None:
    loader = DataLoader(range(9), batch_size=2, shard=(1, 2), seed=0)
    batches = [batch.tolist() for batch in loader]
    assert batches == [[2, 3], [6, 7], [1, 2]]
    assert list(loader.sampler) == [2, 3, 6, 7, 1, 2] and len(loader.sampler) == 6
    assert list(loader.batch_sampler) == batches and len(loader.batch_sampler) == 3
    short = DataLoader(range(9), batch_size=2, shard=(0, 2), seed=0, last_batch="keep")
    assert list(short.sampler) == [0, 1, 4, 5, 8] and len(short.sampler) == 5
    none = DataLoader(range(1), shard=(1, 2), seed=0, last_batch="keep")
    assert list(none.sampler) == [] and len(none.sampler) == 0


class Context:
    def get_world_rank(self) -> int:
        return 1

    def get_world_size(self) -> int:
        return 4


def no_context() -> Any:
    raise RuntimeError("not in a training function")


def jax_with(**state: Any) -> Any:
    return types.SimpleNamespace(global_state=types.SimpleNamespace(**state))


def test_ranks_of_libraries_that_were_imported_and_started_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins: neither library is imported, and what they do not say is no error."""
    for name in ("ray.train", "jax._src.distributed"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert this_rank({}) == (0, 1)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", jax_with(client=None, process_id=0, num_processes=None))
    assert this_rank({}) == (0, 1)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", jax_with(client="it", process_id=2, num_processes=3))
    assert this_rank(SLURM) == (2, 3)
    monkeypatch.setitem(sys.modules, "ray.train", types.SimpleNamespace(get_context=no_context))
    assert this_rank({}) == (2, 3)
    monkeypatch.setitem(sys.modules, "ray.train", types.SimpleNamespace(get_context=Context))
    assert this_rank(SLURM) == (1, 4)
    assert this_rank(TORCHRUN) == (2, 3)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", types.ModuleType("another version"))
    assert this_rank(SLURM) == (1, 4)


@pytest.fixture
def as_rank(no_launcher: pytest.MonkeyPatch) -> None:
    """One of three ranks, in a process that has not warned yet."""
    no_launcher.setattr(_options, "_has_warned", False)
    for name, value in TORCHRUN.items():
        no_launcher.setenv(name, value)


@pytest.mark.usefixtures("as_rank")
def test_ranks_that_would_all_read_the_same_are_warned_once() -> None:
    loader = DataLoader(range(4), seed=1)
    with pytest.warns(UserWarning, match=r'rank 2 of 3, .*every rank gets the same batches\. Use shard="auto"'):
        list(loader)
    list(loader)
    list(DataLoader(Stream(), seed=1))


class Split:
    """As the streams and samplers of libraries are."""

    def __init__(self) -> None:
        self.process_index, self.num_processes, self.batch_sampler = 1, 2, [[1], [2]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batch_sampler)


@pytest.mark.usefixtures("as_rank")
def test_ranks_that_are_split_are_not_warned() -> None:
    for settings in (
        {"shard": "auto"},
        {"shard": (0, 1)},
        {"sampler": DistributedSampler(range(6))},
        {"batch_sampler": BatchSampler(DistributedSampler(range(6)), 2, drop_last=False)},
        {"batch_sampler": Split()},
    ):
        next(iter(DataLoader(range(6), seed=1, **settings)))
    list(DataLoader(range(6)))  # without a seed, each rank draws its own


def test_a_sampler_that_splits_beside_shard_is_an_error() -> None:
    sampler = DistributedSampler(range(6), num_replicas=2, rank=1)
    with pytest.raises(ValueError, match=r"shard=\(1, 2\) and DistributedSampler both split the data"):
        DataLoader(range(6), sampler=sampler, shard=(1, 2), seed=1, last_batch="keep")
