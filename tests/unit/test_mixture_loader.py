"""Loaders of mixtures: changes of weights by another thread and late in an epoch, and lengths of mixtures."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from threading import Thread
from typing import Any

import numpy as np
import pytest
from weights import changed, load, state_of

import penstock
from penstock._engine.engine import Engine
from penstock.errors import StateError
from penstock.plan import _mixture
from penstock.plan._blocks import Arrangement
from penstock.plan._mixture import Schedule
from penstock.plan._packing import PackWindows

WEIGHTS = {"a": 9, "b": 1}


def mixture(**options: Any) -> Any:
    return penstock.mix({"a": range(40), "b": range(40, 100)}, {"a": 1, "b": 1}, **options)


def texts(first: int, n: int) -> list[list[int]]:
    return [[first + i] * (1 + (first + 7 * i) % 30) for i in range(n)]


@pytest.mark.parametrize(("workers", "in_order"), [(0, True), (2, True), (2, False)])
@pytest.mark.parametrize("commit", [False, True])
def test_no_step_is_drawn_again_that_another_thread_has_just_taken(
    workers: int, in_order: bool, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [{"a": 1, "b": 5}, {"a": 7, "b": 1}]
    take = Engine.next

    def take_and_change(engine: Engine, *args: Any) -> Any:
        taken = take(engine, *args)
        if changes and taken.task is not None and taken.task.step >= 5 * (3 - len(changes)):
            thread = Thread(target=loader.update, kwargs={"weights": changes.pop()})
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
        return taken

    monkeypatch.setattr(Engine, "next", take_and_change)
    data = mixture()
    loader: Any = penstock.DataLoader(
        data, batch_size=4, seed=1, num_workers=workers, in_order=in_order, commit=commit
    )
    reader = iter(loader.batches())
    given = {}
    for _ in range(20):
        batch = next(reader)
        assert batch.step not in given
        given[batch.step] = batch.index.tolist()
        if commit:
            loader.commit(batch)
    assert not changes
    order = load(data, loader.state_dict()["dataset"], seed=1).order(1, 16)
    assert given == {step: order.at(0, np.arange(4 * step, 4 * step + 4)).tolist() for step in given}


def test_a_change_plans_no_window_again_that_was_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: Counter[tuple[int, int]] = Counter()
    pack = PackWindows._pack

    def counted(windows: PackWindows, epoch: int, number: int) -> Any:
        planned[epoch, number] += 1
        return pack(windows, epoch, number)

    monkeypatch.setattr(PackWindows, "_pack", counted)
    sources = {name: texts(first, 50) for name, first in (("a", 0), ("b", 100))}
    lengths = np.array([len(text) for texts in sources.values() for text in texts])
    rows = penstock.pack(penstock.mix(sources, {"a": 1, "b": 1}), length=32, lengths=lengths, window=40)
    loader: Any = penstock.DataLoader(rows, batch_size=8, seed=1)
    reader = iter(loader)
    for _ in range(100):
        next(reader)
    before = loader.state_dict()
    planned.clear()
    loader.update(weights=WEIGHTS)
    resumed: Any = penstock.DataLoader(rows, batch_size=8, seed=1)
    resumed.load_state_dict(loader.state_dict() | {"consumed": before["consumed"]})
    other = iter(resumed)
    for _ in range(3):
        assert next(reader)["tokens"].tolist() == next(other)["tokens"].tolist()
    assert min(number for _, number in planned) >= before["consumed"] >> 48


def pages_of_plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the pages that schedules compute from now on."""
    pages: list[int] = []
    page = Schedule._page

    def counted(schedule: Schedule, number: int) -> Any:
        pages.append(number)
        return page(schedule, number)

    monkeypatch.setattr(Schedule, "_page", counted)
    return pages


def test_a_change_costs_the_same_after_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = pages_of_plans(monkeypatch)
    loader: Any = penstock.DataLoader(mixture(), batch_size=4, seed=1)
    reader, costs = iter(loader), []
    for number in range(12):
        next(reader)
        loader.update(weights={"a": number + 1, "b": 1})
        next(reader)
        costs.append(len(pages))
        pages.clear()
    assert max(costs) <= 3


@pytest.mark.parametrize("old", [False, True])
def test_a_resume_plans_nothing_for_the_changes_before(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = penstock.DataLoader(mixture(), batch_size=4, seed=1)
    reader = iter(loader)
    for number in range(12):
        next(reader)
        loader.update(weights={"a": number + 1, "b": 1})
    state = json.loads(json.dumps(loader.state_dict()))
    if old:
        for stage in state["dataset"]["stages"]:
            del stage["given"]
    pages = pages_of_plans(monkeypatch)
    resumed: Any = penstock.DataLoader(mixture(), batch_size=4, seed=1)
    resumed.load_state_dict(state)
    assert next(iter(resumed)).tolist() == next(reader).tolist()
    assert old or len(pages) <= 2
    assert resumed.state_dict() == loader.state_dict()


def test_a_change_arranges_no_blocks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arranged: list[int] = []

    def counted(order: Any, epoch: int) -> Any:
        arranged.append(epoch)
        return Arrangement(order, epoch)

    monkeypatch.setattr(_mixture, "Arrangement", counted)
    sources = {name: penstock.ArrayDataset(np.arange(4000)) for name in "ab"}
    for source in sources.values():
        source.blocks = np.arange(0, 4001, 10)  # type: ignore[attr-defined]
    loader: Any = penstock.DataLoader(penstock.mix(sources, {"a": 1, "b": 1}), batch_size=4, seed=1)
    reader = iter(loader)
    next(reader)
    assert len(arranged) == 2
    loader.update(weights=WEIGHTS)
    next(reader)
    assert len(arranged) == 2


def test_lengths_are_measured_once_however_often_weights_change() -> None:
    measured: list[int] = []

    def length(sample: list[int]) -> int:
        measured.append(len(sample))
        return len(sample)

    data = penstock.mix({"a": texts(0, 5), "b": texts(9, 5)}, {"a": 1, "b": 1}, stop="all")
    pad = penstock.pad()
    loader: Any = penstock.DataLoader(data, batch_tokens=64, lengths=length, seed=1, collate_fn=pad)
    reader = iter(loader)
    for number in range(2):
        next(reader)
        loader.update(weights={"a": number + 2, "b": 1})
    assert len(measured) == 10


@pytest.mark.parametrize("stop", ["all", "first", "never"])
@pytest.mark.parametrize("given", ["function", "array", "sources"])
def test_the_lengths_of_a_mixture_are_those_of_one_pass_over_its_sources(stop: Any, given: str) -> None:
    sources: dict[str, Any] = {"a": texts(0, 30), "b": texts(9, 7)}
    lengths: Any = len if given == "function" else np.array([len(text) for part in sources.values() for text in part])
    if given == "sources":
        sources = {name: penstock.dataset(part).with_lengths(len) for name, part in sources.items()}
        lengths = None
    data = penstock.mix(sources, {"a": 1, "b": 1}, stop=stop)
    loader: Any = penstock.DataLoader(data, batch_tokens=64, lengths=lengths, seed=1, collate_fn=penstock.pad())
    batches = [batch[0] for batch, _ in zip(loader, range(9), strict=False)]
    assert batches and all(batch.size <= 64 for batch in batches)
    rows: Any = penstock.DataLoader(penstock.pack(data, length=32, lengths=lengths), batch_size=2, seed=1)
    assert next(iter(rows))["tokens"].shape == (2, 32)


def test_lengths_of_another_number_than_one_pass_are_refused() -> None:
    loader: Any = penstock.DataLoader(mixture(), batch_tokens=64, lengths=np.ones(99, np.int64), seed=1)
    with pytest.raises(ValueError, match="99 are given for 100"):
        next(iter(loader))


def test_documents_without_end_of_which_none_gives_a_row_are_an_error() -> None:
    data = penstock.pack(penstock.dataset([[]]).repeat(), lengths=[0], window=1 << 16)
    with pytest.raises(ValueError, match="have no end"):
        next(iter(penstock.DataLoader(data, seed=1)))


def test_a_state_of_another_seed_of_the_mixture_is_refused() -> None:
    states = [penstock.DataLoader(mixture(seed=seed), seed=1).state_dict() for seed in (1, None)]
    for state in states:
        loader: Any = penstock.DataLoader(mixture(seed=2), seed=1)
        with pytest.raises(StateError, match="seed=2"):
            loader.load_state_dict(state)


@pytest.mark.parametrize("value", [None, -1, "x", [], float("nan"), float("inf")])
@pytest.mark.parametrize("path", ["sources/a", "stages/1/weights/a", "stages/1/position", "stages/1/epoch"])
def test_a_damaged_number_in_the_state_of_a_mixture_is_refused(path: str, value: Any) -> None:
    state = json.loads(json.dumps(changed(mixture(), (0, 5, WEIGHTS)).as_dict()))
    *outer, last = path.split("/")
    inner = state
    for name in outer:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[last] = value
    with pytest.raises(StateError):
        load(mixture(), state)


def test_a_mixture_is_refused_where_its_keys_would_be_taken_for_positions() -> None:
    data = mixture(stop="all")
    with pytest.raises(TypeError, match="random_split cannot take it"):
        penstock.random_split(data, [0.5, 0.5])
    torch = pytest.importorskip("penstock.torch")
    with pytest.raises(ValueError, match="Give seed="):
        torch.DataLoader(data)
    assert len(list(torch.DataLoader(data, sampler=range(3)))) == 3


@pytest.mark.parametrize("stop", ["all", "first", "never"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_own_loader_refuses_a_mixture(shuffle: bool, stop: Any) -> None:
    theirs = pytest.importorskip("torch.utils.data")
    with pytest.raises(TypeError, match=r"a mixture has no len.*with seed="):
        next(iter(theirs.DataLoader(mixture(stop=stop), batch_size=10, shuffle=shuffle)))


@pytest.mark.parametrize("packed", [False, True])
def test_a_torch_loader_of_a_mixture_counts_the_batches_of_each_epoch(packed: bool) -> None:
    torch = pytest.importorskip("penstock.torch")
    sources = {name: texts(first, 30 + first) for name, first in (("a", 0), ("b", 7))}
    data: Any = penstock.mix(sources, {"a": 1, "b": 2}, stop="first")
    data = penstock.pack(data, length=32, lengths=len) if packed else data.map(len)
    loader = torch.DataLoader(data, batch_size=4, seed=5)
    for _ in range(3):
        expected = len(loader)
        assert len(list(loader)) == expected


@pytest.mark.parametrize("package", ["penstock.torch", "torch.utils.data"])
@pytest.mark.parametrize("kind", ["mixture", "rows", "rows of a mixture"])
def test_a_framework_may_make_a_loader_anew_from_its_batch_sampler(kind: str, package: str) -> None:
    torch = pytest.importorskip("penstock.torch")
    sources = {name: penstock.dataset(texts(first, 30)).with_lengths(len) for name, first in (("a", 0), ("b", 7))}
    data: Any = penstock.mix(sources, {"a": 1, "b": 2}, stop=40)
    if kind == "mixture":
        data = data.map(len)
    else:
        data = penstock.pack(data if kind == "rows of a mixture" else sources["a"], length=32)
    own: Any = torch.DataLoader(data, batch_size=4, seed=5, shuffle=True)
    given = torch.DataLoader(data, batch_size=4, seed=5, shuffle=True)
    made = pytest.importorskip(package).DataLoader  # as Lightning does, and as accelerate does
    names = ("num_workers", "collate_fn", "timeout", "worker_init_fn")
    rest = {name: getattr(given, name) for name in names}
    anew: Any = made(data, batch_sampler=given.batch_sampler, **rest)
    for _ in range(3):
        assert len(anew) == len(own)
        expected, found = (
            [np.asarray(batch if kind == "mixture" else batch["tokens"]).tolist() for batch in each]
            for each in (own, anew)
        )
        assert found == expected


def test_the_sampler_of_a_torch_loader_has_the_keys_of_each_epoch() -> None:
    torch = pytest.importorskip("penstock.torch")
    loader: Any = torch.DataLoader(mixture(stop=40), batch_size=4, seed=5)
    for _ in range(3):
        keys = list(loader.sampler)  # which also asks for the length, after the first epoch has begun
        assert keys == [key for batch in loader.batches() for key in batch.index.tolist()]
    alone = torch.DataLoader(mixture(stop=40), batch_size=4, seed=5).sampler  # as a framework reads it
    assert list(alone) != list(alone)
    loader.sampler.set_epoch(1)
    loader.set_epoch(1)
    assert list(loader.sampler) == [key for batch in loader.batches() for key in batch.index.tolist()]


def test_a_distributed_sampler_is_refused_if_the_number_of_samples_differs_by_epoch() -> None:
    torch = pytest.importorskip("penstock.torch")
    distributed = pytest.importorskip("torch.utils.data").DistributedSampler
    for data in (mixture(stop="all"), penstock.pack([[1, 2], [3]], length=4, lengths=len)):
        given = torch.DataLoader(data, batch_size=4, seed=5)
        split = distributed(range(9), num_replicas=2, rank=0)
        with pytest.raises(ValueError, match=r"number differs by epoch.*shard=\"auto\""):
            torch.DataLoader(data, batch_size=4, sampler=split, timeout=given.timeout)


@pytest.mark.parametrize("stop", ["never", "all"])
@pytest.mark.parametrize("shuffle", [True, "blocks"])
@pytest.mark.parametrize("packed", [False, True])
def test_shuffle_has_no_effect_on_a_mixture_in_a_torch_loader(packed: bool, shuffle: Any, stop: Any) -> None:
    torch = pytest.importorskip("penstock.torch")
    data = mixture(stop=stop)
    if packed:
        sources = {name: texts(first, 30) for name, first in (("a", 0), ("b", 7))}
        data = penstock.pack(penstock.mix(sources, {"a": 1, "b": 1}, stop=stop), length=32, lengths=len)
    taken = [
        [
            np.asarray(batch["tokens"] if packed else batch).tolist()
            for batch in islice(made(data, batch_size=3, seed=4, **more), 5)
        ]
        for made, more in ((torch.DataLoader, {"shuffle": shuffle}), (penstock.DataLoader, {}))
    ]
    assert taken[0] == taken[1]


def test_figures_of_epochs_of_a_given_size_count_all_epochs() -> None:
    data = penstock.mix({"a": range(40), "b": range(40, 100)}, {"a": 1, "b": 3}, stop=20)
    loader: Any = penstock.DataLoader(data, batch_size=10, seed=1)
    for _ in range(3):
        assert len(loader) == len(list(loader)) == 2
    assert {each.name: (each.samples, each.passes) for each in loader.stats().mixture.sources} == {
        "a": (15, 15 / 40),
        "b": (45, 45 / 60),
    }


def test_a_change_at_the_end_of_an_epoch_of_a_given_size_begins_with_the_next() -> None:
    history = changed(mixture(stop=20), (0, 20, WEIGHTS), (1, 0, {"a": 0, "b": 1}))
    assert [(stage["epoch"], stage["position"]) for stage in history.as_dict()["stages"]] == [(0, 0), (1, 0)]
    assert history.mixture.names_of(history.order(0, 16).at(1, np.arange(20))) == ["b"] * 20


def test_a_state_of_epochs_of_another_size_is_refused() -> None:
    endless = changed(mixture(stop="never"), (0, 50, WEIGHTS)).as_dict()
    for state, size in ((state_of(mixture(stop=30)), 30), (endless, "'never'")):
        with pytest.raises(StateError, match=f"stop={size}, but this one has stop=20"):
            load(mixture(stop=20), state)


@pytest.mark.parametrize("damage", [{"position": 20}, {"epoch": 1 << 61}])
def test_a_stage_outside_epochs_of_a_given_size_is_refused(damage: dict[str, int]) -> None:
    state = changed(mixture(stop=20), (1, 5, WEIGHTS)).as_dict()
    load(mixture(stop=20), state)
    state["stages"][1] |= damage
    with pytest.raises(StateError, match="damaged"):
        load(mixture(stop=20), state)


def test_positions_and_epochs_outside_epochs_of_a_given_size_are_refused() -> None:
    order = mixture(stop=20).__order__(0, 16)
    with pytest.raises(IndexError):
        order.at(0, np.array([20]))
    with pytest.raises(IndexError):
        order.counts(0, 21)
    with pytest.raises(OverflowError, match="beyond"):
        order.at(1 << 60, np.array([0]))


@pytest.mark.parametrize("stop", [0, -1, True, 1.5, None, "last", 1 << 62])
def test_a_wrong_stop_is_refused(stop: Any) -> None:
    with pytest.raises(ValueError, match="number of samples in an epoch"):
        mixture(stop=stop)


@pytest.mark.parametrize("package", ["penstock", "penstock.torch"])
@pytest.mark.parametrize("given", [{"sampler": [1, 2, 3]}, {"batch_sampler": [[1, 2], [3]]}])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_sampler_is_refused_with_a_mixture(package: str, given: dict[str, Any], mapped: bool) -> None:
    made = pytest.importorskip(package).DataLoader
    data = mixture().map(str) if mapped else mixture()
    (name,) = given
    with pytest.raises(ValueError, match=f"^{name}= is not possible with .*shares would be lost"):
        made(data, seed=1, **given)


@pytest.mark.parametrize("shuffle", [None, True])
def test_rows_without_end_need_a_seed_in_a_torch_loader(shuffle: bool | None) -> None:
    torch = pytest.importorskip("penstock.torch")
    sources = {name: texts(first, 30) for name, first in (("a", 0), ("b", 7))}
    endless, finite = (
        penstock.pack(penstock.mix(sources, {"a": 1, "b": 1}, stop=stop), length=32, lengths=len)
        for stop in ("never", "all")
    )
    with pytest.raises(ValueError, match="Give seed="):
        torch.DataLoader(endless, batch_size=2, shuffle=shuffle)
    assert len(list(torch.DataLoader(finite, shuffle=shuffle))) == len(finite)
