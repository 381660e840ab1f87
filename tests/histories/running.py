"""Runs programs, each in a process and a session of its own, under a watchdog."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

# Seconds: a program that takes longer hangs. It prints the stacks of its threads then.
LIMIT = 200.0

_PR_SET_CHILD_SUBREAPER = 36


class Ran(NamedTuple):
    """How a program ended: `finding` says in a word what is wrong, and is empty if nothing is."""

    finding: str
    output: str
    seconds: float

    @property
    def signature(self) -> str:
        """The same for findings that are probably the same."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        if self.finding == "hangs":
            # The innermost frames of the thread that waits.
            lines = [line for line in lines if line.startswith("  File")][:3] or [""]
            text = " ".join(re.sub(r'.*/(\w+\.py)", line \d+ in', r"\1", line) for line in lines)
        else:
            raised = [
                line for line in lines if re.match(r"[\w.]+(Error|Different|Lost|Interrupt|Warning|Stuck)\b", line)
            ]
            text = (raised or lines or [""])[-1]
        return f"{self.finding}: {re.sub(r'[0-9a-f]*[0-9][0-9a-f]*', '#', text)[:90]}"


def adopt_orphans() -> None:
    """Makes this process the parent of processes whose parents end before them."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def run(program: str, limit: float = LIMIT) -> Ran:
    """Runs a program. This process must have no other children; see `adopt_orphans`."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_program(program, output.fileno(), limit)
        status = _end_of(pid, limit + 10)
        left = _end_orphans(20 if status == 0 else 0)
        output.seek(0)
        said = output.read()
    finding = ""
    if status is None or "Timeout (" in said:
        finding = "hangs"
    elif status < 0:
        finding = f"crashes ({signal.Signals(-status).name})"
    elif status:
        finding = "differs"
    elif left:
        finding = "leaves processes"
    elif said:
        finding = "prints"
    return Ran(finding, said, time.monotonic() - began)


def _be_program(text: str, output: int, limit: float) -> None:
    status = 1
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        # exit=True: without it the program would go on, and its parent would wait for it.
        faulthandler.enable()
        faulthandler.dump_traceback_later(limit, exit=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, "<history>", "exec"), names)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_of(pid: int, limit: float) -> int | None:
    """The exit status of a child, or None if it had to be killed."""
    pidfd = os.pidfd_open(pid)
    try:
        ended = bool(select.select([pidfd], [], [], limit)[0])
    finally:
        os.close(pidfd)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if ended else None


def _end_orphans(patience: float) -> int:
    """Waits for the processes that a program has left, then kills them; returns how many had to be killed."""
    killed, end = 0, time.monotonic() + patience
    while left := Path("/proc/self/task", str(os.getpid()), "children").read_text().split():
        for pid in map(int, left):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                killed += 1
                os.waitpid(pid, 0)
            else:
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
    return killed
