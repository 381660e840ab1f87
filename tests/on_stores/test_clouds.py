"""Buckets by the protocols of S3 (moto), Azure (Azurite) and Google (a stand-in): listing, signing, ETags."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from remote.serving import breaking

import penstock
from on_stores.clouds import Place, s3_place, strict
from penstock import cli
from penstock._remote.listing import listed
from penstock._remote.store import remotes
from penstock.errors import FormatError, RemoteError, RemoteFileNotFound
from penstock.formats import JsonLines, Parquet, Tokens


@pytest.fixture
def files(place: Place) -> Place:
    for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/.hidden.jsonl", "notes.txt", "ä b+%.jsonl"):
        place.store().put(f"lines/{name}", json.dumps(name).encode())
    return place


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("lines", ["a.jsonl", "b.jsonl", "deep/c.jsonl", "ä b+%.jsonl"]),
        ("lines/", ["a.jsonl", "b.jsonl", "deep/c.jsonl", "ä b+%.jsonl"]),
        ("lines/[a-z]*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("li*/deep/*", ["deep/c.jsonl"]),
        ("li*/**/*.jsonl", ["a.jsonl", "b.jsonl", "deep/c.jsonl", "ä b+%.jsonl"]),
        ("lines/b.jsonl", ["b.jsonl"]),
        ("lines/ä b+%.jsonl", ["ä b+%.jsonl"]),
    ],
)
def test_a_url_means_a_file_a_folder_or_a_pattern(files: Place, path: str, names: list[str]) -> None:
    data = JsonLines(f"{files.url}/{path}", storage=files.storage)
    assert data.paths == [f"{files.url}/lines/{name}" for name in names]
    assert list(data) == names


def test_a_listing_of_several_pages_is_whole(place: Place) -> None:
    names = [f"many/part-{number:05}.txt" for number in range(5200)]  # a page of Azure has 5,000 names
    store = place.store()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, b"x"), names))
    ((remote, key),) = remotes([f"{place.url}/many"], place.storage)
    found = [each for objects in listed(remote, key) for each in objects]
    assert sorted(each.key for each in found) == names
    assert {each.size for each in found} == {1} and all(each.token for each in found)


def test_parquet_through_broken_answers_equals_the_local_batches(place: Place, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    for part in range(3):
        table = pa.table({"ids": list(rng.integers(0, 9, (2000, 8))), "x": rng.random(2000)})
        pa.parquet.write_table(table, tmp_path / f"{part}.parquet", row_group_size=100)
        place.store().put(f"table/{part}.parquet", (tmp_path / f"{part}.parquet").read_bytes())
    settings = {"batch_size": 64, "shuffle": True, "seed": 1}
    expected = list(penstock.DataLoader(Parquet(tmp_path), **settings))
    with breaking(place.host, seed=5, share=0.2) as proxy:
        data = Parquet(f"{place.url}/table/*.parquet", storage=place.via(proxy.url))
        with penstock.DataLoader(data, num_workers=2, **settings) as loader:
            for batch, wanted in zip(loader, expected, strict=True):
                assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)
        assert proxy.faults


def test_an_object_that_is_written_again_is_an_error(place: Place) -> None:
    place.store().put("ids.bin", bytes(1000))
    data = Tokens(f"{place.url}/ids.bin", "uint16", 10, storage=place.storage)
    place.store().put("ids.bin", bytes(999) + b"1")
    with pytest.raises(FormatError, match=rf"{place.url}/ids\.bin has changed since the dataset was made"):
        data[0]


def test_an_object_that_is_not_there_is_named(place: Place) -> None:
    with pytest.raises(FileNotFoundError, match=rf"there is no file '{place.url}/none', and no file below it ends"):
        JsonLines(f"{place.url}/none", storage=place.storage)
    ((remote, key),) = remotes([f"{place.url}/none"], place.storage)
    with pytest.raises(RemoteFileNotFound, match=rf"{place.url}/none cannot be found: the server answered 404"):
        remote.find(key)


def test_a_bucket_that_is_not_there_is_an_error(place: Place) -> None:
    with pytest.raises((RemoteError, FileNotFoundError), match=r"://nobucket/x\.jsonl"):
        JsonLines(f"{place.url.partition('://')[0]}://nobucket/x.jsonl", storage=place.storage)


def test_wrong_credentials_are_refused_at_once(files: Place) -> None:
    storage = {files.endpoint: files.server, **files.wrong}
    with ExitStack() as stack:
        if files.url.startswith("s3"):
            stack.enter_context(strict(files.server))
        for path in ("lines/a.jsonl", "lines/*.jsonl", "lines/"):
            with pytest.raises(RemoteError, match=r"answered 40[13] .*tried once\. Check the credentials"):
                JsonLines(f"{files.url}/{path}", storage=storage)


def test_credentials_are_found_in_the_environment(files: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in files.environment.items():
        monkeypatch.setenv(name, value)
    assert list(JsonLines(f"{files.url}/lines/a.jsonl", storage={files.endpoint: files.server})) == ["a.jsonl"]


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_a_program_for_minio_runs_with_its_variables(
    moto: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = s3_place(moto)
    place.store().put("lines/a.jsonl", b"1\n2\n")
    for name, value in {**place.environment, variable: moto, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    with penstock.DataLoader(penstock.open("s3://bucket/lines/a.jsonl"), batch_size=2, num_workers=2) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 2]]
    monkeypatch.delenv(variable)
    assert cli.main(["inspect", "s3://bucket/lines/a.jsonl", "--storage", f"endpoint_url={moto}"]) == 0
    assert "JsonLines: 2 samples" in capsys.readouterr().out


def test_public_data_needs_no_credentials(place: Place) -> None:
    data = JsonLines(f"{place.public}/*.jsonl", storage=place.anybody)
    assert [int(each) for each in data] == [1, 2]


def test_two_servers_with_a_bucket_of_one_name_are_not_confused(place: Place) -> None:
    one, other = (remotes([f"{place.url}/x"], storage)[0][0] for storage in (place.storage, place.via("http://h")))
    assert one.identity("x") != other.identity("x")
