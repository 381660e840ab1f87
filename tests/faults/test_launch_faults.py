"""Whole programs that start workers: killed, interrupted, unguarded, forking by themselves."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

METHODS = ("fork", "spawn", "forkserver")

# Unguarded, on purpose: no method may import this program again.
PREAMBLE = """
import atexit, os, signal, sys, time
from penstock.backends._process.launcher import Launcher
method = sys.argv[1]
atexit.register(lambda: print("atexit", flush=True))
"""

SPINNING = """
def main(worker, payload, fds):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.write(fds["out"], b"x")
    if worker == 0:
        sum(range(10**13))  # one C call that never lets go of the GIL
    time.sleep(1000)

r, w = os.pipe()
launcher = Launcher(method, main, None, {"out": w})
workers = [launcher.start(i) for i in range(2)]
pids = [worker.pid for worker in workers]
if method == "forkserver":
    pids.append(launcher.template.pid)
for _ in workers:
    os.read(r, 1)
"""


@contextmanager
def program(path: Path, text: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    path.write_text(PREAMBLE + text)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, str(path), *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.returncode is None:  # not reaped: so the group is still this one
                os.killpg(process.pid, signal.SIGKILL)


def watch(pids: list[int]) -> dict[int, int]:
    """A pidfd for each: taken while they live, so that no other process can be mistaken for one."""
    return {os.pidfd_open(pid): pid for pid in pids}


def assert_all_die(pidfds: dict[int, int]) -> None:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    left = dict(pidfds)
    while left:
        dead = poll.poll(60_000)
        if not dead:
            break
        for pidfd, _ in dead:
            poll.unregister(pidfd)
            del left[pidfd]
    for pidfd in left:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for pidfd in pidfds:
        os.close(pidfd)
    assert not left, f"still alive: {list(left.values())}"


@pytest.mark.parametrize("method", METHODS)
def test_workers_die_with_a_killed_parent_even_inside_a_c_call(method: str, tmp_path: Path) -> None:
    text = SPINNING + "print(*pids, flush=True)\ntime.sleep(1000)\n"
    with program(tmp_path / "killed.py", text, method) as parent:
        assert parent.stdout is not None
        pidfds = watch([int(pid) for pid in parent.stdout.readline().split()])
        assert len(pidfds) == (3 if method == "forkserver" else 2)
        parent.kill()
        assert_all_die(pidfds)


def test_workers_die_with_a_killed_parent_whose_own_fork_lives_on(tmp_path: Path) -> None:
    text = SPINNING + "forked = os.fork()\nif forked: print(forked, *pids, flush=True)\ntime.sleep(1000)\n"
    with program(tmp_path / "forked.py", text, "fork") as parent:
        assert parent.stdout is not None
        forked, *pids = (int(pid) for pid in parent.stdout.readline().split())
        pidfds = watch(pids)
        parent.kill()
        assert_all_die(pidfds)
        os.kill(forked, 0)  # it is still there; the end of `program` kills its group


def test_workers_of_a_thread_that_ended_live_on(tmp_path: Path) -> None:
    text = """
    import threading
    def main(worker, payload, fds):
        os.write(fds["out"], b"x")
        time.sleep(1000)
    r, w = os.pipe()
    launcher = Launcher(method, main, None, {"out": w})
    started = []
    thread = threading.Thread(target=lambda: started.append(launcher.start(0)))
    thread.start(); thread.join()
    os.read(r, 1)
    started[0].join(0.2)
    print(started[0].is_alive())
    started[0].release(); launcher.close()
    """.replace("\n    ", "\n")
    with program(tmp_path / "thread.py", text, "fork") as parent:
        out, err = parent.communicate(timeout=60)
    assert (out.split(), err) == (["True", "atexit"], "")


@pytest.mark.parametrize("method", METHODS)
def test_an_unguarded_program_with_its_own_classes_runs_once(method: str, tmp_path: Path) -> None:
    text = """
    print("program", flush=True)
    class Dataset:
        def __init__(self): self.transform = lambda x: x * 2
        def __getitem__(self, i): return self.transform(i) + OFFSET
        def __enter__(self): return self
    OFFSET = 100
    class Mine(Exception):
        def __init__(self, a, b):
            super().__init__("mine")
            self.a, self.b = a, b
    def main(worker, payload, fds):
        from penstock._wire.failure import Failure
        dataset, init = payload["dataset"], payload["worker_init_fn"]
        assert init.__self__ is dataset
        try:
            raise Mine(dataset[worker], 2)
        except Mine as exc:
            data = Failure.capture(exc, where=f"worker {worker}")
        os.write(fds["out"], len(data).to_bytes(4, "big") + data)
        return 5

    from penstock._wire.failure import restore
    r, w = os.pipe()
    dataset = Dataset()
    payload = {"dataset": dataset, "worker_init_fn": dataset.__enter__, "error": Mine}
    launcher = Launcher(method, main, payload, {"out": w})
    init_before = Mine.__init__
    for number in range(2):
        worker = launcher.start(number)
        data = os.read(r, int.from_bytes(os.read(r, 4), "big"))
        try:
            raise restore(data)
        except Mine as exc:
            print(exc, exc.a, exc.b, exc.__notes__, flush=True)
        worker.join()
        print(worker.exitcode, Mine.__init__ is init_before, flush=True)
        worker.release()
    launcher.close()
    """.replace("\n    ", "\n")
    with program(tmp_path / "unguarded.py", text, method) as parent:
        out, err = parent.communicate(timeout=60)
    assert err == ""
    assert out.splitlines() == [
        "program",
        "mine 100 2 ['worker 0']",
        "0 True",
        "mine 102 2 ['worker 1']",
        "0 True",
        "atexit",  # the parent's: a worker runs nobody's
    ]


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_is_heard_by_the_parent_alone(method: str, tmp_path: Path) -> None:
    # One Ctrl-C while a template starts, one while a worker starts, one while workers work.
    text = """
    from penstock._system.descriptors import close_in_child, forget
    def main(worker, payload, fds):
        os.write(fds["out"], b"x")
        os.read(fds["tokens"], 1)
    def interrupt():
        try:
            os.killpg(0, signal.SIGINT)
            time.sleep(1000)
        except KeyboardInterrupt:
            return 1
    r, w = os.pipe()
    tokens, end = os.pipe()
    close_in_child(end)
    launcher = Launcher(method, main, None, {"out": w, "tokens": tokens})
    heard = interrupt()
    workers = [launcher.start(0)]
    heard += interrupt()
    workers.append(launcher.start(1))
    for _ in workers:
        os.read(r, 1)
    heard += interrupt()
    forget(end)
    os.close(end)
    for worker in workers:
        worker.join()
    print(heard, [worker.exitcode for worker in workers])
    for worker in workers:
        worker.release()
    launcher.close()
    """.replace("\n    ", "\n")
    with program(tmp_path / "interrupted.py", text, method) as parent:
        out, err = parent.communicate(timeout=60)
    assert (out.splitlines(), err) == (["3 [0, 0]", "atexit"], "")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_a_program_has_not_yet_printed_is_printed_once(method: str, tmp_path: Path) -> None:
    text = """
    def main(worker, payload, fds):
        print("worker")
    print("parent")
    launcher = Launcher(method, main, None, {})
    worker = launcher.start(0)
    worker.join()
    worker.release()
    launcher.close()
    """.replace("\n    ", "\n")
    with program(tmp_path / "printing.py", text, method) as parent:
        out, err = parent.communicate(timeout=60)
    assert (sorted(out.split()), err) == (["atexit", "parent", "worker"], "")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_parent_that_ends_without_closing_leaves_nobody(method: str, tmp_path: Path) -> None:
    text = SPINNING + "print(*pids, flush=True)\nsys.stdin.read()\n"
    path = tmp_path / "careless.py"
    path.write_text(PREAMBLE + text)
    with subprocess.Popen(
        [sys.executable, str(path), method], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pidfds = watch([int(pid) for pid in parent.stdout.readline().split()])
        parent.communicate(timeout=60)
        assert parent.returncode == 0
        assert_all_die(pidfds)
