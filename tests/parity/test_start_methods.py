"""The same batches when the dataset travels to its workers by pickle."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from typing import Any

import pytest
import torch.multiprocessing

from parity import sources
from parity.pair import Tape, both, epoch


@pytest.fixture(scope="module", autouse=True)
def python_keeps_its_processes() -> Iterator[None]:
    """Python starts them for torch's loader, for good: so they are started before a test counts its children."""
    resource_tracker.ensure_running()
    forkserver.set_forkserver_preload(["torch", "parity.sources"])
    forkserver.ensure_running()
    yield
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


@pytest.mark.deep
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.wide), "forkserver"])
def test_a_dataset_and_its_method_travel_together(method: str) -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        data = sources.Noisy(7, frozenset({5}))
        loader = loader_class(
            data,
            2,
            True,
            num_workers=2 if method == "forkserver" else 1,  # spawn imports torch in each
            multiprocessing_context=method,
            worker_init_fn=data.tag_myself,
            collate_fn=sources.bundle,
            persistent_workers=True,
        )
        epoch(loader, tape)
        epoch(loader, tape)

    both(program)


@pytest.mark.deep
def test_a_context_works_as_its_name_does() -> None:
    def program(loader_class: Any, tape: Tape) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        loader = loader_class(sources.NoisyShards(7), 2, num_workers=1, multiprocessing_context=context)
        tape.append(loader.multiprocessing_context is context)
        epoch(loader, tape)

    both(program)
