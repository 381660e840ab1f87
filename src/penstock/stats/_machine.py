"""Finds out which resources a loader may use on this machine and in this process's control groups (cgroups).

A cgroup and each of its ancestors may have a limit. The lowest of these limits applies. Version 2 of cgroups has a
single hierarchy. Version 1 has one hierarchy for each controller (such as "cpu"). Both versions may be mounted. A
missing or malformed file counts as no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from penstock._system.limits import usable_cpus
from penstock.stats._figures import Machine


def machine(workers: Iterable[int] = (), throttled_before: float = 0.0, root: Path = Path("/")) -> Machine:
    """Returns the resources that this process and its workers may use, and the time lost to CPU limits.

    The call takes 0.2 ms. `workers` has the ids of the workers' processes or threads. `throttled_before` is the
    result of `throttled` at the start of the measurement. `/proc` and `/sys` are looked up under `root`.
    """
    workers = list(workers)
    processes: list[int | str] = ["self", *workers]
    memory = _table(f"{root}/proc/meminfo")
    cpus = float(usable_cpus())
    for group in _groups(root, "cpu"):
        cpus = min(cpus, _quota(group) or cpus)
    # If there is no limit, or the limit is above the machine's memory, the machine's memory counts.
    limit, used = None, memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)
    for group in _groups(root, "memory"):
        most = _limit(group)
        if most is not None and most < (limit or memory.get("MemTotal", most + 1)):
            limit, used = most, _used(group)
    # Processes are checked only if swap space is in use, because checking one process takes 50 µs.
    swaps = memory.get("SwapTotal", 0) > memory.get("SwapFree", 0)
    swapped = [_swapped(root, one) for one in processes] if swaps else []
    return Machine(
        cpus=cpus,
        throttled=max(0.0, throttled(root) - throttled_before),
        memory_limit=limit,
        memory_used=max(0, used),
        swapped=sum(swapped),
    )


def throttled(root: Path = Path("/")) -> float:
    """Returns how long cgroup CPU limits have throttled this process so far, in seconds summed over CPUs."""
    return max(map(_throttled, _groups(root, "cpu")), default=0.0)


def _swapped(root: Path, pid: int | str) -> int:
    status = _table(f"{root}/proc/{pid}/status")
    is_thread = pid not in ("self", status.get("Tgid"))  # it shares the memory of its process
    return 0 if is_thread else status.get("VmSwap", 0)


@cache  # because a process rarely moves to another cgroup, and finding its folders takes 1 ms
def _groups(root: Path, controller: str) -> tuple[str, ...]:
    """Returns the folders of this process's cgroups and of all their ancestors.

    `controller` is "cpu" or "memory".
    """
    folders: list[Path] = []
    for kind, path in _memberships(root, controller):
        for mounted, where in _mounts(root, controller, kind):
            # In a container, the mount may show only the part of the hierarchy that is below `mounted`.
            inside = PurePosixPath(path)
            below = inside.relative_to(mounted) if inside.is_relative_to(mounted) else PurePosixPath()
            if ".." in below.parts:  # a cgroup outside of our namespace
                below = PurePosixPath()
            folders += [root / where.lstrip("/") / ancestor for ancestor in (below, *below.parents)]
    return tuple(str(folder) for folder in folders if any(folder.glob(f"{controller}.*")))


def _memberships(root: Path, controller: str) -> Iterator[tuple[str, str]]:
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield "cgroup2", path
        elif controller in controllers.split(","):
            yield "cgroup", path


def _mounts(root: Path, controller: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yields (mounted part of the cgroup hierarchy, mount point) for each cgroup mount of type `kind`."""
    for line in _read(f"{root}/proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        about, of = mount.split(), filesystem.split()
        if len(about) > 4 and of[:1] == [kind] and (kind == "cgroup2" or controller in of[-1].split(",")):
            yield about[3], about[4]


def _quota(group: str) -> float | None:
    """Returns the number of CPUs that the cgroup may use, or None if there is no limit."""
    quota, period = [*_read(f"{group}/cpu.max").split(), "", ""][:2]
    if not quota:
        quota, period = _read(f"{group}/cpu.cfs_quota_us"), _read(f"{group}/cpu.cfs_period_us")
    cpus, in_each = _whole(quota), _whole(period)
    return cpus / in_each if cpus and in_each else None


def _throttled(group: str) -> float:
    found = _table(f"{group}/cpu.stat")
    return found.get("throttled_usec", 0) / 1e6 or found.get("throttled_time", 0) / 1e9


def _limit(group: str) -> int | None:
    return _number(f"{group}/memory.max") or _number(f"{group}/memory.limit_in_bytes")


def _used(group: str) -> int:
    """Returns how many bytes the cgroup uses, not counting the file cache that the kernel reclaims first."""
    used = _number(f"{group}/memory.current") or _number(f"{group}/memory.usage_in_bytes") or 0
    stat = _table(f"{group}/memory.stat")
    return used - stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _number(path: str) -> int | None:
    return _whole(_read(path))  # None if the file is missing, or says "max"


def _whole(text: str) -> int | None:
    # No `int` in a `try`: while its message is made, CPython drops a KeyboardInterrupt that has just arrived.
    return int(text) if (text := text.strip()).isdecimal() else None


def _table(path: str) -> dict[str, int]:
    """Reads a file in which each line has a name and a number. Numbers in kB are converted to bytes."""
    found: dict[str, int] = {}
    for line in _read(path).splitlines():
        name, *values = line.split() or [""]
        if values and values[0].isdecimal():
            found[name.rstrip(":")] = int(values[0]) << (10 if values[1:] == ["kB"] else 0)
    return found


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace")
    except (OSError, ValueError):
        return ""
