"""Ctrl-C at every point where CPython may run its handler, in everything that a loader does.

In a quick run the points are thinned out, by a random offset; PENSTOCK_WIDE=1 tries all.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count, product
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock import DataLoader, prefetch
from penstock._system import interrupts
from penstock._system.threads import running
from tests.conftest import belongings
from tests.forced import force
from tests.interrupting import generators, in_modules, interrupt, sweep

N = 6
WIDE = "PENSTOCK_WIDE" in os.environ

pytestmark = pytest.mark.timeout(3600 if WIDE else 120)


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

    def check(self) -> None:
        """The old iterator goes on, or says that it has ended; the loader serves another epoch, and closes."""
        if self.loader is None:
            return
        if self.batches is not None:
            check_rest(self.batches)
        if self.loader.state_dict()["steps"]:
            assert keys(self.loader)[-1:] in ([], [N - 1])
        assert keys(self.loader) == list(range(N))
        self.close()


def keys(batches: Iterable[Any]) -> list[int]:
    return [int(batch[0, 0]) for batch in batches]


def check_rest(batches: Iterable[Any]) -> None:
    """These are the last batches of the epoch, and none in between is missing; or an error says that it has ended."""
    rest, told = [], "was closed"
    try:
        rest = keys(batches)
    except RuntimeError as error:
        told = str(error)
    assert "was ended by KeyboardInterrupt" in told or "was closed" in told, told
    assert sorted(rest) == list(range(N))[N - len(rest) :]


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


def _to_be_tuned(subject: Subject) -> None:
    _read(subject)
    force(subject.loader, [(2, 3)])
    subject.loader._session.measures.meter.due = True


def _killed(subject: Subject) -> None:
    _read(subject)
    for process in subject.loader.workers:
        os.kill(process.pid, signal.SIGKILL)


def _drop(subject: Subject) -> None:
    subject.batches = None


def _drop_the_loader(subject: Subject) -> None:
    subject.loader = subject.batches = None


def _rest(subject: Subject) -> None:
    while subject.next() is not None:
        pass


class Work(NamedTuple):
    before: Callable[[Subject], None]
    work: Callable[[Subject], Any]


WORK = {
    "start": Work(_nothing, lambda subject: subject.begin()),
    "next": Work(_begun, lambda subject: subject.next()),
    "end": Work(_almost_over, lambda subject: subject.next()),
    "start again": Work(_over, lambda subject: subject.begin()),
    "close": Work(_read, lambda subject: subject.loader.close()),
    "close the iterator": Work(_read, lambda subject: subject.batches.close()),
    "drop": Work(_read, _drop),
    "drop the loader": Work(_over, _drop_the_loader),
    "update": Work(_read, lambda subject: subject.loader.update(scale=2)),
    "state_dict": Work(_read, lambda subject: subject.loader.state_dict()),
    "load_state_dict": Work(_with_state, lambda subject: subject.loader.load_state_dict(subject.state)),
    "resize": Work(_read, lambda subject: setattr(subject.loader, "num_workers", 2)),
    "a change by the tuner": Work(_to_be_tuned, lambda subject: subject.next()),
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
    # Between `open()` and its `with` an interrupt drops the file, which closes it, and warns.
    ignored = [each for each in done.ignored if each[0] is not ResourceWarning]
    # Python reports as ignored what comes at the entry of a finalizer, before its first line.
    assert all(kind is KeyboardInterrupt and name == "__del__" for kind, name in ignored), (done, where)
    assert done.came + len(ignored) == bool(done.where), (done.came, where)
    assert subject.generators() == before, where
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and interrupts._deferring is None, where
    del done
    subject.check()
    return bool(where.split(", ", 1)[1]), where


def run(settings: dict[str, Any], work: Work, stride: int, counts: Any, kind: type[Subject] = Subject) -> None:
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


def test_no_code_of_python_runs_when_an_object_of_living_ends() -> None:
    """An interrupt in it would be reported as ignored, and lost."""

    class Object:
        pass

    first, second = Object(), Object()
    living, called = interrupts.LiveObjects[Object](), list[str]()
    living.add(first)
    living.add(second)
    assert list(living) == [first, second]
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_name))
    del first
    sys.setprofile(None)
    assert set(called) <= {"test_no_code_of_python_runs_when_an_object_of_living_ends"}
    assert list(living) == [second]


SLOW = ("forkserver", "spawn")
# What is different with these.
OURS = in_modules("backends/_process", "_descriptors", "_interrupts", "shipment")


def cases() -> Iterator[tuple[str, str]]:
    for name, what in product(SETTINGS, WORK):
        without = () if SETTINGS[name].get("num_workers") else ("resize", "a change by the tuner", "a lost worker")
        if what in without or (name, what) == ("threads", "a lost worker"):
            continue
        if name not in SLOW or what == "start" or (WIDE and what in ("close", "drop", "a lost worker")):
            yield name, what


@pytest.mark.deep
@pytest.mark.parametrize(("name", "what"), list(cases()))
def test_ctrl_c_at_any_instruction(name: str, what: str) -> None:
    quick = 200 if not SETTINGS[name].get("num_workers") or name == "threads" else 600
    run(SETTINGS[name], WORK[what], 1 if WIDE else quick, OURS if name in SLOW else lambda code: True)


# prefetch()


class Numbers:
    """A source with a state: a new iterator begins at 0, or at the state that was loaded."""

    def __init__(self) -> None:
        self.at = self.first = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.first = self.first, 0
        while self.at < N:
            self.at += 1
            yield np.array([[self.at - 1]])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = self.first = state["at"]


class Ahead(Subject):
    """A prefetch(), which is its own iterator."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.loader = prefetch(Numbers(), **settings)
        self.batches = self.state = None

    def next(self) -> Any:
        return next(self.loader, None)

    def drop(self) -> None:
        self.loader = self.batches = None

    def check(self) -> None:
        """It goes on, or says that it has ended; it serves another epoch unless it was closed; its thread ends."""
        if self.loader is not None:
            check_rest(iter(self.next, None))
            if not self.loader._closed:
                assert keys(self.loader)[-1] == N - 1  # a state may have been loaded
                assert keys(self.loader) == list(range(N))
                assert self.loader.state_dict() == {"at": N}
            self.loader.close()
        for thread in tuple(running):
            thread.join(20)
        assert not running
        assert not any(thread.name == "penstock-prefetch" for thread in threading.enumerate())


AHEAD = {
    **{name: WORK[name] for name in ("start", "next", "end", "start again", "close")},
    **{name: WORK[name] for name in ("state_dict", "load_state_dict")},
    "first next": Work(_nothing, lambda subject: subject.next()),
    "reset": Work(_read, lambda subject: subject.loader.reset()),
    "state_dict after reset": Work(_read, lambda subject: (subject.loader.reset(), subject.loader.state_dict())),
    "drop": Work(_read, lambda subject: subject.drop()),
}


@pytest.mark.parametrize("what", AHEAD)
def test_ctrl_c_at_any_instruction_of_prefetch(what: str) -> None:
    run({"depth": 2}, AHEAD[what], 1 if WIDE else 20, lambda code: True, Ahead)


# share()


class Shared(Subject):
    """The consumers of a shared epoch, which ask one after the other."""

    def __init__(self, settings: dict[str, Any]) -> None:
        settings = dict(settings)
        self.in_turn = settings.pop("in_turn")
        super().__init__(settings)
        self.asked = 0

    def begin(self) -> None:
        self.batches = self.loader.share(2, in_turn=self.in_turn)
        self.asked = 0

    def next(self) -> Any:
        """The next batch, of the consumer whose turn it is; None if all have ended."""
        for _ in self.batches:
            part = self.batches[self.asked % len(self.batches)]
            batch = next(part, None)
            self.asked += 1
            if batch is not None:
                return batch
        return None

    def check(self) -> None:
        if self.batches is not None:
            check_rest(iter(self.next, None))
            self.batches = None
        super().check()


def _almost_shared_out(subject: Subject) -> None:
    _almost_over(subject)
    subject.batches.pop().close()


SHARED = {
    **{name: WORK[name] for name in ("start", "next", "end", "start again", "close", "drop", "state_dict")},
    "close a consumer": Work(_read, lambda subject: subject.batches.pop().close()),
    "drop a consumer": Work(_read, lambda subject: subject.batches.pop(0) and None),
    "close the last consumer": Work(_almost_shared_out, lambda subject: subject.batches[0].close()),
}


@pytest.mark.parametrize("what", SHARED)
@pytest.mark.parametrize(
    "settings",
    [{"in_turn": False}, {"in_turn": True}, {"in_turn": True, **SETTINGS["threads"]}],
    ids=["first", "in turn", "in turn, threads"],
)
def test_ctrl_c_at_any_instruction_of_share(settings: dict[str, Any], what: str) -> None:
    run(settings, SHARED[what], 1 if WIDE else 80, lambda code: True, Shared)


class Held(Drawing):
    """Its first sample waits until the test lets go of it."""

    def __init__(self) -> None:
        super().__init__(draws=False)
        self.asked, self.may = threading.Semaphore(0), threading.Event()

    def __getitem__(self, key: int) -> Any:
        self.asked.release()
        assert self.may.wait(60)
        return super().__getitem__(key)


class SharedWaiting(Shared):
    """Another thread reads a batch, and a third lets go of it when this one waits."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.in_turn, self.dataset = False, Held()
        self.loader = DataLoader(self.dataset, seed=1, **settings)
        self.batches = self.state = None

    def begin(self) -> None:
        super().begin()
        other = self.batches.pop()
        self.got: list[Any] = []
        self.threads = [threading.Thread(target=work, args=(other,)) for work in (self._read, self._wake)]
        self.threads[0].start()
        self.dataset.asked.acquire()
        self.threads[1].start()

    def _read(self, other: Any) -> None:
        try:
            self.got += keys([next(other)])
        except RuntimeError as error:
            self.got.append(str(error))

    def _wake(self, other: Any) -> None:
        while not other._shared._changes._bells and not self.dataset.may.wait(0.001):
            pass
        self.dataset.may.set()

    def check(self) -> None:
        self.dataset.may.set()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        self.threads.clear()  # they refer to the other consumer
        assert self.got == [0] or "was ended by KeyboardInterrupt" in self.got[0]
        super().check()


def test_ctrl_c_at_any_instruction_of_a_wait_for_another_consumer() -> None:
    run(SETTINGS["threads"], WORK["next"], 1 if WIDE else 20, lambda code: True, SharedWaiting)
