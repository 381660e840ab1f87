"""dtype=: numbers are converted while they are written, alike in every backend; what would be lost is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from same import same

from conformance import sources
from penstock import ArrayDataset, CastError, DataLoader, Dataset, StateError, Subset
from penstock._memory import guests

TABLE = ArrayDataset(x=np.arange(60.0).reshape(20, 3), y=np.arange(20), name=np.array([f"n{i}" for i in range(20)]))


class Halves(Dataset[Any]):
    """Sample i has i / 2, an image full of i, and things that are no numbers."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, key: int) -> Any:
        image = np.full((3, 2), key, np.uint8)
        return {
            "half": key / 2,
            "image": image,
            "pair": (key, [np.float64(key)]),
            "name": "n",
            "even": key % 2 == 0,
        }


class Foreign(Dataset[Any]):
    """Gathers by itself, and knows nothing of dtypes."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, key: int) -> Any:
        return np.array([key, 2 * key])

    def __gather__(self, keys: Any, empty: Any) -> Any:
        out = empty((len(keys), 2), np.dtype(np.int64))
        out[...] = np.asarray(keys)[:, None] * [1, 2]
        return out


def table_of(samples: Any) -> Any:
    return [np.array([sample["half"] for sample in samples]), {"n": len(samples)}]


@pytest.mark.parametrize(
    ("dataset", "kwargs"),
    [
        (Halves(), {"batch_size": 4, "dtype": "float32"}),
        (Halves(), {"batch_size": 4, "dtype": {"image": "float16", "pair.1": "int8", "even": "uint8"}}),
        (Halves(), {"batch_size": 4, "dtype": "int32", "casting": "unsafe"}),
        (Halves(), {"batch_size": None, "dtype": "float64"}),
        (Halves(), {"batch_size": 4, "collate_fn": table_of, "dtype": {0: np.float16}}),
        (TABLE, {"batch_size": 6, "shuffle": True, "seed": 2, "dtype": {"x": "int64", "y": "float32"}}),
        (Subset(TABLE, range(4, 16)), {"batch_size": 5, "dtype": "float16"}),
        (Foreign(), {"batch_size": 4, "dtype": "uint8"}),
        (sources.Gathered(np.arange(40).reshape(10, 4)), {"batch_size": 3, "dtype": "int8"}),
        (sources.Light(10), {"batch_size": 4, "dtype": "float16"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else ",".join(map(str, value)),
)
@pytest.mark.parametrize(
    "workers", [{"backend": "thread"}, {"multiprocessing_context": "fork"}], ids=["thread", "fork"]
)
def test_every_backend_converts_alike(workers: dict[str, Any], dataset: Any, kwargs: dict[str, Any]) -> None:
    with DataLoader(dataset, **kwargs) as loader:
        expected = list(loader)
    with DataLoader(dataset, num_workers=2, **workers, **kwargs) as loader:
        assert same(list(loader), expected)


def test_all_numbers_become_the_dtype_and_nothing_else_changes() -> None:
    batch = next(iter(DataLoader(Halves(), 4, dtype="float32")))
    assert batch["half"].dtype == batch["image"].dtype == batch["pair"][0].dtype == batch["pair"][1][0].dtype == "f4"
    assert batch["half"].tolist() == [0, 0.5, 1, 1.5]
    assert batch["image"].shape == (4, 3, 2) and (batch["image"][3] == 3).all()
    assert (batch["name"], batch["even"].dtype) == (["n"] * 4, np.bool_)


def test_single_fields_are_named_by_their_path() -> None:
    dtype = {"image": "float16", ("pair", 1): "int8", "even": "uint8", "half": None}
    batch = next(iter(DataLoader(Halves(), 4, dtype=dtype)))
    assert (batch["image"].dtype, batch["pair"][1][0].dtype, batch["even"].dtype) == ("f2", "i1", "u1")
    assert (batch["half"].dtype, batch["pair"][0].dtype) == ("f8", "i8")
    assert batch["even"].tolist() == [1, 0, 1, 0]


def test_what_would_be_lost_names_field_value_and_sample_and_the_loop_goes_on(make: Any) -> None:
    batches = iter(make(Halves(), 2, dtype={"half": "int64"}, sampler=[0, 2, 4, 7, 6, 8]))
    assert next(batches)["half"].tolist() == [0, 1]
    with pytest.raises(CastError, match=r"3\.5 in the field 'half' \(row 1\) .* whole numbers only") as caught:
        next(batches)
    assert "row 1 is sample 7." in caught.value.__notes__
    assert next(batches)["half"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("dataset", "kwargs", "note"),
    [
        (ArrayDataset(np.arange(20) * 100), {"batch_size": 4, "sampler": [1, 7]}, "row 1 is sample 7."),
        (Foreign(), {"batch_size": 2, "sampler": [0, 200]}, "row 1 is sample 200."),
        (list(np.arange(20) * 100), {"batch_size": 2, "sampler": [0, 7]}, "row 1 is sample 7."),
        (
            [np.arange(3) * key for key in range(200)],
            {"batch_size": None, "sampler": [150]},
            "It is sample 150.",
        ),
        (
            list(np.arange(20) * 100),
            {"batch_size": 2, "sampler": [0, 7], "collate_fn": np.array},
            "row 1 is sample 7.",
        ),
    ],
    ids=["gather", "foreign gather", "collate", "unbatched", "custom"],
)
def test_a_lossy_sample_is_named_on_every_path(dataset: Any, kwargs: dict[str, Any], note: str) -> None:
    with pytest.raises(CastError) as caught:
        list(DataLoader(dataset, dtype="uint8", **kwargs))
    assert note in caught.value.__notes__


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ({"imge": "uint8"}, "names the field 'imge', but the batch has only .*'image'"),
        (
            {"image.x": "uint8"},
            "names the field 'image.x', but the field 'image' is an array of uint8 and has no",
        ),
        ({"name": "uint8"}, "names the field 'name', which is text"),
        ({"pair.2": "uint8"}, "names the field 'pair.2', but the field 'pair' has only"),
    ],
)
def test_a_field_that_cannot_be_converted_is_an_error(dtype: Any, message: str) -> None:
    with pytest.raises(CastError, match=message):
        list(DataLoader(Halves(), 2, dtype=dtype))


def test_a_state_of_another_dtype_is_refused() -> None:
    state = DataLoader(range(5), dtype={"a": "float32"}, seed=0).state_dict()
    with pytest.raises(StateError, match=r"dtype was {'a': 'float32'} .* and is None"):
        DataLoader(range(5), seed=0).load_state_dict(state)
    DataLoader(range(5), dtype={("a",): np.float32}, casting="unsafe", seed=0).load_state_dict(state)


@pytest.mark.parametrize("dtype", ["float8", "bfloat16", "U4", object, {"a": "int16"}, 3])
def test_a_dtype_that_no_batch_can_have_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="None, one of float16, float32, float64, int8, uint8, int32, int64"):
        DataLoader(range(5), dtype=dtype)


def tensor_of(samples: Any) -> Any:
    import torch

    return {"t": torch.tensor(samples), "a": np.array(samples)}


@pytest.mark.imports_torch
@pytest.mark.parametrize(
    "workers",
    [
        pytest.param({}, id="inline"),
        pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.wide, id="spawn"),
    ],
)
def test_tensors_are_converted_in_a_process_that_has_not_imported_penstock_torch(
    workers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(guests, "_met", {})  # as before the first tensor
    monkeypatch.delitem(guests.HANDLERS, torch.Tensor, raising=False)  # type: ignore[misc]
    with DataLoader([1, 300], 2, collate_fn=tensor_of, dtype="float16", **workers) as loader:
        (batch,) = loader
    assert (batch["t"].dtype, batch["a"].dtype) == (torch.float16, np.float16)
    loader = DataLoader([1, 300], 2, collate_fn=tensor_of, dtype={"t": "uint8"}, **workers)
    with loader, pytest.raises(CastError, match="300 in the field 't'"):
        list(loader)


def test_numbers_are_converted_into_the_slab_and_nowhere_else(make_processes: Any) -> None:
    """What was written to other memory would travel in the pickle of the reply, and not be where the others are."""
    loader = make_processes(ArrayDataset(a=np.zeros((64, 1000)), b=np.zeros((64, 1000))), 8, dtype="float32")
    for batch in loader:
        a, b = (batch[name].__array_interface__["data"][0] for name in "ab")
        assert b - a == 8 * 1000 * 4
