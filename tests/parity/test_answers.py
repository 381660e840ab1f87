"""What people try with penstock.torch in their first hour, and the answer that they get."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import children
from torch.utils.data import Dataset

from penstock.errors import CastError, UnshippableDataset
from penstock.torch import DataLoader


class Made(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        return self.make(key)


SHAPES: list[dict[str, Any]] = [{}, {"num_workers": 1}, {"seed": 1}, {"seed": 1, "num_workers": 1}]


def whole_text(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_samples_that_do_not_fit_name_the_field(settings: dict[str, Any]) -> None:
    """torch's error stays what it is; its words name neither the field nor the sample."""
    ragged = Made(lambda key: {"x": 1, "b": (torch.zeros(3 + (key == 2)), 1)})
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        list(DataLoader(ragged, 4, **settings))
    assert "sample['b'][0]: arrays of different shapes" in whole_text(caught.value)
    assert "(4,) in row 2" in whole_text(caught.value)
    empty = Made(lambda key: {"x": 1, "b": None if key == 2 else torch.zeros(3)})
    with pytest.raises((TypeError, AttributeError)) as missing:
        list(DataLoader(empty, 4, **settings))
    assert "sample['b']: values of different types cannot be collated" in whole_text(missing.value)
    assert "NoneType in row 2" in whole_text(missing.value)


@pytest.mark.parametrize("settings", SHAPES[:3], ids=str)
def test_text_that_is_to_be_a_number_is_an_error(settings: dict[str, Any]) -> None:
    texts = Made(lambda key: {"x": torch.zeros(1), "text": "words"})
    with pytest.raises(CastError, match="dtype= names the field 'text', which is a str"):
        list(DataLoader(texts, 2, dtype={"text": "float32"}, **settings))
    [batch] = DataLoader(texts, 4, dtype="float16", **settings)
    assert (batch["text"], batch["x"].dtype) == (["words"] * 4, torch.float16)


@pytest.mark.parametrize("settings", [*SHAPES, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_loader_can_be_closed_and_used_again(settings: dict[str, Any]) -> None:
    before = set(children())
    with DataLoader(range(8), 2, **settings) as loader:
        batches = iter(loader)
        first = next(batches)
    assert set(children()) <= before
    assert first.tolist() == [0, 1]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader.close()
    assert set(children()) <= before
    loader.close()


def test_it_shows_what_it_is() -> None:
    loader = DataLoader(range(8), 2, seed=3, dtype="float32")
    assert repr(loader) == "DataLoader(range, batch_size=2, num_workers=0, seed=3, dtype='float32')"


def test_advice_for_what_cannot_be_sent_is_not_refused() -> None:
    data = Made(abs)
    data.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UnshippableDataset, match=r'or backend="thread" with penstock\.DataLoader'):
        list(DataLoader(data, num_workers=1, multiprocessing_context="spawn"))


def test_a_generator_beside_a_seed_would_not_be_used() -> None:
    with pytest.raises(ValueError, match="seed=1 and generator= were both given"):
        DataLoader([1], seed=1, generator=torch.Generator())
