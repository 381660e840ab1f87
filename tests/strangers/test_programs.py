"""Every program of `programs` ends as its author expects: in time, with exit code 0, in silence, nothing left."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from programs import survivors

FOLDER = Path(__file__).parent / "programs"
ALL = "PENSTOCK_STRANGERS" in os.environ


class Header(NamedTuple):
    """The comments at the top of a program."""

    launches: list[str]
    needs: list[str]
    seconds: float
    is_quick: bool

    @classmethod
    def of(cls, path: Path) -> Header:
        comments = [line[1:].strip() for line in _leading_comments(path.read_text())]
        said: dict[str, list[str]] = {}
        for comment in comments:
            name, _, value = comment.partition(":")
            said.setdefault(name.strip(), []).append(value.strip())
        unknown = said.keys() - {"launch", "needs", "seconds", "quick"}
        assert not unknown, f"{path.name} has comments at its top that mean nothing here: {unknown}"
        needs = [name for names in said.get("needs", []) for name in names.split()]
        seconds = float(said.get("seconds", ["120"])[0])
        return cls(said.get("launch", ["python SCRIPT"]), needs, seconds, "quick" in said)


def _leading_comments(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next(at for at, line in enumerate([*lines, ""]) if not line.startswith("#"))]


def _cases() -> list[object]:
    cases = []
    for path in sorted(FOLDER.glob("*.py")):
        header = Header.of(path)
        missing = [name for name in header.needs if find_spec(name) is None]
        for number, launch in enumerate(header.launches):
            if not ALL and (number or not header.is_quick):
                continue
            marks = [pytest.mark.timeout(header.seconds + 60)]
            if missing:
                marks.append(pytest.mark.skip(f"{', '.join(missing)} is not installed"))
            name = path.stem if launch == "python SCRIPT" else f"{path.stem}-{launch}"
            cases.append(pytest.param(path, launch, header.seconds, marks=marks, id=name))
    return cases


@pytest.mark.parametrize(("path", "launch", "seconds"), _cases())
def test_a_program_of_a_stranger(path: Path, launch: str, seconds: float, tmp_path: Path) -> None:
    script = tmp_path / "project" / path.name
    script.parent.mkdir()
    shutil.copy(path, script)
    command = _command(launch, script)
    (tmp_path / "home").mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"PYTHON|PYTEST|PENSTOCK|OMP_|MKL_|COVERAGE|RANK$|WORLD_SIZE$", name)
    }
    environment |= {"HOME": str(tmp_path / "home"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (
        (tmp_path / "out").open("wb+") as out,
        (tmp_path / "err").open("wb+") as err,
        subprocess.Popen(
            command,
            cwd=script.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as program,
    ):
        try:
            code: int | str = program.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"hangs: still running after {seconds:g} s"
            os.killpg(program.pid, signal.SIGABRT)  # faulthandler, if the program has it on, shows where
        left = survivors(program.pid, 60)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    said, complained = ((tmp_path / name).read_text(errors="replace") for name in ("out", "err"))
    complained = re.sub(r"\[IPKernelApp\] WARNING .*\n", "", complained)  # of the kernel, about its own sockets
    shown = f"\n--- {' '.join(command)}\n--- printed:\n{said[-4000:]}\n--- standard error:\n{complained[-6000:]}"
    assert code == 0, f"exit code {code}{shown}"
    assert not complained, f"it complained{shown}"
    assert not left, f"processes are left: {left}{shown}"


def _command(launch: str, script: Path) -> list[str]:
    if launch == "notebook":
        runner = Path(__file__).with_name("notebook.py")
        return [sys.executable, str(runner), script.name]
    words = {"SCRIPT": script.name, "MODULE": script.stem, "python": sys.executable}
    return [words.get(word, word) for word in shlex.split(launch)]
