"""The report in a browser: it is drawn, it fits, it asks for nothing, and what it shows is text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reported import HOSTILE, stats

import penstock
from browser.window import Window
from penstock.stats import Period, Stats
from penstock.stats._report import page, write

WIDTHS = (1280, 390, 360)
MODES = ("light", "dark")
KINDS = {
    "full": stats(),
    "hostile": stats(text=HOSTILE + "x" * 200, crew=3),
    "long": stats(5000, 40, decisions=30),
    "empty": Stats("a new loader", {}, Period(), Period()),
}


@pytest.fixture
def made(tmp_path: Path) -> Any:
    def make(figures: Stats) -> str:
        path = tmp_path / "report.html"
        write(figures, path)
        return path.as_uri()

    return make


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_drawn(window: Window, made: Any, pictures: Path, kind: str, width: int, mode: str) -> None:
    url = made(KINDS[kind])
    window.show(url, width, mode)
    assert window.run("return document.documentElement.scrollWidth") == width, "nothing sticks out"
    heights = window.run("return [...document.querySelectorAll('section')].map(e => e.offsetHeight)")
    assert len(heights) >= 10 and min(heights) > 30
    assert window.complaints() == []
    assert {address.split(":")[0] for address in window.requests() if address != url} <= {"data"}
    window.picture(pictures / f"{kind}-{width}-{mode}.png")


def test_light_and_dark_differ(window: Window, made: Any) -> None:
    colours = []
    for mode in MODES:
        window.show(made(stats()), mode=mode)
        colours.append(window.run("return getComputedStyle(document.body).backgroundColor"))
    light, dark = (sum(map(int, colour.strip("rgb()").split(","))) for colour in colours)
    assert light > 600 and dark < 150


OVERLAPS = """
    const found = [];
    for (const axis of document.querySelectorAll('.xs, .ys')) {
        const boxes = [...axis.children].map(e => [e.textContent, e.getBoundingClientRect()]);
        boxes.forEach(([text, box], i) => boxes.slice(i + 1).forEach(([other, b]) => {
            if (box.left < b.right && b.left < box.right && box.top + 2 < b.bottom && b.top + 2 < box.bottom)
                found.push(text + ' and ' + other);
        }));
        for (const [text, box] of boxes)
            if (box.left < 0 || box.right > innerWidth) found.push(text + ' is outside');
    }
    return found;
"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["full", "long"])
def test_no_label_of_an_axis_lies_over_another(window: Window, made: Any, kind: str, width: int) -> None:
    window.show(made(KINDS[kind]), width)
    assert window.run(OVERLAPS) == []


def test_a_hostile_key_is_text(window: Window, made: Any) -> None:
    window.show(made(stats(text=HOSTILE)))
    assert window.run("return document.querySelector('#slowest td').textContent") == HOSTILE
    assert window.run("return document.querySelector('h1').textContent") == HOSTILE
    assert window.run("return document.scripts.length") == 1
    assert window.complaints() == []


def test_the_policy_stops_a_script_and_a_request_that_should_not_be_there(window: Window, tmp_path: Path) -> None:
    """The second line of defence; and the tests above would notice both."""
    intruder = "<script>document.title = 'ran'</script><img src='http://127.0.0.1:9/x.png'>"
    path = tmp_path / "report.html"
    path.write_text(page(stats()).replace("</main>", f"</main>{intruder}"))
    window.show(path.as_uri())
    assert window.run("return document.title") != "ran"
    assert len([text for text in window.complaints() if "Content Security Policy" in text]) == 2
    path.write_text(path.read_text().replace("Content-Security-Policy", "X"))
    window.show(path.as_uri())
    assert window.run("return document.title") == "ran"
    assert "http://127.0.0.1:9/x.png" in window.requests()


def middle(window: Window, selector: str) -> tuple[float, float]:
    """Where the middle of an element is in the window, after scrolling to it."""
    x, y = window.run(
        "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
        "for (const _ of [1, 2]) await new Promise(requestAnimationFrame);"  # the event comes with the next frame
        "const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]",
        selector,
    )
    return x, y


TIP = "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_numbers_appear_beside_the_pointer(window: Window, made: Any, width: int) -> None:
    window.show(made(stats()), width)
    assert window.run(TIP) is None
    window.move_to(*middle(window, ".area"))
    cells = window.run("return [...document.getElementById('history').rows[60].cells].map(cell => cell.textContent)")
    assert window.run(TIP) == f"{cells[0]} s\nwaiting: {cells[3]}\nper second: {cells[2]}"
    assert cells[0] == "30.00"
    window.move_to(*middle(window, ".bar i"))
    assert window.run(TIP).startswith("fetch\n")
    window.move_to(*middle(window, ".hit"))
    assert " samples" in window.run(TIP)
    box = window.run("const b = document.getElementById('tip').getBoundingClientRect(); return [b.left, b.right]")
    assert box[0] >= 0 and box[1] <= width
    window.move_to(*middle(window, "h1"))
    assert window.run(TIP) is None
    assert window.complaints() == []


def test_without_javascript_every_number_is_there(window: Window, made: Any, pictures: Path) -> None:
    window.scripts(False)
    try:
        window.show(made(stats()), 390)
        window.picture(pictures / "no-javascript.png")
        shown = window.driver.find_element("css selector", "main").text
        assert "Waiting and working" in shown and "crashed workers" in shown and "60.00" not in shown
        window.driver.find_element("xpath", "//summary[starts-with(., 'History')]").click()
        assert "60.00" in window.driver.find_element("id", "history").text
    finally:
        window.scripts(True)


class Squares:
    def __len__(self) -> int:
        return 400

    def __getitem__(self, key: int) -> int:
        return sum(i * i for i in range(2000)) + key


def test_the_page_of_a_loader_that_ran(window: Window, made: Any, pictures: Path) -> None:
    with penstock.DataLoader(Squares(), batch_size=8, num_workers=2) as loader:
        for _ in range(6):
            for _ in loader:
                pass
        figures = loader.stats()
    window.show(made(figures))
    assert f"{figures.life.batches:,}" in window.run("return document.querySelector('#figures').textContent")
    assert window.complaints() == []
    window.picture(pictures / "real.png")
