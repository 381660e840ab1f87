"""The rules of the verdict on figures of real loaders, which `PENSTOCK_RECORD=1 make quiet` has recorded."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.stats import Stats
from penstock.stats._published import from_text
from penstock.stats._verdict import RULES, rule_of

FILES = sorted((Path(__file__).parents[1] / "recorded" / "verdicts").glob("*.json"))
BY_HAND = {"silent store", "small cache", "throttled", "swaps", "little to gain", "unclear"}
"""Rules that no run was made for: see test_verdict.py."""


def figures(path: Path) -> Stats:
    return from_text(path.read_bytes()).stats


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_figures_of_a_real_loader_are_judged_as_they_were(path: Path) -> None:
    wanted = "samples wait" if path.stem == "torch" else path.stem.replace("_", " ")
    rule = rule_of(figures(path))
    assert rule is not None and rule.name == wanted


def test_every_rule_has_figures() -> None:
    assert {path.stem.replace("_", " ") for path in FILES} >= {rule.name for rule in RULES} - BY_HAND


SAID = {
    "fewer_workers_would_do": ["The 3 workers waited for room", "num_workers=1 would do"],
    "start-up_in_each_epoch": ["persistent_workers=True", "worker_init_fn"],
    "start-up": ["later epochs start without that"],
    "few_slow_samples": ["130", "330", "530", "in_order=False"],
    "inline": ['backend="thread"'],
    "one_reader": ["define load(item)"],
    "GIL": ['backend="process"'],
    "collate": ["your collate_fn"],
    "more_workers_than_CPUs": ["The 2 workers share 1 CPU", "num_workers=1 would be about as fast"],
    "CPUs_in_use": ["more workers would not help"],
    "samples_wait": ['backend="thread"'],
    "own_process": ["a sampler"],
    "wait_in_turn": ["prefetch_factor= (now 4)"],
    "slow_source": ["one thread reads the source"],
    "torch": ["in the next run (without seed="],
}


@pytest.mark.parametrize("path", [path for path in FILES if path.stem in SAID], ids=lambda path: path.stem)
def test_the_verdict_on_a_real_loader_names_the_remedy(path: Path) -> None:
    said = figures(path).verdict
    assert all(piece in said for piece in SAID[path.stem]), said


@pytest.mark.parametrize(
    ("more", "said"), [({"throttled": 99.0}, "held its processes back"), ({"swapped": 1 << 30}, "in swap space")]
)
def test_what_no_machine_of_ours_could_show(more: dict[str, Any], said: str) -> None:
    stats = next(figures(path) for path in FILES if path.stem == "samples_wait")
    assert said in replace(stats, machine=replace(stats.machine, **more)).verdict


def test_a_recording_is_what_a_loader_publishes_now() -> None:
    """Fields that were renamed since would be left out in silence."""
    with penstock.DataLoader(range(10), num_workers=1, backend="thread", seed=0) as loader:
        for _ in loader:
            pass
        now = json.loads(penstock.stats._published.to_text(loader.stats()))["stats"]
    for path in FILES:
        then = json.loads(path.read_bytes())["stats"]
        assert then.keys() <= now.keys() and then["life"].keys() <= now["life"].keys()
        assert then["machine"].keys() <= now["machine"].keys()


def test_too_few_batches_have_no_verdict() -> None:
    class Samples:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, key: int) -> int:
            time.sleep(0.03)
            return key

    with penstock.DataLoader(Samples(), num_workers=1, seed=0) as loader:
        for _ in loader:
            pass
        assert loader.stats().verdict.startswith("It is too early for a verdict: 10 batches in ")
