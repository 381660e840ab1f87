"""Dated results: bench/results/<date>-<kind>.json for programs (bench/charts.py), and .md beside it for readers."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def save(kind: str, command: str, header: list[str], figures: Any, text: str) -> None:
    """Writes figures and the text that was printed. A second run on the same day replaces the first."""
    name = f"{datetime.date.today().isoformat()}-{kind}"
    lines = [f"# {name}", "", f"`{command}`", "", *(f"- {line}" for line in header), "", text, ""]
    (RESULTS / f"{name}.md").write_text("\n".join(lines))
    (RESULTS / f"{name}.json").write_text(json.dumps({"header": header, "results": figures}, indent=1) + "\n")
    print(f"written: {(RESULTS / name).relative_to(RESULTS.parents[1])}.md and .json")


def newest(kind: str = "", folder: Path = RESULTS) -> tuple[str, dict[str, Any]]:
    """The date and the content of the newest results of a kind; those of `bench.run` have none."""
    pattern = re.compile(r"\d{4}-\d\d-\d\d" + (f"-{kind}" if kind else "") + r"\.json")
    found = [path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name)]
    if not found:
        raise FileNotFoundError(f"{folder} has no results of {kind or 'bench.run'}: run the benchmark first")
    return found[-1].name[:10], json.loads(found[-1].read_text())
