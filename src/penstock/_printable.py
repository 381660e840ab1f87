"""Prepares text for printing: escapes characters that could control the terminal, and forms plurals."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """Replaces invisible characters with escapes such as `\\x1b`. `lines=True` keeps line breaks."""
    # These are control characters, characters that change the text direction, and lone surrogates, which stand for
    # bytes in file names that are not UTF-8 and cannot be printed at all.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)


def counted(number: float, noun: str) -> str:
    """Returns a number with its noun: `1 worker`, `2 workers`, `0.5 seconds`. Only for nouns with a plural in -s."""
    shown = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{shown} {noun}{'s' * (number != 1)}"
