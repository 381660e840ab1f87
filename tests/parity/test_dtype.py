"""dtype= in torch's face: the tensors of a batch are converted, with torch's semantics and with penstock's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock import CastError
from penstock.torch import DataLoader

MODES = [{}, {"num_workers": 2}, {"seed": 1}, {"seed": 1, "num_workers": 2}]
modes = pytest.mark.parametrize("mode", MODES, ids=["torch inline", "torch workers", "seed inline", "seed workers"])


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, key: int) -> Any:
        image = torch.full((3, 400), key / 4)  # larger than what is stacked outside of the slab
        return {"image": image, "row": np.full(3, key), "label": key, "name": "n", "ok": key % 2 == 0}


def dtypes(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: leaf.dtype for name, leaf in batch.items() if isinstance(leaf, torch.Tensor)}


@modes
@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16", torch.float64])
def test_all_numbers_become_the_dtype(mode: dict[str, Any], dtype: Any) -> None:
    expected = getattr(torch, str(dtype).removeprefix("torch."))
    batches = list(DataLoader(Samples(), 4, dtype=dtype, **mode))
    plain = list(DataLoader(Samples(), 4, **mode))
    for got, before in zip(batches, plain, strict=True):
        assert dtypes(got) == {"image": expected, "row": expected, "label": expected, "ok": torch.bool}
        assert got["name"] == before["name"]
        for name in ("image", "row", "label"):
            assert torch.equal(got[name], before[name].to(expected))


@modes
def test_single_fields_are_named(mode: dict[str, Any]) -> None:
    batch = next(iter(DataLoader(Samples(), 4, dtype={"row": torch.bfloat16, "ok": torch.uint8}, **mode)))
    assert dtypes(batch) == {
        "image": torch.float32,
        "row": torch.bfloat16,
        "label": torch.int64,
        "ok": torch.uint8,
    }


@modes
def test_what_would_be_lost_is_an_error_unless_it_is_allowed(mode: dict[str, Any]) -> None:
    with pytest.raises(CastError, match=r"0\.25 in the field 'image'.*whole numbers only"):
        list(DataLoader(Samples(), 4, dtype="int8", **mode))
    batches = list(DataLoader(Samples(), 4, dtype="int8", casting="unsafe", **mode))
    assert batches[1]["image"][:, 0, 0].tolist() == [1, 1, 1, 1]


def test_a_tensor_too_large_for_bfloat16_is_an_error() -> None:
    loader = DataLoader([torch.tensor([1.0, 3.4e38])], dtype=torch.bfloat16)
    with pytest.raises(CastError, match="outside the range of bfloat16"):
        list(loader)


def test_a_numpy_array_cannot_be_bfloat16() -> None:
    loader = DataLoader(range(4), collate_fn=np.array, dtype="bfloat16")
    with pytest.raises(CastError, match="a numpy array, and numpy has no bfloat16"):
        list(loader)


@pytest.mark.parametrize("dtype", [torch.complex64, "int4", {"a": torch.bool}])
def test_another_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="int32, int64, bfloat16"):
        DataLoader(range(4), dtype=dtype)
