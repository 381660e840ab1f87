"""Every Python example in the README and the documentation runs as a program of its own."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import forge, programs

import penstock
from penstock.cli import main
from penstock.stats._verdict import RULES

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[object]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages.remove(ROOT / "docs" / "ray.md")  # needs a cluster: tests/on_ray/test_example.py
    return [
        pytest.param(
            code,
            id=f"{page.relative_to(ROOT)}:{number}",
            marks=[
                pytest.mark.skipif(name in code and not find_spec(name), reason=f"{name} is not installed")
                for name in ("torch", "jax")  # tests/on_jax runs those with JAX
            ],
        )
        for page in pages
        for number, code in enumerate(BLOCK.findall(page.read_text()), 1)
    ]


# TensorBoard takes 60 MB and a second to import. Where it is not installed, this stands in for its writer.
WRITER = """
class SummaryWriter:
    def __init__(self, log_dir): self.log_dir = log_dir
    def add_scalar(self, tag, scalar_value, global_step): assert tag and float(scalar_value) >= 0 <= global_step
    def add_text(self, tag, text_string, global_step): assert tag and type(text_string) is str
    def __enter__(self): return self
    def __exit__(self, *error): pass
"""
# In a namespace of its own: a function of the main module's would keep all of a program's objects for too long.
STAND_IN = f"""
import importlib.util, types
if importlib.util.find_spec("tensorboard") is None:
    sys.modules["torch.utils.tensorboard"] = types.ModuleType("torch.utils.tensorboard")
    exec({WRITER!r}, sys.modules["torch.utils.tensorboard"].__dict__)
"""


@pytest.fixture(scope="module")
def docs_forge(penstock_forge: socket.socket) -> Iterator[socket.socket]:
    """Has what takes long to import, but no further part of penstock: an example imports those that it needs."""
    if find_spec("torch") is None:
        yield penstock_forge
        return
    with forge(f"import torch, penstock\n{STAND_IN}") as control:
        yield control


@pytest.mark.parametrize("code", examples())
def test_an_example_runs_as_a_program(
    code: str, docs_forge: socket.socket, penstock_forge: socket.socket, tmp_path: Path
) -> None:
    # An interpreter that has imported torch takes ten times as long to end.
    with programs(docs_forge if "torch" in code else penstock_forge, tmp_path) as begin:
        # Without a __main__ guard, as a reader would paste it.
        apart = f"import os; os.chdir({str(tmp_path)!r}); os.environ['PENSTOCK_CACHE'] = {str(tmp_path / 'cache')!r}"
        returncode, _, err = begin(f"{apart}\n{code}").end()
    assert (returncode, err) == (0, "")


@pytest.mark.imports_torch
def test_the_example_for_litdata_runs_on_files_of_litdata(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "others" / "files" / "litdata-tokens", tmp_path / "optimized")
    (code,) = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs/from-litdata.md").read_text(), re.MULTILINE | re.DOTALL)
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_example_runs_as_a_script(tmp_path: Path) -> None:
    (first, *_) = BLOCK.findall((ROOT / "docs" / "index.md").read_text())
    script = tmp_path / "example.py"
    script.write_text(first)
    ran = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_readme_has_an_example_with_the_one_changed_import() -> None:
    (first, *_) = BLOCK.findall((ROOT / "README.md").read_text())
    assert "from penstock.torch import DataLoader  # was: from torch.utils.data import DataLoader" in first


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# `python` runs here; `py` runs where the library of somebody else is installed, by the test that is named.
LANGUAGES = {"python", "py", "console", "sh", "text", "toml"}
RUN_ELSEWHERE = {
    "docs/huggingface.md": "tests/frameworks/test_huggingface.py",
    "docs/images.md": "tests/images/test_example.py",
    "docs/parquet-in-s3.md": "tests/frameworks/test_huggingface.py",
    "docs/tables.md": "tests/frameworks/test_huggingface.py",
    "docs/webdataset.md": "tests/interop/test_formats.py",
    "docs/from-litdata.md": "tests/unit/test_docs.py",
}


def test_every_code_block_says_its_language() -> None:
    """So that none is left out of the tests because its fence was not recognised."""
    found = {
        (str(page.relative_to(ROOT)), fence)
        for page in PAGES
        for fence in re.findall(r"^```(.*)\n(?:.*\n)*?```$", page.read_text(), re.MULTILINE)
    }
    assert {(page, fence) for page, fence in found if fence not in LANGUAGES} == set()
    assert {page for page, fence in found if fence == "py"} == RUN_ELSEWHERE.keys()
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_are_those_of_the_command_line(page: Path) -> None:
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^(?:\$ )?penstock (.*)$", "".join(blocks), re.MULTILINE)
    wrong = []
    for command in commands:
        words = shlex.split(command, comments=True)
        known = re.findall(r"--[a-z-]+", _help_of(words[0]))
        wrong += [command for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    assert wrong == []


@cache
def _help_of(command: str) -> str:
    """What `penstock COMMAND --help` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0, f"there is no command 'penstock {command}'"
    return printed.getvalue()


SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Of a module that needs a library of somebody else, its file is enough.
NAMED = re.compile(r"`(penstock(?:\.[A-Za-z_]\w*)+)")


def exists(name: str) -> bool:
    """True if a dotted name leads to a module, an object in it, or an attribute of that."""
    module, *rest = "penstock", *name.split(".")[1:]
    found = penstock
    while rest:
        if (package := (ROOT / "src").joinpath(*module.split("."), rest[0])).is_dir() or package.with_suffix(
            ".py"
        ).is_file():
            module = f"{module}.{rest.pop(0)}"
            try:
                found = importlib.import_module(module)
            except ImportError:  # the library is not installed
                return True
        elif hasattr(found, rest[0]) or rest[0] in getattr(found, "__annotations__", {}):
            found = getattr(found, rest.pop(0), None)
        else:
            return False
    return True


def test_a_name_of_penstock_in_backticks_exists() -> None:
    found = {
        (str(path.relative_to(ROOT)), name) for path in [*PAGES, *SOURCES] for name in NAMED.findall(path.read_text())
    }
    assert (
        sorted((path, name) for path, name in found if name != "penstock.index" and not exists(name)) == []
    )  # a file


def test_a_page_that_a_docstring_or_message_names_exists() -> None:
    dead = [
        f"{path.relative_to(ROOT)}: {page}#{heading}"
        for path in SOURCES
        for page, heading in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", path.read_text())
        if not (ROOT / page).is_file() or (heading and heading not in headings(ROOT / page, path))
    ]
    assert dead == []


def test_a_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    dead = [
        f"{page.relative_to(ROOT)} -> {target}#{heading}"
        for page in pages
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text())
        if not (page.parent / target).exists() or (heading and heading not in headings(page.parent / target, page))
    ]
    assert dead == []


def headings(target: Path, page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = (page if target.is_dir() else target).read_text()
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_verdict_is_in_the_table_of_its_page() -> None:
    page = (ROOT / "docs" / "bottleneck.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| .*\|$", page, re.MULTILINE)
    assert rows[1:] == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("page", "heading"),
    [("ray", "Troubleshooting")]
    + [(page, "First errors") for page in ("parquet-in-s3", "webdataset", "huggingface", "token-files", "jax")],
)
def test_every_message_in_a_table_of_errors_is_one_of_the_code(page: str, heading: str) -> None:
    table = (ROOT / "docs" / f"{page}.md").read_text().partition(f"## {heading}")[2]
    messages = re.findall(r"^\| (?:a warning: )?`([^`]+)`", table, re.MULTILINE)
    code = "".join(path.read_text() for path in (ROOT / "src" / "penstock").rglob("*.py"))
    code = re.sub(r"\"\n\s*f?\"", "", code)  # a message of several lines
    assert len(messages) > 3
    assert [message for message in messages if message not in code] == []


@pytest.mark.parametrize("thing", [penstock.DataLoader, penstock.prefetch, penstock.on_stats])
def test_every_argument_is_described(thing: Callable[..., object]) -> None:
    quoted = " ".join(re.findall(r"`([^`]+)`", inspect.getdoc(thing) or ""))
    assert set(inspect.signature(thing).parameters) - set(re.findall(r"\w+", quoted)) == set()
