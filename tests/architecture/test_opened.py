"""Each place where something is unpickled, mapped, executed or opened by name is in decision 0045."""

from __future__ import annotations

import re
from pathlib import Path

import penstock
from tests.architecture.opened import places

ROOT = Path(penstock.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "0045-what-is-opened.md"
ROW = re.compile(r"\| `([^`:]+)(?:: ([^`]+))?` \| (`[^|]*`) \| ([^|]+) \|")


def rows() -> dict[tuple[str, str | None], set[str]]:
    """The table: by module and function (None: all functions of the module without a row), what is used there."""
    found: dict[tuple[str, str | None], set[str]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            row = ROW.fullmatch(line)
            assert row is not None, f"this is no row with a place, calls and a reason: {line}"
            place = row[1], "" if row[2] == "(module)" else row[2]
            assert place not in found, f"there are two rows for {row[1]}: {row[2]}"
            found[place] = set(re.findall(r"`([^`]+)`", row[3]))
    return found


def used(root: Path) -> dict[tuple[str, str | None], set[str]]:
    """What the code uses, by the row that it should be in: that of the function, or that of the module."""
    known, found = rows(), dict[tuple[str, str | None], set[str]]()
    for module, functions in places(root).items():
        for function, names in functions.items():
            whole = (module, function) not in known and (module, None) in known
            found.setdefault((module, None if whole else function), set()).update(names)
    return found


def wrong(root: Path) -> list[str]:
    """What the table lacks, and what it has too much."""
    found, known, said = used(root), rows(), []
    for place in sorted({*found, *known}, key=str):
        module, function = place
        name = f"`{module}`" if function is None else f"`{module}: {function or '(module)'}`"
        missing = found.get(place, set()) - known.get(place, set())
        if missing:
            calls = ", ".join(f"`{each}`" for each in sorted(missing))
            said.append(f"{name} uses {calls}: add it to a row, under who can have written it, with why that is safe")
        gone = sorted(known.get(place, set()) - found.get(place, set()))
        said += [f"{name} does not use `{each}` any more: take it out of its row" for each in gone]
    return said


def test_the_list_of_what_is_opened_is_complete() -> None:
    said = wrong(ROOT)
    assert not said, f"{PAGE.name} does not fit the code:\n" + "\n".join(said)


def test_a_new_place_is_noticed(tmp_path: Path) -> None:
    """By any name, as an argument, and in a program for another interpreter."""
    (tmp_path / "new.py").write_text(
        "import os as system\nimport pickle\nfrom functools import partial\nfrom pathlib import Path\n"
        "def one(path): return partial(system.open, path)\n"
        "class Two:\n    def three(self, data):\n        from pickle import loads as read\n"
        "        return read(data)\n"
        "CODE = 'import marshal\\nmarshal.loads(b\"\")'\n"
        "def four(path): return Path(path).read_text(), path.open('rb'), eval('1')\n"
        "def five(layout: open, root) -> open: return layout.open(root), isinstance(root, pickle.Unpickler)\n"
    )
    found = places(tmp_path)["new.py"]
    assert found == {
        "one": {"os.open"},
        "Two.three": {"pickle.loads"},
        "": {"marshal.loads"},
        "four": {".read_text", ".open", "eval"},
    }
    assert any("`new.py: one` uses `os.open`: add it" in line for line in wrong(tmp_path))


def test_a_row_without_a_call_is_noticed(tmp_path: Path) -> None:
    assert any("does not use `os.open` any more" in line for line in wrong(tmp_path))
