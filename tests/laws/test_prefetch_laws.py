"""Laws of prefetch: whatever a caller keeps, drops or resets, it is the source's stream, and every batch is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import prefetch

STEPS = 12
ACTIONS = st.lists(
    st.one_of(
        st.just(("next",)),
        st.just(("next",)),
        st.tuples(st.just("keep"), st.integers(0, 3)),
        st.tuples(st.just("drop"), st.integers(0, 20)),
        st.just(("reset",)),
        st.just(("iter",)),
    ),
    max_size=60,
)


class Overwriting:
    """Batches of different sizes in one buffer; a step that is bad raises, and the next one comes all the same."""

    def __init__(self, sizes: list[int], bad: set[int]) -> None:
        self.sizes, self.bad = sizes, bad
        self.buffer = np.empty(max(sizes))

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, range(STEPS))

    def _make(self, step: int) -> Any:
        if step in self.bad:
            raise LookupError(step)
        view = self.buffer[: self.sizes[step % len(self.sizes)]]
        view[...] = step
        return {"x": view, "step": step}


@settings(deadline=None, max_examples=120)
@given(
    script=ACTIONS,
    sizes=st.lists(st.sampled_from([1, 100, 5000, 100_000]), min_size=1, max_size=4),
    bad=st.sets(st.integers(0, STEPS - 1), max_size=2),
    depth=st.integers(1, 4),
    hold=st.integers(1, 3),
)
def test_every_batch_is_the_sources_and_stays_so(
    script: list[tuple[Any, ...]], sizes: list[int], bad: set[int], depth: int, hold: int
) -> None:
    source = Overwriting(sizes, bad)
    kept: list[tuple[int, Any]] = []
    at, over = 0, False
    with prefetch(source, depth=depth, hold=hold) as ahead:
        for action, *more in script:
            if action == "reset":
                ahead.reset()
                at, over = 0, False
            elif action == "iter":
                iter(ahead)
                at, over = (0, False) if over else (at, over)
            elif action == "drop":
                if kept:
                    kept.pop(more[0] % len(kept))
            else:
                if at == STEPS:
                    assert next(ahead, None) is None
                    over = True
                    continue
                if at in bad:
                    with pytest.raises(LookupError, match=rf"^{at}\n"):
                        next(ahead)
                    at += 1
                    continue
                batch = next(ahead)
                assert batch["step"] == at
                assert len(batch["x"]) == sizes[at % len(sizes)] and (batch["x"] == at).all()
                if action == "keep":
                    kept.append((at, batch["x"][more[0] :]))
                at += 1
            assert all((view == step).all() for step, view in kept)
