"""Whole programs for tests: each is a main program of its own, in a session of its own, and ends as any does.

Starting an interpreter and importing numpy, or torch, takes longer than all that such a program does. So programs are
forked, one at a time, from a forge: a process that has done that already and does nothing else.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Seconds.
PATIENCE = 110

# Forks the programs that it is sent. The child's __main__ is new, and the forge's other children are not its own.
_FORGE = """
import gc, os, socket, sys, types
{imports}
gc.freeze()  # or every program would copy all pages of those modules to look for garbage in them
control = socket.socket(fileno=int(sys.argv[1]))
while True:
    path, fds, _, _ = socket.recv_fds(control, 10_000, 2)
    if not path:
        control.close()
        sys.exit()
    pid = os.fork()
    if pid == 0:
        break
    for fd in fds:
        os.close(fd)
    control.send(b"%d" % pid)
    control.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
control.close()
os.setsid()
for number, fd in enumerate(fds, 1):
    os.dup2(fd, number)
    os.close(fd)
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = path.decode()
sys.argv[:] = [main.__file__]
with open(main.__file__) as file:
    code = compile(file.read(), main.__file__, "exec")
exec(code, main.__dict__)
"""


class Program:
    """A program that a forge has begun."""

    def __init__(self, control: socket.socket, path: Path) -> None:
        self.control = control
        (self.out, out), (self.err, err) = os.pipe(), os.pipe()
        socket.send_fds(control, [bytes(path)], [out, err])
        os.close(out)
        os.close(err)
        self.pid = int(control.recv(100))
        self.returncode: int | None = None

    def line(self) -> str:
        """The next line that it prints."""
        said = b""
        while not said.endswith(b"\n"):
            more = os.read(self.out, 1)
            assert more, f"it ended after {said!r}, and said {self._all_of(self.err)}"
            said += more
        return said.decode().rstrip()

    def end(self) -> tuple[int, str, str]:
        """Its exit code, and the rest of its output and error output, if it and all its workers end in time.

        What they must not wait for takes longer than that; a busy machine takes less.
        """
        assert select.select([self.control], [], [], PATIENCE)[0], "it does not end"
        self.returncode = int(self.control.recv(100))
        assert not survivors(self.pid, PATIENCE), "processes are left"
        return self.returncode, self._all_of(self.out), self._all_of(self.err)

    def close(self) -> None:
        for pid in session(self.pid):
            os.kill(pid, signal.SIGKILL)
        if self.returncode is None:
            self.control.recv(100)
        os.close(self.out)
        os.close(self.err)

    def _all_of(self, fd: int) -> str:
        """To the end: which comes when the last process that could write there is gone."""
        return "".join(iter(lambda: os.read(fd, 65536).decode(), ""))


Begin = Callable[[str], Program]


@contextmanager
def forge(imports: str) -> Iterator[socket.socket]:
    """A process that has run these import statements; the socket goes to `Program`."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-W", "error", "-c", _FORGE.format(imports=imports), str(its.fileno())]
    with ours, its, subprocess.Popen(command, pass_fds=[its.fileno()]):
        its.close()
        yield ours
        ours.close()


@contextmanager
def programs(forge: socket.socket, folder: Path, preamble: str = "") -> Iterator[Begin]:
    """Begins programs from files in the folder; at the end, whatever became of them, they are gone."""
    begun: list[Program] = []

    def begin(text: str) -> Program:
        path = folder / f"program{len(begun)}.py"
        path.write_text(preamble + textwrap.dedent(text))
        begun.append(Program(forge, path))
        return begun[-1]

    try:
        yield begin
    finally:
        for program in begun:
            program.close()


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if os.getsid(pid) != leader:
                continue
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.append(pid)
    return found


def survivors(leader: int, seconds: float) -> list[int]:
    """The processes of a session that are left after so long."""
    deadline = time.monotonic() + seconds
    for pid in session(leader):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([pidfd], [], [], max(0, deadline - time.monotonic()))
        os.close(pidfd)
    return session(leader)


def side_by_side(commands: list[list[str]]) -> list[list[str]]:
    """Runs programs at the same time, and returns the words that each prints.

    Each prints a line when it is ready, and goes on when all of them are: it reads a line then.
    """
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for command in commands]
    try:
        for each in started:
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        for each in started:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        said = [each.communicate()[0].split() for each in started]
        assert [each.returncode for each in started] == [0] * len(started)
    finally:
        for each in started:
            each.kill()
            each.communicate()
    return said
