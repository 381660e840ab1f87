"""Blocks that processes share: each is made once, by a process that may die, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._cache import shared as _shared
from penstock._cache.claims import Claim
from penstock._cache.keeper import Keeper
from penstock._cache.lru import LruCache
from penstock._cache.shared import Inventory, Shared
from penstock._system import descriptors
from penstock.plan import BlockOrder
from penstock.plan._forecast import Forecast
from penstock.plan._plan import OrderPlan

TABLES = count()


@pytest.fixture
def table() -> str:
    return f"{os.getpid()}-{next(TABLES)}"


@pytest.fixture
def inventory(table: str) -> Iterator[Inventory]:
    with closing(Inventory(table, claim(keep=1000))) as inventory:
        yield inventory


def claim(*needs: int, keep: int | None = None) -> Claim:
    return Claim(np.array(needs, np.int64), keep)


def made(text: bytes, calls: list[bytes] | None = None) -> list[bytes]:
    if calls is not None:
        calls.append(text)
    return [text[:1], text[1:]]


class Child:
    """A forked process that runs a function, says what it returned, and waits until it is killed."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.write(write, work())
                os.close(write)
                signal.pause()
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read, "rb") as said:
            self.said = said.read()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def three(shared: Shared) -> bytes:
    found = shared.get(3, partial(made, b"three"))
    assert found is not None
    return bytes(found)


def test_without_an_inventory_nothing_is_shared(table: str) -> None:
    with closing(Shared(table, 100)) as shared:
        assert shared.get(3, partial(made, b"three")) is None


def test_a_block_that_another_process_has_made_is_not_made_again(table: str, inventory: Inventory) -> None:
    child = Child(partial(three, Shared(table, 100)))
    try:
        calls: list[bytes] = []
        with closing(Shared(table, 100)) as shared:
            found = shared.get(3, partial(made, b"other", calls))
            assert child.said == found == b"three"
            assert found.readonly and not calls
            assert inventory.decoded == 1 and inventory.blocks() == shared.blocks() == {3}
    finally:
        child.kill()
    assert found == b"three"  # the memory is this process's as well


def test_a_block_that_is_there_when_the_lock_is_had_is_not_made_again(
    table: str, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Shared(table, 100)) as one, closing(Shared(table, 100)) as other:
        three(one)
        too_early, mapped = iter([None]), _shared._mapped
        monkeypatch.setattr(_shared, "_mapped", lambda *block: next(too_early, mapped(*block)))
        calls: list[bytes] = []
        assert other.get(3, partial(made, b"other", calls)) == b"three" and not calls
    assert inventory.decoded == 1


def test_the_block_of_a_process_that_has_died_is_made_again(table: str, inventory: Inventory) -> None:
    child = Child(partial(three, Shared(table, 100)))
    child.kill()
    with closing(Shared(table, 100)) as shared:
        assert shared.get(3, partial(made, b"again")) == b"again"
    assert (child.said, inventory.decoded, inventory.blocks()) == (b"three", 2, {3})


def test_if_the_maker_dies_or_fails_the_next_one_makes_the_block(table: str, inventory: Inventory) -> None:
    def die() -> list[bytes]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    child = os.fork()
    if not child:
        Shared(table, 100).get(3, die)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    calls: list[Exception] = []

    def fail(error: Exception) -> list[bytes]:
        calls.append(error)
        raise error

    with closing(Shared(table, 100)) as shared:
        for error in (ValueError("damaged"), OSError("no network")):
            with pytest.raises(type(error), match=str(error)):
                shared.get(3, partial(fail, error))
        assert len(calls) == 2  # each was called once: a download may be tried for minutes
        assert shared.get(3, partial(made, b"three")) == b"three"
    assert inventory.decoded == 1


def test_blocks_that_were_dropped_stay_valid_for_those_that_have_them(table: str, inventory: Inventory) -> None:
    with closing(Shared(table, 100)) as shared:
        found = shared.get(3, partial(made, b"three"))
        inventory.claim(claim(9))
        assert shared.blocks() == set()
        assert shared.get(3, partial(made, b"again")) == b"again" and found == b"three"


def test_a_descriptor_that_is_another_file_by_now_is_not_written_to(table: str, tmp_path: Path) -> None:
    """One thread may close an inventory while another is about to write to that number: then a file of the user."""
    path = tmp_path / "precious"
    path.write_bytes(b"x" * 20_000)
    with closing(Inventory(table, claim())) as inventory, open(path, "r+b") as file:
        os.dup2(file.fileno(), inventory._used(), inheritable=False)
        with pytest.raises(OSError, match="not an inventory"):
            inventory.claim(claim(0))
    assert path.read_bytes() == b"x" * 20_000


def test_a_descriptor_that_holds_another_block_by_now_is_not_read(table: str, inventory: Inventory) -> None:
    """A process may have closed a block, and opened the next one with the same number, after a row was read."""
    with closing(Shared(table, 100)) as shared:
        shared.get(3, partial(made, b"three"))
        other = shared.get(4, partial(made, b"fours"))
        three, four = shared._own.values()
        os.dup2(four, three, inheritable=False)
        assert other == b"fours" and shared.get(3, partial(made, b"three")) == b"three"


def test_a_keeper_drops_the_blocks_that_the_window_has_left(table: str) -> None:
    order = BlockOrder(np.arange(0, 1001, 10), window=4, seed=1)
    first, stop = order.spans(0)
    steps = 0
    forecast = Forecast(OrderPlan(order, batch_size=10), 0, lambda: steps)
    kept: LruCache[int, bytes] = LruCache(0)
    keeper = Keeper(forecast, table, order.edges, kept, 0)
    with closing(keeper), closing(Shared(table, 1)) as shared:
        for steps in (0, 30, 60, 95):
            for block in range(100):
                shared.get(block, partial(made, b"some"))
            keeper.look()
            live = {*np.flatnonzero((first <= 10 * steps) & (10 * steps < stop)).tolist()}
            assert live <= shared.blocks() == kept.needed and len(shared.blocks()) <= 4 * order.window


def test_an_inventory_that_is_closed_opens_nothing(table: str, inventory: Inventory) -> None:
    second = Inventory(table, claim())
    second.close()
    before = os.listdir("/proc/self/fd")
    for use in (second.blocks, partial(second.claim, claim(0))):
        with pytest.raises(OSError, match="the inventory is closed"):
            use()
    assert os.listdir("/proc/self/fd") == before
    second.close()


def test_all_ranks_use_the_inventory_that_was_opened_first(table: str, inventory: Inventory) -> None:
    with closing(Inventory(table, claim())) as second, closing(Shared(table, 100)) as shared:
        shared.get(3, partial(made, b"three"))
        assert inventory.blocks() == second.blocks() == {3} and second.decoded == 1
        for each in (inventory, second):
            each.claim(claim())
        assert inventory.blocks() == second.blocks() == set()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=12), st.integers(0, 60))
def test_the_newest_blocks_are_kept_up_to_the_limit(asked: list[tuple[int, int]], most: int) -> None:
    table = f"{os.getpid()}-{next(TABLES)}"
    kept: dict[int, int] = {}
    with closing(Inventory(table, claim(keep=most))) as inventory, closing(Shared(table, 1000)) as shared:
        for block, size in asked:
            found = shared.get(block, partial(made, bytes([block]) * size))
            assert found is not None and set(found) == {block}
            if block not in kept:
                kept[block] = size
                while sum(kept.values()) > most and len(kept) > 1:
                    kept.pop(next(iter(kept)))
            assert inventory.blocks() == {*kept}


def test_in_a_block_order_the_loader_drops_blocks_and_not_the_workers(table: str) -> None:
    with closing(Inventory(table, claim())) as inventory, closing(Shared(table, 1)) as shared:
        for block in range(10):
            shared.get(block, partial(made, b"some"))
        assert inventory.blocks() == {*range(10)}
        inventory.claim(claim(9))
        before = len(list(Path("/proc/self/fd").iterdir()))
        shared.get(10, partial(made, b"some"))
        assert inventory.blocks() == {9, 10}
        assert len(list(Path("/proc/self/fd").iterdir())) == before - 8  # those of the nine, for one


def test_a_block_that_cannot_be_published_is_made_once_and_served(
    table: str, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(descriptors, "open_memfd", full)
    calls: list[bytes] = []
    with closing(Shared(table, 100)) as shared:
        assert shared.get(3, partial(made, b"three", calls)) == b"three"
    assert calls == [b"three"] and inventory.blocks() == set()


def test_an_inventory_has_room_for_thousands_of_blocks(table: str) -> None:
    with closing(Inventory(table, claim())) as inventory, closing(Shared(table, 0)) as shared:
        for _ in range(2):
            for block in range(300):
                assert shared.get(block, partial(made, b"some")) == b"some"
        assert inventory.blocks() == {*range(300)} and inventory.decoded == 300


def test_a_process_holds_no_more_blocks_than_half_of_its_descriptors(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_shared, "_most_own", lambda: 10)
    calls: list[bytes] = []
    with closing(Inventory(table, claim())) as inventory, closing(Shared(table, 0)) as shared:
        for block in range(12):
            assert shared.get(block, partial(made, b"some", calls)) == b"some"
        assert inventory.blocks() == {*range(10)}
        before = len(list(Path("/proc/self/fd").iterdir()))
        inventory.claim(claim(*range(5, 10)))
        assert shared.get(11, partial(made, b"some", calls)) == b"some"
        assert inventory.blocks() == {*range(5, 10), 11} and len(calls) == 13
        assert len(list(Path("/proc/self/fd").iterdir())) == before - 4


def test_a_row_that_was_read_while_it_was_written_is_not_used(
    table: str, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Shared(table, 1000)) as shared:
        assert shared.get(1, partial(made, b"one")) == b"one"
        read = _shared._rows

        def torn(fd: int) -> np.ndarray:
            """Half of a row as it was, for another block, and half of it as it is."""
            rows = read(fd)
            rows["block"] = 2
            return rows

        with monkeypatch.context() as patched:
            patched.setattr(_shared, "_rows", torn)
            assert _shared._mapped(inventory._used(), 2) is None
        assert shared.get(2, partial(made, b"two")) == b"two"


def test_an_inventory_has_as_many_rows_as_were_in_use(table: str, inventory: Inventory) -> None:
    with closing(Shared(table, 1000)) as shared:
        for block in range(20):
            shared.get(block, partial(made, b"some"))
            inventory.claim(claim(block - 1, block))
        assert len(_shared._rows(inventory._used())) == 3


def test_what_one_loader_needs_no_other_drops_and_what_no_loader_needs_goes(table: str, inventory: Inventory) -> None:
    with closing(Inventory(table, claim())) as second, closing(Shared(table, 1000)) as shared:
        inventory.claim(claim(1, 2))
        second.claim(claim(2, 3))
        for block in range(6):
            shared.get(block, partial(made, b"some"))
        second.claim(claim(2, 3))
        assert inventory.blocks() == {1, 2, 3}
        inventory.claim(claim(5))
        assert inventory.blocks() == {2, 3}
        second.close()
        inventory.claim(claim(3))
        assert inventory.blocks() == {3}


def test_a_loader_that_is_killed_has_no_claim_any_more(table: str, inventory: Inventory) -> None:
    def claimed() -> bytes:
        other = Inventory(table, claim())
        other.claim(claim(*range(100, 200), 4))
        return str(other._number).encode()

    inventory.claim(claim(1))
    children = [Child(claimed) for _ in range(2)]
    try:
        with closing(Shared(table, 1000)) as shared:
            for block in (1, 4, 7):
                shared.get(block, partial(made, b"some"))
            children.pop().kill()
            inventory.claim(claim(1))
            assert inventory.blocks() == {1, 4}
            children.pop().kill()
            inventory.claim(claim(1))
            assert inventory.blocks() == {1}
        child = Child(claimed)
        child.kill()
        assert child.said == b"1"  # the places of those that were killed are used again
    finally:
        for child in children:
            child.kill()


def test_a_random_order_has_its_bytes_beside_what_a_block_order_needs(table: str, inventory: Inventory) -> None:
    with closing(Inventory(table, claim())) as second, closing(Shared(table, 1000)) as shared:
        second.claim(claim(keep=8))
        inventory.claim(claim(0, 9))
        for block in range(6):
            shared.get(block, partial(made, b"some"))
        inventory.claim(claim(0, 9))
        assert inventory.blocks() == {0, 4, 5}


def test_blocks_that_are_all_needed_do_not_take_the_places_of_each_other(
    table: str, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_shared, "_ROWS", 4)
    inventory.claim(claim(*range(6)))
    calls: list[bytes] = []
    with closing(Shared(table, 1000)) as shared:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for block in range(6):
            assert shared.get(block, partial(made, b"some", calls)) == b"some"
        assert inventory.blocks() == {0, 1, 2, 3} and len(calls) == 6
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 5  # the inventory, and four blocks
        inventory.claim(claim(*range(6)))
        monkeypatch.setattr(_shared, "_ROWS", 3)
        inventory.claim(claim(1, 4, 5, 2))
        assert shared.get(4, partial(made, b"some", calls)) == b"some"
        assert inventory.blocks() == {1, 2, 4}


def test_all_agree_on_an_inventory_that_is_only_half_opened(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file can be seen, and its time is earlier, but it is not written yet."""
    with closing(Inventory(table, claim())) as first, closing(Inventory(table, claim())) as second:
        head = os.pread(first._fd, 32, 0)
        os.pwrite(first._fd, bytes(32), 0)
        monkeypatch.setattr(_shared.time, "sleep", lambda _: os.pwrite(first._fd, head, 0))
        monkeypatch.setattr(_shared, "_UNFINISHED", 60.0)
        second.claim(claim(5))
        assert _shared._read_claim(first._fd, 1).needs.tolist() == [5]
    with closing(Inventory(table, claim())) as first, closing(Inventory(table, claim())) as second:
        os.pwrite(first._fd, bytes(32), 0)
        monkeypatch.setattr(_shared, "_UNFINISHED", 0.001)
        second.claim(claim(5))  # it does not wait for ever
        assert _shared._read_claim(second._fd, 0).needs.tolist() == [5]
