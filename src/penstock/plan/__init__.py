"""Which samples, and in what order: pure functions of integers, without I/O, clocks or processes."""

from penstock.plan.order import Order, Sequential, Shuffled
from penstock.plan.permutation import Permutation
from penstock.plan.plan import Draw, OrderPlan, Plan, SamplerPlan
from penstock.plan.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from penstock.plan.seeds import mix

__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "Draw",
    "Order",
    "OrderPlan",
    "Permutation",
    "Plan",
    "RandomSampler",
    "Sampler",
    "SamplerPlan",
    "Sequential",
    "SequentialSampler",
    "Shuffled",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "mix",
]
