"""Datasets whose samples are tensors. Separate from bench/workloads.py, because importing this imports torch."""

from __future__ import annotations

from typing import Any

import torch

from bench.workloads import Dicts, Mapped


class MappedTensors(Mapped):
    """Sample i is a tensor over row i of a memory-mapped file."""

    def __getitem__(self, key: int) -> torch.Tensor:  # type: ignore[override]
        return torch.from_numpy(self.array[key])


class DictsOfTensors(Dicts):
    """Sample i is a dict of 20 tensors of 8 float32."""

    def __init__(self, n: int = 20_000) -> None:
        super().__init__(n)
        self.tensors = torch.from_numpy(self.values)

    def __getitem__(self, key: int) -> dict[str, Any]:
        return dict(zip(self.names, self.tensors[key].unbind(), strict=True))
