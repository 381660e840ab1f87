"""One word, one thing: no two classes of `src` have the same name, and no type alias has that of another thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/penstock"

# Names that mean two things, and why they may.
TWICE = {
    "Batch": "an item of `batches()`, and penstock.jax's subclass of it, which has a mask",
    "DataLoader": "penstock's loader, its subclass for JAX, and the class that takes the place of torch's",
    "Suite": "of laws for backends, and for formats: public, each imported from a module that says which",
    "WorkerLost": "the event in the scheduler, and the public error that the caller gets if it cannot be mended",
    "Array": "any numpy array: two ways to write one type",
}


def _names(tree: ast.Module) -> dict[str, list[str]]:
    """Where each class and each type alias is defined. Aliases of one type under one name are the same thing."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found[node.name.lstrip("_")].append(f"line {node.lineno}")
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id.lstrip("_")
            if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                found[name].append(ast.unparse(statement.value))
    return found


@cache
def _defined() -> dict[str, set[str]]:
    places: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        for name, kinds in _names(ast.parse(path.read_text())).items():
            for kind in kinds:
                is_class = kind.startswith("line ")
                places[name].add(f"{path.relative_to(SOURCE)}, {kind}" if is_class else f"an alias of {kind}")
    return places


def test_no_two_classes_have_the_same_name() -> None:
    twice = {name: sorted(places) for name, places in _defined().items() if len(places) > 1 and name not in TWICE}
    assert not twice, "\n".join(f"{name}: {'; '.join(places)}" for name, places in sorted(twice.items()))


def test_every_reason_for_a_name_that_is_used_twice_is_needed() -> None:
    defined = _defined()
    assert [name for name in TWICE if len(defined.get(name, ())) < 2] == []


def test_the_check_of_names_sees_classes_aliases_and_underscores() -> None:
    tree = ast.parse(
        "class Crew: ...\nclass _Crew: ...\nMake = Callable[[], int]\nONE = 1\nif X:\n    class Inner: ..."
    )
    assert {name: len(places) for name, places in _names(tree).items()} == {"Crew": 2, "Make": 1, "Inner": 1}
