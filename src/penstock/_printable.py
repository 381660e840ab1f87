"""Text of files and other programs, as a terminal may print it: it cannot move the cursor, nor change colours."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """The text, with escapes such as `\\x1b` for all characters that cannot be seen; `lines` keeps ends of lines.

    These are control characters, those that change the direction of text, and lone surrogates, which stand for the
    bytes of file names that are not UTF-8 and cannot be printed at all.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else ascii(c)[1:-1] for c in text)
