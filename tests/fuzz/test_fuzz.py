"""Each finding of the fuzzer stays mended; and some hundred fresh mutations of each target find nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz import attacking
from tests.fuzz.mutating import mutated

saved = sorted(path.relative_to(attacking.FOUND) for path in attacking.FOUND.rglob("*.bin"))


@pytest.fixture(scope="module", autouse=True)
def a_block_stays_open() -> None:
    """The one that inventories under attack name."""
    attacking.target("shared_blocks").seeds()


@pytest.mark.timeout(120, method="thread")  # the attacks have the alarm
@pytest.mark.parametrize("path", saved, ids=str)
def test_what_was_found_stays_mended(path: Path) -> None:
    module = attacking.target(path.parts[0])
    module.seeds()
    with attacking.limits():
        attacking.strike(module, (attacking.FOUND / path).read_bytes())


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("name", sorted({*attacking.names()} - {"frames_after"}))  # which ends when its data does
def test_seeds_are_sound(name: str) -> None:
    """Else mutations of them are all refused for the same reason: an older version, say."""
    module = attacking.target(name)
    seeds = module.seeds()
    with attacking.limits():
        assert all(attacking.strike(module, seed) for seed in seeds)


def test_the_block_of_a_sound_inventory_is_found() -> None:
    module = attacking.target("shared_blocks")
    assert [module.decoded(seed) for seed in module.seeds()] == [1, 2, 1, 1]
    assert module.decoded(b"no inventory") == 0


@pytest.mark.deep
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("name", attacking.names())
def test_mutations_are_refused_or_read(name: str) -> None:
    module, rng = attacking.target(name), random.Random(name)
    seeds = module.seeds()
    with attacking.limits():
        for number in range(_COUNTS.get(name, 100)):
            data = mutated(rng, module, seeds)
            try:
                attacking.strike(module, data)
            except attacking.Finding as finding:
                path = attacking.save(name, finding, Path("build/found"))
                raise AssertionError(
                    f"mutation {number} of {name} found {finding}; saved as {path}"
                ) from finding.error


# Those that make several files take longer.
_COUNTS = {"pages": 30, "frames_before": 1000, "states": 300, "recordio": 300, "megatron": 300}
