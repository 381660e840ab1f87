"""`print(stats)`: a table that reads well in a log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import period, spans, stats, worker

from penstock.stats import Decision, FirstBatch, Machine, Memory, Period, SlowSample

TABLE = """\
DataLoader(Photos)
batch_size=64, num_workers=2, backend='process', prefetch_factor=2, seed=7

Your loop waited for data 50 % of the time (30 s of 60 s). Workers were busy 99 % of their time
(fetch 98 %, collate 2 %), and with your loop they used 3 of 16 CPUs: use num_workers=7, or make
samples cheaper.

                                         epoch 3                 all epochs
batches                                    1,000                      4,000
  ready when asked for                500 (50 %)               2,000 (50 %)
samples                                   64,000                    256,000
bytes                                      10 GB                      40 GB
wall clock                                  60 s                      100 s
batches a second                            16.7                         40
loop waited for data                 30 s (50 %)                50 s (50 %)
  median / p95 / longest   30 ms / 60 ms / 90 ms  12.5 ms / 25 ms / 37.5 ms
loop worked                          30 s (50 %)                50 s (50 %)
  median / p95 / longest   30 ms / 60 ms / 90 ms  12.5 ms / 25 ms / 37.5 ms
  CPU time of its process                    3 s                        5 s

worker               steps  busy  fetch  collate  write  no task  no room    CPU time
worker 0 (pid 4000)    250  99 %   97 %      2 %    0 %      1 %      0 %        90 s
worker 1 (pid 4001)    250  99 %   97 %      2 %    0 %      1 %      0 %        90 s
all                    500  99 %   97 %      2 %    0 %      1 %      0 %  3 min 00 s

first batch      50 ms = start 10 ms + workers 20 ms + first samples 15 ms + rest 5 ms
slowest samples  17: 6 ms
memory           20 MB lent, 80 MB pooled
machine          16 CPUs, 2.5 GB memory used
"""


def test_the_table() -> None:
    epoch = period(waited=30.0, worked=30.0, batches=1000, workers=2)
    life = period(waited=50.0, worked=50.0, batches=4000, workers=2)
    settings = {"num_workers": 2, "seed": 7}
    assert str(stats(epoch, life, name="DataLoader(Photos)", epoch_number=3, settings=settings)) + "\n" == TABLE


def test_the_verdict_comes_before_the_numbers() -> None:
    figures = stats()
    head, _, _ = str(figures).partition("batches  ")
    assert figures.verdict in " ".join(head.split("\n"))


def test_where_there_is_no_verdict_the_table_says_so() -> None:
    assert "too early" not in str(stats())
    few = period(waited=0.1, worked=0.2, batches=3)
    assert "It is too early for a verdict: 3 batches in 300 ms." in str(stats(few))


def test_columns_end_at_the_same_place() -> None:
    lines = str(stats(period(), period(batches=9000))).split("\n")
    start = next(at for at, line in enumerate(lines) if line.endswith("all epochs"))
    rows = lines[start : lines.index("", start)]
    assert len({len(row) for row in rows}) == 1


def test_the_first_epoch_has_one_column() -> None:
    assert "all epochs" not in str(stats())
    assert "all epochs" in str(stats(period(), period(batches=9000)))


def test_many_workers_are_summed_up() -> None:
    lines = str(stats(period(workers=64))).split("\n")
    workers = [line for line in lines if line.startswith(("worker ", "48 more", "all "))]
    assert len(workers) == 1 + 16 + 2


def test_a_worker_that_has_ended_is_named_as_such() -> None:
    epoch = replace(period(), workers=(worker(0, fetch=1.0), worker(1, fetch=1.0, alive=False)))
    assert "worker 0 (pid 4000)" in str(stats(epoch)) and "worker 1 (ended)" in str(stats(epoch))


def test_troubles_are_shown_where_there_are_any() -> None:
    assert "crashed" not in str(stats())
    shown = str(stats(period(replaced=2, repeated=5, skipped=7)))
    assert all(name in shown for name in ("crashed workers", "repeated steps", "skipped samples"))


def test_text_of_the_user_s_stays_on_its_line() -> None:
    slow = (SlowSample("a\nb\x1b[31m" + "c" * 200, 0.5, 0, 0, "w"),)
    shown = str(stats(period(slowest=slow), name="DataLoader(\n\n)"))
    assert "\x1b" not in shown and "a\N{REPLACEMENT CHARACTER}b" in shown
    assert shown.split("\n")[0] == "DataLoader(\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER})"
    assert all(len(line) <= 100 for line in shown.split("\n"))


def test_everything_else_has_a_line() -> None:
    shown = str(
        stats(
            first_batch=FirstBatch(1.2, 0.3, 0.1, 0.8, 0.1, 0.0),
            memory=Memory(1000, 2_000_000, 5),
            machine=Machine(1.5, 2.0, 8_000_000_000, 1_000_000_000, 3_000_000),
            decisions=(Decision(2.0, 6, 2, "your loop waited"),),
        )
    )
    lines = [" ".join(line.split()) for line in shown.split("\n")]
    assert "first batch 1.2 s = start 300 ms + workers 800 ms + first samples 100 ms (of the start, 100 ms" in lines
    assert "memory 1 kB lent, 2 MB pooled, 5 B outside of the pool" in lines
    assert "machine 1.5 CPUs, 1 GB of 8 GB memory used, throttled for 2 s, 3 MB in swap space" in lines
    assert "last decision num_workers=6 after 2 s: your loop waited" in lines


def test_a_loader_that_was_not_read_has_a_table() -> None:
    shown = str(stats(Period(), first_batch=None))
    assert "No batch was handed out yet." in shown and "first batch" not in shown


@pytest.mark.parametrize("longest", [119.6, 7_199.0, 350_000.0])
def test_batches_that_take_minutes_or_hours_fit_into_the_lines(longest: float) -> None:
    long = spans(10, 20 * longest, longest)
    figures = stats(
        epoch=replace(stats().epoch, batches=10, works=long), life=replace(stats().life, waits=long, works=long)
    )
    lines = str(figures).split("\n")
    assert max(map(len, lines)) <= 100
    assert any("median / p95 / longest" in line and ("min / " in line or " h / " in line) for line in lines)
