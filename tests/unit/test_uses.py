"""When blocks are used: from the spans of an order, or from its keys."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._cache import uses as module
from penstock._cache.uses import uses
from penstock.plan import BlockOrder, OrderPlan, Sequential, Shuffled
from penstock.plan._forecast import Forecast

EDGES = np.array([0, 3, 3, 5, 9])  # the second block is empty


class InSpans(Sequential):
    """An order that says when it needs each block, and must not be asked for keys."""

    edges = EDGES

    def spans(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return EDGES[:-1] + epoch % 2, EDGES[1:] + epoch % 2  # any function of the epoch

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        raise AssertionError


def forecast(order: Sequential | Shuffled | BlockOrder, steps: int = 0) -> Forecast:
    return Forecast(OrderPlan(order), 4, lambda: steps)


def rows(found: module.Uses) -> list[tuple[int, int, int]]:
    return list(zip(found.blocks.tolist(), found.first.tolist(), found.stop.tolist(), strict=True))


def test_the_spans_of_this_epoch_and_the_next() -> None:
    found = uses([(forecast(InSpans(9), 7), EDGES)])
    assert rows(found) == [(0, 0, 3), (2, 3, 5), (3, 5, 9), (0, 10, 13), (2, 13, 15), (3, 15, 19)]
    assert found.until == 9


def test_at_the_end_of_an_epoch_the_next_two_count() -> None:
    found = uses([(forecast(InSpans(9), 9), EDGES)])
    assert rows(found)[0] == (0, 10, 13)
    assert rows(found)[-1] == (3, 23, 27)
    assert found.until == 18


def test_other_blocks_than_those_of_the_order_follow_from_keys() -> None:
    order, edges = BlockOrder(np.array([0, 3, 9]), 1, 1), np.array([0, 4, 9])
    found = uses([(forecast(order), edges)])
    keys = np.concatenate([order.at(epoch, np.arange(9)) for epoch in (4, 5)])
    used = [block for block, first, stop in rows(found) for _ in range(first, stop)]
    assert used == (edges.searchsorted(keys, "right") - 1).tolist()
    assert found.until == 9


def test_an_order_in_sequence_is_not_asked_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forecast, "keys", None)
    found = uses([(forecast(Sequential(9), 4), EDGES)])
    assert rows(found) == [(0, 0, 3), (2, 3, 5), (3, 5, 9), (0, 9, 12), (2, 12, 14), (3, 14, 18)]


def test_each_run_of_keys_of_a_block_is_a_use() -> None:
    order = Shuffled(9, 1)
    found = uses([(forecast(order, 2), EDGES)])
    keys = np.concatenate([order.at(4, np.arange(9)), order.at(5, np.arange(9))])
    for block, first, stop in rows(found):
        assert first >= 2
        assert ((EDGES[block] <= keys[first:stop]) & (keys[first:stop] < EDGES[block + 1])).all()
    assert sum(stop - first for _, first, stop in rows(found)) == 16


def test_many_uses_are_looked_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 10)
    monkeypatch.setattr(module, "_MOST", 15)
    order = Shuffled(1000, 1)
    found = uses([(forecast(order, 100), np.arange(1001))])
    assert len(found.blocks) == 20
    assert found.blocks.tolist() == order.at(4, np.arange(100, 120)).tolist()
    assert found.until == 110


def test_a_dataset_without_samples_uses_nothing() -> None:
    assert rows(uses([(forecast(Sequential(0)), np.array([0]))])) == []
