"""How figures are shown: one scope, its name, paths of samples, settings without noise, and in a notebook."""

from __future__ import annotations

import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from handmade import period, stats

import penstock
from penstock._measure.gauges import Gauge, Gauges, Slow
from penstock._work.paths import path_of
from penstock.stats._report import page
from penstock.stats._shown import settings_of
from penstock.stats._verdict import judgement

EPOCH = period(waited=19.0, worked=81.0)
LIFE = period(waited=92.0, worked=308.0, batches=4000, epochs=4)


def test_verdict_tile_and_subtitle_are_of_one_period_which_is_named() -> None:
    figures = stats(EPOCH, LIFE, epoch_number=3)
    html = page(figures)
    assert "19 % of the time in epoch 3" in figures.verdict
    assert re.search(r"<dt>waited for batches</dt><dd>19<span>%</span>", html)
    assert "<p>penstock, epoch 3: 1,000 batches in 100 s (4,000 in all 4 epochs)</p>" in html
    assert "was divided in epoch 3." in html and "timed samples of epoch 3" in html


def test_a_young_epoch_is_shown_with_all_before_it() -> None:
    figures = stats(period(batches=3), LIFE, epoch_number=3)
    html = page(figures)
    assert "23 % of the time in all 4 epochs" in figures.verdict
    assert re.search(r"<dt>waited for batches</dt><dd>23<span>%</span>", html)
    assert "<p>penstock, all 4 epochs: 4,000 batches in" in html


@pytest.mark.parametrize(("waited", "kind"), [(0.1, "good"), (3.0, "good"), (19.0, "fair"), (60.0, "poor")])
def test_the_box_of_the_verdict_has_the_colour_of_its_judgement(waited: float, kind: str) -> None:
    figures = stats(period(waited=waited, worked=100 - waited))
    assert judgement(figures) == kind
    assert f'<section class="verdict {kind}">' in page(figures)
    style = page(figures).partition("</style>")[0]
    assert f".verdict.{kind} {{ border-color:" in style


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("25.9 MB/s", "25.9<span>MB/s</span>"),
        ("2 min 05 s", "2<span>min</span> 05<span>s</span>"),
        ("<0.1 %", "&lt;0.1<span>%</span>"),
        ("1,234 /s", "1,234<span>/s</span>"),
        ("none yet", "<span>none yet</span>"),
    ],
)
def test_a_unit_stands_right_behind_its_number(value: str, shown: str) -> None:
    from penstock.stats._panels import _large

    assert _large(value) == shown


def test_settings_with_their_defaults_are_not_shown() -> None:
    plain = settings_of(penstock.DataLoader(range(9)).stats().settings)
    assert plain == {"batch_size": 1, "num_workers": 0, "backend": "inline"}
    loader = penstock.DataLoader(range(9), 3, num_workers=2, in_order=False, seed=4, retries=0)
    assert settings_of(loader.stats().settings) == {
        "batch_size": 3, "num_workers": 2, "backend": "process", "prefetch_factor": 2, "in_order": False, "seed": 4,
        "retries": 0,
    }  # fmt: skip
    assert "retries" not in page(stats()) and "one_reader" not in page(stats())


@pytest.mark.imports_torch
def test_settings_of_torch_loaders_with_their_defaults_are_not_shown() -> None:
    from penstock.torch import DataLoader

    plain = settings_of(DataLoader([1, 2]).stats().settings)
    assert plain == {"batch_size": 1, "num_workers": 0, "backend": "inline"}
    persistent = DataLoader([1, 2], num_workers=1, persistent_workers=True).stats().settings
    assert settings_of(persistent)["persistent_workers"] is True


class Closed(HTMLParser):
    """Notes what is opened and not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_notebook_shows_the_verdict_and_the_table() -> None:
    figures = stats(EPOCH, name="DataLoader(<Photos>)")
    html = figures._repr_html_()
    assert Closed(html).open == []
    assert "DataLoader(&lt;Photos&gt;)" in html and figures.verdict[:40] in html
    assert "loop waited for data" in html and "Stats(" not in html


# Slow samples are known by their paths.


class Files:
    """A dataset with a path for each sample, in one of the ways that datasets have them."""

    def __init__(self, **lists: Any) -> None:
        vars(self).update(lists)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> np.ndarray:
        time.sleep(0.02 if key == 5 else 0.0001)
        return np.zeros(2)


PATHS = [f"/data/photos/class {key % 2}/{key}.jpg" for key in range(8)]


@pytest.mark.parametrize(
    "dataset",
    [
        Files(paths=PATHS),
        Files(samples=[(path, 0) for path in PATHS]),
        Files(files=[Path(path) for path in PATHS]),
        penstock.Subset(Files(paths=PATHS[::-1]), np.arange(8)[::-1]),
    ],
    ids=["paths", "samples", "Path", "Subset"],
)
def test_a_dataset_with_paths_has_one_for_each_sample(dataset: Any) -> None:
    assert [path_of(dataset, key) for key in range(8)] == PATHS


@pytest.mark.parametrize("dataset", [Files(), Files(samples=[1] * 8), Files(paths=[]), [1, 2], range(8), None])
def test_a_dataset_without_paths_has_none(dataset: Any) -> None:
    assert path_of(dataset, 3) == ""


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "backend": "thread"}, {"num_workers": 1}])
def test_a_slow_sample_is_named_with_its_path(settings: dict[str, Any]) -> None:
    with penstock.DataLoader(Files(paths=PATHS), batch_size=2, seed=0, **settings) as loader:
        assert len(list(loader)) == 4
        found = loader.stats()
    slow = next(one for one in found.life.slowest if one.key == 5)
    assert slow.path == PATHS[5] and slow.name == f"{PATHS[5]} (key 5)"
    assert PATHS[5] in str(found) and PATHS[5] in page(found)


@pytest.mark.parametrize("path", ["", "a.jpg", "/data/" + "ä" * 200 + "/end.jpg", "\0x", "\udcff.jpg"])
def test_of_a_long_path_the_end_is_kept(path: str) -> None:
    gauges = Gauges(None)
    gauge = Gauge(gauges, 0, 1, time.process_time_ns)
    gauge.begin_epoch(0)
    gauge.note(Slow(10**6, 0, 0, "17", path))
    (found,) = gauges.slowest(0)
    assert found.key == "17"
    if len(path) < 60:
        assert found.path.replace("\0", "") == path.replace("\udcff", "").replace("\0", "")
    else:
        assert found.path.startswith("…") and found.path.endswith("/end.jpg")


def test_workers_say_that_pil_opens_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "penstock._pixels", raising=False)
    for there in (False, True):
        if there:
            monkeypatch.setitem(sys.modules, "PIL.JpegImagePlugin", ModuleType("PIL.JpegImagePlugin"))
        else:
            monkeypatch.delitem(sys.modules, "PIL.JpegImagePlugin", raising=False)
        with penstock.DataLoader(range(8), num_workers=1, backend="thread", seed=0) as loader:
            assert len(list(loader)) == 8
        assert [worker.pil for worker in loader.stats().life.workers] == [there]
    monkeypatch.setitem(sys.modules, "penstock._pixels", ModuleType("penstock._pixels"))
    with penstock.DataLoader(range(8), num_workers=1, backend="thread", seed=0) as loader:
        assert len(list(loader)) == 8
    assert [worker.pil for worker in loader.stats().life.workers] == [False]


# Epochs.


@pytest.mark.imports_torch
@pytest.mark.parametrize("settings", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_torch_loaders_count_their_epochs(settings: dict[str, Any]) -> None:
    from penstock.torch import DataLoader

    loader = DataLoader(Files(paths=PATHS), batch_size=2, **settings)
    for number in range(3):
        for _ in loader:
            pass
        found = loader.stats()
        assert (found.epoch_number, found.epoch.batches) == (number, 4)
        if settings:
            assert {slow.epoch for slow in found.epoch.slowest} == {number}
            assert 5 in {slow.key for slow in found.epoch.slowest}


def test_a_resumed_epoch_begins_where_it_was_left() -> None:
    loader = penstock.DataLoader(np.arange(20), 2, seed=0)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    again = penstock.DataLoader(np.arange(20), 2, seed=0)
    again.load_state_dict(state)
    resumed = iter(again)
    assert resumed.steps_before == 4 and len(resumed) == 10  # type: ignore[attr-defined, arg-type]
    assert len(list(resumed)) == 6
    assert iter(again).steps_before == 0  # type: ignore[attr-defined]


@pytest.mark.imports_torch
@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_epoch_of_a_torch_loader_begins_where_it_was_left(workers: int) -> None:
    from penstock.torch import DataLoader

    loader = DataLoader(list(range(20)), 2, num_workers=workers)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    del batches
    again = DataLoader(list(range(20)), 2, num_workers=workers)
    again.load_state_dict(state)
    resumed = iter(again)
    assert resumed.steps_before == 4 and len(list(resumed)) == 6
