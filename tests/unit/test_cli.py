"""The command line: what it prints, what it returns, and that the demo holds itself to the truth."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import cli
from penstock._tools import demo as demo

COMMAND = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())"]


def test_help_names_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--help"])
    assert exit_.value.code == 0
    assert "demo" in capsys.readouterr().out


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    said = capsys.readouterr()
    assert "usage: penstock" in said.out and "demo" in said.out and said.err == ""


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["nonsense"])
    assert exit_.value.code == 2
    assert "nonsense" in capsys.readouterr().err


def test_python_m_penstock_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"penstock {penstock.__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [["--help"], ["inspect", "lines.txt"], ["inspect", "lines.txt", "--samples", "9999"], ["top", "--once"]],
    ids=["--help", "inspect", "inspect much", "top"],
)
def test_a_reader_that_goes_away_ends_a_command_without_a_word(tmp_path: Path, command: list[str]) -> None:
    """`penstock inspect ... | head -1`."""
    (tmp_path / "lines.txt").write_text("a line of some length\n" * 10_000)
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run([*COMMAND, *command], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert ran.stderr == b"" and ran.returncode in (0, 1, 128 + signal.SIGPIPE)


def test_the_demo_without_a_terminal_succeeds_within_30_seconds_and_leaves_no_folder(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = _run_demo(tmp_path)
    assert ran.returncode == 0, ran.stderr
    # By the processors' time, so that other tests on the machine do not matter. It has at least one of them.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
    assert "the same bytes" in ran.stdout
    for happening in ("is killed", "stopped", "resumed", "waited s: how long"):
        assert happening in ran.stdout
    assert ran.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_the_demo_is_worth_a_worker(tmp_path: Path) -> None:
    """To make a batch takes longer than to hash it, else two workers could not be seen to help."""
    demo._write_pictures(tmp_path)
    dataset = demo.Pictures(tmp_path)
    start = time.process_time()
    samples = [dataset[key] for key in range(demo.BATCH)]
    made = time.process_time()
    hashlib.sha256(np.stack([picture for picture, _ in samples]).data)
    assert made - start > 2 * (time.process_time() - made)
    assert all(picture.dtype == np.float32 and abs(picture).max() <= 1 for picture, _ in samples)


@pytest.mark.parametrize(("whose", "lines"), [("inline", 2), ("resumed", 1)])
def test_the_demo_fails_if_the_streams_differ(
    whose: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = demo._stream

    def forged(console: Any, name: str, loader: Any) -> demo.Tally:
        tally = honest(console, name, loader)
        return dataclasses.replace(tally, digest="0" * 64) if whose in name else tally

    for name, value in {"SAMPLES": 500, "KILL_AFTER": 2, "STOP_AFTER": 4}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "_stream", forged)
    monkeypatch.setattr(demo, "_torch_loader", lambda dataset: demo._loader(dataset, 0))
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().out.count("failed:") == lines


def test_ctrl_c_in_the_demo_is_quiet_and_leaves_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # the dataset is written and the workers are about to start
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert errors == ""
    assert list(tmp_path.iterdir()) == []


def _run_demo(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "demo"],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = "import sys\nfrom penstock.cli import main\ntry: main(['--help'])\nfinally: print('rich' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    for command in ("demo", "pack", "profile", "top"):
        assert f"\n    {command} " in ran.stdout
    assert ran.stdout.endswith("False\n")


def test_the_page_on_the_command_names_its_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for command in ("profile", "top"):
        ran = subprocess.run([*COMMAND, command, "--help"], capture_output=True, text=True)
        for option in set(re.findall(r"--[a-z-]+", ran.stdout)) - {"--help"}:
            assert f"`{option}" in page, option
