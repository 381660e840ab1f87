"""What a resume state knows of the files: other files are refused, and the same ones, wherever they are, are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pictures import encoded, picture

import penstock
from penstock import ConcatDataset, DataLoader, StateError, Subset
from penstock.formats import Arrow, JsonLines, Parquet, TextLines, Tokens
from penstock.image import ImageFolder
from penstock.source._nested import fingerprint_of


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def parquet(folder: Path, first: int = 0) -> Any:
    for number in range(2):
        values = range(first + 10 * number, first + 10 * number + 10)
        pa.parquet.write_table(pa.table({"x": values}), folder / f"{number}.parquet")
    return Parquet(folder)


def lines(folder: Path, first: int = 0) -> Any:
    texts = [str(number) for number in range(20)]
    if first:
        texts = texts[::-1]  # of the same size
    (folder / "some.txt").write_text("".join(f"{text}\n" for text in texts))
    return TextLines(folder)


def tokens(folder: Path, first: int = 0) -> Any:
    np.arange(200 + first % 7, dtype=np.uint16).tofile(folder / "some.bin")  # as many samples, and an end
    return Tokens(folder / "some.bin", "uint16", 10)


def images(folder: Path, first: int = 0) -> Any:
    for number in range(20):
        path = folder / "class" / f"{number + first}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(picture(4, 4), "PNG"))
    return ImageFolder(folder)


def other_tokens(folder: Path, first: int = 0) -> Any:
    np.arange(first, first + 200, dtype=np.uint16).tofile(folder / "some.bin")  # of the same size
    return Tokens(folder / "some.bin", "uint16", 10)


Make = Callable[..., Any]
KINDS = [parquet, lines, tokens, other_tokens, images]


def begun(data: Any, **settings: Any) -> dict[str, Any]:
    """A state of the middle of an epoch."""
    loader = DataLoader(data, batch_size=4, shuffle=True, seed=0, **settings)
    next(iter(loader))
    return loader.state_dict()


def loaded(data: Any, state: dict[str, Any]) -> None:
    DataLoader(data, batch_size=4, shuffle=True, seed=0).load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_fits_a_copy_of_the_files_anywhere(tmp_path: Path, kind: Make) -> None:
    (tmp_path / "one").mkdir()
    state = begun(kind(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "elsewhere" / "two")  # with other times
    shutil.rmtree(tmp_path / "one")
    data = penstock.open(tmp_path / "elsewhere" / "two") if kind not in (tokens, other_tokens) else None
    loaded(data or Tokens(tmp_path / "elsewhere" / "two" / "some.bin", "uint16", 10), state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_of_other_files_with_as_many_samples_is_refused(tmp_path: Path, kind: Make, wrapped: bool) -> None:
    def outer(data: Any) -> Any:
        return ConcatDataset([Subset(data, range(8)), [0] * 8]) if wrapped else data

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    state = begun(outer(kind(tmp_path / "one")), collate_fn=list)
    other = outer(kind(tmp_path / "two", first=100))
    with pytest.raises(StateError, match=r"taken with other files\. Then: .*\. Here: .*\. The same") as raised:
        loaded(other, state)
    assert 'remove state["about"]["files"]' in str(raised.value)
    del state["about"]["files"]  # as in a state of an older penstock, or if the caller knows better
    loaded(other, state)


def test_files_that_are_swapped_are_other_files(tmp_path: Path) -> None:
    state = begun(parquet(tmp_path))
    (tmp_path / "0.parquet").rename(tmp_path / "2.parquet")
    with pytest.raises(StateError, match="taken with other files"):
        loaded(Parquet(tmp_path), state)


def test_the_same_samples_in_memory_continue(tmp_path: Path) -> None:
    data = parquet(tmp_path)
    state = begun(data)
    loaded(Arrow(pa.parquet.read_table(tmp_path)), state)
    assert begun(np.arange(20))["about"]["files"] is None


def test_a_fingerprint_of_the_users_is_used(tmp_path: Path) -> None:
    class Own(penstock.Dataset[int]):
        version = "1"

        def __len__(self) -> int:
            return 8

        def __getitem__(self, key: int) -> int:
            return key

        def __fingerprint__(self) -> str:
            return f"version {self.version}"

    state = begun(Own())
    Own.version = "2"
    with pytest.raises(StateError, match=r"Then: version 1\. Here: version 2\."):
        loaded(Own(), state)
    assert fingerprint_of(ConcatDataset([Own(), Own()])) != fingerprint_of(ConcatDataset([Own(), [1]]))


# What a key is.


def test_a_slice_is_a_subset(tmp_path: Path) -> None:
    data = parquet(tmp_path)
    some = data[2:15:5]
    assert isinstance(some, Subset)
    assert [sample["x"] for sample in some] == [2, 7, 12]
    assert [sample["x"] for sample in data[-2:]] == [18, 19]
    assert len(data[5:2]) == 0
    with DataLoader(data[:6], batch_size=3) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("x", r"an int from 0 to 19.* If 'x' is a field, it is data\[0\]\['x'\] .* columns=\[\.\.\.\]"),
        ([1, 2], r"For several keys use data\.select\(keys\); got \[1, 2\], of type list"),
        (1.0, r"got 1\.0, of type float"),
    ],
)
def test_what_is_no_key_is_told_what_is(tmp_path: Path, key: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        parquet(tmp_path)[key]


def test_only_tables_have_columns_to_name(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(TypeError, match=r"data\[0\]\['id'\] of the first sample; got 'id', of type str"):
        JsonLines(tmp_path)["id"]
