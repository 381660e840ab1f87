"""Formats numbers for people: seconds, bytes, counts and shares, with a unit and about three digits."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Formats a duration, such as `850 µs`, `1.25 ms`, `12.5 s`, `2 min 05 s` or `3 h 20 min`."""
    if not value:
        return "0 s"
    if value < 0.9995e-3:
        return f"{three(value * 1e6)} µs"
    if value < 0.9995:
        return f"{three(value * 1e3)} ms"
    if value < 119.5:
        return f"{three(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def brief(value: float) -> str:
    """Formats a duration in a single unit, such as `12.5 s`, `2.08 min` or `3.33 h`."""
    if value < 119.5:
        return seconds(value)
    return f"{three(value / 60)} min" if value < 7170 else f"{three(value / 3600)} h"


def size(nbytes: float) -> str:
    """Formats a number of bytes with decimal units, such as `512 B`, `1.5 kB` or `150 MB`."""
    if nbytes < 999.5:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{three(nbytes)} {unit}"
    return f"{three(nbytes / 1000)} TB"


def count(value: float) -> str:
    """Formats a count or a rate, such as `1,234,567` or `12.5`. Only numbers below 100 have decimals."""
    return f"{value:,.0f}" if value >= 99.5 or value == int(value) else three(value)


def share(value: float) -> str:
    """Formats a share from 0 to 1: `34 %`, `0.4 %` (below 1 %), or `<0.1 %` if rounding would give 0."""
    if 0 < value < 0.0005:
        return "<0.1 %"
    return f"{value:.1%}".replace("%", " %") if 0 < value < 0.00995 else f"{value:.0%}".replace("%", " %")


def three(value: float) -> str:
    """Formats a number, such as `1,234`, `123`, `12.3` or `1.23`. Trailing zeros of a fraction are dropped."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    shown = f"{value:,.{digits}f}"
    return shown.rstrip("0").rstrip(".") if digits else shown
