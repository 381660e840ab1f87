"""Decides, for each position of a mixture, which source gives the sample, and which of the source's samples it is.

The shares are exact in every prefix: after n positions of a stage, a source of weight w has given floor(n * w) or
ceil(n * w) samples. So sample j of the source must be at one of the positions floor(j / w) to ceil((j + 1) / w) - 1.
These positions are the sample's *window* (a term from Pfair scheduling). docs/decisions/0051-mixtures.md shows why
each page of positions can be scheduled independently, with every sample in its window.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.plan._blocks import Arrangement, BlockOrder
from penstock.plan._grouping import Grouping
from penstock.plan._order import ENDLESS, Permutations, _checked
from penstock.plan._seeds import hashes, mix
from penstock.plan._windows import Memo

UNIT = 1 << 60
"""The sum of a mixture's integer weights."""

Stop = Literal["never", "first", "all"]

_LEAF, _PAGE = 128, 4096  # positions
_EDGES, _PAGES = 256, 8  # kept in memory
_ROUNDS = 48
_EDGE, _SWAPS, _STAGE, _SOURCE = range(4)  # each use of randomness has its own key


def whole_weights(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Scales the weights to integers that sum to `UNIT`. A weight above 0 stays above 0.

    >>> [weight / UNIT for weight in whole_weights([Fraction(3), Fraction(0), Fraction(1)])]
    [0.75, 0.0, 0.25]
    """
    # With one denominator, because arithmetic with fractions takes ten times as long.
    common = lcm(*(weight.denominator for weight in weights))
    parts = [weight.numerator * (common // weight.denominator) for weight in weights]
    total = sum(parts)
    found = [max(part * UNIT // total, 1) if part else 0 for part in parts]
    by_remainder = sorted(range(len(found)), key=lambda i: (found[i] * total - parts[i] * UNIT, i))
    missing = UNIT - sum(found)
    for i in by_remainder[: max(0, missing)]:
        found[i] += 1
    if missing < 0:  # weights below 2**-60 were rounded up
        found[max(range(len(found)), key=found.__getitem__)] += missing
    return tuple(found)


class MixturePage(NamedTuple):
    """For each position in a range: the source, and how many samples this source has given before the position."""

    sources: NDArray[np.int64]
    counts: NDArray[np.int64]


class Schedule:
    """Chooses the source at each position. The weights are positive integers that sum to `UNIT`, and never change.

    Positions are divided into leaves. At the edge between two leaves, each source has given its exact share of the
    samples, rounded down or up. `_edge` chooses the sources that are rounded up, such that the leaves on both sides
    of the edge can be filled. The edges form a tree: an edge is higher in the tree if its number ends with more zero
    bits. The choice at an edge must fit the choices at the nearest higher edges on both sides.
    """

    def __init__(self, weights: Sequence[int], seed: int) -> None:
        self.weights, self.seed = weights, seed
        self.leaf = max(_LEAF, 1 << (16 * len(weights) - 1).bit_length())
        self.page = max(_PAGE, self.leaf)
        longest = max(UNIT // weight for weight in weights) + 2
        # Edges this far apart are independent, because no window contains two of them.
        self._apart = 1 << max(0, (-(-longest // self.leaf) - 1).bit_length())
        self._edges: Memo[list[int]] = Memo(_EDGES)
        self._pages: Memo[MixturePage] = Memo(_PAGES)

    def edge(self, number: int) -> list[int]:
        """Returns how many samples each source has given before leaf `number`."""
        return self._edges.get((number,), lambda: self._edge(number))

    def page_at(self, number: int) -> MixturePage:
        return self._pages.get((number,), lambda: self._page(number))

    def counts(self, position: int) -> list[int]:
        """Returns how many samples each source has given before this position."""
        number, places = divmod(position, self.page)
        base = self.edge(number * (self.page // self.leaf))
        if not places:
            return base
        inside = np.bincount(self.page_at(number).sources[:places], minlength=len(self.weights)).tolist()
        return [before + count for before, count in zip(base, inside, strict=True)]

    def _edge(self, number: int) -> list[int]:
        n = number * self.leaf
        counts, straddling = [], []
        for source, weight in enumerate(self.weights):
            done, rest = divmod(n * weight, UNIT)
            counts.append(done)
            if rest:
                due = -(-(done + 1) * UNIT // weight)
                straddling.append(Straddling(source, rest, done * UNIT // weight, due))
        if not straddling:
            return counts
        step, key = number & -number, mix(self.seed, _EDGE, n)
        if step >= self._apart:
            chosen = _rounded_up(straddling, n, n - UNIT, n + 2 * UNIT, set(), set(), key)
        else:
            before, after = self.edge(number - step), self.edge(number + step)
            taken = {s.source for s in straddling if before[s.source] > counts[s.source]}
            left = {s.source for s in straddling if after[s.source] <= counts[s.source]}
            reach = step * self.leaf
            chosen = _rounded_up(straddling, n, n - reach, n + reach, taken, left, key)
        for source in chosen:
            counts[source] += 1
        return counts

    def _page(self, number: int) -> MixturePage:
        leaves, n = self.page // self.leaf, number * self.page
        edges = [self.edge(number * leaves + i) for i in range(leaves + 1)]
        base = edges[0]
        inside = np.array([[c - b for c, b in zip(edge, base, strict=True)] for edge in edges], np.int64)
        given = np.diff(inside, axis=0).T  # by source and leaf
        totals = inside[-1]
        starts = totals.cumsum() - totals
        source = np.repeat(np.arange(len(base)), totals)
        rank = np.arange(self.page) - starts[source]
        released, due = self._windows(n, base, source, rank)
        leaf = np.repeat(np.tile(np.arange(leaves) * self.leaf, len(base)), given.ravel())
        earliest, latest = np.maximum(released, leaf), np.minimum(due, leaf + self.leaf)
        by_first = earliest.argsort(kind="stable")
        entries = (latest * self.page + np.arange(self.page))[by_first]
        placed = np.array(_by_entry(earliest[by_first].tolist(), entries.tolist())) % self.page
        _swap(placed, released, due, mix(self.seed, _SWAPS, number))
        sources = source[placed]
        counts = np.empty(self.page, np.int64)
        counts[sources.argsort(kind="stable")] = rank + np.array(base, np.int64)[source]
        return MixturePage(sources, counts)

    def _windows(
        self, n: int, base: Sequence[int], source: NDArray[np.int64], rank: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where each sample's window begins and ends, within the page that begins at position n.

        `source` has the source of each sample. `rank` has the sample's index in this source, counted from `base`.
        """
        done = [divmod(n * weight, UNIT) for weight in self.weights]
        ahead = np.array([before - count for before, (count, _) in zip(base, done, strict=True)])
        rest = np.array([rest for _, rest in done], np.int64)[source]
        weight = np.array(self.weights)[source]
        number = rank + ahead[source]
        released, _ = _divided(number, rest, weight)
        due, exact = _divided(number + 1, rest, weight)
        due += ~exact
        return released.clip(0), due.clip(None, self.page)


def _divided(
    number: NDArray[np.int64], rest: NDArray[np.int64], weight: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns (number * UNIT - rest) // weight, and whether the division is exact, for numbers below 2**20."""
    whole, less = UNIT // weight, rest // weight
    part, rest = UNIT - whole * weight, rest - less * weight
    # number * part needs more than 64 bits. The floats are wrong by less than 1, and the remainder, which needs 62
    # bits and so survives the overflow of the products, shows by how much.
    guess = np.floor((number.astype(np.float64) * part - rest) / weight).astype(np.int64)
    remainder = number * part - rest - guess * weight
    step = (remainder >= weight).astype(np.int64) - (remainder < 0)
    return number * whole - less + guess + step, remainder == step * weight


class Straddling(NamedTuple):
    """A sample whose window contains the edge between two leaves."""

    source: int
    rest: int  # the part of the sample that is due before the edge, times UNIT
    released: int
    due: int


def _rounded_up(
    straddling: Sequence[Straddling],
    n: int,
    before: int,
    after: int,
    taken: set[int],
    left: set[int],
    key: int,
) -> list[int]:
    """Chooses which of the straddling samples are placed before the edge at position n. Returns their sources.

    `before` and `after` are the positions of the nearest known edges on both sides of n. If a source is in `taken`,
    its sample comes before the edge `before`. If a source is in `left`, its sample comes after the edge `after`.
    """
    # This is a schedule of its own: the first m slots are before the edge, and the others after it. The slots where a
    # sample may be are chosen such that the leaves on both sides can be filled.
    size, m = len(straddling), sum([s.rest for s in straddling]) // UNIT
    first, stop = [0] * size, [size] * size
    by_release = sorted([(-s.released, i) for i, s in enumerate(straddling) if s.released > before], reverse=True)
    rests = sum([straddling[i].rest for _, i in by_release])
    last = None
    for released, i in by_release:  # the earliest first: `rests` is the sum over those released then or later
        if released != last:
            last, slot = released, max(0, m + -rests // UNIT)
        first[i] = slot
        rests -= straddling[i].rest
    by_due = sorted([(-s.due, i) for i, s in enumerate(straddling) if s.due < after])
    rests, last = sum([straddling[i].rest for _, i in by_due]), None
    for number, (due, i) in enumerate(by_due):  # the latest first
        if due != last:
            last, slot = due, min(size, m + len(by_due) - number - rests // UNIT)
        stop[i] = slot
        rests -= straddling[i].rest
    odds = []
    for i, s in enumerate(straddling):
        if s.source in taken:
            stop[i] = m
        elif s.source in left:
            first[i] = m
        odds.append((n - max(s.released, before)) / (min(s.due, after) - n))
    slots = _earliest_due(first, stop)
    _stir(slots, m, first, stop, odds, key)
    return [straddling[i].source for i in slots[:m]]


def _earliest_due(first: Sequence[int], stop: Sequence[int]) -> list[int]:
    """Assigns each job i to one of the slots `first[i]` to `stop[i] - 1`.

    Each slot takes the available job that is due first.
    """
    size = len(first)
    by_first = sorted(range(size), key=first.__getitem__)
    found = _by_entry([first[i] for i in by_first], [stop[i] * size + i for i in by_first])
    return [entry % size for entry in found]


def _by_entry(begins: list[int], entries: list[int]) -> list[int]:
    """Gives each slot the smallest unused entry that may be placed there.

    `entries[i]` may be placed in slot `begins[i]` or later. `begins` must be sorted. The list `begins` is modified.
    """
    size = len(begins)
    begins.append(size)
    ready: list[int] = []
    push, pop, exchange = heapq.heappush, heapq.heappop, heapq.heappushpop
    placed, at = [], 0
    for slot in range(size):
        if begins[at] > slot:
            placed.append(pop(ready))
            continue
        while begins[at + 1] <= slot:
            push(ready, entries[at])
            at += 1
        placed.append(exchange(ready, entries[at]))
        at += 1
    return placed


def _stir(
    slots: list[int], m: int, first: Sequence[int], stop: Sequence[int], odds: Sequence[float], key: int
) -> None:
    """Swaps jobs at random. The higher a job's odds, the more likely it is to end up in one of the first m slots."""
    size = len(slots)
    for number in hashes(key, np.arange(6 * size)).tolist():
        s, t = (number & 0xFFFFF) * size >> 20, (number >> 20 & 0xFFFFF) * size >> 20
        if s > t:
            s, t = t, s
        a, b = slots[s], slots[t]
        if stop[a] <= t or first[b] > s:
            continue
        crossing = s < m <= t
        one, other = (odds[a], odds[b]) if crossing else (1.0, 1.0)
        if (number >> 40) * (one + other) < other * (1 << 24):
            slots[s], slots[t] = b, a


def _swap(placed: NDArray[np.int64], released: NDArray[np.int64], due: NDArray[np.int64], key: int) -> None:
    """Swaps pairs of jobs at random distances, if both jobs stay inside their windows."""
    size, positions = len(placed), np.arange(len(placed))
    reach = min(int((due - released).max()), size // 2) - 1  # the largest distance
    coins = hashes(key, positions)
    for number in range(_ROUNDS if reach > 0 else 0):
        drawn = mix(key, number)
        low = 1 << drawn % reach.bit_length()
        # Every other round swaps neighbours, because jobs with short windows move by small steps only.
        distance = min(low + (drawn >> 8) % low, reach) if number % 2 else 1
        pairs = max(1, size // (2 * distance) - 1)
        phase = (drawn >> 32) % min(2 * distance, size - pairs * 2 * distance + 1)
        # Each stretch of `distance` positions is paired with the next stretch, so each position is in one pair.
        some = slice(phase, phase + pairs * 2 * distance)
        left, right = _paired(positions[some], distance)
        a, b = _paired(placed[some], distance)
        coin = _paired(coins[some], distance)[0] >> np.uint64(number) & np.uint64(1)
        fits = (due[a] > right) & (released[b] <= left) & (coin == 0)
        a[...], b[...] = np.where(fits, b, a), np.where(fits, a, b)


def _paired(array: NDArray[Any], distance: int) -> NDArray[Any]:
    """Cuts the array into stretches of length `distance`. Returns views of the even and the odd stretches."""
    return array.reshape(-1, 2, distance).transpose(1, 0, 2)


class Stage(NamedTuple):
    """The weights that apply from a position of an epoch until the next stage.

    `given` holds how many samples each source has given earlier in this epoch. An empty tuple stands for zeros.
    """

    epoch: int
    position: int
    weights: tuple[int, ...]  # of all sources, see `whole_weights`
    given: tuple[int, ...] = ()

    def fits(self, before: Stage) -> bool:
        """True if, between `before` and this stage, each source has given its share to within one sample."""
        same = before.epoch == self.epoch
        n = self.position - (before.position if same else 0)
        nothing = (0,) * len(self.weights)
        base, given = (before.given if same else ()) or nothing, self.given or nothing
        if len({*map(len, (self.weights, before.weights, base, given))}) > 1 or sum(given) - sum(base) != n:
            return False
        columns = zip(given, base, before.weights, strict=True)
        return all(n * w // UNIT <= count - first <= -(-n * w // UNIT) for count, first, w in columns)


class Stretch(NamedTuple):
    """Consecutive positions of an epoch with the same weights, beginning at `begin`."""

    begin: int
    base: NDArray[np.int64]  # how many samples each source has given before
    weights: tuple[int, ...]

    @property
    def active(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.weights)


Arranged = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class MixtureOrder:
    """The order of a mixture. Each key stands for a source, a pass over this source, and a sample.

    `lengths` has the number of samples of each source. With `shuffle`, each pass over a source has its own random
    order. A source that has an entry in `blocks` is shuffled by blocks. The seed of a source depends on the source's
    number in `labels` (by default 0, 1, 2 and so on). `stop` says whether an epoch ends once the first source has
    given all of its samples, once all sources have given all of theirs, or never. (Sources with weight 0 do not
    count.)

    >>> order = MixtureOrder((3, 2), (Stage(0, 0, whole_weights([Fraction(3), Fraction(1)])),), seed=1)
    >>> order.counts(epoch=0, position=8).tolist()
    [6, 2]
    >>> sorted(order.at(0, np.arange(8)).tolist())  # the first pass, and from 5 on the second
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    lengths: tuple[int, ...]
    stages: tuple[Stage, ...]
    seed: int
    stop: Stop = "never"
    shuffle: bool = True
    blocks: tuple[Grouping | None, ...] = ()
    window: int = 16
    labels: tuple[int, ...] = ()
    # Shared by the orders that `reweighed` returns: the blocks of 500 sources take a tenth of a second to arrange.
    arrangements: Memo[Arranged] | None = field(default=None, compare=False, repr=False)
    _stretches: Memo[list[Stretch]] = field(default_factory=lambda: Memo(2), init=False, compare=False, repr=False)
    _schedules: Memo[Schedule] = field(default_factory=lambda: Memo(8), init=False, compare=False, repr=False)
    _sizes: Memo[int] = field(default_factory=lambda: Memo(4), init=False, compare=False, repr=False)
    _permutations: Permutations = field(init=False, compare=False, repr=False)
    _keys: Memo[NDArray[np.uint64]] = field(default_factory=lambda: Memo(2), init=False, compare=False, repr=False)
    _lengths: NDArray[np.int64] = field(init=False, compare=False, repr=False)
    _offsets: NDArray[np.int64] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        lengths = np.array(self.lengths, np.int64)
        object.__setattr__(self, "_lengths", lengths.clip(1))
        object.__setattr__(self, "_offsets", lengths.cumsum() - lengths)
        if self.arrangements is None:
            object.__setattr__(self, "arrangements", Memo(2 * len(self.lengths)))
        object.__setattr__(self, "_permutations", Permutations(self.lengths))

    def reweighed(self, epoch: int, position: int, weights: tuple[int, ...]) -> MixtureOrder:
        """Returns the order with these weights from a position on. Later stages are dropped."""
        kept = [stage for stage in self.stages if stage[:2] < (epoch, position)]
        given = tuple(self.counts(epoch, position).tolist()) if position else ()
        return replace(self, stages=(*kept, Stage(epoch, position, weights, given)))

    @property
    def identity(self) -> str:
        """Identifies the order in a resume state. The sources and weights are in the mixture's own state."""
        return f"stop={self.stop}, shuffle={self.shuffle}, window={self.window}"

    def size(self, epoch: int) -> int:
        return ENDLESS if self.stop == "never" else self._sizes.get((epoch,), lambda: self._end(epoch))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        sources, counts = self.given(epoch, positions)
        passes, index = np.divmod(counts, self._lengths[sources])
        total = int(self._offsets[-1]) + self.lengths[-1]
        if passes.size and (most := int(passes.max())) > ENDLESS // total:
            raise OverflowError(
                f"pass {most:,} over source {int(sources[passes.argmax()])} has keys beyond 2**62, because all "
                f"sources together have {total:,} samples. Give this source, which has few samples, less weight."
            )
        if self.shuffle:
            index = self._shuffled(epoch, sources, passes, index)
        keys: NDArray[np.int64] = passes * total + self._offsets[sources] + index
        return keys

    def given(self, epoch: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the source at each position, and how many samples this source has given before."""
        positions = _checked(positions, self.size(epoch))
        sources, counts = np.empty_like(positions), np.empty_like(positions)
        stretches = self._of(epoch)
        numbers = np.searchsorted([stretch.begin for stretch in stretches], positions, "right") - 1
        for number in _distinct(numbers):
            begin, base, _ = stretches[number]
            active, schedule = stretches[number].active, self._schedule(epoch, stretches[number])
            of_stretch = np.flatnonzero(numbers == number)
            pages, places = np.divmod(positions[of_stretch] - begin, schedule.page)
            for page in _distinct(pages):
                here = pages == page
                of_page, found = of_stretch[here], schedule.page_at(page)
                which = active[found.sources[places[here]]]
                sources[of_page] = which
                counts[of_page] = found.counts[places[here]] + base[which]
        return sources, counts

    def counts(self, epoch: int, position: int) -> NDArray[np.int64]:
        """Returns how many samples each source has given before this position."""
        if not 0 <= position <= self.size(epoch):
            raise IndexError(f"position {position} is outside epoch {epoch}, which has {self.size(epoch)} samples.")
        stretches = self._of(epoch)
        number = bisect_right([stretch.begin for stretch in stretches], position) - 1
        return self._counts(epoch, stretches[number], position)

    def _shuffled(
        self, epoch: int, sources: NDArray[np.int64], passes: NDArray[np.int64], index: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        keys = self._keys.get((epoch,), lambda: self._keys_of(epoch))[sources]
        keys = hashes(_SOURCE, keys ^ hashes(_STAGE, passes))  # type: ignore[arg-type]  # any 64 bits
        grouped = [source for source, blocks in enumerate(self.blocks) if blocks is not None]
        if not grouped:
            return self._permutations.at(sources, keys, index)
        by_block = np.isin(sources, grouped)
        single = ~by_block
        index[single] = self._permutations.at(sources[single], keys[single], index[single])
        for source, number in {*zip(sources[by_block].tolist(), passes[by_block].tolist(), strict=True)}:
            here = (sources == source) & (passes == number)
            index[here] = self._arrangement(epoch, source, number)(index[here])
        return index

    def _keys_of(self, epoch: int) -> NDArray[np.uint64]:
        labels = np.array(self.labels or range(len(self.lengths)), np.uint64)
        return hashes(mix(self.seed, _SOURCE, epoch), labels)  # type: ignore[arg-type]  # any 64 bits

    def _arrangement(self, epoch: int, source: int, number: int) -> Arranged:
        def make() -> Arranged:
            grouping = self.blocks[source]
            assert grouping is not None
            found = Arrangement(
                BlockOrder(
                    grouping.edges,
                    self.window,
                    mix(self.seed, _SOURCE, epoch, (self.labels or range(len(self.lengths)))[source]),
                ),
                number,
            )
            keys = grouping.keys
            return found.keys if keys is None else lambda places: keys[found.keys(places)]

        assert self.arrangements is not None
        return self.arrangements.get((epoch, source, number), make)

    def _of(self, epoch: int) -> list[Stretch]:
        return self._stretches.get((epoch,), lambda: self._made(epoch))

    def _made(self, epoch: int) -> list[Stretch]:
        before = [stage for stage in self.stages if (stage.epoch, stage.position) <= (epoch, 0)]
        nothing = np.zeros(len(self.lengths), np.int64)
        found = [Stretch(0, nothing, before[-1].weights)]
        for number, begin, weights, given in self.stages:
            if number == epoch and begin > 0:
                found.append(Stretch(begin, np.array(given, np.int64), weights))
        return found

    def _schedule(self, epoch: int, stretch: Stretch) -> Schedule:
        begin, _, weights = stretch
        seed = mix(self.seed, _STAGE, epoch, begin)
        return self._schedules.get((epoch, begin, *weights), lambda: Schedule([w for w in weights if w], seed))

    def _counts(self, epoch: int, stretch: Stretch, position: int) -> NDArray[np.int64]:
        """Returns how many samples each source has given before this position, which must be in the stretch."""
        counts = stretch.base.copy()
        counts[stretch.active] += self._schedule(epoch, stretch).counts(position - stretch.begin)
        return counts

    def _end(self, epoch: int) -> int:
        """Returns the size of an epoch, for a mixture that is not endless."""
        stretches = self._of(epoch)
        ended = (at for at, after in pairwise(stretches) if self._ends_by(at.active, after.base))
        stretch = next(ended, stretches[-1])
        return min(stretch.begin + self._needed(epoch, stretch), ENDLESS)

    def _ends_by(self, active: NDArray[np.int64], counts: NDArray[np.int64]) -> bool:
        """True if an epoch with the sources `active` has ended once each source has given `counts` samples."""
        done = counts[active] >= self._lengths[active]
        return bool(done.any() if self.stop == "first" else done.all())

    def _needed(self, epoch: int, stretch: Stretch) -> int:
        """Returns how many positions of a stretch are needed until the epoch ends (see `stop`)."""
        schedule, active = self._schedule(epoch, stretch), stretch.active
        base = stretch.base[active]
        missing = (self._lengths[active] - base).clip(0).tolist()

        def ends_by(counts: Sequence[int]) -> bool:
            whole = stretch.base.copy()
            whole[active] += counts
            return self._ends_by(active, whole)

        choose = min if self.stop == "first" else max
        # Of each source, the release of the last sample that is missing, and the end of its window.
        windows = zip(missing, schedule.weights, strict=True)
        bounds = [((most - 1) * UNIT // w, -(-most * UNIT // w)) if most else (0, 0) for most, w in windows]
        low, high = (min(choose(ends), ENDLESS) for ends in zip(*bounds, strict=True))
        size, leaves = schedule.page, schedule.page // schedule.leaf
        page = _first(low // size, high // size + 1, lambda number: ends_by(schedule.edge(number * leaves)))
        low, high = max(low, (page - 1) * size), min(high, page * size)
        return _first(low, high, lambda position: ends_by(schedule.counts(position)))


@dataclass(frozen=True)
class EqualEpochs:
    """An endless mixture's order, cut into epochs of n samples. Each epoch continues where the previous one ended.

    >>> endless = MixtureOrder((3, 2), (Stage(0, 0, whole_weights([Fraction(1), Fraction(1)])),), seed=1)
    >>> epochs = EqualEpochs(endless, 4)
    >>> bool((epochs.at(1, np.arange(4)) == endless.at(0, np.arange(4, 8))).all())
    True
    """

    order: MixtureOrder
    n: int

    @property
    def identity(self) -> str:
        return f"{self.order.identity}, epochs of {self.n}"

    def reweighed(self, epoch: int, position: int, weights: tuple[int, ...]) -> EqualEpochs:
        """Returns the order with these weights from a position on. Later stages are dropped."""
        return replace(self, order=self.order.reweighed(0, self._begin(epoch) + position, weights))

    def size(self, epoch: int) -> int:
        return self.n

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.order.at(0, _checked(positions, self.n) + self._begin(epoch))

    def counts(self, epoch: int, position: int) -> NDArray[np.int64]:
        """Returns how many samples each source has given in earlier epochs, and in this epoch before `position`."""
        if not 0 <= position <= self.n:
            raise IndexError(f"position {position} is outside epoch {epoch}, which has {self.n} samples.")
        return self.order.counts(0, self._begin(epoch) + position)

    def _begin(self, epoch: int) -> int:
        begin = epoch * self.n
        if begin > ENDLESS - self.n:
            raise OverflowError(f"epoch {epoch:,} of {self.n:,} samples each is beyond 2**62 samples.")
        return begin


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Returns the first number in low..high-1 for which `holds` is True, or else `high`. `holds` must be monotone."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _distinct(numbers: NDArray[np.int64]) -> list[int]:
    """Returns the numbers without duplicates. Skips the sort in the usual case, where all are equal."""
    if not numbers.size:
        return []
    low, high = int(numbers.min()), int(numbers.max())
    return [low] if low == high else np.unique(numbers).tolist()
