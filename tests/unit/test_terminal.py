"""What commands print: names from files and other programs cannot steer the terminal, whatever letters they have."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from programs import Begin

import penstock
from penstock._system.warnings import warn_caller
from penstock.errors import FormatError, ImageError, RemoteError
from penstock.formats import JsonLines, Tar

ESCAPE = "\x1b]0;owned\x07\x1b[31m[bold red]x[link]\x9b2J\x85\u202e\u2066\x08"  # no NUL, slash or dot: also a name
HOSTILE = ESCAPE + "\r\n[red]"
RAW = os.fsencode(ESCAPE) + b"\xff\xfe"  # no UTF-8
_OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Done(NamedTuple):
    code: int
    out: str
    err: str


def started(*arguments: str, cwd: Path | None = None, **variables: str) -> Done:
    """Runs a command in an interpreter of its own."""
    environment = {**os.environ, "NO_COLOR": "1", **variables}
    command = [sys.executable, "-m", "penstock", *arguments]
    ran = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, timeout=100)
    return Done(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


Ran = Callable[..., Done]


@pytest.fixture(name="ran")
def _ran(begin: Begin) -> Ran:
    """Runs a command in a process that has imported penstock: see programs.py."""

    def ran(*arguments: str | bytes, **variables: str) -> Done:
        program = begin(f"""
            import os, sys
            os.environ.update({ {"NO_COLOR": "1", **variables}!r})
            sys.stdout = open(1, "w", closefd=False)  # not as the forge has it, but for a pipe
            sys.argv[:] = ["penstock", *map(os.fsdecode, {arguments!r})]
            from penstock.cli import main
            sys.exit(main())
            """)
        return Done(*program.end())

    return ran


def check(done: Done, has: str = "", code: int | None = None) -> None:
    """The output, which was UTF-8, has no letter that a terminal obeys, and no traceback."""
    for text in (done.out, done.err):
        assert _OBEYED.search(text) is None, text
        assert "Traceback" not in text, text
    assert has in done.out + done.err
    if code is not None:
        assert done.code == code, done.err


def tar_of(path: str | bytes, *members: tuple[str, bytes]) -> None:
    with tarfile.open(os.fsdecode(path), "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_inspect_shows_members_and_keys_escaped(ran: Ran, tmp_path: Path) -> None:
    tar_of(str(tmp_path / "x.tar"), (f"{HOSTILE}.{ESCAPE}txt", HOSTILE.encode()), (f"{HOSTILE}.bin", b"\x1b"))
    check(ran("inspect", str(tmp_path / "x.tar")), r"\x1b[31m[bold red]x[link]", 0)


def test_inspect_shows_columns_and_values_escaped(ran: Ran, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    inner = pyarrow.array([{HOSTILE: HOSTILE}])
    table = pyarrow.table({HOSTILE: [HOSTILE], "inner": inner, "list": [[HOSTILE]]})
    pq.write_table(table, tmp_path / "x.parquet")
    check(ran("inspect", str(tmp_path / "x.parquet")), r"\x1b[31m[bold red]x[link]", 0)


def test_inspect_shows_lines_and_arrays_of_text_escaped(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": "\\u001b[31m", "\\u001b[1m\\ud800": [1]}\n')
    check(ran("inspect", str(tmp_path / "x.jsonl")), r"\x1b[1m\ud800", 0)
    content = io.BytesIO()
    np.save(content, np.array([HOSTILE]))
    tar_of(str(tmp_path / "x.tar"), ("a.npy", content.getvalue()))
    check(ran("inspect", str(tmp_path / "x.tar")), r"\x1b]0;owned", 0)


@pytest.mark.parametrize("end", [b".tar", b".parquet", b".xyz", b".rec"])
def test_names_of_files_are_escaped_in_errors(end: bytes, ran: Ran, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/" + RAW + end
    with open(name, "wb") as file:
        file.write(b"\x1b[31mno such format\n")
    check(ran("inspect", name))
    check(ran("inspect", name + b"none"), code=1)
    check(ran("inspect", os.fsencode(tmp_path) + b"/*" + end))


def test_index_shows_names_escaped(ran: Ran, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/" + RAW
    os.mkdir(folder)
    tar_of(folder + b"/" + RAW + b".tar", ("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"1"))
    with open(folder + b"/cut.tar", "wb") as file, open(folder + b"/" + RAW + b".tar", "rb") as whole:
        file.write(whole.read()[:1700])
    done = ran("index", folder + b"/" + RAW + b".tar", folder + b"/cut.tar")
    check(done, r"\x1b]0;owned", 0)
    assert "cut off or damaged here" in done.out and "not beside each other" in done.out
    check(ran("index", folder + b"/none.tar"), code=1)


def test_pack_shows_names_escaped(ran: Ran, tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    folder = os.fsencode(tmp_path) + b"/" + RAW
    os.makedirs(folder + b"/cats")
    with open(folder + b"/cats/" + RAW + b".jpg", "wb") as file:
        file.write(b"no image")
    done = ran("pack", folder, os.fsencode(tmp_path) + b"/" + RAW + b".rec", "--skip-bad", "--workers", "0")
    check(done, r"\x1b]0;owned")
    check(ran("pack", folder, os.fsencode(tmp_path) + b"/out.rec", "--workers", "0"), code=1)
    check(ran("pack", folder + b"none", "out.rec"), code=1)


PROGRAM = f"""
import sys, time, penstock
class D(penstock.Dataset):
    def __len__(self): return 10_000_000
    def __getitem__(self, key): return key
D.__name__ = D.__qualname__ = {HOSTILE!r}
loader = penstock.DataLoader(D(), batch_size=2, num_workers=0)
print("begun", flush=True)
for batch in loader:
    time.sleep(0.005)
"""


@pytest.mark.parametrize("forced", [False, True])
def test_top_shows_programs_and_datasets_escaped(forced: bool, ran: Ran, tmp_path: Path) -> None:
    script = os.fsencode(tmp_path) + b"/" + RAW + b".py"
    with open(script, "w") as file:
        file.write(PROGRAM)
    with subprocess.Popen([sys.executable, script, RAW], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"begun\n"
            until = time.monotonic() + 60
            variables = {"COLUMNS": "300", **({"FORCE_COLOR": "1"} if forced else {})}
            for arguments in (["top", "--once"], ["top", "--once", str(program.pid)]):
                while True:
                    done = ran(*arguments, **variables)
                    found = "owned" in done.out
                    if found or time.monotonic() > until:
                        break
                done = done._replace(out=_COLOURS.sub("", done.out))  # rich's own
                check(done, "[bold red]x[link]" if len(arguments) == 3 else "owned", 0)
        finally:
            program.kill()


def test_profile_shows_errors_and_names_escaped(tmp_path: Path) -> None:
    (tmp_path / "things.py").write_text(
        "import penstock\n"
        f"class Bad(penstock.Dataset):\n"
        f"    def __len__(self): raise penstock.errors.FormatError({HOSTILE!r})\n"
        f"def none(): raise ValueError({HOSTILE!r})\n"
    )
    (tmp_path / f"{ESCAPE}.py").write_text("x = 1\n")
    for target in (f"{ESCAPE}.py:y", f"{ESCAPE}:y", f"things:{ESCAPE}", f"things.py:{ESCAPE}"):
        check(started("profile", target, cwd=tmp_path), code=2)


def test_a_terminal_without_the_letters_gets_escapes(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\u00e9\u4e16\n")
    done = started("inspect", str(tmp_path / "x.txt"), LC_ALL="C", PYTHONIOENCODING="ascii")
    check(done, r"\xe9\u4e16", 0)


def test_figures_warnings_and_errors_are_escaped(tmp_path: Path) -> None:
    named = type(HOSTILE, (list,), {})
    with penstock.DataLoader(named(range(100)), batch_size=2) as loader:
        list(loader)
        assert _OBEYED.search(str(loader.stats())) is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_caller(HOSTILE)
    assert _OBEYED.search(str(caught[0].message)) is None
    for kind in (FormatError, ImageError, RemoteError):
        assert _OBEYED.search(str(kind(HOSTILE + "\udcff"))) is None
        str(kind(HOSTILE + "\udcff")).encode()
    path = tmp_path / f"{ESCAPE}.tar"
    path.write_bytes(b"\x1b[31m" * 1000)
    for call in (lambda: Tar(str(path)), lambda: JsonLines(str(path))[0]):
        assert _OBEYED.search(_said(call)) is None


def _said(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as raised:
        call()
    return str(raised.value)
