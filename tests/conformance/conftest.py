"""One suite for every backend and start method: whatever it says of one, it says of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

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

_HERE = Path(__file__).parent

# A fresh interpreter takes longer to start than any of these tests to run. So a test has all its parameters inline,
# on threads and on forked workers, and every second test has one set of them on workers in fresh interpreters: four
# of five by forkserver, one by spawn. In test_batches.py every test has one. The narrow files are about what is
# decided before a worker is started: there only every third test has one. `make wide` runs everything.
_FRESH = ("spawn-2", "forkserver-2")
_NARROW = {
    f"test_{name}.py"
    for name in ("bad_samples", "dtype", "formats", "images", "ranks", "records", "resume", "rng", "update")
}


@pytest.hookimpl(tryfirst=True)  # before those that are marked here are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fresh: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == _HERE:
            backend = _backend(item)
            if backend == "fork-1" and item.path.name in _NARROW:
                item.add_marker("wide")
            elif backend in _FRESH:
                fresh.setdefault(f"{item.path.name} {item.originalname}", []).append(item)
    for name, variants in fresh.items():
        number = crc32(name.encode())  # of the name: so it does not change with the tests beside it
        method = _FRESH[number % 5 > 0]
        own = [item for item in variants if _backend(item) == method] or variants
        chosen = own[number % len(own)]
        file = chosen.path.name
        left_out = number // 5 % (1 if file == "test_batches.py" else 3 if file in _NARROW else 2) > 0
        for item in variants:
            if left_out or item is not chosen:
                item.add_marker("wide")


def _backend(item: pytest.Function) -> str | None:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return next((params[name] for name in ("make", "make_concurrent", "make_processes") if name in params), None)


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
