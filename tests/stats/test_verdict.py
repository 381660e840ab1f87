"""Each rule of the verdict, on figures that are made by hand; with real loaders: test_verdicts_of_loaders.py."""

from __future__ import annotations

import json
import re
import string
from dataclasses import replace
from typing import Any

import pytest
from handmade import SETTINGS, period, spans, stats, worker
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.stats import Bucket, CacheFigures, FirstBatch, Machine, Outage, Period, SlowSample, Stats
from penstock.stats._facts import Facts
from penstock.stats._verdict import RULES, TOO_EARLY, judgement, rule_of
from penstock.stats._words import PIECES

MB = 1 << 20
IDLE = {"fetch": 10.0, "waited_room": 90.0, "cpu": 10.0}
WAITING = {"fetch": 98.0, "waited_task": 2.0, "cpu": 4.0}
COLLATING = {"fetch": 20.0, "collate": 78.0, "waited_task": 2.0, "cpu": 95.0}
WRITING = {"fetch": 20.0, "write": 78.0, "waited_task": 2.0, "cpu": 95.0}
COMPUTING = {"fetch": 98.0, "waited_task": 2.0, "cpu": 95.0}
SHORT = FirstBatch(0.05, 0.01, 0.0, 0.02, 0.015, 0.005)
LONG = FirstBatch(30.0, 1.0, 0.5, 27.0, 1.5, 0.5)
TAIL = (Bucket(0.001, 0.0012, 63_940), Bucket(0.19, 0.21, 60))
SLOW = tuple(SlowSample(key, 0.2, 0, 3, "worker 0") for key in (17, 403, 9, 8))


def starting(**more: Any) -> Stats:
    epoch = period(waited=30.0, worked=20.0, parts=IDLE, workers=2)
    return stats(replace(epoch, waits=spans(1000, 30.0, longest=29.0)), first_batch=LONG, **more)


INLINE = {"num_workers": 0, "backend": "inline"}

# Figures for each rule, and what its sentences must say.
CASES: dict[str, tuple[Stats, str]] = {
    "silent store": (
        stats(period(batches=3), outage=Outage("s3://train (503 Slow Down)", 41.0)),
        r"waits for the store s3://train \(503 Slow Down\), which has not answered for 41 s",
    ),
    "throttled": (
        stats(machine=Machine(cpus=1.5, throttled=31.0)),
        "1.5 CPUs, held its processes back for 31 s in 100 s",
    ),
    "swaps": (
        stats(period(parts=WAITING), machine=Machine(16.0, swapped=900 * MB)),
        "944 MB .* swap space.* fewer workers",
    ),
    "fewer workers would do": (
        stats(period(waited=0.1, parts=IDLE)),
        "0.1 % .* The 4 workers .* 90 % .* num_workers=1 would",
    ),
    "nothing to gain": (
        stats(period(waited=0.1, parts=COMPUTING)),
        "0.1 % of the time .* would gain nothing",
    ),
    "little to gain": (
        stats(period(waited=3.0, parts=COMPUTING)),
        "3 % of the time .* gain 3 % at most",
    ),
    "small cache": (
        stats(period(parts=WAITING, cache=CacheFigures(fetched=900, evicted=800, needed=8 * 10**9, limit=2 * 10**9))),
        r"holds 2 GB, and the blocks .* take 8 GB: .* Raise cache_bytes=",
    ),
    "start-up in each epoch": (
        starting(settings={"persistent_workers": False}),
        "30 s of 51 s: .* persistent_workers=True",
    ),
    "start-up": (
        starting(),
        "The first batch took 30 s of 51 s; .* imports.*27 s of 30 s",
    ),
    "few slow samples": (
        stats(period(parts=IDLE, sample_times=TAIL, slowest=SLOW)),
        "one in 1,067 samples .* 17, 403 and 9 took up to 200 ms, 182 times .*in_order=False.*prefetch_factor=",
    ),
    "tiny batches": (
        stats(period(waited=2.0, worked=0.1, batches=100_000, workers=1, parts={"fetch": 1.0, "waited_task": 1.0})),
        "only 20 µs for a batch.* Larger batches",
    ),
    "inline": (
        stats(period(80.0, 20.0, workers=1, parts={"fetch": 79.0, "cpu": 75.0}), settings=INLINE),
        "80 % of the time .*num_workers=0.* num_workers=4",
    ),
    "slow source": (
        stats(period(workers=1, parts={"fetch": 95.0}), settings={"face": "prefetch", "num_workers": 0}),
        "one thread reads the source, which takes 95 ms for a batch",
    ),
    "one reader": (
        stats(period(workers=1), settings={"one_reader": True}),
        "one reader .* 99 % .* define load",
    ),
    "GIL": (
        stats(period(parts={"fetch": 99.0, "cpu": 24.0}, caller_cpu=98.0), settings={"backend": "thread"}),
        'The 4 threads .* used only 0.96 of 16 CPUs, .* GIL.* backend="process"',
    ),
    "write": (
        stats(period(parts=WRITING)),
        "98 % of their time, 80 % of it with pickling",
    ),
    "collate": (
        stats(period(parts=COLLATING)),
        "80 % of it with collating.* ArrayDataset",
    ),
    "more workers than CPUs": (
        stats(period(parts={"fetch": 99.0, "cpu": 45.0, "delayed": 50.0}), machine=Machine(cpus=2.0)),
        "The 4 workers share 2 CPUs, .* in use .*: num_workers=2 would be about as fast",
    ),
    "CPUs in use": (
        stats(period(parts=COMPUTING), machine=Machine(cpus=4.0)),
        "share 4 CPUs .* in use.* more workers would not",
    ),
    "samples wait": (
        stats(period(parts=WAITING)),
        'only 4 % of that.* use num_workers=5, and with backend="thread"',
    ),
    "fetch": (
        stats(period(waited=50.0, worked=50.0, parts=COMPUTING)),
        "98 % .*fetch 100 %.* of 16 CPUs: use num_workers=8",
    ),
    "own process": (
        stats(period(waited=90.0, worked=10.0, parts=IDLE)),
        "workers were busy only 10 % .*a sampler",
    ),
    "wait in turn": (
        stats(period(parts=IDLE, waits=replace(spans(1000, 10.0), median=0.0001))),
        r"10 % of the time .* room \(90 % of their time\).* prefetch_factor= \(now 2\)",
    ),
    "unclear": (
        stats(period(parts={"fetch": 50.0, "waited_task": 50.0, "cpu": 40.0})),
        "no single cause stands out",
    ),
}


def test_every_rule_has_its_case() -> None:
    assert list(CASES) == [rule.name for rule in RULES]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_speaks(name: str) -> None:
    figures, said = CASES[name]
    rule = rule_of(figures)
    assert rule is not None and rule.name == name
    assert re.search(said, figures.verdict), figures.verdict


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_piece_of_a_text_is_known(rule: Any) -> None:
    used = {name for _, name, _, _ in string.Formatter().parse(rule.text) if name}
    assert used <= PIECES.keys()


def test_every_piece_is_used() -> None:
    texts = [*(rule.text for rule in RULES), TOO_EARLY]
    assert {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name} == PIECES.keys()


# What is long enough to judge by.


@pytest.mark.parametrize(
    "few", [Period(), period(batches=19), period(waited=0.01, worked=0.1), period(batches=100, workers=64)]
)
def test_there_is_no_verdict_on_too_little(few: Period) -> None:
    figures = stats(few, settings={"num_workers": max(4, len(few.workers))})
    assert rule_of(figures) is None and judgement(figures) == "none"
    assert figures.verdict.startswith("It is too early for a verdict: " if few.batches else "No batch was handed out")


def test_what_is_missing_for_a_verdict_is_said() -> None:
    said = stats(period(batches=19), settings={"num_workers": 1}).verdict
    assert said.startswith("It is too early for a verdict: 19 batches in 100 s. It needs 20 batches, and 0.2 s")


def test_a_short_epoch_is_judged_by_the_life_before_it() -> None:
    figures = stats(period(waited=0.0, worked=1.0, batches=3), period(parts=COMPUTING, epochs=4))
    assert Facts(figures).period is figures.life
    assert "of the time in all 4 epochs (" in figures.verdict


def test_an_epoch_among_others_is_named() -> None:
    figures = stats(period(parts=COMPUTING), period(batches=9000, epochs=4), epoch_number=3)
    assert "of the time in epoch 3 (" in figures.verdict


JUDGEMENTS = {
    "silent store": "poor",
    "throttled": "poor",
    "swaps": "poor",
    "fewer workers would do": "good",
    "nothing to gain": "good",
    "little to gain": "good",
    "start-up": "fair",
    "start-up in each epoch": "fair",
    "inline": "poor",
    "own process": "poor",
    "collate": "fair",
    "fetch": "poor",
}


@pytest.mark.parametrize("name", JUDGEMENTS)
def test_a_rule_has_the_judgement_of_what_it_costs(name: str) -> None:
    assert judgement(CASES[name][0]) == JUDGEMENTS[name]


@pytest.mark.parametrize("name", ["fetch", "CPUs in use", "more workers than CPUs"])
def test_slow_samples_that_pil_opens_name_penstock_image(name: str) -> None:
    figures = CASES[name][0]
    assert "penstock.image" not in figures.verdict
    by_pil = tuple(replace(one, pil=True) for one in figures.epoch.workers)
    epoch = replace(figures.epoch, workers=by_pil)
    assert "ImageFolder(..., loader=penstock.image.loader())." in replace(figures, epoch=epoch, life=epoch).verdict


def test_a_long_epoch_is_judged_by_itself() -> None:
    figures = stats(period(waited=0.01, parts=COMPUTING), period(waited=500.0, batches=9000))
    assert "would gain nothing" in figures.verdict


def test_a_slow_start_is_not_taken_for_slow_workers() -> None:
    epoch = period(waited=10.0, worked=190.0, parts=COMPUTING)
    figures = stats(
        replace(epoch, waits=spans(1000, 10.0, longest=9.5)), first_batch=FirstBatch(9.5, 0.0, 0.0, 9.0, 0.5, 0.0)
    )
    assert "0.3 % of the time after the first batch" in figures.verdict


# Remedies must be possible.

TORCH = {"face": "penstock.torch"}


@pytest.mark.parametrize("name", CASES)
def test_torch_s_semantics_have_no_threads_and_say_what_another_number_of_workers_changes(name: str) -> None:
    figures = CASES[name][0]
    verdict = replace(figures, settings={**figures.settings, **TORCH}).verdict
    assert 'backend="thread"' not in verdict and "ArrayDataset" not in verdict
    for remedy in re.findall(r"(?:use|time:|program|run too:|average\)) ?(num_workers=\d+.{0,40})", verdict):
        assert "in the next run (without seed=" in remedy


@pytest.mark.parametrize("name", ["fewer workers would do", "samples wait", "fetch", "more workers than CPUs"])
def test_torch_s_semantics_with_a_seed_need_no_such_remark(name: str) -> None:
    figures = CASES[name][0]
    verdict = replace(figures, settings={**figures.settings, **TORCH, "seed": 3}).verdict
    assert "num_workers=" in verdict and "next run" not in verdict


def test_auto_is_not_told_which_number_to_use() -> None:
    figures = CASES["fetch"][0]
    verdict = replace(figures, settings={**figures.settings, "auto": ("num_workers",)}).verdict
    assert "max_workers=" in verdict and not re.search(r"num_workers=\d", verdict)


@pytest.mark.parametrize("name", ["inline", "fetch", "samples wait", "more workers than CPUs"])
@pytest.mark.parametrize("most", [1, 3, 4, 5])
def test_no_more_workers_are_recommended_than_profile_may_try(name: str, most: int) -> None:
    figures = CASES[name][0]
    verdict = replace(figures, settings={**figures.settings, "most_workers": most}).verdict
    assert all(
        int(number) <= most for number in re.findall(r"num_workers=(\d+)", verdict.replace("num_workers=0", ""))
    )
    assert "num_workers=" in verdict or f"raise --max-workers, which is {most}, to try more" in verdict


def test_a_single_worker_has_no_others_to_let_pass() -> None:
    figures = CASES["few slow samples"][0]
    assert "in_order" not in replace(figures, settings={**figures.settings, "num_workers": 1}).verdict
    assert "in_order" not in replace(figures, settings={**figures.settings, "in_order": False}).verdict


def test_a_collate_fn_of_the_users_is_named_as_such() -> None:
    figures = CASES["collate"][0]
    assert "your collate_fn" in replace(figures, settings={**figures.settings, "collate_fn": "mine"}).verdict


# What must not be said.


def test_memory_in_swap_space_that_is_not_used_is_no_cause() -> None:
    assert "swap" not in stats(period(parts=COMPUTING), machine=Machine(16.0, swapped=900 * MB)).verdict
    assert "swap" not in stats(period(waited=0.1), machine=Machine(16.0, swapped=900 * MB)).verdict


def test_workers_that_have_no_processor_do_not_wait_for_files() -> None:
    figures = stats(period(parts={"fetch": 98.0, "waited_task": 2.0, "cpu": 25.0, "delayed": 62.0}))
    assert "files" not in figures.verdict
    assert "because other threads or programs run too" in figures.verdict


def test_threads_that_wait_are_not_held_up_by_the_gil() -> None:
    verdict = stats(period(parts=WAITING, caller_cpu=20.0), settings={"backend": "thread"}).verdict
    assert "GIL" not in verdict and "samples wait" in verdict


def test_workers_on_other_machines_have_processors_of_their_own() -> None:
    far = tuple(worker(seat, fetch=98.0, cpu=95.0, node="b") for seat in range(4))
    figures = stats(replace(period(), workers=far), machine=Machine(2.0))
    assert rule_of(figures).name == "fetch"  # type: ignore[union-attr]


def test_samples_that_are_often_slow_are_not_a_few() -> None:
    often = (Bucket(0.001, 0.0012, 60_000), Bucket(0.19, 0.21, 4_000))
    assert "very slow" not in stats(period(parts=IDLE, sample_times=often, slowest=SLOW)).verdict


# Laws.

seconds = st.just(0.0) | st.floats(1e-6, 1e4)
whole = st.integers(0, 10**6)
workers = st.builds(
    worker,
    st.integers(0, 9),
    fetch=seconds,
    collate=seconds,
    write=seconds,
    waited_task=seconds,
    waited_room=seconds,
    cpu=seconds,
    delayed=seconds,
    alive=st.booleans(),
    node=st.sampled_from(["", "b"]),
)
keys = st.integers() | st.text(max_size=120)
slow_samples = st.builds(SlowSample, keys, seconds, whole, whole, st.just("w"))
buckets = st.builds(lambda low, count: Bucket(low, low * 1.2, count), seconds, whole)
periods = st.builds(
    Period,
    seconds=seconds,
    batches=whole,
    samples=whole,
    nbytes=whole,
    waits=st.builds(spans, whole, seconds, seconds),
    works=st.builds(spans, whole, seconds, seconds),
    ready=whole,
    caller_cpu=seconds,
    workers=st.lists(workers, max_size=4).map(tuple),
    slowest=st.lists(slow_samples, max_size=4).map(tuple),
    sample_times=st.lists(buckets, max_size=5).map(tuple),
    replaced=whole,
)
settings_of_loaders = st.fixed_dictionaries(
    {},
    optional={
        "face": st.sampled_from(["penstock", "penstock.torch", "prefetch"]),
        "backend": st.sampled_from(["inline", "thread", "process"]),
        "num_workers": st.integers(0, 64),
        "auto": st.just(["num_workers"]),
        "prefetch_factor": st.one_of(st.none(), st.integers(1, 9)),
        "seed": st.one_of(st.none(), st.just(3)),
        "in_order": st.booleans(),
        "persistent_workers": st.booleans(),
        "one_reader": st.booleans(),
    },
)
machines = st.builds(Machine, st.floats(0.1, 300), seconds, st.one_of(st.none(), whole), whole, whole)
first_batches = st.one_of(st.none(), st.builds(FirstBatch, seconds, seconds, seconds, seconds, seconds, seconds))
anything = st.builds(
    Stats,
    name=st.text(max_size=200),
    settings=settings_of_loaders,
    epoch=periods,
    life=periods,
    epoch_number=whole,
    first_batch=first_batches,
    machine=machines,
)


@settings(deadline=None, max_examples=50)
@given(anything)
def test_any_figures_have_a_verdict_or_none_and_a_narrow_table(figures: Stats) -> None:
    rule = rule_of(figures)
    assert (rule is None) == (judgement(figures) == "none") and figures.verdict
    assert "{" not in figures.verdict or "{" in str(figures.epoch.slowest) + str(figures.life.slowest)
    assert all(len(line) <= 100 for line in str(figures).split("\n"))


@settings(deadline=None, max_examples=50)
@given(anything)
def test_any_figures_are_plain_json_with_the_verdict(figures: Stats) -> None:
    plain = json.loads(json.dumps(figures.to_dict(), allow_nan=False))
    assert plain["verdict"] == figures.verdict
    assert plain["settings"] == figures.settings
    assert plain["epoch"]["batches"] == figures.epoch.batches


def test_the_settings_of_the_builder_are_those_of_a_loader() -> None:
    assert SETTINGS.keys() <= penstock.DataLoader([1, 2]).stats().settings.keys()


def test_without_the_gil_threads_do_not_wait_for_it() -> None:
    figures = stats(
        period(parts={"fetch": 99.0, "cpu": 24.0}, caller_cpu=98.0), settings={"backend": "thread", "gil": False}
    )
    assert "GIL" not in figures.verdict


def test_without_the_gil_threads_are_named_where_processes_cost_most() -> None:
    free = {"backend": "process", "gil": False}
    for costly in (starting, lambda settings: stats(period(parts=WRITING), settings=settings)):
        assert 'backend="thread"' in costly(settings=free).verdict
        assert 'backend="thread"' not in costly(settings={"backend": "process"}).verdict
        assert 'backend="thread"' not in costly(settings={**free, "face": "penstock.torch"}).verdict
