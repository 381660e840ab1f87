"""The laws of what is shown: no secret of a URL, however it is written, and no character that a terminal obeys."""

from __future__ import annotations

import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock
from penstock._printable import printable
from penstock._remote import store
from penstock._remote.retry import Patience
from penstock._remote.urls import faithful, redacted, scrubbed, split
from penstock.formats import JsonLines, Tar
from penstock.image import ImageFolder
from penstock.records import CaffeLMDB, RecordFile

SECRET = "hunter2SECRET"
SCHEMES = ["https", "http", "HTTPS", "ftp", "sftp", "file", "s3", "gs", "nosuch", "memory", "hf", "ht\ntps", "x+y"]
MARKS = ["://", ":/", ":", ":///", ":\\\\", "//", ":\\/", "%3A%2F%2F", ":// "]
USERS = [
    "u:{}@", "{}@", "u:p@{}@", "u:{}/x@", "u:1/{}@", "u:p?{}@", "u:p#{}@", "u%3A{}%40", "u:{}%40", "{}:@", "u:{} x@",
    "u:x,{}@", "u:{}'x@", "u.v:{}@", "u:p@x/{}@", "u:p/q@{}/r@",
]  # fmt: skip
HOSTS = ["h", "127.0.0.1:1", "[::1]:1", "h.invalid", "h:x", "", "["]
RESTS = ["", "/x.jsonl", "/a@b/x.jsonl", "/x.jsonl?a=b@c", "/*.jsonl"]
QUERIES = ["?sig={}", "?a=b&X-Amz-Signature={}", "?{}", "?a@b={}", "?a=%3D&token={}#f", "#{}"]

urls = st.builds(
    lambda scheme, mark, user, host, rest: scheme + mark + user.format(SECRET) + host + rest,
    *map(st.sampled_from, (SCHEMES, MARKS, USERS, HOSTS, RESTS)),
)
without_scheme = st.builds(
    lambda before, host, rest: before + f"u:{SECRET}@" + host + rest,
    st.sampled_from(["", "//", " ", "folder/", "://"]), st.sampled_from(HOSTS), st.sampled_from(RESTS),
)  # fmt: skip
signed = st.builds(
    lambda scheme, host, query: f"{scheme}://{host}/x.jsonl" + query.format(SECRET),
    st.sampled_from(["https", "http", "HTTP"]), st.sampled_from(HOSTS), st.sampled_from(QUERIES),
)  # fmt: skip
signed_elsewhere = st.builds(
    lambda scheme, query: f"{scheme}://bucket/x.jsonl" + query.format(SECRET),
    st.sampled_from(["s3", "gs", "az", "memory", "nosuch"]), st.sampled_from(QUERIES[:4]),
)  # fmt: skip
anything = st.one_of(urls, without_scheme, signed, signed_elsewhere)


def is_path(url: str) -> bool:
    """True for a local path: it may have an @, and without a colon nothing in it looks like a password."""
    return url.startswith("file:///") and ":" not in url.removeprefix("file:///")


def every_url() -> Iterator[str]:
    """All URLs of these parts. To try them all takes less time than hypothesis takes for a thousand."""
    for scheme, mark, user, host, rest in product(SCHEMES, MARKS, USERS, HOSTS, RESTS):
        yield scheme + mark + user.format(SECRET) + host + rest


def test_a_url_is_shown_without_its_secret() -> None:
    assert [url for url in every_url() if SECRET in redacted(url)] == []


@settings(max_examples=300, deadline=None)
@given(st.one_of(without_scheme, signed, signed_elsewhere))
def test_a_signature_and_a_password_without_a_scheme_are_not_shown(url: str) -> None:
    assert SECRET not in redacted(url)


def test_a_text_shows_no_secret_of_a_url_in_it() -> None:
    inside = (url for url in every_url() if len(url.split()) == 1 and ":/" in url)
    texts = (f"{before}{url} failed" for url, before in zip(inside, cycle(["", "GET ", "('"])))
    assert [text for text in texts if SECRET in scrubbed(text, ()).replace("#", "")] == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"https:/u:{SECRET}@h/x", "***@h/x"),
        (f"http://u:{SECRET}/x@h/y", "http://***@h/y"),
        (f"ftp://{SECRET}@h/x", "ftp://h/x"),
        (f"ftp://{SECRET}/x@h/y", "ftp://***@h/y"),
        (f"https://h:{SECRET}/y", "https://***"),
        ("https://cdn.example/npm/x@1.2/y.tar?a=b", "https://cdn.example/npm/x@1.2/y.tar"),
        ("s3://bucket/x@2.tar", "s3://bucket/x@2.tar"),
        ("hf://datasets/a/b@main/x", "hf://datasets/a/b@main/x"),
        ("folder/me@home.tar", "folder/me@home.tar"),
        ("/data/a:b.tar", "/data/a:b.tar"),
        ("s3://b/part-?????-of-?.tar", "s3://b/part-?????-of-?.tar"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


@given(st.sets(st.sampled_from(["a@2.tar", "b@2.tar", "x/a@2.tar", "a?b", "c"]), min_size=2))
def test_files_that_were_found_are_told_apart(keys: set[str]) -> None:
    for root in ("http://127.0.0.1:9000", "https://h/?sig=1", "ftp://me:pw@h"):
        assert len({faithful(root, key) for key in keys}) == len(keys)
        assert "pw" not in faithful(root, "x") and "sig" not in faithful(root, "x")


WAYS: dict[str, Callable[[str, Path], Any]] = {
    "JsonLines": lambda url, folder: JsonLines(url),
    "a list": lambda url, folder: JsonLines([url, folder / "none"]),
    "open": lambda url, folder: penstock.open(url),
    "Tar": lambda url, folder: Tar(url, cache=False),
    "index": lambda url, folder: Tar(folder / "x.tar", index=url),
    "cache": lambda url, folder: JsonLines(folder / "x.jsonl", cache=url),
    "storage": lambda url, folder: JsonLines("s3://b/x.jsonl", storage={"endpoint": url, "skip_signature": True}),
    "ImageFolder": lambda url, folder: ImageFolder(url),
    "listing": lambda url, folder: ImageFolder(folder, listing=url),
    "RecordFile": lambda url, folder: RecordFile(url),
    "CaffeLMDB": lambda url, folder: CaffeLMDB(url),
    "bytes": lambda url, folder: JsonLines(url.encode()),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    (folder / "x.jsonl").write_text("1\n")
    (folder / "x.tar").write_bytes(bytes(1024))
    return folder


# fsspec's ftp cannot be deleted if its server was not reached.
@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.*FTPFileSystem:pytest.PytestUnraisableExceptionWarning")
@settings(max_examples=400, deadline=None)
@given(url=anything.filter(lambda url: not is_path(url)), way=st.sampled_from(sorted(WAYS)))
@example(url=f"ftp://u:p/q@{SECRET}/r@[::1]:1", way="CaffeLMDB")
@example(url=f"ftp:///u:p/q@{SECRET}/r@[::1]:1", way="CaffeLMDB")
@example(url=f"hf://u:p/q@{SECRET}/r@[::1]:1", way="CaffeLMDB")
@example(url=f"https:/u:{SECRET}@h", way="JsonLines")
@example(url=f"http://u:{SECRET}/x@h", way="JsonLines")
@example(url=f"file://u:{SECRET}@h", way="Tar")
@example(url=f"ftp://{SECRET}@h", way="open")
@example(url=f"https:/u:{SECRET}@h", way="RecordFile")
@example(url=f"hf:///u:{SECRET}@h", way="JsonLines")
@example(url=f"https:/u:{SECRET}@h", way="listing")
@example(url=f"https://u%3A{SECRET}%40h", way="ImageFolder")
def test_no_way_to_name_a_file_shows_the_secret(url: str, way: str, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("READING", "FINDING"):
            patch.setattr(store, name, Patience(0.01, first=0.001, longest=0.001, odd=1))
        patch.setenv("PENSTOCK_CACHE", str(folder / "cache"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        texts = []
        try:
            texts.append(repr(WAYS[way](url, folder)))
        except Exception as error:
            told: BaseException | None = error
            while told is not None:
                texts += [str(told), repr(told), repr(told.args), *getattr(told, "__notes__", [])]
                told = told.__cause__ or told.__context__
            texts.append(traceback.format_exception_only(error)[-1])
    texts += [str(each.message) for each in caught]
    texts += [str(each) for each in folder.rglob("*")]
    assert texts and [text for text in texts if SECRET in text] == []


@given(st.text(st.characters(categories=("Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Lu", "Zs")), max_size=30))
@example("\x1b[31m\x9b2J\u202e\u2066\udcff\r\n\x7f\x85")
def test_a_printable_text_has_no_character_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    shown.encode()  # no lone surrogate
    assert not any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in shown)
    assert printable(shown) == shown
    kept = printable(text, lines=True)
    assert kept.count("\n") == text.count("\n") and printable(kept) == shown


@given(st.text())
def test_what_can_be_printed_stays(text: str) -> None:
    if text.isprintable():
        assert printable(text) is text


def test_parts_of_urls_that_were_given_are_split_as_before() -> None:
    assert split(f"http://me:{SECRET}@h/x").user == f"me:{SECRET}"
