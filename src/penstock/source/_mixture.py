"""Mixtures: several datasets, each with a share of the samples. The order of a mixture is in `plan/_mixture.py`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from penstock._at_work import among
from penstock._fill.cast import FieldMemory
from penstock._printable import counted
from penstock.errors import StateError
from penstock.plan._grouping import Grouping
from penstock.plan._mixture import EqualEpochs, MixtureOrder, Stage, Stop, whole_weights
from penstock.plan._order import ENDLESS
from penstock.random import each
from penstock.source._dataset import Dataset, fetch, is_stream, mistaken, mistaken_keys, not_missing
from penstock.source._nested import (
    Lengths,
    Views,
    fingerprint_of,
    foresee_of,
    gathers_numpy,
    grouping_of,
    is_of_numpy,
    keys_in_order,
    lengths_within,
    method_of,
    shown,
)
from penstock.source._stages import SameKeys, dataset, noted

Unit = Literal["samples", "tokens"]


class WeightsFrom(NamedTuple):
    """The weights of a mixture, which are valid from a position of an epoch on."""

    epoch: int
    position: int
    weights: dict[str, float]


class MixtureDataset(Dataset[Any]):
    """Several datasets, mixed by weight: see `penstock.mix`."""

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float],
        *,
        unit: Unit = "samples",
        stop: Stop | int = "never",
        shuffle: bool = True,
        seed: int | None = None,
        field: str | None = None,
    ) -> None:
        _check_options(sources, unit, stop)
        # By name, so that the order of the samples does not depend on the order in which sources are listed.
        self.names = tuple(sorted(sources))
        self.sources = tuple(_source(name, sources[name]) for name in self.names)
        self.unit, self.shuffled, self.field = unit, bool(shuffle), field
        self.stop: Stop | int = stop if isinstance(stop, str) else operator.index(stop)
        self.seed = None if seed is None else operator.index(seed)
        self._lengths = tuple(len(source) for source in self.sources)
        self._firsts = np.array([0, *accumulate(self._lengths)], np.int64)
        self.weights = self._checked(weights)
        self._stages = [WeightsFrom(0, 0, self.weights)]
        self._tokens: dict[str, int] = {}
        self._known: list[tuple[WeightsFrom, Stage]] = []
        self._last: MixtureOrder | None = None
        self._summed: tuple[NDArray[np.int64], dict[str, int]] | None = None  # lengths, with the sum of each source

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": [], "_last": None, "_summed": None}

    @property
    def endless(self) -> bool:
        return self.stop == "never"

    def __len__(self) -> int:
        """Raises TypeError. Samplers of other libraries would take a length for the end of the keys."""
        raise TypeError(
            "a mixture has no len(), because its keys are no positions. len(loader) is the number of batches; for "
            "torch's own DataLoader use penstock.torch.DataLoader with seed=."
        )

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, keys_in_order(self))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            raise TypeError(
                "a mixture has no slices, because a key is no position. stop=1000 makes epochs of 1,000 samples."
            )
        ((part, _, (index,)),) = self._divided([key])
        return self._named(part, self._one(part, index))

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        samples: list[Any] = [None] * len(keys)
        for part, rows, inner in self._divided(keys):
            with among(rows, len(keys)):
                if method_of(self.sources[part], "__getitems__"):
                    found = self._noting(part, inner, lambda: fetch(self.sources[part], inner))  # noqa: B023
                else:
                    found = [self._one(part, key) for key in each(inner)]
            for row, sample in zip(rows, found, strict=True):
                samples[row] = self._named(part, sample)
        return samples

    def _named(self, part: int, sample: Any) -> Any:
        if self.field is None:
            return sample
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"field={self.field!r} needs samples that are dicts, but source {self.names[part]!r} gives "
                f"{type(sample).__name__}. Leave field= out: Batch.sources has the names, too."
            )
        if self.field in sample:
            raise ValueError(
                f"field={self.field!r} is the name of a field that the samples of source {self.names[part]!r} have "
                "already, which would be lost. Choose another name."
            )
        return {**sample, self.field: self.names[part]}

    @property
    def __gather__(self) -> Callable[[Any, Any], Any]:
        """Gathers from all sources. Missing if a source has no `__gather__`, or if samples get a `field`."""
        if self.field is not None:
            raise AttributeError("a mixture that adds a field to its samples has no __gather__")
        gathers = [not_missing(method_of(source, "__gather__"), "__gather__") for source in self.sources]

        def gather(keys: Any, empty: Any) -> Any:
            return self._gather(gathers, keys, empty)

        return gathers_numpy(gather) if all(map(is_of_numpy, gathers)) else gather

    def _gather(self, gathers: Sequence[Callable[[Any, Any], Any]], keys: Any, empty: Any) -> Any:
        divided = self._divided(keys)
        if len(divided) == 1:
            ((part, _, inner),) = divided
            return gathers[part](np.array(inner, np.int64), empty)
        parts = [(rows, gathers[part](np.array(inner, np.int64), np.empty)) for part, rows, inner in divided]
        # Fields that are converted are converted afterwards, all sources together.
        return (
            _woven(parts, len(keys), np.empty if type(empty) is FieldMemory else empty) if parts else NotImplemented
        )

    @property
    def __views__(self) -> Views:
        """Missing if a source has no `__views__`, or if samples get a `field`."""
        if self.field is not None:
            raise AttributeError("a mixture that adds a field to its samples has no __views__")
        return partial(self._views, [not_missing(method_of(each, "__views__"), "__views__") for each in self.sources])

    def _views(self, views: Sequence[Views], keys: Sequence[int]) -> dict[str, list[NDArray[Any]]] | None:
        parts = [(rows, views[part](inner)) for part, rows, inner in self._divided(keys)]
        found: dict[str, list[Any]] = {name: [None] * len(keys) for name in (parts and parts[0][1]) or ()}
        for rows, its in parts:
            if its is None or list(its) != list(found):
                return None
            for name, column in found.items():
                for row, array in zip(rows, its[name], strict=True):
                    column[row] = array
        return found

    @property
    def __foresee__(self) -> Callable[[Any], Any]:
        return not_missing(foresee_of(self))

    @property
    def __lengths__(self) -> Lengths:
        """Returns lengths for one pass over each source: key k has entry k % n. Missing if a source has none."""
        return not_missing(lengths_within(self), "__lengths__")

    def names_of(self, keys: Any) -> list[str]:
        return [self.names[part] for part in self._parts(_checked_keys(keys))[0].tolist()]

    def locate(self, key: int) -> tuple[int, int]:
        """Returns the number of the source that the key belongs to, and the key of the sample in this source."""
        part, index = self._parts(_checked_keys([key]))
        return part.item(), index.item()

    def __order__(self, seed: int, window: int) -> MixtureOrder | EqualEpochs:
        """Returns the order of the keys. A seed of the mixture replaces the loader's seed."""
        blocks = tuple(map(_grouping, self.sources)) if self.shuffled else ()
        own = seed if self.seed is None else self.seed
        labels = tuple(map(_label, self.names))
        stop: Stop = self.stop if isinstance(self.stop, str) else "never"
        order = MixtureOrder(self._lengths, self._whole_stages(), own, stop, self.shuffled, blocks, window, labels)
        # The history may be long, and each change of weights makes another order.
        if self._last is not None:
            order.follow(self._last)
        self._last = order
        return order if isinstance(self.stop, str) else EqualEpochs(order, self.stop)

    def _whole_stages(self) -> tuple[Stage, ...]:
        """Returns the stages with integers as weights. Computes only those of new stages."""
        known = {id(stage): whole for stage, whole in self._known}
        self._known = [
            (stage, known.get(id(stage)) or Stage(*self._place(*stage[:2]), self._shares(stage.weights)))
            for stage in self._stages
        ]
        return tuple(whole for _, whole in self._known)

    def _place(self, epoch: int, position: int) -> tuple[int, int]:
        """Converts a place to one in the `MixtureOrder`, which has only one epoch if `stop` is a number."""
        return (epoch, position) if isinstance(self.stop, str) else (0, epoch * self.stop + position)

    # The history of the weights.

    def weights_at(self, epoch: int, position: int) -> dict[str, float]:
        found = [stage for stage in self._stages if (stage.epoch, stage.position) <= (epoch, position)]
        return dict(found[-1].weights)

    def drawn(
        self,
        order: MixtureOrder | EqualEpochs,
        epoch: int,
        position: int,
        keys: NDArray[np.int64],
        lengths: NDArray[np.int64] | None = None,
    ) -> list[tuple[str, float, int, int, float | None]]:
        """Returns statistics of each source: name, weight, samples given, number of samples, and their mean length.

        The samples given are those before a position, and those with these keys. `lengths` has the lengths of all
        samples. Without it, mean lengths are known only if `unit` is "tokens".
        """
        weights = self.weights_at(epoch, position)
        counts = (
            order.counts(epoch, position) + np.bincount(self._parts(keys)[0], minlength=len(self.names))
        ).tolist()
        tokens = dict(self._tokens)
        if lengths is not None:
            summed = self._summed
            if summed is None or summed[0] is not lengths:
                parts = np.split(lengths, self._firsts[1:-1])
                summed = lengths, {name: int(part.sum()) for name, part in zip(self.names, parts, strict=True)}
                self._summed = summed
            tokens = summed[1]
        means = [
            tokens[name] / length if name in tokens and length else None
            for name, length in zip(self.names, self._lengths, strict=True)
        ]
        columns = self.names, counts, self._lengths, means
        return [(name, weights[name], *rest) for name, *rest in zip(*columns, strict=True)]

    def reweigh(self, epoch: int, position: int, weights: Mapping[str, float]) -> None:
        """Sets the weights from this position of an epoch on. Each source continues with its next sample.

        Earlier samples keep their order. Orders that `__order__` has returned do not change.
        """
        if epoch < 0 or position < 0:
            raise ValueError(f"epoch and position are 0 or more, got {epoch} and {position}.")
        epoch, position = operator.index(epoch), operator.index(position)
        if not isinstance(self.stop, str):  # the end of an epoch is the beginning of the next one
            epoch, position = epoch + position // self.stop, position % self.stop
        stage = WeightsFrom(epoch, position, self._checked(weights))
        self._shares(stage.weights)  # fails now if the lengths are needed and unknown
        self._stages = [each for each in self._stages if each[:2] < stage[:2]] + [stage]

    def state_dict(self) -> dict[str, Any]:
        """Returns the history of the weights and a description of the mixture, as JSON-serialisable data."""
        state: dict[str, Any] = {
            "sources": dict(zip(self.names, self._lengths, strict=True)),
            "unit": self.unit,
            "stop": self.stop,
            "shuffle": self.shuffled,
            "seed": self.seed,
            "weights": dict(self.weights),  # before any change
            "stages": [{**stage._asdict(), "weights": dict(stage.weights)} for stage in self._stages],
        }
        if self.shuffled and any(_grouping(source) is not None for source in self.sources):
            state["blocks"] = True  # not in the state: `of_state`
        files = {name: fingerprint_of(source) for name, source in zip(self.names, self.sources, strict=True)}
        if any(files.values()):
            state["files"] = {name: text for name, text in files.items() if text}
        if self.unit == "tokens":
            used = {name for stage in self._stages for name, weight in stage.weights.items() if weight}
            state["tokens"] = {name: self._tokens_of(name) for name in self.names if name in used}
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> MixtureDataset | None:
        """Returns a mixture with the order of a state, without the data. None if the order depends on blocks."""
        if state.get("blocks"):
            return None
        try:
            options = {name: state[name] for name in ("unit", "stop", "shuffle", "seed")}
            sources = {str(name): range(length) for name, length in state["sources"].items()}
            made = cls(sources, dict(state["weights"]), **options)
            made._tokens.update(state.get("tokens", {}))
            made.load_state_dict({**state, "files": {}})  # a range has no files
            for stage in made._stages:
                made._shares(stage.weights)
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise StateError(f"the state of a mixture is damaged: {error!r} in {state!r:.200}.") from error
        return made

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the history of the weights. Raises StateError if it belongs to a different mixture."""
        try:
            stages = [WeightsFrom(s["epoch"], s["position"], dict(s["weights"])) for s in state["stages"]]
            lengths, tokens = dict(state["sources"]), dict(state.get("tokens", {}))
            files = dict(state.get("files", {}))
            same = {name: state[name] for name in ("unit", "stop", "shuffle", "seed")}
            made, first, last = dict(state["weights"]), stages[0], stages[-1]
            fits = first[:2] == (0, 0) and all(sorted(stage.weights) == sorted(lengths) for stage in stages)
            fits = fits and stages == sorted(stages, key=lambda stage: stage[:2])
            counts = [*lengths.values(), *tokens.values(), *(count for stage in stages for count in stage[:2])]
            fits = fits and tokens.keys() <= lengths.keys()
            fits = fits and all(type(count) is int and 0 <= count < ENDLESS for count in counts)
            if not isinstance(self.stop, str) and same["stop"] == self.stop:
                most = self.stop
                fits = fits and all(at < most and epoch < ENDLESS // most for epoch, at, _ in stages)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the state of a mixture is damaged: {error!r} in {state!r:.200}.") from error
        if not fits:
            raise StateError("the state of a mixture is damaged: its stages do not fit together.")
        self._compare(lengths, files, tokens, same)
        known = {name: weight for name, weight in self.weights.items() if name in lengths}
        if known not in (made, last.weights):
            raise StateError(
                f"the mixture has the weights {known}, but the state was saved with {last.weights}"
                + (f" (at first {made})" if made != last.weights else "")
                + ". Make the mixture with the weights of the state. They can be changed after the state is loaded: "
                "loader.update(weights=...)."
            )
        new = dict.fromkeys((name for name in self.names if name not in lengths), 0.0)
        try:
            self._stages = [stage._replace(weights=self._checked({**stage.weights, **new})) for stage in stages]
        except (TypeError, ValueError, OverflowError) as error:
            raise StateError(f"the state of a mixture is damaged: {error}") from error

    def _compare(
        self, lengths: dict[str, Any], files: dict[str, Any], tokens: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """Raises StateError if the state comes from a mixture with other sources or options."""
        for name, length in lengths.items():
            if name not in self.names:
                raise StateError(
                    f"the state is from a mixture with a source {name!r}, but this one has only "
                    f"{', '.join(map(repr, self.names))}. Add the source, with weight 0 if it is no longer wanted: "
                    "the positions of all sources depend on its history."
                )
            now = self._lengths[self.names.index(name)]
            if now != length:
                raise StateError(
                    f"source {name!r} had {counted(length, 'sample')} when the state was saved, and now has {now:,}. "
                    "Add new samples as a source of their own."
                )
            before, after = files.get(name), fingerprint_of(self.sources[self.names.index(name)])
            if before != after:
                raise StateError(
                    f"source {name!r} has other files than when the state was saved: its fingerprint was {before!r}, "
                    f"and is {after!r}. Use the same files, or start without the state."
                )
        here = {"unit": self.unit, "stop": self.stop, "shuffle": self.shuffled, "seed": self.seed}
        for option, ours in here.items():
            if options[option] != ours:
                raise StateError(
                    f"the state is from a mixture with {option}={options[option]!r}, but this one has "
                    f"{option}={ours!r}. Make the mixture with {option}={options[option]!r}."
                )
        for name, total in tokens.items():
            if (count := self._tokens_of(name)) != total:
                raise StateError(
                    f"source {name!r} had {total:,} tokens when the state was saved, and now has {count:,}. Was it "
                    "measured with another tokenizer?"
                )
        weighted = [name for name in self.names if name not in lengths and self.weights[name]]
        if weighted:
            raise StateError(
                f"the state knows no source {weighted[0]!r}, which has the weight {self.weights[weighted[0]]:g} "
                "here. Make the mixture with weight 0 for it, load the state, and then give it a weight: "
                "loader.update(weights=...)."
            )

    def _checked(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Returns the weights as floats, in the given order. Raises if they are not valid."""
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights must be a dict from names to numbers, but it is a {type(weights).__name__}.")
        for name in weights:
            if name not in self.names:
                near = get_close_matches(str(name), self.names, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"They are {', '.join(map(repr, self.names))}."
                raise ValueError(f"weights has {name!r}, but the mixture has no source of this name. {hint}")
        missing = [name for name in self.names if name not in weights]
        if missing:
            raise ValueError(
                f"weights has nothing for source {missing[0]!r}. Give each source a weight, which may be 0."
            )
        for name, weight in weights.items():
            if not hasattr(weight, "__float__") and not hasattr(weight, "__index__"):  # such as "1"
                raise TypeError(f"a weight is a number of 0 or more, but that of source {name!r} is {weight!r}.")
        found = {name: float(weight) for name, weight in weights.items()}
        for name, weight in found.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f"a weight is a number of 0 or more, but that of source {name!r} is {weight}.")
            if weight and not self._lengths[self.names.index(name)]:
                raise ValueError(f"source {name!r} has no samples, but the weight {weight:g}. Give it weight 0.")
        if not any(found.values()):
            raise ValueError("all weights of the mixture are 0. At least one must be above 0.")
        return found

    def _shares(self, weights: dict[str, float]) -> tuple[int, ...]:
        """Returns each source's share of the samples as an integer that is the same on all machines."""
        shares = [Fraction(weights[name]) for name in self.names]
        if self.unit == "tokens":
            # share of the tokens / mean length
            pairs = zip(shares, self.names, self._lengths, strict=True)
            shares = [share * length / self._tokens_of(name) if share else share for share, name, length in pairs]
        return whole_weights(shares)

    def _tokens_of(self, name: str) -> int:
        if name not in self._tokens:
            source = self.sources[self.names.index(name)]
            lengths = lengths_within(source)
            if lengths is None:
                raise TypeError(
                    f'unit="tokens" needs the lengths of the samples, which are not known for source {name!r}, '
                    f"{shown(source)}. Give them, or a function that returns the length of a sample: "
                    f"penstock.dataset(source).with_lengths(len)."
                )
            total = int(np.sum(lengths(), dtype=np.int64))
            if not total:
                raise ValueError(
                    f'all samples of source {name!r} have the length 0, so unit="tokens" cannot be used.'
                )
            self._tokens[name] = total
        return self._tokens[name]

    # Keys.

    def _parts(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the number of each key's source, and the key of its sample in this source."""
        inside = keys % self._firsts[-1]
        part = self._firsts.searchsorted(inside, "right") - 1
        return part, inside - self._firsts[part]

    def _divided(self, keys: Any) -> list[tuple[int, list[int], list[int]]]:
        """Groups the keys by source. Returns each source's number, the rows of its samples, and their keys in it."""
        part, index = self._parts(_checked_keys(keys))
        rows = part.argsort(kind="stable")
        parts = part[rows]
        edges = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(rows)]
        found = []
        for begin, end in pairwise(edges if len(rows) else ()):
            some = rows[begin:end]
            found.append((part.item(some[0]), some.tolist(), index[some].tolist()))
        return found

    def _one(self, part: int, key: int) -> Any:
        return self._noting(part, [key], lambda: self.sources[part][key])

    def _noting(self, part: int, keys: list[int], read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            which = f"sample {keys[0]}" if len(keys) == 1 else f"one of the samples {keys!r:.200}"
            failed = noted(error, f"In {which} of source {self.names[part]!r}, {shown(self.sources[part])}.")
        try:
            raise failed
        finally:
            del failed  # its traceback refers to this frame

    def __repr__(self) -> str:
        options = [f"{name}={weight:g}" for name, weight in self._stages[-1].weights.items()]
        if self.unit == "tokens":
            options.append('unit="tokens"')
        return f"mix({', '.join(options)})"


def _check_options(sources: Any, unit: Any, stop: Any) -> None:
    if not isinstance(sources, Mapping):
        raise TypeError(f"mix() takes a dict from names to datasets, but got a {type(sources).__name__}.")
    if not sources:
        raise ValueError("mix() needs at least one source, but got none.")
    for name in sources:
        if not isinstance(name, str):
            raise TypeError(f"the name of a source is a str, but got {name!r}.")
    if unit not in ("samples", "tokens"):
        raise ValueError(f'unit must be "samples" or "tokens", got {unit!r}.')
    if isinstance(stop, str):
        is_right = stop in ("never", "first", "all")
    else:
        is_right = hasattr(stop, "__index__") and not isinstance(stop, bool) and 0 < operator.index(stop) < ENDLESS
    if not is_right:
        raise ValueError(
            f'stop must be "never", "first", "all", or the number of samples in an epoch (1 or more), got {stop!r}.'
        )


def _source(name: str, given: Any) -> Any:
    mistake = mistaken(given) or mistaken_keys(given)
    if mistake is not None:
        raise TypeError(f"source {name!r} {mistake}")
    found = dataset(given)
    if is_stream(found):
        raise TypeError(
            f"source {name!r}, a {type(given).__name__}, is a stream, and a mixture needs datasets with keys. Read "
            "the data by key (penstock.open), or collect the samples in a list."
        )
    found = found.dataset if type(found) is SameKeys else found
    if method_of(found, "__order__"):
        raise TypeError(
            f"source {name!r}, {shown(found)}, is a mixture, which cannot be inside another. Give all sources "
            "to one mix(), with the products of their weights."
        )
    if getattr(found, "endless", False):
        raise TypeError(
            f"source {name!r}, {shown(found)}, has no end. Give it without repeat(): the mixture repeats it."
        )
    if not hasattr(found, "__len__"):
        raise TypeError(f"source {name!r}, {shown(found)}, has no len(), which a mixture needs.")
    return found


def _grouping(source: Any) -> Grouping | None:
    try:
        return grouping_of(source)
    except AttributeError:
        return None


def _label(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _checked_keys(keys: Any) -> NDArray[np.int64]:
    found = np.asarray(keys)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"the keys of a mixture are integers, but got {found.dtype}.")
    if found.size and found.min() < 0:
        raise IndexError(f"key {found.min()} is not in a mixture, whose keys are 0 or more.")
    return found.astype(np.int64, copy=False)


def _woven(parts: Sequence[tuple[list[int], Any]], size: int, empty: Any) -> Any:
    """Merges batches, each given with its rows in the result. NotImplemented if fields or dtypes differ."""
    batches = [batch for _, batch in parts]
    kinds = set(map(type, batches))
    if len(kinds) > 1:
        return NotImplemented
    kind = kinds.pop()
    if kind in (dict, tuple):
        names = list(batches[0]) if kind is dict else range(len(batches[0]))
        if any((list(batch) if kind is dict else range(len(batch))) != names for batch in batches):
            return NotImplemented
        fields = [_woven([(rows, batch[name]) for rows, batch in parts], size, empty) for name in names]
        if any(field is NotImplemented for field in fields):
            return NotImplemented
        return dict(zip(names, fields, strict=True)) if kind is dict else tuple(fields)
    if kind is list:
        found: list[Any] = [None] * size
        for rows, batch in parts:
            for row, value in zip(rows, batch, strict=True):
                found[row] = value
        return found
    if kind is not np.ndarray or len({(batch.dtype, batch.shape[1:]) for batch in batches}) > 1:
        return NotImplemented
    out = empty((size, *batches[0].shape[1:]), batches[0].dtype)
    for rows, batch in parts:
        out[rows] = batch
    return cast("NDArray[Any]", out)
