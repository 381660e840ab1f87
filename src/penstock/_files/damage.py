"""Decides whether a file is damaged. The only evidence of damage is a decoder's error about the file's content."""

from __future__ import annotations

import re

from penstock._system.limits import memory_of_machine
from penstock._system.shortage import is_shortage

_ALLOCATION = re.compile(r"alloc of size (\d+) failed")  # pyarrow's message


def is_damage(error: Exception) -> bool:
    """True if a decoder's error was caused by the input bytes, not by the system or a lack of memory."""
    if isinstance(error, MemoryError):
        wanted = _ALLOCATION.search(str(error))
        # If a decoder requests more memory than this machine has, a length in the file must be wrong.
        return wanted is not None and int(wanted[1]) > memory_of_machine()
    if isinstance(error, OSError) and error.errno is not None:
        return False
    return not isinstance(error, ImportError) and not is_shortage(error)


def raise_unless_damage(error: Exception, where: str) -> None:
    """Does nothing if the file is damaged. Otherwise, raises the error again, with a note that contains `where`."""
    if is_damage(error):
        return
    error.add_note(f"While reading {where}.")
    if is_shortage(error):
        error.add_note(
            "The file may be sound: this process lacks memory, descriptors or disk space. Use fewer workers, or "
            "raise the limit (`ulimit -n` for open files)."
        )
    raise error
