"""The Python stack of a worker that does not answer, even if it is in C code or holds the GIL."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path

# A signal that hardly any program uses. Python's handler for it writes the stack and does nothing else.
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 5

# Seconds that a worker has to write its stack. A stopped one, or one in an uninterruptible read, writes nothing.
_PATIENCE = 0.5

_MOST_FRAMES = 12

# Frames of penstock around the user's code, and the innermost frame of a worker that waits for a task.
_OURS = re.compile(r"penstock/(_work/|\S*/_?worker\.py)")
_WAITING = re.compile(
    r'penstock/backends/(_process/worker\.py", line \d+ in main|_local\.py", line \d+ in _work|'
    r'_ray/actor\.py", line \d+ in run)$'
)


def tell_when_asked(fd: int) -> None:
    """Lets this process write its stack to `fd` when `ask` asks for it."""
    faulthandler.register(_SIGNAL, fd, all_threads=False)


def ask(pid: int, pidfd: int, fd: int) -> str:
    """The stack of a worker, innermost call first; "" if it does not answer, or waits for a task."""
    start = size = os.fstat(fd).st_size
    try:
        if not _tells(pid):
            return ""
        signal.pidfd_send_signal(pidfd, _SIGNAL)
    except OSError:  # the worker is dead
        return ""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.01)  # nothing signals the end of the stack: it is complete when the file stops growing
        before, size = size, os.fstat(fd).st_size
        if start < before == size:
            break
    told = os.pread(fd, size - start, start).decode(errors="replace")
    return _shown([line.strip() for line in told.splitlines() if line.startswith("  File ")])


def _tells(pid: int) -> bool:
    """True if the process has called `tell_when_asked`. Before that, the signal would kill it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (_SIGNAL - 1) & 1)


def of_thread(ident: int | None) -> str:
    """The stack of a thread of this process, in the same form."""
    frame = sys._current_frames().get(ident or 0)
    calls = reversed(traceback.extract_stack(frame)) if frame is not None else ()
    return _shown([f'File "{call.filename}", line {call.lineno} in {call.name}' for call in calls])


def _shown(calls: list[str]) -> str:
    """The calls without the frames of penstock around the user's code."""
    if calls and _WAITING.search(calls[0]):
        return ""
    first = next((at for at, call in enumerate(calls) if _OURS.search(call)), len(calls))
    return "\n".join(calls[: min(first or 1, _MOST_FRAMES)])
