"""S3's protocol, by moto's server: listing, signing, ETags."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from remote.serving import breaking

import penstock
from on_stores.conftest import bucket_of
from penstock._remote.listing import listed
from penstock._remote.store import remotes
from penstock.errors import FormatError, RemoteError
from penstock.formats import JsonLines, Parquet, Tokens


@pytest.fixture
def files(s3: str) -> str:
    for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/.hidden.jsonl", "notes.txt"):
        bucket_of(s3).put(f"lines/{name}", json.dumps(name).encode())
    return s3


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("s3://bucket/lines", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
        ("s3://bucket/lines/", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
        ("s3://bucket/lines/*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("s3://bucket/li*/deep/*", ["deep/c.jsonl"]),
        ("s3://bucket/**/*.jsonl", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
        ("s3://bucket/lines/b.jsonl", ["b.jsonl"]),
    ],
)
def test_a_url_means_a_file_a_folder_or_a_pattern(files: str, url: str, names: list[str]) -> None:
    data = JsonLines(url, storage={"endpoint": files})
    assert data.paths == [f"s3://bucket/lines/{name}" for name in names]
    assert list(data) == names


def test_a_bucket_of_3000_objects_is_listed_as_a_whole(s3: str) -> None:
    names, bucket = [f"many/part-{number:05}.txt" for number in range(3000)], bucket_of(s3)
    for name in names:
        bucket.put(name, b"x")
    ((remote, key),) = remotes(["s3://bucket/many"], {"endpoint": s3})
    found = [each for objects in listed(remote, key) for each in objects]
    assert sorted(each.key for each in found) == names
    assert {each.size for each in found} == {1} and all(each.token for each in found)


def test_parquet_through_broken_answers_equals_the_local_batches(s3: str, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    for part in range(3):
        table = pa.table({"ids": list(rng.integers(0, 9, (2000, 8))), "x": rng.random(2000)})
        pa.parquet.write_table(table, tmp_path / f"{part}.parquet", row_group_size=100)
        bucket_of(s3).put(f"table/{part}.parquet", (tmp_path / f"{part}.parquet").read_bytes())
    settings = {"batch_size": 64, "shuffle": True, "seed": 1}
    expected = list(penstock.DataLoader(Parquet(tmp_path), **settings))
    with breaking(s3, seed=5, share=0.2) as proxy:
        data = Parquet("s3://bucket/table/*.parquet", storage={"endpoint": proxy.url})
        with penstock.DataLoader(data, num_workers=2, **settings) as loader:
            for batch, wanted in zip(loader, expected, strict=True):
                assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)
        assert proxy.faults


def test_an_object_that_is_written_again_is_an_error(s3: str) -> None:
    bucket_of(s3).put("ids.bin", bytes(1000))
    data = Tokens("s3://bucket/ids.bin", "uint16", 10, storage={"endpoint": s3})
    bucket_of(s3).put("ids.bin", bytes(999) + b"1")
    with pytest.raises(FormatError, match=r"s3://bucket/ids\.bin has changed since the dataset was made"):
        data[0]


def test_a_bucket_that_is_not_there_is_an_error_without_credentials(s3: str) -> None:
    with pytest.raises((RemoteError, FileNotFoundError)) as raised:
        JsonLines("s3://nobucket/x.jsonl", storage={"endpoint": s3})
    assert "s3://nobucket/x.jsonl" in str(raised.value) and "planted" not in str(raised.value)
