"""Planted bugs stay where the code is: one that has no place is noticed with the change that moves it."""

from __future__ import annotations

from tests.planted.after import BUGS
from tests.planted.run import ROOT


def test_each_planted_bug_has_exactly_one_place_in_the_sources() -> None:
    source = ROOT / "src/penstock"
    files = {bug.file for bug in BUGS}
    texts = {file: (source / file).read_text() if (source / file).exists() else "" for file in files}
    moved = [f"{bug.file}: {bug.name}" for bug in BUGS if texts[bug.file].count(bug.old) != 1]
    assert not moved, "to be planted anew, see python -m tests.planted.locate"
    for bug in BUGS:
        if bug.file.endswith(".py"):
            compile(texts[bug.file].replace(bug.old, bug.new), f"{bug.file} with {bug.name}", "exec")
