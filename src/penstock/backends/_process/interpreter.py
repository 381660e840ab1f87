"""A fresh interpreter: how the parent starts one, and how it becomes a spawned worker or the template.

`__main__` is not imported there, so a program needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import marshal
import os
import signal
import sys
from typing import Any, NoReturn

from penstock._wire.shipment import unpack
from penstock.backends._process.child import live, seat_of, settle
from penstock.backends._process.lifeline import leave_last_words
from penstock.backends._process.template import serve

_ENTER = """\
import marshal, os, sys
boot = marshal.loads(os.pread(int(sys.argv[1]), 1 << 24, 0))
role, number = sys.argv[2], int(sys.argv[3])
sys.path[:] = boot["path"]
from penstock.backends._process.interpreter import enter
enter(boot, role, number)
"""


def write_boot(fd: int, fds: dict[str, int], *, lifeline: int, shipment: int, words: int) -> None:
    """Writes what a fresh interpreter must know before it can import penstock."""
    boot = {
        "path": [entry for entry in sys.path if isinstance(entry, str)],
        "argv": [str(word) for word in sys.argv],
        "fds": fds,
        "boot": fd,
        "lifeline": lifeline,
        "shipment": shipment,
        "words": words,
    }
    os.write(fd, marshal.dumps(boot))


def start_python(boot: int, role: str, number: int, fds: tuple[int, ...]) -> int:
    """Starts an interpreter that runs `enter` and has these descriptors. Returns its pid."""
    import subprocess  # late: fork needs none of it

    if not sys.executable:
        raise RuntimeError(
            "this Python does not know its own executable (sys.executable is empty), and can start no other;"
            ' pass multiprocessing_context="fork" or backend="thread"'
        )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", _ENTER, str(boot), role, str(number)]
    # The mask survives exec: a Ctrl-C is held back until the child ignores it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # a Handle waits for the process: Popen shall neither wait nor warn
    return process.pid


def enter(boot: dict[str, Any], role: str, number: int) -> NoReturn:
    """Becomes the worker with this number, or the template on the socket with this number."""
    sys.argv[:] = boot["argv"]
    settle(boot["lifeline"])
    if role == "template":
        serve(boot, number)
    try:
        main, payload = unpack(boot["shipment"])
    except BaseException as exc:  # unpickling runs the user's code
        where = f"while worker {seat_of(number)} (pid {os.getpid()}) unpacked its dataset"
        leave_last_words(boot["words"], exc, where)
        os._exit(1)
    for name in ("lifeline", "shipment", "words", "boot"):
        os.close(boot[name])
    live(number, main, payload, boot["fds"])
