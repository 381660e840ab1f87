"""Which samples, and in what order: pure functions of integers, without I/O, clocks or processes."""

from penstock.plan._order import Drawn, Order, Permutation, Selected, Sequential, Shuffled, Weighted
from penstock.plan._plan import END, Calls, Draw, OrderPlan, Plan, Rest, SamplerPlan
from penstock.plan._samplers import (
    BatchSampler,
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
    "Calls",
    "DistributedSampler",
    "Draw",
    "Drawn",
    "Order",
    "OrderPlan",
    "Permutation",
    "Plan",
    "RandomSampler",
    "Rest",
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
