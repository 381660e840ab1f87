"""Reads the Python stack of a worker that does not answer, even if it is running C code or holds the GIL."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence

from penstock._system import trust

# A signal that hardly any program uses. Python's handler for it writes the stack and does nothing else.
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 5

# Seconds that a worker has to write its stack. A worker that is stopped, or in an uninterruptible read, never does.
_PATIENCE = 0.5

_NAME = "penstock-stack"
_MOST_FRAMES = 12

# Frames of penstock around the user's code (those of penstock's own datasets do not count), and the innermost frame
# of a worker that waits for a task. Compiled when needed: each takes 0.2 ms, which would delay every first batch.
_OURS = (
    rf'File "{re.escape(os.path.dirname(os.path.dirname(__file__)))}/'
    r"(?!(source|formats|records|image|_files|_remote|_cache|testing)/)"
)
_WAITING = (
    r'penstock/backends/(_process/worker\.py", line \d+ in main|_local\.py", line \d+ in _work|'
    r'_ray/actor\.py", line \d+ in run)$'
)


def tell_when_asked(fd: int) -> None:
    """Makes this process write its stack to the file descriptor `fd` whenever `ask` sends the signal."""
    # Not shared: a stack is written in many pieces, and those of several processes would be mixed up.
    own = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    os.dup2(own, fd, inheritable=False)
    os.close(own)
    faulthandler.register(_SIGNAL, fd, all_threads=False)


class _StackRequest:
    """A request to a process to write its stack to `file`."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.start = self.size = self._before = os.fstat(file).st_size

    def is_done(self) -> bool:
        """True if the file has stopped growing. This is the only sign that the stack is complete."""
        self._before, self.size = self.size, os.fstat(self.file).st_size
        return self.start < self._before == self.size

    def told(self) -> str:
        text = os.pread(self.file, self.size - self.start, self.start).decode(errors="replace")
        return _user_calls([line.strip() for line in text.splitlines() if line.startswith("  File ")])


def ask(processes: Sequence[tuple[int, int]], fd: int) -> list[str]:
    """Returns one stack per process, innermost call first, or "" for a process that is idle or does not answer."""
    asked = [_asked(pid, pidfd, fd) for pid, pidfd in processes]
    waited_for = [one for one in asked if one is not None]
    deadline = time.monotonic() + _PATIENCE
    while waited_for and time.monotonic() < deadline:
        time.sleep(0.01)
        waited_for = [one for one in waited_for if not one.is_done()]
    told = ["" if one is None else one.told() for one in asked]
    for one in asked:
        if one is not None:
            os.close(one.file)
    return told


def _asked(pid: int, pidfd: int, fd: int) -> _StackRequest | None:
    file = -1
    try:
        if _tells(pid):
            file = trust.open_sealed(f"/proc/{pid}/fd/{fd}", _NAME, seals=0)
            found = _StackRequest(file)
            signal.pidfd_send_signal(pidfd, _SIGNAL)
            return found
    except OSError:  # the worker is dead, or /proc is closed to this process
        if file >= 0:
            os.close(file)
    return None


def _tells(pid: int) -> bool:
    """True if the process has called `tell_when_asked`. Otherwise the signal would kill it."""
    with open(f"/proc/{pid}/status") as file:
        caught = re.search(r"^SigCgt:\s*(\w+)", file.read(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (_SIGNAL - 1) & 1)


# The number of the system call futex, by machine.
_FUTEX = {"x86_64": "202", "aarch64": "98"}


def waits_for_thread(pid: int) -> bool:
    """True if the process's main thread waits for another thread (on a lock, say), or if this is unknown."""
    try:
        with open(f"/proc/{pid}/syscall") as file:
            calls = file.read().split()
    except OSError:
        return True
    return calls[:1] == [_FUTEX.get(os.uname().machine, calls[0])]


def of_thread(ident: int | None) -> str:
    """Returns the stack of a thread of this process, in the form that `ask` returns."""
    frame = sys._current_frames().get(ident or 0)
    calls = reversed(traceback.extract_stack(frame)) if frame is not None else ()
    return _user_calls([f'File "{call.filename}", line {call.lineno} in {call.name}' for call in calls])


def _user_calls(calls: list[str]) -> str:
    """Joins the calls, leaving out penstock's frames around the user's code. Returns "" if the worker is idle."""
    if calls and re.search(_WAITING, calls[0]):
        return ""
    first = next((at for at, call in enumerate(calls) if re.search(_OURS, call)), len(calls))
    return "\n".join(calls[: min(first or 1, _MOST_FRAMES)])
