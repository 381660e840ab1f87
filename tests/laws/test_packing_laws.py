"""Laws of packing: each token once, no row over its capacity, and the same rows for any ranks and batches."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.plan import Sequential, Shuffled
from penstock.plan._budget import LengthTable
from penstock.plan._order import Passes
from penstock.plan._packing import (
    PackingFigures,
    PackWindows,
    best_fit,
    best_fit_by_kinds,
    most_in_a_row,
    next_fit,
    repeated_in,
    spread,
)
from penstock.plan._windows import ItemKey, WindowPlan
from penstock.source._packing import PackedRows

law = settings(deadline=None)

LENGTHS = st.one_of(
    st.lists(st.integers(0, 40), max_size=80),
    st.lists(st.sampled_from([0, 1, 2, 15, 16, 17, 200]), max_size=60),
    st.integers(0, 80).map(lambda n: [7] * n),
    st.integers(0, 9).map(lambda seed: np.random.default_rng(seed).pareto(1.1, 60).astype(int).tolist()),
)


@st.composite
def windows(draw: st.DrawFn, overflow: str | None = None) -> PackWindows:
    lengths = draw(LENGTHS)
    n, seed = len(lengths), draw(st.none() | st.integers(0, 9))
    return PackWindows(
        Sequential(n) if seed is None else Shuffled(n, seed),
        (LengthTable(np.array(lengths, np.int64)),),
        (draw(st.integers(1, 24)),),
        draw(st.sampled_from(["best_fit", "concat"])),
        overflow or draw(st.sampled_from(["split", "truncate", "drop"])),
        extra=draw(st.integers(0, 1)),
        window=draw(st.integers(1, 90)),
        seed=seed,
    )


def parts(row: ItemKey) -> list[tuple[int, int, int]]:
    return list(zip(row[::3], row[1::3], row[2::3], strict=True))


def rows(plan: WindowPlan, first: int = 0, last: int | None = None) -> Iterator[ItemKey]:
    """The rows of these steps of all ranks, in their order."""
    ranks = [replace(plan, rank=rank).draw(0, first) for rank in range(plan.world)]
    for _ in range(first, 1 << 30 if last is None else last):
        step = [next(each, []) for each in ranks]
        if not any(step):
            return
        yield from (row for keys in step for row in keys)


def whole(packed: PackWindows, key: int) -> int:
    """The length of a document with the tokens that are appended to it."""
    length = int(packed.lengths[0].numbers[key])
    return length and length + packed.extra


def total(packed: PackWindows) -> PackingFigures:
    found = PackingFigures()
    for number in range(packed.count(0) or 0):
        found = found.plus(packed.figures(0, number))
    return found


@law
@given(packed=windows("split"))
def test_each_token_of_each_document_comes_once_when_documents_are_split(packed: PackWindows) -> None:
    found: dict[int, list[tuple[int, int]]] = {}
    for row in rows(WindowPlan(packed)):
        for key, begin, end in parts(row):
            found.setdefault(key, []).append((begin, end))
    for key in range(len(packed.lengths[0])):
        at = 0
        for begin, end in sorted(found.pop(key, [])):
            assert at == begin < end
            at = end
        assert at == whole(packed, key)
    assert not found


@law
@given(packed=windows())
def test_no_row_is_empty_or_over_its_capacity_and_figures_count_what_is_in_rows(packed: PackWindows) -> None:
    sizes, seen = [], Counter[int]()
    for row in rows(WindowPlan(packed)):
        sizes.append(sum(end - begin for _, begin, end in parts(row)))
        seen.update(key for key, _, _ in parts(row))
    capacity, keys = packed.capacities[0], range(len(packed.lengths[0]))
    assert all(0 < size <= capacity for size in sizes)
    lengths = [whole(packed, key) for key in keys]
    long = [length for length in lengths if length > capacity]
    figures = total(packed)
    assert (figures.rows, figures.tokens, figures.documents) == (len(sizes), sum(sizes), len(lengths))
    assert figures.tokens + figures.padding == figures.rows * capacity
    assert figures.empty == lengths.count(0)
    truncates, drops = packed.overflow == "truncate", packed.overflow == "drop"
    assert (figures.truncated, figures.truncated_tokens) == (
        (len(long), sum(long) - capacity * len(long)) if truncates else (0, 0)
    )
    assert (figures.dropped, figures.dropped_tokens) == ((len(long), sum(long)) if drops else (0, 0))
    cut = [key for key, times in seen.items() if times > 1]
    assert (figures.split, figures.split_tokens) == (len(cut), sum(lengths[key] for key in cut))
    if packed.overflow != "split":
        left = figures.documents - figures.empty - figures.dropped
        assert seen == Counter(key for key in keys if lengths[key] and not (drops and lengths[key] > capacity))
        assert left == len(seen)


@law
@given(packed=windows(), world=st.integers(1, 5), size=st.integers(1, 7), data=st.data())
def test_the_rows_are_the_same_for_any_ranks_and_batches_and_after_a_stop_anywhere(
    packed: PackWindows, world: int, size: int, data: st.DataObject
) -> None:
    inline = list(rows(WindowPlan(packed)))
    plan, done, seen = WindowPlan(packed, size, world=world), 0, list[ItemKey]()
    for _ in range(2):
        last = data.draw(st.integers(done, done + 4))
        some = list(rows(plan, done, last))
        seen += some
        if len(seen) == len(inline):
            break
        where = plan.consumed(0, last)
        plan = replace(
            plan,
            batch_size=data.draw(st.integers(1, 7)),
            world=data.draw(st.integers(1, 5)),
            start=where,
            first_step=last,
        )
        done = last
    else:
        seen += list(rows(plan, done))
    assert seen == inline
    assert pickle.loads(pickle.dumps(packed)) == packed


@law
@given(packed=windows())
def test_rows_keep_the_order_of_the_documents_without_a_seed_and_parts_do_in_each_row(packed: PackWindows) -> None:
    for number in range(packed.count(0) or 0):
        first = number * packed.window
        stop = min(first + packed.window, len(packed.lengths[0]))
        place = {key: at for at, key in enumerate(packed.order.at(0, np.arange(first, stop)).tolist())}
        offsets, found = packed.table(0, number)
        places = [(place[key], begin) for key, begin, _ in found.tolist()]
        edges = offsets.tolist()
        for a, b in pairwise(edges):
            assert places[a:b] == sorted(places[a:b])
        if packed.seed is None:
            assert [places[a] for a in edges[:-1]] == sorted(places[a] for a in edges[:-1])


def test_rows_are_shuffled_and_packed_anew_in_each_epoch() -> None:
    lengths = LengthTable(np.random.default_rng(0).integers(1, 60, 500))
    packed = PackWindows(Shuffled(500, 1), (lengths,), (64,), window=200, seed=1)

    def neighbours(epoch: int) -> set[frozenset[int]]:
        return {frozenset(key for key, _, _ in parts(row)) for row in WindowPlan(packed, 10**6).keys(epoch, 0)}

    first, second = neighbours(0), neighbours(1)
    assert len(first & second) < len(first) / 4
    firsts = [row[0] for row in WindowPlan(packed, 10**6).keys(0, 0)]
    places = {key: at for at, key in enumerate(Shuffled(500, 1).at(0, np.arange(500)).tolist())}
    assert [places[key] for key in firsts] != sorted(places[key] for key in firsts)


def test_rows_are_in_another_order_in_each_epoch_and_window() -> None:
    packed = PackWindows(Sequential(200), (LengthTable(np.full(200, 3)),), (3,), window=100, seed=1)
    orders = [
        tuple((packed.table(epoch, number).parts[:, 0] % 100).tolist()) for epoch in (0, 1) for number in (0, 1)
    ]
    assert len(set(orders)) == 4


# Best fit.


@law
@given(packed=windows(), size=st.integers(1, 4))
def test_a_forecast_has_each_document_once_where_the_first_row_needs_it(packed: PackWindows, size: int) -> None:
    plan, n = WindowPlan(packed, size, order=packed.order), packed.order.size(0)
    upcoming = plan.upcoming(0)
    forecast = upcoming.order.at(0, np.arange(n)).tolist()
    assert sorted(forecast) == list(range(n))
    needed: set[int] = set()
    for step, keys in enumerate(plan.draw(0)):
        needed |= {document for row in keys for document, _, _ in parts(row)}
        reached, window = upcoming.reached(step + 1), packed.window
        assert needed <= {*forecast[:reached]}
        # Documents that are in no row are passed at the end of their window.
        assert reached == n or {*forecast[reached // window * window : reached]} <= needed
    assert upcoming.reached(plan.steps(0) or 0) == n


def one_by_one(sizes: list[int], capacity: int) -> int:
    """Plain best fit decreasing: the number of rows."""
    free: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [at for at, space in enumerate(free) if space >= size]
        if not fitting:
            free.append(capacity)
            fitting = [len(free) - 1]
        free[min(fitting, key=free.__getitem__)] -= size
    return len(free)


@law
@given(st.integers(1, 60).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=100))))
def test_best_fit_in_bulk_needs_the_rows_of_plain_best_fit_decreasing(case: tuple[int, list[int]]) -> None:
    capacity, sizes = case
    found, count = best_fit(np.array(sizes, np.int64), capacity)
    assert count == one_by_one(sizes, capacity)
    assert np.bincount(found, sizes, count).max(initial=0) <= capacity
    assert set(found.tolist()) == set(range(count))


@law
@given(st.integers(1, 9), st.integers(0, 200), st.integers(1 << 16, 1 << 40))
def test_best_fit_takes_capacities_of_any_size(seed: int, n: int, capacity: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, capacity + 1, n)
    found, count = best_fit(sizes, capacity)
    loads = [sum(sizes[found == row].tolist()) for row in range(count)]
    assert max(loads, default=0) <= capacity
    assert count == one_by_one(sizes.tolist(), capacity)


KINDS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=60)


@law
@given(KINDS, st.sampled_from(["best_fit", "concat"]))
def test_rows_keep_within_all_kinds_of_cost(pairs: list[tuple[int, int]], method: str) -> None:
    sizes = np.array([*pairs], np.int64).reshape(-1, 2)
    found, count = (next_fit if method == "concat" else best_fit_by_kinds)(sizes, (20, 4))
    for kind, capacity in enumerate((20, 4)):
        assert np.bincount(found, sizes[:, kind], count).max(initial=0) <= capacity
    assert set(found.tolist()) == set(range(count))
    if method == "best_fit" and count:
        lower = max(-(-sizes[:, 0].sum() // 20), -(-sizes[:, 1].sum() // 4))
        assert count <= 3 * max(lower, 1)  # any-fit in two dimensions


@law
@given(st.integers(1, 60).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c), max_size=100))))
def test_one_kind_of_cost_is_packed_as_well_by_the_heuristic_for_several(case: tuple[int, list[int]]) -> None:
    capacity, sizes = case
    _, count = best_fit_by_kinds(np.array(sizes, np.int64).reshape(-1, 1), (capacity,))
    assert count == one_by_one(sizes, capacity)


# Copies of a document, from several passes over a small source.


def least_repeated(rows: list[int], documents: list[int]) -> int:
    """The least number of copies that are in a row with another: the rest is the largest flow into the rows."""
    copies, room = (sorted(Counter(each).values()) for each in (documents, rows))
    cuts = [
        sum(copies[: len(copies) - a]) + sum(room[:b]) + a * (len(room) - b)
        for a in range(len(copies) + 1)
        for b in range(len(room) + 1)
    ]
    return len(rows) - min(cuts)


@law
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 2), st.integers(0, 1)), max_size=24))
def test_exchanges_leave_as_few_copies_in_one_row_as_possible(pieces: list[tuple[int, int, int, int]]) -> None:
    rows, names, *kinds = np.array([*pieces], np.int64).reshape(-1, 4).T
    sizes = np.stack(kinds, axis=1)
    documents = names * 10 + sizes[:, 0] * 3 + sizes[:, 1]  # copies have equal sizes
    found = spread(rows, documents, sizes)
    classes = [np.flatnonzero((sizes == size).all(axis=1)) for size in np.unique(sizes, axis=0)]
    for each in classes:
        assert sorted(found[each]) == sorted(rows[each])
    assert repeated_in(found, documents) == sum(
        least_repeated(rows[each].tolist(), documents[each].tolist()) for each in classes
    )


@law
@given(lengths=LENGTHS.filter(any), data=st.data())
def test_copies_of_a_document_in_one_row_are_counted_and_cost_no_row(lengths: list[int], data: st.DataObject) -> None:
    capacity, method = data.draw(st.integers(1, 24)), data.draw(st.sampled_from(["best_fit", "concat"]))
    overflow = data.draw(st.sampled_from(["split", "truncate"]))
    n, window = len(lengths), data.draw(st.integers(1, 200))
    packed = PackWindows(
        Passes(n, data.draw(st.none() | st.integers(0, 9))),
        (LengthTable(np.array(lengths, np.int64)),),
        (capacity,),
        method,
        overflow,
        window=window,
    )
    for number in range(3):
        offsets, found = packed.table(0, number)
        rows = [found[a:b] for a, b in pairwise(offsets.tolist())]
        again = sum(len(row) - len({*(row[:, 0] % n).tolist()}) for row in rows)
        figures = packed.figures(0, number)
        assert figures.repeated == again
        sizes = found[:, 2] - found[:, 1]
        assert sizes.sum() == figures.tokens and all((row[:, 2] - row[:, 1]).sum() <= capacity for row in rows)
        if method == "best_fit":
            least = one_by_one(sizes.tolist(), capacity)
            assert len(rows) <= least + least // 100


@law
@given(st.dictionaries(st.integers(0, 9), st.integers(1, 9), min_size=1), st.integers(9, 40), st.data())
def test_limits_for_a_row_part_all_copies(lengths: dict[int, int], capacity: int, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(list(lengths.items())), min_size=1, max_size=60))
    documents, sizes = np.array(pieces, np.int64).T
    rows, count = best_fit(sizes, capacity, most_in_a_row(sizes, documents))
    found = spread(rows, documents, sizes[:, np.newaxis])
    assert repeated_in(found, documents) == 0
    assert set(found.tolist()) == set(range(count))
    assert np.bincount(found, sizes, count).max() <= capacity


def test_a_small_source_is_in_many_rows_and_never_twice_in_one() -> None:
    random = np.random.default_rng(0)
    sources = {
        name: penstock.dataset([[1] * length for length in random.integers(5, most, n)]).with_lengths(len)
        for name, n, most in (("web", 4820, 400), ("task", 200, 60))
    }
    rows = penstock.pack(penstock.mix(sources, {"web": 0.9, "task": 0.1}), length=512, window=4000)
    loader: Any = penstock.DataLoader(rows, batch_size=16, seed=1)
    for batch in islice(loader, 8):
        for row in batch["documents"] % 5020:
            each = [key for key, before in zip(row.tolist(), [-2, *row.tolist()], strict=False) if key != before]
            assert len(each) == len({*each})
    assert loader.stats().packing.repeated == 0


# Rows.


@st.composite
def packed_rows(draw: st.DrawFn) -> PackedRows:
    lengths = draw(LENGTHS)
    ends = np.cumsum([0, *lengths]).tolist()
    documents: Any = [np.arange(a + 1, b + 1) for a, b in pairwise(ends)]
    if draw(st.booleans()):
        documents = [{"id": 5, "input_ids": each.tolist(), "loss_mask": each % 3 == 0} for each in documents]
    return penstock.pack(
        documents,
        draw(st.integers(1, 24)),
        lengths,
        method=draw(st.sampled_from(["best_fit", "concat"])),
        overflow=draw(st.sampled_from(["split", "truncate", "drop"])),
        window=draw(st.integers(1, 90)),
        eos=draw(st.sampled_from([None, 0])),
    )


@law
@given(packed=packed_rows())
def test_a_row_has_what_its_parts_say_and_padding_at_its_end(packed: PackedRows) -> None:
    for number, row in enumerate(packed):
        at = 0
        for segment, (key, begin, end) in enumerate(packed.parts_of(number), 1):
            document = packed.documents[key]
            tokens = document["input_ids"] if isinstance(document, dict) else document.tolist()
            own = [*tokens, 0][begin:end] if packed.how.eos is not None else list(tokens)[begin:end]
            here = slice(at, at + end - begin)
            assert row["tokens"][here].tolist() == own
            assert row["positions"][here].tolist() == list(range(end - begin))
            assert set(row["segments"][here].tolist()) == {segment}
            assert set(row["documents"][here].tolist()) == {key}
            if isinstance(document, dict):
                mask = document["loss_mask"].tolist()
                assert row["loss_mask"][here].tolist() == [*mask, mask[-1]][begin:end]
            at += end - begin
        assert all(len(values) == packed.how.capacities[0] for values in row.values())
        assert not row["tokens"][at:].any() and not row["segments"][at:].any() and not row["positions"][at:].any()
        assert (row["documents"][at:] == -1).all()
        assert "id" not in row


@law
@given(packed=packed_rows(), data=st.data())
def test_rows_are_the_same_one_by_one_together_and_gathered(packed: PackedRows, data: st.DataObject) -> None:
    n = len(packed)
    if not n:
        return
    keys: list[Any] = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    items = [tuple(number for part in packed.parts_of(key) for number in part) for key in keys]
    single = [packed[key] for key in keys]
    together = packed.__getitems__(items)
    gathered = packed.__gather__(items, np.empty)
    for at, row in enumerate(single):
        assert row.keys() == together[at].keys() == gathered.keys()
        for name, values in row.items():
            assert values.dtype == together[at][name].dtype == gathered[name].dtype
            assert np.array_equal(values, together[at][name]) and np.array_equal(values, gathered[name][at])


@law
@given(packed=packed_rows())
def test_cu_seqlens_are_the_parts_and_the_padding_of_each_row(packed: PackedRows) -> None:
    batch = [row["segments"] for row in islice(packed, 4)]
    expected, at = [0], 0
    for number, _ in enumerate(batch):
        length = packed.how.capacities[0]
        for _, begin, end in packed.parts_of(number):
            expected.append(expected[-1] + end - begin)
        at += length
        if expected[-1] < at:
            expected.append(at)
    edges, longest = penstock.cu_seqlens(np.array(batch, np.int32).reshape(len(batch), packed.how.capacities[0]))
    assert edges.tolist() == expected and edges.dtype == np.int32
    assert longest == max(np.diff(expected), default=0)


# Loaders.


def loader(packed: PackedRows, **options: Any) -> penstock.DataLoader[Any]:
    return penstock.DataLoader(packed, shuffle=True, seed=5, last_batch="keep", **options)


def tokens_of(packed: PackedRows, batches: list[Any]) -> Counter[tuple[int, int]]:
    """Counts (document, token) in these batches. Each token of a document differs from the others."""
    found: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        real = batch["segments"] > 0
        found.update(zip(batch["documents"][real].tolist(), batch["tokens"][real].tolist(), strict=True))
    return found


@settings(deadline=None, max_examples=30)
@given(packed=packed_rows(), data=st.data())
def test_a_loader_stopped_anywhere_continues_on_any_ranks_with_each_token_once(
    packed: PackedRows, data: st.DataObject
) -> None:
    world, other, size = (data.draw(st.integers(1, 4)) for _ in range(3))
    whole = list(loader(packed, batch_size=size))
    done = data.draw(st.integers(0, -(-len(whole) // world)))
    seen, states = [], []
    for rank in range(world):
        with loader(packed, batch_size=size, shard=(rank, world)) as one:
            seen += list(islice(one, done))
            states.append(one.state_dict())
    for rank in range(other):
        with loader(packed, batch_size=size, shard=(rank, other)) as one:
            one.load_state_dict(states[0])
            seen += list(one) if done * world < len(whole) else []
    assert tokens_of(packed, seen) == tokens_of(packed, whole)
    with loader(packed, batch_size=size) as one:
        assert len(one) == len(whole)


@settings(deadline=None, max_examples=30)
@given(packed=packed_rows(), size=st.integers(1, 4), data=st.data())
def test_a_loader_gives_the_same_batches_after_a_resume_at_any_step(
    packed: PackedRows, size: int, data: st.DataObject
) -> None:
    with loader(packed, batch_size=size) as one:
        stop = data.draw(st.integers(0, len(one)))
        batches = iter(one)
        begun = list(islice(batches, stop))
        state = one.state_dict()
        rest = list(batches)
    with loader(packed, batch_size=size) as other:
        other.load_state_dict(state)
        again = list(other) if rest else []
    assert len(begun) == stop
    assert len(again) == len(rest)
    for ours, theirs in zip(again, rest, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_worker_processes_give_the_batches_of_the_inline_loader() -> None:
    lengths = np.random.default_rng(0).integers(0, 50, 300)
    packed = penstock.pack([np.arange(n) for n in lengths], 64, lengths, window=100)
    with loader(packed, batch_size=4) as inline, loader(packed, batch_size=4, num_workers=2) as workers:
        for _ in range(2):
            for ours, theirs in zip(inline, workers, strict=True):
                assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


class Drawn(penstock.Dataset[Any]):
    """Documents of random tokens, drawn one by one or together."""

    def __init__(self, lengths: list[int], together: bool) -> None:
        self.lengths, self.together = lengths, together

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, key: int) -> Any:
        return penstock.rng().integers(1, 1 << 30, self.lengths[key])

    @property
    def __getitems__(self) -> Any:
        if not self.together:
            raise AttributeError
        return lambda keys: [self[key] for key in penstock.each(keys)]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.booleans(), st.integers(1, 5), st.booleans())
def test_the_random_numbers_of_a_document_are_those_that_it_has_without_packing(
    lengths: list[int], together: bool, size: int, concat: bool
) -> None:
    documents = Drawn(lengths, together)
    inner = penstock.dataset(documents).concat(Drawn([], together)) if concat else documents
    with penstock.DataLoader(inner, batch_size=1, seed=5, collate_fn=lambda samples: samples[0]) as plain:
        expected = {key: tokens.tolist() for key, tokens in enumerate(plain)}
    found: dict[int, list[tuple[int, list[int]]]] = {}
    packed = penstock.pack(inner, 16, lengths)
    seeded = penstock.DataLoader(packed, batch_size=size, shuffle=False, seed=5)
    for number, row in enumerate(row for batch in seeded for row in batch["tokens"]):
        at = 0
        for key, begin, end in packed.parts_of(number):
            found.setdefault(key, []).append((begin, row[at : at + end - begin].tolist()))
            at += end - begin
    for key, tokens in expected.items():
        assert [token for _, part in sorted(found.get(key, [])) for token in part] == tokens


# Documents that are opened in bulk.


@st.composite
def documents(draw: st.DrawFn) -> list[Any]:
    """Documents that are alike but for a few, with fields of one element per token, of others, and without arrays."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    dtype, named = draw(st.sampled_from(["uint16", "int32", "int64"])), draw(st.booleans())
    others: dict[str, Any] = {
        "mask": lambda n: np.arange(n) % 2 == 0,
        "logits": lambda n: np.full((n, 2), n, np.float32),
        "image": lambda n: np.zeros((3, 2)),
        "id": lambda n: np.int64(n),
        "one": lambda n: np.array([n]),
        "text": lambda n: "x" * n,
        "list": lambda n: [n] * n,
        "segments": lambda n: np.zeros(2),
    }
    fields = draw(st.lists(st.sampled_from(sorted(others)), unique=True, max_size=3))
    strange = draw(st.sets(st.integers(0, 11), max_size=1))
    found: list[Any] = []
    for key, n in enumerate(lengths):
        ids: Any = np.arange(n).astype("int8" if key in strange and draw(st.booleans()) else dtype)
        sample = {"input_ids": ids, **{name: others[name](n) for name in fields}}
        if key in strange:
            sample = draw(
                st.sampled_from([sample, dict(reversed(sample.items())), {"input_ids": ids}, {**sample, "more": ids}])
            )
        found.append(sample if named else ids)
    return found


def lengths_of(found: list[Any]) -> list[int]:
    return [len(each["input_ids"] if isinstance(each, dict) else each) for each in found]


def outcome(make: Any) -> Any:
    try:
        batch = make()
    except Exception as error:
        return type(error), str(error)
    if batch is NotImplemented:
        return "the loader collates"
    return [(name, values.dtype, values.shape, values.tobytes()) for name, values in batch.items()]


@law
@given(found=documents(), length=st.integers(1, 12), eos=st.sampled_from([None, 7]), wrong=st.booleans())
def test_documents_that_are_opened_in_bulk_give_the_rows_of_those_opened_one_by_one(
    found: list[Any], length: int, eos: int | None, wrong: bool
) -> None:
    sizes = lengths_of(found)
    sizes[-1] += wrong
    rows = penstock.pack(found, length, sizes, eos=eos)
    keys = list(range(len(rows)))
    in_bulk = outcome(lambda: rows.__gather__(keys, np.empty))
    with mock.patch.object(type(rows._rows), "alike", return_value=None):
        assert in_bulk == outcome(lambda: rows.__gather__(keys, np.empty))


@law
@given(found=documents(), length=st.integers(1, 12))
def test_rows_of_a_table_are_those_of_its_samples(found: list[Any], length: int) -> None:
    tables = [{"input_ids": each} if not isinstance(each, dict) else each for each in found]
    if len({tuple((name, np.asarray(value).dtype) for name, value in each.items()) for each in tables}) > 1:
        return  # a table has one type for each column
    plain = [{name: np.asarray(value).tolist() for name, value in each.items()} for each in tables]
    columns = {name: pa.array([each[name] for each in plain]) for name in plain[0]}
    arrow_table = pa.table(columns)
    arrow = penstock.formats.Arrow(arrow_table)
    mixture = penstock.mix({"a": arrow, "b": penstock.formats.Arrow(arrow_table)}, {"a": 2, "b": 1}, stop="all")
    for data_of in (arrow, mixture, arrow[::-1], arrow.with_lengths(lengths_of(tables))):
        rows = penstock.pack(data_of, length)
        keys = list(range(len(rows)))
        outcome(lambda: rows.__gather__(keys, np.empty))  # noqa: B023 - the blocks are in memory now
        views = outcome(lambda: rows.__gather__(keys, np.empty))  # noqa: B023
        with mock.patch.object(type(arrow), "__views__", None):
            assert views == outcome(lambda: rows.__gather__(keys, np.empty))  # noqa: B023
