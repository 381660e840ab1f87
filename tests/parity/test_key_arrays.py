"""The keys of torch's own samplers as arrays: the same keys, drawn at the same moments from the same generators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

import penstock
from parity.compare import difference
from parity.pair import Ours, Theirs
from penstock.source._nested import gathers_numpy
from penstock.torch._sampling import Sealed, in_arrays

GIVEN = st.fixed_dictionaries(
    {"replacement": st.booleans(), "num_samples": st.none() | st.integers(1, 30), "is_given": st.booleans()}
)


def batches(n: int, size: int, drop_last: bool, given: dict[str, Any] | None, *, arrays: bool) -> Iterator[Any]:
    """The keys of each batch, and the states of the generators after it, also at the end."""
    torch.manual_seed(n)
    generator = torch.Generator().manual_seed(7)
    sampler: Any = SequentialSampler(range(n))
    if given is not None:
        own = generator if given["is_given"] else None
        sampler = RandomSampler(range(n), given["replacement"], given["num_samples"], own)
    index = BatchSampler(sampler, size, drop_last)
    begun = in_arrays(index, iter(index)) if arrays else iter(index)
    while True:
        keys = next(begun, None)
        plain = keys.keys.tolist() if type(keys) is Sealed else keys
        yield plain, generator.get_state().tolist(), torch.get_rng_state().tolist()
        if keys is None:
            return


@given(n=st.integers(1, 30), size=st.integers(1, 12), drop_last=st.booleans(), given=st.none() | GIVEN)
def test_arrays_of_keys_are_torchs_and_so_are_the_generators_after_each_batch(
    n: int, size: int, drop_last: bool, given: dict[str, Any] | None
) -> None:
    ours = list(batches(n, size, drop_last, given, arrays=True))
    assert ours == list(batches(n, size, drop_last, given, arrays=False))


def test_what_the_program_has_changed_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    index = BatchSampler(RandomSampler(range(8)), 2, False)
    begun = iter(index)
    assert in_arrays(index, begun) is not begun
    next(begun)
    assert in_arrays(index, begun) is begun

    class Backwards(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter([2, 1, 0])

    other = BatchSampler(Backwards(range(3)), 2, False)
    begun = iter(other)
    assert in_arrays(other, begun) is begun
    monkeypatch.setattr(RandomSampler, "__iter__", lambda sampler: iter(range(3)))
    begun = iter(index)
    assert in_arrays(index, begun) is begun
    found = list(Ours(list(range(3)), batch_size=2, shuffle=True, num_workers=1))
    assert difference(found, list(Theirs(list(range(3)), batch_size=2, shuffle=True, num_workers=1))) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_replaced_next_of_torch_is_called(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], _BaseDataLoaderIter.__next__
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", lambda each: [calls.append(1), real(each)][1])
    assert len(list(Ours(list(range(6)), batch_size=2, num_workers=workers))) == 3
    assert len(calls) == 4


class Twice(penstock.Dataset[Any]):
    """Gathers one array as two fields, which no layout can describe."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> dict[str, Any]:
        row = np.full(3, key)
        return {"a": row, "b": row}

    @gathers_numpy
    def __gather__(self, keys: Any, empty: Any) -> dict[str, Any]:
        out = empty((len(keys), 3), np.dtype(np.int64))
        out[:] = np.asarray(keys)[:, None]
        return {"a": out, "b": out}


@pytest.mark.parametrize("seed", [None, 0])
def test_an_array_that_is_two_fields_becomes_tensors(seed: int | None) -> None:
    options = {"batch_size": 2, "num_workers": 1, "seed": seed}
    found = list(Ours(Twice(), **options))
    assert difference(found, list(Theirs(Twice(), batch_size=2, num_workers=1))) is None
    assert all(batch["a"].is_shared() for batch in found)
