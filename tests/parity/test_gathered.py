"""Datasets that gather: penstock.torch calls `__gather__`, and the batches are torch's, to the bit."""

from __future__ import annotations

import collections
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as their_rules

import penstock
from parity.compare import difference
from parity.pair import Ours, Tape, Theirs, both, epoch, forget_frames, take
from penstock.formats import Arrow, HuggingFace, Parquet, Tokens
from penstock.torch import _gather
from penstock.torch._gather import TensorGather

N = 12

CODES = "?bhilqBHILQefdgFDG"  # all of numpy's numbers
COLUMNS: dict[str, Any] = {
    **{f"scalars of {code}": np.arange(N).astype(code) for code in CODES},
    **{f"rows of {code}": np.arange(N * 6).reshape(N, 2, 3).astype(code) for code in CODES},
    "text": np.array([f"word {key}" for key in range(N)]),
    "bytes": np.array([b"%d" % key for key in range(N)]),
    "rows of text": np.array([["a", f"b{key}"] for key in range(N)]),
    "dates": np.arange(N).astype("M8[D]"),
    "rows of dates": np.arange(2 * N).reshape(N, 2).astype("M8[s]"),
    "durations": np.arange(N).astype("m8[ms]"),
    "records": np.array([(key, 0.5) for key in range(N)], [("a", "i4"), ("b", "f8")]),
    "rows of records": np.array([[(key, 0.5)] for key in range(N)], [("a", "i4"), ("b", "f8")]),
    "raw": np.arange(N, dtype=np.int32).view("V4"),
    "scalars of the other byte order": np.arange(N, dtype=">i4"),
    "rows of the other byte order": np.arange(2 * N).reshape(N, 2).astype(">f8"),
    "empty rows": np.zeros((N, 0, 3), np.float32),
    "rows of one": np.arange(N, dtype=np.int16).reshape(N, 1),
    "columns in Fortran's order": np.asfortranarray(np.arange(N * 6).reshape(N, 2, 3)),
    "axes exchanged": np.arange(N * 24).reshape(N, 2, 3, 4).transpose(0, 3, 1, 2),
    "axes exchanged in clips": np.arange(N * 48).reshape(N, 2, 2, 3, 4).transpose(0, 1, 4, 2, 3),
    "every second": np.arange(N * 8).reshape(N, 8)[:, ::2],
    "reversed rows": np.arange(N)[::-1],
    "reversed inside": np.arange(N * 3).reshape(N, 3)[:, ::-1],
    "reversed rows of one": np.arange(N * 3).reshape(N, 3)[:, 2:1:-1],
    "repeated": np.broadcast_to(np.arange(3.0), (N, 3)),
    "steps that are no multiple": np.zeros((N, 3), [("x", "i1"), ("y", "f4")])["y"],
    "scalars that are not aligned": np.zeros(N, [("x", "i1"), ("y", "f4")])["y"],
    "cannot be written": np.frombuffer(bytes(range(4 * N)), np.int32).reshape(N, 1),
    "nan and minus zero": np.array([[np.nan, -0.0], [np.inf, 1.0]] * (N // 2)),
}
if hasattr(np.dtypes, "StringDType"):
    COLUMNS["text of any length"] = np.array(["a" * key for key in range(N)], np.dtypes.StringDType())


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch of this process was gathered."""
    found: list[bool] = []
    real = TensorGather.__call__

    def call(self: TensorGather, keys: Any, empty: Any) -> Any:
        batch = real(self, keys, empty)
        found.append(batch is not None)
        return batch

    monkeypatch.setattr(TensorGather, "__call__", call)
    return found


def seen(loader: Any) -> list[Any]:
    """The batches, and the errors in their places."""
    found, batches = [], iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error), str(error)))
            return found
        found.append((batch, strides(batch)))


def strides(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.stride(), batch.storage_offset(), batch.is_contiguous()
    if isinstance(batch, dict):
        return list(map(strides, batch.values()))
    return list(map(strides, batch)) if isinstance(batch, (list, tuple)) else None


def agrees(dataset: Any, **options: Any) -> list[Any]:
    """With a seed and without workers, the batches are torch's, or the error is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays that cannot be written
        found, expected = seen(Ours(dataset, seed=0, **options)), seen(Theirs(dataset, **options))
    assert (problem := difference(found, expected)) is None, problem
    return found


@pytest.mark.deep
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("form", ["rows", "tuples", "dicts"])
def test_a_column_of_every_dtype(name: str, form: str) -> None:
    column, numbers = COLUMNS[name], np.arange(N)
    given = {"rows": ((column,), {}), "tuples": ((numbers, column), {}), "dicts": ((), {"x": column, "n": numbers})}
    arrays, named = given[form]
    dataset = penstock.ArrayDataset(*arrays, **named)
    agrees(dataset, batch_size=5)

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(dataset, batch_size=5, num_workers=1), tape)

    both(program)


def tables() -> dict[str, Any]:
    rows = range(N)
    return {
        "int32": pa.array(rows, pa.int32()),
        "uint16": pa.array(rows, pa.uint16()),
        "float": pa.array([0.5 * row for row in rows], pa.float32()),
        "bool": pa.array([row % 3 == 0 for row in rows]),
        "text": pa.array([f"word {row}" for row in rows]),
        "binary": pa.array([b"%d" % row for row in rows]),
        "lists": pa.array([[row, row + 1] for row in rows], pa.list_(pa.int16())),
        "fixed": pa.array([[0.5 * row] * 3 for row in rows], pa.list_(pa.float64(), 3)),
        "category": pa.array([f"kind {row % 2}" for row in rows]).dictionary_encode(),
    }


REFUSED: dict[str, Any] = {
    "uint64": pa.array(range(N), pa.uint64()),
    "date": pa.array(range(N), pa.date32()),
    "null": pa.array([None, *range(N - 1)]),
    "ragged": pa.array([[0] * (row % 2) for row in range(N)]),
    "struct": pa.array([{"a": row, "b": "x"} for row in range(N)]),
    "words": pa.array([["a", f"b{row}"] for row in range(N)]),
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    np.arange(N * 8 + 3, dtype=np.uint16).tofile(tmp_path / "ids.bin")
    for name, columns in {"plain": tables(), **{name: {name: one} for name, one in REFUSED.items()}}.items():
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=5)
        pa.feather.write_feather(pa.table(columns), tmp_path / f"{name}.arrow", compression="uncompressed")
    return {
        "tokens": Tokens(tmp_path / "ids.bin", "uint16", length=8),
        "tokens that overlap": Tokens(tmp_path / "ids.bin", "uint16", length=9, stride=8),
        "Parquet": Parquet(tmp_path / "plain.parquet"),
        "Arrow": Arrow(tmp_path / "plain.arrow"),
        "a table": Arrow(pa.table(tables())),
        "a Subset": penstock.Subset(Parquet(tmp_path / "plain.parquet"), np.array([3, 11, 0, 3, -1])),
        "a Subset by a list": penstock.Subset(penstock.ArrayDataset(x=COLUMNS["rows of f"]), [3, 1, 1, 0, 7]),
        "torch's Subset": torch.utils.data.Subset(penstock.ArrayDataset(COLUMNS["rows of f"]), [3, 1, 1, 0, 7]),
        "parts": penstock.Subset(penstock.Subset(Tokens(tmp_path / "ids.bin", "uint16", 8), range(2, 9)), [4, 0, 5]),
        **{f"Parquet of {name}": Parquet(tmp_path / f"{name}.parquet") for name in REFUSED},
    }


GATHERED = ["tokens", "tokens that overlap", "Parquet", "Arrow", "a table", "a Subset", "a Subset by a list", "parts"]
OTHERS = ["torch's Subset", *(f"Parquet of {name}" for name in REFUSED)]


@pytest.mark.parametrize("name", GATHERED + OTHERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_files_of_every_kind(files: dict[str, Any], name: str, workers: int) -> None:
    dataset = files[name]

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(dataset, batch_size=5, shuffle=True, num_workers=workers), tape)

    both(program)
    found = agrees(dataset, batch_size=5)
    if workers:
        seeded = Ours(dataset, batch_size=5, seed=0, num_workers=workers)
        if isinstance(found[-1][0], type):
            with pytest.raises(found[-1][0]):
                list(seeded)
        else:
            assert (problem := difference(seen(seeded), found)) is None, problem


@pytest.mark.parametrize("name", GATHERED)
def test_they_are_gathered(files: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(monkeypatch)
    batches = len(agrees(files[name], batch_size=5))
    assert found == [True] * batches


@pytest.mark.parametrize("name", OTHERS)
def test_they_are_not_gathered(files: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(monkeypatch)
    agrees(files[name], batch_size=5)
    assert set(found) == {False}


def test_workers_with_torchs_semantics_gather() -> None:
    """A dataset that has nothing else: its samples cannot be fetched by the workers."""
    loader = Ours(OnlyGathers(np.arange(N * 3).reshape(N, 3)), batch_size=4, num_workers=2)
    assert torch.cat(list(loader)).tolist() == np.arange(N * 3).reshape(N, 3).tolist()


class OnlyGathers(penstock.ArrayDataset):
    """The samples of whole batches raise; a single sample does not."""

    def __getitems__(self, keys: Any) -> Any:
        raise AssertionError("the samples were fetched")

    __gather__ = penstock.ArrayDataset.__gather__


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_array_is_collated_as_torch_does(data: st.DataObject) -> None:
    dtypes = st.one_of(hnp.scalar_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.floating_dtypes(endianness="?"))
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=4))
    columns = [data.draw(hnp.arrays(dtype, shape)) for dtype in data.draw(st.lists(dtypes, min_size=1, max_size=3))]
    cuts = [data.draw(hnp.basic_indices(shape[1:], allow_ellipsis=False)) for _ in columns] if shape[1:] else []
    for at, cut in enumerate(cuts):
        columns[at] = columns[at][(slice(None), *(cut if isinstance(cut, tuple) else (cut,)))]
    dataset = penstock.ArrayDataset(*columns)
    agrees(dataset, batch_size=data.draw(st.integers(1, 5)))


@pytest.mark.parametrize("dtype", ["int64", "float32", "bfloat16", {"x": "int64"}, {"x": "float16", "n": None}])
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("code", ["H", "L", "f"])
def test_dtype_converts_as_before(
    dtype: Any, seed: int | None, workers: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = penstock.ArrayDataset(x=np.arange(N * 2).reshape(N, 2).astype(code), n=np.arange(N, dtype=np.int8))
    options = {"batch_size": 5, "dtype": dtype, "seed": seed, "num_workers": workers}
    found = seen(Ours(dataset, **options))
    monkeypatch.setattr(_gather, "is_of_numpy", lambda gather: False)
    assert (problem := difference(found, seen(Ours(dataset, **options)))) is None, problem


@pytest.mark.parametrize("column", [np.arange(N) + 250, np.arange(N, dtype=np.uint64), np.array(["a"] * N)])
@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_dtype_are_as_before(column: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = penstock.ArrayDataset(x=column)

    def error() -> Any:
        with pytest.raises(Exception) as found:
            list(Ours(dataset, batch_size=5, seed=0, dtype={"x": "int8"}, num_workers=workers))
        notes = [re.sub(r"pid \d+", "pid", note) for note in found.value.__notes__]
        return type(found.value), str(found.value), notes

    gathered = error()
    monkeypatch.setattr(_gather, "is_of_numpy", lambda gather: False)
    assert gathered == error()


def test_torchs_generator_is_not_touched(files: dict[str, Any]) -> None:
    def init(worker: int) -> None:
        torch.manual_seed(worker)

    class Drawing(penstock.ArrayDataset):
        pass

    dataset = Drawing(np.arange(N))

    def program(loader_class: Any, tape: Tape) -> None:
        loader = loader_class(dataset, batch_size=5, num_workers=1, worker_init_fn=init, shuffle=True)
        epoch(loader, tape)
        tape.append(torch.get_rng_state())

    both(program)


def test_a_rule_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return 2 * torch.as_tensor(np.stack(batch))

    monkeypatch.setitem(their_rules.default_collate_fn_map, np.ndarray, doubled)
    (found,) = agrees(penstock.ArrayDataset(np.ones((3, 2))), batch_size=3)
    assert found[0].tolist() == [[2.0, 2.0]] * 3


def drawing(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.rand(len(batch)) + float(np.random.rand()) + random.random()


def test_a_rule_that_draws_gets_the_numbers_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators are not seeded for a gathered batch, but they are for a batch that is not gathered."""
    monkeypatch.setitem(their_rules.default_collate_fn_map, np.ndarray, drawing)
    dataset = penstock.ArrayDataset(np.ones((N, 2)))
    inline, one, two = ([*Ours(dataset, batch_size=3, seed=0, num_workers=workers)] for workers in (0, 1, 2))
    assert difference(one, inline) is None
    assert difference(two, inline) is None
    assert len({batch[0].item() for batch in inline}) == N // 3


def test_code_of_the_user_is_seeded_for() -> None:
    array = penstock.ArrayDataset(np.arange(N))
    assert _gather.is_closed(array)
    assert _gather.is_closed(penstock.Subset(array, [1]))
    assert not _gather.is_closed(penstock.Subset(array, collections.UserList([1])))
    assert not _gather.is_closed(penstock.Subset(Patched(np.arange(N)), [1]))


def test_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_device("meta")
    try:
        (found,) = seen(Ours(penstock.ArrayDataset(np.ones((3, 2))), batch_size=3, seed=0))
        assert found[0].device.type == default_collate([np.ones(2)]).device.type
    finally:
        torch.set_default_device("cpu")


class Doubled(Tokens):
    def samples(self, keys: Any, rows: Any) -> list[Any]:
        return [2 * sample for sample in super().samples(keys, rows)]


def test_samples_of_a_subclass_are_used(files: dict[str, Any], tmp_path: Path) -> None:
    dataset = Doubled(tmp_path / "ids.bin", "uint16", length=8)
    ((first, _), *_) = agrees(dataset, batch_size=2)
    assert first.tolist() == [list(range(0, 16, 2)), list(range(16, 32, 2))]
    assert next(iter(penstock.DataLoader(dataset, 2))).tolist() == first.tolist()


class Patched(penstock.ArrayDataset):
    pass


@pytest.mark.parametrize("seed", [{}, {"seed": 0}])
def test_getitems_of_the_object_itself_is_used(seed: dict[str, Any]) -> None:
    dataset = Patched(np.arange(N))
    dataset.__getitems__ = None  # type: ignore[method-assign,assignment]
    assert torch.cat(list(Ours(dataset, 5, num_workers=1, **seed))).tolist() == list(range(N))
    dataset.__getitems__ = lambda keys: [-key for key in keys]  # type: ignore[method-assign,assignment]
    assert torch.cat(list(Ours(dataset, 5, num_workers=1, **seed))).tolist() == [-key for key in range(N)]


def test_errors_of_keys_are_torchs() -> None:
    dataset = penstock.ArrayDataset(np.arange(N))
    for keys in ([[0, 1], [2, N]], [[0], []], [[0, -1], [-N - 1]], [[True, 2]], [[1.5]], [["a"]], [[0, 2**70]]):

        def program(loader_class: Any, tape: Tape, keys: Any = keys) -> None:
            batches = iter(loader_class(dataset, batch_sampler=keys, num_workers=1))
            take(batches, tape)

        both(program)


@pytest.mark.parametrize("form", [np.array, torch.tensor, tuple])
@pytest.mark.usefixtures("tensors_are_sent")
def test_keys_of_any_form(form: Any) -> None:
    dataset = penstock.ArrayDataset(np.arange(N * 2).reshape(N, 2))

    def program(loader_class: Any, tape: Tape) -> None:
        epoch(loader_class(dataset, batch_sampler=[form([3, 1, 1]), form([0])], num_workers=1), tape)

    both(program)


def test_a_damaged_row_names_its_sample_as_before(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array([b"fine", b"\xff\xfe"]).cast(pa.binary())})
    broken = pa.table({"text": pa.Array.from_buffers(pa.string(), 2, table["text"].chunk(0).buffers())})
    pa.parquet.write_table(broken, tmp_path / "broken.parquet")
    dataset = Parquet(tmp_path / "broken.parquet")

    def program(loader_class: Any, tape: Tape) -> None:
        try:
            list(loader_class(dataset, batch_size=2, num_workers=1))
        except Exception as error:
            tape.append(forget_frames(error))

    both(program)
    skipping = Ours(dataset, batch_size=2, seed=0, num_workers=1, on_error="skip")
    assert [batch["text"] for batch in skipping] == [["fine"]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_update_is_seen(workers: int) -> None:
    """Rows that are gathered are replaced by rows that torch refuses."""
    dataset = penstock.Subset(penstock.ArrayDataset(np.arange(8).reshape(4, 2)), range(4))
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    with Ours(dataset, batch_size=4, seed=0, **options) as loader:
        assert [batch.tolist() for batch in loader] == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
        loader.update(dataset=penstock.ArrayDataset(np.arange(4, dtype=np.uint64)))
        with pytest.raises(TypeError, match="an integer is required"):
            list(loader)


def test_a_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    agrees(HuggingFace(datasets.Dataset.from_dict({"a": list(range(N)), "t": ["x"] * N})), batch_size=5)
