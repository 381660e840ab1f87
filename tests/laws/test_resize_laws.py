"""The law of resizing: any sequence of resizes, losses, updates and closes gives the stream of the inline loop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from forced import force
from hypothesis import example, given, settings
from hypothesis import strategies as st
from same import same

from penstock import DataLoader
from penstock.testing import _sources as sources
from penstock.testing import simulate

WIDE = "PENSTOCK_WIDE" in os.environ

# What happens after a batch was taken: a kind, and a number for it.
RESIZE, KILL, UPDATE, ONCE_MORE, CLOSE, LEAVE = "resize", "kill", "update", "once more", "close", "leave"

FEEDS: dict[str, Any] = {
    "keys": lambda: (sources.Numbers(30), {"batch_size": 2, "shuffle": True}),
    "keys, one by one": lambda: (sources.Numbers(24), {}),
    "light items": lambda: (sources.Light(30), {"batch_size": 2}),
    "a stream with a state": lambda: (sources.Stateful(30), {"batch_size": 2}),
}

events = st.tuples(st.sampled_from([RESIZE, KILL, UPDATE, ONCE_MORE, CLOSE, LEAVE]), st.integers(0, 4))
stories = st.lists(st.tuples(st.integers(0, 9), events), max_size=8)
"""For each event: how many batches are taken before it."""
decisions = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=40)
"""What the tuner decides, one after the other, with each batch: workers and prefetch_factor."""


def tell(feed: str, story: Any, decided: Any = (), **workers: Any) -> list[Any]:
    """The batches of a story, and of an epoch after it. The inline loop has no workers to resize or to lose."""
    dataset, given = FEEDS[feed]()
    found: list[Any] = []
    with DataLoader(dataset, seed=3, retries=99, **given, **workers) as loader:
        if decided:
            force(loader, decided)
        batches: Any = iter(loader)

        def take(most: int) -> bool:
            for _ in range(most):
                batch = next(batches, None)
                if batch is None:
                    return False
                found.append(batch)
            return True

        for wait, (kind, number) in story:
            if not take(wait):
                batches = iter(loader)
            if kind == RESIZE and workers:
                loader.num_workers = number + 1
            elif kind == KILL and workers:
                for worker in loader.workers[: number + 1]:
                    worker.kill()
                    worker.join(10)
            elif kind == UPDATE and feed != "a stream with a state":
                loader.update(size=number)
            elif kind == ONCE_MORE and feed.startswith("keys"):
                loader.update(sources.once_more)
            elif kind in (CLOSE, LEAVE):
                state = loader.state_dict()
                (loader if kind == CLOSE else batches).close()
                loader.load_state_dict(state)
                batches = iter(loader)
        while take(1):
            pass
        found += list(loader)
    return found


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
@settings(max_examples=60 if WIDE else 25, deadline=None)
@given(data=st.data())
def test_in_any_order_of_events_the_stream_is_that_of_the_inline_loop(feed: str, data: st.DataObject) -> None:
    story = data.draw(stories)
    most_steps = data.draw(st.sampled_from([1, 4]))
    numbers = data.draw(st.randoms(use_true_random=False))
    decided = data.draw(st.just([]) | decisions)
    with simulate.workers(
        lambda actions: numbers.randrange(len(actions)),
        deaths=data.draw(st.integers(0, 5)),
        copies_dataset=True,
        most_steps=most_steps,
        names_step=data.draw(st.booleans()),
    ) as simulation:
        number = "auto" if decided else data.draw(st.integers(1, 3))
        found = tell(feed, story, decided, num_workers=number, backend=simulation.name)
        assert same(found, tell(feed, story))
        assert not simulation.open


REAL: dict[str, dict[str, Any]] = {
    "threads": {"num_workers": 2, "backend": "thread"},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
}
LONG = [
    (0, (RESIZE, 2)),
    (3, (UPDATE, 7)),
    (1, (RESIZE, 0)),
    (2, (KILL, 0)),
    (0, (RESIZE, 3)),
    (2, (ONCE_MORE, 0)),
    (0, (KILL, 4)),
    (3, (CLOSE, 0)),
    (1, (RESIZE, 1)),
    (9, (LEAVE, 0)),
    (2, (KILL, 1)),
    (0, (RESIZE, 0)),
]


@pytest.mark.parametrize("workers", REAL)
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.filterwarnings("ignore:num_workers=. is more than", "ignore:A stream is read by one reader")
@settings(max_examples=4 if WIDE else 2, deadline=None)
@given(story=stories)
@example(story=[(0, (CLOSE, 0))])
@example(story=LONG)
def test_real_workers_give_the_stream_of_the_inline_loop(feed: str, workers: str, story: Any) -> None:
    assert same(tell(feed, story, **REAL[workers]), tell(feed, story))


@pytest.mark.parametrize("workers", REAL)
@pytest.mark.parametrize("feed", FEEDS)
@settings(max_examples=4, deadline=None)
@given(decided=decisions)
@example(decided=[(5, 1), (1, 4)] * 20)
def test_workers_that_are_tuned_give_the_stream_of_the_inline_loop(feed: str, workers: str, decided: Any) -> None:
    story = [(7, (KILL, 0))]
    found = tell(feed, story, decided, **{**REAL[workers], "num_workers": "auto", "prefetch_factor": "auto"})
    assert same(found, tell(feed, story))


class Starts:
    """For `worker_init_fn`: each worker waits until the file exists."""

    def __init__(self, when: Path) -> None:
        self.when = when

    def __call__(self, worker: int) -> None:
        while not self.when.exists():
            time.sleep(0.001)


@pytest.mark.filterwarnings("ignore:num_workers=. is more than")
def test_a_number_that_changes_faster_than_workers_start_costs_no_more_workers(tmp_path: Path) -> None:
    start = tmp_path / "start"
    init = Starts(start)
    given: dict[str, Any] = {"worker_init_fn": init, "multiprocessing_context": "forkserver"}
    with DataLoader(range(40), num_workers=4, **given) as loader:
        batches = iter(loader)
        for _ in range(50):
            for number in (1, 4):
                loader.num_workers = number
                assert len(loader.workers) == 4
        start.touch()
        assert [batch.item() for batch in batches] == list(range(40))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:num_workers=. is more than")
def test_workers_that_have_left_are_counted_no_more_when_the_number_changes(method: str) -> None:
    with DataLoader(range(40), num_workers=4, multiprocessing_context=method) as loader:
        batches = iter(loader)
        first = next(batches)
        for _ in range(5):
            loader.num_workers = 1
            while sum(worker.is_alive() for worker in loader.workers) > 1:
                time.sleep(0.001)
            loader.num_workers = 4
            assert len(loader.workers) == 4
        assert [first.item(), *(batch.item() for batch in batches)] == list(range(40))
