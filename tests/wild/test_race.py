"""The judgement of a race: noise does not make penstock slower, and noise does not hide that it is."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from wild.race import LOOKS, Cost, Race


def race(slowdown: float, *, noise: float, cpu_noise: float, seed: int) -> Race:
    """penstock takes `slowdown` times as long as torch; the deviation of each run's logarithm is `noise`."""
    draw = random.Random(seed)

    def run(engine: str) -> Cost:
        true = slowdown if engine == "penstock" else 1.0
        return Cost(true * draw.lognormvariate(0, noise), true * draw.lognormvariate(0, cpu_noise))

    return Race.held(run, now=lambda: 0.0)


@pytest.mark.parametrize(
    ("slowdown", "verdict", "rounds"),
    [(0.5, "no slower", LOOKS[0]), (1.0, "no slower", LOOKS[0]), (1.25, "slower", LOOKS[1])],
)
def test_a_quiet_machine_needs_few_rounds(slowdown: float, verdict: str, rounds: int) -> None:
    found = race(slowdown, noise=0.02, cpu_noise=0.02, seed=1)
    assert (found.verdict, len(found.penstock)) == (verdict, rounds)


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_a_busy_machine_does_not_make_it_slower(noise: float) -> None:
    verdicts = [race(0.95, noise=noise, cpu_noise=noise / 3, seed=seed).verdict for seed in range(200)]
    assert verdicts.count("slower") <= 6


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_a_slowdown_is_seldom_passed(noise: float) -> None:
    verdicts = [race(1.25, noise=noise, cpu_noise=noise / 3, seed=seed).verdict for seed in range(200)]
    assert verdicts.count("no slower") <= 20


def test_a_slowdown_that_needs_no_cpu_is_found() -> None:
    """It waits: its CPU time is torch's."""
    costs = iter([Cost(1.25, 1.0), *[Cost(1.0, 1.0), Cost(1.25, 1.0)] * 23, Cost(1.0, 1.0)])
    assert Race.held(lambda engine: next(costs), now=lambda: 0.0).verdict == "slower"


def test_a_program_of_its_own_can_import_what_runs_it() -> None:
    from wild.test_wild import PATHS

    command = [sys.executable, "-c", "import wild.run"]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    subprocess.run(command, cwd="/", env=environment, check=True, timeout=100)
