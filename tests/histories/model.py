"""What a loader must hand out: a plain loop over keys, without engine, workers, slabs or states of penstock's.

Only the functions that give an order and random numbers from integers are penstock's own: they are the definition.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock._work.seeding import READ, REPLACE, SAMPLE, STEP, generator, seed_step
from penstock.plan import Sequential, Shuffled, mix
from penstock.plan._samplers import order_of
from tests.histories import sources


@dataclass
class Step:
    """A step of an epoch: its number, the keys of its samples, and how many of these only fill it up."""

    number: int
    keys: list[int]
    pad: int = 0


@dataclass
class Batch:
    data: Any
    index: list[int]
    step: int
    pad: int
    skipped: list[tuple[int, str]]


@dataclass
class Failure:
    """An error in the place of the batch of a step."""

    kind: type[BaseException]
    text: str
    step: int


class End:
    """The end of an epoch."""


@dataclass
class Closed:
    """The iterator has ended otherwise, and `text` is in the error that says so."""

    text: str


Outcome = Batch | Failure | End | Closed


@dataclass(frozen=True)
class Position:
    """What a state says: `steps` steps of the epoch were handed out, `consumed` samples of all ranks."""

    epoch: int
    steps: int
    consumed: int | None
    begun: bool
    length: int | None
    shape: tuple[Any, ...]
    saved: dict[str, Any] | None = None
    start: int = 0  # the position in the order that the epoch was dealt from


@contextmanager
def seeded(*of: int) -> Iterator[None]:
    """The global generators as they are for a step; afterwards as before."""
    ours, theirs = random.getstate(), np.random.get_state()
    seed_step(*of)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)


class Model:
    """A loader, as the plain loop. It has a copy of the dataset, to which the same changes are made."""

    def __init__(self, source: Any, settings: dict[str, Any]) -> None:
        self.source = copy.deepcopy(source)
        self.source.slow = 0
        self.settings = settings
        self.seed: int = settings["seed"]
        self.size: int | None = settings.get("batch_size", 1)
        self.rank, self.world = settings.get("shard") or (0, 1)
        self.on_error: str = settings.get("on_error", "raise")
        default = "drop" if settings.get("drop_last") else "pad" if self.world > 1 else "keep"
        self.last_batch: str = settings.get("last_batch") or default
        self.is_stream = hasattr(source, "__iter__")
        self.one_reader = self.is_stream and not hasattr(source, "load")
        self.next_epoch = 0
        self.loaded: Position | None = None
        self.last: Epoch | None = None  # the epoch that was begun last
        self.kills = 0

    # Which keys.

    def has_order(self) -> bool:
        """True if the order is one of penstock's, so that a state can be loaded with another number of ranks."""
        given = self.settings.get("sampler")
        own = given is None or order_of(given, self.seed) is not None
        return not self.is_stream and self.settings.get("batch_sampler") is None and own

    def _keys(self, epoch: int) -> list[int]:
        """All keys of the epoch, in order."""
        if self.is_stream:
            return list(range(self.source.n))
        sampler = self.settings.get("sampler")
        if isinstance(sampler, sources.Ticket):
            return list(range(sampler.n))[::-1]
        if isinstance(sampler, sources.Jumbled):
            return self._jumbled(sampler, epoch)
        if isinstance(sampler, list):
            return sampler
        n = len(self.source)
        order: Any = Shuffled(n, self.seed) if self.settings.get("shuffle") else Sequential(n)
        if sampler is not None:
            order = order_of(sampler, self.seed)
        return [int(key) for key in order.at(epoch, np.arange(order.size(epoch)))]

    def _jumbled(self, sampler: sources.Jumbled, epoch: int) -> list[int]:
        keys, drawn, size = iter(sampler), list[int](), self.size or 1
        for number in range(-(-sampler.n // size)):
            with seeded(self.seed, epoch, number, READ):
                drawn += itertools.islice(keys, size)
        return drawn

    def steps(self, epoch: int, start: int = 0) -> list[Step]:
        """The steps of this rank, from a position of the order on."""
        if self.settings.get("batch_sampler") is not None:
            every = [list(keys) for keys in self.settings["batch_sampler"]]
            return self._dealt(every)
        keys, size, world = self._keys(epoch), self.size or 1, self.world
        stride = size * world
        if not self.has_order():
            return self._dealt(self._cut(keys, size), size)
        if self.last_batch == "rollover":
            carried = epoch * len(keys) % stride
            before = [key for earlier in range(max(0, epoch - stride), epoch) for key in self._keys(earlier)]
            keys = before[len(before) - carried :] + keys
            keys = keys[: len(keys) // stride * stride]
        first, n, made = -(-start // stride), len(keys), list[Step]()
        for number, begin in enumerate(range(start, n, stride), first):
            if self.last_batch == "drop" and begin + stride > n:
                break
            places = range(begin + self.rank * size, begin + self.rank * size + size)
            pad = 0
            if self.last_batch == "pad":
                pad = sum(place >= n for place in places)
                block = [keys[place % n] for place in places]
            else:
                block = [keys[place] for place in places if place < n]
            if block:
                made.append(Step(number, block, pad))
        return made

    def _cut(self, keys: list[int], size: int) -> list[list[int]]:
        """The batches of all ranks. A stream that raises loses the batch, and goes on after the bad sample."""
        made: list[list[int]] = [[]]
        for key in keys:
            made[-1].append(key)
            if self._raises(made[-1]) and type(self.source) is sources.Stream:
                break  # a generator ends with its error
            if len(made[-1]) == size or self._raises(made[-1]):
                made.append([])
        return [batch for batch in made if batch]

    def _raises(self, keys: list[int]) -> bool:
        return self.one_reader and keys[-1] in self.source.bad

    def _dealt(self, every: list[list[int]], size: int | None = None) -> list[Step]:
        """Every world-th batch of a sampler or a stream."""
        if self.last_batch == "drop":
            every = [keys for keys in every if size in (None, len(keys)) or self._raises(keys)]
            every = every[: len(every) // self.world * self.world]
        return [Step(number, keys) for number, keys in enumerate(every[self.rank :: self.world])]

    # What is in a batch.

    def outcome(self, epoch: int, step: Step) -> Batch | Failure:
        """The batch as the dataset is now."""
        number = step.number * self.world + self.rank
        samples: list[Any] = []
        keys: list[int] = []
        rows: list[int] = []
        failed: list[tuple[int, str]] = []
        of_step = _Once(self.seed, epoch, number, STEP)
        with seeded(self.seed, epoch, number):
            for row, key in enumerate(step.keys):
                tried = 0
                while True:
                    name = self._name(step, key, row)
                    rng = of_step if self.one_reader else _Once(self.seed, epoch, name, SAMPLE)
                    try:
                        samples.append(self.source.sample(key, rng))
                    except ValueError as error:
                        if self.on_error == "raise":
                            return Failure(ValueError, str(error), step.number)
                        failed.append((name, str(error)))
                        tried += 1
                        if self.on_error == "skip":
                            break
                        assert tried <= 16, "the histories have no dataset with so many bad samples"
                        key = self._another(epoch, step, row, tried)
                    else:
                        keys.append(name)
                        rows.append(row)
                        break
        pad = sum(row >= len(step.keys) - step.pad for row in rows)
        return Batch(self._collated(samples), keys, step.number, pad, failed)

    def _name(self, step: Step, key: int, row: int) -> int:
        """What names a sample: its key, or its position in a stream."""
        return (step.number * self.world + self.rank) * (self.size or 1) + row if self.is_stream else key

    def _another(self, epoch: int, step: Step, row: int, tried: int) -> int:
        number = mix(self.seed, epoch, step.number * self.world + self.rank, row, tried, REPLACE)
        among = self._keys(epoch) if self.has_order() else step.keys
        return among[number % len(among)]

    def _collated(self, samples: list[Any]) -> Any:
        if not samples:
            return None
        if self.size is None and self.settings.get("batch_sampler") is None:
            return samples[0]
        if self.settings.get("collate_fn") is not None:
            return self.settings["collate_fn"](samples)
        return {name: _stacked([sample[name] for sample in samples]) for name in samples[0]}

    # Epochs and states.

    def begin(self) -> Epoch:
        """An `iter()`."""
        at, self.loaded = self.loaded, None
        epoch = self.next_epoch
        first, start = (0, 0) if at is None else (at.steps, at.start)
        left = [step for step in self.steps(epoch, start) if step.number >= first]
        made = Epoch(self, epoch, left, start, first)
        made.length = self.length()
        self.last, self.next_epoch = made, epoch + 1
        return made

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.size, self.world, self.last_batch

    def length(self) -> int | None:
        return None if self.is_stream else len(self.source)

    def position(self) -> Position:
        """What `state_dict()` must say now."""
        last, saved = self.last, None
        if isinstance(self.source, sources.Saved):
            saved = self.source.state_dict()
        if self.loaded is not None:
            return replace(self.loaded, saved=saved)
        if last is None or last.is_over:
            return Position(self.next_epoch, 0, 0, False, self.length(), self.shape, saved)
        return replace(last.position(), saved=saved)

    def fits(self, at: Position) -> bool:
        """Whether a loader like this one takes the state."""
        if at.length != self.length():
            return False
        if at.shape[1] == self.world:
            return at.shape == self.shape
        if "rollover" in (at.shape[2], self.last_batch):
            return False
        return at.consumed == 0 or self.has_order()

    def load(self, at: Position) -> None:
        if at.saved is not None:
            self.source.load_state_dict(at.saved)
        if at.shape != self.shape:
            steps = -(-(at.consumed or 0) // ((self.size or 1) * self.world))
            at = replace(at, steps=steps, shape=self.shape, start=at.consumed or 0)
        self.set_epoch(at.epoch)
        self.loaded = at

    def set_epoch(self, epoch: int) -> None:
        self.next_epoch, self.last, self.loaded = epoch, None, None

    def copied(self) -> Model:
        """What a pickled copy of the loader is: its iterators stay with the original."""
        made = copy.copy(self)
        made.source, made.last = copy.deepcopy(self.source), copy.copy(self.last)
        if made.last is not None:
            made.last.model, made.last.left = made, list(made.last.left)
        made.kills = 0
        return made


@dataclass
class Epoch:
    """An iterator: the steps that it still has to hand out."""

    model: Model
    number: int
    left: list[Step]
    start: int = 0  # the position in the order that it was dealt from
    steps: int = 0  # handed out, including those before it was resumed
    is_over: bool = False
    is_abandoned: bool = False  # it was closed: it gives nothing, but the epoch was not read to its end
    ended: str = ""  # if something else has ended it: what the error says
    length: int | None = None
    skipped: list[tuple[int, str]] = field(default_factory=list)

    def position(self) -> Position:
        model = self.model
        begun = self.steps > 0
        consumed: int | None = 0
        if begun:
            consumed = None
            if model.has_order() and model.last_batch != "rollover":
                n, stride = len(model._keys(self.number)), (model.size or 1) * model.world
                first = -(-self.start // stride)
                consumed = min(self.start + (self.steps - first) * stride, n)
        return Position(self.number, self.steps, consumed, begun, self.length, model.shape, start=self.start)

    def snapshot(self) -> dict[str, Any]:
        """For `vars(epoch).update(...)`, if nothing was handed out after all."""
        return {**vars(self), "left": list(self.left), "skipped": list(self.skipped)}

    def next(self) -> Outcome:
        """What `next()` must give, which is then handed out."""
        if self.is_over or self.is_abandoned:
            return End()
        if self.ended:
            return Closed(self.ended)
        while self.left:
            step = self.left.pop(0)
            self.steps = step.number + 1
            made = self.model.outcome(self.number, step)
            if isinstance(made, Failure):
                return made
            most = self.model.settings.get("max_errors")
            room = len(made.skipped) if most is None else most - len(self.skipped)
            self.skipped += made.skipped[:room]
            if room < len(made.skipped):
                return Failure(ValueError, made.skipped[room][1], step.number)
            if made.index:
                return made
        self.is_over = True
        return End()


class _Once:
    """`penstock.rng` in the model: one generator for each sample, made when it is first asked for."""

    def __init__(self, *of: int) -> None:
        self._of = of
        self._made: np.random.Generator | None = None

    def __call__(self) -> np.random.Generator:
        if self._made is None:
            self._made = generator(*self._of)
        return self._made


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], str):
        return values
    return np.stack([np.asarray(value) for value in values])
