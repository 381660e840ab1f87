"""What the Makefile offers, the dependency groups that it installs, and how `make pins` moves their versions."""

from __future__ import annotations

import os
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


def test_a_python_that_only_pyenv_has_is_found(tmp_path: Path) -> None:
    shim, own = tmp_path / "shims/python3.10", tmp_path / "versions/3.10.9/bin/python3.10"
    for path, text in ((shim, "echo pyenv: python3.10: command not found >&2; exit 127"), (own, "exit 0")):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {"PATH": f"{shim.parent}:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path)}
    command = ["make", "--eval", "show: ; @echo $(PYTHON310)", "show"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ran.stdout.strip() == str(own), ran.stderr
    shim.write_text("#!/bin/sh\necho python3.10\n")
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ran.stdout.strip() == "python3.10", ran.stderr


def test_the_extra_all_names_every_extra_and_each_has_a_program() -> None:
    from tests.wheel import SMOKE

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert set(re.findall(r"[\w-]+", everything.partition("[")[2])) == extras.keys()
    assert extras.keys() <= SMOKE.keys()


def test_the_version_is_the_same_everywhere() -> None:
    import penstock

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == penstock.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
