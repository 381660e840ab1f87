"""Escapes text from files and other programs, so that it cannot control the terminal when it is printed."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """Replaces invisible characters with escapes such as `\\x1b`. `lines=True` keeps line breaks."""
    # These are control characters, characters that change the text direction, and lone surrogates, which stand for
    # bytes in file names that are not UTF-8 and cannot be printed at all.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)
