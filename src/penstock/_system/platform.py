"""The system calls that penstock uses but that macOS or Windows lacks, and their replacements.

Worker processes need Linux, as do memory and locks that processes share. Everything else runs wherever Python does.
So modules that run everywhere import the names below from this module instead of from `os`. Modules that only worker
processes need use `os` itself. The constants depend on what `os` and `fcntl` offer, not on the name of the system.
See docs/decisions/0058.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


SYSTEM = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)

# None on Windows. On macOS, `fcntl` lacks seals and the locks of open files.
fcntl, resource, pwd, grp = map(_module, ("fcntl", "resource", "pwd", "grp"))

HAS_PROCESSES = all(hasattr(os, name) for name in ("fork", "memfd_create", "pidfd_open"))
"""True if worker processes can run here, memory can be shared between processes, and `/proc` describes processes."""

HAS_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
"""True if a lock can belong to an open file. The cache of remote files needs such locks, which only Linux has."""

HAS_OWNERS = hasattr(os, "geteuid")
"""True if a file's owner and mode say who may write to the file. False on Windows."""


def _constant(module: Any, name: str) -> int:
    found: int = getattr(module, name, 0)
    return found


# Flags of `os.open`. O_BINARY is 0 on all systems but Windows, which would change line ends in the bytes of a file.
CLOSED_IN_PROGRAMS = _constant(os, "O_CLOEXEC") | _constant(os, "O_NOINHERIT") | _constant(os, "O_BINARY")
NO_WAIT = _constant(os, "O_NONBLOCK")
NO_LINK = _constant(os, "O_NOFOLLOW")

SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = (_constant(fcntl, f"F_SEAL_{name}") for name in ("SHRINK", "GROW", "WRITE"))

# Signals that end the process, and cannot have a handler.
UNCATCHABLE = {_constant(_module("_signal"), name) for name in ("SIGKILL", "SIGSTOP")} - {0}


def _no_forks(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """Replaces `os.register_at_fork` on Windows, where no process forks."""


register_at_fork = getattr(os, "register_at_fork", _no_forks)

_position = threading.Lock()


def _pread(fd: int, length: int, offset: int) -> bytes:
    """Replaces `os.pread` on Windows."""
    with _position:  # every descriptor that is read in this way has a position that nobody else uses
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, length)


pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread)


def advise_to_read(fd: int, start: int, length: int) -> None:
    """Tells the kernel that this range of a file will be read soon. Does nothing without `os.posix_fadvise`."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, start, length, os.POSIX_FADV_WILLNEED)
