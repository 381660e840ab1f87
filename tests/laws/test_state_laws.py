"""A state of any moment resumes to exactly what would have followed, wherever it is loaded.

Each example is a loader (a sampler, stream or dataset with or without a state, perhaps one that raises), read for two
epochs with a state taken at every moment. One of these states is then loaded: into the same loader, which has moved
on; into a new loader with the same objects; or, by way of JSON, into a new loader with new objects, as in a new
process.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset as TorchStream

import penstock
import penstock.torch

WIDE = "PENSTOCK_WIDE" in os.environ
EPOCHS = 2
SAME_LOADER, SAME_OBJECTS, NEW_PROCESS = PLACES = "the same loader", "the same objects", "a new process"


class Bad(Exception):
    pass


# ---- samplers and streams: what they remember, and whether the iterable or its iterator says so -----------------


class Items:
    """`n` items, in another order in each epoch; the items in `bad` raise an exception in their place."""

    epoch = 0

    def __init__(self, n: int, bad: frozenset[int] = frozenset()) -> None:
        self.n, self.bad = n, bad

    def item(self, at: int) -> int:
        if at in self.bad:
            raise Bad(f"item {at} of epoch {self.epoch}")
        return (at * 7 + self.epoch) % self.n if self.n % 7 else at


class Plain(Items):
    """No state: read again from the beginning."""

    def __iter__(self) -> Iterator[int]:
        return map(self.item, range(self.n))


class Generated(Items):
    """The same, and an exception ends it."""

    def __iter__(self) -> Iterator[int]:
        for at in range(self.n):
            yield self.item(at)


class Position(Items):
    """Continues at its position at the first `iter()` after loading; each other `iter()` starts over."""

    at = begin = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.begin = self.begin, 0
        while self.at < self.n:
            self.at += 1
            yield self.item(self.at - 1)

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.begin = state["at"]


class Counts(Position):
    """Counts its epochs when one has ended."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> Any:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.begin, self.epoch = state["at"], state["epoch"]


class Cursor:
    """An iterator with a state. It goes on after an exception."""

    def __init__(self, items: Items) -> None:
        self.items, self.at = items, 0

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> int:
        if self.at == self.items.n:
            raise StopIteration
        self.at += 1
        return self.items.item(self.at - 1)

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


class ByIterator(Items):
    """Only its iterator has a state."""

    def __iter__(self) -> Cursor:
        return Cursor(self)


class Both(Items):
    """It knows the epoch, and its iterator the position."""

    resumed = False

    def __iter__(self) -> Cursor:
        self.epoch += not self.resumed
        self.resumed = False
        return Cursor(self)

    def state_dict(self) -> Any:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.epoch, self.resumed = state["epoch"], True


class Itself(Items):
    """Its own iterator, which starts over at each `iter()`."""

    at = 0

    def __iter__(self) -> Itself:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == self.n:
            self.epoch += 1
            raise StopIteration
        self.at += 1
        return self.item(self.at - 1)

    def state_dict(self) -> Any:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Once(Itself):
    """Its own iterator, which `iter()` does not move; at its end it starts over. It raises once and goes on."""

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> int:
        if self.at == self.n:
            self.at, self.epoch = 0, self.epoch + 1
            raise StopIteration
        self.at += 1
        return self.item(self.at - 1)


KINDS: list[type[Items]] = [Plain, Generated, Position, Counts, ByIterator, Both, Itself, Once]


class Keyed(penstock.Dataset[Any]):
    """A dataset with keys; some samples raise. Its state is a phase."""

    phase = 0

    def __init__(self, n: int, bad: frozenset[int], stateful: bool) -> None:
        self.n, self.bad = n, bad
        if stateful:
            self.state_dict = lambda: {"phase": self.phase}
            self.load_state_dict = lambda state: setattr(self, "phase", state["phase"])

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key in self.bad:
            raise Bad(f"sample {key}")
        return key * 1000 + self.phase


def as_stream(kind: type[Items], face: str, light: bool) -> type:
    bases = (kind, TorchStream if face == "torch" else penstock.IterableDataset)
    return type(kind.__name__, bases, {"load": lambda self, item: item + 500} if light else {})


# ---- one program ------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    face: str  # "core", "torch", or "torch with a seed"
    role: str  # of the items: "sampler", "batch sampler", "stream", "light items", or "keys": no items
    kind: type[Items]
    n: int
    bad: frozenset[int]
    batch_size: int | None
    more: dict[str, Any]

    def objects(self) -> dict[str, Any]:
        """New objects: the dataset, and the sampler if there is one."""
        if self.role in ("stream", "light items"):
            return {"dataset": as_stream(self.kind, self.face, self.role == "light items")(self.n, self.bad)}
        if self.role == "keys":
            return {"dataset": Keyed(self.n, self.bad, stateful=self.kind is Both)}
        sampler = self.kind(self.n, self.bad)
        if self.role == "batch sampler":
            inner, sampler.item = sampler.item, lambda at: [inner(at), at]  # type: ignore[method-assign]
            return {"dataset": Keyed(self.n, frozenset(), False), "batch_sampler": sampler}
        return {"dataset": Keyed(self.n, frozenset(), False), "sampler": sampler}

    def loader(self, objects: dict[str, Any]) -> Any:
        sizes = {} if self.role == "batch sampler" else {"batch_size": self.batch_size}
        if self.face == "core":
            return penstock.DataLoader(**objects, **sizes, seed=5, **self.more)
        seed = {"seed": 5} if self.face == "torch with a seed" else {}
        return penstock.torch.DataLoader(**objects, **sizes, **seed, **self.more)


class Moment(NamedTuple):
    name: str
    state: Any
    after: int  # so many events came before it
    randomness: Any


def randomness() -> Any:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def put_back(states: Any) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def next_event(batches: Iterator[Any]) -> Any:
    """The next batch, the error in its place, or the end of the epoch."""
    try:
        return np.asarray(next(batches)).tolist()
    except StopIteration:
        return "end"
    except Bad as error:
        return str(error).splitlines()[0][:60]


def epoch_of(batches: Iterator[Any], note: Callable[[str], object] = lambda name: None) -> list[Any]:
    events: list[Any] = []
    while not events or events[-1] != "end":
        events.append(next_event(batches))
        note("after the end" if events[-1] == "end" else "after a batch" if isinstance(events[-1], list | int)
             else "after an error")  # fmt: skip
        assert len(events) < 100, events[-5:]
    return events


def run(case: Case, loader: Any) -> tuple[list[Any], list[Moment]]:
    """All events of two epochs, with a state at each moment; and one epoch more."""
    events: list[Any] = []
    moments: list[Moment] = []

    def note(name: str) -> None:
        if name != "before iter()" and name != "after iter()":
            done[0] += 1
        moments.append(Moment(name, loader.state_dict(), done[0], randomness()))

    done = [0]
    note("before iter()")
    for _ in range(EPOCHS):
        batches = iter(loader)
        note("after iter()")
        events += epoch_of(batches, note)
    events += epoch_of(iter(loader))
    return events, moments


def check_resumes(case: Case, pick: float, place: str) -> None:
    with ExitStack() as closing:
        _check_resumes(case, pick, place, closing)


def _check_resumes(case: Case, pick: float, place: str, closing: ExitStack) -> None:
    def opened(objects: dict[str, Any]) -> Any:
        loader = case.loader(objects)
        closing.callback(loader.close if case.face == "core" else vars(loader).clear)
        return loader

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    objects = case.objects()
    loader = opened(objects)
    events, moments = run(case, loader)
    moment = moments[int(pick * len(moments))]
    event(moment.name)
    event(f"{case.role} {case.kind.__name__}")
    state = moment.state
    if place == NEW_PROCESS:
        state, objects = json.loads(json.dumps(state)), case.objects()
    if place != SAME_LOADER:
        loader = opened(objects)
    loader.load_state_dict(state)
    assert loader.state_dict() == state, "right after it was loaded"
    put_back(moment.randomness)
    expected, found, begun = events[moment.after :], list[Any](), None
    while len(found) < len(expected):
        batches = iter(loader)
        begun = begun or loader.state_dict()
        found += epoch_of(batches)
    at = f"{moment.name}, {moment.after} events, loaded into {place}: {str(state)[:800]}"
    if case.more.get("in_order") is False:  # then only which batches an epoch has is known
        end = expected.index("end")
        assert sorted(map(str, found[: found.index("end")])) == sorted(map(str, expected[:end])), at
    else:
        assert found == expected, at
    again = opened(case.objects())
    again.load_state_dict(begun)
    put_back(moment.randomness)
    if case.more.get("in_order") is not False:
        assert epoch_of(iter(again)) == expected[: expected.index("end") + 1], f"{at}\nbegun: {begun}"


INLINE: dict[str, Any] = {}
THREADS = [{"num_workers": n, "backend": "thread"} for n in (1, 2)]
PROCESSES = [{"num_workers": n, "persistent_workers": stays} for n in (1, 2) for stays in (False, True)]


@st.composite
def cases(draw: st.DrawFn, workers: list[dict[str, Any]], faces: list[str]) -> Case:
    face = draw(st.sampled_from(faces))
    role = draw(st.sampled_from(["stream", "light items", "sampler", "batch sampler", "keys"]))
    kind = draw(st.sampled_from(KINDS))
    n = draw(st.integers(1, 8))
    bad = draw(st.frozensets(st.integers(0, n - 1), max_size=2))
    more = dict(draw(st.sampled_from(workers)))
    batch_size = draw(st.sampled_from([1, 2, 3, None]))
    if role == "light items" and face != "core":
        role = "stream"
    ranks = face != "torch" and draw(st.booleans())
    if ranks:
        more["shard"] = draw(st.sampled_from([(0, 2), (1, 2), (2, 3)]))
        more["last_batch"] = draw(st.sampled_from(["keep", "drop"] if batch_size is not None else ["keep"]))
    elif batch_size is not None and role != "batch sampler" and draw(st.booleans()):
        more["drop_last"] = True
    if face == "core" and more.get("num_workers", 0) and draw(st.booleans()):
        more["prefetch_factor"] = draw(st.integers(1, 3))
    if more.get("num_workers") == 2 and role in ("stream", "light items") and "persistent_workers" in more:
        more["num_workers"] = 1 if face == "core" else 2
    if face == "torch" and more.get("num_workers") and "sampler" in role:
        bad = frozenset()  # torch raises an error of the sampler early, in the place of another batch
        kind = Counts if kind is Both else kind  # torch calls `iter()` twice where workers are new, and Both counts
    if draw(st.integers(0, 4)) == 0:
        more["in_order"] = False
    return Case(face, role, kind, n, bad, batch_size, more)


def examples(short: int, wide: int) -> Any:
    return settings(max_examples=wide if WIDE else short, deadline=None, suppress_health_check=list(HealthCheck))


pytestmark = [
    pytest.mark.timeout(7_200 if WIDE else 120),
    pytest.mark.filterwarnings("ignore:A stream is read by one reader"),
    pytest.mark.filterwarnings("ignore:num_workers="),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

MOMENT = st.floats(0, 1, exclude_max=True)
EMPTY_RANK = {"num_workers": 1, "persistent_workers": False, "shard": (0, 2), "last_batch": "drop"}


@examples(150, 1_500)
@given(cases([INLINE, *THREADS], ["core"]), MOMENT, st.sampled_from(PLACES))
def test_a_state_of_any_moment_resumes_to_what_would_have_followed(case: Case, pick: float, place: str) -> None:
    check_resumes(case, pick, place)


@examples(120, 2_000)
@given(cases([INLINE], ["torch", "torch with a seed"]), MOMENT, st.sampled_from(PLACES))
# An error in the last item ends torch's batches, but not the sampler: its next epoch is empty.
@example(Case("torch", "sampler", Once, 7, frozenset({0, 6}), 1, {}), 0.875, SAME_LOADER)
@example(Case("torch", "sampler", Once, 7, frozenset({0, 6}), 1, {}), 0.95, NEW_PROCESS)
def test_so_does_a_state_of_a_torch_loader(case: Case, pick: float, place: str) -> None:
    check_resumes(case, pick, place)


@examples(6, 400)
@given(cases(PROCESSES, ["core", "torch"]), MOMENT, st.sampled_from(PLACES))
# A rank without steps: the second epoch begins without a position of the stream.
@example(Case("core", "stream", Itself, 1, frozenset(), 1, EMPTY_RANK), 0.75, SAME_LOADER)
def test_and_so_does_a_state_with_worker_processes(case: Case, pick: float, place: str) -> None:
    check_resumes(case, pick, place)
