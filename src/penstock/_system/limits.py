"""Finds the amount of memory, the number of CPUs and, for error messages, the limits on processes and threads."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from penstock._system.platform import HAS_PROCESSES, resource
from penstock._system.trust import processes


def no_more_processes(error: OSError) -> OSError:
    """Returns the error to raise after a failed fork. For EAGAIN, the message gives the system's limits."""
    if error.errno != errno.EAGAIN:
        return error
    return OSError(error.errno, f"A worker process could not be started: {room_for_tasks()}")


def room_for_tasks() -> str:
    """Returns a message that says how many processes and threads exist, how many are allowed, and what to do."""
    found = []
    if HAS_PROCESSES and (limit := resource.getrlimit(resource.RLIMIT_NPROC)[0]) != resource.RLIM_INFINITY:
        found.append(f"this user may have {limit:,} processes and threads (ulimit -u), and has {_of_this_user():,}")
    with suppress(OSError, ValueError):  # no such file, or "max"
        most, now = (_number(f"/sys/fs/cgroup/pids.{name}") for name in ("max", "current"))
        found.append(f"this container may have {most:,} (pids.max), and has {now:,}")
    known = "; ".join(found) or "no limit of this user is known, so it may be one of the whole machine"
    return (
        f"the system allows no more processes or threads. They count together: {known}. Use fewer workers (and fewer "
        "threads in libraries, for example with OMP_NUM_THREADS=1), end other programs, or raise the limit."
    )


def _of_this_user() -> int:
    count = 0
    for pid in processes(os.getuid()):
        with suppress(OSError):  # the process has ended
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def _number(path: str) -> int:
    with open(path, "rb") as file:
        return int(file.read())


def memory_of_machine() -> int:
    """Returns the machine's memory in bytes. On Windows, returns a number larger than the memory of any machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
