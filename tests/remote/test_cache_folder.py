"""Where the pieces of remote files are kept if the usual folder cannot be used: in memory, with a warning."""

from __future__ import annotations

import errno
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._cache import pieces
from penstock.formats import JsonLines
from remote.serving import Server


@pytest.fixture
def url(folder: Path, server: Server) -> str:
    (folder / "x.jsonl").write_text("1\n2\n")
    return f"{server.url}/x.jsonl"


def test_without_a_home_folder_pieces_are_kept_in_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(RuntimeWarning, match=r"no home folder.*in memory.*Set PENSTOCK_CACHE") as warned:
        data = JsonLines(url)
    assert warned[0].filename == __file__
    with penstock.DataLoader(data, num_workers=1, backend="thread") as loader:
        assert [batch.tolist() for batch in loader] == [[1], [2]]


@pytest.mark.parametrize("given", [True, False], ids=["cache=", "PENSTOCK_CACHE"])
def test_a_folder_that_cannot_be_looked_into_is_warned_of(
    url: str, given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / ("x" * 300) / "cache"  # to ask for it is an error, also for root
    monkeypatch.setenv("PENSTOCK_CACHE", str(closed))
    with pytest.warns(RuntimeWarning, match="A piece could not be kept in the cache"):
        assert list(JsonLines(url, cache=closed if given else None)) == [1, 2]


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EFBIG, "see `ulimit -f`"), (errno.EACCES, "a folder that this user may write"), (errno.ENOSPC, "room")],
)
def test_the_warning_says_what_to_do(url: str, number: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(pieces, "write", refused)
    with pytest.warns(RuntimeWarning, match=said):
        assert list(JsonLines(url)) == [1, 2]


def test_a_folder_for_a_team_has_indexes_too_but_only_if_it_is_the_default_one(
    url: str, tmp_path: Path, cache: Path
) -> None:
    assert list(JsonLines(url, cache=tmp_path / "team", cache_shared=True)) == [1, 2]
    assert [stat.S_IMODE((path).stat().st_mode) for path in (tmp_path / "team", cache)] == [0o2770, 0o700]
    shutil.rmtree(cache)
    assert list(JsonLines(url, cache_shared=True)) == [1, 2]
    found = {path.name == "pieces": stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()}
    assert found == {True: 0o2770, False: 0o660}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o2770
