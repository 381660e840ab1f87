"""Laws of `penstock.pad`: it gives what a plain loop gives, for any lengths, in a loader and by itself."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import CollateError, DataLoader

law = settings(deadline=None, max_examples=80)
ROWS = st.lists(st.lists(st.integers(-50, 50), max_size=9), min_size=1, max_size=6)


def reference(rows: list[list[int]], value: int, multiple: int, side: str, most: int | None) -> Any:
    rows = [row[:most] for row in rows]
    width = -(-max(map(len, rows)) // multiple) * multiple
    fills = [[value] * (width - len(row)) for row in rows]
    pairs = list(zip(rows, fills, strict=True))
    values = [row + fill if side == "right" else fill + row for row, fill in pairs]
    masks = [[True] * len(row) + [False] * len(fill) for row, fill in pairs]
    return values, [len(row) for row in rows], [mask if side == "right" else mask[::-1] for mask in masks]


def lists(batch: Any) -> Any:
    return tuple(part.tolist() for part in batch)


@law
@given(ROWS, st.integers(-5, 5), st.integers(1, 5), st.sampled_from(["right", "left"]), st.booleans(), st.booleans())
def test_it_pads_as_a_plain_loop_does(
    rows: list[list[int]], value: int, multiple: int, side: Any, cut: bool, as_arrays: bool
) -> None:
    most = 2 * multiple if cut else None
    pad = penstock.pad(value, multiple, side, most)
    given_rows: list[Any] = [np.array(row, np.int64) for row in rows] if as_arrays else rows
    expected = reference(rows, value, multiple, side, most)
    if not as_arrays and not any(rows):
        value_dtype = pad(given_rows).values.dtype
        assert value_dtype == np.float64  # no row says more
    assert lists(pad(given_rows)) == expected
    assert lists(pickle.loads(pickle.dumps(pad))(given_rows)) == expected
    for options in ({}, {"num_workers": 1, "backend": "thread"}):
        with DataLoader(given_rows, batch_size=len(rows), collate_fn=pad, **options) as loader:  # type: ignore[arg-type]
            (batch,) = loader
            assert lists(batch) == expected
    ragged = penstock.pad(max_length=most, ragged=True)(given_rows)  # type: ignore[attr-defined]
    parts = [ragged.values[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]
    assert parts == [row[:most] for row in rows]


@law
@given(ROWS)
def test_fields_are_padded_and_others_are_collated_as_usual(rows: list[list[int]]) -> None:
    n = len(rows)
    samples = [
        {"tokens": np.array(row, np.int16), "labels": row, "image": np.ones((2, 3)), "id": at, "text": str(at)}
        for at, row in enumerate(rows)
    ]
    batch: Any = penstock.pad(value={"labels": -100}, multiple=4)(samples)
    assert batch["tokens"].dtype == np.int16
    assert (batch["image"].shape, batch["id"].tolist()) == ((n, 2, 3), [*range(n)])
    assert batch["text"] == [str(at) for at in range(n)]
    for name, value in (("tokens", 0), ("labels", -100)):
        values, lengths, mask = reference(rows, value, 4, "right", None)
        assert batch[name].tolist() == values
        assert (batch["lengths"][name].tolist(), batch["mask"][name].tolist()) == (lengths, mask)
    pairs = [(row, at) for at, row in enumerate(rows)]
    values, lengths, mask = reference(rows, 0, 1, "right", None)
    found: Any = penstock.pad()(pairs)
    assert [part.tolist() for part in found] == [values, [*range(n)], lengths, mask]


def test_arrays_with_more_axes_are_padded_along_the_first() -> None:
    samples = [{"audio": np.full((n, 2), n, np.float32)} for n in (3, 1)]
    batch: Any = penstock.pad(fields=["audio"], side="left")(samples)
    assert batch["audio"][..., 0].tolist() == [[3, 3, 3], [0, 0, 1]]
    assert batch["mask"].tolist() == [[True] * 3, [False, False, True]]


@pytest.mark.parametrize(
    ("samples", "options", "said"),
    [
        (["ab", "c"], {}, "values of type str cannot be padded"),
        ([{"x": "ab"}, {"x": "c"}], {"fields": ["x"]}, r"sample\['x'\]: values of type str cannot be padded"),
        ([{"x": [1]}], {"fields": ["y"]}, r"names \['y'\], but the samples have the fields \['x'\]"),
        ([{"x": [1]}], {"value": {"y": -1}}, r"value=.* names \['y'\], but the samples have the fields \['x'\]"),
        ([[1], [2, 3]], {"fields": ["y"]}, "needs samples that are dicts or tuples"),
        ([np.ones((2, 3)), np.ones((2, 4))], {}, "only the first axis is padded"),
        ([np.ones(2, np.uint8)], {"value": -1}, "padding value -1 does not fit uint8"),
        ([{"x": [1], "mask": 1}], {}, r"have \['mask'\] already"),
        ([{"x": [1]}, {"y": [1]}], {}, "dicts with different keys"),
        ([{"x": [1], "y": np.ones((2, 2))}, {"x": [1], "y": np.ones((3, 2))}], {}, r"\['y'\]: arrays of different"),
        ([], {}, "there are no samples"),
    ],
)
def test_what_cannot_be_padded_is_an_error_that_says_why(samples: Any, options: Any, said: str) -> None:
    with pytest.raises(CollateError, match=said):
        penstock.pad(**options)(samples)


@pytest.mark.parametrize(
    "options",
    [{"multiple": 0}, {"max_length": 0}, {"max_length": 10, "multiple": 8}, {"side": "middle"}, {"multiple": True}],
)
def test_wrong_settings_are_errors(options: Any) -> None:
    with pytest.raises(ValueError, match=r"must be|not a multiple"):
        penstock.pad(**options)
    with pytest.raises(TypeError, match=r"such as \['x'\]"):
        penstock.pad(fields="x")


@pytest.mark.parametrize("options", [{}, {"seed": 1}])
@pytest.mark.parametrize("loaders", ["penstock", "penstock.torch"])
def test_pad_itself_is_no_collate_function(loaders: str, options: Any) -> None:
    module = pytest.importorskip(loaders, exc_type=ImportError)  # penstock.torch without torch
    with pytest.raises(TypeError, match=r"collate_fn=penstock\.pad\(\)"):
        next(iter(module.DataLoader([[1], [1, 2]], collate_fn=penstock.pad, **options)))


@pytest.mark.parametrize("samples", [[[1, 2], [3]], [np.ones(2), np.ones(3)], [{"x": [1]}, {"x": [1, 2]}]])
def test_the_default_collate_function_names_pad_and_pack(samples: Any) -> None:
    with pytest.raises(CollateError, match=r"collate_fn=penstock.pad\(\).*penstock\.pack"):
        penstock.default_collate(samples)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"seed": 1}, {"seed": 1, "num_workers": 1}])
def test_loaders_of_torch_give_tensors(options: Any) -> None:
    torch = pytest.importorskip("torch")
    import penstock.torch

    data = [{"tokens": [1] * n, "name": "a"} for n in (1, 3)]
    pad = penstock.pad(multiple=4)
    loader: Any = penstock.torch.DataLoader(data, batch_size=2, collate_fn=pad, **options)
    (batch,) = loader
    assert loader.collate_fn is pad
    assert torch.equal(batch["tokens"], torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]]))
    assert batch["mask"].dtype is torch.bool
    assert (batch["lengths"].tolist(), batch["name"]) == ([1, 3], ["a", "a"])
