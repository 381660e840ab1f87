"""Worker processes: how they start, what they are born with, how they end. Real ones, by every method."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import logging
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import cloudpickle
import numpy as np
import pytest

from penstock import DataLoader
from penstock._system.descriptors import close_in_child, forget
from penstock.backends._process import launcher, methods
from penstock.backends._process import process as processes
from penstock.backends._process.launcher import Launcher
from penstock.backends._process.methods import choose_method
from penstock.backends._process.process import UNKNOWN, WorkerProcess, fate
from penstock.errors import InternalError, WorkerLost

# By value: else each fresh interpreter imports this module, and pytest with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

METHODS = ("fork", "spawn", "forkserver")
SENT = ("spawn", "forkserver")


class Crew:
    """A launcher whose workers say one JSON line each."""

    def __init__(self, method: str, main: Callable[..., None], payload: object = None) -> None:
        self.reader, self.writer = os.pipe()
        self._lines = os.fdopen(self.reader, "r")
        self.launcher = Launcher(method, main, payload, {"out": self.writer})
        self.workers: list[WorkerProcess] = []

    def start(self) -> WorkerProcess:
        self.workers.append(self.launcher.start(len(self.workers)))
        return self.workers[-1]

    def heard(self) -> Any:
        return json.loads(self._lines.readline())

    def close(self) -> None:
        for worker in self.workers:
            worker.release()
        self.launcher.close()
        self._lines.close()
        os.close(self.writer)


@pytest.fixture
def crew_of() -> Iterator[Callable[..., Crew]]:
    with ExitStack() as stack:

        def make(method: str, main: Callable[..., None], payload: object = None) -> Crew:
            crew = Crew(method, main, payload)
            stack.callback(crew.close)
            return crew

        yield make


def say(fds: Mapping[str, int], what: object) -> None:
    os.write(fds["out"], json.dumps(what).encode() + b"\n")


def ended(process: WorkerProcess, within: float = 20) -> int | None:
    process.join(within)
    return process.exitcode


# What a worker does


def tell_all(worker: int, payload: Any, fds: Mapping[str, int]) -> None:
    say(fds, [worker, payload, os.getpid()])


def idle(worker: int, payload: object, fds: Mapping[str, int]) -> None:
    say(fds, os.getpid())
    while True:
        signal.pause()


def fail(worker: int, payload: object, fds: Mapping[str, int]) -> None:
    raise LookupError("no such sample")


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_runs_main_with_its_number_payload_and_fds(method: str, crew_of: Any) -> None:
    crew = crew_of(method, tell_all, {"a": [1, 2]})
    worker = crew.start()
    assert crew.heard() == [0, {"a": [1, 2]}, worker.pid]
    assert ended(worker) == 0


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_that_escapes_main_is_printed_and_exits_with_1(method: str, crew_of: Any, capfd: Any) -> None:
    worker = crew_of(method, fail).start()
    assert ended(worker) == 1
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1
    assert f"penstock worker 0 (pid {worker.pid})" in said
    assert "LookupError: no such sample" in said
    assert worker.failure is None


def leave(worker: int, payload: Any, fds: Mapping[str, int]) -> None:
    sys.exit(payload)


@pytest.mark.parametrize(
    ("method", "code", "expected"),
    [("fork", None, 0), ("fork", "a message", 1), ("fork", 7, 7), ("spawn", 7, 7), ("forkserver", 7, 7)],
)
def test_sys_exit_gives_its_code(method: str, code: object, expected: int, crew_of: Any, capfd: Any) -> None:
    assert ended(crew_of(method, leave, code).start()) == expected
    assert capfd.readouterr().err == ("a message\n" if expected == 1 else "")


@pytest.mark.parametrize("method", METHODS)
def test_an_end_that_the_system_does_not_tell_of_is_mistaken_for_no_other(method: str, crew_of: Any) -> None:
    assert fate(ended(crew_of(method, leave, 255).start())) == ("exited with code 255", "")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        worker = crew_of(method, idle).start()
        worker.kill()
        said = ("ended, and the system did not tell how", "unknown")
        if method == "forkserver":  # the template reads it
            said = ("was killed by signal 9 (SIGKILL)", "SIGKILL")
        assert fate(ended(worker)) == said
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_is_seen_through_its_pidfd_and_can_be_replaced(method: str, crew_of: Any) -> None:
    crew = crew_of(method, idle)
    first = crew.start()
    assert crew.heard() == first.pid
    assert first.is_alive()
    assert first.exitcode is None
    first.join(0.001)
    assert first.is_alive()
    first.kill()
    assert select.select([first], [], [], 20)[0] == [first]
    assert (first.exitcode, first.is_alive()) == (-9, False)
    first.kill()
    second = crew.start()
    assert crew.heard() == second.pid != first.pid
    os.kill(second.pid, signal.SIGTERM)
    assert ended(second) == -15


def say_surroundings(worker: int, payload: object, fds: Mapping[str, int]) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    say(
        fds,
        {
            "sigint": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "blocked": len(blocked),
            "stdin": sys.stdin.read() + os.read(0, 1).decode(),
            "argv": sys.argv,
            "path": sys.path,
            "cwd": os.getcwd(),
            "threads": threading.current_thread() is threading.main_thread(),
            "fds": sorted(
                (int(fd), os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            ),
        },
    )


def held(signum: int, frame: object) -> None:
    raise AssertionError("a handler of the parent ran in a worker")


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_is_born_with_quiet_signals_no_input_and_only_its_own_fds(method: str, crew_of: Any) -> None:
    # A fork also has what this test process has open, such as the socket of a forge (tests/programs.py).
    inherited = set(map(int, os.listdir("/proc/self/fd"))) if method == "fork" else set()
    crew = crew_of(method, say_surroundings)
    other = crew_of(method, say_surroundings)
    before = signal.signal(signal.SIGTERM, held)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        crew.start()
        other.start()
        crew.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, before)
    crew.heard()
    found = crew.heard()
    own = found.pop("fds")
    assert found == {
        "sigint": True,
        "sigterm": True,
        "blocked": 0,
        "stdin": "",
        "argv": sys.argv,
        "path": sys.path,
        "cwd": os.getcwd(),
        "threads": True,
    }
    ours = {fd for fd, _ in own}
    assert crew.writer in ours
    of_a_launcher = [
        kind for fd, kind in own if fd not in inherited and (kind in ("socket", "anon_inode") or "memfd" in kind)
    ]
    assert not of_a_launcher, own
    if method != "fork":
        # the pipe it was given, and its own end of the lifeline
        assert [kind for fd, kind in own if fd > 2 and kind == "pipe"] == ["pipe", "pipe"], own


def put_away(worker: int, payload: Any, fds: Mapping[str, int]) -> None:
    say(fds, [worker, payload(3), payload.__name__])


@pytest.mark.parametrize("method", METHODS)
def test_a_lambda_reaches_a_worker(method: str, crew_of: Any) -> None:
    offset = 10
    crew = crew_of(method, put_away, lambda x: x + offset)
    crew.start()
    assert crew.heard() == [0, 13, "<lambda>"]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_twenty_workers_leave_no_descriptor_open(method: str, crew_of: Any) -> None:
    crew = crew_of(method, tell_all)
    crew.start()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        crew.start()
    assert {crew.heard()[0] for _ in range(21)} == set(range(21))
    assert [ended(worker) for worker in crew.workers] == [0] * 21
    assert len(os.listdir("/proc/self/fd")) == before + 20
    for worker in crew.workers[1:]:
        worker.release()
        worker.release()
        assert worker.exitcode == 0
    assert len(os.listdir("/proc/self/fd")) == before
    # The autouse fixture of conftest.py counts the rest when the launcher is closed.


def wait_for_end_of(worker: int, payload: object, fds: Mapping[str, int]) -> None:
    say(fds, os.getpid())
    os.read(fds["in"], 1)
    say(fds, "ended by itself")


@pytest.mark.parametrize("method", METHODS)
def test_closing_the_launcher_kills_no_worker(method: str) -> None:
    out_r, out_w = os.pipe()
    in_r, in_w = os.pipe()
    close_in_child(in_w)
    with os.fdopen(out_r) as lines:
        launcher = Launcher(method, wait_for_end_of, None, {"out": out_w, "in": in_r})
        worker = launcher.start(0)
        assert json.loads(lines.readline()) == worker.pid
        launcher.close()
        launcher.close()
        assert worker.is_alive()
        forget(in_w)
        os.close(in_w)
        assert json.loads(lines.readline()) == "ended by itself"
        assert ended(worker) == 0
        worker.release()
    for fd in (out_w, in_r):
        os.close(fd)


def collect_garbage(worker: int, payload: Any, fds: Mapping[str, int]) -> None:
    gc.collect()
    say(fds, "collected")


def test_a_forked_worker_finalizes_nothing_of_its_parent(crew_of: Any) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            finalized_in.append(os.getpid())
            if os.getpid() != parent:
                os.write(crew.writer, b'"finalized"\n')

    parent = os.getpid()
    finalized_in: list[int] = []
    crew = crew_of("fork", collect_garbage)
    gc.disable()
    try:
        Cycle()
        crew.start()
    finally:
        gc.enable()
    assert crew.heard() == "collected"
    gc.collect()
    assert finalized_in == [parent]


@pytest.mark.parametrize("method", METHODS)
def test_closing_a_handle_ends_a_worker_that_still_runs(method: str, crew_of: Any) -> None:
    crew = crew_of(method, idle)
    worker = crew.start()
    crew.heard()
    worker.release()
    assert worker.exitcode == -9
    assert not worker.is_alive()
    with pytest.raises(ValueError, match="closed"):
        worker.fileno()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_dies_long_after_it_was_killed_is_no_zombie(
    method: str, crew_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = crew_of(method, idle)
    worker = crew.start()
    crew.heard()
    monkeypatch.setattr(processes, "LINGER", 0.0)
    monkeypatch.setattr(WorkerProcess, "kill", lambda process: None)  # as if it were stuck in the kernel
    worker.release()
    (reaper,) = (thread for thread in threading.enumerate() if thread.name == "penstock-reaper")
    os.kill(worker.pid, 0)  # it lives
    os.kill(worker.pid, signal.SIGKILL)
    reaper.join(20)
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_a_launcher_that_is_closed_starts_nothing() -> None:
    launcher = Launcher("fork", idle, None, {})
    launcher.close()
    with pytest.raises(InternalError, match="closed"):
        launcher.start(0)


def test_a_fork_of_the_user_holds_no_end_that_was_registered() -> None:
    reader, writer = os.pipe()
    close_in_child(writer)
    ready, tell = os.pipe()
    stay, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.write(tell, b"x")
        os.read(stay, 1)
        os._exit(0)
    os.read(ready, 1)
    forget(writer)
    os.close(writer)
    assert os.read(reader, 1) == b""  # end of file, while the child lives
    os.close(go)
    os.waitpid(pid, 0)
    for fd in (reader, ready, tell, stay):
        os.close(fd)


def test_a_handle_does_nothing_in_a_fork_of_the_user(crew_of: Any) -> None:
    crew = crew_of("fork", idle)
    worker = crew.start()
    crew.heard()
    pid = os.fork()
    if pid == 0:
        worker.kill()
        worker.release()
        crew.launcher.close()
        os._exit(7 if not worker.is_alive() else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert worker.is_alive()


def test_an_interrupt_in_the_middle_of_a_start_leaves_no_worker(
    crew_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = crew_of("fork", idle)
    really_fork = launcher.fork
    born: list[int] = []

    def fork() -> int:
        pid = really_fork()
        if pid:
            born.append(pid)
            signal.raise_signal(signal.SIGINT)
        return pid

    monkeypatch.setattr(launcher, "fork", fork)
    with pytest.raises(KeyboardInterrupt):
        crew.start()
    assert len(born) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(born[0], 0)  # dead, and reaped
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_while_the_template_starts_leaves_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    really_start = launcher.start_python
    born: list[int] = []

    def start(*how: Any) -> int:
        born.append(really_start(*how))
        signal.raise_signal(signal.SIGINT)
        return born[0]

    monkeypatch.setattr(launcher, "start_python", start)
    with pytest.raises(KeyboardInterrupt):
        Launcher("forkserver", idle, None, {})
    assert len(born) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(born[0], 0)  # dead, and reaped


def test_without_a_descriptor_left_a_start_fails_and_leaves_no_worker(
    crew_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int) -> int:
        raise OSError(errno.EMFILE, "none left")

    crew = crew_of("fork", idle)
    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(OSError, match="none left"):
        crew.start()


def test_every_descriptor_of_a_launcher_closes_on_exec(crew_of: Any) -> None:
    before = set(os.listdir("/proc/self/fd"))
    crew = crew_of("forkserver", idle)
    crew.start()
    after = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    new = {int(fd) for fd in set(after) - before}
    assert len(new) >= 7
    assert [fd for fd in new if not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC] == []


# What is sent


class Stubborn:
    """Pickles, but cannot be rebuilt."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_what_cannot_be_rebuilt_in_the_template_is_raised_by_each_start(crew_of: Any) -> None:
    crew = crew_of("forkserver", idle, Stubborn())
    for _ in range(2):
        with pytest.raises(ValueError, match="no number") as caught:
            crew.start()
        assert "template" in caught.value.__notes__[-1]


def test_what_cannot_be_rebuilt_in_a_spawned_worker_is_told_by_its_handle(crew_of: Any, capfd: Any) -> None:
    crew = crew_of("spawn", idle, Stubborn())
    first, second = crew.start(), crew.start()
    for worker in (first, second):
        assert ended(worker) == 1
        assert isinstance(worker.failure, ValueError)
        assert f"worker {worker.seat} (pid {worker.pid})" in worker.failure.__notes__[-1]
    assert capfd.readouterr().err == ""


def look_at_shared_memory(worker: int, payload: Any, fds: Mapping[str, int]) -> None:
    total = float(payload["dataset"].sum())
    payload["dataset"][:10] = worker
    field = {"Rss:": 0, "Anonymous:": 0}
    inside = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            name, *values = line.split()
            if not name.endswith(":"):
                inside = "penstock-shipment" in line
            elif inside and name in field:
                field[name] += int(values[0])
    say(fds, [total, field["Rss:"], field["Anonymous:"]])


@pytest.mark.parametrize("method", SENT)
def test_workers_share_one_copy_of_an_array_and_may_write_to_it(method: str, crew_of: Any) -> None:
    array = np.ones(4 << 20)  # 32 MiB
    crew = crew_of(method, look_at_shared_memory, {"dataset": array})
    for _ in range(2):
        crew.start()
        total, resident, own = crew.heard()
        assert total == array.size  # the first worker's writes are its own
        assert resident > 0.9 * array.nbytes / 1024  # the system may take single pages back at any moment
        assert 0 < own < 64  # KiB: the page that it wrote to, of 32 MiB
    assert float(array.sum()) == array.size


def test_a_template_that_died_is_replaced_and_its_workers_live_on(crew_of: Any) -> None:
    crew = crew_of("forkserver", idle)
    old = crew.start()
    crew.heard()
    template = crew.launcher.template
    os.kill(template.pid, signal.SIGKILL)
    template.join()
    new = crew.start()
    assert crew.heard() == new.pid
    assert old.is_alive()
    old.kill()
    assert ended(old) == UNKNOWN  # nobody was left to read its status


def test_a_template_that_was_replaced_is_not_asked_any_more(crew_of: Any) -> None:
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]  # for what is opened after the death
    crew = crew_of("forkserver", idle)
    old = crew.start()
    crew.heard()
    template = crew.launcher.template
    link = template._link
    for fd in spare:
        os.close(fd)
    os.kill(template.pid, signal.SIGKILL)
    template.join()
    crew.start()
    assert not os.path.exists(f"/proc/self/fd/{link}")
    ours, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), link)  # the program opens a socket, and gets this number
    theirs.shutdown(socket.SHUT_RD)  # so that nobody would wait for an answer
    old.kill()
    assert ended(old) == UNKNOWN
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(100)
    os.close(link)
    ours.close()
    theirs.close()


def test_a_template_that_dies_each_time_is_an_error_that_says_so(crew_of: Any) -> None:
    crew = crew_of("forkserver", idle, Deadly())
    with pytest.raises(WorkerLost, match=r"template .* was killed by signal 9"):
        crew.start()


def test_a_worker_that_its_template_did_not_tell_of_does_nothing(crew_of: Any) -> None:
    crew = crew_of("forkserver", idle, DiesWhenItTells())
    with pytest.raises(WorkerLost, match=r"template .* was killed by signal 9"):
        crew.start()
    os.dup2(crew.reader, crew.writer)  # no other end for writing is open in this process
    assert crew._lines.readline() == "", "a worker of a number that counts as lost"


class DiesWhenItTells:
    """Unpickled in the template, which then dies between the fork of a worker and its answer."""

    def __reduce__(self) -> Any:
        return die_when_telling, ()


def die_when_telling() -> None:
    socket.send_fds = lambda *given: signal.raise_signal(signal.SIGKILL)  # type: ignore[assignment]


class Deadly:
    def __reduce__(self) -> Any:
        return signal.raise_signal, (int(signal.SIGKILL),)


# The choice of a method


def test_a_named_method_is_taken_and_others_are_refused() -> None:
    assert [choose_method(name) for name in METHODS] == list(METHODS)
    with pytest.raises(ValueError, match="fork, spawn, forkserver, not 'thread'"):
        choose_method("thread")
    with pytest.raises(TypeError, match="not int"):
        choose_method(3)  # type: ignore[arg-type]


def test_a_context_gives_its_method() -> None:
    assert [choose_method(multiprocessing.get_context(name)) for name in METHODS] == list(METHODS)


@pytest.fixture
def start_method_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", None)


@pytest.mark.usefixtures("start_method_unset")
def test_what_was_set_in_multiprocessing_is_taken_and_not_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_method(None)
    assert multiprocessing.get_start_method(allow_none=True) is None
    multiprocessing.set_start_method("spawn")
    assert choose_method(None) == "spawn"


SINGLE_THREADED = """
import _thread, multiprocessing, os, sys, threading
import numpy  # OpenBLAS has threads, and stops them before a fork
from penstock.backends._process import forking
from penstock.backends._process.methods import choose_method

assert choose_method(None) == "fork"

done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
assert choose_method(None) == "forkserver"
multiprocessing.Lock()  # fixes multiprocessing's default, which nobody chose
assert choose_method(None) == "forkserver"
done.set()
thread.join()
while choose_method(None) != "fork": pass  # the kernel's thread ends a moment later

# A pool of native threads, of which threading knows nothing, in the place of OpenBLAS's.
if (child := os.fork()) == 0:
    os._exit(0)
os.waitpid(child, 0)
assert choose_method(None) == "fork"
stop = _thread.allocate_lock()
stop.acquire()
_thread.start_new_thread(stop.acquire, ())
assert choose_method(None) == "forkserver"

trials, forking._fork_for_trial = [], lambda: trials.append(1)
assert choose_method(None) == "forkserver" and not trials  # the thread is known by now
stop.release()
while forking._others(): pass
assert choose_method(None) == "fork" and not trials

sys.modules["jax"] = multiprocessing
assert choose_method(None) == "forkserver"
"""


def test_a_single_thread_forks_and_more_do_not() -> None:
    """In a process of its own: pytest has threads."""
    done = subprocess.run([sys.executable, "-c", SINGLE_THREADED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


STOPPED = """
import sys
import numpy
from penstock.backends import _native_threads
from penstock.backends._process import forking
from penstock.backends._process.methods import choose_method

trials, trial = [], forking._fork_for_trial
forking._fork_for_trial = lambda: (trials.append(1), trial())
square = numpy.ones((300, 300))
for _ in range(3):
    assert (square @ square == 300).all()  # starts OpenBLAS's threads again
    assert choose_method(None) == "fork"
    assert not forking._others()
    sys.modules[f"another {len(sys.modules)}"] = sys  # the libraries are looked at again
_native_threads.look_up()
print(bool(_native_threads._stops), bool(trials))
"""


def test_openblas_stops_its_threads_without_a_trial() -> None:
    """A trial takes as long as a fork, and most programs have no threads but OpenBLAS's."""
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != "True True\n"  # numpy 2.5 hides the function: there a trial is needed


BUSY = """
import sys, threading
from penstock.backends._process import forking

def spin():
    while True:
        pass

sys.setswitchinterval(1e-6)  # so that the thread asks for the GIL at nearly every instruction
threading.Thread(target=spin, daemon=True).start()
for _ in range(100):
    forking._fork_for_trial()
print(len(forking._others()))
"""


def test_a_trial_beside_a_thread_that_computes_ends() -> None:
    """The child has no thread that could take the GIL: if it handed the GIL over, it would wait for ever."""
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "1\n")


class Unforkable:
    """A dataset that starts a thread when it is unpickled, or whose unpickling imports a library like JAX."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> int:
        return os.getppid()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if self.how == "thread":
            import _thread

            stop = _thread.allocate_lock()
            stop.acquire()
            _thread.start_new_thread(stop.acquire, ())
        else:
            sys.modules["jax"] = os


@pytest.fixture
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_told", set())
    monkeypatch.setattr(methods, "_without_fork", "forkserver")


@pytest.mark.usefixtures("nothing_told")
@pytest.mark.parametrize(("how", "why"), [("thread", "has 1 other thread"), ("jax", "has imported jax")])
def test_a_template_that_must_not_be_forked_is_not(how: str, why: str) -> None:
    def parents() -> set[int]:
        with DataLoader(Unforkable(how), num_workers=1, multiprocessing_context="forkserver") as loader:
            return {batch.item() for batch in loader}

    with pytest.warns(RuntimeWarning, match=rf"started by spawn and not by forkserver.*\(it {why}\)") as said:
        assert parents() == parents() == {os.getpid()}  # no template is between
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.usefixtures("nothing_told", "start_method_unset")
def test_where_forkserver_was_our_choice_spawn_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(methods, "survives_fork", lambda: False)
    monkeypatch.setattr(logging.getLogger("penstock"), "info", said.append)
    assert choose_method(None) == "forkserver"
    with DataLoader(Unforkable("thread"), num_workers=1) as loader:
        assert {batch.item() for batch in loader} == {os.getpid()}
    assert choose_method(None) == "spawn"  # the next loader need not try it
    assert ["started by spawn and not by forkserver" in text for text in said] == [True]


def say_whose_child(worker: int, payload: object, fds: Mapping[str, int]) -> None:
    say(fds, os.getppid())


def test_only_the_first_worker_of_a_template_waits_for_an_interpreter(crew_of: Any) -> None:
    crew = crew_of("forkserver", say_whose_child)
    crew.start()
    first = crew.heard()
    crew.start()
    assert crew.heard() == first != os.getpid()
