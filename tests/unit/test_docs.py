"""Every Python example in the README and the documentation runs as a script of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[object]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        pytest.param(code, id=f"{page.relative_to(ROOT)}:{number}")
        for page in pages
        for number, code in enumerate(BLOCK.findall(page.read_text()), 1)
    ]


@pytest.mark.parametrize("code", examples())
def test_an_example_runs_as_a_script(code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    # A script without a __main__ guard, as a reader would paste it.
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""


def test_the_readme_has_an_example() -> None:
    assert BLOCK.findall((ROOT / "README.md").read_text())


def test_a_link_between_pages_leads_to_a_file() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    dead = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert dead == []
