"""One suite for every backend and start method: whatever it says of one, it says of all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import DataLoader

SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "thread-2": {"num_workers": 2, "backend": "thread"},
    "fork-1": {"num_workers": 1, "multiprocessing_context": "fork"},
    "fork-2": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn-2": {"num_workers": 2, "multiprocessing_context": "spawn"},
    "forkserver-2": {"num_workers": 2, "multiprocessing_context": "forkserver"},
}

Make = Callable[..., DataLoader[Any]]

# What these are about is decided before a worker is started, so not every way of starting one is tried, but
# with PENSTOCK_WIDE set: a process takes longer to start than any of these tests to run.
_NARROW = {
    f"test_{name}.py"
    for name in ("bad_samples", "dtype", "images", "ranks", "records", "resume", "rng", "update")
}
_LEFT_OUT = ("fork-1", "spawn-2")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def is_left_out(item: pytest.Item) -> bool:
        return item.path.name in _NARROW and any(name in item.name for name in _LEFT_OUT)

    if "PENSTOCK_WIDE" not in os.environ:
        config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
        items[:] = [item for item in items if not is_left_out(item)]


def _maker(settings: dict[str, Any]) -> Iterator[Make]:
    made: list[DataLoader[Any]] = []

    def make(dataset: Any, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        made.append(DataLoader(dataset, *args, **{**settings, **kwargs}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


@pytest.fixture(params=SETTINGS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes loaders of one backend, and closes them."""
    yield from _maker(SETTINGS[request.param])


@pytest.fixture(params=[name for name in SETTINGS if name != "inline"])
def make_concurrent(request: pytest.FixtureRequest) -> Iterator[Make]:
    """The same for backends that have workers."""
    yield from _maker(SETTINGS[request.param])


@pytest.fixture(params=[name for name in SETTINGS if name not in ("inline", "thread-2")])
def make_processes(request: pytest.FixtureRequest) -> Iterator[Make]:
    """The same for backends whose workers are processes."""
    yield from _maker(SETTINGS[request.param])
