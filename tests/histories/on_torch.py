"""The same for `penstock.torch.DataLoader` with `seed=`, whose meaning is that of penstock's own loader."""

from __future__ import annotations

from typing import Any

import torch
import torch.profiler  # torch's own `next()` imports it late; what an interrupt does to an import is Python's affair

import penstock.torch
from tests.histories import checked
from tests.histories.checked import *  # noqa: F403

__all__ = checked.__all__

torch.set_num_threads(1)  # its own threads are not what a history leaves behind


class DataLoader(checked.DataLoader):
    """A penstock.torch.DataLoader beside its model. It has no close(): its workers end with its iterators."""

    _make = staticmethod(penstock.torch.DataLoader)

    def close(self) -> None:
        pass

    def pids(self) -> list[int]:
        core: Any = vars(self.real).get("_penstock")
        return [] if core is None else [worker.pid for worker in core.workers]
