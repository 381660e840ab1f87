"""What the programs of histories are written with: loaders and iterators that check everything they hand out.

A program reads as one that uses penstock. Each call is made on a real loader and on its model; `Different` is raised
where they disagree.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock.testing import difference, simulate
from tests.conftest import belongings
from tests.histories import model, sources
from tests.histories.model import Batch, Closed, End, Failure, Model, Outcome

__all__ = [
    "DataLoader",
    "close_paused",
    "closed",
    "collect",
    "copied",
    "drain",
    "forget",
    "fork",
    "interrupted",
    "keep",
    "kill",
    "killing",
    "meanwhile",
    "pausing",
    "prefetched",
    "race",
    "refused",
    "shared",
    "simulated",
    "sources",
    "stage",
    "take",
]


class Different(AssertionError):
    """penstock did something else than the model."""


def _check(holds: object, *what: object) -> None:
    if not holds:
        raise Different(" ".join(map(str, what)))


# Batches that the program keeps, each with a copy of what it was when it was handed out.
_kept: list[tuple[Any, Any]] = []
_loaders: weakref.WeakSet[DataLoader] = weakref.WeakSet()


@contextmanager
def stage(patience: float = 20) -> Iterator[None]:
    """The body of a program: nothing is left after it, and the caller's random generators are where they were."""
    warnings.simplefilter("error")
    for ignored in (
        "num_workers=.* is more than",
        "This DataLoader will create",
        "A stream is read by one reader",
        "Worker .*",
        "worker .*",
    ):
        warnings.filterwarnings("ignore", ignored)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    random.seed(1)
    np.random.seed(1)
    generators = random.getstate(), pickle.dumps(np.random.get_state())
    global _before
    _before = belongings(), len(os.listdir("/proc/self/task"))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    moved = [random.getstate(), pickle.dumps(np.random.get_state())] != list(generators)
    _check(not moved, "the caller's random generators have moved")
    forget()
    for loader in list(_loaders):
        loader.close()
    gc.collect()
    _check_left(patience)


def closed(patience: float = 20) -> None:
    """All loaders are closed: no process, thread or descriptor is left, though iterators may still have memory."""
    forget()
    _check_left(patience, except_for="mappings")


_before: Any = None


def _check_left(patience: float, except_for: str = "") -> None:
    end = time.monotonic() + patience
    while (left := [one for one in _left() if one != except_for]) and time.monotonic() < end:
        time.sleep(0.002)  # a thread ends after its sample
    _check(not left, "left behind:", left, *map(_about, belongings()[1] - _before[0][1]))


def _about(pid: str) -> str:
    """What a process is, and what it does."""
    with suppress(OSError):
        facts = [Path("/proc", pid, name).read_text().replace("\0", " ") for name in ("stat", "wchan", "cmdline")]
        return f"[{', '.join(facts)}]"
    return f"[{pid} has just ended]"


def _left() -> list[Any]:
    """What this process has that it had not before, if anything."""
    descriptors, children, mappings, names = belongings()
    had, threads = _before[0], len(os.listdir("/proc/self/task")) - _before[1]
    left: list[Any] = [descriptors - had[0], children - had[1], names - had[3]]
    return [*filter(None, left), *["mappings"] * (mappings - had[2]), *["threads"] * threads]


# ---- loaders --------------------------------------------------------------------------------------


class DataLoader:
    """A penstock.DataLoader beside its model."""

    _make: Callable[..., Any] = staticmethod(penstock.DataLoader)

    def __init__(self, source: Any, **settings: Any) -> None:
        self.model = Model(source, settings)
        self.real = self._make(source, **settings)
        self.has_died = str(settings.get("backend")).startswith("simulated")
        self._live: weakref.WeakSet[Reader] = weakref.WeakSet()
        _loaders.add(self)

    def __iter__(self) -> Reader:
        return self._begin(iter)

    def batches(self) -> Reader:
        return self._begin(lambda real: real.batches(), indexed=True)

    def _begin(self, begin: Callable[[Any], Any], indexed: bool = False) -> Reader:
        reader = Reader(self, begin(self.real), self.model.begin(), indexed)
        self._live.add(reader)
        epoch = getattr(self.real, "epoch", reader.expected.number)
        _check(epoch == reader.expected.number, "epoch is", epoch)
        return reader

    def __len__(self) -> int:
        steps = len(self.model.steps(self.model.next_epoch))
        at = self.model.loaded
        if at is not None and at.consumed:
            steps = (self.model.steps(at.epoch, at.consumed) or [model.Step(at.steps - 1, [])])[-1].number + 1
        _check(len(self.real) == steps, "len is", len(self.real), "and not", steps)
        return steps

    # States.

    def state_dict(self) -> tuple[Any, model.Position]:
        at = self.model.position()
        state = _through_json(self.real.state_dict())
        self._check_state(state, at)
        return state, at

    def _check_state(self, state: Any, at: model.Position) -> None:
        _check((state["epoch"], state["steps"]) == (at.epoch, at.steps), "state", state, "and not", at)
        _check(state["consumed"] == at.consumed, "state", state, "and not", at)
        _check(state["dataset"] == at.saved, "state", state, "and not", at)
        _check(state["about"]["length"] == at.length, "state", state, "and not", at)

    def load_state_dict(self, given: tuple[Any, model.Position]) -> None:
        state, at = given
        if not self.model.fits(at):
            before = self.real.state_dict()
            with refused(penstock.errors.StateError):
                self.real.load_state_dict(state)
            _check(self.real.state_dict() == before, "a refused state has changed", before)
            return
        self.real.load_state_dict(state)
        self.model.load(at)
        again = _through_json(self.real.state_dict())
        if at.shape == self.model.shape:
            _check(again == state, "after loading", state, "the state is", again)

    def set_epoch(self, epoch: int) -> None:
        self.real.set_epoch(epoch)
        self.model.set_epoch(epoch)

    # Changes.

    def update(self, change: Callable[[Any], object] | None = None, **attributes: Any) -> None:
        args = () if change is None else (change,)
        if self.model.one_reader and self.real.num_workers:
            with refused(ValueError):
                self.real.update(*args, **attributes)
            return
        if change is sources.refuse:
            with refused(ValueError):
                self.real.update(change)
            self._end("was ended by ValueError")
            return
        self.real.update(*args, **attributes)
        _change(self.model.source, change, attributes)

    @property
    def num_workers(self) -> int:
        return int(self.real.num_workers)

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        if not self.real.num_workers:
            with refused(ValueError):
                self.real.num_workers = number
            return
        self.real.num_workers = number

    def close(self) -> None:
        self.real.close()
        self._end("was closed")

    def _end(self, text: str) -> None:
        for reader in list(self._live):
            reader.expected.ended = reader.expected.ended or text

    def pids(self) -> list[int]:
        with suppress(AttributeError):
            return [worker.pid for worker in self.real.workers]
        return []


class Reader:
    """An iterator of a loader beside that of its model."""

    def __init__(self, loader: DataLoader, real: Any, expected: model.Epoch, indexed: bool) -> None:
        self.loader = loader
        self.real = real
        self.expected = expected
        self._indexed = indexed
        self._uncertain = False  # an interrupt may have ended it

    def __next__(self) -> Any:
        given = self.next()
        if isinstance(given, End):
            raise StopIteration
        if isinstance(given, BaseException):
            raise given
        return given

    def next(self) -> Any:
        """The next batch, or the exception in its place, once it was compared with what must come."""
        before = self.expected.snapshot()
        wanted = self.expected.next()
        given = self._ask()
        self.judge(given, wanted, before)
        self._check_skipped()
        return given

    def judge(self, given: Any, wanted: Outcome, before: dict[str, Any]) -> None:
        """Compares, unless a fault excuses an error; `before` is the model before it was asked."""
        if self._is_excused(given):
            vars(self.expected).update({**before, "ended": self.expected.ended})
        elif not (isinstance(given, penstock.WorkerLost) and self._may_be_lost(wanted)):
            self.compare(given, wanted)

    def is_certain(self) -> bool:
        """False if an error may come in the place of any batch, because of a fault before."""
        loader = self.loader.model
        lost = self.loader.has_died and type(loader.source) is sources.Stream
        return not self._uncertain and not lost and loader.kills <= loader.settings.get("retries", 2)

    def _is_excused(self, given: Any) -> bool:
        """Whether this is an error in the place of no batch, which may come here."""
        if isinstance(given, penstock.LoaderTimeout) and self.loader.model.settings.get("timeout"):
            return True
        if self._uncertain and isinstance(given, RuntimeError) and "KeyboardInterrupt" in str(given):
            self.expected.ended = "was ended by KeyboardInterrupt"
            return True
        return False

    def _ask(self) -> Any:
        try:
            return next(self.real)
        except StopIteration:
            return End()
        except Exception as error:
            return _without_frames(error)

    def _may_be_lost(self, wanted: Outcome) -> bool:
        """A worker was killed, and this is told where it may be: then the model is told too."""
        loader = self.loader.model
        if loader.one_reader and type(loader.source) is sources.Stream and self.loader.has_died:
            if isinstance(wanted, (Batch, Failure)):
                self.expected.steps = wanted.step  # it was not handed out
            self.expected.left.clear()
            self.expected.is_over = False
            return True
        return loader.kills > loader.settings.get("retries", 2) and isinstance(wanted, (Batch, Failure))

    def _check_skipped(self) -> None:
        if self.loader.model.last is self.expected and hasattr(self.loader.real, "skipped"):
            skipped = [(key, str(error)) for key, error in self.loader.real.skipped]
            _check(skipped == self.expected.skipped, "skipped", skipped, "and not", self.expected.skipped)

    def compare(self, given: Any, wanted: Outcome) -> None:
        if isinstance(wanted, End):
            _check(isinstance(given, End), "a batch after the end:", _told(given))
        elif isinstance(wanted, Closed):
            said = isinstance(given, RuntimeError) and wanted.text in str(given)
            # An iterator that has handed out its last batch is at its end; but of a stream the end may be unknown.
            at_end = not self.expected.left and isinstance(given, End)
            self.expected.is_over |= at_end
            said = said or at_end
            _check(said, "not an error that says", repr(wanted.text), "but", _told(given))
        elif isinstance(wanted, Failure):
            _check(type(given) is wanted.kind, "not", wanted, "but", _told(given))
            notes = " ".join(getattr(given, "__notes__", ()))
            where = f"step {wanted.step} of epoch {self.expected.number}"
            _check(wanted.text in str(given), "not", wanted, "but", _told(given))
            _check(where in notes, "not", repr(where), "in the notes, but", _told(given))
        else:
            failed = isinstance(given, (BaseException, End))
            _check(not failed, "not a batch, but", _told(given) if failed else "", "in the place of", wanted)
            self._compare_batch(given, wanted)

    def _compare_batch(self, given: Any, wanted: Batch) -> None:
        if self._indexed:
            about = [given.step, given.pad, given.epoch, [int(key) for key in given.index]]
            expected = [wanted.step, wanted.pad, self.expected.number, wanted.index]
            _check(about == expected, "step, pad, epoch and index are", about, "and not", expected)
            skipped = [(key, str(error)) for key, error in given.skipped]
            _check(skipped == wanted.skipped, "skipped", skipped, "and not", wanted.skipped)
            given = given.data
        differs = difference(plain(given), wanted.data)
        step = f"step {wanted.step} of epoch {self.expected.number}"
        _check(differs is None, f"{step} differs in {differs}:", given, "and not", wanted.data)

    def close(self) -> None:
        self.real.close()
        self.expected.is_abandoned = True


def plain(batch: Any) -> Any:
    """Tensors as arrays."""
    if "torch" in sys.modules:
        import torch

        if isinstance(batch, torch.Tensor):
            return batch.numpy()
        if isinstance(batch, dict):
            return {name: plain(part) for name, part in batch.items()}
    return batch


def _through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def _without_frames(error: BaseException) -> BaseException:
    """The error without its traceback, whose frames would keep an iterator alive that the program has dropped."""
    with suppress(Exception):
        error.told = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
    return error.with_traceback(None)


def _told(given: Any) -> str:
    if not isinstance(given, BaseException):
        return "the end" if isinstance(given, End) else repr(given)
    return str(getattr(given, "told", repr(given)))


@contextmanager
def refused(kind: type[BaseException]) -> Iterator[None]:
    """The block raises this error."""
    try:
        yield
    except kind:
        return
    raise Different(f"no {kind.__name__} was raised")


def _change(source: Any, change: Callable[[Any], object] | None, attributes: dict[str, Any]) -> None:
    if change is not None:
        change(source)
    for name, value in attributes.items():
        setattr(source, name, value)


# ---- reading --------------------------------------------------------------------------------------


def take(reader: Reader, number: int = 1) -> None:
    """Reads so many batches, errors in their place included; after the end there are no more."""
    for _ in range(number):
        reader.next()


def drain(reader: Reader) -> None:
    """Reads to the end."""
    for _ in range(10_000):
        given = reader.next()
        if isinstance(given, End) or reader.expected.ended:
            return
    raise Different("the epoch does not end")


def keep(reader: Reader, number: int = 1) -> None:
    """Reads so many batches and keeps them: they must not change until `forget()`."""
    for _ in range(number):
        given = reader.next()
        if not isinstance(given, (BaseException, End)):
            _kept.append((given, copy.deepcopy(plain(given))))


def forget() -> None:
    """Checks the batches that were kept, and drops them."""
    for batch, as_it_was in _kept:
        differs = difference(plain(batch), as_it_was)
        _check(differs is None, "a batch that was kept has changed in", differs)
    _kept.clear()


def collect() -> None:
    gc.collect()


def copied(loader: DataLoader) -> DataLoader:
    """A pickled copy of the loader, which goes on by itself."""
    made = copy.copy(loader)
    made.real, made.model = pickle.loads(pickle.dumps(loader.real)), loader.model.copied()
    made._live = weakref.WeakSet()
    _loaders.add(made)
    return made


# ---- faults ---------------------------------------------------------------------------------------


@contextmanager
def _alarm(act: Callable[[], None], after: float) -> Iterator[None]:
    """Calls `act` in a signal handler of this thread, unless the block ends before that."""
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _send(loader: DataLoader, worker: int, *signals: int) -> int:
    """Sends the signals to a worker, if there are worker processes, and returns its pid."""
    pids = loader.pids()
    pid = pids[worker % len(pids)] if pids else 0
    for number in signals:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    return pid


def kill(loader: DataLoader, worker: int = 0) -> None:
    if _send(loader, worker, signal.SIGKILL):
        loader.has_died = True
        loader.model.kills += 1


@contextmanager
def killing(loader: DataLoader, worker: int, after: float) -> Iterator[None]:
    """Kills a worker while the block runs."""
    with _alarm(lambda: kill(loader, worker), after):
        yield


@contextmanager
def pausing(loader: DataLoader, worker: int, seconds: float) -> Iterator[None]:
    """Stops a worker, and lets it go on after so many seconds, or after the block."""
    pid = _send(loader, worker, signal.SIGSTOP)

    def go_on() -> None:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    try:
        with _alarm(go_on, seconds):
            yield
    finally:
        if pid in loader.pids():
            go_on()


def close_paused(loader: DataLoader, worker: int = 0) -> None:
    """Closes the loader while a worker is stopped."""
    _send(loader, worker, signal.SIGSTOP)
    loader.close()


def interrupted(reader: Reader, after: float) -> None:
    """Asks for a batch and presses Ctrl-C meanwhile: no batch is lost, and none comes twice."""
    if reader.loader.model.last is not reader.expected:
        return
    inside = False

    def press() -> None:
        if inside:
            raise KeyboardInterrupt

    before = reader.expected.snapshot()
    wanted = reader.expected.next()
    interrupt = False
    with _alarm(press, after):
        try:
            inside = True
            try:
                given = next(reader.real)
            finally:
                inside = False
        except StopIteration:
            given = End()
        except KeyboardInterrupt:
            interrupt = True
        except Exception as error:
            given = _without_frames(error)
    if not interrupt:
        reader.judge(given, wanted, before)
        return
    steps = reader.loader.real.state_dict()["steps"]
    reader._uncertain = True
    if reader.loader.real.state_dict()["epoch"] != before["number"]:
        _check(isinstance(wanted, End), "after an interrupt the epoch is over, but", wanted, "was to come")
        return
    if steps == before["steps"]:
        vars(reader.expected).update(before)
    else:
        _check(steps == reader.expected.steps, "after an interrupt the state has", steps, "steps")


def fork(loader: DataLoader, reader: Reader | None = None, number: int = 2) -> None:
    """A forked child uses the loader: an epoch of its own, while the parent's iterators are not its own."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            forget()
            if reader is not None and not (reader.expected.is_over or reader.expected.is_abandoned):
                with refused(RuntimeError):
                    next(reader.real)
            again = iter(loader)
            take(again, number)
            loader.state_dict()
            loader.close()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    _check(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a forked child has failed")


# ---- threads --------------------------------------------------------------------------------------


@contextmanager
def _beside(*works: Callable[[], object]) -> Iterator[None]:
    """Does all this in threads of their own while the block runs, and waits for them."""
    errors: list[BaseException] = []

    def done(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=done, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def race(number: int, *readers: Reader) -> None:
    """Reads so many batches of each iterator, each in a thread of its own."""
    if not all(reader.is_certain() for reader in readers):
        for reader in readers:
            take(reader, number)
        return
    wanted = [[reader.expected.next() for _ in range(number)] for reader in readers]
    given: list[list[Any]] = [[] for _ in readers]

    def work(reader: Reader, given: list[Any]) -> None:
        given.extend(reader._ask() for _ in range(number))

    with _beside(*(lambda a=a, b=b: work(a, b) for a, b in zip(readers, given, strict=True))):
        pass
    for reader, came, expected in zip(readers, given, wanted, strict=True):
        for one, other in zip(came, expected, strict=True):
            reader.compare(one, other)


class meanwhile:
    """What another thread does while this one reads."""

    @staticmethod
    def states(reader: Reader, number: int) -> Any:
        """The other thread takes states: each is one of the positions that this thread has passed."""
        loader, over, taken = reader.loader, False, list[Any]()
        if loader.model.last is not reader.expected:
            take(reader, number)
            return loader.state_dict()
        positions = [loader.model.position()]

        def work() -> None:
            while not over or not taken:
                taken.append(_through_json(loader.real.state_dict()))

        with _beside(work):
            try:
                for _ in range(number):
                    reader.next()
                    at = loader.model.position()
                    positions += _between(positions[-1], at, reader.expected)
            finally:
                over = True
        found = 0
        for state in taken:
            while found < len(positions) and _where(positions[found]) != (state["epoch"], state["steps"]):
                found += 1
            _check(found < len(positions), "a state that no moment had:", state, "in", positions)
        chosen = taken[len(taken) // 2]
        at = next(at for at in positions if _where(at) == (chosen["epoch"], chosen["steps"]))
        loader._check_state(chosen, at)
        return chosen, at

    @staticmethod
    def resizes(reader: Reader, number: int, *sizes: int) -> None:
        """The other thread sets the number of workers again and again."""
        over = False

        def work() -> None:
            for size in sizes * 50:
                reader.loader.real.num_workers = size
                if over:
                    return

        with _beside(work):
            try:
                take(reader, number)
            finally:
                over = True

    @staticmethod
    def updates(reader: Reader, number: int, changes: int) -> None:
        """The other thread updates the dataset: each batch has one of the values of the time it was asked for."""
        loader = reader.loader
        values = [loader.model.source.scale, *range(2000, 2000 + changes)]
        begun = done = 0

        def work() -> None:
            nonlocal begun, done
            for at in range(1, changes + 1):
                begun = at
                loader.real.update(scale=values[at])
                done = at

        with _beside(work):
            for _ in range(number):
                before, least = reader.expected.snapshot(), done
                given, most = reader._ask(), begun
                if reader._is_excused(given):
                    break
                for at in range(least, most + 1):
                    copies = {name: list(before[name]) for name in ("left", "skipped")}
                    vars(reader.expected).update({**before, **copies})
                    loader.model.source.scale = values[at]
                    try:
                        reader.compare(given, reader.expected.next())
                        break
                    except Different:
                        if at == most:
                            raise
        loader.model.source.scale = values[-1]


def _where(at: model.Position) -> tuple[int, int]:
    return at.epoch, at.steps


def _between(before: model.Position, after: model.Position, epoch: model.Epoch) -> list[model.Position]:
    """The positions of a loader whose batches were all skipped on the way to the next one, and the last."""
    found = []
    if before.epoch == after.epoch:
        steps = epoch.steps
        for number in range(before.steps + 1, after.steps):
            epoch.steps = number
            found.append(epoch.position())
        epoch.steps = steps
    else:
        for number in range(before.steps + 1, epoch.steps + 1):
            steps, epoch.steps = epoch.steps, number
            found.append(epoch.position())
            epoch.steps = steps
    return [*found, after]


def shared(loader: DataLoader, consumers: int, in_turn: bool, threads: bool, each: int) -> None:
    """An epoch for several consumers, each of which asks for so many batches."""
    readers = loader.real.share(consumers, in_turn=in_turn)
    epoch = loader.model.begin()
    given: list[list[Any]] = [[] for _ in readers]
    checks = Reader(loader, None, epoch, False)

    def ask(number: int) -> Any:
        try:
            return next(readers[number])
        except StopIteration:
            return End()
        except Exception as error:
            return _without_frames(error)

    def work(number: int) -> None:
        given[number] += [ask(number) for _ in range(each)]

    if threads:
        with _beside(*(lambda number=number: work(number) for number in range(consumers))):
            pass
    else:
        for _ in range(each):
            for number in range(consumers):
                given[number].append(ask(number))
    in_order = deque(one for row in zip(*given, strict=True) for one in row)
    if in_turn or not threads:
        for one in in_order:
            checks.compare(one, epoch.next())
    else:
        _compare_any(checks, [one for row in given for one in row], epoch)
    _check(
        _where(loader.model.position()) == _where_of(loader),
        "the state of a shared epoch is",
        loader.real.state_dict(),
    )
    for reader in readers:
        reader.close()
    epoch.is_abandoned = True


def _where_of(loader: DataLoader) -> tuple[int, int]:
    state = loader.real.state_dict()
    return state["epoch"], state["steps"]


def _compare_any(checks: Reader, given: list[Any], epoch: model.Epoch) -> None:
    """The batches came in any order."""
    left = list(given)
    for _ in given:
        wanted = epoch.next()
        for at, one in enumerate(left):
            try:
                checks.compare(one, wanted)
            except Different:
                continue
            del left[at]
            break
        else:
            raise Different(f"{wanted} did not come, but {[_told(one) for one in left]}")


def prefetched(loader: DataLoader, depth: int, *acts: str | int) -> None:
    """A `prefetch()` of the loader: reads so many batches for each number, and does what each name says."""
    with penstock.prefetch(loader.real, depth=depth) as ahead:
        iter(ahead)
        reader = Reader(loader, ahead, loader.model.begin(), False)
        state, at = _through_json(ahead.state_dict()), loader.model.position()
        for act in acts:
            if act == "state":
                state, at = _through_json(ahead.state_dict()), loader.model.position()
                loader._check_state(state, at)
            elif act == "load":
                ahead.load_state_dict(state)
                loader.model.load(at)
                reader.expected = loader.model.begin()
            elif act == "reset":
                ahead.reset()
                reader.expected = loader.model.begin()
            elif act == "iter":
                iter(ahead)
                if reader.expected.is_over:
                    reader.expected = loader.model.begin()
            else:
                for _ in range(int(act)):
                    reader.compare(reader._ask(), reader.expected.next())
        thread = ahead._thread
    thread.join()  # close() does not wait for long
    # How far the thread has read is not known.
    loader.set_epoch(loader.model.next_epoch)


# ---- the simulated backend ------------------------------------------------------------------------


def simulated(seed: int, **settings: Any) -> str:
    """The name of a simulated backend, whose workers do and die what the seed says."""
    return simulate.workers(choose=simulate.seeded(seed), **settings).__enter__().name
