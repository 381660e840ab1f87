"""Reads the keys of an epoch from a torch loader's sampler. Saves random states, for resuming with the same keys."""

from __future__ import annotations

import copy
import inspect
import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import chain, count, islice, repeat
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from penstock._resume.reading import Mark, Reading, by_next, has_state, opened, taken
from penstock._resume.state import Progress
from penstock._system.interrupts import with_loan
from penstock.plan import END, Calls

if TYPE_CHECKING:
    from penstock.torch._cursor import LoadedState

# torch's own samplers (not their subclasses) have no state, and draw from the generator that they were given, or else
# from torch's global one.
_RANDOM = {RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler}
_TORCHS = {*_RANDOM, SequentialSampler, data.DistributedSampler}


def sampler_of(loader: Any) -> Any:
    """Returns the user's own batch sampler or, without a batch sampler, the loader's sampler of single keys."""
    index = loader._index_sampler
    return index.sampler if type(index) is BatchSampler else index


class Sampling:
    """One pass over the sampler, from the first step that has not yet been handed out.

    A sampler with a state starts from the mark in `progress`, which comes from a resume state or from the end of the
    previous epoch.
    """

    def __init__(self, loader: Any, progress: Progress) -> None:
        self._index = index = loader._index_sampler
        self._batched = type(index) is BatchSampler
        self.sampler = sampler_of(loader)
        self._is_torchs = type(self.sampler) in _TORCHS
        self._progress = progress
        self.generators = given_to(loader, index, getattr(index, "sampler", None))
        self._before: dict[str, Any] = {}
        self._origin: dict[str, Any] | None = None
        self._torch: torch.Tensor | None = None
        self._given: list[torch.Tensor | str] | None = None
        self._samples: int | None = None
        if self._is_torchs:
            with suppress(Exception):  # the user's code: torch will raise the same error
                self._samples = len(self.sampler)  # taken now, because the dataset may grow during the epoch
        self._reading = Restored(self.sampler)
        self._marks: dict[int, bytes | None] = {}  # of the steps that were drawn and not handed out
        self._is_over = False
        self._last = -1  # the number of steps, once the sampler has ended
        self.end: bytes | None = None  # the mark that the next epoch starts from, once the sampler has ended

    @property
    def about(self) -> dict[str, Any]:
        """A description of the sampler. A state can be loaded only if the sampler's description is the same."""
        return {
            "order": type(self.sampler).__name__,
            "samples": self._samples,
            "batch_size": self._index.batch_size if self._batched else None,
            "drop_last": self._index.drop_last if self._batched else None,
        }

    @property
    def origin(self) -> dict[str, Any] | None:
        """The random states that the keys were drawn from, or None before the first keys are requested."""
        before, self._torch = self._torch, None
        if before is not None and self._origin is not None:
            if type(self.sampler) is RandomSampler:  # the seed that it drew from the global generator
                again = torch.Generator()
                again.set_state(before)
                drawn = torch.empty((), dtype=torch.int64).random_(generator=again)
                self._origin["seed"] = drawn.item()
            else:
                self._origin["torch"] = text_of(before)
        return self._origin

    @property
    def draws_from(self) -> set[str]:
        """The names of the global generators that the sampler may still use.

        The set is empty once `origin` is known.
        """
        if self.origin is not None or type(self.sampler) in (list, tuple, range):
            return set()
        if not self._is_torchs:
            return set(_GLOBALS)
        return {"torch"} if type(self.sampler) in _RANDOM and self.sampler.generator is None else set()

    @property
    def given(self) -> list[str]:
        """The states of `generators` before the sampler drew its keys, or the current states if no pass is active."""
        given = self._given
        if given is None or self._progress.steps == self._last:
            return texts_of(self.generators)
        texts = [each if isinstance(each, str) else text_of(each) for each in given]
        given[:] = texts  # encoding one takes 15 us
        return texts

    def handed_out(self, step: int) -> bytes | None:
        """Removes and returns the sampler's position for the step, or None if the sampler has no state."""
        return self._marks.pop(step, None)

    def restore(self) -> None:
        """Restores the state that the sampler had when the previous epoch ended. Random generators are unchanged."""
        mark = opened(self._progress.begin.mark)
        if mark is not None and not mark.at_end and mark.kept:
            with_loan(TemporaryStates({}, self.generators), self._reading.prepare, mark)

    def prepare(self) -> None:
        """Saves the random states. Must be called before `iter(sampler)`, because that may draw random numbers."""
        if not self._batched and not self._is_torchs:
            self._before = take_states()
            self._given = [each.get_state() for each in self.generators]

    def fresh(self, begun: Iterator[Any]) -> Iterator[Any]:
        """Returns the keys of a whole epoch. `begun` is the iterator that torch has created over the sampler."""
        if inspect.isgenerator(begun) and inspect.getgeneratorstate(begun) != inspect.GEN_CREATED:
            return begun  # SpeechBrain patches torch's constructor, which has then skipped steps
        if not self._has_drawn(begun):
            return self._from_first(begun)
        self._note(self._before)
        return self._marked(begun) if self._has_state(begun) else begun

    def _from_first(self, begun: Iterator[Any]) -> Iterator[Any]:
        """Does the work of `fresh` for a sampler that draws random numbers only when its first keys are requested."""
        self._given = [each.get_state() for each in self.generators]
        self._note({})
        if self._is_torchs:
            if type(self.sampler) in _RANDOM and self.sampler.generator is None:
                self._torch = torch.get_rng_state()
            yield from begun
            return
        before = take_states()
        source = iter(self.sampler) if self._batched else begun
        if self._has_state(source):
            self._note(before)
            yield from self._marked(source)
            return
        steps = self._steps(by_next(source))
        first = list(islice(steps, 1))
        self._note(before)
        yield from chain(first, steps)

    def _note(self, before: dict[str, Any]) -> None:
        """Records which global generators the sampler has used: those whose state differs from `before`."""
        after = take_states() if before else {}
        self._origin = {name: state for name, state in before.items() if after[name] != state}
        epoch = getattr(self.sampler, "epoch", None)
        if isinstance(epoch, int) and hasattr(self.sampler, "set_epoch"):
            self._origin["epoch"] = epoch

    def resumed(self, begun: Iterator[Any], saved: LoadedState) -> Iterator[Any]:
        """Returns the remaining keys of an epoch, from a saved position or by drawing all keys again."""
        self._origin, self._given, mark = dict(saved.origin or {}), [*saved.given], opened(self._progress.begin.mark)
        if mark is not None and mark.kept and not mark.at_end:
            mark = None  # `restore` has used it
        if mark is not None or not self._has_drawn(begun):
            set_all(self.generators, saved.given)
        # `rest` runs when the first keys are asked for. Not a generator, which an exception of the sampler would end.
        rest = cache(partial(self._rest, begun, saved.states, mark))
        return map(_next_of, repeat(rest))

    def _rest(self, begun: Iterator[Any], states: dict[str, Any], mark: Mark | None) -> Iterator[Any]:
        """Does the work of `resumed` when the first keys are requested."""
        if self._origin is not None and "epoch" in self._origin:
            self.sampler.set_epoch(self._origin["epoch"])
        return with_loan(TemporaryStates(states), self._open_rest, begun, mark)

    def _open_rest(self, begun: Iterator[Any], mark: Mark | None) -> Iterator[Any]:
        origin, steps = self._origin or {}, self._progress.steps
        if mark is not None:
            self._reading.open(mark)
        elif self._is_torchs:
            skip = steps * self._index.batch_size if self._batched else steps
            return self._steps(_from(self.sampler, origin.get("seed"), skip))
        else:
            source = iter(self.sampler) if self._batched else begun
            if not self._has_state(source):
                return _passed(self._steps(by_next(source)), steps)
            self._reading.begin(source)
        self._reading.pass_over(steps, self._size)
        return self._marked()

    def _has_drawn(self, begun: Iterator[Any]) -> bool:
        """True if `iter(sampler)` may already have drawn random numbers. Only users' own samplers do so."""
        return not (self._batched or self._is_torchs or inspect.isgenerator(begun))

    def _steps(self, keys: Iterator[Any]) -> Iterator[Any]:
        index = self._index
        return iter(BatchSampler(keys, index.batch_size, index.drop_last)) if self._batched else keys

    def _has_state(self, source: Iterator[Any]) -> bool:
        return has_state(self.sampler) or has_state(source)

    def _marked(self, source: Iterator[Any] | None = None) -> Iterator[Any]:
        """Returns the steps of a sampler with a state. Keeps the mark of each step until the step is handed out."""
        if source is not None:
            self._reading.begin(source)
        return Calls(self._marked_step, self._progress.steps)

    def _marked_step(self, step: int) -> Any:
        reading, size = self._reading, self._size
        try:
            keys = [] if self._is_over else reading.take(size)
        except Exception:
            # Torch's BatchSampler is a generator, which an exception ends.
            reading.was_cut_off = self._batched and not reading.ended
            reading.ended = self._is_over = reading.ended or self._batched
            raise
        finally:
            self._marks = {at: mark for at, mark in self._marks.items() if at >= self._progress.steps}
            self._marks[step] = taken(self.sampler, reading.mark)
            if self._is_over and self.end is None:
                self.end = taken(self.sampler, reading.end)
        if keys and (len(keys) == size or not self._index.drop_last):
            if reading.ended:
                self._last = step + 1
            return keys if self._batched else keys[0]
        if self.end is None:
            self.end = taken(self.sampler, reading.end)
        return END

    @property
    def _size(self) -> int:
        return self._index.batch_size if self._batched else 1


class Sealed(NamedTuple):
    """The keys of a batch as an int64 array, ready to be sent to a worker."""

    keys: NDArray[np.int64]


_STEPS = BatchSampler.__iter__
_ORDERS = {RandomSampler: RandomSampler.__iter__, SequentialSampler: SequentialSampler.__iter__}


def in_arrays(index: Any, begun: Iterator[Any]) -> Iterator[Any]:
    """Returns the batches of a torch BatchSampler as `Sealed` keys, which saves 0.4 us for each key.

    The keys are drawn as torch draws them. `begun` is torch's iterator over the batches. `begun` is returned
    unchanged if the sampler is of another class, if the program has replaced one of torch's methods, or if the
    program has already read from `begun`.
    """
    fresh = inspect.isgenerator(begun) and inspect.getgeneratorstate(begun) == inspect.GEN_CREATED
    if not fresh or type(index) is not BatchSampler or BatchSampler.__iter__ is not _STEPS:
        return begun
    kind: Any = type(index.sampler)
    return _arrays(index, begun) if kind in _ORDERS and kind.__iter__ is _ORDERS[kind] else begun


def _arrays(index: Any, begun: Iterator[Any]) -> Iterator[Any]:
    sampler, size = index.sampler, index.batch_size
    n = len(sampler.data_source)
    if type(sampler) is SequentialSampler:
        for at in range(0, n - n % size if index.drop_last else n, size):
            yield Sealed(np.arange(at, min(at + size, n), dtype=np.int64))
        return
    given = sampler.generator
    is_whole = n > 0 and not sampler.replacement and sampler.num_samples == n
    if not is_whole or not torch.empty(0).is_cpu or (given is not None and given.device.type != "cpu"):
        yield from begun
        return
    generator = given
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    keys = torch.randperm(n, generator=generator).numpy()
    whole = n - n % size
    for at in range(0, whole, size):
        yield Sealed(keys[at : at + size])
    if given is not None:
        torch.randperm(n, generator=given)  # torch draws it when the keys have ended, and ignores it
    if whole < n and not index.drop_last:
        yield Sealed(keys[whole:])


def _from(sampler: Any, seed: int | None, skip: int) -> Iterator[Any]:
    """Returns the keys of a torch sampler from key `skip` on. If possible, avoids drawing the earlier keys."""
    if type(sampler) is SequentialSampler:
        return iter(range(len(sampler.data_source))[skip:])
    if seed is not None:
        sampler = copy.copy(sampler)
        sampler.generator = torch.Generator().manual_seed(seed)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is not None:
        n = len(sampler.data_source)
        if sampler.num_samples == n:
            return _shuffled(n, sampler.generator, skip)
    return _passed(by_next(iter(sampler)), skip)


def _shuffled(n: int, generator: torch.Generator, skip: int) -> Iterator[int]:
    """Yields the keys of torch's RandomSampler, without the first `skip` keys.

    At the end, draws and discards a permutation, as torch does, so that the generator ends in the same state.
    """
    yield from torch.randperm(n, generator=generator)[skip:].tolist()
    torch.randperm(n, generator=generator)


def _next_of(make: Callable[[], Iterator[Any]]) -> Any:
    return next(make())


def _passed(steps: Iterator[Any], skip: int) -> Iterator[Any]:
    """Skips `skip` steps. If `skip` is 0, reads one step in advance, to make the sampler draw its numbers."""
    for _ in range(skip):
        with suppress(Exception):  # it was raised before the state was taken
            next(steps, None)
    if skip:
        return steps
    try:
        return chain(list(islice(steps, 1)), steps)
    except Exception as error:
        return chain(map(_raise, [error]), steps)


def _raise(error: Exception) -> NoReturn:
    raise error


# ---- states of random generators as plain data, so that the same numbers can be drawn again ----


def text_of(state: Any) -> str:
    """Encodes a generator's state (a tensor or an array) as text. The state of torch's generator takes 5 KB."""
    return b64encode(np.asarray(state).tobytes()).decode()


def tensor_of(text: str) -> torch.Tensor:
    """Converts a result of `text_of` back to a tensor. May raise any type of exception if the text is damaged."""
    return torch.frombuffer(bytearray(b64decode(text, validate=True)), dtype=torch.uint8)


def _plain_numpy(state: Any) -> Any:
    if state["bit_generator"] != "MT19937":  # another one, set by the user, whose state may hold anything
        return None
    words, position = state["state"].values()
    return [text_of(words), position, state["has_gauss"], state["gauss"]]


class _Global(NamedTuple):
    """A random generator that the whole process shares, with functions that get, set, encode and decode its state."""

    take: Callable[[], Any]
    put: Callable[[Any], object]
    plain: Callable[[Any], Any]
    parse: Callable[[Any], Any]


_GLOBALS = {
    "torch": _Global(torch.get_rng_state, torch.set_rng_state, text_of, tensor_of),
    "numpy": _Global(
        lambda: np.random.get_state(legacy=False),
        np.random.set_state,
        _plain_numpy,
        lambda plain: ("MT19937", tensor_of(plain[0]).numpy().view(np.uint32), *plain[1:]),
    ),
    "random": _Global(
        random.getstate,
        random.setstate,
        lambda state: [text_of(np.array(state[1], np.uint32)), state[2]],
        lambda plain: (3, tuple(tensor_of(plain[0]).numpy().view(np.uint32).tolist()), *plain[1:]),
    ),
}


def take_states(names: Iterable[str] = _GLOBALS) -> dict[str, Any]:
    return {name: _GLOBALS[name].plain(_GLOBALS[name].take()) for name in names}


def parse_states(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Decodes states from `take_states` for `TemporaryStates`. May raise any exception if a state is damaged."""
    states = {name: kind.parse(plain[name]) for name, kind in _GLOBALS.items() if name in plain}
    with_loan(TemporaryStates(states), bool)  # raises if one is damaged
    return states


class TemporaryStates:
    """A loan (see `with_loan`) that sets global random generators to `states`.

    When the loan ends, the global generators and the generators in `given` get their earlier states back. There is
    one exception: a global state that the user's `load_state_dict` has set during the loan is kept (see `Restored`).
    """

    _begun: ClassVar[list[TemporaryStates]] = []

    def __init__(self, states: Mapping[str, Any], given: Iterable[torch.Generator] = ()) -> None:
        self._states = states
        self._given = given
        self._before: dict[str, Any] = {}
        self._theirs: list[tuple[torch.Generator, torch.Tensor]] = []

    def begin(self) -> None:
        self._before = {name: kind.take() for name, kind in _GLOBALS.items()}
        self._theirs = [(each, each.get_state()) for each in self._given]
        self._begun.append(self)
        for name, state in self._states.items():
            _GLOBALS[name].put(state)

    def end(self) -> None:
        if self in self._begun:
            self._begun.remove(self)
        for name, state in self._before.items():
            _GLOBALS[name].put(state)
        for each, state in self._theirs:
            each.set_state(state)

    @classmethod
    def keep(cls, states: Mapping[str, Any]) -> None:
        """Sets the states that the global generators will have when the current loans end."""
        for loan in cls._begun:
            loan._before |= states


class Ahead:
    """Random states for resuming an epoch whose base seed or order is still to be drawn.

    The base seed or the order is drawn from these states, without changing the caller's generators. If the caller's
    generators already have these states, no Ahead is created: the loader then uses and advances the caller's
    generators, as torch does.
    """

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Ahead | None:
        """Returns an Ahead for the result of `take_states`, or None if the generators already have these states."""
        return None if take_states(plain) == dict(plain) else cls(parse_states(plain))

    def lent(self, work: Callable[..., Any], *args: Any) -> Any:
        """Calls `work(*args)` with the global generators set to `states`. Then saves the generators' new states."""
        return with_loan(_Continued(self), work, *args)

    def steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Returns an iterator over `steps`. The first step draws the order from the random states of this object."""
        return map(partial(self._next, steps), count())

    def _next(self, steps: Iterator[Any], number: int) -> Any:
        return next(steps) if number else self.lent(next, steps)


class _Continued(TemporaryStates):
    """A loan of the global generators that starts from the states at the end of the previous loan."""

    def __init__(self, ahead: Ahead) -> None:
        super().__init__(ahead.states)
        self._ahead = ahead

    def end(self) -> None:
        if self in self._begun:
            self._ahead.states = {name: _GLOBALS[name].take() for name in self._states}
        super().end()


class Restored(Reading):
    """A `Reading` whose `restore` may set the global generators, by calling the user's `load_state_dict`.

    If that happens during a `TemporaryStates` loan, the new states stay in place when the loan ends.
    """

    def restore(self, part: Any, state: Any) -> None:
        before = take_states()
        super().restore(part, state)
        after = take_states()
        TemporaryStates.keep({name: _GLOBALS[name].take() for name in after if after[name] != before[name]})


def given_to(*holders: object) -> list[torch.Generator]:
    """Returns the torch generators in the `generator` attributes of these objects, without duplicates."""
    found = (getattr(holder, "generator", None) for holder in holders)
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def texts_of(generators: Iterable[torch.Generator]) -> list[str]:
    return [text_of(each.get_state()) for each in generators]


def set_all(generators: Iterable[torch.Generator], texts: Iterable[str]) -> None:
    for generator, text in zip(generators, texts, strict=True):
        generator.set_state(tensor_of(text))
