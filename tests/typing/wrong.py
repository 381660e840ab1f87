"""Wrong uses: a type checker finds each, with the words after `# wrong:`. Not run: see test_types.py."""

from __future__ import annotations

import numpy as np
import torch

import penstock
import penstock.jax
import penstock.torch


def total(samples: list[int]) -> int:
    return sum(samples)


penstock.DataLoader(42)  # wrong: arg-type: incompatible type "int"
penstock.DataLoader([1], batch_sise=2)  # wrong: call-arg: "batch_sise"
penstock.DataLoader([1], batch_size="2")  # wrong: arg-type: expected "int | None"
penstock.DataLoader([1], shuffle="block")  # wrong: arg-type: Literal['blocks']
penstock.DataLoader([1], num_workers="all")  # wrong: arg-type: Literal['auto']
penstock.DataLoader([1], prefetch_factor="two")  # wrong: arg-type: Literal['auto']
penstock.DataLoader([1], backend="threads")  # wrong: arg-type: Literal['process', 'thread', 'ray']
penstock.DataLoader([1], on_error="ignore")  # wrong: arg-type: Literal['raise', 'skip', 'replace']
penstock.DataLoader([1], last_batch="dropped")  # wrong: arg-type: Literal['keep', 'drop', 'pad', 'rollover']
penstock.DataLoader([1], casting="same_kind")  # wrong: arg-type: Literal['checked', 'unsafe']
penstock.DataLoader([1], shard="all")  # wrong: arg-type: Literal['auto']
penstock.DataLoader([1], generator=torch.Generator())  # wrong: arg-type: expected "numpy
for summed in penstock.DataLoader([1], collate_fn=total):
    print(summed.shape)  # wrong: attr-defined: "int" has no attribute "shape"

penstock.torch.DataLoader(42)  # wrong: arg-type: incompatible type "int"
penstock.torch.DataLoader([1], batch_sise=2)  # wrong: call-arg: "batch_sise"
penstock.torch.DataLoader([1], shuffle="block")  # wrong: arg-type: Literal['blocks']
penstock.torch.DataLoader([1], num_workers="all")  # wrong: arg-type: Literal['auto']
penstock.torch.DataLoader([1], backend="thread")  # wrong: arg-type: Literal['process', 'ray']
penstock.torch.DataLoader([1], on_error="ignore")  # wrong: arg-type: Literal['raise', 'skip', 'replace']
penstock.torch.DataLoader([1], last_batch="dropped")  # wrong: arg-type: Literal['keep', 'drop', 'pad', 'rollover']
penstock.torch.DataLoader([1], casting="same_kind")  # wrong: arg-type: Literal['checked', 'unsafe']
penstock.torch.DataLoader([1], generator=np.random.default_rng())  # wrong: arg-type: expected "torch
for number in penstock.torch.DataLoader([1], collate_fn=total):
    print(number.shape)  # wrong: attr-defined: "int" has no attribute "shape"

penstock.jax.DataLoader(42)  # wrong: arg-type: incompatible type "int"
penstock.jax.DataLoader([1], batch_sise=2)  # wrong: call-arg: "batch_sise"
penstock.jax.DataLoader([1], ahead="all")  # wrong: arg-type: expected "int"
penstock.jax.DataLoader([1], last_batch="dropped")  # wrong: arg-type: Literal['keep', 'drop', 'pad', 'rollover']
