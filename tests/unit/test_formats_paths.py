"""Which files a path means, and the keywords of all formats: `storage`, `cache` and `cache_bytes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock._files.local import File
from penstock._files.paths import _spelt_out
from penstock.formats import TextLines


@pytest.mark.parametrize(
    ("path", "paths"),
    [
        ("s-{08..10}.tar", ["s-08.tar", "s-09.tar", "s-10.tar"]),
        ("s-{8..10}.tar", ["s-8.tar", "s-9.tar", "s-10.tar"]),
        ("s-{0..2}.tar", ["s-0.tar", "s-1.tar", "s-2.tar"]),
        ("s-{0..10}.tar", [f"s-{number}.tar" for number in range(11)]),
        ("s3://b/{1..0}/{7..7}-*.tar", ["s3://b/0/7-*.tar", "s3://b/1/7-*.tar"]),
        ("{a,b}-{1..}.tar", ["{a,b}-{1..}.tar"]),
    ],
)
def test_a_range_of_numbers_means_each_of_them(path: str, paths: list[str]) -> None:
    assert _spelt_out(path) == paths


@given(st.integers(0, 10**6), st.integers(0, 30), st.integers(0, 8))
def test_numbers_of_a_range_are_as_wide_as_it_says(first: int, more: int, width: int) -> None:
    numbers = [f"{number:0{width}}" for number in range(first, first + more + 1)]
    if len({*map(len, numbers)}) == 1:
        assert _spelt_out(f"{{{numbers[0]}..{numbers[-1]}}}") == numbers


def test_files_of_a_range_are_read_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number:03}.txt").write_text(f"{number}\n")
    assert list(TextLines(f"{tmp_path}/{{000..002}}.txt")) == ["0", "1", "2"]
    with pytest.raises(FileNotFoundError, match=r"TextLines: there is no file or folder '.*/003\.txt'\.$"):
        TextLines(f"{tmp_path}/{{000..003}}.txt")
    (tmp_path / "{5..6}.txt").write_text("its own name\n")
    assert list(TextLines(tmp_path / "{5..6}.txt")) == ["its own name"]


@pytest.mark.parametrize("path", ["s3:/bucket/a.txt", "s3//bucket/a.txt", "pipe:aws s3 cp s3://bucket/a.txt -"])
def test_a_path_that_is_almost_a_url_is_told_how_urls_look(path: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file or folder .* A URL has the form 's3://bucket/folder/file'"):
        TextLines(path)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"cache_bytes": "10GB"}, ValueError, r"a whole number of bytes, such as 10 \* 10\*\*9 .* got '10GB'"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes must be a whole number"),
        ({"cache_bytes": True}, ValueError, "cache_bytes must be a whole number"),
        ({"cache_bytes": 1, "cache": False}, ValueError, "with cache=False, which keeps nothing on disk"),
        ({"cache_shared": "team"}, TypeError, "cache_shared must be True or False, but it is 'team'"),
        ({"cache_shared": True, "cache": False}, ValueError, "cache_shared=True was given with cache=False"),
        ({"cache": 5}, TypeError, "cache must be the path of a folder, True or False, but it is 5"),
        ({"cache": ""}, ValueError, "cache must be a folder of a local disk, .* but it is ''"),
        ({"cache": "s3://bucket/cache"}, ValueError, "cache must be a folder of a local disk"),
        ({"cache": "some.txt"}, ValueError, r"cache must be a folder, but '.*/some\.txt' is a file"),
        ({"cache": "some.txt/below"}, ValueError, r"cache must be a folder, but '.*/some\.txt' is a file"),
        ({"storage": "eu-central-1"}, TypeError, "storage must be a dict of options, but it is a str"),
    ],
)
def test_wrong_values_are_refused_also_with_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.txt").write_text("one\n")
    with pytest.raises(error, match=message):
        TextLines("some.txt", **settings)


def test_local_files_are_not_cached(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("one\n")
    data = TextLines(tmp_path / "some.txt", cache=tmp_path / "cache", cache_bytes=10**9, storage={"region": "x"})
    assert list(data) == ["one"]
    assert not (tmp_path / "cache").exists()


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


@pytest.mark.parametrize("pattern", ["", "**", "**/*.txt", "*/**/*.txt"])
def test_a_linked_folder_is_found_by_its_folder_and_by_a_pattern(tmp_path: Path, pattern: str) -> None:
    text(tmp_path / "data" / "own" / "a.txt", "own")
    text(tmp_path / "elsewhere" / "deep" / "b.txt", "linked")
    text(tmp_path / "data" / ".hidden" / "c.txt", "hidden")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert list(TextLines(tmp_path / "data" / pattern)) == ["linked", "own"]


@pytest.mark.parametrize("pattern", ["", "**/*.txt"])
def test_a_link_that_leads_back_ends_the_search_there(tmp_path: Path, pattern: str) -> None:
    text(tmp_path / "a" / "b" / "x.txt", "once")
    for number in range(4):  # followed 40 times each, they would take for ever
        (tmp_path / "a" / "b" / f"back{number}").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "self").symlink_to(".")
    (tmp_path / "a" / "loop").symlink_to("loop")
    assert list(TextLines(tmp_path / pattern)) == ["once"]
    assert list(penstock.open(tmp_path / pattern)) == ["once"]


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    text(tmp_path / "x.txt", "once")
    path = str(tmp_path / "x.txt")
    assert list(TextLines([path, File(path), File(path), tmp_path])) == ["once"]
