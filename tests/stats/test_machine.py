"""What a loader may use, on fake trees of files as other machines have them, and on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.stats import Machine
from penstock.stats._machine import machine
from tests.interrupting import interrupt

GB = 1 << 30
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
V2 = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
}
V1 = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
    "proc/self/mountinfo": (
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    ),
}


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def tree(root: Path, *files: Mapping[str, str]) -> Path:
    for each in files:
        for name, text in each.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root


def test_a_machine_without_limits(tmp_path: Path) -> None:
    found = machine(root=tree(tmp_path, V2))
    assert found == Machine(cpus=8.0, memory_limit=None, memory_used=4 * GB)


def test_a_container_of_version_2(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_throttled 4\nthrottled_usec 2500000\n",
        "sys/fs/cgroup/memory.max": f"{2 * GB}\n",
        "sys/fs/cgroup/memory.current": f"{GB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {GB // 4}\n",
    }
    found = machine(throttled_before=1.0, root=tree(tmp_path, V2, group))
    assert found == Machine(cpus=1.5, throttled=1.5, memory_limit=2 * GB, memory_used=3 * GB // 4)


def test_a_container_of_version_1_that_sees_its_part_of_the_hierarchy(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 9\nthrottled_time 1500000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GB // 2}\n",
        "sys/fs/cgroup/memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GB // 4}\n",
    }
    found = machine(root=tree(tmp_path, V1, group))
    assert found == Machine(cpus=3.0, throttled=1.5, memory_limit=GB, memory_used=GB // 4)


def test_without_a_limit_version_1_has_one_beyond_all_memory(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
    }
    assert machine(root=tree(tmp_path, V1, group)) == Machine(cpus=8.0, memory_used=4 * GB)


def test_the_lowest_limit_of_all_ancestors_counts(tmp_path: Path) -> None:
    place = {"proc/self/cgroup": "0::/system.slice/train.service\n"}
    groups = {
        "sys/fs/cgroup/cpu.stat": "usage_usec 1\n",
        "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/system.slice/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/train.service/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/system.slice/train.service/memory.max": f"{3 * GB}\n",
        "sys/fs/cgroup/system.slice/train.service/memory.current": f"{GB}\n",
    }
    found = machine(root=tree(tmp_path, V2, place, groups))
    assert (found.cpus, found.memory_limit, found.memory_used) == (2.0, 3 * GB, GB)


def test_a_cgroup_outside_of_the_namespace_is_taken_for_its_root(tmp_path: Path) -> None:
    place = {"proc/self/cgroup": "0::/../other\n"}
    files = tree(tmp_path, V2, place, {"sys/fs/cgroup/cpu.max": "50000 100000\n"})
    assert machine(root=files).cpus == 0.5


def test_swap_of_this_process_and_its_worker_processes_is_added_up(tmp_path: Path) -> None:
    swap = {
        "proc/meminfo": "SwapTotal: 1000 kB\nSwapFree: 10 kB\n",
        "proc/self/status": "Name:\tpython\nTgid:\t3\nVmSwap:\t  1000 kB\n",
        "proc/7/status": "Name:\tpython\nTgid:\t7\nVmSwap:\t  200 kB\n",
        "proc/8/status": "Name:\tpython\nTgid:\t8\nVmSwap:\t  100 kB\n",
        "proc/9/status": "Name:\tthread\nTgid:\t3\nVmSwap:\t  1000 kB\n",
    }
    assert machine([7, 8, 9, 10], root=tree(tmp_path, V2, swap)).swapped == 1300 << 10


def test_no_process_is_looked_at_if_nothing_is_in_swap_space(tmp_path: Path) -> None:
    strange = {"proc/7/status": "VmSwap:\t  200 kB\n"}
    assert machine([7], root=tree(tmp_path, V2, strange)).swapped == 0


def test_an_empty_tree_is_a_machine_without_limits(tmp_path: Path) -> None:
    assert machine([1], root=tmp_path) == Machine(cpus=8.0)


FILES = ["proc/meminfo", "proc/self/cgroup", "proc/self/mountinfo", "proc/1/status", "proc/1/schedstat"]
FILES += [f"sys/fs/cgroup/{name}" for name in ("cpu.max", "cpu.stat", "memory.max", "memory.current", "memory.stat")]
WORDS = st.sampled_from(["0", "-1", "max", "100000", "VmSwap:", "kB", "::", "/", "\n", " - ", "\N{BOMB}", "1e3"])
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(broken=st.dictionaries(st.sampled_from(FILES), TEXTS), number=st.uuids())
def test_strange_files_are_no_error(tmp_path: Path, broken: Mapping[str, str], number: object) -> None:
    found = machine([1], root=tree(tmp_path / str(number), V2, broken))
    assert found.cpus > 0 and found.throttled >= 0 and found.memory_used >= 0 and found.swapped >= 0


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = machine([os.getpid()])
    assert 0 < found.cpus <= len(os.sched_getaffinity(0))
    assert found.memory_used > 0
    assert found.memory_limit is None or found.memory_limit > 0


def test_ctrl_c_is_not_lost_where_a_limit_is_no_number(tmp_path: Path) -> None:
    group = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    root, at, came = tree(tmp_path, V2, group), 1, 0
    while (done := interrupt(lambda: machine(root=root), at, lambda code: "_machine" in code.co_filename)).where:
        assert done.came, f"lost at {done.where}"
        at, came = at + 1, came + done.came
    assert came > 20
