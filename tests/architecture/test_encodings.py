"""No text depends on the encoding of the system: on Windows, that is not UTF-8."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src/penstock"


def without_encoding(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(each.arg == "encoding" for each in node.keywords):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        is_method = isinstance(node.func, ast.Attribute)
        modes = [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
        if name == "open" and not is_method and not any("b" in str(mode) for mode in modes):
            yield node.lineno
        if (name == "read_text" and not node.args) or (name == "write_text" and len(node.args) < 2):
            yield node.lineno


def test_every_text_file_has_an_encoding() -> None:
    # `/proc` exists on Linux only, where UTF-8 is the rule, and its files are ASCII.
    found = [
        f"{path.relative_to(SOURCE)}, line {line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in without_encoding(ast.parse(path.read_text(encoding="utf-8")))
        if "/proc/" not in path.read_text(encoding="utf-8").splitlines()[line - 1]
    ]
    assert not found, "give encoding=: " + "; ".join(found)


def test_what_is_looked_for_is_found() -> None:
    tree = ast.parse(
        "open(p)\nopen(p, 'w')\nopen(p, 'rb')\nopen(p, encoding='ascii')\np.read_text()\np.read_text('utf-8')\n"
        "p.write_text(t)\np.write_text(t, 'utf-8')\nself.open(p)"
    )
    assert [*without_encoding(tree)] == [1, 2, 5, 7]
