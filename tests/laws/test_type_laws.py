"""A batch arrives from a worker process as `pickle.loads(pickle.dumps(batch))` would make it, and else as itself."""

from __future__ import annotations

import os
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
import penstock.torch
from penstock._memory.layout import Writer
from penstock.torch._collate import collate

WIDE = "PENSTOCK_WIDE" in os.environ
pytestmark = pytest.mark.timeout(900 if WIDE else 120)

leaves = st.tuples(st.sampled_from(sorted(zoo.LEAVES)), st.integers(0, 9))
recipes = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from(sorted(zoo.NESTS)), st.lists(inner, max_size=3)),
    max_leaves=8,
)

EACH = [(name, 3) for name in zoo.LEAVES] + [
    (name, parts)
    for name in zoo.NESTS
    for parts in (
        [("tensor", 1), ("int", 2)],
        [("large array", 1), ("child", 2)],
        [("text", 1), ("int", 2)],
        [],
    )
]


class Recipes:
    """A dataset whose keys are recipes. A class that has no special meaning for either loader."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, recipe: Any) -> Any:
        return zoo.build(recipe)


def itself(batch: Any) -> Any:
    return batch


LOADERS: dict[str, Any] = {
    "processes": lambda order, **more: penstock.DataLoader(
        Recipes(), None, sampler=order, collate_fn=itself, num_workers=1, seed=1, **more
    ),
    "torch": lambda order, **more: penstock.torch.DataLoader(
        Recipes(), None, sampler=order, collate_fn=itself, num_workers=1, **more
    ),
    "torch, seed": lambda order, **more: penstock.torch.DataLoader(
        Recipes(), None, sampler=order, collate_fn=itself, num_workers=1, seed=1, **more
    ),
}


def check(found: Any, recipe: Any) -> None:
    expected = pickle.loads(pickle.dumps(zoo.build(recipe)))
    assert zoo.described(found) == zoo.described(expected), recipe


@pytest.mark.parametrize("how", LOADERS)
def test_a_batch_of_each_type_arrives_as_pickle_makes_it(how: str) -> None:
    loader = LOADERS[how](EACH, multiprocessing_context="fork")
    batches = list(loader)
    assert len(batches) == len(EACH)
    for recipe, batch in zip(EACH, batches, strict=True):
        check(batch, recipe)


@pytest.mark.parametrize("method", ["spawn", "forkserver"] if WIDE else ["forkserver"])
@pytest.mark.parametrize("how", LOADERS if WIDE else ["torch"])
def test_under_every_start_method(how: str, method: str) -> None:
    for recipe, batch in zip(EACH, LOADERS[how](EACH, multiprocessing_context=method), strict=True):
        check(batch, recipe)


@pytest.mark.parametrize("how", LOADERS)
@given(several=st.lists(recipes, min_size=20, max_size=20))
@settings(max_examples=100 if WIDE else 4, deadline=None)
def test_any_nested_batch_arrives_as_pickle_makes_it(how: str, several: list[Any]) -> None:
    for recipe, batch in zip(several, LOADERS[how](several, multiprocessing_context="fork"), strict=True):
        check(batch, recipe)


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_without_processes_the_batch_itself_is_handed_out(backend: str) -> None:
    made = [zoo.build(recipe) for recipe in EACH]
    more = {} if backend == "inline" else {"num_workers": 2, "backend": "thread"}
    found = list(penstock.DataLoader(made, None, collate_fn=itself, seed=1, **more))
    assert all(one is other for one, other in zip(found, made, strict=True))


@pytest.mark.parametrize("more", [{}, {"seed": 1}], ids=["torch's", "seed"])
def test_without_workers_torchs_face_hands_out_the_batch_itself(more: Any) -> None:
    made = [zoo.build(recipe) for recipe in EACH]
    found = list(penstock.torch.DataLoader(made, None, collate_fn=itself, **more))
    assert all(one is other for one, other in zip(found, made, strict=True))


def shared(tensor: torch.Tensor) -> int:
    """The address of the memory."""
    return tensor.untyped_storage().data_ptr()


def test_large_tensors_in_any_type_come_through_the_slab() -> None:
    """They lie in one mapping, and not in memory of their own."""
    order = [("encoding", [("large tensor", 1)]), ("fields", [("child", 1)]), ("plain", [("parameter", 1)])]
    loader = LOADERS["torch"](order, multiprocessing_context="fork")
    encoding, fields, plain = loader
    for tensor in (encoding["k0"], fields["k0"], plain.a[0]):
        assert is_mapped(shared(tensor))


def is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
            if low <= address < high:
                return "memfd:penstock" in line
    return False


# ---- the default collate_fn ------------------------------------------------------------------------


def outcome(collate: Any, recipe: Any) -> Any:
    samples = [zoo.build(recipe), zoo.build(recipe)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of arrays that cannot be written to
            made = collate(samples)
    except Exception as error:
        return type(error), str(error)
    return zoo.described(made), [zoo.described(sample) for sample in samples]


def check_collate(recipe: Any) -> None:
    """Also what becomes of the samples: torch updates a copy of the first one."""
    writer = Writer(np.zeros(1 << 16, np.uint8))
    expected = outcome(torch.utils.data.default_collate, recipe)
    assert outcome(lambda samples: collate(samples, writer.empty), recipe) == expected, recipe


def test_torchs_collate_and_ours_keep_the_same_types() -> None:
    for recipe in EACH:
        if "around" not in recipe[0]:  # torch's function never ends for a list that contains itself
            check_collate(recipe)


@given(recipes.filter(lambda recipe: "around" not in repr(recipe)))
@settings(max_examples=3000 if WIDE else 100, deadline=None)
def test_torchs_collate_and_ours_keep_the_types_of_any_sample(recipe: Any) -> None:
    check_collate(recipe)
