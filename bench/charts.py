"""Draws the charts of the README and the docs from the newest dated results: `python -m bench.charts`.

Each chart is an SVG, once for light and once for dark pages, in docs/pictures. Nothing is measured here, and the same
results give the same files.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from bench.dated import RESULTS, newest
from bench.peers import TENSOR_ENGINES
from bench.workloads import WORKLOADS

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
PAGE = FOLDER.parent / "benchmarks.md"
NEED = ("scaling", "memory", "resume")  # these have benchmarks of their own
WIDTH = 820
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    name: str
    ground: str
    ink: str
    faint: str
    grid: str
    colours: dict[str, str]


# Colours of Okabe and Ito, which most colour-blind readers tell apart; shapes differ too.
_LIGHT = {"penstock": "#0072b2", "torch": "#d55e00", "torchdata": "#b8860b", "grain": "#00805e", "spdl": "#b0568f"}
_DARK = {"penstock": "#56b4e9", "torch": "#ff8a4c", "torchdata": "#e6b432", "grain": "#2fc79a", "spdl": "#e39ac8"}
THEMES = (
    Theme("light", "#ffffff", "#1c2430", "#5d6875", "#dfe3e8", {**_LIGHT, "dali": "#6b6b00", "mxnet": "#7350b8"}),
    Theme("dark", "#14181f", "#e6e9ee", "#9aa5b1", "#2e3640", {**_DARK, "dali": "#d6d65c", "mxnet": "#b79cf0"}),
)
SHAPES = {"torch": "square", "torchdata": "diamond", "grain": "up", "spdl": "down", "dali": "cross", "mxnet": "plus"}
PEERS = tuple(SHAPES)
OURS = ("penstock", *TENSOR_ENGINES)

WORDS = {
    "ints": "an integer",
    "rows": "512 int32, one by one",
    "rows_batched": "512 int32, many at once",
    "rows_array": "512 int32, from an array",
    "images": "150 KB of pixels",
    "jpeg": "a JPEG file, 2 processes",
    "jpeg_threads": "a JPEG file, 2 threads",
    "dict20": "a dict of 20 arrays",
    "python": "0.2 ms of Python",
    "wait": "a wait of 4 ms, 16 processes",
    "wait_threads": "a wait of 4 ms, 16 threads",
    "first_batch": "the first batch",
    "epoch_boundary": "between two epochs",
    "tensor_ints": "an integer",
    "tensor_rows": "512 int32, one by one",
    "tensor_rows_array": "512 int32, from an array",
    "tensor_tokens": "1,024 token ids",
    "tensor_images": "150 KB of pixels",
    "tensor_dict20": "a dict of 20 tensors",
    "tensor_python": "0.2 ms of Python",
    "tensor_wait": "a wait of 4 ms, 16 processes",
    "tensor_first_batch": "the first batch, tensors",
    "tensor_first_batch_persistent": "first batch, persistent",
    "tensor_epoch_boundary": "between two epochs, tensors",
    "tensor_epoch_boundary_persistent": "two epochs, persistent",
}


@dataclass
class Drawing:
    """The elements of one SVG, in one theme."""

    theme: Theme
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, size: int = 13, anchor: str = "start", **style: str) -> None:
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
        colour = "" if "fill" in style else f' fill="{self.theme.ink}"'
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{colour}{attributes}>'
            f"{escape(text)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dash: str = "") -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dashed}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" rx="2" fill="{colour}" '
            f'opacity="{opacity}"/>'
        )

    def path(self, points: Iterable[tuple[float, float]], colour: str, width: float = 1.5, dash: str = "") -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'
        )

    def mark(self, engine: str, x: float, y: float) -> None:
        """The mark of a loader: its shape, in its colour. penstock's is the largest."""
        colour = self.theme.colours.get("penstock" if engine in OURS else engine, self.theme.faint)
        shape, r = SHAPES.get(engine, "circle"), 4.2
        if engine == "penstock_torch":
            self.parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{self.theme.ground}" stroke="{colour}" '
                'stroke-width="2.4"/>'
            )
        elif shape == "circle":
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.2" fill="{colour}"/>')
        elif shape in ("cross", "plus"):
            d = r if shape == "cross" else r * 1.3
            ends = [(-d, -d, d, d), (-d, d, d, -d)] if shape == "cross" else [(-d, 0, d, 0), (0, -d, 0, d)]
            for x1, y1, x2, y2 in ends:
                self.line(x + x1, y + y1, x + x2, y + y2, colour, 2.2)
        else:
            corners = {
                "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
                "diamond": [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
                "up": [(0, -1.25), (1.25, 1), (-1.25, 1)],
                "down": [(0, 1.25), (1.25, -1), (-1.25, -1)],
            }[shape]
            joined = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners)
            self.parts.append(f'<polygon points="{joined}" fill="{colour}"/>')

    def legend(self, y: float, engines: list[str], limit: str = "") -> None:
        x = 16.0
        for engine in engines:
            self.mark(engine, x + 6, y)
            self.text(x + 18, y + 4, NAMES.get(engine, engine), 13, fill=self.theme.faint)
            x += 34 + 6.7 * len(NAMES.get(engine, engine))
        if limit:
            self.line(x + 4, y - 7, x + 4, y + 7, self.theme.ink, 2)
            self.text(x + 14, y + 4, limit, 13, fill=self.theme.faint)

    def svg(self, height: float, alt: str) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" font-family="{FONT}" role="img" aria-label="{escape(alt, quote=True)}">\n'
            f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="{self.theme.ground}"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


NAMES = {"penstock_torch": "penstock.torch", "penstock_torch_seed": "with seed=", "penstock": "penstock"}


def log_scale(values: Iterable[float], left: float, right: float) -> tuple[Callable[[float], float], list[float]]:
    """Where a value is between `left` and `right`, and the powers of ten to draw."""
    positive = [value for value in values if value > 0]
    low, high = math.log10(min(positive)) - 0.08, math.log10(max(positive)) + 0.08
    ticks = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
    return (lambda value: left + (math.log10(value) - low) / (high - low) * (right - left)), ticks


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def conditions(day: str, header: list[str]) -> list[str]:
    """The date and the machine, and the versions, for the foot of a chart."""
    known = dict(line.split(": ", 1) for line in header)
    return [f"{day}, {known['machine']}, commit {known.get('commit', 'unknown')}", known["versions"]]


def foot(drawing: Drawing, y: float, lines: list[str]) -> float:
    for line in lines:
        for part in _wrapped(line, 116):
            drawing.text(16, y, part, 11, fill=drawing.theme.faint)
            y += 15
    return y


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def speed(drawing: Drawing) -> str:
    """Every row of `bench.run`: penstock beside every peer, with the limit."""
    day, content = newest()
    medians = {
        name: {engine: statistics.median(figures) for engine, figures in found.items()}
        for name, found in content["results"].items()
        if name in WORKLOADS
    }
    panels = [
        ("Batches a second, log scale: further right is better", "rate", False),
        ("The same as torch tensors", "rate", True),
        ("Milliseconds of waiting, log scale: further left is better", "ms", None),
    ]
    seen = {engine for found in medians.values() for engine in found}
    tensors = any(WORKLOADS[name].tensors for name in medians)
    ours = ["penstock", *(["penstock_torch"] if tensors and "penstock_torch" in seen else [])]
    drawing.text(16, 28, "penstock beside other loaders", 18, font_weight="600")
    drawing.legend(52, [*ours, *(peer for peer in PEERS if peer in seen)], "limit (no loader)")
    y = 78.0
    for title, kind, are_tensors in panels:
        rows = {
            name: found
            for name, found in medians.items()
            if (WORKLOADS[name].kind == "rate") == (kind == "rate")
            and (are_tensors is None or WORKLOADS[name].tensors == are_tensors)
            and set(found) & set(OURS)
        }
        if rows:
            y = _dots(drawing, y, title, rows, more_is_better=kind == "rate")
    notes = [
        "At the right: how many times faster penstock is than the fastest of the others on that row"
        + (" (with seed=, after the comma)." if tensors else ".")
    ]
    return drawing.svg(foot(drawing, y + 6, [*notes, *conditions(day, content["header"])]) + 2, "speed")


def _dots(drawing: Drawing, y: float, title: str, rows: dict[str, dict[str, float]], more_is_better: bool) -> float:
    left, right, height, theme = 258, WIDTH - 118, 25, drawing.theme
    shown = {name: {e: v for e, v in found.items() if e in (*OURS, *PEERS, "limit")} for name, found in rows.items()}
    at, ticks = log_scale([value for found in shown.values() for value in found.values()], left, right)
    drawing.text(16, y + 14, title, 13, font_weight="600")
    top, bottom = y + 26, y + 26 + height * len(rows)
    for tick in ticks:
        drawing.line(at(tick), top, at(tick), bottom, theme.grid)
        drawing.text(at(tick), bottom + 15, f"{tick:,g}", 11, "middle", fill=theme.faint)
    for number, (name, found) in enumerate(shown.items()):
        middle = top + height * (number + 0.5)
        values = [at(value) for engine, value in found.items() if engine != "limit"]
        drawing.line(min(values), middle, max(values), middle, theme.grid, 2)
        drawing.text(left - 14, middle + 4, WORDS.get(name, name), 13, "end")
        if "limit" in found:
            drawing.line(at(found["limit"]), middle - 9, at(found["limit"]), middle + 9, theme.ink, 2)
        for engine in (*PEERS, *TENSOR_ENGINES, "penstock"):  # penstock last, on top
            if engine in found:
                drawing.mark(engine, at(found[engine]), middle)
        drawing.text(WIDTH - 16, middle + 4, _ahead(found, more_is_better), 12, "end", fill=theme.faint)
    return bottom + 34


def _ahead(found: dict[str, float], more_is_better: bool) -> str:
    """How many times faster penstock is than the fastest peer."""
    peers = [found[peer] for peer in PEERS if peer in found]
    if not peers:
        return ""
    ratios = []
    for own in OURS:
        if own in found:
            ratio = found[own] / max(peers) if more_is_better else min(peers) / found[own]
            ratios.append(f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2g}x" if ratio < 9.95 else "10x")
    return ", ".join(ratios)


def scaling(drawing: Drawing) -> str:
    """Batches a second by the number of workers, for both rows of `bench.scaling`."""
    day, content = newest("scaling")
    titles = {
        "wait": "Samples that wait 4 ms",
        "rows": "Samples of 512 int32, on two cores",
    }
    found = content["results"]
    engines = [e for e in ("penstock", *PEERS) if any(e in m for by in found.values() for m in by.values())]
    drawing.text(16, 28, "Batches a second, by the number of workers", 18, font_weight="600")
    drawing.legend(52, engines, "limit (no loader), dashed")
    width = (WIDTH - 32 - 40) / 2
    for number, (name, by_workers) in enumerate(found.items()):
        _lines(drawing, 16 + number * (width + 40), 78, width, titles.get(name, name), by_workers, engines)
    return drawing.svg(foot(drawing, 390, conditions(day, content["header"])) + 2, "scaling with workers")


def _lines(
    drawing: Drawing,
    x: float,
    y: float,
    width: float,
    title: str,
    found: dict[str, dict[str, float]],
    engines: list[str],
) -> None:
    theme, left, top, bottom = drawing.theme, x + 46, y + 28, y + 250
    values = [
        value for medians in found.values() for engine, value in medians.items() if engine in (*engines, "limit")
    ]
    at, ticks = log_scale([*values, min(values) * 0.8, max(values) * 1.2], bottom, top)
    workers = sorted(map(int, found))
    step = (width - 66) / max(1, len(workers) - 1)
    across = {number: left + 10 + step * index for index, number in enumerate(workers)}
    drawing.text(x, y + 12, title, 13, font_weight="600")
    for tick in ticks:
        drawing.line(left, at(tick), x + width, at(tick), theme.grid)
        drawing.text(left - 6, at(tick) + 4, f"{tick:,g}", 11, "end", fill=theme.faint)
    for number in workers:
        drawing.text(across[number], bottom + 18, str(number), 12, "middle", fill=theme.faint)
    drawing.text((left + x + width) / 2, bottom + 36, "workers", 12, "middle", fill=theme.faint)
    limits = [(across[n], at(found[str(n)]["limit"])) for n in workers if "limit" in found[str(n)]]
    drawing.path(limits, theme.ink, 1.5, "5 4")
    for engine in reversed(engines):
        points = [(across[n], at(found[str(n)][engine])) for n in workers if engine in found[str(n)]]
        drawing.path(points, theme.colours[engine], 2.4 if engine == "penstock" else 1.4)
        for point in points:
            drawing.mark(engine, *point)


def bars(drawing: Drawing, y: float, title: str, rows: list[tuple[str, str, float, str]]) -> float:
    """Horizontal bars on a log scale: a label, a loader, a value and the text behind its bar."""
    left, right, height, theme = 250, WIDTH - 190, 26, drawing.theme
    drawing.text(16, y + 14, title, 13, font_weight="600")
    top = y + 28
    largest = max(value for _, _, value, _ in rows)
    least = min(value for _, _, value, _ in rows)
    low = math.log10(least) - 0.35
    for number, (label, engine, value, text) in enumerate(rows):
        middle = top + height * (number + 0.5)
        share = (math.log10(value) - low) / (math.log10(largest) - low)
        drawing.text(left - 14, middle + 4, label, 13, "end")
        drawing.bar(left, middle - 8, share * (right - left), 16, theme.colours.get(engine, theme.faint))
        drawing.text(left + share * (right - left) + 8, middle + 4, text, 12, fill=theme.faint)
    return top + height * len(rows) + 10


def memory(drawing: Drawing) -> str:
    """The memory of each loader early in a pass over a million paths, and what the pass adds."""
    day, content = newest("memory")
    found: dict[str, dict[str, float]] = content["results"]
    size, largest = next(iter(found.values()))["list"], max(each["after"] for each in found.values())
    left, right, height = 200, WIDTH - 200, 28
    drawing.text(16, 28, "Memory of all processes together", 18, font_weight="600")
    drawing.text(
        16, 52, f"A million paths ({size:,.0f} MB as a Python list), read once, shuffled, by four workers", 13
    )
    for number, (name, each) in enumerate(found.items()):
        middle = 68 + height * (number + 0.5)
        colour = drawing.theme.colours[name.partition(",")[0]]
        before, after = (each[when] / largest * (right - left) for when in ("before", "after"))
        drawing.text(left - 14, middle + 4, name, 13, "end")
        drawing.bar(left, middle - 8, before, 16, colour, 0.45)
        drawing.bar(left + before, middle - 8, after - before, 16, colour)
        text = f"{each['after']:,.0f} MB, {max(0, each['after'] - each['before']):,.0f} of them added"
        drawing.text(left + after + 8, middle + 4, text, 12, fill=drawing.theme.faint)
    y = 68 + height * len(found) + 20
    notes = [
        "Pale: at the start of the pass, with what the libraries themselves take. In full colour: what the pass adds."
    ]
    return drawing.svg(foot(drawing, y, [*notes, *conditions(day, content["header"])]) + 2, "memory")


def resume(drawing: Drawing) -> str:
    """What a state costs, and how long the first batch takes after resuming at step 500,000."""
    day, content = newest("resume")
    found: dict[str, dict[str, float]] = content["results"]
    drawing.text(16, 28, "Stopping and resuming", 18, font_weight="600")
    first = [
        (
            engine,
            engine,
            each["far_ms"],
            f"{figure(each['far_ms'])} ms ({each['far_ms'] / each['cold_ms']:.2g}x a cold start)",
        )
        for engine, each in found.items()
    ]
    y = bars(drawing, 44, "From a new loader to its first batch, resumed at step 500,000 (log scale)", first)
    states = [
        (
            engine,
            engine,
            each["state_us"],
            f"{figure(each['state_us'])} µs; {each['rate_with_states']:.0%} of the rate",
        )
        for engine, each in found.items()
    ]
    title = "To take a state (log scale), and the rate that is left with a state at each step"
    y = bars(drawing, y + 6, title, states)
    return drawing.svg(foot(drawing, y + 8, conditions(day, content["header"])) + 2, "resuming")


CHARTS: dict[str, Callable[[Drawing], str]] = {"speed": speed, "scaling": scaling, "memory": memory, "resume": resume}


def draw() -> dict[str, str]:
    """The text of each file, of every chart that has results."""
    there = [name for name in CHARTS if name not in NEED or any(RESULTS.glob(f"*-{name}.json"))]
    return {f"{name}-{theme.name}.svg": CHARTS[name](Drawing(theme)) for name in there for theme in THEMES}


def placed(page: str, drawn: Iterable[str]) -> str:
    """The page with a picture after each mark `<!-- chart:NAME: what it shows -->` whose chart is drawn."""

    def picture(mark: re.Match[str]) -> str:
        comment = f"<!-- chart:{mark[1]}: {mark[2]} -->\n"
        if f"{mark[1]}-dark.svg" not in drawn:
            return comment
        dark = f'<source media="(prefers-color-scheme: dark)" srcset="pictures/{mark[1]}-dark.svg">'
        return f'{comment}<picture>\n{dark}\n<img src="pictures/{mark[1]}-light.svg" alt="{mark[2]}">\n</picture>\n'

    return re.sub(r"<!-- chart:(\w+): (.*) -->\n(?:<picture>\n.*\n.*\n</picture>\n)?", picture, page)


def main() -> int:
    drawn = draw()
    for name, text in drawn.items():
        (FOLDER / name).write_text(text)
        print(f"docs/pictures/{name}: {len(text) / 1000:.0f} kB")
    for name in NEED:
        if f"{name}-dark.svg" not in drawn:
            print(f"no chart of {name}: `python -m bench.{name}` first")
    PAGE.write_text(placed(PAGE.read_text(), drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
