"""Distinguishes a shortage of memory, descriptors, threads or disk space from a bad sample."""

from __future__ import annotations

import errno
import re

from penstock.errors import FormatError

_LACKS = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
# Class names of errors in libraries that the core does not import: an array is too large for its type, or a device
# has no memory left. Other libraries raise a RuntimeError, an OSError without an errno, or a class named `error`, and
# their messages contain these words.
_NAMES = ("ArrowCapacityError", "OutOfMemoryError")
_WORDS = re.compile(
    r"can't allocate memory|can't start new thread|insufficient memory|too many open files|RESOURCE_EXHAUSTED", re.I
)


def is_shortage(error: BaseException | None) -> bool:
    """True if the error was caused by a shortage. The same work may succeed later or on another machine."""
    # An error that was raised `from` a shortage counts as well, except a FormatError, which says that a file is
    # damaged.
    while error is not None and not isinstance(error, FormatError):
        kind = type(error)
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _LACKS):
            return True
        if kind.__name__ in _NAMES:
            return True
        if (isinstance(error, (RuntimeError, OSError)) or kind.__name__ == "error") and _WORDS.search(_text(error)):
            return True
        error = error.__cause__
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a class of the user's
        return ""
