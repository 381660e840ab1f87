"""What every law of a backend is stated with: loaders of the backend, the plain loop beside them, and its name."""

from __future__ import annotations

import copy
import functools
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any
from unittest import SkipTest

from penstock import DataLoader
from penstock._feed.keys import KeyFetch
from penstock._work.runner import Job
from penstock.backends import Backend, Outcome, make
from penstock.testing._same import difference

# Seconds after which something that should have happened has not.
_PATIENCE = 60.0

# Why a law is skipped if the backend does not have what it needs.
_WITHOUT = {
    "workers": "there are no workers",
    "loses_workers": "workers cannot be lost",
    "own_generators": "workers draw from the caller's generators",
    "blocks": "a dataset that waits keeps the caller waiting",
    "seats": "tasks go to whichever worker is free",
}


class BrokenLaw(AssertionError):
    """A backend breaks a law. The text says which one, and how."""


def sentence(method: Callable[..., Any]) -> str:
    return method.__name__.removeprefix("test_").replace("_", " ")


def _law(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def checked(self: Laws) -> None:
        broken = f"{self.named()} breaks the law that {sentence(method)}."
        try:
            method(self)
        except SkipTest:
            raise
        except AssertionError as error:
            raise BrokenLaw(f"{broken} {error}") from error
        except Exception as error:
            error.add_note(broken)
            raise

    return checked


class Laws:
    """Derived classes state laws: methods whose names begin with `test_`, and go on as a sentence."""

    backend: str = ""
    settings: Mapping[str, Any] = {}
    workers = 2
    loses_workers = own_generators = blocks = seats = True

    def __init_subclass__(cls) -> None:
        for name, value in list(vars(cls).items()):
            if name.startswith("test_") and callable(value):
                setattr(cls, name, _law(value))

    # What an author of a backend may replace.

    def kill(self, loader: Any) -> None:
        """Kills one worker of a loader (or of a `Backend`), and returns when it is dead."""
        for worker in loader.workers[:1]:  # the last one may be dead, and not replaced yet
            worker.kill()
            worker.join(10)

    def nothing_is_left(self) -> None:
        """Called after each law, when all loaders are closed: raises if a worker, a file or memory is left."""

    def setup_method(self) -> None:
        self._made: list[Any] = []

    def teardown_method(self) -> None:
        while self._made:
            self._made.pop().close()
        gc.collect()
        self.nothing_is_left()

    # What laws are written with. Loaders and backends are closed after the law.

    def named(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f'backend="{self.backend}"{more}' if self.backend else "num_workers=0"

    def loader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        given: dict[str, Any] = {"num_workers": self.workers, **self.settings}
        if self.backend:
            given["backend"] = self.backend
        with warnings.catch_warnings():  # of more workers than processors, or than a stream has readers
            warnings.simplefilter("ignore")
            self._made.append(DataLoader(dataset, *args, **given | kwargs))
        return self._made[-1]

    def pair(self, dataset: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """A loader on the backend, and the plain loop that it must equal, with a dataset of its own."""
        return self.loader(dataset, *args, **kwargs), DataLoader(copy.deepcopy(dataset), *args, **kwargs)

    def crew(self, dataset: Any, hired: int | None = None, **job: Any) -> Backend:
        """The backend itself, with so many workers hired: worker i in seat i."""
        number = max(1, self.workers)
        # Kept here, as the engine keeps it: a backend may hold it weakly.
        self._job = Job(dataset, KeyFetch, None, None, number, seed=1, drop_last=False, **job)
        backend = make(self.backend or "inline", self._job, self.settings.get("multiprocessing_context"))
        self._made.append(backend)
        for worker in range(number if hired is None else hired):
            backend.hire(worker, worker)
        return backend

    def needs(self, *traits: str) -> None:
        for trait in traits:
            self.skip_unless(getattr(self, trait), _WITHOUT[trait])

    def skip_unless(self, what: object, why: str) -> None:
        if not what:
            raise SkipTest(f"{self.named()}: {why}")


def same(found: Any, expected: Any, where: str = "") -> None:
    differs = difference(found, expected)
    assert differs is None, f"{where}: not as in the plain loop{differs}"


def same_epochs(
    loader: Any, plain: Any, meanwhile: Callable[[int], object] | None = None, *, epochs: int = 2, where: str = ""
) -> None:
    """The batches of the loader are those of the plain loop, whatever `meanwhile` does after each step."""
    for epoch in range(epochs):
        for step, (found, expected) in enumerate(zip_longest(loader, plain)):
            same(found, expected, f"{where} step {step} of epoch {epoch}")
            if meanwhile is not None:
                meanwhile(step)


def outcomes(backend: Backend, count: int = 1) -> list[Outcome]:
    """What `poll` tells, until there are so many."""
    found: list[Outcome] = []
    deadline = backend.clock() + _PATIENCE
    while len(found) < count:
        backend.flush()
        found += backend.poll(deadline - backend.clock())
        late = f"after {_PATIENCE:.0f} seconds poll() has told no more than {found}"
        assert backend.clock() < deadline, late
    return found


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    """The block raises this, and the error and its notes say all these parts."""
    try:
        yield
    except kind as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        missing = [part for part in parts if part not in said]
        if type(error) is not kind or missing:
            raise AssertionError(f"{type(error).__name__} came without {missing}: {said}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it has not happened that {what}"
        time.sleep(0.001)
