"""The interpreter's exit: every kind of thing that may be open then, in every order, ends without a word."""

from __future__ import annotations

import pytest
from programs import Begin

PREAMBLE = """
import atexit, os, random, signal, sys, threading, time
import numpy as np
import penstock
from penstock import DataLoader, IterableDataset, prefetch, progress
if "torch" in sys.modules:
    import torch, penstock.torch

class Data:
    def __len__(self):
        return 400
    def __getitem__(self, key):
        return np.full(10, key)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(400))

kept = []

def begin(batches):
    kept.append([batches, next(batches), next(batches)])

# Modules that anything keeps alive are cleared in the reverse order of their import: what is kept in `os` ends when
# every global of penstock is None already, and errors can still be printed.
def keep_to_the_end():
    os.kept = [list(kept), *sys.modules.values()]
    kept.clear()

def register_before_penstock(function):
    atexit.unregister(penstock._system.exit._end_all)
    atexit.unregister(penstock._system.threads.end_all)
    for each in (function, penstock._system.threads.end_all, penstock._system.exit._end_all):
        atexit.register(each)
"""

SOME_OF_EACH = """
signal.signal(signal.SIGCHLD, lambda *_: None)  # as torch's loader does
for options in {options}:
    loader = DataLoader(Data(), 4, shuffle=True, **options)
    kept.append(loader)
    begin(iter(loader))
    begin(loader.batches())
    consumers = loader.share(2)
    kept.append(consumers)
    begin(consumers[0])
    ended = iter(loader)
    kept.append([ended, list(ended)])
    begin(iter(DataLoader(Stream(), 4, **options)))
    begin(iter(prefetch(loader)))
done = prefetch(loader)
kept.append([done, list(done), prefetch(loader)])
begin(iter(progress(loader)))
"""


PROCESSES = "[dict(num_workers=1), dict(num_workers=1, persistent_workers=False)]"
IN_HERE = '[{}, dict(num_workers=1, backend="thread")]'


@pytest.mark.parametrize("options", [PROCESSES, IN_HERE], ids=["processes", "in this process"])
@pytest.mark.parametrize("order", ["", "keep_to_the_end()"], ids=["as it comes", "modules first"])
def test_whatever_is_open_ends_silently(begin: Begin, options: str, order: str) -> None:
    program = begin(SOME_OF_EACH.replace("{options}", options) + order)
    assert program.end() == (0, "", "")


@pytest.mark.parametrize("options", ["num_workers=1", 'num_workers=1, backend="thread"', "num_workers=0"])
def test_a_daemon_thread_that_reads_a_loader_is_not_disturbed(begin: Begin, options: str) -> None:
    """It would end with the interpreter anyway: an error about a closed loader would be noise."""
    program = begin(f"""
        between, is_closed = threading.Event(), threading.Event()
        def read():
            for batch in DataLoader(Data(), {options}):
                between.set()
                is_closed.wait()
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        between.wait()
        def ask_again():
            is_closed.set()
            reader.join(0.3)
        register_before_penstock(ask_again)
        """)
    assert program.end() == (0, "", "")


def test_a_thread_that_is_not_a_daemon_reads_to_the_end(begin: Begin) -> None:
    program = begin("""
        def read():
            while threading.main_thread().is_alive():
                time.sleep(0.001)
            print(sum(len(batch) for batch in DataLoader(Data(), 4, num_workers=2, backend="thread")))
        threading.Thread(target=read).start()
        """)
    assert program.end() == (0, "400\n", "")


SLOW = """
class Slow(Data):
    def __getitem__(self, key):
        if key:
            inside.set()
            {work}
            print("done", flush=True)
        return key

inside = threading.Event()
batches = iter({source})
next(batches)
inside.wait()
"""
SOURCES = {
    "a worker": 'DataLoader(Slow(), num_workers=1, backend="thread")',
    "prefetch": "prefetch(DataLoader(Slow()))",
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_thread_that_computes_is_waited_for(begin: Begin, source: str) -> None:
    compute = "sum(number for number in range(4_000_000))"
    program = begin(SLOW.format(work=compute, source=SOURCES[source]))
    assert program.end() == (0, "done\n", "")


@pytest.mark.parametrize("source", SOURCES)
def test_a_thread_that_waits_for_ever_is_left_to_itself(begin: Begin, source: str) -> None:
    shorter = "import penstock._system.threads\npenstock._system.threads.PATIENCE = 0.2\n"
    program = begin(shorter + SLOW.format(work="threading.Event().wait()", source=SOURCES[source]))
    assert program.end() == (0, "", "")


def test_a_long_wait_is_explained(begin: Begin) -> None:
    now = """
from penstock._system import threads
threads._SILENCE, said, say = 0, [], threads._say
threads._say = lambda thread: said.append(say(thread))
"""
    until_then = "while not said: pass"
    program = begin(now + SLOW.format(work=until_then, source=SOURCES["a worker"]))
    code, out, err = program.end()
    assert (code, out) == (0, "done\n")
    assert "penstock-0 is still working on a sample, at " in err and "Ctrl-C ends the waiting" in err


def test_threads_that_atexit_starts_too_late_are_refused(begin: Begin) -> None:
    program = begin("""
        def late():
            print(len(list(DataLoader(range(8), 4))))
            print(len(list(DataLoader(range(8), 4, num_workers=1))))
            try:
                list(DataLoader(range(8), 4, num_workers=1, backend="thread"))
            except RuntimeError as error:
                print(error)
        register_before_penstock(late)
        """)
    code, out, err = program.end()
    assert (code, err) == (0, "")
    assert out.startswith("2\n2\nThe program is ending, so penstock can start no more threads")


# With torch.


@pytest.mark.parametrize("ending", ["", "loader.close()", "keep_to_the_end()"])
def test_threads_inside_of_torch_do_not_abort_the_process(begin_torch: Begin, ending: str) -> None:
    program = begin_torch(f"""
        class Data:
            def __len__(self):
                return 100
            def __getitem__(self, key):
                return sum((torch.rand(1000) + 1).sum().item() for _ in range(200))
        loader = DataLoader(Data(), 4, num_workers=2, backend="thread")
        batches = iter(loader)
        next(batches)
        kept.append([loader, batches])
        {ending}
        """)
    assert program.end() == (0, "", "")


@pytest.mark.parametrize("order", ["", "keep_to_the_end()"], ids=["as it comes", "modules first"])
def test_whatever_torch_has_open_ends_silently(begin_torch: Begin, order: str) -> None:
    program = begin_torch(f"""
        list(torch.utils.data.DataLoader(Data(), 4, num_workers=1))  # sets a handler of SIGCHLD
        for seed in ({{}}, dict(seed=1)):
            for options in ({{}}, dict(num_workers=1), dict(num_workers=1, persistent_workers=True)):
                loader = penstock.torch.DataLoader(Data(), 4, **options, **seed)
                kept.extend([loader, list(loader)])
                begin(iter(loader))
        native = DataLoader(Data(), 4, num_workers=1)
        kept.extend([native, list(native)])
        {order}
        """)
    assert program.end() == (0, "", "")
