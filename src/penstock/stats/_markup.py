"""The HTML building blocks of the report: text, tables, and charts that stretch to the width of the page.

Text from the user becomes HTML only through the function `text`.

The labels of a chart are HTML elements beside the SVG, positioned by percentages. Text inside the SVG would be
stretched, or would be too small to read on a phone. The SVG has 1000 by 100 units and is stretched to any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise

from penstock._printable import printable
from penstock._wire.failure import safe_text

WIDE, HIGH = 1000, 100
Point = tuple[float, float]  # x and y, each from 0 to 1


def text(value: object, most: int = 300) -> str:
    """Converts any value to text that is safe in HTML, even in attributes.

    Values other than `str` are shown by `repr`. Text of more than `most` characters is shortened in the middle.
    Invisible characters are shown as escapes, and so are lone surrogates, which cannot be written to a file.
    """
    plain = value if isinstance(value, str) else safe_text(value, repr)
    if len(plain) > most:
        plain = f"{plain[: most // 2]} … {plain[-most // 3 :]}"
    return escape(printable(plain, lines=True))


def plot(
    marks: Iterable[str], ys: Iterable[tuple[float, str]], xs: Iterable[tuple[float, str]], label: str, kind: str = ""
) -> str:
    """Returns a chart. `xs` and `ys` are axis labels: (position from 0 to 1, text). `label` is for screen readers."""
    ys = list(ys)
    grid = "".join(f"M0 {HIGH * (1 - y):.4g}H{WIDE}" for y, _ in ys)
    return (
        f'<div class="plot {kind}"><div class="ys">{_labels("bottom", ys)}</div>'
        f'<div class="area"><svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}"><path class="grid" d="{grid}"/>{"".join(marks)}</svg></div>'
        f'<div class="xs">{_labels("left", xs)}</div></div>'
    )


def _labels(side: str, places: Iterable[tuple[float, str]]) -> str:
    """Returns labels that are centred on their positions. Labels at the ends are moved to stay inside the plot."""
    ends = {True: ' class="first"', False: ' class="last"'}
    return "".join(
        f'<span{ends[at < 0.5] if abs(at - 0.5) > 0.48 else ""} style="{side}:{at:.4%}">{escape(text)}</span>'
        for at, text in places
    )


def bars(kind: str, bars: Iterable[tuple[float, float, float, float]]) -> str:
    """Returns rectangles as one SVG path. Each rectangle is (left, right, bottom, top), with numbers from 0 to 1."""
    steps = "".join(
        f"M{_x(left)} {_y(low)}V{_y(high)}H{_x(right)}V{_y(low)}Z" for left, right, low, high in bars if high > low
    )
    return f'<path class="{kind}" d="{steps}"/>'


def line(kind: str, points: Sequence[Point]) -> str:
    """Returns a step line as an SVG path: the value of each point holds until the next point."""
    if not points:
        return ""
    (x, y), *rest = points
    return f'<path class="line {kind}" d="M{_x(x)} {_y(y)}{"".join(f"H{_x(x)}V{_y(y)}" for x, y in rest)}"/>'


def upright(kind: str, xs: Iterable[float]) -> str:
    return f'<path class="line {kind}" d="{"".join(f"M{_x(x)} 0V{HIGH}" for x in xs)}"/>'


def _x(value: float) -> str:
    return f"{value * WIDE:.5g}"


def _y(value: float) -> str:
    return f"{(1 - value) * HIGH:.4g}"


def scale(most: float) -> list[float]:
    """Returns 2 to 5 evenly spaced round numbers for the labels of an axis, from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power * 4 >= most * 0.9999)
    return [step * i for i in range(math.ceil(most / step * 0.9999) + 1)]


def whole_scale(most: int) -> list[float]:
    """Does the same as `scale`, but for counts. If `most` is 1 to 4, returns every integer from 0 to `most`."""
    return scale(most) if most > 4 else [float(i) for i in range(max(most, 1) + 1)]


_TIMES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def time_scale(end: float) -> list[tuple[float, str]]:
    """Returns positions (0 to 1) and labels of a time axis from 0 to `end` seconds, such as 0 s, 20 s and 40 s."""
    days = 86400.0 * math.ceil(end / 86400 / 5)
    step = next((step for step in _TIMES if end / step <= 5), days)
    unit, name = next(((unit, name) for unit, name in _UNITS if step >= unit), _UNITS[-1])
    steps = range(math.floor(end / step + 1e-9) + 1)
    return [(i * step / (end or 1), f"{i * step / unit:.4g} {name}") for i in steps]


def stacked(parts: Iterable[tuple[str, float, str]], whole: float) -> str:
    """Returns a horizontal bar of total length `whole`. Each part has a CSS class, a length and a tooltip."""
    inner = "".join(
        f'<i class="{kind}" style="width:{100 * length / whole:.4g}%" data-tip="{escape(tip)}"></i>'
        for kind, length, tip in parts
        if whole and length / whole > 0.0005
    )
    return f'<div class="bar">{inner}</div>'


def legend(*entries: tuple[str, str]) -> str:
    inner = "".join(f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in entries)
    return f'<p class="legend">{inner}</p>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0,), name: str = "") -> str:
    """Returns an HTML table with the id `name`. Cells must be HTML. `texts` has the indices of text columns."""
    kinds = [' class="text"' if i in texts else "" for i in range(len(heads))]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    return f'<dl class="facts">{"".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs)}</dl>'


def section(title: str, note: str, *inner: str) -> str:
    noted = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{noted}{''.join(inner)}</section>"


def folded(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def log_scale(limits: Sequence[float], show: Callable[[float], str]) -> list[tuple[float, str]]:
    """Returns axis labels at powers of ten. `limits` holds the values at the edges of equally wide bars."""
    places = []
    for column, (low, high) in enumerate(pairwise(limits)):
        power = 10.0 ** math.ceil(math.log10(low) - 1e-9)
        if power < high * 0.9999:
            place = column + math.log(power / low) / math.log(high / low)
            places.append((place / (len(limits) - 1), show(power)))
    return places[:: 1 + len(places) // 7]
