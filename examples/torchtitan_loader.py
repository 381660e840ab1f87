"""A data loader for torchtitan: a mixture of Megatron's files, packed, which resumes on another number of ranks.

In a config of torchtitan's:

    config.dataloader = PenstockLoader.Config(
        sources={"web": "/data/web", "code": "/data/code"}, weights={"web": 0.7, "code": 0.3}, num_workers=2
    )

torchtitan then builds it with `dp_rank`, `dp_world_size`, `seq_len` and `local_batch_size`, and saves its state in
each checkpoint. The state is the same on all ranks, so a checkpoint of 8 data-parallel ranks can be continued on 6.
The rows of the global batch are then the next ones of the same order.

Run with torchtitan 0.3.0: build, iterate, and save and load with torch.distributed.checkpoint, as its trainer does;
not with a training run of its own, which needs GPUs. tests/unit/test_torchtitan_loader.py runs the same without
torchtitan, against a stand-in with the abstract methods of `BaseDataLoader`. On the main branch of torchtitan the
data pipeline is being rebuilt; the methods of `BaseDataLoader` were the same when this was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

import penstock
from penstock.torch import DataLoader

IGNORED = -100  # torchtitan's losses leave out these labels


class PenstockLoader(BaseDataLoader):
    """Batches of (`{"input": ..., "positions": ...}`, labels), each of shape (local_batch_size, seq_len)."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        sources: dict[str, str] = field(default_factory=dict)
        """Prefixes or folders of Megatron's files, by name."""
        weights: dict[str, float] = field(default_factory=dict)
        seed: int = 0
        num_workers: int = 2

    def __init__(
        self, config: Config, *, dp_rank: int, dp_world_size: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        documents = {name: penstock.formats.Megatron(path) for name, path in config.sources.items()}
        mixed = penstock.mix(documents, config.weights)
        rows = penstock.pack(mixed, length=seq_len + 1)  # one more than the inputs, for the last label
        self.loader = DataLoader(
            rows,
            local_batch_size,
            seed=config.seed,
            shard=(dp_rank, dp_world_size),
            num_workers=config.num_workers,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            tokens, segments = batch["tokens"].long(), batch["segments"]
            # No label where the next token is of another document, or padding.
            same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
            labels = torch.where(same, tokens[:, 1:], IGNORED)
            yield {"input": tokens[:, :-1], "positions": batch["positions"][:, :-1].long()}, labels

    # As one text: torch.distributed.checkpoint saves the entries of a dict one by one, and loads only those that the
    # state has at the time, but the history of the weights becomes longer. ParallelAwareDataloader has an entry for
    # each rank; this entry is the same on all of them.

    def state_dict(self) -> dict[str, Any]:
        return {"penstock": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:  # torchtitan passes {} if a checkpoint has no state of a loader
            self.loader.load_state_dict(json.loads(state_dict["penstock"]))

    def close(self) -> None:
        self.loader.close()
