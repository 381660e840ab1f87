"""Explains a step: which samples it has on every rank, and where they come from. Reads no data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from penstock._printable import printable
from penstock.plan import ComputedPlan
from penstock.source._nested import method_of, origin, shown


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Where a sample, or one document of a packed row, comes from.

    - `source`: the name of the source in a mixture, or None if the dataset is not a mixture.
    - `dataset`: a short description of the innermost dataset that has the sample.
    - `key`: the key of the sample in that dataset.
    - `begin`, `end`: the range of the document's tokens that is in the row. Both are None for a whole sample.
    """

    source: str | None
    dataset: str
    key: Any
    begin: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        name = "" if self.source is None else f"{self.source}, "
        part = "" if self.begin is None else f", tokens {self.begin} to {self.end}"
        return f"{name}{self.dataset}, key {self.key!r}{part}"


@dataclass(frozen=True, slots=True)
class ExplainedSample:
    """A sample of a step: its key in the loader's dataset, and where it comes from.

    `sources` has one entry for each document if the sample is a packed row, otherwise a single entry. Without a
    dataset, `sources` is empty. `pad` is True if the sample only fills up the batch (see `Batch.pad`).
    """

    key: Any
    sources: tuple[SampleSource, ...]
    pad: bool = False

    def lines(self) -> Iterator[str]:
        pad = ", padding" if self.pad else ""
        if not self.sources:
            yield f"sample {self.key!r}{pad}"
            return
        if len(self.sources) == 1 and self.sources[0].begin is None:
            yield f"sample {self.key!r}: {self.sources[0]}{pad}"
            return
        yield f"row of {len(self.sources)} documents or parts of documents{pad}"
        yield from (f"  {each}" for each in self.sources)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The samples of one step. `ranks` has the samples of each rank, in the order of that rank's batch."""

    epoch: int
    step: int
    ranks: tuple[tuple[ExplainedSample, ...], ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the explanation as a dict that can be serialised as JSON, if the keys are integers or strings."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"epoch {self.epoch}, step {self.step}"]
        for rank, samples in enumerate(self.ranks):
            if len(self.ranks) > 1:
                lines.append(f"rank {rank}" + ("" if samples else ": no batch"))
            lines += [f"  {line}" for sample in samples for line in sample.lines()]
        return "\n".join(map(printable, lines))


def check_dealt(step: int, epoch: int, first: int) -> None:
    """Raises ValueError for a step before `first`. The earlier steps were dealt to a different number of ranks."""
    if step < first:
        raise ValueError(
            f"The steps before {first} of epoch {epoch} were dealt to another number of ranks, and then the epoch "
            "was resumed on this one. To explain such a step, use a state of that run, or an earlier one."
        )


def explained(plan: ComputedPlan, dataset: Any, epoch: int, step: int) -> Explanation:
    """Explains a step of a plan. If the dataset is None, the samples have keys but no sources."""
    ranks: list[tuple[ExplainedSample, ...]] = []
    for rank in range(plan.world):
        of_rank: ComputedPlan = replace(plan, rank=rank)  # type: ignore[type-var]  # every plan is a dataclass
        try:
            keys = of_rank.keys(epoch, step)
        except IndexError:
            if rank == 0:  # the first rank has the most steps
                raise
            ranks.append(())
            continue
        ranks.append(_samples(dataset, keys, of_rank.pad(epoch, step)))
    return Explanation(epoch, step, tuple(ranks))


def _samples(dataset: Any, keys: Any, pad: int) -> tuple[ExplainedSample, ...]:
    each = keys if isinstance(keys, list) else np.atleast_1d(keys).tolist()
    sources: Any = repeat((), len(each)) if dataset is None else _sources(dataset, each)
    real = len(each) - pad
    return tuple(
        ExplainedSample(key, of, row >= real) for row, (key, of) in enumerate(zip(each, sources, strict=True))
    )


def _sources(dataset: Any, keys: Sequence[Any]) -> Iterator[tuple[SampleSource, ...]]:
    names_of = getattr(dataset, "names_of", None)
    names = repeat(None, len(keys)) if names_of is None else names_of(keys)
    packed = method_of(dataset, "__windows__") is not None
    for key, name in zip(keys, names, strict=True):
        yield _documents(dataset.documents, key, name) if packed else (_source(dataset, key, name),)


def _documents(documents: Any, key: tuple[int, ...], names: Sequence[str] | None) -> tuple[SampleSource, ...]:
    """Returns the source of each document in a packed row. `key` is (document, begin, end, document, ...)."""
    parts = [key[at : at + 3] for at in range(0, len(key), 3)]
    return tuple(
        replace(_source(documents, document, name), begin=begin, end=end)
        for (document, begin, end), name in zip(parts, names or repeat(None, len(parts)), strict=True)
    )


def _source(dataset: Any, key: Any, name: str | None) -> SampleSource:
    inner, its = origin(dataset, key)
    return SampleSource(name, shown(inner), its)
