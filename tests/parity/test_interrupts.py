"""Ctrl-C at every point where CPython may run its handler, in the loaders of penstock.torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import penstock.torch
from tests.faults.test_interrupts import WIDE, WORK, Drawing, Subject, run

pytestmark = [pytest.mark.imports_torch, pytest.mark.timeout(3600 if WIDE else 120)]

SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {},
    "inline, with a seed": {"seed": 1},
    "fork": {"num_workers": 1, "multiprocessing_context": "fork"},
    "fork, with a seed": {"seed": 1, "num_workers": 1, "multiprocessing_context": "fork"},
}


class TorchSubject(Subject):
    def __init__(self, settings: dict[str, Any]) -> None:
        # Inline and without a seed, a sample draws from the caller's generators, as in torch.
        draws = "seed" in settings or "num_workers" in settings
        self.loader: Any = penstock.torch.DataLoader(Drawing(draws), **settings)
        self.batches: Any = None
        self.state: Any = None

    def close(self) -> None:
        self.batches = self.loader._iterator = None

    def generators(self) -> Any:
        """torch's global generator is drawn from by `iter()` if there is no seed, as in torch."""
        ours = torch.get_rng_state().numpy().tobytes() if "seed" in vars(self.loader) and self.loader.seed else b""
        return super().generators(), ours


@pytest.mark.deep
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("what", ["start", "next", "end", "start again", "drop", "state_dict", "load_state_dict"])
def test_ctrl_c_at_any_instruction(name: str, what: str) -> None:
    stride = 1 if WIDE else 2000 if "num_workers" in SETTINGS[name] else 250
    run(SETTINGS[name], WORK[what], stride, lambda code: True, TorchSubject)
