"""Tables in files: the same stream on every backend, and damage that is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from same import same

from penstock import DataLoader
from penstock.errors import FormatError
from penstock.formats import Arrow, Parquet
from penstock.testing import assert_resumes_everywhere

N = 23


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same rows as Parquet, as an Arrow file that is mapped, as one that is compressed, and in memory."""
    folder = tmp_path_factory.mktemp("tables")
    data = pa.table(
        {
            "ids": pa.array(np.arange(N * 300, dtype=np.int32).reshape(N, 300).tolist(), pa.list_(pa.int32())),
            "x": np.arange(N, dtype=np.float32) / 3,
            "text": [f"row {key}" for key in range(N)],
        }
    )
    for at, part in enumerate((data.slice(0, 9), data.slice(9))):
        pa.parquet.write_table(part, folder / f"{at}.parquet", row_group_size=4)
    for name, compression in (("mapped", None), ("packed", "zstd")):
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_file(folder / f"{name}.arrow", data.schema, options=options) as writer:
            writer.write_table(data, max_chunksize=4)
    return {
        "parquet": Parquet(folder),
        "mapped": Arrow(folder / "mapped.arrow"),
        "packed": Arrow(folder / "packed.arrow", keep=0),
        "memory": Arrow(data),
    }


def expected(key: int) -> dict[str, Any]:
    return {
        "ids": np.arange(300 * key, 300 * key + 300, dtype=np.int32),
        "x": np.float32(key) / np.float32(3),
        "text": f"row {key}",
    }


@pytest.mark.parametrize("name", ["parquet", "mapped", "packed", "memory"])
def test_every_backend_gives_the_same_batches(make: Any, datasets: dict[str, Any], name: str) -> None:
    loader = make(datasets[name], batch_size=5, shuffle=True, seed=4)
    plain = DataLoader([expected(key) for key in range(N)], batch_size=5, shuffle=True, seed=4)
    for _ in range(2):
        assert same(list(loader), list(plain))


def test_files_whose_types_give_the_same_values_may_be_mixed(make: Any, tmp_path: Path) -> None:
    n = np.arange(4)
    required = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.large_string())])
    for name, data in {
        "a": pa.table({"n": n, "text": list("abcd")}),
        "b": pa.table({"n": n, "text": list("abcd")}, schema=required),
        "c": pa.table({"text": pa.array(list("abcd")).dictionary_encode(), "n": n}),
    }.items():
        pa.parquet.write_table(data, tmp_path / f"{name}.parquet")
    expected = 3 * [{"text": list("abcd"), "n": n}]
    assert same(list(make(Parquet(tmp_path, ["text", "n"]), batch_size=4)), expected)


def test_columns_of_a_compressed_arrow_file_are_chosen_in_any_order(make: Any, datasets: dict[str, Any]) -> None:
    (path,) = datasets["packed"].paths
    batches = list(make(Arrow(path, ["x", "ids"]), batch_size=N))
    assert same(batches, [{name: np.array([expected(key)[name] for key in range(N)]) for name in ("x", "ids")}])


@pytest.mark.parametrize("name", ["parquet", "mapped"])
def test_a_loader_resumes_anywhere(datasets: dict[str, Any], name: str) -> None:
    settings = [{"num_workers": 0}, {"num_workers": 2, "multiprocessing_context": "fork"}]

    def made(**kwargs: Any) -> DataLoader[Any]:
        return DataLoader(datasets[name], 5, shuffle=True, seed=4, **kwargs)

    assert_resumes_everywhere(made, settings)


def test_each_rank_has_its_own_batches(make: Any, datasets: dict[str, Any]) -> None:
    rows = [expected(key) for key in range(N)]
    for rank in range(2):
        settings = {"batch_size": 4, "shuffle": True, "seed": 1, "shard": (rank, 2)}
        assert same(list(make(datasets["parquet"], **settings)), list(DataLoader(rows, **settings)))


def test_damage_is_named_or_skipped(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    data = pa.table({"key": np.arange(12)})
    pa.parquet.write_table(data, path, row_group_size=3, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    column = pa.parquet.read_metadata(path).row_group(1).column(0)
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 255
    path.write_bytes(content)

    loader = make(Parquet(path), batch_size=4, on_error="skip")
    assert [key for batch in loader for key in batch["key"].tolist()] == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert [(key, type(error)) for key, error in loader.skipped] == [(key, FormatError) for key in (3, 4, 5)]
    with pytest.raises(FormatError, match=r"some\.parquet, row group 1 cannot be read") as raised:
        list(make(Parquet(path), batch_size=4))
    assert "step 0 of epoch 0" in raised.value.__notes__[0]
