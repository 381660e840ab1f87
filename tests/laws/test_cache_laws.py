"""Laws of the cache: it is a dict that forgets, and with a forecast it forgets what is needed last."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._cache import cache as module
from penstock._cache.agendas import Publisher
from penstock._cache.cache import Cache, digest_of
from penstock._cache.lookout import Lookout, WantedPiece
from penstock._cache.pieces import EXTRA
from penstock.plan import BlockOrder, OrderPlan, Shuffled
from penstock.plan._forecast import Forecast

NBYTES = 100


def fewest(accesses: Sequence[int], room: int) -> int:
    """How often something must be fetched at least, with room for so many pieces: Belady's optimum."""
    held: set[int] = set()
    fetched = 0
    for at, piece in enumerate(accesses):
        if piece not in held:
            fetched += 1
            if len(held) == room:
                rest = list(accesses[at:])
                held.remove(max(held, key=lambda one: rest.index(one) if one in rest else len(rest)))
            held.add(piece)
    return fetched


def by_trying(accesses: Sequence[int], room: int) -> int:
    """The same by trying every choice."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for piece in accesses:
        found: dict[frozenset[int], int] = {}
        for held, fetched in states.items():
            if piece in held:
                choices = [(held, fetched)]
            elif len(held) < room:
                choices = [(held | {piece}, fetched + 1)]
            else:
                choices = [((held - {one}) | {piece}, fetched + 1) for one in held]
            for state, count in choices:
                found[state] = min(count, found.get(state, count))
        states = found
    return min(states.values())


def by_age(accesses: Sequence[int], room: int) -> int:
    """How often something is fetched if the piece that was not used for the longest time is evicted."""
    held: list[int] = []
    fetched = 0
    for piece in accesses:
        if piece in held:
            held.remove(piece)
        else:
            fetched += 1
            del held[: len(held) - room + 1]
        held.append(piece)
    return fetched


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 4))
def test_the_optimum_is_the_optimum(accesses: list[int], room: int) -> None:
    assert fewest(accesses, room) == by_trying(accesses, room)


NAMES = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("get"), NAMES),
    st.tuples(st.just("fetch"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("damage"), NAMES),
    st.tuples(st.just("restart"), st.just("")),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=20), st.integers(0, 500), st.lists(st.integers(0, 200), min_size=6))
def test_a_cache_is_a_dict_that_forgets(steps: list[tuple[str, str]], limit: int, lengths: list[int]) -> None:
    contents = {name: name.encode() * length for name, length in zip("abcdef", lengths, strict=False)}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of pieces that are larger than the cache
        cache, views = Cache(folder, limit), list[tuple[str, memoryview]]()
        for what, name in steps:
            path = os.path.join(folder, f"{digest_of(name)}.penstock-piece")
            if what == "restart":
                cache = Cache(folder, limit)
            elif what == "fetch":
                cache.fetch(name, partial(bytes, contents[name]))
            elif what == "get":
                views.append((name, cache.get(name, partial(bytes, contents[name]))))
            elif os.path.exists(path) and what == "delete":
                os.unlink(path)
            elif os.path.exists(path):
                with open(path, "rb") as file:
                    content = bytearray(file.read())
                content[len(content) // 2] ^= 255
                os.unlink(path)  # not in place: others may have mapped it, and nothing is promised then
                with open(path, "wb") as file:
                    file.write(content)
            assert all(view == contents[name] for name, view in views)
            assert sum(entry.stat().st_size for entry in os.scandir(folder) if "piece" in entry.name) <= limit
        del views


class Remote:
    """Blocks of some rows, each in a piece. It counts what is fetched."""

    def __init__(self, blocks: int, rows: int) -> None:
        self.blocks = np.arange(blocks + 1) * rows
        self.fetched = 0
        self.early: set[int] = set()  # fetched, and not used since

    def pieces_of(self, block: int) -> list[WantedPiece]:
        return [WantedPiece(f"{block}", NBYTES, partial(self.make, block))]

    def make(self, block: int, pause: Any = None) -> bytes:
        self.fetched += 1
        self.early.add(block)
        return bytes([block % 256]) * NBYTES


def read(order: Any, remote: Remote, room: int, epochs: int, at_once: int, ahead: int, near: int = 0) -> list[int]:
    """Reads all epochs, a key at a time, as a loader and its scout do. Returns the blocks, in the order of use."""
    done, used = [0], list[int]()  # done: steps of the last epoch

    def steps() -> int:
        return done[-1]

    forecast = Forecast(OrderPlan(order), 0, steps)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(folder, room * (NBYTES + EXTRA))
        lookout, publisher = Lookout(forecast, remote, cache, ahead, near), Publisher(folder)
        for epoch in range(epochs):
            done.append(0)
            if epoch:
                assert forecast.continues(OrderPlan(order), epoch, steps)
            for key in order.at(epoch, np.arange(order.size(epoch))).tolist():
                agenda = lookout.agenda()
                if agenda is not None:
                    cache.publish(publisher, agenda)
                publisher.move(lookout.position)
                for piece in lookout.look(at_once, {}, ()):
                    assert cache.fetch(piece.name, partial(piece.make, time.sleep))
                block = int(remote.blocks.searchsorted(key, "right")) - 1
                used.append(block)
                assert cache.get(f"{block}", partial(remote.make, block))[0] == block
                remote.early.discard(block)
                done[-1] += 1
        publisher.close()
    return used


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.integers(1, 12),
    rows=st.integers(1, 3),
    room=st.integers(1, 12),
    seed=st.integers(0, 1 << 30),
    ahead=st.sampled_from([0, NBYTES, 3 * NBYTES, 1 << 30]),
    at_once=st.integers(1, 3),
)
def test_with_a_forecast_as_few_pieces_are_fetched_as_possible(
    blocks: int, rows: int, room: int, seed: int, ahead: int, at_once: int
) -> None:
    remote = Remote(blocks, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_MAPPED", 0)  # otherwise evicted pieces would still be there
        used = read(Shuffled(blocks * rows, seed), remote, room, 3, at_once, ahead)
    # Some are there for the fourth epoch already.
    assert remote.fetched - len(remote.early) == fewest(used, room)


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.integers(1, 12),
    rows=st.integers(1, 3),
    room=st.integers(1, 12),
    near=st.integers(0, 4),
    seed=st.integers(0, 1 << 30),
    at_once=st.integers(1, 3),
)
def test_what_is_fetched_early_costs_no_more_than_the_room_it_takes(
    blocks: int, rows: int, room: int, near: int, seed: int, at_once: int
) -> None:
    remote = Remote(blocks, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_MAPPED", 0)
        used = read(Shuffled(blocks * rows, seed), remote, room, 3, at_once, 1 << 30, near * NBYTES)
    assert fewest(used, room) <= remote.fetched - len(remote.early) <= fewest(used, max(1, room - near))


def test_three_shuffled_epochs_with_half_of_the_data_cost_fewer_downloads_than_by_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_MAPPED", 0)
    remote = Remote(24, 4)
    used = read(Shuffled(96, 7), remote, 12, 3, 2, 1 << 30)
    assert remote.fetched - len(remote.early) == fewest(used, 12)
    assert remote.fetched < 0.75 * by_age(used, 12)


@pytest.mark.parametrize("near", [0, 3])
def test_so_do_epochs_that_are_shuffled_by_blocks(monkeypatch: pytest.MonkeyPatch, near: int) -> None:
    monkeypatch.setattr(module, "_MOST_MAPPED", 0)
    remote = Remote(40, 4)
    used = read(BlockOrder(remote.blocks, 6, 7), remote, 20, 3, 2, 1 << 30, near * NBYTES)
    assert remote.fetched - len(remote.early) == fewest(used, 20)
    assert remote.fetched < 0.75 * by_age(used, 20)
