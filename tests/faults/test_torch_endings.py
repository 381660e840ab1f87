"""Law 6 for torch's loader: however a program ends, no hang, no orphan, no noise. Real programs, real signals."""

from __future__ import annotations

import os
import re
import signal

import pytest
from programs import Begin

pytestmark = pytest.mark.imports_torch

PREAMBLE = """
import atexit, gc, os, signal, sys, time
import torch
from pathlib import Path
from penstock.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset

class Data(Dataset):
    def __init__(self, quick=10, n=1000):
        self.quick, self.n = quick, n
    def __len__(self):
        return self.n
    def __getitem__(self, key):
        if key >= self.quick:
            time.sleep(1000)  # nobody may wait for this
        return torch.tensor([key, os.getpid()])

def children():
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]

def tell(*what):
    print(*what, flush=True)
"""


ENDINGS = {
    "never begun": "",
    "out of a loop": "for _, batch in zip(range(5), loader): pass",
    "with an iterator": "batches = iter(loader); next(batches)",
    "by sys.exit": "batches = iter(loader); next(batches); sys.exit(0)",
    "with batches kept": "kept = [batch for _, batch in zip(range(5), loader)]",
    "with two iterators": "one, other = iter(loader), iter(loader); next(one), next(other), next(one)",
    "with an iterator in a cycle": "batches = iter(loader); batches.me = batches; loader.me = loader; next(batches)",
    "in a function": "(lambda batches: sys.exit(next(batches)[0, 0].item()))(iter(loader))",
    "before a batch was asked for": "batches = iter(loader)",
}


PERSISTENT = ("out of a loop", "with an iterator", "with two iterators")


@pytest.mark.parametrize(
    ("ending", "persistent"),
    [
        pytest.param(ending, kept, marks=pytest.mark.wide if kept and ending not in PERSISTENT else ())
        for ending in ENDINGS
        for kept in (False, True)
    ],
)
def test_a_program_ends_quickly_and_silently(begin_torch: Begin, ending: str, persistent: bool) -> None:
    program = begin_torch(f"""
        loader = DataLoader(Data(), num_workers=2, persistent_workers={persistent})
        {ENDINGS[ending]}
        """)
    assert program.end() == (0, "", "")


def test_idle_persistent_workers_end_with_the_program(begin_torch: Begin) -> None:
    program = begin_torch("""
        loader = DataLoader(range(5), num_workers=2, persistent_workers=True)
        kept = [*loader, *loader]
        atexit.register(lambda: tell(sum(batch.item() for batch in kept)))
        """)
    assert program.end() == (0, "20\n", "")


def test_a_whole_epoch_leaves_no_worker_and_no_noise(begin_torch: Begin) -> None:
    program = begin_torch("""
        tell(sum(batch.item() for batch in DataLoader(range(5), num_workers=2)), children())
        """)
    assert program.end() == (0, "10 []\n", "")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_deleted_in_the_middle_takes_its_busy_workers_with_it(begin_torch: Begin, persistent: bool) -> None:
    program = begin_torch(f"""
        loader = DataLoader(Data(1), num_workers=2, persistent_workers={persistent})
        batches = iter(loader)
        kept = next(batches)
        del loader, batches
        tell(children(), kept[0, 0].item())
        """)
    assert program.end() == (0, "[] 0\n", "")


def test_workers_that_listen_to_no_signal_are_ended_all_the_same(begin_torch: Begin) -> None:
    program = begin_torch("""
        def deaf(worker):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        batches = iter(DataLoader(Data(1), num_workers=2, worker_init_fn=deaf))
        next(batches)
        os.kill(batches._workers[1].pid, signal.SIGSTOP)
        del batches
        tell(children())
        """)
    assert program.end() == (0, "[]\n", "")


def test_an_error_in_the_main_program_is_all_that_is_said(begin_torch: Begin) -> None:
    program = begin_torch("""
        for batch in DataLoader(Data(), num_workers=2):
            raise ValueError("the training step failed")
        """)
    returncode, out, err = program.end()
    assert (returncode, out) == (1, "")
    assert err.count("Traceback") == 1 and err.endswith("\nValueError: the training step failed\n")


@pytest.mark.parametrize("caught", [False, True])
def test_an_error_in_a_worker_is_all_that_is_said(begin_torch: Begin, caught: bool) -> None:
    program = begin_torch(f"""
        class Bad(Data):
            def __getitem__(self, key):
                if key == 3:
                    raise ValueError("the sample failed")
                return super().__getitem__(key)
        try:
            for batch in DataLoader(Bad(), num_workers=2): pass
        except {"ValueError" if caught else "ZeroDivisionError"} as error:
            tell("Caught ValueError in DataLoader worker process 1." in str(error))
        """)
    returncode, out, err = program.end()
    if caught:
        assert (returncode, out, err) == (0, "True\n", "")
    else:
        # torch's text has the worker's traceback inside.
        assert (returncode, out, err.count("Caught ValueError")) == (1, "", 1)
        assert err.count("Traceback (most recent call last):\n") <= 3
        assert re.search(r"^ValueError: Caught ValueError in DataLoader worker process 1\.$", err, re.MULTILINE)


DEATHS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL|Killed"),
    "segmentation fault": ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV|Segmentation fault"),
    "exit": ("os._exit(7)", r"\b7\b"),
    "sys.exit": ("sys.exit(3)", r"\b3\b"),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("death", DEATHS)
def test_the_death_of_a_worker_is_an_error_and_all_that_is_said(begin_torch: Begin, death: str, workers: int) -> None:
    act, named = DEATHS[death]
    program = begin_torch(f"""
        class Deadly(Data):
            def __getitem__(self, key):
                if key == 3:
                    {act}
                return super().__getitem__(key)
        batches = iter(DataLoader(Deadly(), num_workers={workers}))
        pids = [worker.pid for worker in batches._workers]
        try:
            for batch in batches: pass
        except RuntimeError as error:
            tell(pids[3 % {workers}], error)
        """)
    returncode, out, err = program.end()
    assert (returncode, err) == (0, "")
    pid, text = out.split(" ", 1)
    assert re.search(rf"\bpid(\(s\))? {pid}\b", text) and re.search(named, text)


def test_the_death_of_a_worker_that_nobody_catches_ends_the_program(begin_torch: Begin) -> None:
    program = begin_torch("""
        class Deadly(Data):
            def __getitem__(self, key):
                os._exit(7)
        for batch in DataLoader(Deadly(), num_workers=2): pass
        """)
    returncode, out, err = program.end()
    assert (returncode, out, err.count("Traceback")) == (1, "", 1)


def test_a_persistent_worker_killed_between_epochs_hangs_nobody(begin_torch: Begin) -> None:
    program = begin_torch("""
        loader = DataLoader(range(6), num_workers=2, persistent_workers=True)
        batches = iter(loader)
        list(batches)
        victim = batches._workers[1].pid
        os.kill(victim, signal.SIGKILL)
        try:
            tell(len(list(loader)))
        except RuntimeError as error:
            tell(f"{victim}" in str(error))
        """)
    returncode, out, err = program.end()
    assert (returncode, err) == (0, "") and out in ("6\n", "True\n")


WAITING = """
    loader = DataLoader(Data(4), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    tell("ready")
    """


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", ["in next", "in the training step"])
def test_workers_die_with_the_main_program(begin_torch: Begin, death: int, where: str) -> None:
    program = begin_torch(WAITING + ("list(batches)" if where == "in next" else "time.sleep(1000)"))
    assert program.line() == "ready"
    os.kill(program.pid, death)
    assert program.end() == (-death, "", "")


def test_workers_die_with_a_main_program_that_leaves_without_goodbye(begin_torch: Begin) -> None:
    program = begin_torch(WAITING + "os._exit(5)")
    assert program.line() == "ready"
    assert program.end() == (5, "", "")


@pytest.mark.parametrize("whom", ["the program alone", "everybody"])
@pytest.mark.parametrize("where", ["in next", "in the training step"])
def test_ctrl_c_is_one_keyboard_interrupt(begin_torch: Begin, where: str, whom: str) -> None:
    wait = "list(batches)" if where == "in next" else "time.sleep(1000)"
    program = begin_torch(f"""
        batches = iter(DataLoader(Data(4), num_workers=2))
        next(batches)
        try:
            tell("ready")
            {wait}
        except KeyboardInterrupt:
            tell("interrupted")
        """)
    assert program.line() == "ready"
    (os.kill if whom == "the program alone" else os.killpg)(program.pid, signal.SIGINT)
    assert program.end() == (0, "interrupted\n", "")


def test_ctrl_c_that_nobody_catches_is_one_traceback(begin_torch: Begin) -> None:
    program = begin_torch(WAITING + "list(batches)")
    assert program.line() == "ready"
    os.killpg(program.pid, signal.SIGINT)
    returncode, out, err = program.end()
    assert (returncode, out) in ((-signal.SIGINT, ""), (130, ""))
    assert err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")


def test_after_ctrl_c_the_loader_can_be_used_again(begin_torch: Begin) -> None:
    program = begin_torch("""
        slow = torch.ones(1).share_memory_()
        class Once(Data):
            def __getitem__(self, key):
                time.sleep(1000 * slow.item() if key == 2 else 0)
                return super().__getitem__(key)
        loader = DataLoader(Once(n=5), num_workers=2)
        batches = iter(loader)
        try:
            next(batches)
            tell("ready")
            list(batches)
        except KeyboardInterrupt:
            slow.zero_()
        del batches
        tell([batch[0, 0].item() for batch in loader])
        """)
    assert program.line() == "ready"
    os.killpg(program.pid, signal.SIGINT)
    assert program.end() == (0, "[0, 1, 2, 3, 4]\n", "")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_forked_child_uses_the_loader_and_leaves_the_parents_workers_alone(
    begin_torch: Begin, persistent: bool
) -> None:
    program = begin_torch(f"""
        loader = DataLoader(range(10), num_workers=2, batch_size=2, persistent_workers={persistent})
        batches = iter(loader)
        first = next(batches).tolist()
        pid = os.fork()
        if pid == 0:
            tell([batch.tolist() for batch in loader])
            sys.exit(0)
        tell(os.waitpid(pid, 0)[1])
        tell([first, *(batch.tolist() for batch in batches)])
        """)
    whole = "[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]\n"
    assert program.end() == (0, whole + "0\n" + whole, "")


def test_a_forked_child_that_does_nothing_with_it_ends_silently(begin_torch: Begin) -> None:
    program = begin_torch("""
        loader = DataLoader(range(10), num_workers=2)
        batches = iter(loader)
        next(batches)
        pid = os.fork()
        if pid == 0:
            del batches, loader
            gc.collect()
            sys.exit(0)
        tell(os.waitpid(pid, 0)[1], len(list(batches)))
        """)
    assert program.end() == (0, "0 9\n", "")


def test_a_loader_in_a_process_of_multiprocessing_ends_with_it(begin_torch: Begin) -> None:
    program = begin_torch("""
        import torch.multiprocessing as mp
        def main():
            batches = iter(DataLoader(Data(), num_workers=2))
            tell(next(batches)[0, 0].item())
        process = mp.get_context("fork").Process(target=main)
        process.start()
        process.join()
        tell(process.exitcode)
        """)
    assert program.end() == (0, "0\n0\n", "")


def test_two_loaders_at_once_do_not_disturb_each_other(begin_torch: Begin) -> None:
    program = begin_torch("""
        one = DataLoader(range(6), num_workers=2, persistent_workers=True)
        other = DataLoader(Data(), num_workers=2)
        batches = iter(other)
        tell([(a.item(), b[0, 0].item()) for a, b in zip(one, batches)])
        del batches, other
        tell(sum(batch.item() for batch in one), len(children()))
        """)
    assert program.end() == (0, f"{[(i, i) for i in range(6)]}\n15 2\n", "")


def test_a_worker_of_one_loader_that_dies_does_not_disturb_the_other(begin_torch: Begin) -> None:
    program = begin_torch("""
        good = iter(DataLoader(range(50), num_workers=2))
        bad = iter(DataLoader(Data(4), num_workers=2))
        next(good), next(bad)
        os.kill(bad._workers[0].pid, signal.SIGKILL)
        try:
            list(bad)
        except RuntimeError:
            tell("lost")
        tell(len(list(good)))
        """)
    assert program.end() == (0, "lost\n49\n", "")


# As in a script that has no __main__ guard: workers of these methods must not run it again.
# In each, an interpreter imports torch, and how a worker was started does not matter to how it ends: so one of each.


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.wide)])
def test_workers_of_other_start_methods_die_with_the_main_program(begin_torch: Begin, method: str) -> None:
    program = begin_torch(f"""
        batches = iter(DataLoader(Data(2), num_workers=1, multiprocessing_context={method!r}))
        next(batches)
        tell("ready")
        time.sleep(1000)
        """)
    assert program.line() == "ready"
    os.kill(program.pid, signal.SIGKILL)
    assert program.end() == (-signal.SIGKILL, "", "")


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.wide), "forkserver"])
def test_a_program_with_workers_of_other_start_methods_ends_silently(begin_torch: Begin, method: str) -> None:
    program = begin_torch(f"""
        batches = iter(DataLoader(Data(2), num_workers=1, multiprocessing_context={method!r}))
        next(batches)
        """)
    assert program.end() == (0, "", "")
