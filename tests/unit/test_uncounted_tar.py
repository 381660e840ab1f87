"""Tars whose samples are counted when they are first needed: which shards are read when, and the order of samples."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from penstock.formats import UncountedTar
from penstock.formats._uncounted import ShardSampler

COUNTS = (3, 0, 5, 1, 7, 4, 4, 2, 6, 5, 1, 3)


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shards").mkdir()
    for shard, count in enumerate(COUNTS):
        with tarfile.open(tmp_path / "shards" / f"{shard:02}.tar", "w") as tar:
            for number in range(count):
                info = tarfile.TarInfo(f"{number}.cls")
                info.size = 4
                tar.addfile(info, io.BytesIO(b"%4d" % (100 * shard + number)))
    return tmp_path / "shards"


class Counts:
    """Takes the place of the tars."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._counts, self.asked = counts, list[int]()
        self.paths = [str(number) for number in range(len(counts))]

    def count(self, number: int) -> int:
        self.asked.append(number)
        return self._counts[number]


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple),
    window=st.integers(1, 50),
    seed=st.integers(0, 1 << 62),
)
def test_every_key_comes_once_and_few_shards_are_counted_before_the_first(
    counts: tuple[int, ...], window: int, seed: int
) -> None:
    data: Any = Counts(counts)
    sampler = ShardSampler(data, window)
    random.seed(seed)
    keys = iter(sampler)
    first = next(keys, None)
    if first is not None and all(counts):
        assert len(data.asked) <= min(window, len(counts))
    found = [first, *keys] if first is not None else []
    assert sorted(found) == [shard << 32 | row for shard, count in enumerate(counts) for row in range(count)]
    random.seed(seed)
    assert list(sampler) == found
    shards = [key >> 32 for key in found]
    for shard in set(shards):  # none comes back after the window has passed it
        inside = shards[shards.index(shard) : len(shards) - shards[::-1].index(shard)]
        assert len(set(inside)) <= 3 * window


def loader(folder: Path, **more: Any) -> DataLoader[Any]:
    data = UncountedTar(folder)
    return DataLoader(data, 4, sampler=data.sampler(window=4), seed=5, **more)


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["cls"].tolist()]


ALL = [100 * shard + row for shard, count in enumerate(COUNTS) for row in range(count)]


def test_the_order_does_not_depend_on_workers_and_is_another_in_each_epoch(folder: Path) -> None:
    with loader(folder) as plain, loader(folder, num_workers=2) as workers:
        for _ in range(2):
            assert numbers(plain) == numbers(workers)
        first, second = numbers(plain), numbers(plain)
    assert first != second and sorted(first) == sorted(second) == ALL


def test_a_run_is_resumed_at_every_step(folder: Path) -> None:
    with loader(folder) as whole:
        wanted = numbers(whole)
    for steps in range(-(-len(wanted) // 4)):
        with loader(folder) as before:
            batches = iter(before)
            seen = numbers(next(batches) for _ in range(steps))
            state = before.state_dict()
        with loader(folder, num_workers=2 * (steps % 2)) as after:
            after.load_state_dict(state)
            assert seen + numbers(after) == wanted


def test_ranks_share_the_samples_without_talking(folder: Path) -> None:
    seen: list[int] = []
    for rank in range(3):
        with loader(folder, shard=(rank, 3), last_batch="keep") as part:
            seen += numbers(part)
    assert sorted(seen) == ALL


def test_a_key_is_the_shard_and_the_row(folder: Path) -> None:
    data = UncountedTar(folder, fields=["cls"])
    assert data[4 << 32 | 6]["cls"] == 406 and [s["cls"] for s in data][:5] == [0, 1, 2, 200, 201]
    assert [sample["cls"] for sample in data.__getitems__([2 << 32, 2])] == [200, 2]
    for key in (-1, 3, 4 << 32 | 7, 12 << 32):
        with pytest.raises(IndexError, match=f"key {key} is not in"):
            data[key]
        with pytest.raises(IndexError, match=f"key {key} is not in"):
            data.__getitems__([0, key])
    for shuffle in (False, True, "blocks"):
        with pytest.raises(TypeError, match=r"UncountedTar has no __len__, .*pass sampler="):
            DataLoader(data, 4, shuffle=shuffle)
    with pytest.raises(ValueError, match="window must be"):
        data.sampler(window=0)


def test_a_shard_that_is_cut_off_is_a_bad_sample(folder: Path) -> None:
    path = folder / "04.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with loader(folder, on_error="skip") as part:
        found = numbers(part)
        assert sorted(number for number in found if 400 <= number < 500) == [400, 401]
        assert [key for key, _ in part.skipped] == [4 << 32 | 2]
