"""Workers beside multiprocessing: managers, queues, locks and shared memory of a program reach its workers.

Real programs, by every start method, with both faces. What a worker sees is what torch's workers see.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from programs import Begin, Program

PREAMBLE = """
import json, multiprocessing, os, signal, sys, threading, time
from multiprocessing import shared_memory
import numpy as np

class Data:
    def __len__(self):
        return 6
    def __getitem__(self, key):
        return np.array([key])

def tell(*what):
    print(*what, flush=True)

def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
"""

# The same program for torch's own loader, which imports it again in spawned workers.
SHARED = """
class Shared(Data):
    def __init__(self, method):
        context = multiprocessing.get_context(method)
        self.queue, self.lock, self.count = context.Queue(), context.Lock(), context.Value("i", 0)
        self.memory = shared_memory.SharedMemory(create=True, size=6)
        torch = sys.modules.get("torch")
        self.tensor = None if torch is None else torch.zeros(6).share_memory_()

    def serve(self, manager):
        self.seen, self.names = manager.dict(), manager.list()

    def __getitem__(self, key):
        process, parent = multiprocessing.current_process(), multiprocessing.parent_process()
        with self.lock:
            self.count.value += 1
        if self.tensor is not None:
            self.tensor[key] = key
        self.queue.put((key, os.getpid()))
        self.seen[key] = process.name, process.daemon, process.pid == os.getpid(), process.is_alive()
        self.names.append((parent.name, parent.pid, parent.is_alive(), multiprocessing.get_start_method()))
        attached = shared_memory.SharedMemory(self.memory.name)
        attached.buf[key] = key + 1
        attached.close()
        try:
            multiprocessing.Process(target=int).start()
        except AssertionError as error:
            return np.array([key, len(str(error))])
        return np.array([key, 0])

if __name__ == "__main__":
    method = METHOD
    data = Shared(method)
    manager = multiprocessing.get_context("fork").Manager()
    data.serve(manager)
    loader = LOADER
    pids, rows = set(), []
    batches = iter(loader)
    for batch in batches:
        rows.append(batch.tolist())
        pids |= {child.pid for child in multiprocessing.active_children() if child.daemon}
    sent = [data.queue.get(timeout=20) for _ in range(6)]
    assert {pid for _, pid in sent} <= pids, (sent, pids)
    for key in range(6):  # a manager's process has the last word
        wait_for(lambda: key in data.seen)
    names = sorted({name for name, *_ in data.seen.values()})
    told = {
        "rows": rows,
        "sent": sorted(key for key, _ in sent),
        "count": data.count.value,
        "workers": sorted(set(map(tuple, (rest for _, *rest in data.seen.values())))),
        "names": len(names) == len({pid for _, pid in sent}) and all("Process-" in name for name in names),
        "parents": sorted({(name, pid == os.getpid(), alive, how) for name, pid, alive, how in data.names}),
        "tensor": 15 if data.tensor is None else int(data.tensor.sum()),
        "memory": bytes(data.memory.buf[:6]).hex(),
    }
    del batches
    getattr(loader, "close", bool)()
    told["left"] = [child.name for child in multiprocessing.active_children() if child.daemon]
    data.memory.close()
    data.memory.unlink()
    manager.shutdown()
    tell(json.dumps(told))
"""

EXPECTED: dict[str, Any] = {
    "rows": [[[0, 51], [1, 51]], [[2, 51], [3, 51]], [[4, 51], [5, 51]]],
    "sent": [0, 1, 2, 3, 4, 5],
    "count": 6,
    "workers": [[True, True, True]],
    "names": True,
    "tensor": 15,
    "memory": "010203040506",
    "left": [],
}

OPTIONS = "data, batch_size=2, num_workers=2, multiprocessing_context=method"
FACES = {
    "penstock": f"__import__('penstock').DataLoader({OPTIONS}, persistent_workers=False)",
    "penstock.torch": f"__import__('penstock.torch').torch.DataLoader({OPTIONS})",
    "penstock.torch with a seed": f"__import__('penstock.torch').torch.DataLoader({OPTIONS}, seed=1)",
    "torch": f"__import__('torch.utils.data').utils.data.DataLoader({OPTIONS})",
}
METHODS = ("fork", "spawn", "forkserver")


def check(program: Program, method: str) -> None:
    returncode, out, err = program.end()
    assert (returncode, err) == (0, "")
    assert json.loads(out) == {**EXPECTED, "parents": [["MainProcess", True, True, method]]}


@pytest.mark.parametrize("method", METHODS)
def test_what_a_program_shares_reaches_its_workers(begin: Begin, method: str) -> None:
    check(begin(SHARED.replace("METHOD", repr(method)).replace("LOADER", FACES["penstock"])), method)


QUICK = {("penstock.torch", "fork"), ("penstock.torch with a seed", "fork"), ("penstock.torch", "forkserver")}
IN_TORCH = [
    pytest.param(face, method, marks=() if (face, method) in QUICK else pytest.mark.wide)
    for face in FACES
    for method in METHODS
    if face != "penstock"
]


@pytest.mark.imports_torch
@pytest.mark.parametrize(("face", "method"), IN_TORCH)
def test_what_a_program_shares_reaches_the_workers_of_torch_loaders(
    begin_torch: Begin, face: str, method: str
) -> None:
    check(begin_torch(SHARED.replace("METHOD", repr(method)).replace("LOADER", FACES[face])), method)


def test_what_a_worker_has_put_into_a_queue_arrives_although_the_loader_is_closed_at_once(begin: Begin) -> None:
    program = begin("""
        import penstock
        class Big(Data):
            queue = multiprocessing.Queue()
            def __getitem__(self, key):
                self.queue.put(bytes(300_000))  # a pipe holds 64 KB: the rest waits in the worker
                return np.array([key])
        loader = penstock.DataLoader(Big(), num_workers=1, batch_size=6, persistent_workers=False)
        sizes = []
        def read():
            time.sleep(0.5)  # longer than close() waits for a worker that is busy
            sizes.extend(len(Big.queue.get()) for _ in range(6))
        reader = threading.Thread(target=read)
        batches = iter(loader)
        next(batches)
        reader.start()
        loader.close()
        reader.join()
        tell(sizes)
        """)
    assert program.end() == (0, f"{[300_000] * 6}\n", "")


@pytest.mark.parametrize("ending", ["", "batches._engine.backend.close", "os.kill(pid, signal.SIGSTOP)"])
@pytest.mark.parametrize("logged", [False, True])  # a logger makes multiprocessing's exit function the first to run
def test_multiprocessing_does_not_wait_for_workers_at_the_end(begin: Begin, ending: str, logged: bool) -> None:
    program = begin(f"""
        import penstock
        class Deaf(Data):
            def __getitem__(self, key):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                return np.array([key])
        batches = iter(penstock.DataLoader(Deaf(), num_workers=1))
        next(batches)
        [pid] = [child.pid for child in multiprocessing.active_children()]
        {"multiprocessing.get_logger()" if logged else ""}
        {ending}
        """)
    assert program.end() == (0, "", "")


def test_a_forked_child_neither_lists_nor_ends_the_workers(begin: Begin) -> None:
    program = begin("""
        import penstock
        loader = penstock.DataLoader(Data(), num_workers=2)
        batches = iter(loader)
        next(batches)
        handle = loader.workers[0]
        pid = os.fork()
        if pid == 0:
            tell(multiprocessing.active_children(), handle.is_alive(), handle.exitcode)
            sys.exit(0)
        tell(os.waitpid(pid, 0)[1], len(multiprocessing.active_children()), len(list(batches)))
        """)
    assert program.end() == (0, "[] False None\n0 2 5\n", "")


def test_a_process_of_multiprocessing_has_workers_of_its_own(begin: Begin) -> None:
    program = begin("""
        import penstock
        def main():
            loader = penstock.DataLoader(Data(), num_workers=1)
            batches = iter(loader)
            next(batches)
            [worker] = multiprocessing.active_children()
            tell(worker.name, worker.daemon, len(list(batches)))
        process = multiprocessing.get_context("fork").Process(target=main)
        process.start()
        process.join()
        tell(process.exitcode)
        """)
    assert program.end() == (0, "Process-1:1 True 5\n0\n", "")


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn", "thread"])
def test_a_warning_in_a_worker_names_the_users_line_or_none(begin: Begin, how: str) -> None:
    where = 'backend="thread"' if how == "thread" else f"multiprocessing_context={how!r}"
    program = begin(f"""
        import warnings
        import penstock
        from penstock._system.warnings import warn_caller
        def heard(number):
            warnings.simplefilter("default")
        loader = penstock.DataLoader(
            ["look"], None, num_workers=1, collate_fn=warn_caller, worker_init_fn=heard, {where}
        )
        list(loader)
        """)
    code, _, said = program.end()
    assert code == 0
    if how == "fork":
        assert re.fullmatch(r".*/program0.py:\d+: RuntimeWarning: look\n  list\(loader\)\n", said)
    else:
        assert re.fullmatch(r"(sys:1|<sys>:0): RuntimeWarning: look\n", said)
