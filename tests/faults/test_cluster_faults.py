"""What goes wrong on a cluster, on a stand-in whose nodes are processes of this machine (see `standin.py`)."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standin
from certificates import environment, new_certificate
from standin import Slow, is_up, on, plain

import penstock
from penstock import DataLoader
from penstock.errors import LoaderTimeout, UnshippableDataset, WorkerLost
from penstock.testing._laws import same, until
from penstock.testing._sources import Numbers, Stateful

pytestmark = pytest.mark.usefixtures("warmed_up")


# Workers that are lost.


def test_workers_that_are_killed_again_and_again_are_not_noticed(cluster: Any) -> None:
    with on(Slow(), 2, retries=9) as loader:
        found = []
        for step, batch in enumerate(loader):
            found.append(batch)
            if step in (3, 4, 20, 21):
                for worker in [worker for worker in loader.workers if worker.pid][:1]:
                    with suppress(ProcessLookupError):  # it was killed before, and that is not known yet
                        os.kill(worker.pid, signal.SIGKILL)
        same(found, plain(Slow(), 2))


def test_a_worker_that_dies_without_a_task_costs_no_step_a_try(cluster: Any) -> None:
    with on(Slow(), 2, retries=0) as loader:
        same(list(loader), plain(Slow(), 2))
        until(lambda: is_up(loader), "both workers are up")
        (backend,), worker = cluster.made, loader.workers[0]
        until(lambda: backend._ledger.has(worker.id) is None, "it has nothing to do")
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(10)
        same(list(loader), plain(Slow(), 2))


def test_a_half_received_batch_of_a_lost_worker_is_never_seen(cluster: Any) -> None:
    cluster.mains = [standin.rogue_main]
    with warnings.catch_warnings(), on(Slow(), 2, num_workers=1, hang=1, retries=20) as loader:
        warnings.simplefilter("ignore")
        same(list(loader), plain(Slow(), 2))
    cluster.processes[0].kill()


def test_a_node_that_does_not_answer_is_avoided_by_the_next_workers_for_a_minute(cluster: Any) -> None:
    """Ray takes 15 seconds or more to notice that a node is lost, and places workers there meanwhile."""
    cluster.mains = [standin.rogue_main]
    lost = standin.NODE.format(0)
    with warnings.catch_warnings(), on(Slow(), 2, num_workers=1, hang=1, retries=20) as loader:
        warnings.simplefilter("ignore")
        batches = iter(loader)
        next(batches)
        (made,) = cluster.made
        assert cluster.avoided == [set(), {lost}]  # the second worker says hello from a node of that name
        assert made._silent_nodes() == {} and made._shortage(2) == "2 wait for a place, and 998 are free."
        made._silent = {lost: time.monotonic() - 30, "gone": time.monotonic() - 61}
        assert made._shortage(2) == (
            f"Node {lost} has not answered for 30 s. Workers are started on other nodes, if those have room. "
            "2 wait for a place, and 998 are free."
        )
    cluster.processes[0].kill()


def test_the_node_of_a_worker_whose_death_is_known_is_not_avoided(cluster: Any) -> None:
    with on(Slow(), 2, retries=2) as loader:
        batches = iter(loader)
        next(batches)
        os.kill(next(worker.pid for worker in loader.workers if worker.pid), signal.SIGKILL)
        until(lambda: next(batches) is not None and cluster.started == 3, "it is replaced")
        assert cluster.avoided == [set()] * 3


def test_a_stopped_worker_is_replaced_and_what_it_sends_later_is_ignored(cluster: Any) -> None:
    with warnings.catch_warnings(record=True) as said, on(Slow(), 2, hang=1, retries=20) as loader:
        warnings.simplefilter("always")
        found, batches = [], iter(loader)
        found.append(next(batches))
        until(lambda: is_up(loader), "both workers are up")
        pid = loader.workers[0].pid
        os.kill(pid, signal.SIGSTOP)
        found += itertools.islice(batches, 30)
        assert pid not in [worker.pid for worker in loader.workers]
        found += batches
        same(found, plain(Slow(), 2))
    assert any("for more than 1 second" in str(one.message) for one in said)


def test_a_step_that_kills_its_worker_names_worker_node_and_samples(cluster: Any) -> None:
    def sample(key: int) -> int:
        if key == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return key

    with on(penstock.testing._sources.FunctionDataset(8, sample), 2, retries=1) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(WorkerLost, match=r"on 10\.0\.0\.\d\) died while filling step 2 of epoch 0.*SIGKILL"):
            next(batches)
        assert next(batches).tolist() == [6, 7]


def test_a_large_update_does_not_wait_for_a_stopped_worker(cluster: Any) -> None:
    with on(Numbers(), 2, hang=2, retries=5) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(loader)
        next(batches)
        until(lambda: is_up(loader), "both workers are up")
        os.kill(loader.workers[0].pid, signal.SIGSTOP)
        began = time.monotonic()
        loader.update(ballast=bytes(30_000_000), size=7)
        assert time.monotonic() - began < 30  # a stopped worker would never take it
        assert [batch[1].tolist() for batch in batches] == [[7, 7]] * 19


# Workers that cannot start.


class Missing:
    """Its module is not on the nodes."""

    def __init__(self, error: str = "ModuleNotFoundError") -> None:
        self.error, self.here = error, os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> int:
        return key

    def __setstate__(self, state: Any) -> None:
        if self.error_elsewhere(state):
            if state["error"] == "FileNotFoundError":
                os.stat("/no/such/file")
            import no_such_module  # noqa: F401
        self.__dict__.update(state)

    @staticmethod
    def error_elsewhere(state: Any) -> bool:
        return os.getpid() != state["here"]


@pytest.mark.parametrize("error", [ModuleNotFoundError, FileNotFoundError])
@pytest.mark.parametrize("given", [{}, {"on_error": "skip", "retries": 9}], ids=["", "with on_error and retries"])
def test_a_node_that_lacks_something_is_named_and_not_tried_again(cluster: Any, error: Any, given: Any) -> None:
    with on(Missing(error.__name__), 2, **given) as loader:
        began = time.monotonic()
        with pytest.raises(error) as caught:
            list(loader)
        assert time.monotonic() - began < 30
        assert "was started on node 10.0.0." in "".join(caught.value.__notes__)
        assert cluster.started == 2 and loader.skipped == []


@pytest.mark.parametrize(("what", "version"), [("python", "3.8.1"), ("penstock", "9.9")])
def test_another_python_or_penstock_is_refused_with_the_node(cluster: Any, what: str, version: str) -> None:
    cluster.mains = [standin.liar_main] * 2
    cluster.environment = {f"VERSION_{what}": version}
    with on(Numbers()) as loader, pytest.raises(RuntimeError, match=rf"Node 10\.0\.0\.\d has .*{version}, and the"):
        list(loader)


def test_another_numpy_is_one_warning(cluster: Any) -> None:
    cluster.mains = [standin.liar_main] * 2
    cluster.environment = {"VERSION_numpy": "1.26.0"}
    with warnings.catch_warnings(record=True) as said, on(Slow(), 2) as loader:
        warnings.simplefilter("always")
        for _ in range(2):
            same(list(loader), plain(Slow(), 2))
            until(lambda: is_up(loader), "both workers are up")
    assert len(said) == 1 and "has numpy 1.26.0, and the driver has numpy" in str(said[0].message)


def test_no_room_is_an_error_after_the_patience() -> None:
    cluster = standin.LocalCluster(room=0)
    with standin.standing_in(cluster, patience=0.3), on(Numbers()) as loader:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"No worker has started on the cluster within 0\.3 s\. 2 wait for a"):
            next(iter(loader))
        assert 0.3 <= time.monotonic() - began < 30


def test_room_for_some_is_one_warning_and_these_work() -> None:
    cluster = standin.LocalCluster(room=1)
    with standin.standing_in(cluster, patience=5), on(Slow(), 2, num_workers=3) as loader:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            until(lambda: same(list(loader), plain(Slow(), 2)) or said, "it is warned")
            same(list(loader), plain(Slow(), 2))
        assert len(said) == 1 and "2 of 3 workers have not started on the cluster within 5 s" in str(said[0].message)
        loader.num_workers = 1  # those that wait for a place leave first
        until(lambda: same(list(loader), plain(Slow(), 2)) or len(loader.workers) == 1, "two have left")
        assert is_up(loader)


def test_a_dataset_that_is_shared_on_this_machine_cannot_be_sent(cluster: Any) -> None:
    dataset = Numbers()
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        for shared in (multiprocessing.Lock(), ours):
            dataset.shared = shared  # type: ignore[attr-defined]
            with on(dataset) as loader, pytest.raises(UnshippableDataset, match=r"dataset\.shared") as caught:
                iter(loader)
            assert "fork" not in str(caught.value)


# The cluster is gone.


def test_a_cluster_that_is_shut_down_is_an_error_and_close_does_not_wait(cluster: Any) -> None:
    with on(Slow(), 2) as loader:
        batches = iter(loader)
        next(batches)
        until(lambda: is_up(loader), "both workers are up")
        cluster.is_up = False
        for process in cluster.processes:
            process.kill()
        with pytest.raises(WorkerLost, match="no replacement could be started"):
            list(batches)
        began = time.monotonic()
        loader.close()
        assert time.monotonic() - began < 4


# The end.


def test_a_loader_that_is_forgotten_leaves_nothing(cluster: Any) -> None:
    loader = on(Slow(), 2)
    next(iter(loader))
    pids = [process.pid for process in cluster.processes]
    del loader
    gc.collect()
    until(lambda: not any(process.is_alive() for process in cluster.processes), f"{pids} have ended")


def test_a_busy_worker_ends_with_its_connection(cluster: Any) -> None:
    def sample(key: int) -> int:
        time.sleep(1000 if key else 0)
        return key

    with on(penstock.testing._sources.FunctionDataset(8, sample), num_workers=1) as loader:
        next(iter(loader))
        (backend,) = cluster.made
        backend._remotes[0].link.cut()
        cluster.processes[0].join(60)
        assert not cluster.processes[0].is_alive()


PROGRAM = """
import os, sys, time
sys.path[:0] = {path!r}
import standin, penstock
class Busy:
    def __len__(self): return 100
    def __getitem__(self, key):
        if key > 5: time.sleep(1000)
        return key
if __name__ == "__main__":
    cluster = standin.LocalCluster()
    block = standin.standing_in(cluster)  # nobody closes it
    block.__enter__()
    loader = penstock.DataLoader(Busy(), num_workers=2, backend="standin")
    batches = iter(loader)
    for _ in range(4): next(batches)
    print(*(process.pid for process in cluster.processes), flush=True)
    {end}
"""


@pytest.mark.parametrize("end", ["time.sleep(100)", "os._exit(0)", "sys.exit(0)"], ids=["killed", "_exit", "exit"])
def test_nothing_is_left_however_the_driver_ends(tmp_path: Path, end: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=sys.path, end=end))
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [*map(int, driver.stdout.readline().split())]
        assert len(pids) == 2
        if "sleep" in end:
            driver.kill()
        driver.wait(60)
        until(lambda: not any(is_running(pid) for pid in pids), "no worker is left")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_forked_child_leaves_the_workers_alone(cluster: Any) -> None:
    with on(Slow(), 2) as loader:
        batches = iter(loader)
        found = [next(batches)]
        pid = os.fork()
        if pid == 0:
            loader.close()
            del batches, loader
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        found += batches
        same(found, plain(Slow(), 2))


# What is told.


def test_a_timeout_shows_the_stack_of_a_worker_that_is_busy(cluster: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def waits_for_the_gate(key: int) -> int:
        while key == 1 and not gate.exists():
            time.sleep(0.01)
        return key

    with on(penstock.testing._sources.FunctionDataset(4, waits_for_the_gate), timeout=0.5) as loader:
        batches = iter(loader)
        said = ""
        while "Samples in the step: [1]" not in said or "waits_for_the_gate" not in said:
            try:
                assert next(batches).tolist() == [0]
            except LoaderTimeout as error:  # the first times, workers may be slow to start
                said = str(error)
        assert re.search(r"worker \d \(pid \d+ on 10\.0\.0\.\d\) is working on it", said)
        gate.touch()
        until(lambda: take(batches), "the rest arrives")


def take(batches: Any) -> bool:
    try:
        return next(batches, None) is None
    except LoaderTimeout:
        return False


def test_figures_have_nodes(cluster: Any, tmp_path: Path) -> None:
    with on(Slow(), 2) as loader, loader.trace(tmp_path / "trace.json"):
        until(lambda: list(loader) and is_up(loader), "both workers are up")
        list(loader)
        stats = loader.stats()
        workers = stats.life.workers
        assert [worker.node for worker in workers] == ["10.0.0.0", "10.0.0.1"]
        pids = [process.pid for process in cluster.processes]
        assert [worker.name for worker in workers] == [f"worker {i} (pid {pids[i]} on 10.0.0.{i})" for i in (0, 1)]
        assert sum(worker.steps for worker in workers) >= stats.life.batches
        assert all(0.05 < worker.busy < 60 and worker.fetch > 0.9 * worker.busy for worker in workers)
        assert stats.life.slowest and all(0 <= worker.delayed < 60 for worker in workers)
        table = str(stats)
        assert "1 on 10.0.0.0" in table and f"worker 1 (pid {pids[1]})" in table
    life = loader.stats().life  # of workers that have ended
    assert [worker.node for worker in life.workers] == ["10.0.0.0", "10.0.0.1"]
    events = json.loads((tmp_path / "trace.json").read_text())
    assert len([one for one in events if str(one.get("name", "")).startswith("fetch")]) > 60


def test_a_replaced_worker_goes_on_with_the_figures_of_its_seat(cluster: Any) -> None:
    with on(Slow(), 2, num_workers=1, retries=9) as loader:
        for step, _ in enumerate(loader):
            if step == 30:
                os.kill(loader.workers[0].pid, signal.SIGKILL)
        (worker,) = loader.stats().life.workers
        assert 60 <= worker.steps <= 64 and loader.stats().life.replaced == 1


# Encrypted, interrupted.


def test_an_encrypted_cluster_gives_the_same_batches(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = new_certificate(tmp_path)
    cluster.tls, cluster.environment = tls, environment(tls)
    rows = np.arange(400_000).reshape(40, 10_000)
    with on(rows, 3, shuffle=True) as loader:
        for _ in range(2):
            same(list(loader), plain(rows, 3, shuffle=True))
            loader.set_epoch(0)


def test_an_encrypted_cluster_without_certificates_is_refused(cluster: Any, tmp_path: Path) -> None:
    cluster.tls = new_certificate(tmp_path)
    cluster.mains = [standin.node_main] * 4  # whose environment names no files
    with on(Numbers(), retries=0) as loader, pytest.raises(WorkerLost, match="exited with code 1"):
        list(loader)


def test_an_interrupt_ends_the_workers(cluster: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for after in (0.001, 0.01, 0.03, 0.05, 0.1):
            with on(Slow(), 2) as loader, pytest.raises(KeyboardInterrupt):
                read_until_interrupted(loader, after)
            until(lambda: not any(process.is_alive() for process in cluster.processes), "no worker is left")
            same(list(DataLoader(Slow(), 2)), plain(Slow(), 2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_until_interrupted(loader: Any, after: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, after)
    while True:
        for _ in loader:
            pass


# States go from one backend to another.


def test_a_state_goes_on_with_processes_and_back(cluster: Any) -> None:
    for make, given in ((Numbers, {"shuffle": True}), (Stateful, {})):
        expected = plain(make(60), 3, **given)
        kinds = itertools.cycle([{"backend": "standin"}, {"backend": "process", "multiprocessing_context": "fork"}])
        found: list[Any] = []
        state = None
        for kind, _ in zip(kinds, range(0, 20, 4), strict=False):
            workers = 1 if make is Stateful else 2
            with on(make(60), 3, **given | kind | {"num_workers": workers}) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                batches = iter(loader)
                found += itertools.islice(batches, 4)
                state = loader.state_dict()
        same(found, expected, make.__name__)


def test_consumers_share_an_epoch(cluster: Any) -> None:
    with on(Slow(), 2) as loader:
        first, second = loader.share(2, in_turn=True)
        found = [batch for both in zip(first, second, strict=True) for batch in both]
        same(found, plain(Slow(), 2))
