"""obstore's threads and descriptors are those of the process: they begin with the first test, and stay."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import descriptors

from penstock._remote.store import remotes
from penstock.backends._process import methods
from remote.serving import Server, serving


@pytest.fixture(scope="session", autouse=True)
def obstore_has_begun(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("first")
    (folder / "first").write_bytes(b"first")
    with serving(folder) as server:
        ((remote, key),) = remotes([f"{server.url}/first"], {})
        remote.find(key)
        del remote


@pytest.fixture(autouse=True)
def the_runners_threads_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do here: beside obstore's threads no loader may fork by itself."""
    monkeypatch.setattr(methods, "survives_fork", lambda: False)


@pytest.fixture(autouse=True)
def connections_are_closed() -> Iterator[None]:
    """Waits for them: obstore closes those of a store that is gone in a thread of its own."""
    before = descriptors()
    yield
    until = time.monotonic() + 20
    while descriptors() - before and time.monotonic() < until:
        gc.collect()
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as server:
        yield server
