"""Laws 1 and 4 together: whatever a caller keeps, drops, slices or abandons, every batch is right."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader, Dataset


class Stripes(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> Any:
        return {"a": np.full(16, key), "b": key}


actions = st.lists(
    st.one_of(
        st.just(("next",)),
        st.tuples(st.just("keep"), st.integers(0, 15)),
        st.tuples(st.just("drop"), st.integers(0, 20)),
        st.just(("abandon",)),
    ),
    max_size=60,
)


def check(loader: DataLoader[Any], script: list[tuple[Any, ...]]) -> None:
    kept: list[tuple[Any, Any]] = []
    batches = loader.batches()
    for action in script:
        if action[0] in ("next", "keep"):
            batch = next(batches, None)
            if batch is None:
                batches = loader.batches()
                continue
            assert batch.data["b"].tolist() == batch.index.tolist()
            assert (batch.data["a"] == batch.data["b"][:, None]).all()
            if action[0] == "keep":
                kept.append((batch.index[0], batch.data["a"][0, action[1] :]))
            del batch
        elif action[0] == "drop" and kept:
            kept.pop(action[1] % len(kept))
        elif action[0] == "abandon":
            batches = loader.batches()
        for value, view in kept:
            assert (view == value).all()


@settings(max_examples=60, deadline=None)
@given(actions)
def test_batches_of_threads_stay_intact(script: list[tuple[Any, ...]]) -> None:
    with DataLoader(Stripes(), batch_size=3, num_workers=2, backend="thread", shuffle=True) as loader:
        check(loader, script)


@settings(max_examples=30 if "PENSTOCK_WIDE" in os.environ else 12, deadline=None)
@given(actions)
def test_batches_of_processes_stay_intact(script: list[tuple[Any, ...]]) -> None:
    with DataLoader(Stripes(), batch_size=3, num_workers=2, multiprocessing_context="fork", shuffle=True) as loader:
        check(loader, script)
