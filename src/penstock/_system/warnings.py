"""Issues warnings that point to a line of the user's code."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

from penstock._printable import printable

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the folder of the package
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_STARTERS = (f"{_LIBRARY}multiprocessing{os.sep}", f"{_LIBRARY}threading.py")  # files that start workers
_between: set[str] = set()  # files of libraries that call penstock for the user


def called_through(filename: str) -> None:
    """Marks a file as library code that calls penstock for the user. Warnings then point to that file's caller."""
    _between.add(filename)


def is_ours(filename: str) -> bool:
    return filename.startswith(_OURS)


def _is_between(filename: str) -> bool:
    return is_ours(filename) or filename in _between or filename.startswith(_STARTERS)


def warn_caller(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issues a warning that points to the line of user code that called penstock or started the worker."""
    # From Python 3.12 on, the argument `skip_file_prefixes` of `warnings.warn` does the same.
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and _is_between(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(text, lines=True), category, stacklevel=level)
