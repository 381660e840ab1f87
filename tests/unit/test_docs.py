"""Every Python example in the README and the documentation runs as a program of its own."""

from __future__ import annotations

import inspect
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import forge, programs

import penstock
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


def test_an_example_runs_as_a_script(tmp_path: Path) -> None:
    (readme, *_) = BLOCK.findall((ROOT / "README.md").read_text())
    script = tmp_path / "example.py"
    script.write_text(readme)
    ran = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_readme_has_an_example() -> None:
    assert BLOCK.findall((ROOT / "README.md").read_text())


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
