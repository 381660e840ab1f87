"""The history of a mixture's weights in a loader. It is part of the loader's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._printable import counted
from penstock.errors import StateError
from penstock.plan._blocks import WINDOW
from penstock.plan._mixture import EqualEpochs, MixtureOrder, Stage
from penstock.plan._order import ENDLESS
from penstock.plan._windows import Memo
from penstock.source._mixture import MixtureDataset
from penstock.source._nested import fingerprint_of

AnyOrder = MixtureOrder | EqualEpochs


class _Unread:
    """Stands in for a source whose data is not available: only the length is known, from a saved state."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int) -> Any:
        raise IndexError(f"sample {key} cannot be read, because only a state is known.")

    def __repr__(self) -> str:
        return counted(self._length, "sample")


class WeightsFrom(NamedTuple):
    """The weights of a mixture from one position in an epoch until the next change.

    `given` means the same as in `Stage`. It is None for the states of older versions, which have no counts.
    """

    epoch: int
    position: int
    weights: dict[str, float]
    given: tuple[int, ...] | None = ()


@dataclass(frozen=True, eq=False)
class WeightHistory:
    """All weights that a mixture has had in one loader, and the positions where they took effect. Immutable."""

    mixture: MixtureDataset
    stages: tuple[WeightsFrom, ...]
    _orders: Memo[AnyOrder] = field(default_factory=lambda: Memo(2), repr=False)

    @classmethod
    def of(cls, mixture: MixtureDataset) -> WeightHistory:
        return cls(mixture, (WeightsFrom(0, 0, mixture.weights),))

    def order(self, seed: int, window: int) -> AnyOrder:
        return self._orders.get((seed, window), lambda: self.mixture.order(seed, window, self._whole))

    def weights_at(self, epoch: int, position: int) -> dict[str, float]:
        found = [stage for stage in self.stages if (stage.epoch, stage.position) <= (epoch, position)]
        return dict(found[-1].weights)

    def changed(
        self, epoch: int, position: int, weights: Mapping[str, float], seed: int, window: int
    ) -> WeightHistory:
        """Returns a new history in which these weights apply from this position on.

        The samples before the position stay the same, and each source continues with its next sample. Any changes
        already recorded at this position or later are dropped.
        """
        mixture, found = self.mixture, self.mixture.checked(weights)
        if not isinstance(mixture.stop, str):  # the end of an epoch is the beginning of the next one
            epoch, position = epoch + position // mixture.stop, position % mixture.stop
        order = self.order(seed, window).reweighed(epoch, position, mixture.shares(found))
        inner = order.order if isinstance(order, EqualEpochs) else order
        kept = [stage for stage in self.stages if stage[:2] < (epoch, position)]
        stages = (*kept, WeightsFrom(epoch, position, found, inner.stages[-1].given))
        made = WeightHistory(mixture, stages)
        made._orders.keep((seed, window), order)
        made.__dict__["_whole"] = inner.stages
        return made

    def shares(
        self,
        order: AnyOrder,
        epoch: int,
        position: int,
        keys: NDArray[np.int64],
        lengths: NDArray[np.int64] | None = None,
    ) -> list[tuple[str, float, int, int, float | None]]:
        """Returns (name, weight, samples given, number of samples, mean length) for each source.

        The samples given are the samples before `position`, plus one sample for each of `keys`. For `lengths`, see
        `MixtureDataset.mean_lengths`.
        """
        mixture, weights = self.mixture, self.weights_at(epoch, position)
        counts = (order.counts(epoch, position) + mixture.counts_of(keys)).tolist()
        columns = mixture.names, counts, mixture.lengths, mixture.mean_lengths(lengths)
        return [(name, weights[name], *rest) for name, *rest in zip(*columns, strict=True)]

    @cached_property
    def _whole(self) -> tuple[Stage, ...]:
        """The stages with integer weights. Computing them takes 2 ms for 500 sources."""
        of = self.mixture
        return tuple(
            Stage(*of.place(*stage[:2]), of.shares(stage.weights), stage.given or ()) for stage in self.stages
        )

    # States.

    def as_dict(self) -> dict[str, Any]:
        """Returns the history and a description of the mixture, as JSON-serialisable data."""
        mixture = self.mixture
        state: dict[str, Any] = {
            "sources": dict(zip(mixture.names, mixture.lengths, strict=True)),
            "unit": mixture.unit,
            "stop": mixture.stop,
            "shuffle": mixture.shuffled,
            "seed": mixture.seed,
            "weights": dict(mixture.weights),  # before any change
            "stages": [_as_dict(mixture, stage) for stage in self.stages],
        }
        if mixture.has_blocks:
            state["blocks"] = True  # not in the state: `of_state`
        files = {name: fingerprint_of(source) for name, source in zip(mixture.names, mixture.sources, strict=True)}
        if any(files.values()):
            state["files"] = {name: text for name, text in files.items() if text}
        if mixture.unit == "tokens":
            used = {name for stage in self.stages for name, weight in stage.weights.items() if weight}
            state["tokens"] = {name: mixture.tokens_of(name) for name in mixture.names if name in used}
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any], seed: int) -> WeightHistory | None:
        """Rebuilds a history from a state alone, without the sources' data.

        Returns None if the order depends on the sources' blocks, which are not in the state.
        """
        if state.get("blocks"):
            return None
        try:
            options = {name: state[name] for name in ("unit", "stop", "shuffle", "seed")}
            sources = {str(name): _Unread(length) for name, length in state["sources"].items()}
            mixture = MixtureDataset(sources, dict(state["weights"]), **options)
            mixture.set_tokens(state.get("tokens", {}))
            return cls.of(mixture).loaded({**state, "files": {}}, seed)  # their sources have none
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise _damaged(f"{error!r} in {state!r:.200}.") from error

    def loaded(self, state: Mapping[str, Any], seed: int) -> WeightHistory:
        """Returns the history that a state describes. Raises StateError if the state is from a different mixture.

        `seed` is the loader's seed.
        """
        mixture = self.mixture
        try:
            stages = [_of_dict(stage) for stage in state["stages"]]
            lengths, tokens = dict(state["sources"]), dict(state.get("tokens", {}))
            files = dict(state.get("files", {}))
            same = {name: state[name] for name in ("unit", "stop", "shuffle", "seed")}
            made, first, last = dict(state["weights"]), stages[0], stages[-1]
            fits = first[:2] == (0, 0) and all(sorted(stage.weights) == sorted(lengths) for stage in stages)
            places = [stage[:2] for stage in stages]
            counts = [*lengths.values(), *tokens.values(), *(count for place in places for count in place)]
            fits = fits and tokens.keys() <= lengths.keys()
            fits = fits and all(type(count) is int and 0 <= count < ENDLESS for count in counts)
            fits = fits and places == sorted({*places})
            if not isinstance(mixture.stop, str) and same["stop"] == mixture.stop:
                most = mixture.stop
                fits = fits and all(at < most and epoch < ENDLESS // most for epoch, at in places)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(f"{error!r} in {state!r:.200}.") from error
        if not fits:
            raise _damaged("its stages do not fit together.")
        self._compare(lengths, files, tokens, same)
        known = {name: weight for name, weight in mixture.weights.items() if name in lengths}
        if known not in (made, last.weights):
            raise StateError(
                f"the mixture has the weights {known}, but the state was saved with {last.weights}"
                + (f" (at first {made})" if made != last.weights else "")
                + ". Make the mixture with the weights of the state. They can be changed after the state is loaded: "
                "loader.update(weights=...)."
            )
        new = dict.fromkeys((name for name in mixture.names if name not in lengths), 0.0)
        try:
            found = [stage._replace(weights=mixture.checked({**stage.weights, **new})) for stage in stages]
            given = [_counts(mixture, part.get("given")) for part in state["stages"]]
        except (TypeError, ValueError, OverflowError) as error:
            raise _damaged(str(error)) from error
        return self._completed([stage._replace(given=count) for stage, count in zip(found, given, strict=True)], seed)

    def _completed(self, stages: list[WeightsFrom], seed: int) -> WeightHistory:
        """Fills in missing counts. Raises StateError if the counts of the stages do not follow from the weights."""
        mixture, done, whole = self.mixture, list[WeightsFrom](), list[Stage]()
        for stage in stages:
            epoch, position = mixture.place(*stage[:2])
            given = stage.given
            if given is None:
                given = ()
                if position:
                    try:
                        order = mixture.order(seed, WINDOW, tuple(whole))
                        given = tuple(order.counts(*stage[:2]).tolist())
                    except (IndexError, OverflowError) as error:
                        raise _damaged(str(error)) from error
            whole.append(Stage(epoch, position, mixture.shares(stage.weights), given))
            done.append(stage._replace(given=given))
        if not all(after.fits(before) for before, after in pairwise(whole)) or whole[0].given:
            raise _damaged("the counts of its stages do not follow from the weights.")
        made = WeightHistory(mixture, tuple(done))
        made.__dict__["_whole"] = tuple(whole)
        return made

    def _compare(
        self, lengths: dict[str, Any], files: dict[str, Any], tokens: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """Raises StateError if the state comes from a mixture with different sources or options."""
        mixture, names = self.mixture, self.mixture.names
        for name, length in lengths.items():
            if name not in names:
                raise StateError(
                    f"the state is from a mixture with a source {name!r}, but this one has only "
                    f"{', '.join(map(repr, names))}. Add the source, with weight 0 if it is no longer wanted: "
                    "the positions of all sources depend on its history."
                )
            now = mixture.lengths[mixture.names.index(name)]
            if now != length:
                raise StateError(
                    f"source {name!r} had {counted(length, 'sample')} when the state was saved, and now has {now:,}. "
                    "Add new samples as a source of their own."
                )
            before, after = files.get(name), fingerprint_of(mixture.sources[mixture.names.index(name)])
            if before != after:
                raise StateError(
                    f"source {name!r} has other files than when the state was saved: its fingerprint was {before!r}, "
                    f"and is {after!r}. Use the same files, or start without the state."
                )
        here = {"unit": mixture.unit, "stop": mixture.stop, "shuffle": mixture.shuffled, "seed": mixture.seed}
        for option, ours in here.items():
            if options[option] != ours:
                raise StateError(
                    f"the state is from a mixture with {option}={options[option]!r}, but this one has "
                    f"{option}={ours!r}. Make the mixture with {option}={options[option]!r}."
                )
        for name, total in tokens.items():
            if (count := mixture.tokens_of(name)) != total:
                raise StateError(
                    f"source {name!r} had {total:,} tokens when the state was saved, and now has {count:,}. Was it "
                    "measured with another tokenizer?"
                )
        weighted = [name for name in mixture.names if name not in lengths and mixture.weights[name]]
        if weighted:
            raise StateError(
                f"the state knows no source {weighted[0]!r}, which has the weight {mixture.weights[weighted[0]]:g} "
                "here. Make the mixture with weight 0 for it, load the state, and then give it a weight: "
                "loader.update(weights=...)."
            )


def _as_dict(mixture: MixtureDataset, stage: WeightsFrom) -> dict[str, Any]:
    given = dict(zip(mixture.names, stage.given, strict=True)) if stage.given else {}
    return {**stage._asdict(), "weights": dict(stage.weights), "given": given}


def _of_dict(stage: Mapping[str, Any]) -> WeightsFrom:
    return WeightsFrom(stage["epoch"], stage["position"], dict(stage["weights"]))


def _counts(mixture: MixtureDataset, given: Any) -> tuple[int, ...] | None:
    """Checks the counts of a stage and sorts them by source. Sources that were added later get the count 0."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given.keys() <= {*mixture.names}:
        raise TypeError(f"the counts of a stage are {given!r:.200}.")
    if not all(type(count) is int and 0 <= count < ENDLESS for count in given.values()):
        raise TypeError(f"the counts of a stage are {given!r:.200}.")
    return tuple(given.get(name, 0) for name in mixture.names) if given else ()


def _damaged(why: str) -> StateError:
    return StateError(f"the state of a mixture is damaged: {why}")
