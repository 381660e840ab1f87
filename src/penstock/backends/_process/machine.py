"""Checks whether this machine can run worker processes."""

from __future__ import annotations

from penstock._printable import counted
from penstock._system import limits
from penstock._system.platform import HAS_PROCESSES, SYSTEM
from penstock._system.warnings import warn_caller

# Seconds of CPU time that a forked worker takes to start, about half of it in the parent. Other start methods
# take up to 30 times as long.
_START = 0.015


def check_machine(workers: int) -> None:
    """Raises an error if this system cannot run worker processes, and warns if there are more workers than CPUs."""
    if not HAS_PROCESSES:
        raise RuntimeError(
            f"Worker processes need Linux (fork, memfd and pidfd), but this is {SYSTEM}. Use num_workers=0, or "
            'penstock.DataLoader with backend="thread".'
        )
    usable = limits.usable_cpus()
    if workers > usable:
        slow, start = "", workers * _START / usable
        if start > 1:
            slow = (
                f" Starting {workers} processes on {counted(usable, 'CPU')} takes {start:.0f} s or more, and "
                f"num_workers={usable} keeps every CPU busy."
            )
        warn_caller(
            f"num_workers={workers} is more than the {counted(usable, 'CPU')} that this process may use. This helps "
            f'only if samples wait for I/O, and then backend="thread" does the same with less memory.{slow}',
            UserWarning,
        )
