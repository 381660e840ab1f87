"""The pages of the reference: one for each public module, with the names of its `__all__`. Nothing is imported."""

from __future__ import annotations

import ast
import doctest
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from website.pages import DOCS, ROOT, place, title_of

SOURCES = ROOT / "src"
_BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Definition(NamedTuple):
    module: str
    name: str


def modules() -> dict[str, list[str]]:
    """The public modules, each with the names of its `__all__` (for penstock.torch, without torch's own names)."""
    found = {}
    for path in sorted((SOURCES / "penstock").rglob("*.py")):
        name = _name_of(path)
        names = None if "._" in name else _public(name)
        if names is not None:
            found[name] = names
    return found


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


@cache
def _tree(module: str) -> ast.Module:
    path = SOURCES.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())


def _public(module: str) -> list[str] | None:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            assert isinstance(node.value, (ast.List, ast.Tuple))
            return [ast.literal_eval(item) for item in node.value.elts if not isinstance(item, ast.Starred)]
    return None


def definition(module: str, name: str) -> Definition:
    """Where a name is defined, through the imports that pass it on."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    assert node.module
                    return definition(node.module, alias.name)
    return Definition(module, name)


def homes() -> dict[Definition, Definition]:
    """Where each public object is documented: of the modules that export it, the one with the shortest name."""
    found: dict[Definition, Definition] = {}
    for module, names in sorted(modules().items(), key=lambda item: (item[0].count("."), len(item[0]))):
        for name in names:
            found.setdefault(definition(module, name), Definition(module, name))
    return found


class Example(NamedTuple):
    """Where a name is used: a page, or the docstring of a public object."""

    page: Path | None
    home: str


def examples() -> dict[str, list[Example]]:
    """The programs of pages, and the examples of docstrings, that use a name, for each name that appears in one."""
    used: dict[str, list[Example]] = {}
    for page in sorted(DOCS.rglob("*.md")):
        blocks = [ast.parse(code) for code in _BLOCK.findall(page.read_text())]
        for name in {name for block in blocks for name in _names(block)}:
            used.setdefault(name, []).append(Example(page, ""))
    for home in homes().values():
        for name in _in_docstrings(home):
            used.setdefault(name, []).append(Example(None, ".".join(home)))
    return used


def _in_docstrings(home: Definition) -> set[str]:
    """The names that the examples of an object use, spelled out from the module that exports it."""
    module, name = definition(*home)
    texts = [ast.get_docstring(_tree(home.module)) or ""]
    texts += [ast.get_docstring(node) or "" for node in _parts(module, name)]
    found: set[str] = set()
    for text in texts:
        code = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
        names = _names(ast.parse(code))
        found |= names | {f"{home.module}.{each}" for each in names}
    return found


def _parts(module: str, name: str) -> list[ast.ClassDef | ast.FunctionDef]:
    """A class with its methods, or a function."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = [node for node in _tree(module).body if isinstance(node, kinds) and node.name == name]
    return [part for node in found for part in [node, *node.body] if isinstance(part, kinds)]


def _names(tree: ast.AST) -> set[str]:
    """The dotted names of a program, as imports spell them out."""
    whole: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else ""
        elif isinstance(node, ast.ImportFrom):
            whole.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    found = set(whole.values())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            first, _, rest = ast.unparse(node).partition(".")
            found.add(".".join(filter(None, (whole.get(first) or first, rest))))
    return found


def has_own_example(home: Definition) -> bool:
    """True if the docstring of the object has an example."""
    return any(">>> " in (ast.get_docstring(part) or "") for part in _parts(*definition(*home)))


def pages() -> dict[str, str]:
    """The text of each page of the reference, by its path among the pages."""
    documented, used, found = homes(), examples(), {}
    for module, names in modules().items():
        own = [name for name in names if documented[definition(module, name)] == (module, name)]
        others = [documented[definition(module, name)] for name in names if name not in own]
        if not own:
            continue
        lines = [f"# {module}", "", f"::: {module}", "    options: {members: false, show_root_heading: false}", ""]
        for name in sorted(own, key=str.lower):
            lines += [f"::: {module}.{name}", ""]
            if not has_own_example(Definition(module, name)):
                lines += [*_used(used.get(f"{module}.{name}", [])), ""]
        if others:
            same = (
                f"[`{name}`][{home}.{name}]" for home, name in sorted(others, key=lambda other: other.name.lower())
            )
            lines += ["Also importable from here: " + ", ".join(same) + ".", ""]
        found[f"reference/{module}.md"] = "\n".join(lines)
    return found


def _used(where: list[Example]) -> list[str]:
    pages = [f"[{title_of(example.page)}](../{place(example.page)})" for example in where if example.page]
    names = [f"[`{example.home}`][{example.home}]" for example in where if not example.page]
    return [f"Examples: {', '.join([*pages, *names][:4])}."] if where else []
