"""Docstrings as Markdown: examples become code blocks, names and pages that they mention become links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

from website.pages import DOCS, title_of
from website.reference import homes, modules

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1.*\S.*)*", re.MULTILINE)
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?")
_CODE = re.compile(r"(?<![\[`])`([A-Za-z_][\w.]*)((?:\([^`]*\))?)`(?![`\]])")


class Docstrings(griffe.Extension):
    """Reached by mkdocstrings as `website/docstrings.py`."""

    def __init__(self) -> None:
        known = {f"{module}.{name}" for module, names in modules().items() for name in names}
        self._known = known | modules().keys()
        self._short = {
            home.name: f"{home.module}.{home.name}" for home in homes().values() if home.module == "penstock"
        }

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and not obj.docstring.value.startswith(_DONE):
            obj.docstring.value = _DONE + self.as_markdown(obj.docstring.value, obj.name)

    def as_markdown(self, text: str, own_name: str = "") -> str:
        parts, at = [], 0
        for example in _EXAMPLE.finditer(text):
            parts += [self._linked(text[at : example.start()], own_name), _fenced(example)]
            at = example.end()
        return "".join([*parts, self._linked(text[at:], own_name)])

    def _linked(self, text: str, own_name: str) -> str:
        text = _CODE.sub(lambda found: self._code(found, own_name), text)
        return _PAGE.sub(_page, text)

    def _code(self, found: re.Match[str], own_name: str) -> str:
        name = found[1]
        target = name if name in self._known else self._short.get(name)
        return f"[{found[0]}][{target}]" if target and name.rpartition(".")[2] != own_name else found[0]


_DONE = "\u200b"  # invisible: an object that two modules export is visited twice


def _fenced(example: re.Match[str]) -> str:
    indent = len(example[1])
    lines = [line[indent:] for line in example[0].splitlines()]
    return "\n".join(["```pycon", *lines, "```"])


def _page(found: re.Match[str]) -> str:
    path: Path = DOCS / found[1]
    return f"[{title_of(path)}](../{found[1]}{found[2] or ''})"
