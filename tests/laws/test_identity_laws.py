"""A file has one identity: content of one URL never answers for another, whatever keeps or compares files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._files.identity import Identity
from penstock._remote import store
from penstock._remote.store import Page, StoredObject
from penstock.formats import Parquet, TextLines, _table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

# What a store adds to the URL of an object when it signs it: two signatures of each.
SIGNATURES = [
    ("h", "X-Amz-Algorithm=A&X-Amz-Credential=me&X-Amz-Date={n}&X-Amz-Expires=60&X-Amz-Signature=f{n}"),
    ("h", "AWSAccessKeyId=me&Expires={n}&Signature=f{n}"),
    ("h", "Expires={n}&Signature=f{n}&Key-Pair-Id=K"),
    ("h", "X-Goog-Algorithm=G&X-Goog-Credential=c&X-Goog-Date={n}&X-Goog-Signature={n}"),
    ("a.blob.core.windows.net", "sv=1&st={n}&se={n}&sr=b&sp=r&sig=f{n}"),
    ("h", "x-oss-signature-version=4&x-oss-credential=c&x-oss-date={n}&x-oss-signature={n}"),
]
# Queries that choose the content, some with names that stand in signatures, too.
OTHERS = ["id", "st", "sp", "sig", "se", "token", "expires", "signature", "versionId", "X-Amz-Date", ""]

others = st.lists(st.tuples(st.sampled_from(OTHERS), st.sampled_from(["", "a", "b", "a%26b", "b=c"])), max_size=2)
paths = st.sampled_from(["x", "y", "x%23a", "x%23b", "x%3Fa", "x%3Fst=b", "x%253Fa", "a%20b"])
users = st.sampled_from(["", "", "me:pw@", "you:pw@"])


class Object(NamedTuple):
    """An object by two URLs, which differ in the signature. No other has this `begin` and `query`."""

    url: str
    same: str
    begin: str
    query: str


@st.composite
def objects(draw: st.DrawFn) -> Object:
    host, signature = draw(st.sampled_from([("h", ""), ("g", ""), *SIGNATURES]))
    parts = [f"{name}={value}" for name, value in draw(others) if f"{name}=".lower() not in f"&{signature}".lower()]
    begin, query = f"http://{draw(users)}{host}/{draw(paths)}", "&".join(parts)
    urls = ["?".join(filter(None, [begin, "&".join(filter(None, [query, signature.format(n=n)]))])) for n in (1, 2)]
    return Object(urls[0], urls[1], begin, query)


class Fake:
    """A store of one URL. `contents` has the bytes of each; all have the same size, and the same mark or none."""

    contents: ClassVar[dict[str, bytes]] = {}
    token = ""

    def __init__(self, root: str, user: str, storage: Any) -> None:
        self._begin = root, user

    def find(self, key: str) -> StoredObject:
        return StoredObject(key, len(self._content(key)), Fake.token)

    def read(self, stored: StoredObject, start: int, stop: int) -> bytes:
        return self._content(stored.key)[start:stop]

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        raise NotImplementedError

    def _content(self, key: str) -> bytes:
        return Fake.contents[str((*self._begin, key))]


def served(found: list[Object], make: Any) -> list[bytes]:
    """Lets each object have other content, and returns it."""
    contents = [make(number) for number in range(len(found))]
    Fake.contents = {
        str((root, user, key)): content
        for each, content in zip(found, contents, strict=True)
        for root, key, user in map(store.split, each[:2])
    }
    return contents


numbers = count(1)


@pytest.fixture(scope="module", autouse=True)
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all examples: what one of them leaves there must not answer for another."""
    folder = tmp_path_factory.mktemp("cache")
    with mock.patch.dict(os.environ, PENSTOCK_CACHE=str(folder)), mock.patch.object(store, "_connect", Fake):
        yield folder


def lines(number: int) -> bytes:
    """Six bytes. Where the lines begin differs, so that the index of another file would cut them elsewhere."""
    text = bytearray(b"abcde\n")
    text[number % 5] = ord("\n")
    return bytes(text[:-1].replace(b"a", b"%d" % (number % 10))) + b"\n"


different = st.lists(objects(), min_size=1, max_size=3, unique_by=lambda each: each[2:])


@settings(deadline=None, max_examples=50)
@given(found=different, marked=st.booleans())
def test_each_url_has_its_own_lines(found: list[Object], marked: bool) -> None:
    Fake.token = f"mark {next(numbers)}" if marked else ""
    expected = [content.decode().removesuffix("\n").split("\n") for content in served(found, lines)]
    for each, its in zip(found, expected, strict=True):
        assert list(TextLines([each.url, each.same])) == its  # two signatures, one file
    together = TextLines([each.url for each in found])  # from the indexes and pieces that are kept, if any
    assert sorted(together) == sorted(line for its in expected for line in its)
    assert list(TextLines([each.same for each in found])) == list(together)


@settings(deadline=None, max_examples=20)
@given(each=objects())
def test_without_a_mark_content_of_the_same_size_is_read_anew(each: Object) -> None:
    Fake.token = ""
    for number in range(3):
        (content,) = served([each], lambda _, number=number: lines(number))
        assert list(TextLines(each.url)) == content.decode().removesuffix("\n").split("\n")


def test_without_a_mark_nothing_is_written(stores: Path) -> None:
    def kept() -> set[Path]:
        return {path for path in stores.rglob("*") if path.is_file() and path.stat().st_size}

    Fake.token, before = "", kept()
    served([Object("http://h/left", "http://h/left", "", "")], lines)
    assert len(TextLines("http://h/left")) == 2
    assert kept() == before


def test_what_an_older_penstock_has_kept_without_a_mark_is_not_used() -> None:
    left = Object("http://h/old", "http://h/old", "", "")
    Fake.token = ""
    served([left], lambda _: lines(1))
    with mock.patch.object(Identity, "lasts", True):
        assert len(TextLines(left.url)) == 2
    (content,) = served([left], lambda _: lines(3))
    assert list(TextLines(left.url)) == content.decode().removesuffix("\n").split("\n")


def table(number: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [number, number + 1]}), sink)
    return sink.getvalue()


@settings(deadline=None, max_examples=20)
@given(found=different)
def test_each_table_has_its_own_shared_blocks(found: list[Object]) -> None:
    Fake.token = f"mark {next(numbers)}"
    served(found, table)
    tables = [Parquet(each.url) for each in found]
    assert [data[0]["x"] for data in tables] == list(range(len(found)))
    assert len({data._identity() for data in tables}) == len(found)
    assert [Parquet(each.same)._identity() for each in found] == [data._identity() for data in tables]


def test_without_a_mark_no_block_is_shared() -> None:
    Fake.token = ""
    served([Object("http://h/table", "http://h/table", "", "")], table)
    data = Parquet("http://h/table")
    in_worker = mock.patch.object(_table, "is_worker_process", return_value=True)
    with in_worker, mock.patch.object(_table, "Shared") as shared:
        assert data[0]["x"] == 0
    shared.assert_not_called()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"endpoint": "http://a"}, {"endpoint": "http://b"}),
        ({"endpoint_url": "http://a"}, {"endpoint_url": "http://b"}),
        ({"client_kwargs": {"endpoint_url": "http://a"}}, {"client_kwargs": {"endpoint_url": "http://b"}}),
        ({"account_name": "a"}, {"account_name": "b"}),
        ({}, {"endpoint": "http://b"}),
    ],
)
def test_buckets_of_two_servers_are_two(one: dict[str, Any], other: dict[str, Any]) -> None:
    found = [store.Remote("s3://bucket", "", {**each, "secret_access_key": key}).identity("x")
             for each in (one, other) for key in ("one", "two")]  # fmt: skip
    assert found[0] == found[1] != found[2] == found[3]


def test_the_server_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.Remote("s3://bucket", "", {}).identity("x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert store.Remote("s3://bucket", "", {}).identity("x") != before
    assert store.Remote("gs://bucket", "", {}).identity("x") == "gs://bucket/x"
