"""The report without a browser: its structure, its escaping, its size. `make browser` looks at it."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reported import HOSTILE, history, stats

import penstock
from penstock.stats import Bucket, Memory, Moment, Period, Stats
from penstock.stats._report import page, write

VOID = {"meta", "link"}
SVG = {"path", "rect"}


class Page(HTMLParser):
    """The elements of a page in their order, its text, and the rows of its tables. Refuses what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.cells: dict[str, list[list[str]]] = {}
        self.table = ""
        self.feed(page)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attributes)))
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = dict(attributes)["id"] or ""
            self.cells[self.table] = []
        elif tag == "tr":
            self.cells[self.table].append([])
        elif tag in ("td", "th"):
            self.cells[self.table][-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in SVG, f"<{tag}/> is an open element in HTML"
        self.elements.append((tag, tuple(name for name, _ in attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open[-1:] in (["td"], ["th"]):
            self.cells[self.table][-1][-1] += data

    @property
    def text(self) -> str:
        return "".join(self.words)


EMPTY = Stats("a new loader", {}, Period(), Period())
KINDS = {
    "full": stats(),
    "long": stats(moments=20_000, crew=128, decisions=100),
    "one moment": stats(moments=1),
    "no history": stats(moments=0, decisions=0),
    "empty": EMPTY,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_element_is_closed(kind: str) -> None:
    found = Page(page(KINDS[kind]))
    assert [tag for tag, _ in found.elements].count("section") >= 10


def test_no_url_is_in_the_page() -> None:
    whole = page(stats())
    assert "//" not in whole and "url(" not in whole
    assert "@import" not in whole and "@font-face" not in whole
    found = Page(whole)
    addresses = [value for _, name, value in found.attributes if name in ("src", "href", "srcset", "action")]
    assert addresses == ["data:,"]
    assert "default-src 'none'" in whole


def test_the_policy_allows_the_script_of_the_page_and_no_other() -> None:
    whole = page(stats())
    (script,) = re.findall(r"<script>(.*?)</script>", whole, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (allowed,) = re.findall(r"script-src ([^;\"]*)", whole)
    assert allowed == f"'sha256-{digest}'"


def test_a_hostile_text_is_text_wherever_the_user_can_put_one() -> None:
    found = Page(page(stats(text=HOSTILE)))
    assert [tag for tag, _ in found.elements].count("script") == 1
    assert found.cells["slowest"][1][0] == HOSTILE
    assert HOSTILE in found.cells["decisions"][1][3]
    assert found.text.count(HOSTILE) > 25


PLAIN = Page(page(stats(4, 2, "plain"))).elements


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_the_elements_of_the_page_do_not_depend_on_text(text: str) -> None:
    assert Page(page(stats(4, 2, text))).elements == PLAIN


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(categories=["Cs", "Cc", "Cf", "Lu"]), min_size=1, max_size=10))
def test_any_text_can_be_written_to_a_file(text: str) -> None:
    page(stats(2, 1, text)).encode()


class Bad:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_setting_whose_repr_raises_does_not_spoil_the_page() -> None:
    assert "whose repr() raised RuntimeError" in page(stats(settings={"dataset": Bad()}))


def test_a_long_text_is_shortened() -> None:
    assert len(page(stats(text="x" * 1_000_000))) < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_smaller_than_200_kb(kind: str) -> None:
    assert len(page(KINDS[kind]).encode()) < 200_000


def test_all_numbers_are_in_tables() -> None:
    found = Page(page(stats(moments=40)))
    assert found.cells["history"][0] == [
        "seconds", "batches", "per second", "waiting", "ready", "busy", "workers", "lent", "pooled",
    ]  # fmt: skip
    assert len(found.cells["history"]) == 1 + 40
    last = history(40)[-1]
    assert found.cells["history"][-1][:2] == ["20.00", f"{last.batches:,}"]
    assert len(found.cells["workers"]) == 1 + 8
    assert len(found.cells["slowest"]) == 1 + 10
    figures = {row[0]: row[1:] for row in found.cells["figures"][1:]}
    assert figures["crashed workers"] == ["0", "1"]
    waits = next(cells for name, *cells in found.cells["figures"] if "longest" in name)
    assert [cell.split(" / ")[2] for cell in waits] == ["200 ms", "1.12 s"]


def test_the_verdict_stands_on_top() -> None:
    found = Page(page(stats()))
    assert stats().verdict
    assert found.text.index(stats().verdict) < found.text.index("Waiting and working")


def test_without_a_verdict_the_page_says_so() -> None:
    assert "No batch was handed out yet." in Page(page(EMPTY)).text


def test_an_epoch_that_is_the_whole_life_has_one_column() -> None:
    found = Page(page(stats(life=replace(stats().life, epochs=1))))
    assert found.cells["figures"][0] == ["", "all epochs"]


def test_a_long_history_keeps_its_last_moment() -> None:
    found = Page(page(stats(moments=1999)))
    assert 150 <= len(found.cells["history"]) <= 301
    assert found.cells["history"][-1][0] == "999.50"


def test_a_pause_is_neither_waiting_nor_working() -> None:
    rows = (Moment(1, 5, 0.5, 0.5, 1, 1, 1, 1, 1), Moment(2, 5, 0.5, 0.5, 1, 1, 1, 1, 1))
    found = Page(page(stats(history=rows)))
    assert [row[3] for row in found.cells["history"]] == ["waiting", "50 %", ""]


numbers = st.integers(0, 10**10).map(lambda milliseconds: milliseconds / 1000)
whole = st.integers(0, 10**12)
moments = st.builds(Moment, numbers, whole, numbers, numbers, whole, whole, whole, whole, whole)


@settings(max_examples=30, deadline=None)
@given(st.lists(moments, max_size=5), st.lists(st.integers(0, 10**9), max_size=5), whole)
def test_any_figures_make_a_page(rows: list[Moment], counts: list[int], lent: int) -> None:
    rows.sort(key=lambda row: row.at)
    buckets = tuple(Bucket(2.0**i * 1e-6, 2.0 ** (i + 1) * 1e-6, n) for i, n in enumerate(counts))
    life = Period(samples=sum(counts), sample_times=buckets)
    made = Stats("any", {}, Period(), life, history=tuple(rows), memory=Memory(lent))
    whole = page(made)
    Page(whole)
    assert not re.search(r"\b(nan|inf)\b", whole)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    reader = path.open()
    write(stats(), path)
    assert reader.read() == "before"
    assert path.read_text() == page(stats())
    assert list(tmp_path.iterdir()) == [path]
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    reader.close()


def test_a_path_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write(stats(), tmp_path / "folder")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(mode: str) -> None:
    style = files("penstock.stats").joinpath("report.css").read_text()
    blocks: list[Any] = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", blocks[mode == "dark"]))
    assert len(colours) == 16
    grounds = [colours.pop(name) for name in ("page", "card")]
    texts = [colours.pop(name) for name in ("ink", "soft")]
    del colours["edge"], colours["grid"]
    assert all(contrast(text, ground) >= 4.5 for text in texts for ground in grounds)
    weak = {name: round(contrast(colour, grounds[1]), 2) for name, colour in colours.items()}
    assert min(weak.values()) >= 3, weak


class Rows:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> int:
        return key


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_writes_its_own_page(workers: int, tmp_path: Path) -> None:
    with penstock.DataLoader(Rows(), 4, num_workers=workers) as loader:
        assert len(list(loader)) == 10
        loader.report(tmp_path / "report.html")
    found = Page((tmp_path / "report.html").read_text())
    assert "DataLoader(Rows)" in found.text and "10 batches in" in found.text


def test_a_folder_that_is_not_there_is_an_error_with_the_path_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*/missing/report\.html'$"):
        write(stats(moments=0), tmp_path / "missing" / "report.html")
