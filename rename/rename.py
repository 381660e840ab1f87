"""Gives each name of `src` one meaning: applies the renames of `names.py` to a tree.

    python rename/rename.py                 the tree that this folder is in
    python rename/rename.py --tree PATH     another one
    python rename/rename.py --dry           only say what would be done
    python rename/rename.py --note          write known.json, by which moved definitions are found again

A name means different things in different modules, so a rename is keyed by the module that defines the name. Uses are
found by the imports of each file and the scopes of its functions. If the module has been split or moved, its
definition is found by `known.json`: the docstring and the members that it had. Everything that was not found, and
every place that may need a look, is printed. What was renamed already is left alone: the script can be repeated.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from names import LOCALS, MEMBERS, MODULES, SYMBOLS, TEXTS, Member, Symbol

HERE = Path(__file__).resolve().parent
FOLDERS = ("src", "tests", "bench", "examples")
Functions = (ast.FunctionDef, ast.AsyncFunctionDef)
Ref = tuple[str, str, str]  # ("sym", module, name), ("mod", module, ""), ("other", "", "")
WIDTH = 118
OTHER: Ref = ("other", "", "")


class Module:
    def __init__(self, root: Path, path: Path) -> None:
        self.path, self.text = path, path.read_text()
        parts = path.relative_to(root).with_suffix("").parts
        parts = parts[1:] if parts[0] == "src" else parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.tree = ast.parse(self.text)
        self.scope = bindings(self.tree.body, self, True)
        self.rel = str(path.relative_to(root))


def absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *filter(None, [node.module])])


def bindings(
    body: list[ast.stmt], module: Module, is_module: bool, args: ast.arguments | None = None
) -> dict[str, Any]:
    """What each name of a scope is bound to."""
    found: dict[str, list[Ref]] = defaultdict(list)
    outside: set[str] = set()

    def bind(name: str) -> None:
        found[name].append(("sym", module.name, name) if is_module else OTHER)

    def visit(node: ast.AST) -> None:
        if isinstance(node, (*Functions, ast.ClassDef)):
            bind(node.name)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.NamedExpr):
                    bind(inner.target.id)
            return
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name].append(("from", absolute(module, node), alias.name))
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                full = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or full].append(("mod", full, ""))
            return
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            outside.update(node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            bind(node.id)
        if isinstance(node, ast.ExceptHandler) and node.name:
            bind(node.name)
        if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            bind(node.name)
        for child in ast.iter_child_nodes(node):
            visit(child)

    for statement in body:
        visit(statement)
    if args is not None:
        for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if arg is not None:
                found[arg.arg].append(OTHER)
    return {name: refs for name, refs in found.items() if name not in outside}


class Tree:
    """All Python files, what they define, and what is to be renamed in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
        self.modules = {module.name: module for module in (Module(root, path) for path in paths)}
        self.said: list[str] = []
        self.by_name: dict[str, list[tuple[str, ast.AST]]] = defaultdict(list)
        for module in self.modules.values():
            if module.rel.startswith("src/"):
                for name, node in definitions(module.tree):
                    self.by_name[name].append((module.name, node))
        known = HERE / "known.json"
        self.known = json.loads(known.read_text()) if known.exists() else {}
        self.renames: dict[tuple[str, str], str] = {}
        self.place: dict[tuple[str, str], str] = {}
        for symbol in SYMBOLS:
            self._place(symbol)
        self.locals = [each._replace(module=self.followed(each.function, (each.module,))[0]) for each in LOCALS]
        self.members = [member._replace(modules=self.followed(member.of, member.modules)) for member in MEMBERS]

    def followed(self, definition: str, modules: tuple[str, ...]) -> tuple[str, ...]:
        """These modules; or the only one that defines this now, if it has been moved."""
        places = {place for place, _ in self.by_name.get(definition.partition(".")[0], ())}
        return tuple(places) if modules and len(places) == 1 and not places & {*modules} else modules

    def say(self, text: str) -> None:
        self.said.append(text)

    def _place(self, symbol: Symbol) -> None:
        module = self.located(symbol.module, symbol.old)
        if module is not None:
            taken = [name for name, _ in self.by_name.get(symbol.new, ())]
            if taken and symbol.new[0].isupper() and symbol.new.lower() != symbol.new:
                self.say(
                    f"TAKEN      {symbol.new} (for {symbol.module}.{symbol.old}) is defined in {', '.join(taken)}"
                )
            self.renames[module, symbol.old] = symbol.new
        elif symbol.new in self.by_name:
            self.say(f"DONE       {symbol.module}.{symbol.old} is {symbol.new} already")
        else:
            self.say(f"NOT FOUND  {symbol.module}.{symbol.old} -> {symbol.new}: {self.known.get(key_of(symbol))}")

    def located(self, module: str, name: str) -> str | None:
        """The module that defines the name now."""
        places = self.by_name.get(name, ())
        note = self.known.get(f"{module}.{name}")
        if any(module == place for place, _ in places):
            return module
        others = {(symbol.module, symbol.old) for symbol in SYMBOLS} - {(module, name)}
        best = [
            place
            for place, node in places
            if (place, name) not in others and note is not None and is_alike(note, noted(node))
        ]
        if len(best) == 1:
            self.say(f"MOVED      {module}.{name} is in {best[0]}")
            return best[0]
        return None

    def canonical(self, ref: Ref, depth: int = 0) -> Ref:
        kind, module, name = ref
        if kind != "from" or depth > 9:
            return ref if kind != "from" else OTHER
        if f"{module}.{name}" in self.modules:
            return ("mod", f"{module}.{name}", "")
        if module in self.modules:
            for one in self.modules[module].scope.get(name, ()):
                if (found := self.canonical(one, depth + 1)) != OTHER:
                    return found
        return OTHER

    def renamed(self, ref: Ref) -> str | None:
        found = self.canonical(ref)
        return self.renames.get(found[1:]) if found[0] == "sym" else None


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    def visit(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
        for node in body:
            if isinstance(node, (*Functions, ast.ClassDef)):
                yield node.name, node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from ((one.id, node) for one in ast.walk(target) if isinstance(one, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node
            elif isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from visit(node.body)
                yield from visit(getattr(node, "orelse", []))
                for handler in getattr(node, "handlers", []):
                    yield from visit(handler.body)

    yield from visit(tree.body)


def noted(node: ast.AST) -> dict[str, Any]:
    if isinstance(node, (*Functions, ast.ClassDef)):
        words = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        words |= {one.name for one in ast.walk(node) if isinstance(one, Functions)}
        return {"says": (ast.get_docstring(node) or "").split("\n")[0], "words": sorted(words)}
    return {"says": ast.unparse(node), "words": []}


def is_alike(note: dict[str, Any], other: dict[str, Any]) -> bool:
    if note["says"] and note["says"] == other["says"]:
        return True
    ours, theirs = set(note["words"]), set(other["words"])
    return bool(ours) and len(ours & theirs) >= 0.5 * len(ours | theirs)


def key_of(symbol: Symbol) -> str:
    return f"{symbol.module}.{symbol.old}"


class Walk:
    """The edits of one file."""

    def __init__(
        self, tree: Tree, module: Module, text: str | None = None, ast_tree: ast.Module | None = None
    ) -> None:
        self.tree, self.module = tree, module
        self.text = module.text if text is None else text
        self.top = module.tree if ast_tree is None else ast_tree
        self.lines = [0]
        for line in self.text.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.raw = [line.encode() for line in self.text.splitlines(keepends=True)] or [b""]
        self.edits: dict[tuple[int, int], str] = {}
        self.words: dict[str, set[str]] = defaultdict(set)  # old names that were renamed here, with the new ones
        scope = module.scope if ast_tree is None else bindings(self.top.body, module, True)
        self.scopes: list[tuple[str, dict[str, list[Ref]]]] = [("module", scope)]
        self.stack: list[str] = []  # the qualified name
        self.joined: ast.JoinedStr | None = None
        self.members = [
            member
            for member in self.tree.members
            if not member.files or any(self.module.rel.startswith(each) for each in member.files)
        ]
        self.visit(self.top)

    # positions

    def at(self, line: int, column: int) -> int:
        return self.lines[line - 1] + len(self.raw[line - 1][:column].decode())

    def edit(self, start: int, old: str, new: str) -> None:
        if self.text[start : start + len(old)] == old:
            self.edits[start, start + len(old)] = new
            self.words[old].add(new)
        elif self.joined is not None:  # Python 3.11 does not know where names in f-strings are
            begin, end = self.span(self.joined)
            for part in re.finditer(r"\{[^{}]*\}", self.text[begin:end]):
                for word in re.finditer(rf"(?<![\w.]){re.escape(old)}(?!\w)", part[0]):
                    at = begin + part.start() + word.start()
                    self.edits[at, at + len(old)] = new
                    self.words[old].add(new)
        else:
            self.tree.say(f"UNSURE     {self.module.rel}: {old} at {start}, found {self.text[start : start + 20]!r}")

    def edit_attribute(self, node: ast.Attribute, new: str) -> None:
        if self.joined is not None:
            begin, end = self.span(self.joined)
            for word in re.finditer(rf"(?<=\.){node.attr}(?!\w)", self.text[begin:end]):
                self.edits[begin + word.start(), begin + word.end()] = new
            return
        end = self.at(node.end_lineno or 0, node.end_col_offset or 0)
        self.edit(end - len(node.attr), node.attr, new)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)  # type: ignore

    # names

    def lookup(self, name: str) -> list[Ref]:
        for number, (kind, scope) in enumerate(reversed(self.scopes)):
            if (kind != "class" or number == 0) and name in scope:
                return scope[name]
        return []

    def new_of(self, name: str) -> str | None:
        for ref in self.lookup(name):
            found = self.tree.canonical(ref)
            if found[0] == "sym" and found[2] == name and (new := self.tree.renames.get(found[1:])):
                return new
        return None

    def module_of(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            for ref in self.lookup(node.id):
                found = self.tree.canonical(ref)
                if found[0] == "mod":
                    return found[1]
        elif isinstance(node, ast.Attribute) and (outer := self.module_of(node.value)):
            found = self.tree.canonical(("from", outer, node.attr))
            return found[1] if found[0] == "mod" else None
        return None

    def symbol_of(self, node: ast.expr) -> tuple[str, str] | None:
        """The module-level name that an expression means."""
        if isinstance(node, ast.Subscript):
            return self.symbol_of(node.value)
        refs: list[Ref] = []
        if isinstance(node, ast.Name):
            refs = [self.tree.canonical(ref) for ref in self.lookup(node.id)]
        elif isinstance(node, ast.Attribute) and (outer := self.module_of(node.value)):
            refs = [self.tree.canonical(("from", outer, node.attr))]
        return next((ref[1:] for ref in refs if ref[0] == "sym"), None)

    # the walk

    def visit(self, node: ast.AST) -> None:
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is not None:
            method(node)
        else:
            self.generic(node)

    def generic(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self.visit(child)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for child in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(child)
        self._rename_definition(node, "class")
        self.scopes.append(("class", bindings(node.body, self.module, False)))
        self.stack.append(node.name)
        for child in node.body:
            self.visit(child)
        self.stack.pop()
        self.scopes.pop()

    def visit_FunctionDef(self, node: Any) -> None:
        for child in [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(child)
        self._rename_definition(node, "def")
        self.stack.append(node.name)
        arguments = node.args
        for arg in [
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ]:
            if arg is not None:
                if arg.annotation is not None:
                    self.annotation(arg.annotation)
                if new := self.local(arg.arg):
                    self.edit(self.at(arg.lineno, arg.col_offset), arg.arg, new)
        if node.returns is not None:
            self.annotation(node.returns)
        self.scopes.append(("function", bindings(node.body, self.module, False, node.args)))
        for child in node.body:
            self.visit(child)
        self.scopes.pop()
        self.stack.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for child in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(child)
        self.scopes.append(("function", bindings([], self.module, False, node.args)))
        self.visit(node.body)
        self.scopes.pop()

    def comprehension(self, node: Any) -> None:
        names = {
            one.id: [OTHER] for each in node.generators for one in ast.walk(each.target) if isinstance(one, ast.Name)
        }
        self.visit(node.generators[0].iter)
        self.scopes.append(("function", names))
        self.generic(node)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension

    def _rename_definition(self, node: Any, word: str) -> None:
        new = None
        if self.scopes[-1][0] == "module":
            new = self.tree.renames.get((self.module.name, node.name)) if self.top is self.module.tree else None
        elif self.scopes[-1][0] == "class":
            new = next((m.new for m in self.members if m.old == node.name and self.is_in(m)), None)
        if new is None:
            new = self.local(node.name)
        if new:
            start = self.at(node.lineno, node.col_offset)
            match = re.compile(rf"(async\s+def|def|class)\s+({re.escape(node.name)})\b").match(self.text, start)
            assert match is not None, (self.module.rel, node.name)
            self.edit(match.start(2), node.name, new)

    def is_in(self, member: Member) -> bool:
        """Whether this is inside of the class of the member, or of a class that inherits it."""
        return any(name in self.stack for name in (member.of, *member.subclasses)) and (
            not member.modules or self.module.name in member.modules
        )

    def local(self, name: str) -> str | None:
        for each in self.tree.locals:
            if each.old == name and self.module.name == each.module:
                qualified = ".".join(self.stack)
                if qualified == each.function or qualified.startswith(each.function + "."):
                    return each.new
        return None

    def visit_Name(self, node: ast.Name) -> None:
        new = self.new_of(node.id) if not self._is_member(node) else None
        if new is None and self.scopes[-1][0] == "class":
            new = next((m.new for m in self.members if m.old == node.id and self.is_in(m)), None)
        new = new or self.local(node.id)
        if new:
            self.edit(self.at(node.lineno, node.col_offset), node.id, new)

    def _is_member(self, node: ast.Name) -> bool:
        return self.scopes[-1][0] == "class" and node.id in self.scopes[-1][1]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        outer = self.module_of(node.value)
        if outer is not None and (new := self.tree.renamed(("from", outer, node.attr))):
            self.edit_attribute(node, new)
        elif any(member.old == node.attr for member in self.members):
            receiver = ast.unparse(node.value)
            for member in self.members:
                if member.old == node.attr and (
                    (receiver in ("self", "cls") and self.is_in(member))
                    or (member.receivers and re.fullmatch(member.receivers, receiver))
                ):
                    self.edit_attribute(node, member.new)
                    break
        self.visit(node.value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = absolute(self.module, node)
        for alias in node.names:
            if new := self.tree.renamed(("from", base, alias.name)):
                self.edit(self.at(alias.lineno, alias.col_offset), alias.name, new)

    def visit_Global(self, node: ast.Global) -> None:
        start, end = self.span(node)
        for name in node.names:
            if new := self.tree.renames.get((self.module.name, name)):
                for word in re.finditer(rf"\b{name}\b", self.text[start:end]):
                    self.edit(start + word.start(), name, new)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self.annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def annotation(self, node: ast.expr) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                self.expression(one)
        self.visit(node)

    def expression(self, node: ast.Constant) -> None:
        """A string that is an expression: an annotation, or the first argument of `cast`."""
        try:
            parsed = ast.parse(node.value, mode="eval")
        except SyntaxError:
            return
        words = {one.id: new for one in ast.walk(parsed) if isinstance(one, ast.Name) if (new := self.new_of(one.id))}
        self.in_string(node, words)

    def visit_Call(self, node: ast.Call) -> None:
        called, symbol = ast.unparse(node.func), self.symbol_of(node.func)
        strings = [one for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if called.rpartition(".")[2] == "cast" and strings:
            self.expression(strings[0])
        if called.rpartition(".")[2] == "TypeVar":
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str):
                    self.expression(keyword.value)
        if len(node.args) >= 2 and strings and node.args[1] is strings[-1]:
            self.attribute_by_name(node.args[0], strings[-1])
        for keyword in node.keywords:
            new = None
            if keyword.arg is not None:
                for member in self.members:
                    if member.old == keyword.arg and symbol is not None and symbol[1] == member.of:
                        new = member.new
                for each in self.tree.locals:
                    if each.old == keyword.arg and (
                        (symbol == (each.module, each.function)) or (each.calls and re.fullmatch(each.calls, called))
                    ):
                        new = each.new
            if new:
                self.edit(self.at(keyword.lineno, keyword.col_offset), keyword.arg or "", new)
        self.generic(node)

    def attribute_by_name(self, of: ast.expr, name: ast.Constant) -> None:
        """`monkeypatch.setattr(module, "name", ...)` and the like."""
        outer = self.module_of(of)
        if outer is not None:
            if new := self.tree.renamed(("from", outer, name.value)):
                self.in_string(name, {name.value: new})
            return
        symbol = self.symbol_of(of)
        for member in self.tree.members:
            if member.old == name.value and (
                (symbol is not None and symbol[1] == member.of)
                or (member.receivers and re.fullmatch(member.receivers, ast.unparse(of)))
            ):
                self.in_string(name, {name.value: member.new})

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            start, end = self.span(node.value)
            self.prose(start, end)
        else:
            self.generic(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        before, self.joined = self.joined, self.joined or node
        if before is None:
            start, end = self.span(node)
            self.program(start, end, None)
        self.generic(node)
        self.joined = before

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and self.joined is None:
            for member in self.members:
                if node.value == member.old and member.old.startswith("_") and self.is_in(member):
                    self.in_string(node, {member.old: member.new})
            start, end = self.span(node)
            self.program(start, end, node.value)

    def in_string(self, node: ast.Constant, words: dict[str, str]) -> None:
        self.in_text(*self.span(node), words)

    def in_text(self, start: int, end: int, words: dict[str, str]) -> None:
        for old, new in words.items():
            for match in re.finditer(rf"(?:(?<=\\n)|(?<=\\t)|(?<!\w)){re.escape(old)}(?!\w)", self.text[start:end]):
                self.edits[start + match.start(), start + match.end()] = new

    def program(self, start: int, end: int, value: str | None) -> None:
        """A string that may be a program, or name a thing by its dotted path."""
        raw = self.text[start:end]
        if "penstock" not in raw:
            return
        for match in re.finditer(r"\bpenstock(?:\.\w+)+", raw):
            parts = match[0].split(".")
            for cut in range(len(parts) - 1, 0, -1):
                outer = ".".join(parts[:cut])
                if outer in self.tree.modules:
                    if new := self.tree.renamed(("from", outer, parts[cut])):
                        at = start + match.start() + len(outer) + 1
                        self.edits[at, at + len(parts[cut])] = new
                    break
        if "import" not in raw:
            return
        words: dict[str, str] = {}
        if value is not None and "\n" in value:
            try:
                parsed = ast.parse(dedent(value))
            except SyntaxError:
                pass
            else:
                inner = Walk(self.tree, self.module, dedent(value), parsed)
                words = {old: next(iter(new)) for old, new in inner.words.items() if len(new) == 1}
                self.in_text(start, end, words)
                return
        for match in re.finditer(r"from (penstock[\w.]*) import (\([^)]*\)|[^\n;\\]*)", raw):
            for name in re.findall(r"\w+", match[2]):
                if new := self.tree.renamed(("from", match[1], name)):
                    words[name] = new
        self.in_text(start, end, words)

    # prose

    @cached_property
    def visible(self) -> dict[str, str]:
        """The renamed names that this file knows, by their old name."""
        found: dict[str, set[str | None]] = defaultdict(set)
        for scope in [self.module.scope, *self.inner_scopes()]:
            for name, refs in scope.items():
                for ref in refs:
                    one = self.tree.canonical(ref)
                    if one[0] == "sym" and one[2] == name:
                        found[name].add(self.tree.renames.get(one[1:]))
        return {name: next(iter(new)) for name, new in found.items() if len(new) == 1 and None not in new}  # type: ignore

    def inner_scopes(self) -> Iterator[dict[str, list[Ref]]]:
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.ImportFrom):
                yield {
                    alias.asname or alias.name: [("from", absolute(self.module, node), alias.name)]
                    for alias in node.names
                }

    def prose(self, start: int, end: int) -> None:
        """Names in a docstring or a comment: in backticks, or capitalised in the middle of a sentence."""
        text = self.text[start:end]
        for old, new in self.visible.items():
            patterns = [rf"(?<=`){re.escape(old)}(?=[`.(\[])"]
            if re.match(r"_?[A-Z][a-z]", old):
                patterns += [
                    rf"(?<=`){re.escape(old)}(?=s?`)",
                    rf"(?<=[a-z,;)] ){re.escape(old)}s?(?![\w/-])",
                    rf"(?<=[\w`]\.){re.escape(old)}(?=[`.(\[])",
                ]
            for pattern in patterns:
                for match in re.finditer(pattern, text):
                    self.in_prose(start + match.start(), old, new)
        for old, new in self.inner_words():
            for match in re.finditer(rf"(?<=`){re.escape(old)}(?=[`(])", text):
                self.in_prose(start + match.start(), old, new)
        for match in re.finditer(r"\bpenstock(?:\.\w+)+", text):
            self.program(start + match.start(), start + match.end(), None)

    def inner_words(self) -> Iterator[tuple[str, str]]:
        """Members and variables that the docstring of a class or a function may name."""
        yield from ((member.old, member.new) for member in self.members if self.is_in(member))
        inside = ".".join(self.stack)
        for each in self.tree.locals:
            scope = each.function.removesuffix(".__init__")
            if each.module == self.module.name and inside and f"{inside}.".startswith(f"{scope}."):
                yield each.old, each.new

    def in_prose(self, at: int, old: str, new: str) -> None:
        self.edits[at, at + len(old)] = new
        article = re.search(r"\b([Aa]n?)( `?)$", self.text[max(0, at - 6) : at])
        if article is not None:
            begin = max(0, at - 6) + article.start()
            right = article[1][0] + "n" * (new.lstrip("_")[0] in "AEIOUaeiou")
            self.edits[begin, begin + len(article[1])] = right

    def comments(self) -> None:
        for token in tokenize.generate_tokens(StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                start = self.lines[token.start[0] - 1] + token.start[1]
                self.prose(start, start + len(token.string))


def applied(text: str, edits: dict[tuple[int, int], str]) -> str:
    last = len(text) + 1
    for (start, end), new in sorted(edits.items(), reverse=True):
        if end > last:
            raise AssertionError(f"two edits overlap at {start}: {text[start:end]!r}")
        text, last = text[:start] + new + text[end:], start
    return text


def planted(tree: Tree, walks: dict[str, Walk]) -> None:
    """The texts of planted bugs are parts of other files: the same names change in them."""
    for walk in walks.values():
        if not walk.module.rel.startswith("tests/planted/"):
            continue
        for node in ast.walk(walk.module.tree):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "Bug" and len(node.args) >= 5):
                continue
            try:
                file, old = (ast.literal_eval(arg) for arg in node.args[2:4])
            except ValueError:
                continue
            target = next((w for w in walks.values() if w.module.rel == f"src/penstock/{file}"), None)
            if target is None or target.text.count(old) != 1:
                tree.say(f"PLANTED    {node.args[0].value!r} has no place in {file}")  # type: ignore[attr-defined]
                continue
            begin = target.text.index(old)
            inside: dict[str, set[str]] = defaultdict(set)
            for (start, end), word in target.edits.items():
                if begin <= start and end <= begin + len(old):
                    inside[target.text[start:end]].add(word)
            words = {word: next(iter(names)) for word, names in inside.items() if len(names) == 1}
            count = Counter(re.findall(r"\w+", old))
            for word in [*words]:
                edited = sum(
                    target.text[s:e] == word for s, e in target.edits if begin <= s and e <= begin + len(old)
                )
                if edited != count[word]:
                    tree.say(f"PLANTED    {node.args[0].value!r}: {word} has two meanings in it")  # type: ignore
            more = {name: to for name, to in target.visible.items() if re.match(r"_?[A-Z][a-z]", name)}
            for arg in node.args[3:5]:
                walk.in_text(*walk.span(arg), {**more, **words})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tree", type=Path, default=HERE.parent)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--note", action="store_true")
    given = parser.parse_args()
    root = given.tree.resolve()
    tree = Tree(root)
    if given.note:
        return note(tree)
    walks = {}
    for name, module in tree.modules.items():
        if HERE in module.path.parents:
            continue
        walks[name] = walk = Walk(tree, module)
        walk.comments()
    planted(tree, walks)
    changed = {walk.module.path: applied(walk.text, walk.edits) for walk in walks.values() if walk.edits}
    count = sum(len(walk.edits) for walk in walks.values())
    documents(tree, changed)
    texts(tree, changed)
    modules(tree, changed)
    unused(tree, walks)
    print(*sorted(tree.said), sep="\n")
    print(f"{count} names in {len(changed)} files.")
    if given.dry:
        return 0
    for path, text in changed.items():
        path.write_text(text)
    for old, new in MODULES.items():
        before, after = (root / "src" / (name.replace(".", "/") + ".py") for name in (old, new))
        if before.exists():
            subprocess.run(["git", "mv", str(before), str(after)], cwd=root, check=True)
    ruff = root / ".venv/bin/ruff"
    command = str(ruff if ruff.exists() else HERE.parent / ".venv/bin/ruff")
    for arguments in (["format"], ["check", "--fix", "--select", "I"], ["format"]):
        subprocess.run([command, *arguments, "--quiet", "."], cwd=root, check=False)
    for path in (root / folder for folder in FOLDERS):
        for file in path.rglob("*.py"):
            rewrap(file)
    test = root / "tests/architecture/test_names.py"
    test.write_text((HERE / "test_names.py").read_text())
    subprocess.run([command, "format", "--quiet", "."], cwd=root, check=True)
    subprocess.run([command, "check", "."], cwd=root, check=False)
    return 0


def rewrap(path: Path) -> None:
    """Moves words of docstrings and comments that have become too long to the next line."""
    lines = path.read_text().split("\n")
    if max(map(len, lines)) <= WIDTH:
        return
    prose = {
        number
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, node.end_lineno or 0)  # the last line has the quotes
    }
    out: list[str] = []
    for number, line in enumerate(lines, 1):
        carried = out.pop() if out and out[-1].startswith("\0") else ""
        indent = re.match(r" *(# )?", line)
        assert indent is not None
        if carried:
            words, before = carried[1:].split("\0")
            follows = line.strip() and indent[0] == before and not re.match(r"(-|>>>|\*|`\w+`:)", line.strip(' "#'))
            if follows and not line.strip().startswith('"""'):
                line = indent[0] + words + " " + line[len(indent[0]) :]
            else:
                out.append(before + words)
        is_comment = line.strip().startswith("# ")
        if len(line) > WIDTH and (is_comment or number in prose):
            cut = line.rfind(" ", 0, WIDTH + 1)
            while line.count("`", 0, cut) % 2:  # not inside of backticks
                cut = line.rfind(" ", 0, cut)
            out += [line[:cut], f"\0{line[cut + 1 :]}\0{indent[0]}"]
        else:
            out.append(line)
    path.write_text("\n".join(out))


def note(tree: Tree) -> int:
    notes = {}
    for symbol in SYMBOLS:
        for module, node in tree.by_name.get(symbol.old, ()):
            if module == symbol.module:
                notes[key_of(symbol)] = noted(node)
    (HERE / "known.json").write_text(json.dumps(notes, indent=1) + "\n")
    print(f"{len(notes)} of {len(SYMBOLS)} definitions are noted.")
    return 0


def every_text(tree: Tree) -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=tree.root, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        path = tree.root / name
        if (
            path.suffix in (".py", ".md", ".toml", ".txt", ".pyi", "")
            and not name.startswith("rename/")
            and path.is_file()
        ):
            yield path


def read(path: Path, changed: dict[Path, str]) -> str:
    try:
        return changed[path] if path in changed else path.read_text()
    except UnicodeDecodeError:
        return ""


def documents(tree: Tree, changed: dict[Path, str]) -> None:
    """Names in documents: in backticks, if there is one meaning; and in lists of places, `path.py: Class.method`."""
    meanings: dict[str, set[str]] = defaultdict(set)
    for name, places in tree.by_name.items():
        meanings[name] = {tree.renames.get((place, name), "") for place, _ in places}
    by_path = {module.rel.removeprefix("src/penstock/"): module.name for module in tree.modules.values()}

    def of_path(match: re.Match[str]) -> str:
        new = tree.renames.get((by_path.get(match[1], ""), match[3]))
        return match[0] if new is None else f"{match[1]}{match[2]}{new}"

    for path in every_text(tree):
        if path.name == "CHANGELOG.md" or path.suffix not in (".md", ".py"):
            continue
        text = before = read(path, changed)
        text = re.sub(r"([\w/]+\.py)(: |::)(_?[A-Z]\w*)", of_path, text)
        if path.suffix == ".md":
            for match in reversed([*re.finditer(r"`(_?[A-Z][a-z]\w*)(?=[`.(])", text)]):
                new = meanings.get(match[1], set())
                if len(new) == 1 and "" not in new:
                    name = next(iter(new))
                    before_it = re.sub(
                        r"\b([Aa])n?( `)$", rf"\1{'n' * (name[0] in 'AEIOU')}\2", text[: match.start(1)]
                    )
                    text = before_it + name + text[match.end(1) :]
                elif new - {""}:
                    line = text.count("\n", 0, match.start()) + 1
                    tree.say(f"DOCUMENT   {path.relative_to(tree.root)}:{line}: {match[1]} may be {sorted(new)}")
        if text != before:
            changed[path] = text


def texts(tree: Tree, changed: dict[Path, str]) -> None:
    """Exact texts: words in prose, and what no rule finds."""
    for each in TEXTS:
        path = tree.root / each.file
        places = [path] if path.exists() else []
        if not places or each.old not in read(path, changed):
            if places and each.new in read(path, changed):
                tree.say(f"DONE       {each.file}: {each.new[:60]!r} is there already")
                continue
            folder = each.file.partition("/")[0]
            places = [
                one
                for one in (tree.root / folder).rglob("*")
                if one.suffix in (".py", ".md") and each.old in read(one, changed)
            ]
        if len(places) != 1:
            tree.say(f"NOT FOUND  {each.file}: the text {each.old[:70]!r}")
            continue
        changed[places[0]] = read(places[0], changed).replace(each.old, each.new)


def modules(tree: Tree, changed: dict[Path, str]) -> None:
    """Modules whose name was that of their class: their paths and dotted names, in all texts."""
    for old, new in MODULES.items():
        if old not in tree.modules:
            tree.say(f"{'DONE      ' if new in tree.modules else 'NOT FOUND '} module {old} -> {new}")
            continue
        old_path, new_path = (name.partition(".")[2].replace(".", "/") + ".py" for name in (old, new))
        package, _, leaf = old.rpartition(".")
        for path in every_text(tree):
            text = before = read(path, changed)
            text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, text)
            text = re.sub(rf"(?<![\w]){re.escape(old_path)}", new_path, text)
            text = re.sub(
                rf"(from {re.escape(package)} import [^\n]*\b){leaf}\b", rf"\g<1>{new.rpartition('.')[2]}", text
            )
            if text != before:
                changed[path] = text


def unused(tree: Tree, walks: dict[str, Walk]) -> None:
    """Renames without an effect, and mentions of an old name in documents that need a look."""
    made = Counter(new for walk in walks.values() for new in walk.edits.values())
    for each in [*MEMBERS, *LOCALS]:
        if not made[each.new]:
            where = each.of if isinstance(each, Member) else f"{each.module}.{each.function}"
            tree.say(f"NO USE     {where}: {each.old} -> {each.new}")


if __name__ == "__main__":
    sys.exit(main())
