"""Law 4: memory is lent. A batch is intact while anything looks into it, and its slab is used again after."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import DataLoader, Dataset
from penstock._memory.layout import Writer
from penstock._system.threads import has_gil
from penstock._wire import reply as reply_module
from penstock._wire.reply import Replier, memfd_stray


class Filled(Dataset[Any]):
    """Sample i is an array full of i."""

    def __init__(self, n: int, size: int) -> None:
        self.n = n
        self.size = size

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return np.full(self.size, key, np.int64)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_every_batch_may_be_kept(make: Any) -> None:
    kept = list(make(Filled(200, 100), batch_size=2))
    assert [batch[:, 0].tolist() for batch in kept] == np.arange(200).reshape(100, 2).tolist()
    assert all((batch == batch[:, :1]).all() for batch in kept)


def test_dropped_batches_are_used_again(make: Any) -> None:
    loader = make(Filled(60, 300_000), batch_size=2)  # too large to be bundled
    seen = set()
    for batch in loader:
        seen.add(address(batch))
    assert len(seen) <= (2 if has_gil() else 6) * loader.num_workers + 4  # without the GIL: see decision 0057


def test_small_batches_are_used_again(make: Any) -> None:
    loader = make(Filled(4000, 1000), batch_size=2)
    pages = {address(batch) // 4096 for batch in loader}
    assert len(pages) <= (2 * loader.num_workers + 4) * (640 << 10) // 4096 < 2000 * 16_000 // 4096


def test_a_small_view_keeps_its_batch(make: Any) -> None:
    views = []
    for _ in range(2):
        for step, batch in enumerate(make(Filled(100, 50), batch_size=2)):
            if step % 7 == 0:
                views.append((2 * step, batch[0, 3:9:2][::-1]))
    for value, view in views:
        assert (view == value).all()


@pytest.mark.imports_torch
def test_a_tensor_made_of_a_batch_keeps_it(make: Any) -> None:
    torch = pytest.importorskip("torch")
    tensors = []
    for step, batch in enumerate(make(Filled(60, 50))):
        tensors.append((step, torch.from_numpy(batch)[0, 5:]))
        del batch
    for step, tensor in tensors:
        assert (tensor == step).all()


def test_batches_are_valid_after_the_loader_is_gone(make: Any) -> None:
    loader = make(Filled(8, 10))
    kept = list(loader)
    loader.close()
    del loader
    gc.collect()
    for value, batch in enumerate(kept):
        assert (batch == value).all()
        batch += 1


def test_what_the_caller_writes_is_not_seen_by_later_batches(make: Any) -> None:
    loader = make(Filled(50, 20))
    for _ in range(2):
        for value, batch in enumerate(loader):
            assert (batch == value).all()
            batch[:] = -1


def test_the_steady_state_maps_nothing_and_faults_nothing(make: Any) -> None:
    loader = make(Filled(400, 40_000), batch_size=2)  # 640 KB a batch: 160 pages
    for _ in range(2):
        for batch in loader:
            batch.sum()
    batches = iter(loader)
    for _ in range(50):
        next(batches).sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, _maps()
    for _ in range(100):
        next(batches).sum()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, _maps()
    assert after[1] == before[1]
    # A fault for every page would be 16,000. The interpreter itself has a few.
    assert after[0] - before[0] < 400


class Hurried(Filled):
    """Its first samples take 2 ms each, and the others next to nothing."""

    def __getitem__(self, key: int) -> Any:
        if key < 120:
            time.sleep(0.002)
        return super().__getitem__(key)


def test_what_is_bundled_when_samples_come_faster_needs_no_other_memory(make: Any) -> None:
    batches = iter(make(Hurried(1600, 20_000), batch_size=2))
    for _ in range(50):
        next(batches)
    before = _maps()
    for _ in batches:
        pass
    assert _maps() == before


def _maps() -> int:
    """Without the page of a loader, which is mapped half a second after its first batch."""
    maps = Path("/proc/self/maps").read_text()
    return maps.count("memfd:penstock") - maps.count("memfd:penstock-loader")


def test_pages_of_dropped_batches_go_back_to_the_system() -> None:
    with DataLoader(Filled(200, 100_000), num_workers=2, multiprocessing_context="fork") as loader:
        kept = list(loader)
        most = _shared_kilobytes()
        assert most > 150_000  # 200 batches of 800 KB
        kept.clear()
        for _ in loader:
            pass
        assert _shared_kilobytes() < most / 4


def _shared_kilobytes() -> int:
    """What the memfds of slabs take, whoever has touched the pages."""
    fds = [entry.path for entry in os.scandir("/proc/self/fd")]
    slabs = [fd for fd in fds if os.path.islink(fd) and "penstock-slabs" in os.readlink(fd)]
    return sum(os.stat(fd).st_blocks for fd in slabs) // 2


def test_ten_thousand_batches_can_be_kept_with_few_descriptors() -> None:
    program = """
import resource
import signal
import socket
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from penstock import DataLoader
with DataLoader(np.arange(20_000), batch_size=2, num_workers=2) as loader:
    kept = list(loader)
assert len(kept) == 10_000
assert all((batch == [2 * step, 2 * step + 1]).all() for step, batch in enumerate(kept))
print(open("/proc/self/maps").read().count("memfd:penstock"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100


class Growing(Dataset[Any]):
    """Samples of one number, and then long ones, for which the slabs are too small."""

    def __len__(self) -> int:
        return 700

    def __getitem__(self, key: int) -> Any:
        return np.full(1 if key < 600 else 20_000, key)


def check_that_strays_are_counted(loader: DataLoader[Any]) -> None:
    batches = iter(loader)
    kept = [next(batches) for _ in range(690)]
    before = loader.stats().memory.strays
    assert before >= kept[600].nbytes == 160_000
    kept.clear()
    assert loader.stats().memory.strays < before  # those that come next may be strays, too
    assert next(batches)[0, 0] == 690


def test_memory_outside_of_the_pool_is_counted_while_it_is_used(make_processes: Any) -> None:
    check_that_strays_are_counted(make_processes(Growing(), batch_size=1))


def test_memory_of_a_worker_that_died_before_its_reply_is_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the system's out-of-memory killer does it: each retry would keep one more batch."""
    sound = Replier._reply

    def reply(self: Replier, head: Any, verdict: int, rows: int, writer: Writer, *rest: int) -> bytes:
        if writer.is_stray and len(deaths := os.listdir(tmp_path)) < 2:  # the stray has been sent
            (tmp_path / str(len(deaths))).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sound(self, head, verdict, rows, writer, *rest)

    monkeypatch.setattr(Replier, "_reply", reply)
    with DataLoader(Growing(), num_workers=1, multiprocessing_context="fork", retries=5) as loader:
        batches = iter(loader)
        kept = [next(batches) for _ in range(600)]  # the first slabs, which are large
        assert sum(1 for _ in batches) == 100
        assert os.listdir(tmp_path)
        del kept
        strays = [fd for fd in os.scandir("/proc/self/fd") if "penstock-stray" in _target(fd.path)]
        assert not strays  # though the workers are still there


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # of the listing itself
        return ""


def test_a_stray_that_cannot_be_mapped_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise MemoryError

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        monkeypatch.setattr(reply_module, "mapped", refused)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(MemoryError), memfd_stray(0, theirs, 0, 4096):
            pass
        assert len(os.listdir("/proc/self/fd")) == before
