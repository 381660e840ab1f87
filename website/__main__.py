"""Builds the site into build/site: `python -m website`, or `make docs`.

Pages are copied to build/pages, with links that lead to copies of files outside of docs/. Zensical makes HTML of
them, and every link, anchor and request of the result is checked. A page that docs/index.md does not list, a dead
link, or a dead reference in a docstring fails the build.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from website import checking, reference
from website.pages import DOCS, ROOT, Group, SiteError, contents, copied, decisions, place

BUILD = ROOT / "build"
PAGES, SITE = BUILD / "pages", BUILD / "site"
SUMMARY = (
    "A data loader for Python: it turns a dataset into a stream of batches, prefetched by workers. "
    "The stream is the same for any number of workers, and continues exactly where a run stopped."
)


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    try:
        stage()
        build()
        checking.check(SITE)
    except SiteError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    publish_texts()
    print(f"written: {SITE.relative_to(ROOT)}/index.html")
    return 0


def stage() -> None:
    groups = contents()
    listed = [page.path for group in groups for page in group.pages]
    copied([DOCS / "index.md", *listed, *(page.path for page in decisions())], PAGES)
    shutil.copytree(DOCS / "pictures", PAGES / "pictures", dirs_exist_ok=True)
    (PAGES / "assets").mkdir()
    for asset in ("site.css", "iframe-worker.js"):
        shutil.copy(Path(__file__).parent / asset, PAGES / "assets")
    for path, text in reference.pages().items():
        (PAGES / path).parent.mkdir(exist_ok=True)
        (PAGES / path).write_text(text)
    (BUILD / "zensical.toml").write_text(settings(groups))


def settings(groups: list[Group]) -> str:
    """The settings of Zensical, with the navigation and with paths of this machine."""
    text = (Path(__file__).parent / "zensical.toml").read_text()
    text = text.replace('"website/', f'"{ROOT}/website/')
    text = text.replace(
        "[project.plugins.mkdocstrings.handlers.python.options]",
        f"[project.plugins.mkdocstrings.handlers.python]\npaths = {json.dumps([str(reference.SOURCES)])}\n\n"
        "[project.plugins.mkdocstrings.handlers.python.options]",
    )
    whole = text.replace("[project]\n", f"[project]\nnav = {_toml(navigation(groups))}\n", 1)
    tomllib.loads(whole)
    return whole


def navigation(groups: list[Group]) -> list[Any]:
    entries: list[Any] = [{"Home": "index.md"}]
    for group in groups:
        pages: list[Any] = []
        for page in group.pages:
            if page.path.parent.name == "decisions":
                each = [{decision.title: place(decision.path)} for decision in decisions()]
                pages.append({page.title: [place(page.path), *each]})
            else:
                pages.append({page.title: place(page.path)})
        entries.append({group.title: pages})
    names = [Path(path).name.removesuffix(".md") for path in reference.pages()]
    entries.insert(-1, {"Reference": [{name: f"reference/{name}.md"} for name in names]})
    return entries


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def build() -> None:
    """Runs Zensical. mkdocstrings reports what it cannot find as a line of its log, which --strict does not count."""
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--clean",
        "--config-file",
        str(BUILD / "zensical.toml"),
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    complaints = [line for line in said.splitlines() if "ERROR" in line or "WARNING" in line]
    if ran.returncode or complaints:
        raise SiteError(f"zensical ended with exit code {ran.returncode}:\n{said}")


def publish_texts() -> None:
    """Puts the pages as Markdown beside the HTML, and a list of them, llms.txt, for programs that read."""
    for path in PAGES.rglob("*.md"):
        if not path.is_relative_to(PAGES / "reference"):
            target = SITE / path.relative_to(PAGES)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    (SITE / "llms.txt").write_text(llms(contents()))


def llms(groups: list[Group]) -> str:
    lines = ["# penstock", "", f"> {SUMMARY}", ""]
    for group in groups:
        lines += [f"## {group.title}", ""]
        lines += [f"- [{page.title}]({place(page.path)}): {page.description}" for page in group.pages]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
