"""The private names of torch that penstock.torch rests on. When one of these fails, torch has moved it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.torch import _private as private


def test_a_loader_of_torchs_asks_one_method_for_its_iterators() -> None:
    assert callable(getattr(DataLoader, private.ITERATOR_METHOD))
    assert f"self.{private.ITERATOR_METHOD}()" in inspect.getsource(DataLoader.__iter__)
    assert "_reset(self)" in inspect.getsource(DataLoader.__iter__), "persistent iterators are begun again so"


def test_its_iterators_are_where_they_were() -> None:
    assert type(iter(DataLoader(range(2)))) is private.InlineIterator
    assert issubclass(private.InlineIterator, private.BaseIterator)
    assert issubclass(private.WorkersIterator, private.BaseIterator)


def test_an_iterator_of_torchs_has_what_ours_read() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    iterator = private.InlineIterator(DataLoader(range(2)))
    for name in (
        *("_base_seed", "_sampler_iter", "_pin_memory", "_pin_memory_device", "_timeout"),
        *("_persistent_workers", "_dataset_fetcher", "_profile_name", "_next_index", "_next_data", "_reset"),
    ):
        assert hasattr(iterator, name), name
    assert iterator._profile_name == private.profiled_as(private.InlineIterator)
    assert not private.is_stream(iterator)
    assert private.is_stream(DataLoader(Stream()))
    assert private.is_batched(DataLoader(range(2)))
    assert not private.is_batched(DataLoader(range(2), batch_size=None))


def test_a_worker_is_told_who_it_is() -> None:
    from torch.utils.data._utils import worker

    before = worker._worker_info
    try:
        private.set_worker_info(1, 3, 7, "data")
        info: Any = torch.utils.data.get_worker_info()
        assert (info.id, info.num_workers, info.seed, info.dataset) == (1, 3, 7, "data")
    finally:
        worker._worker_info = before


def test_numpy_is_seeded_by_four_numbers() -> None:
    assert [0 <= number < 2**32 for number in private.numpy_seed(2**40 + 3, 1)] == [True] * 4


def test_an_exception_is_wrapped_and_raised_again() -> None:
    wrapped = private.ExceptionWrapper((ValueError, ValueError("x"), None), where="here")
    with pytest.raises(ValueError, match=r"^Caught ValueError here.\nOriginal "):
        wrapped.reraise()


def test_batches_are_pinned_by_a_function_of_two() -> None:
    assert list(inspect.signature(private._pin_memory.pin_memory).parameters)[:2] == ["data", "device"]


def test_a_profiler_is_noticed() -> None:
    assert not private.is_profiled()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert private.is_profiled()
    with torch.autograd.profiler.profile():
        assert private.is_profiled()
    assert not private.is_profiled()
