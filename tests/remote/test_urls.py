"""URLs: their parts, what messages show of them, and which objects a pattern or a folder means."""

from __future__ import annotations

import glob
import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._files.listed import translated
from penstock._remote.listing import cuts, listed
from penstock._remote.store import Page, StoredObject
from penstock._remote.urls import identified, redacted, scrubbed, split


@pytest.mark.parametrize(
    ("url", "shown", "parts"),
    [
        ("s3://b/k/x.tar", "s3://b/k/x.tar", ("s3://b", "k/x.tar", "")),
        ("S3://b", "S3://b", ("s3://b", "", "")),
        ("s3://b/part-?.tar", "s3://b/part-?.tar", ("s3://b", "part-?.tar", "")),
        ("http://h:1/a%20b", "http://h:1/a%20b", ("http://h:1", "a b", "")),
        ("https://h/x?sig=SECRET#f", "https://h/x", ("https://h/?sig=SECRET", "x", "")),
        ("https://me:SECRET@h/x", "https://h/x", ("https://h", "x", "me:SECRET")),
        ("https://me:SE%40RET@h/x", "https://h/x", ("https://h", "x", "me:SE@RET")),
        ("sftp://me:SECRET@h/x", "sftp://h/x", ("sftp://me:SECRET@h", "x", "")),
        ("abfss://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x",
         ("abfss://c@acc.dfs.core.windows.net", "x", "")),
        ("az://c/x?sv=1&sig=SECRET", "az://c/x", ("az://c", "x?sv=1&sig=SECRET", "")),
    ],
)  # fmt: skip
def test_a_url_is_split_and_shown_without_credentials(url: str, shown: str, parts: tuple[str, ...]) -> None:
    assert redacted(url) == shown
    assert tuple(split(url)) == parts


def name_of(url: str) -> str:
    return identified(*split(url))


AMAZON = "X-Amz-Algorithm=A&X-Amz-Credential=c&X-Amz-Date={0}&X-Amz-Signature={0}"


def test_a_signature_does_not_change_what_a_url_means() -> None:
    one = name_of("https://h/x?id=5&" + AMAZON.format(1))
    assert one == name_of(f"https://h/x?{AMAZON.format(2)}&id=5") == "https://h/x?id=5"
    assert one != name_of("https://h/x?id=6&" + AMAZON.format(1))
    assert name_of("https://me:pw@h/x") == name_of("https://me:other@h/x") != name_of("https://you:pw@h/x")
    assert name_of("ftp://me:pw@h/x") == "ftp://me@h/x"


def test_what_is_encoded_in_a_key_is_part_of_it() -> None:
    urls = ["x", "x?a=b", "x%3Fa=b", "x%253Fa=b", "x%23a", "x%2523a", "x%23b", "x?a=%23", "x?a=b&a=b"]
    assert len({name_of(f"https://h/{url}") for url in urls}) == len(urls)


@pytest.mark.parametrize(
    ("host", "query"),
    [
        ("h", "st={}"), ("h", "sp={}"), ("h", "token={}"), ("h", "sv=1&sig={}"), ("h", "X-Amz-Signature={}"),
        ("a.blob.core.windows.net", "st={}"), ("a.blob.core.windows.net", "sv=1&sig=s&snapshot={}"),
        ("b.s3.amazonaws.com", AMAZON.format(1) + "&versionId={}"), ("h", "Expires={}"),
        ("h", "x-oss-process={}"), ("core.windows.net.evil.example", "sv=1&sig={}"),
        ("h", "Expires=1&Signature=1&AWSAccessKeyId=1&signature={}"),
    ],
)  # fmt: skip
def test_what_is_not_a_signature_of_the_store_tells_urls_apart(host: str, query: str) -> None:
    assert name_of(f"https://{host}/x?" + query.format(1)) != name_of(f"https://{host}/x?" + query.format(2))


def test_a_text_of_a_library_is_shown_without_secrets() -> None:
    text = "GET https://me:pw12@h/x?sig=abcd failed with key abcd-key"
    assert scrubbed(text, ("abcd", "abcd-key")) == "GET https://h/x failed with key ***"


names = st.text("ab.0", min_size=1, max_size=3).filter(lambda name: name.strip("."))
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
segments = st.sampled_from(["**", "*", "a*", "?", "[ab]", "[!a]*", ".*", "b", "*.0"])
patterns = st.lists(segments, min_size=1, max_size=3)


@settings(deadline=None, max_examples=30)
@given(found=st.sets(paths, max_size=6), pattern=patterns.map("/".join))
def test_a_pattern_means_what_it_means_on_a_disk(
    tmp_path_factory: pytest.TempPathFactory, found: set[str], pattern: str
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    for path in found:
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        except OSError:  # a folder and a file of one name
            continue
    on_disk = [os.path.relpath(path, folder) for path in map(str, folder.rglob("*")) if Path(path).is_file()]
    matches = glob.glob(pattern, root_dir=folder, recursive=True)
    expected = {path for path in matches if os.path.isfile(f"{folder}/{path}")}  # glob returns "b/" for a file b, too
    assert {path for path in on_disk if translated(pattern).fullmatch(path)} == expected


class Bucket:
    """A store with sorted keys, pages of a few, and a count of requests."""

    sorts = True

    def __init__(self, keys: list[str], page: int) -> None:
        self._keys, self._page, self.requests = sorted(keys), page, 0

    def below(self, folder: str, deep: bool, after: str = "", pause: Any = time.sleep) -> Iterator[Page]:
        at = bisect_right(self._keys, after)
        while True:
            self.requests += 1
            yield Page([StoredObject(key, 1, "") for key in self._keys[at : at + self._page]], [])
            at += self._page
            if at >= len(self._keys):
                return


keys = st.one_of(
    st.integers(0, 30_000).map("part-{:06}.tar".format),
    st.text("09af-z", min_size=1, max_size=9),
    st.text("01239", min_size=1, max_size=3),  # names at which others are cut
)


@settings(deadline=None, max_examples=100)
@given(keys=st.sets(keys, max_size=300), page=st.integers(1, 20))
def test_a_listing_in_parallel_has_each_object_once(keys: set[str], page: int) -> None:
    found = [each.key for objects in listed(Bucket(list(keys), page), "") for each in objects]  # type: ignore[arg-type]
    assert sorted(found) == sorted(keys)


@settings(deadline=None)
@given(last=keys, until=keys | st.just(""))
def test_cuts_are_sorted_and_between_the_two(last: str, until: str) -> None:
    found = cuts(last, until, 0)
    assert found == sorted(set(found))
    assert all(last < cut and (not until or cut < until) for cut in found)


def test_few_requests_of_a_parallel_listing_find_nothing() -> None:
    bucket = Bucket([f"part-{number:06}.tar" for number in range(100_000)], 1000)
    assert sum(map(len, listed(bucket, ""))) == 100_000  # type: ignore[arg-type]
    assert bucket.requests < 300


@pytest.mark.parametrize(("pattern", "name"), [("*a*a*a*b", "a" * 500), ("j***ket***b", "j" + "ket" * 40)])
def test_no_name_of_a_server_takes_long_to_match(pattern: str, name: str) -> None:
    """If what a star matches is tried again for each other star, these take seconds, and with one star more hours."""
    matcher = translated(pattern)
    begun = time.process_time()
    assert matcher.fullmatch(name) is None
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        *[("x[9-0]", "x5", False), ("x[[]", "x[", True), ("a*b*c", "aXbYbZc", True), ("a*b*c", "abc", True)],
        *[("a*b*c", "ac", False), ("*a*", "xay", True), ("**/**/a", "a", True), ("a***", "abc", True)],
    ],
)
def test_patterns_are_those_of_a_shell(pattern: str, name: str, matches: bool) -> None:
    assert (translated(pattern).fullmatch(name) is not None) == matches
