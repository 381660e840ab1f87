"""torch.profiler shows a loader's share of a step under the name of torch's iterator class."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import penstock.torch

NAMES = {
    0: "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    2: "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
}
BATCHES = 4


def ranges(loader: Any) -> Counter[str]:
    """How often each range of a loader was recorded while it was read to its end."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in loader:
            pass
    for thread in threading.enumerate():  # torch's own workers have queues, whose threads close their pipes late
        if thread.name == "QueueFeederThread":
            thread.join()
    return Counter(event.name for event in profiler.events() if "DataLoader" in event.name)


def recorded(loader_class: Any, workers: int) -> Counter[str]:
    return ranges(loader_class(torch.arange(BATCHES), num_workers=workers))


@pytest.mark.parametrize("workers", NAMES)
def test_torch_records_the_name_that_we_think(workers: int) -> None:
    """Fails when torch renames its range, or no longer records the call that finds the end."""
    assert recorded(torch.utils.data.DataLoader, workers) == {NAMES[workers]: BATCHES + 1}


@pytest.mark.parametrize("workers", NAMES)
def test_a_batch_is_recorded_under_the_name_that_torch_gives_it(workers: int) -> None:
    assert recorded(penstock.torch.DataLoader, workers) == recorded(torch.utils.data.DataLoader, workers)


@pytest.mark.parametrize("workers", NAMES)
def test_an_enabled_loader_is_recorded_under_the_same_name(workers: int) -> None:
    with penstock.torch.enable():
        assert recorded(torch.utils.data.DataLoader, workers) == {NAMES[workers]: BATCHES + 1}
