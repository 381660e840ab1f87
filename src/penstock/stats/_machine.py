"""What this machine, and the control groups (cgroups) of this process, allow a loader to use.

A process belongs to one cgroup of each hierarchy. The limits of all its ancestors hold too, so the lowest one counts.
Version 2 has one hierarchy for everything, version 1 one for each controller, and both may be mounted side by side.
Any file may be missing, unreadable or malformed: then the figure is that of a machine without limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

from penstock._system.limits import usable_cpus
from penstock.stats._figures import Machine


def machine(workers: Iterable[int] = (), throttled_before: float = 0.0, root: Path = Path("/")) -> Machine:
    """What this process and its workers may use, and what holds them back.

    `workers` are the ids of processes or threads. `throttled_before`: what `throttled` returned when counting began.
    `/proc` and `/sys` are those under `root`. Takes 0.2 ms.
    """
    workers = list(workers)
    processes: list[int | str] = ["self", *workers]
    memory = _table(f"{root}/proc/meminfo")
    cpus = float(usable_cpus())
    for group in _groups(root, "cpu"):
        cpus = min(cpus, _quota(group) or cpus)
    # Without a limit, or with one beyond the machine's memory, what counts is the machine's memory.
    limit, used = None, memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)
    for group in _groups(root, "memory"):
        most = _limit(group)
        if most is not None and most < (limit or memory.get("MemTotal", most + 1)):
            limit, used = most, _used(group)
    # Most machines have no swap space, and looking at one process takes 50 µs.
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
    """Seconds that cgroups have held this process back so far, summed over CPUs."""
    return max(map(_throttled, _groups(root, "cpu")), default=0.0)


def _swapped(root: Path, pid: int | str) -> int:
    status = _table(f"{root}/proc/{pid}/status")
    is_thread = pid not in ("self", status.get("Tgid"))  # it shares the memory of its process
    return 0 if is_thread else status.get("VmSwap", 0)


@cache  # a process rarely moves to another cgroup, and looking for its folders takes 1 ms
def _groups(root: Path, controller: str) -> tuple[str, ...]:
    """The folders of this process's cgroups that have this controller, and of their ancestors."""
    folders: list[Path] = []
    for kind, path in _memberships(root, controller):
        for mounted, where in _mounts(root, controller, kind):
            # In a container, the mount may show only a part of the hierarchy: from `mounted` on.
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
    """The mounts of this hierarchy: which part of it is mounted, and where."""
    for line in _read(f"{root}/proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        about, of = mount.split(), filesystem.split()
        if len(about) > 4 and of[:1] == [kind] and (kind == "cgroup2" or controller in of[-1].split(",")):
            yield about[3], about[4]


def _quota(group: str) -> float | None:
    """The CPUs that the group may use, None without a limit."""
    quota, period = [*_read(f"{group}/cpu.max").split(), "", ""][:2]
    if not quota:
        quota, period = _read(f"{group}/cpu.cfs_quota_us"), _read(f"{group}/cpu.cfs_period_us")
    with suppress(ValueError, ZeroDivisionError):
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def _throttled(group: str) -> float:
    """Seconds that the group was throttled, summed over CPUs."""
    found = _table(f"{group}/cpu.stat")
    return found.get("throttled_usec", 0) / 1e6 or found.get("throttled_time", 0) / 1e9


def _limit(group: str) -> int | None:
    return _number(f"{group}/memory.max") or _number(f"{group}/memory.limit_in_bytes")


def _used(group: str) -> int:
    """Bytes in use, without the file cache, which the kernel reclaims first."""
    used = _number(f"{group}/memory.current") or _number(f"{group}/memory.usage_in_bytes") or 0
    stat = _table(f"{group}/memory.stat")
    return used - stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _number(path: str) -> int | None:
    with suppress(ValueError):
        return int(_read(path))
    return None  # missing, or "max"


def _table(path: str) -> dict[str, int]:
    """Reads a file whose lines are a name and a number. Numbers in kB are turned into bytes."""
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
