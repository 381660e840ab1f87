"""Ctrl-C at every point where CPython may run its handler, in everything that a loader does.

In a quick run the points are thinned out, by a random offset; PENSTOCK_WIDE=1 tries all.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import count, product
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock import DataLoader, _interrupts
from tests.conftest import belongings
from tests.interrupting import generators, in_modules, interrupt, sweep

N = 6
WIDE = "PENSTOCK_WIDE" in os.environ


class Drawing:
    """Its samples move the global generators of Python and of numpy."""

    def __init__(self, draws: bool = True) -> None:
        self.scale = 1
        self.draws = draws

    def __len__(self) -> int:
        return N

    def __getitem__(self, key: int) -> Any:
        if self.draws:
            random.gauss(0, 1)
            np.random.standard_normal()
        return np.array([key])

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


class Subject:
    """A loader, and the iterator that is read from it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        draws = settings.get("backend") != "thread"  # threads share the caller's generators
        self.loader: Any = DataLoader(Drawing(draws), seed=1, **settings)
        self.batches: Any = None
        self.state: Any = None

    def begin(self) -> None:
        self.batches = iter(self.loader)

    def next(self) -> Any:
        return next(self.batches, None)

    def close(self) -> None:
        self.loader.close()

    def generators(self) -> Any:
        return generators()


def _nothing(subject: Subject) -> None: ...


def _begun(subject: Subject) -> None:
    subject.begin()


def _read(subject: Subject) -> None:
    subject.begin()
    subject.next()


def _almost_over(subject: Subject) -> None:
    subject.begin()
    for _ in range(N):
        subject.next()


def _over(subject: Subject) -> None:
    _almost_over(subject)
    subject.next()


def _with_state(subject: Subject) -> None:
    _read(subject)
    subject.state = subject.loader.state_dict()


def _killed(subject: Subject) -> None:
    _read(subject)
    for process in subject.loader.workers:
        os.kill(process.pid, signal.SIGKILL)


def _drop(subject: Subject) -> None:
    subject.batches = None


def _rest(subject: Subject) -> None:
    while subject.next() is not None:
        pass


class Work(NamedTuple):
    before: Callable[[Subject], None]
    work: Callable[[Subject], Any]


WORK = {
    "start": Work(_nothing, Subject.begin),
    "next": Work(_begun, Subject.next),
    "end": Work(_almost_over, Subject.next),
    "start again": Work(_over, Subject.begin),
    "close": Work(_read, lambda subject: subject.loader.close()),
    "close the iterator": Work(_read, lambda subject: subject.batches.close()),
    "drop": Work(_read, _drop),
    "update": Work(_read, lambda subject: subject.loader.update(scale=2)),
    "state_dict": Work(_read, lambda subject: subject.loader.state_dict()),
    "load_state_dict": Work(_with_state, lambda subject: subject.loader.load_state_dict(subject.state)),
    "resize": Work(_read, lambda subject: setattr(subject.loader, "num_workers", 2)),
    "a lost worker": Work(_killed, _rest),
}


class Drawn:
    """A sampler that draws from the global generators."""

    def __iter__(self) -> Iterator[int]:
        for key in range(N):
            random.gauss(0, 1)
            np.random.standard_normal()
            yield key

    def __len__(self) -> int:
        return N


SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {},
    "sampler": {"sampler": Drawn()},
    "threads": {"num_workers": 1, "backend": "thread"},
    "fork": {"num_workers": 1, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


def keys(batches: Any) -> list[int]:
    return [int(batch[0, 0]) for batch in batches]


def check(subject: Subject) -> None:
    """The old iterator goes on, or says that it has ended; the loader serves another epoch, and closes."""
    if subject.batches is not None:
        rest, told = [], "was closed"
        try:
            rest = keys(subject.batches)
        except RuntimeError as error:
            told = str(error)
        assert "was ended by KeyboardInterrupt" in told or "was closed" in told, told
        assert rest == list(range(N))[N - len(rest) :]  # nothing is lost in between
    if subject.loader.state_dict()["steps"]:
        assert keys(subject.loader)[-1:] in ([], [N - 1])
    assert keys(subject.loader) == list(range(N))
    subject.close()


# What Python reports as ignored: an interrupt at the entry of a finalizer, before its first line.
FINALIZERS = ("__del__",)


def trial(
    settings: dict[str, Any], work: Work, at: int, counts: Any, kind: type[Subject] = Subject
) -> tuple[bool, str]:
    subject = kind(settings)
    work.before(subject)
    while not np.random.get_state(legacy=False)["has_gauss"]:
        np.random.standard_normal()  # leaves the second of a pair
    before = subject.generators()
    done = interrupt(lambda: work.work(subject), at, counts)
    where = f"interrupted at point {at} of {done.points}, {done.where}"
    for ignored in done.ignored:
        trace = ignored.exc_traceback
        while trace.tb_next is not None:
            trace = trace.tb_next
        name = trace.tb_frame.f_code.co_name
        assert ignored.exc_type is KeyboardInterrupt and name in FINALIZERS, (name, where)
    assert done.came + len(done.ignored) == bool(done.where), (done.came, where)
    assert subject.generators() == before, where
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and _interrupts._block is None, where
    del done
    check(subject)
    return bool(where.split(", ", 1)[1]), where


def run(
    settings: dict[str, Any], work: Work, stride: int, counts: Any, kind: type[Subject] = Subject
) -> None:
    trial(settings, work, 1 << 62, counts, kind)  # imports what is imported late
    before = belongings()
    for at in count(1) if stride == 1 else sweep(stride):
        fired, where = trial(settings, work, at, counts, kind)
        after = belongings()
        if after != before:
            gc.collect()
            after = belongings()
        assert not after[0] - before[0] and not after[1] - before[1] and after[2] <= before[2], (
            where,
            before,
            after,
        )
        if not fired:
            return


SLOW = ("forkserver", "spawn")
# What is different with these.
OURS = in_modules("backends/_process", "_descriptors", "_interrupts", "shipment")


def cases() -> Iterator[tuple[str, str]]:
    for name, what in product(SETTINGS, WORK):
        without = () if SETTINGS[name].get("num_workers") else ("resize", "a lost worker")
        if what in without or (name, what) == ("threads", "a lost worker"):
            continue
        if name not in SLOW or what == "start" or (WIDE and what in ("close", "drop", "a lost worker")):
            yield name, what


@pytest.mark.parametrize(("name", "what"), list(cases()))
def test_ctrl_c_at_any_instruction(name: str, what: str) -> None:
    quick = 200 if not SETTINGS[name].get("num_workers") or name == "threads" else 600
    run(SETTINGS[name], WORK[what], 1 if WIDE else quick, OURS if name in SLOW else lambda code: True)
