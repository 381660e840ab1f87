"""The stream with on_error is a function of the seed and of which keys are bad: of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same import same

import penstock
from penstock import DataLoader, Dataset
from penstock._engine import pace

pytestmark = pytest.mark.filterwarnings("ignore:Every sample of epoch")

SIZES = st.integers(1, 40)


class Noise(Dataset[Any]):
    """Keys with noise, also from the global generators where those are the step's. Bad ones draw, and fail."""

    def __init__(self, n: int, bad: frozenset[int] = frozenset(), shared: bool = True) -> None:
        self.n = n
        self.bad = bad
        self.shared = shared

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        noise = penstock.rng().random()
        if key in self.bad:
            raise ValueError(f"sample {key} is bad")
        return {"key": key, "noise": noise, "step": self.shared and np.random.random()}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, frozenset[int], dict[str, Any]]:
    n = draw(SIZES)
    bad = draw(st.frozensets(st.integers(0, n - 1)))
    return (
        n,
        bad,
        {
            "batch_size": draw(st.sampled_from([1, 2, 3, 8])),
            "shuffle": draw(st.booleans()),
            "seed": draw(st.integers(0, (1 << 64) - 1)),
            "on_error": draw(st.sampled_from(["skip", "replace"])),
        },
    )


def stream(loader: DataLoader[Any]) -> Iterator[Any]:
    """An epoch, batch by batch; the error that ends a step by its text."""
    batches = loader.batches()
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except ValueError as error:
            yield str(error)
        else:
            assert batch.index is not None
            skipped = [(key, str(error)) for key, error in batch.skipped]
            yield batch.step, batch.data, batch.index.tolist(), skipped


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_skip_gives_the_good_keys_in_their_order_and_replace_every_place(world: Any) -> None:
    n, bad, given_ = world
    loader = DataLoader(Noise(n, bad), **given_)
    plain = DataLoader(Noise(n), **{**given_, "on_error": "raise"})
    wanted = {batch.step: batch.index.tolist() for batch in plain.batches() if batch.index is not None}
    arrived = set()
    for found in stream(loader):
        if isinstance(found, str):  # nothing could be found in the place of a sample
            assert given_["on_error"] == "replace"
            continue
        step, data, index, skipped = found
        arrived.add(step)
        assert data["key"].tolist() == index
        assert not bad & set(index)
        assert {key for key, _ in skipped} <= bad
        good = [key for key in wanted[step] if key not in bad]
        if given_["on_error"] == "skip":
            assert index == good
        else:
            assert len(index) == len(wanted[step])
            assert all(now == was for now, was in zip(index, wanted[step], strict=True) if was not in bad)
    if given_["on_error"] == "skip":
        assert arrived == {step for step, keys in wanted.items() if not set(keys) <= bad}


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_the_noise_of_a_sample_does_not_depend_on_its_neighbours(world: Any) -> None:
    n, bad, given_ = world
    plain = DataLoader(Noise(n), seed=given_["seed"], batch_size=n)
    (batch,) = plain
    noise = batch["noise"]
    for found in stream(DataLoader(Noise(n, bad), **given_)):
        if not isinstance(found, str):
            assert found[1]["noise"].tolist() == noise[found[2]].tolist()


@pytest.fixture
def every_step_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SECONDS", 10.0)


@given(worlds(), st.integers(1, 3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore:num_workers=")
@pytest.mark.usefixtures("every_step_is_small")
def test_neither_workers_nor_bundles_matter(world: Any, workers: int) -> None:
    n, bad, given_ = world
    inline = DataLoader(Noise(n, bad), **given_)
    with DataLoader(Noise(n, bad), num_workers=workers, **given_) as loader:
        for _ in range(2):
            assert same(list(stream(loader)), list(stream(inline)))


@given(worlds(), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_neither_do_threads(world: Any, workers: int) -> None:
    n, bad, given_ = world
    inline = DataLoader(Noise(n, bad, shared=False), **given_)
    dataset = Noise(n, bad, shared=False)
    with DataLoader(dataset, num_workers=workers, backend="thread", **given_) as loader:
        assert same(list(stream(loader)), list(stream(inline)))
