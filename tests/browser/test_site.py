"""The built site in a browser, opened from its folder: `make browser` builds it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains

from browser.window import Window

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = [
    "index.html",
    "guide.html",
    "benchmarks.html",
    "tables.html",
    "resume-compared.html",
    "reference/penstock.html",
]


@pytest.fixture(autouse=True)
def built() -> None:
    if not (SITE / "index.html").is_file():
        pytest.skip("build/site is made by `make docs`")


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_asks_no_server(window: Window, pictures: Path, page: str, width: int, mode: str) -> None:
    window.show((SITE / page).as_uri(), width, mode)
    wide = window.run("return document.documentElement.scrollWidth")
    assert wide <= width, "nothing sticks out"
    assert window.complaints() == []
    assert {address.split(":")[0] for address in window.requests()} <= {"file", "data"}
    window.picture(pictures / f"site-{page.replace('/', '-').removesuffix('.html')}-{width}-{mode}.png")


@pytest.mark.parametrize(("mode", "shown", "hidden"), [("light", "light", "dark"), ("dark", "dark", "light")])
def test_a_chart_has_the_colours_of_the_page(window: Window, mode: str, shown: str, hidden: str) -> None:
    window.show((SITE / "benchmarks.html").as_uri(), mode=mode)
    heights: Any = window.run(
        "return Object.fromEntries([...document.querySelectorAll('article img')].map(e => [e.src, e.offsetHeight]))"
    )
    assert {address for address, height in heights.items() if height} == {a for a in heights if f"-{shown}.svg" in a}
    assert {address for address, height in heights.items() if not height} == {
        a for a in heights if f"-{hidden}.svg" in a
    }


# The search is in a shadow tree, which `querySelectorAll` of the page does not see.
DEEP = """
    const inside = e => e.shadowRoot ? [e, ...deep(e.shadowRoot)] : [e];
    const deep = root => [...root.querySelectorAll('*')].flatMap(inside);
    const waited = async test => {
        const pause = () => new Promise(go => setTimeout(go, 50));
        for (let turn = 0; turn < 200 && !deep(document).some(test); turn++) await pause();
        return deep(document).some(test);
    };
"""
FOCUSED = "return await waited(e => e.tagName == 'INPUT' && e.offsetHeight && e.getRootNode().activeElement == e)"
FOUND = "return await waited(e => e.tagName == 'A' && /reference.penstock.html.*#penstock.cu_seqlens$/.test(e.href))"


def test_the_search_finds_a_name_without_a_server(window: Window, pictures: Path) -> None:
    window.show((SITE / "index.html").as_uri())
    window.run("document.querySelector('.md-search__button').click()")
    assert window.run(DEEP + FOCUSED)
    ActionChains(window.driver).send_keys("cu_seqlens").perform()
    assert window.run(DEEP + FOUND)
    assert window.complaints() == []
    window.picture(pictures / "site-search.png")
