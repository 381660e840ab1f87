"""Escapes text from files and other programs, so that it cannot control the terminal that it is printed on."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """The text, with escapes such as `\\x1b` for invisible characters; `lines=True` keeps line breaks.

    Invisible characters are control characters, those that change the direction of text, and lone surrogates, which
    stand for bytes of file names that are not UTF-8, and cannot be printed at all.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)
