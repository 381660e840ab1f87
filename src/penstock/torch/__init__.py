"""A drop-in replacement for torch's DataLoader: `from penstock.torch import DataLoader`.

Nothing else in a program needs to change. `enable()` makes every torch loader in this process use penstock's engine,
which is useful with frameworks that build their own loaders. Every other public name of `torch.utils.data` can be
imported from here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import torch.utils.data as _theirs
except ModuleNotFoundError as error:
    raise ImportError('penstock.torch needs torch: pip install ".[torch]" in a clone of penstock') from error

if TYPE_CHECKING:  # for mypy the first import of a name counts
    from penstock.torch._loader import DataLoader

from torch.utils.data import *  # type: ignore[assignment]  # noqa: F403

from penstock.torch._loader import DataLoader, disable, enable, status
from penstock.torch._semantics import stats
from penstock.torch._status import LoaderUse, Status, served

__all__ = [  # noqa: PLE0604
    *_theirs.__all__,
    "DataLoader",
    "LoaderUse",
    "Status",
    "disable",
    "enable",
    "served",
    "stats",
    "status",
]
