"""The driver of a large cluster, by simulation: `bench.fleet` has its figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fleet import Settings, check_losses, check_ranks


# A node is replaced after 30 seconds: of two that were lost every 16 seconds, none would live for a whole step.
@pytest.mark.deep
@settings(max_examples=5, deadline=None)
@given(nodes=st.integers(2, 3), seconds=st.floats(1.0, 3.0), losing=st.floats(20.0, 30.0))
def test_nodes_that_are_lost_again_and_again_change_no_batch(nodes: int, seconds: float, losing: float) -> None:
    batches, lost = check_losses(Settings(10**6, seconds, losing), minutes=2.5 * losing / 60, workers=16 * nodes)
    assert batches > 0
    assert lost >= 2


def test_ranks_with_a_driver_each_have_the_batches_of_the_plain_loop() -> None:
    check_ranks(world=8, batches=20, workers=4)
