"""What the Makefile offers, the dependency groups that it installs, and how `make pins` moves their versions."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from pins import HELD, moved

ROOT = Path(__file__).parents[2]
TEXT = """
[dependency-groups]
torch = ["torch==2"]
alpha = [
    { include-group = "torch" },
    "One.Package[a,b]==1", "two==2",
    # What two imports.
    "three==3",
]
beta = ["two==2"]
"""


def test_the_pins_of_one_group_are_moved() -> None:
    asked = []

    def resolve(requirements: list[str], dependencies: bool) -> dict[str, str]:
        asked.append((requirements, dependencies))
        return {"one-package": "1.5", "two": "3", "three": "3", "torch": "2"}

    new = moved(TEXT, "alpha", resolve)
    assert asked == [(["torch==2", "One.Package[a,b]", "two", "three"], True)]
    assert new == TEXT.replace("[a,b]==1", "[a,b]==1.5").replace('"two==2",', '"two==3",')


def test_torch_is_never_moved() -> None:
    assert "torch" in HELD
    assert moved(TEXT, "torch", lambda requirements, dependencies: {"torch": "3"}) == TEXT


def test_every_group_is_pinned_and_torch_in_one_place() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    requirements = [entry for group in groups.values() for entry in group if isinstance(entry, str)]
    assert [entry for entry in requirements if "==" not in entry] == ["numpy<1.24"]
    assert [entry for entry in requirements if re.match(r"torch[^\w-]", entry)] == ["torch==2.13.0"]


def test_the_makefile_installs_groups_that_exist() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    named = re.findall(r"--group (\S+)", (ROOT / "Makefile").read_text())
    assert named
    assert set(named) <= groups.keys()


def test_help_lists_every_group_and_every_group_is_a_target() -> None:
    text = (ROOT / "Makefile").read_text()
    (groups,) = re.findall(r"^GROUPS := (.*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    names = set(groups.replace("\\\n", " ").split())
    assert set(re.findall(r"^##   (\S+)", text, re.MULTILINE)) == names
    assert names <= set(re.findall(r"^([\w-]+):", text, re.MULTILINE))


def test_an_unknown_group_is_refused_with_the_names_of_all() -> None:
    ran = subprocess.run(["make", "group", "NAME=nonsense"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "there is no group 'nonsense'. The groups are: wide quiet" in ran.stderr
