"""Token budgets and balance: `python -m bench.budgets`, beside lhotse and transformers if installed.

The lengths are lognormal(5.8, 1.1), at most 4,096, by a seed; a batch has at most 65,536 tokens, padding counted.

- "padding": the part of the padded tokens that is padding. "used": the tokens without padding, of all that the steps
  of all ranks could hold.
- "tokens" and "squares": the cost of the costliest rank beside the mean rank, summed over the steps of an epoch. A
  batch costs its rows times its padded width, or times the square of its padded width. "worst" is the worst step.
- "plan": processor time of one rank for one step, the best of three epochs.

Then the samples of a step of a fixed size are dealt to ranks by the squares of their lengths.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.plan import Shuffled
from penstock.plan._balance import BalancedPlan, deal
from penstock.plan._budget import BudgetPlan, BudgetWindows, LengthTable

BUDGET, LONGEST, SAMPLES = 65_536, 4_096, 2_000_000


def lengths(n: int, seed: int = 0) -> NDArray[np.int64]:
    drawn = np.random.default_rng(seed).lognormal(5.8, 1.1, n).astype(np.int64)
    return np.clip(drawn, 1, LONGEST)


def best(run: Callable[[], Any], times: int = 3) -> float:
    """Returns the processor time of the fastest run, in ms."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return min(taken) * 1e3


def budgets(world: int, of: NDArray[np.int64]) -> str:
    def plan(rank: int = 0) -> BudgetPlan:
        return BudgetPlan(
            BudgetWindows(Shuffled(len(of), 1), LengthTable(of), BUDGET, seed=1), rank=rank, world=world
        )

    one = plan()
    ranks = [BudgetPlan(one.windows, rank=rank, world=world).draw(0) for rank in range(world)]
    steps = [[of[keys] for keys in step] for step in zip(*ranks, strict=True)]
    tokens = np.array([[len(batch) * batch.max() for batch in step] for step in steps])
    squares = np.array([[len(batch) * batch.max() ** 2 for batch in step] for step in steps])
    assert tokens.max() <= BUDGET
    real = int(of.sum())
    taken = best(lambda: sum(1 for _ in plan().draw(0))) / len(steps)
    whole = f"{1 - real / tokens.sum():8.4f}  {real / (tokens.size * BUDGET):6.4f}"
    ratios = "  ".join(
        f"{_over(costs):6.3f} {(costs.max(1) / costs.mean(1)).max():6.3f}" for costs in (tokens, squares)
    )
    return f"{world:5}  {len(steps):6}  {whole}  {ratios}  {taken:7.3f}"


def _over(costs: NDArray[np.int64]) -> float:
    return float(costs.max(1).sum() / costs.mean(1).sum())


def dealing(ranks: int, each: int) -> str:
    over, bound, taken = [], [], []
    for seed in range(20):
        costs = lengths(ranks * each, seed) ** 2
        of_ranks = costs[deal(costs, ranks, each)].sum(axis=1)
        over.append(of_ranks.max() / of_ranks.mean())
        bound.append(of_ranks.max() / max(of_ranks.mean(), costs.max()))
        taken.append(best(lambda costs=costs: deal(costs, ranks, each), 3))  # type: ignore[misc]
    return f"{ranks:5}  {each:5}  {max(over):9.4f}  {max(bound):9.4f}  {np.median(taken):7.3f}"


def lhotse(of: NDArray[np.int64]) -> str:
    """DynamicBucketingSampler with 100 buckets, one rank: a second of a cut is a token."""
    from lhotse import CutSet, MonoCut  # type: ignore[import-not-found]
    from lhotse.dataset import DynamicBucketingSampler  # type: ignore[import-not-found]

    def cuts() -> Iterator[Any]:
        return (MonoCut(str(i), 0, float(n), 0) for i, n in enumerate(of.tolist()))

    sampler = DynamicBucketingSampler(
        CutSet.from_cuts(cuts()), max_duration=float(BUDGET), num_buckets=100, shuffle=True
    )
    real = padded = steps = 0
    begin = time.process_time()
    for batch in sampler:
        found = [int(cut.duration) for cut in batch]
        real, padded, steps = real + sum(found), padded + len(found) * max(found), steps + 1
    taken = (time.process_time() - begin) / steps * 1e3
    shares = f"padding {1 - real / padded:.4f}, used {real / steps / BUDGET:.4f}"
    return f"lhotse {version('lhotse')}: {shares}, {taken:.3f} ms a step"


def transformers(ranks: int, each: int, accumulate: int, steps: int = 3) -> str:
    """BatchRebalanceSampler: batches of different sizes, so only its time is comparable."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    together = ranks * each * accumulate
    of = lengths(together * steps)
    taken = best(lambda: list(BatchRebalanceSampler(of.tolist(), together, ranks, accumulate)), 1) / steps
    return f"transformers {version('transformers')}, {ranks} x {each}, accumulate={accumulate}: {taken:.1f} ms a step"


def accumulated(ranks: int, each: int, accumulate: int, steps: int = 3) -> str:
    of = lengths(ranks * each * accumulate * steps)
    plan = BalancedPlan(
        Shuffled(len(of), 1), each, world=ranks, lengths=LengthTable(of), power=2, accumulate=accumulate
    )
    taken = best(lambda: list(plan.draw(0))) / steps
    return (
        f"penstock, {ranks} x {each}, accumulate={accumulate}: {taken:.1f} ms for the steps that are dealt together"
    )


def main() -> None:
    print(f"numpy {np.__version__}, Python {sys.version.split()[0]}; {SAMPLES:,} samples, {BUDGET:,} tokens a batch")
    of = lengths(SAMPLES)
    print("world   steps   padding    used  tokens  worst  squares worst  plan (ms)")
    for world in (1, 8, 64):
        print(budgets(world, of))
    if find_spec("lhotse") is None:
        print("lhotse is not installed here.")
    else:
        print(f"Of the first 200,000 samples, one rank: {lhotse(of[:200_000])}")
        print(budgets(1, of[:200_000]))
    print("\nranks   each  over mean  over bound  ms")
    for ranks, each in ((8, 32), (64, 32), (64, 128), (512, 32)):
        print(dealing(ranks, each))
    print(accumulated(64, 32, 4))
    print("transformers is not installed here." if find_spec("transformers") is None else transformers(64, 32, 4))


if __name__ == "__main__":
    main()
