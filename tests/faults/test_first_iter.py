"""The first `iter()` of a program: what it imports, and what the system does not allow it."""

from __future__ import annotations

import pytest
from programs import Begin

# A signal arrives at the begin of the k-th import: in the middle of those that import it. Each k has a fresh child.
INTERRUPTED = """
import os, signal, sys
import penstock

class Data:
    def __len__(self):
        return 8
    def __getitem__(self, key):
        penstock.rng()
        return key

def read():
    return len(list(penstock.DataLoader(Data(), 4, {settings})))

def in_child(at):
    pid, count = os.getpid(), 0
    signal.signal(signal.SIGUSR1, lambda *_: read())
    def on(event, args):
        nonlocal count
        if event == "import" and os.getpid() == pid:
            count += 1
            if count == at:
                signal.raise_signal(signal.SIGUSR1)
    sys.addaudithook(on)
    code = 1
    try:
        code = 0 if read() == 2 else 3
    except ImportError as error:
        print(at, error, flush=True)
    finally:
        os._exit(code if count >= at else 2)

at = 1
while True:
    pid = os.fork()
    if pid == 0:
        in_child(at)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        break
    at += {stride}
print(code, at > 20)
"""


@pytest.mark.parametrize(
    ("settings", "stride"), [("", 5), ("num_workers=1", 9), ('num_workers=1, backend="thread"', 9)]
)
def test_a_handler_that_reads_a_loader_finds_whole_modules(begin: Begin, settings: str, stride: int) -> None:
    program = begin(INTERRUPTED.replace("{settings}", settings).replace("{stride}", str(stride)))
    assert program.end() == (0, "2 True\n", "")


def test_a_limit_on_the_size_of_files_is_named(begin: Begin) -> None:
    program = begin("""
        import resource, penstock
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            list(penstock.DataLoader(range(8), num_workers=1))
        except OSError as error:
            print(error)
        """)
    code, out, err = program.end()
    assert (code, err) == (0, "")
    assert "no file of this process may have more than 1,048,576 (ulimit -f" in out
