"""Decides which samples are read, and in what order: pure functions of integers, without I/O, clocks or processes."""

from penstock.plan._blocks import BlockOrder
from penstock.plan._order import Drawn, Order, Permutation, Selected, Sequential, Shuffled, Weighted
from penstock.plan._plan import (
    END,
    Calls,
    ComputedPlan,
    Draw,
    LocalRows,
    OrderPlan,
    Plan,
    Rest,
    RowsOfSteps,
    SamplerPlan,
)
from penstock.plan._samplers import (
    BatchSampler,
    BlockSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from penstock.plan._seeds import mix

__all__ = [
    "END",
    "BatchSampler",
    "BlockOrder",
    "BlockSampler",
    "Calls",
    "ComputedPlan",
    "DistributedSampler",
    "Draw",
    "Drawn",
    "LocalRows",
    "Order",
    "OrderPlan",
    "Permutation",
    "Plan",
    "RandomSampler",
    "Rest",
    "RowsOfSteps",
    "Sampler",
    "SamplerPlan",
    "Selected",
    "Sequential",
    "SequentialSampler",
    "Shuffled",
    "SubsetRandomSampler",
    "Weighted",
    "WeightedRandomSampler",
    "mix",
]
