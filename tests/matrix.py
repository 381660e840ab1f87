"""Runs tests with every Python that penstock supports, and with the newest and the oldest libraries.

    python -m tests.matrix                                        everything: an hour on two cores
    python -m tests.matrix --python 3.13 --libraries newest       one environment
    python -m tests.matrix --quick                                a part of the tests: what `.ci/run` runs
    python -m tests.matrix --python 3.12 -- tests/unit -k slabs   other tests

`make test` runs with the pins of the dependency group `dev`, on one Python. Users have other versions: those that pip
finds for their Python today, or old ones that pyproject.toml still allows. An interpreter that is not installed is
skipped with a message. Environments are in build/matrix, and are made again when the list of packages changes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")

TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
BESIDE = ("h5py", "opentelemetry-sdk")
EXTRAS = ("image", "lmdb", "parquet", "remote")
# The first that has a wheel for the Python, where pyproject.toml allows older ones. A later Python has none for the
# oldest of these extras, so there the newest are installed.
OLDEST = {("3.13", "numpy"): "2.1.0", ("3.11", "opencv-python-headless"): "4.9.0.80"}
ONLY_NEWEST = {"3.12": ("image", "lmdb"), "3.13": ("image", "lmdb")}
# Only this Python has a CPU build of torch that pip finds here; elsewhere tests that need torch are skipped.
TORCH = "3.11"

FORMATS = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("tests/unit/test_formats_*.py"))]
ALL = ["tests/conformance", "tests/model", "tests/faults", *FORMATS]
# What has found differences between versions: memory, endings, exit functions, shared state, errors, dtypes, tables.
QUICK = [
    *("tests/conformance/test_batches.py", "tests/conformance/test_memory.py", "tests/conformance/test_errors.py"),
    *("tests/conformance/test_tables.py", "tests/conformance/test_dtype.py"),
    *("tests/faults/test_multiprocessing.py", "tests/faults/test_lost_workers.py", "tests/unit/test_slabs.py"),
]


def main() -> int:
    given = _arguments()
    failed, ran = [], 0
    for python in given.python:
        command = _interpreter(python)
        if command is None:
            print(f"matrix  skipped: Python {python} is not installed here", flush=True)
            continue
        for libraries in given.libraries:
            ran += 1
            name = f"{python}-{libraries}"
            environment = _environment(name, command, _packages(python, libraries))
            began = time.monotonic()
            tests = given.tests or (QUICK if given.quick else ALL)
            status = _run(environment, name, tests)
            took = f"in {time.monotonic() - began:.0f} s"
            print(f"matrix  {name}: {'FAILED' if status else 'passed'} {took}", flush=True)
            if status:
                failed.append(name)
    if failed:
        print(f"matrix  failed: {', '.join(failed)}")
    return bool(failed) or (not ran and not given.quick)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.matrix", description=__doc__.split("\n")[0])
    parser.add_argument("--python", nargs="+", default=PYTHONS, choices=PYTHONS)
    parser.add_argument("--libraries", nargs="+", default=("newest", "oldest"), choices=("newest", "oldest"))
    parser.add_argument("--quick", action="store_true", help="run a part of the tests")
    parser.add_argument("tests", nargs="*", help="what pytest is given, in place of the usual tests")
    return parser.parse_args()


def _interpreter(python: str) -> str | None:
    """A command that runs this Python: from the PATH, or else one of pyenv's."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    among = [f"python{python}", *map(str, sorted(folder.glob(f"{python}.*/bin/python{python}"), reverse=True))]
    for command in among:
        if shutil.which(command) and subprocess.run([command, "-c", ""], capture_output=True).returncode == 0:
            return command
    return None


def _packages(python: str, libraries: str) -> list[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    extras = project["optional-dependencies"]
    kept = () if libraries == "newest" else tuple(name for name in EXTRAS if name not in ONLY_NEWEST.get(python, ()))
    beside = [each for name in EXTRAS if name not in kept for each in extras[name]]
    ours = [*project["dependencies"], *(each for name in kept for each in extras[name])]
    if libraries == "newest":
        wanted = [*ours, *beside]
    else:
        lowest = [re.match(r"([\w-]+)>=([\d.]+)", each) for each in ours if ";" not in each]
        pins = [(found[1], found[2]) for found in lowest if found]
        wanted = [f"{name}=={OLDEST.get((python, name), version)}" for name, version in pins] + beside
    torch = declared["dependency-groups"]["torch"] if python == TORCH else []
    return [*torch, *wanted, *TOOLS, *BESIDE]


def _environment(name: str, command: str, packages: list[str]) -> Path:
    """The interpreter of an environment with these packages; its penstock is this tree."""
    folder = ROOT / "build/matrix" / name
    python, stamp = folder / "bin/python", folder / "packages.txt"
    if not stamp.exists() or stamp.read_text().split() != packages:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([command, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, *packages], check=True, stderr=subprocess.DEVNULL)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "penstock.pth").write_text(f"{ROOT / 'src'}\n")
        stamp.write_text("\n".join(packages))
    return python


def _run(python: Path, name: str, tests: list[str]) -> int:
    pytest = [python, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal", *tests]
    deep = {**os.environ, "PENSTOCK_DEEP": "1"}
    with subprocess.Popen(pytest, cwd=ROOT, env=deep, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(f"{name}  {line}", end="", flush=True)
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
