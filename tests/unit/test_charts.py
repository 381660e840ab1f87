"""The charts show what the newest results say, and are drawn anew when there are newer ones."""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench import charts, dated
from bench.peers import TENSOR_ENGINES

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
DRAWN = charts.draw()


@pytest.mark.parametrize("name", DRAWN)
def test_the_pictures_are_those_of_the_newest_results(name: str) -> None:
    """After new results: `python -m bench.charts`."""
    assert (PICTURES / name).read_text() == DRAWN[name]


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_well_formed_and_nothing_is_outside_of_it(name: str) -> None:
    root = ET.fromstring(DRAWN[name])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        x, y, size = (float(text.attrib[key]) for key in ("x", "y", "font-size"))
        assert text.text
        length = 0.62 * size * len(text.text)  # more than a letter of these fonts has on average
        left = {"start": x, "middle": x - length / 2, "end": x - length}[text.attrib["text-anchor"]]
        assert left >= 0 and left + length <= width + 40 and 0 < y < height, text.text


def test_the_page_has_the_charts_that_are_drawn_and_no_others() -> None:
    page = charts.PAGE.read_text()
    assert charts.placed(page, DRAWN) == page
    assert set(re.findall(r"pictures/(\S+\.svg)", page)) == set(DRAWN)
    assert "pictures/" not in charts.placed(page, [])
    assert charts.placed(charts.placed(page, []), DRAWN) == page


def test_every_row_of_the_newest_results_is_in_the_chart_of_speed() -> None:
    day, content = dated.newest()
    drawn = DRAWN["speed-light.svg"]
    assert day in drawn
    for name, found in content["results"].items():
        if {"penstock", *TENSOR_ENGINES} & set(found):
            assert charts.WORDS.get(name, name) in drawn


def test_penstock_is_compared_with_the_fastest_of_the_others() -> None:
    assert (
        charts._ahead({"penstock": 100.0, "torch": 10.0, "spdl": 50.0, "limit": 200.0}, more_is_better=True) == "2x"
    )
    assert charts._ahead({"penstock": 100.0, "torch": 50.0, "spdl": 400.0}, more_is_better=False) == "0.5x"
    assert charts._ahead({"penstock": 1.0, "limit": 2.0}, more_is_better=True) == ""


def test_the_newest_results_of_a_kind_are_found(tmp_path: Path) -> None:
    for name in ("2026-11-15", "2026-11-16", "2026-11-17-memory", "2026-11-09-memory", "2026-11-18-memory-x"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"results": name}))
    (tmp_path / "2026-11-20.md").write_text("")
    assert dated.newest(folder=tmp_path) == ("2026-11-16", {"results": "2026-11-16"})
    assert dated.newest("memory", tmp_path) == ("2026-11-17", {"results": "2026-11-17-memory"})
    with pytest.raises(FileNotFoundError, match="no results of resume"):
        dated.newest("resume", tmp_path)


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_the_tables_of_ratios_are_those_of_the_newest_results(page: str) -> None:
    text = (PICTURES.parents[1] / page).read_text()
    day, content = dated.newest()
    for mark in ("bench", "bench-torch"):
        part = text.partition(f"<!-- {mark}:begin")[2].partition(f"<!-- {mark}:end -->")[0]
        assert f"bench/results/{day}.md)" in part
        line = next(line for line in part.splitlines() if line.startswith(("| rows |", "| tensor_rows |")))
        name, *cells = line.strip("| ").split(" | ")
        found = {engine: statistics.median(each) for engine, each in content["results"][name].items()}
        own = "penstock" if mark == "bench" else "penstock_torch"
        assert float(cells[0]) == pytest.approx(found[own] / found["torch"], rel=0.01)
