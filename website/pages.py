"""Which pages the site has, and where each is: docs/index.md lists them, and this is the navigation too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONTENTS = "## All pages"

_ENTRY = re.compile(r"^- \[([^]]+)\]\(([^)#]+)\)(?:: (.*))?$")
_LINK = re.compile(r"(?<!\\)\[((?:`[^`]*`|[^][`])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img src="([^"]+)" alt="([^"]*)"[^>]*>\s*</picture>'
)


class SiteError(Exception):
    """The pages do not fit together; the message names the file to edit."""


@dataclass(frozen=True)
class Page:
    title: str
    path: Path
    description: str = ""


@dataclass(frozen=True)
class Group:
    """Pages under one heading of the list in docs/index.md."""

    title: str
    pages: list[Page]


def contents(docs: Path = DOCS) -> list[Group]:
    """The groups and pages of the list in docs/index.md. Every page of docs/ must be there, once."""
    _, found, listed = (docs / "index.md").read_text().partition(f"\n{CONTENTS}\n")
    if not found:
        raise SiteError(f'docs/index.md has no heading "{CONTENTS}", below which all pages are listed')
    groups: list[Group] = []
    for line in _joined(listed):
        if line.startswith("## "):
            break
        if line.startswith("### "):
            groups.append(Group(line.removeprefix("### "), []))
        elif line.startswith("- "):
            entry = _ENTRY.match(line)
            if not entry or not groups:
                raise SiteError(
                    f'docs/index.md: this line is not "- [Title](page.md): its content" below a "### Group": {line}'
                )
            groups[-1].pages.append(Page(entry[1], (docs / entry[2]).resolve(), entry[3] or ""))
    _check(groups, docs)
    return groups


def _joined(text: str) -> list[str]:
    """The lines of a list, with continued lines joined."""
    return re.sub(r"\n {2,}(?=\S)", " ", text).splitlines()


def _check(groups: list[Group], docs: Path) -> None:
    listed = [page.path for group in groups for page in group.pages]
    there = {path.resolve() for path in docs.glob("**/*.md")}
    decisions = {path for path in there if path.parent.name == "decisions" and path.name != "README.md"}
    missing = there - decisions - set(listed) - {(docs / "index.md").resolve()}
    twice = {path for path in listed if listed.count(path) > 1}
    dead = {path for path in listed if not path.is_file()}
    for paths, what in (
        (missing, f'are not listed in docs/index.md below "{CONTENTS}": add a line to the group where they belong'),
        (twice, "are listed more than once in docs/index.md"),
        (dead, "are listed in docs/index.md, and do not exist"),
    ):
        if paths:
            names = ", ".join(sorted(os.path.relpath(path, docs.parent) for path in paths))
            raise SiteError(f"{len(paths)} pages {what}: {names}")


def decisions() -> list[Page]:
    """The decisions that docs/decisions/README.md lists."""
    folder = DOCS / "decisions"
    lines = (folder / "README.md").read_text().splitlines()
    return [Page(entry[1], folder / entry[2]) for line in lines if (entry := _ENTRY.match(line))]


def title_of(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")


def place(path: Path) -> str:
    """Where a file of the repository is among the pages of the site. Those outside of docs/ are in repository/."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = f"repository/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix == ".md" else f"{name}.md"


def links(text: str) -> list[re.Match[str]]:
    """The links of a page, without those in code blocks."""
    blocks = [match.span() for match in _FENCE.finditer(text)]
    return [match for match in _LINK.finditer(text) if not any(begin <= match.start() < end for begin, end in blocks)]


def copied(files: list[Path], folder: Path) -> None:
    """Copies pages below the folder, with all files of the repository that they link to."""
    waiting, done = list(files), set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        text, others = _as_page(path)
        waiting += others
        target = folder / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def _as_page(path: Path) -> tuple[str, list[Path]]:
    """The text of a page on the site, and the files outside of docs/ that it links to."""
    text = path.read_text()
    if path.suffix != ".md":
        return f"# {path.relative_to(ROOT).as_posix()}\n\n````{path.suffix[1:]}\n{text}````\n", []
    others, parts, at = [], [], 0
    for link in links(text):
        target = (path.parent / link[2]).resolve()
        if not link[2] or "://" in link[2] or (target.is_relative_to(DOCS) and path.is_relative_to(DOCS)):
            continue
        if not target.is_file():
            raise SiteError(f"{path.relative_to(ROOT)} links to {link[2]}, which is not a file")
        if not target.is_relative_to(DOCS):
            others.append(target)
        to = os.path.relpath(place(target), Path(place(path)).parent)
        parts += [text[at : link.start()], f"[{link[1]}]({to}{link[3] or ''})"]
        at = link.end()
    whole = "".join([*parts, text[at:]])
    return _PICTURE.sub(r"![\3](\2#only-light)\n![\3](\1#only-dark)", whole), others
