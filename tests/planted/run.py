"""Plants bugs one at a time, and checks that the tests find each of them.

    python -m tests.planted.run                       every bug
    python -m tests.planted.run memory "a lease"      bugs whose area or name contains one of these texts

The sources are copied to a scratch folder for it. All selected tests run once without a bug, and must pass. Then
each bug is planted alone, its tests run, and one of them must fail; a test that hangs counts as failed, and so does a
crash of the interpreter. The exit status is 1 if a bug was not found.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.planted.after import BUGS
from tests.planted.bug import AREAS, Bug

ROOT = Path(__file__).resolve().parents[2]

# Seconds for one test, and for one run of pytest: selections take a few seconds without a bug.
TEST_TIMEOUT, RUN_TIMEOUT = 60, 300

_PR_SET_CHILD_SUBREAPER = 36
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/(.+?)(?: - |$)", re.MULTILINE)


class Result(NamedTuple):
    """What the tests said of a bug: `verdict` is "found", "NOT FOUND" or "BROKEN" (the tests could not run)."""

    verdict: str
    by: str
    seconds: float
    output: str


def main() -> int:
    given = _arguments()
    bugs = [bug for bug in BUGS if _is_chosen(bug, given.names)]
    if not bugs:
        raise SystemExit(f"no bug has one of {given.names} in its area or name")
    if len({bug.name for bug in BUGS}) < len(BUGS):
        raise SystemExit("two bugs have one name")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-planted-") as scratch:
        tree = Path(scratch, "tree")
        _copy_sources(tree)
        _check_places(bugs, tree)
        with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork"), _begin_in_copy, (tree,)) as pool:
            if not given.no_baseline:
                sound = pool.submit(_run_sound, bugs, given.tests).result()
                if sound is not None:
                    print(sound, "\nwithout a bug these tests fail, so they can find none", sep="\n")
                    return 1
                print(f"without a bug all selected tests pass ({time.monotonic() - began:.0f} s)", flush=True)
            attempts = [bug for bug in bugs for _ in range(given.times)]
            found = pool.map(partial(_plant, tests=given.tests), attempts)
            results = [_shown(bug, result, given.verbose) for bug, result in zip(attempts, found, strict=True)]
    return _summary(attempts, results, time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.planted.run", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of areas or names of bugs; default: all bugs")
    parser.add_argument("--jobs", type=int, default=1, help="how many bugs are tried at a time")
    parser.add_argument("--times", type=int, default=1, help="how often each bug is tried")
    parser.add_argument("--tests", nargs="+", help="tests to run for every bug, in place of its own")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--verbose", action="store_true", help="show the output of pytest for every bug")
    return parser.parse_args()


def _is_chosen(bug: Bug, names: list[str]) -> bool:
    return not names or any(name in bug.area or name in bug.name for name in names)


# The sources


def _copy_sources(tree: Path) -> None:
    tree.mkdir()
    for part in ("src", "tests", "pyproject.toml"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, tree / part)


def _check_places(bugs: Iterable[Bug], tree: Path) -> None:
    """Every bug must have exactly one place, and give a module that compiles."""
    wrong = []
    for bug in bugs:
        path = tree / "src/penstock" / bug.file
        text = path.read_text() if path.exists() else ""
        if text.count(bug.old) != 1:
            wrong.append(f"{bug.name}: its text occurs {text.count(bug.old)} times in {bug.file}")
            continue
        compile(text.replace(bug.old, bug.new), bug.file, "exec")
    if wrong:
        raise SystemExit("\n".join(wrong))


# One run, in a process of the pool

_tree = Path()


def _begin_in_copy(tree: Path) -> None:
    """Gives this process of the pool its own copy, and makes it the parent of all that its tests leave behind."""
    global _tree
    _tree = tree.with_name(f"copy-{os.getpid()}")
    shutil.copytree(tree, _tree)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    where = subprocess.run(
        [sys.executable, "-c", "import penstock; print(penstock.__file__)"],
        **_surroundings(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not where.startswith(str(_tree)):
        raise RuntimeError(f"the tests would import {where}, which is not the copy with the bug")


def _surroundings() -> dict[str, object]:
    path = os.pathsep.join([str(_tree / "src"), str(_tree)])
    return {"cwd": _tree, "env": {**os.environ, "PYTHONPATH": path, "PENSTOCK_DEEP": "1", "PENSTOCK_EXAMPLES": "100"}}


def _run_sound(bugs: list[Bug], tests: list[str] | None) -> str | None:
    """The output of all selected tests where one fails without a bug, else None."""
    selected = dict.fromkeys(tests or [test for bug in bugs for test in bug.tests])
    ended = _pytest(selected, timeout=60 * len(selected))
    return None if ended.status == 0 else ended.output


def _plant(bug: Bug, tests: list[str] | None) -> Result:
    path = _tree / "src/penstock" / bug.file
    sound = path.read_text()
    try:
        _write(path, sound.replace(bug.old, bug.new))
        status, output, seconds, silence = _pytest(tests or bug.tests, "-x", timeout=RUN_TIMEOUT)
    finally:
        _write(path, sound)
    failed = _FAILED.search(output)
    if status == 1 and failed is not None:
        return Result("found", failed[1], seconds, output)
    if status is None and silence > TEST_TIMEOUT:
        return Result("found", f"a run that hangs for {silence:.0f} s", seconds, output)
    if status is not None and not 0 <= status <= 5:
        return Result("found", f"a crash of the test run (status {status})", seconds, output)
    return Result("NOT FOUND" if status == 0 else "BROKEN", "", seconds, output)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python compares times in whole seconds, and might take the module as it was before.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink(missing_ok=True)


class Ended(NamedTuple):
    """A run of pytest that has ended: its exit status (None if it was killed), and how long it said nothing."""

    status: int | None
    output: str
    seconds: float
    silence: float


def _pytest(tests: Iterable[str], *options: str, timeout: float) -> Ended:
    """Runs these tests, for at most so many seconds, and ends all that they started."""
    shutil.rmtree(_tree / ".hypothesis", ignore_errors=True)
    settings = ("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--timeout={TEST_TIMEOUT}")
    command = [sys.executable, "-m", "pytest", *settings, *options, *(f"tests/{test}" for test in tests)]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, **_surroundings(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            silence = time.time() - os.fstat(output.fileno()).st_mtime
            _end_children(process)
        output.seek(0)
        return Ended(status, output.read(), time.monotonic() - began, silence)


def _end_children(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a run. Orphans become children of this process, which has no others."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while left := Path("/proc/self/task", str(os.getpid()), "children").read_text().split():
        for pid in map(int, left):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# The report


def _shown(bug: Bug, result: Result, verbose: bool) -> Result:
    line = f"{result.verdict:9}  {bug.area:12}  {result.seconds:4.0f} s  {bug.name}"
    print(line if not result.by else f"{line}\n{'':29}by {result.by}", flush=True)
    if verbose or result.verdict == "BROKEN":
        print(result.output)
    return result


def _summary(bugs: list[Bug], results: list[Result], seconds: float) -> int:
    tried = Counter(bug.area for bug in bugs)
    missed = [bug for bug, result in zip(bugs, results, strict=True) if result.verdict != "found"]
    not_found = Counter(bug.area for bug in missed)
    print()
    for area in (area for area in AREAS if tried[area]):
        print(f"{area:12}  {tried[area] - not_found[area]} of {tried[area]} found")
    print(f"{'all':12}  {len(bugs) - len(missed)} of {len(bugs)} found, in {seconds:.0f} s")
    for name, times in Counter(bug.name for bug in missed).items():
        print(f"not found{f' {times} times' if times > 1 else ''}: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
