"""One attack, its limits, and what is a finding."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

FOUND = Path(__file__).parent / "found"
SECONDS = 10.0
"""For one attack. A sound file of the same size takes milliseconds."""

MEMORY = 256 << 20
"""Bytes by which one attack may raise the memory of the process; the data has some kB."""

_ROOM = 4 << 30  # address space beyond what the process has: an allocation of more fails at once
_OURS = str(Path(__file__).parents[2] / "src" / "penstock")  # not imported here: atheris instruments imports


class Hang(BaseException):
    """No `Exception`: code under attack must not catch it."""


class Greedy(Exception):
    """An attack took too much memory."""


class Finding(Exception):
    """An attack that found something. `place` tells findings apart; `data` are the bytes."""

    def __init__(self, data: bytes, error: BaseException) -> None:
        self.data, self.error = data, error
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
        last = f"{frames[-1].filename.removeprefix(_OURS)}:{frames[-1].lineno}" if frames else "?"
        self.place = f"{type(error).__name__} at {last}"
        super().__init__(f"{self.place}: {str(error)[:300]}")


def names() -> list[str]:
    from tests.fuzz import targets

    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def target(name: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def strike(module: ModuleType, data: bytes, timed: bool = True) -> bool:
    """One attack. True if the bytes were accepted, False if they were refused as documented; else a Finding."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if timed:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        module.attack(data)
        accepted = True
    except module.ALLOWED:
        accepted = False
    except (Exception, Hang) as error:
        raise Finding(data, error) from error
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if grown > MEMORY:
        raise Finding(data, Greedy(f"{grown >> 20} MB"))
    return accepted


@contextmanager
def limits(timed: bool = True) -> Iterator[None]:
    """Attacks that hang, or that ask for much memory at once, become errors. In the main thread."""

    def hung(number: int, frame: FrameType | None) -> None:
        raise Hang(f"for {SECONDS:g} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hung) if timed else None
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, hard))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # penstock warns of some files, once for each
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if timed:
            signal.signal(signal.SIGALRM, before)


def save(name: str, finding: Finding, folder: Path = FOUND) -> Path:
    """Saves the bytes of a finding under the name of their digest."""
    path = folder / name / f"{hashlib.sha256(finding.data).hexdigest()[:12]}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(finding.data)
    print(f"\n{name}: FOUND {finding}\n  saved as {path}", file=sys.stderr, flush=True)
    traceback.print_exception(finding.error, limit=-6, file=sys.stderr)
    return path
