"""The report: an HTML page of a loader's figures, made only from a `Stats`.

The page contains its own style and script. Its Content-Security-Policy forbids all requests and all other scripts.
All numbers are on the page as text and tables; the script only shows them next to the mouse pointer.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from penstock._system import trust
from penstock.stats import _panels as panels
from penstock.stats._facts import Facts
from penstock.stats._figures import Stats
from penstock.stats._markup import text


def write(stats: Stats, path: str | os.PathLike[str]) -> None:
    """Writes the page. The file is replaced atomically, so readers never see an incomplete page."""
    target = Path(path)
    data = page(stats).encode()

    def write_page(fd: int) -> None:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)

    try:
        trust.replace(os.fspath(target), write_page)
    except OSError as error:  # its message names the temporary file
        raise type(error)(error.errno, error.strerror, str(target)) from None


def page(stats: Stats) -> str:
    """Returns an HTML page of at most 200 KB that needs no other files and no network."""
    style, script = (
        files("penstock.stats").joinpath(name).read_text("utf-8") for name in ("report.css", "report.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>penstock: {text(stats.name)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{chr(10).join(_sections(stats))}\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(stats: Stats) -> Iterator[str]:
    moments, found = panels.thinned(stats.history), Facts(stats)
    yield panels.title(found)
    yield panels.verdict(stats)
    yield panels.tiles(found)
    yield panels.timeline(moments)
    yield panels.workers(found.period.workers, found.scope)
    yield panels.samples(found.period, found.scope)
    yield f'<div class="pair">{panels.ready(moments)}{panels.memory(stats, moments)}</div>'
    yield panels.tuning(stats, moments)
    beside = panels.first(stats) + panels.settings(stats) + panels.machine(stats)
    yield f'<div class="pair"><div>{panels.figures(stats)}</div><div>{beside}</div></div>'
    yield panels.history(moments, len(stats.history))
