"""Datasets made of others: their names, errors, and what is kept of a filter."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import DataLoader, Dataset
from penstock.formats import JsonLines
from penstock.source._nested import fingerprint_of


class Notes(Dataset[int]):
    """A dataset with methods of its own by these names."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> int:
        return key

    map = 7  # type: ignore[assignment]

    def shuffle(self) -> str:  # type: ignore[override]
        return "mine"


def long_enough(sample: Any) -> bool:
    return sample["id"] >= 3


def tokenize(sample: Any) -> int:
    if sample["id"] == 5:
        raise ValueError("no tokens")
    return int(sample["id"])


def inside_out(sample: Any) -> Any:
    return sample


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    for name in "ab":
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"id": at}) + "\n" for at in range(8)))
    return penstock.open([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])


def test_the_repr_shows_the_chain(lines: Any) -> None:
    name = repr(lines)
    chain = lines.filter(long_enough).map(tokenize)
    assert repr(chain) == f"{name}.filter(long_enough).map(tokenize)"
    assert repr(lines[2:5].repeat(3).shuffle(7)) == f"{name}[2:5].repeat(3).shuffle(7)"
    assert repr(lines.select([1, 2]).with_lengths([5, 6]).repeat()) == (
        f"{name}.select(2 keys).with_lengths(array).repeat()"
    )
    assert repr(penstock.dataset([1, 2]).concat([3]).zip(range(3))) == (
        "list(2 samples).concat(list(1 sample)).zip(range(0, 3))"
    )


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "backend": "thread"}])
def test_an_error_names_the_stage_and_the_key_of_the_innermost_dataset(lines: Any, options: Any) -> None:
    data = lines.filter(long_enough).map(inside_out).map(tokenize).map(inside_out)
    with pytest.raises(ValueError, match="no tokens") as caught, DataLoader(data, batch_size=2, **options) as loader:
        list(loader)
    stage, where = caught.value.__notes__
    assert stage == f"In .map(tokenize), of sample 5 of {lines!r}."
    assert where.startswith("In sample 2 (row 0), step 1 of epoch 0")


def test_an_exception_object_that_is_raised_again_does_not_gather_notes() -> None:
    error = ValueError("the same")

    def broken(sample: int) -> int:
        raise error

    data = penstock.dataset([1, 2]).map(broken)
    for key in (0, 1):
        with pytest.raises(ValueError, match="the same") as caught:
            data[key]
        assert caught.value.__notes__ == [f"In .map(broken), of sample {key} of list(2 samples)."]
        assert caught.traceback[-1].name == "broken"
    assert not hasattr(error, "__notes__")


def test_an_error_in_a_filter_names_the_stage() -> None:
    with pytest.raises(TypeError, match="int") as caught:
        penstock.dataset(["a", 1]).filter(len)
    assert caught.value.__notes__[0] == "In .filter(len), of sample 1 of list(2 samples)."


class Counted(JsonLines):
    read = 0

    def sample(self, row: int) -> Any:
        type(self).read += 1
        return super().sample(row)

    def samples(self, keys: Any, rows: Any) -> Any:
        type(self).read += len(keys)
        return super().samples(keys, rows)


def test_a_filter_of_files_is_kept_until_the_files_or_the_function_change(lines: Any, tmp_path: Path) -> None:
    def kept(predicate: Any) -> int:
        Counted.read = 0
        found = Counted(lines.paths).filter(predicate)
        assert [sample["id"] for sample in found][:1] == [3]
        return Counted.read - len(found)

    assert kept(long_enough) == 16
    assert kept(long_enough) == 0
    assert kept(lambda sample: 3 <= sample["id"] < 7) == 16
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"id": 7 - at}) + "\n" for at in range(8)))
    assert kept(long_enough) == 16


def test_lengths_are_measured_when_they_are_needed() -> None:
    called = []

    def measured(sample: str) -> int:
        called.append(sample)
        return len(sample)

    data = penstock.dataset(["a", "bcd", "ef"]).with_lengths(measured)
    chosen = data.select([2, 0]).repeat(2)
    assert not called
    assert chosen.__lengths__().tolist() == [2, 1, 2, 1]
    assert not hasattr(data.map(str.upper), "__lengths__")
    assert data.map(str.upper, keeps_lengths=True).__lengths__().tolist() == [1, 3, 2]
    assert called == ["a", "bcd", "ef"]
    for wrong in ([1, 2], [1.5, 2, 3], [1, -2, 3]):
        with pytest.raises((TypeError, ValueError)):
            data.with_lengths(wrong)


def test_a_shuffled_dataset_is_sent_as_two_numbers() -> None:
    class Huge(Dataset[int]):
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, key: int) -> int:
            return key

    data = Huge().shuffle(1).shuffle(2)[5:]
    assert len(pickle.dumps(data.indices)) < 200
    assert len(data) == 10**12 - 5
    assert 0 <= data[10**11] < 10**12


def test_a_dataset_keeps_names_of_its_own() -> None:
    assert Notes().map == 7
    assert Notes().shuffle() == "mine"  # type: ignore[call-arg]
    assert list(Notes().select([2])) == [2]


def test_dataset_takes_anything(lines: Any) -> None:
    assert penstock.dataset(lines) is lines
    assert isinstance(penstock.dataset(np.arange(3)), penstock.ArrayDataset)
    assert list(penstock.dataset(x for x in "ab").map(str.upper)) == ["A", "B"]
    for wrong in (Path("a"), Notes, 5):
        with pytest.raises(TypeError, match=r"penstock\.dataset takes a dataset"):
            penstock.dataset(wrong)


def test_a_fingerprint_goes_through_every_stage(lines: Any) -> None:
    plain = fingerprint_of(lines)
    assert plain is not None
    assert fingerprint_of(lines.select([1]).map(len).repeat(2).with_lengths([1, 1])) == plain
    assert fingerprint_of(lines.shuffle(1)) != fingerprint_of(lines.shuffle(2))
    assert fingerprint_of(lines.zip(range(16))) not in (None, plain)


def test_what_does_not_end_says_so() -> None:
    endless = penstock.dataset("abc").repeat()
    assert (endless.endless, endless.map(str.upper).endless, endless[10**15]) == (True, True, "b")
    for wrong in (lambda: len(endless), lambda: endless.shuffle(1), lambda: endless.filter(len)):
        with pytest.raises(TypeError, match="has no end"):
            wrong()
    with pytest.raises(ValueError, match="has no samples"):
        penstock.dataset([]).repeat()
    for times in (-1, 1.5, True):
        with pytest.raises(ValueError, match="times must be"):
            penstock.dataset("abc").repeat(times)  # type: ignore[arg-type]


def test_a_subclass_of_a_stage_that_redefines_getitem_is_asked_one_by_one() -> None:
    from penstock.source._stages import MappedDataset, SameKeys

    class Negative(SameKeys[int]):
        def __getitem__(self, key: int) -> Any:
            return -super().__getitem__(key)

    inner = penstock.ArrayDataset(np.arange(4))
    assert [batch.tolist() for batch in DataLoader(Negative(inner), batch_size=4)] == [[0, -1, -2, -3]]
    assert MappedDataset.__gather__ is None


def test_a_zip_by_name_names_all() -> None:
    data = penstock.dataset("ab")
    assert data.zip(letter=data, number=[1, 2])[1] == {"letter": "b", "number": 2}
    with pytest.raises(ValueError, match="this one too"):
        data.zip(number=[1, 2])
    gathered = penstock.ArrayDataset(np.arange(4)).zip(penstock.ArrayDataset(np.arange(4) * 2.5))
    (batch,) = DataLoader(gathered, batch_size=4, dtype={"0": "int32", "1": "float32"})
    assert [(column.dtype.name, column.tolist()) for column in batch] == [
        ("int32", [0, 1, 2, 3]),
        ("float32", [0, 2.5, 5, 7.5]),
    ]
