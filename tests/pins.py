"""Moves the pins of pyproject.toml's dependency groups to the newest versions that fit together: `make pins`.

    python -m tests.pins                 all groups
    python -m tests.pins dev strangers   some groups

pip resolves one group after the other, in the order of the file, and installs nothing. The pins of included groups
are kept. So are those of the groups in HELD: any other torch brings gigabytes of CUDA, this MXNet is the last, and
the packages of `free` are for another Python.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELD = ("torch", "mxnet", "free")
# The Makefile installs these without their dependencies, which would hold other packages back.
ALONE = ("mosaicml", "interop")

PIN = re.compile(r'(?<=")([\w.-]+)(\[[\w,-]+\])?==([^"]*)(?=")')

Resolve = Callable[[list[str], bool], dict[str, str]]


def main(names: list[str]) -> None:
    path = ROOT / "pyproject.toml"
    for name in names or [group for group in _groups(path.read_text()) if group not in HELD]:
        text = path.read_text()
        print(f"{name}:", end=" ", flush=True)
        new = moved(text, name, resolved)
        path.write_text(new)
        changes = set(_own(new, name)) - set(_own(text, name))
        print(", ".join(sorted(changes)) or "no newer version", flush=True)


def moved(text: str, name: str, resolve: Resolve) -> str:
    """The text of pyproject.toml with the newest pins of a group, of those versions that `resolve` returns."""
    if name in HELD:
        return text
    unpinned = [re.sub("==.*", "", requirement) for requirement in _own(text, name)]
    versions = resolve([*_included(text, name), *unpinned], name not in ALONE)

    def newest(pin: re.Match[str]) -> str:
        return f"{pin[1]}{pin[2] or ''}=={versions[_normal(pin[1])]}"

    # A bracket ends a group where it is the last of a line: one with extras is followed by a version.
    group = re.compile(rf"^{name} = \[.*?\]$", re.MULTILINE | re.DOTALL)
    return group.sub(lambda found: PIN.sub(newest, found[0]), text)


def resolved(requirements: list[str], dependencies: bool) -> dict[str, str]:
    """The versions that pip would install in an empty environment, by normal names."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    options = [] if dependencies else ["--no-deps"]
    report = subprocess.run([*pip, *options, *requirements], check=True, stdout=subprocess.PIPE)
    found = [package["metadata"] for package in json.loads(report.stdout)["install"]]
    return {_normal(package["name"]): package["version"] for package in found}


def _groups(text: str) -> dict[str, list[str | dict[str, str]]]:
    found: dict[str, list[str | dict[str, str]]] = tomllib.loads(text)["dependency-groups"]
    return found


def _own(text: str, name: str) -> list[str]:
    return [entry for entry in _groups(text)[name] if isinstance(entry, str)]


def _included(text: str, name: str) -> list[str]:
    included = [entry["include-group"] for entry in _groups(text)[name] if isinstance(entry, dict)]
    return [
        requirement
        for group in included
        if group not in ALONE
        for requirement in (*_included(text, group), *_own(text, group))
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(sys.argv[1:])
