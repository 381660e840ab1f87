"""The table of docs/resume-compared.md: `python -m resuming.comparing [NAME...]` prints it, `--write` writes it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from resuming.loaders import LOADERS, WITHOUT_RANKS, Pair

PAGE = Path(__file__).parents[2] / "docs" / "resume-compared.md"
BEGIN, END = "<!-- resuming:begin: written by tests/resuming -->", "<!-- resuming:end -->"
STOP = 7  # batches of 30, before the run stops
LIBRARIES = ("penstock", "torch", "torchdata", "grain", "datasets", "webdataset", "litdata", "mosaicml-streaming")
COLUMNS = ("loader", "same settings", "2 workers, then 3", "2 ranks, then 1", "random numbers", "next epoch", "state")


class Failed(Exception):
    """A loader raised an error; the message is its last line."""

    @property
    def short(self) -> str:
        return f"an error ({str(self).partition(':')[0].rpartition('.')[2]})"


def ask(name: str, folder: Path, **request: Any) -> Any:
    """What a loader answers in a process of its own. (Numbers of ranks reach some loaders by the environment.)"""
    given = {"folder": str(folder), "workers": 2, "rank": 0, "world": 1, **request}
    command = [sys.executable, "-W", "ignore", "-m", "resuming.loaders", name, pickle.dumps(given).hex()]
    paths = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=paths, timeout=180)
    except subprocess.TimeoutExpired as error:
        raise Failed("does not answer within 3 minutes") from error
    if ran.returncode or not ran.stdout:
        lines = [line for line in ran.stderr.splitlines() if line and not line.startswith(" ")] or ["no message"]
        raise Failed(lines[-1].strip())
    return pickle.loads(bytes.fromhex(ran.stdout.splitlines()[-1]))


def numbers(read: Iterable[list[Pair]]) -> list[int]:
    return [number for batch in read for number, _ in batch]


def judged(before: list[list[Pair]], after: list[list[Pair]], whole: list[list[Pair]]) -> str:
    """How an interrupted epoch compares with an undisturbed one."""
    found = numbers(before) + numbers(after)
    if found == numbers(whole):
        return "exact"
    counts = Counter(found)
    again, never = sum(counts.values()) - len(counts), len(set(numbers(whole)) - counts.keys())
    if not again and not never:
        return "each sample once, in another order"
    return " and ".join([*([f"{again} samples twice"] if again else []), *([f"{never} never"] if never else [])])


@dataclass
class Row:
    name: str
    cells: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def row(name: str, folder: Path) -> Row:
    found = Row(name)
    if name.startswith(("datasets", "webdataset", "litdata", "streaming")):
        ask(name, folder, write=True)
    whole = ask(name, folder, next=True)
    part = ask(name, folder, batches=STOP)
    if part["state"] is None:
        found.cells = (
            dict.fromkeys(COLUMNS[1:4], "begins again") | dict.fromkeys(COLUMNS[4:6], "-") | {"state": "none"}
        )
        return found
    found.cells["state"] = f"{len(pickle.dumps(part['state'])):,} bytes"
    _same(found, folder, whole, part)
    found.cells["2 workers, then 3"] = _resumed(found, folder, [part], whole["read"], workers=3)
    if name in WITHOUT_RANKS:
        found.cells["2 ranks, then 1"] = "not run"
    else:
        try:
            parts = [ask(name, folder, batches=STOP, rank=rank, world=2) for rank in (0, 1)]
            alone = ask(name, folder)["read"] if name.startswith("penstock") else whole["read"]
            found.cells["2 ranks, then 1"] = _resumed(found, folder, parts, alone, once=True)
        except Failed as error:
            found.errors.append(str(error))
            found.cells["2 ranks, then 1"] = error.short
    return found


def _same(found: Row, folder: Path, whole: Any, part: Any) -> None:
    """The rest of the epoch with the same settings, its random numbers, and the epoch after it."""
    try:
        rest = ask(found.name, folder, state=part["state"], next=True)
    except Failed as error:
        found.errors.append(str(error))
        found.cells |= {"same settings": error.short, "random numbers": "-", "next epoch": "-"}
        return
    found.cells["same settings"] = judged(part["read"], rest["read"], whole["read"])
    again = ask(found.name, folder)["read"]
    noise, expected = dict(chain(*rest["read"])), dict(chain(*whole["read"]))
    if dict(chain(*again)) != expected:
        found.cells["random numbers"] = "others in each run"
    else:
        same = all(expected[number] == value for number, value in noise.items())
        found.cells["random numbers"] = "the same" if same else "others after resuming"
    follows = numbers(rest["next"]) == numbers(whole["next"])
    found.cells["next epoch"] = "the same" if follows else "another order"


def _resumed(found: Row, folder: Path, parts: list[Any], whole: Any, once: bool = False, **settings: Any) -> str:
    try:
        rest = ask(found.name, folder, state=parts[0]["state"], **settings)
    except Failed as error:
        found.errors.append(str(error))
        return error.short
    before = [batch for part in parts for batch in part["read"]]
    text = judged(before, rest["read"], whole)
    return "each sample once" if once and text.startswith(("exact", "each")) else text


def table(rows: list[Row]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {row.name} | {' | '.join(row.cells[name] for name in COLUMNS[1:])} |" for row in rows]
    versions = ", ".join(f"{library} {version(library).partition('+')[0]}" for library in LIBRARIES)
    return "\n".join([*lines, "", f"Run with {versions}."])


def compare(names: Iterable[str] = LOADERS) -> list[Row]:
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="penstock-resuming-") as folder:
            rows.append(row(name, Path(folder)))
        print(rows[-1].name, rows[-1].cells, *rows[-1].errors, sep="\n  ", flush=True)
    return rows


def written() -> str:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def main(words: list[str]) -> None:
    text = table(compare([word for word in words if word != "--write"] or LOADERS))
    print(text)
    if "--write" in words:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
