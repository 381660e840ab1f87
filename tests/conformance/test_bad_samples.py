"""on_error: a sample that fails need not end the epoch, and who met it does not matter."""

from __future__ import annotations

import errno
import gc
import re
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance import sources
from penstock import CollateError, DataLoader, Dataset, RemoteTraceback, SubsetRandomSampler

N, BAD = 20, (3, 4, 5, 11)


def failing(kind: Any = sources.Failing, bad: Any = BAD) -> Any:
    return kind(N, {key: ValueError(f"pixels of {key}") for key in bad})


KINDS = [sources.Failing, sources.FailingMany, sources.FailingGather]


def read(loader: DataLoader[Any]) -> list[Any]:
    """All that can be told of the batches of an epoch."""
    found: list[Any] = []
    for batch in loader.batches():
        assert batch.index is not None
        skipped = [(key, type(error), str(error)) for key, error in batch.skipped]
        data = batch.data.tolist() if isinstance(batch.data, np.ndarray) else batch.data
        found.append((batch.step, data, batch.index.tolist(), skipped))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_skip_leaves_out_what_fails(make: Any, kind: Any) -> None:
    loader = make(failing(kind), batch_size=3, on_error="skip")
    batches = read(loader)
    # Step 1 has samples 3, 4 and 5: nothing is left of it.
    assert [step for step, *_ in batches] == [0, 2, 3, 4, 5, 6]
    assert [data for _, data, *_ in batches] == [
        [0, 1, 2],
        [6, 7, 8],
        [9, 10],
        [12, 13, 14],
        [15, 16, 17],
        [18, 19],
    ]
    assert all(data == index for _, data, index, _ in batches)
    assert [skipped for *_, skipped in batches if skipped] == [[(11, ValueError, "pixels of 11")]]
    assert [key for key, _ in loader.skipped] == [3, 4, 5, 11]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_replace_keeps_the_size_of_every_batch(make: Any, kind: Any, batch_size: int | None) -> None:
    loader = make(failing(kind), batch_size=batch_size, on_error="replace", seed=1)
    place = 0
    for _, data, index, skipped in read(loader):
        rows = [data] if batch_size is None else data
        assert rows == index
        assert not set(index) & set(BAD)
        wanted = list(range(place, min(place + (batch_size or 1), N)))
        assert [now for now, was in zip(index, wanted, strict=True) if was not in BAD] == [
            key for key in wanted if key not in BAD
        ], "what is good stays where it was"
        assert {key for key, *_ in skipped} >= set(wanted) & set(BAD)
        place += len(wanted)
    assert place == N


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": list(range(19, -1, -1))}])
def test_a_backend_gives_what_the_plain_loop_gives(
    make: Any, kind: Any, on_error: str, order: dict[str, Any]
) -> None:
    settings = {"batch_size": 4, "seed": 2, "on_error": on_error, **order}
    inline = DataLoader(failing(kind), **settings)
    loader = make(failing(kind), **settings)
    for _ in range(2):
        assert read(loader) == read(inline)
    loader.set_epoch(0)
    inline.set_epoch(0)
    assert read(loader) == read(inline), "on replay too"


def test_with_a_sampler_a_replacement_comes_from_the_same_step(make: Any) -> None:
    keys = [[0, 3, 1], [11, 12], [6, 5, 7]]
    loader = make(failing(), batch_sampler=keys, on_error="replace")
    found = [index for _, _, index, _ in read(loader)]
    assert [len(index) for index in found] == [3, 2, 3]
    assert all(set(index) <= set(step) - set(BAD) for index, step in zip(found, keys, strict=True))


class Picky(sources.Failing):
    """Only a plain int is a key."""

    def __getitem__(self, key: int) -> Any:
        assert type(key) is int
        return super().__getitem__(key)


@pytest.mark.parametrize("sampler", [None, list(range(N))])
def test_a_replacement_is_asked_for_by_a_plain_key(make: Any, sampler: Any) -> None:
    loader = make(failing(Picky), batch_size=4, sampler=sampler, on_error="replace", seed=0)
    assert len(list(loader)) == 5
    assert {type(error) for _, error in loader.skipped} == {ValueError}


def test_items_of_a_stream_are_skipped_by_position(make: Any) -> None:
    loader = make(sources.FailingItems(10, frozenset({1, 2, 3, 9})), batch_size=2, on_error="skip")
    assert [(step, data, index) for step, data, index, _ in read(loader)] == [
        (0, [100], [0]),
        (2, [104, 105], [4, 5]),
        (3, [106, 107], [6, 7]),
        (4, [108], [8]),
    ]
    assert [(key, str(error)) for key, error in loader.skipped] == [
        (1, "item 101"),
        (2, "item 102"),
        (3, "item 103"),
        (9, "item 109"),
    ]


def test_single_items_of_a_stream_are_skipped(make: Any) -> None:
    loader = make(sources.FailingItems(5, frozenset({1, 4})), batch_size=None, on_error="skip")
    assert list(loader) == [100, 102, 103]


def test_what_was_skipped_says_all_that_an_error_says(make: Any) -> None:
    loader = make(failing(), batch_size=4, on_error="skip")
    list(loader)
    key, error = loader.skipped[3]
    assert key == 11 and type(error) is ValueError and str(error) == "pixels of 11"
    (note,) = error.__notes__
    where = r"sample 11 \(row 3\), step 2 of epoch 0, in (worker \d|the calling process)"
    assert re.search(where, note)
    assert isinstance(error.__cause__, RemoteTraceback) and "in __getitem__" in str(error.__cause__)
    assert error.__traceback__ is None


def test_an_odd_exception_is_listed_with_its_type(make: Any) -> None:
    loader = make(sources.Oddly(), on_error="skip")
    with pytest.warns(RuntimeWarning, match=r"Every sample of epoch 0 has failed .*\(2, .* Odd: 3 and four"):
        assert list(loader) == []
    assert [(error.first, error.second) for _, error in loader.skipped] == [(3, "four")] * 2


class AllBad(Dataset[int]):
    """From key `sound` on, samples are sound."""

    def __init__(self, sound: int) -> None:
        self._sound = sound

    def __len__(self) -> int:
        return 60

    def __getitem__(self, key: int) -> int:
        if key < self._sound:
            raise OSError(f"/mnt/{key}.jpg is missing")
        return key


def test_an_epoch_that_begins_with_many_bad_samples_warns_once(make: Any) -> None:
    with pytest.warns(RuntimeWarning) as warned:
        batches = list(make(AllBad(50), batch_size=2, on_error="skip"))
    assert len(batches) == 5 and len(warned) == 1
    assert "Every sample of epoch 0 so far has failed and was skipped (32, " in str(warned[0].message)
    assert "Sample 0 raised OSError: /mnt/0.jpg is missing." in str(warned[0].message)
    assert len(list(make(AllBad(20), batch_size=2, on_error="skip"))) == 20  # no warning


def test_a_resumed_epoch_does_not_warn_of_bad_samples_at_its_end(make: Any) -> None:
    class Reversed(AllBad):
        def __getitem__(self, key: int) -> int:
            return super().__getitem__(59 - key)

    loader = make(Reversed(20), batch_size=2, on_error="skip")
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    state = loader.state_dict()
    del batches
    resumed = make(Reversed(20), batch_size=2, on_error="skip")
    resumed.load_state_dict(state)
    assert list(resumed) == []


def test_each_epoch_lists_its_own(make: Any) -> None:
    loader = make(failing(), batch_size=4, on_error="skip")
    assert loader.skipped == []
    for _ in range(2):
        batches = iter(loader)
        next(batches)
        assert [key for key, _ in loader.skipped] == [3]
        list(batches)
        assert [key for key, _ in loader.skipped] == list(BAD)


def test_one_error_too_many_is_raised_in_its_place_each_time(make: Any) -> None:
    loader = make(failing(), batch_size=2, on_error="skip", max_errors=2)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2]]
    with pytest.raises(ValueError, match="pixels of 5") as caught:
        next(batches)
    assert any("max_errors=2" in note for note in caught.value.__notes__)
    assert next(batches).tolist() == [6, 7]
    assert [key for key, _ in loader.skipped] == [3, 4]
    assert next(batches).tolist() == [8, 9]
    with pytest.raises(ValueError, match="pixels of 11"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[12, 13], [14, 15], [16, 17], [18, 19]]


def test_as_many_as_allowed_are_not_too_many(make: Any) -> None:
    loader = make(failing(), batch_size=2, on_error="replace", max_errors=100, seed=0)
    failed = len([error for *_, skipped in read(loader) for error in skipped])
    loader = make(failing(), batch_size=2, on_error="replace", max_errors=failed, seed=0)
    assert len(read(loader)) == 10 and len(loader.skipped) == failed
    loader = make(failing(), batch_size=2, on_error="replace", max_errors=failed - 1, seed=0)
    with pytest.raises(ValueError, match="pixels of"):
        read(loader)


def test_replace_gives_up_where_all_fail(make: Any) -> None:
    loader = make(failing(bad=range(N)), batch_size=2, on_error="replace", seed=0)
    with pytest.raises(ValueError, match="pixels of") as caught:
        list(loader)
    text = "\n".join(caught.value.__notes__)
    assert "to replace sample 0" in text and "15 others" in text and "step 0 of epoch 0" in text


def test_stop_iteration_out_of_a_sample_counts_as_a_failure(make: Any) -> None:
    loader = make(sources.Failing(4, {2: StopIteration()}), batch_size=2, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[0, 1], [3]]


def fail_to_collate(samples: list[Any]) -> Any:
    raise ArithmeticError("no sum")


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_failing_collate_function_is_an_error(make: Any, on_error: str) -> None:
    loader = make(sources.Squares(4), batch_size=2, collate_fn=fail_to_collate, on_error=on_error)
    with pytest.raises(ArithmeticError, match="no sum"):
        list(loader)


def test_a_failing_worker_init_fn_is_an_error(make_concurrent: Any) -> None:
    loader = make_concurrent(sources.Squares(4), worker_init_fn=sources.broken_init, on_error="skip")
    with pytest.raises(LookupError, match="no licence"):
        list(loader)


def test_an_exit_is_not_skipped(make: Any) -> None:
    loader = make(sources.Failing(2, {1: SystemExit(3)}), on_error="skip")
    with pytest.raises(SystemExit):
        list(loader)


def test_the_reading_of_a_stream_is_not_skipped(make: Any) -> None:
    class BreakingLight(sources.Breaking):
        def load(self, item: Any) -> Any:
            return item

    with pytest.raises(OSError, match="the pipe burst"):
        list(make(BreakingLight(), batch_size=2, on_error="skip"))


def test_a_stream_without_load_is_refused() -> None:
    with pytest.raises(ValueError, match=r"define load\(item\)"):
        DataLoader(sources.Countdown(3), on_error="skip")
    with pytest.raises(ValueError, match="needs a dataset with keys"):
        DataLoader(sources.Light(3), on_error="replace")


def test_getitems_of_the_wrong_length_is_an_error(make: Any) -> None:
    class Short(sources.Squares):
        def __getitems__(self, keys: list[int]) -> Any:
            return keys[1:]

    with pytest.raises(ValueError, match="returned 1 sample for 2 keys"):
        list(make(Short(2), batch_size=2, on_error="skip"))


def test_a_collate_error_names_the_samples_that_are_there(make: Any) -> None:
    class Ragged(sources.Failing):
        def __getitem__(self, key: int) -> Any:
            return np.zeros(1 + (super().__getitem__(key) == 9))

    loader = make(Ragged(12, {8: ValueError()}), batch_size=4, on_error="skip")
    with pytest.raises(CollateError) as caught:
        list(loader)
    assert any("row 0 is sample 9" in note for note in caught.value.__notes__), caught.value.__notes__


class Growing(Dataset[Any]):
    def __init__(self) -> None:
        self.n = 4

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        if key < 4:
            raise LookupError(key)
        return key


def test_replacements_come_from_the_dataset_as_long_as_it_is_now(make: Any) -> None:
    dataset = Growing()
    loader = make(dataset, batch_size=4, on_error="replace", seed=0)
    with pytest.raises(LookupError):
        list(loader)
    dataset.n = 40
    first = next(iter(loader))
    assert len(first) == 4 and all(4 <= key < 40 for key in first)


def test_rows_that_fill_a_batch_up_are_counted_among_those_that_are_there(make: Any) -> None:
    # 22 rows for 20 samples: the last batch is 11 to 19, then 0 and 1.
    loader = make(failing(bad=(1, 17)), batch_size=11, last_batch="pad", on_error="skip")
    found = [(batch.index.tolist(), batch.pad) for batch in loader.batches()]
    assert found == [([0, *range(2, 11)], 0), ([11, 12, 13, 14, 15, 16, 18, 19, 0], 1)]


def test_a_row_that_fills_up_is_one_also_where_it_is_replaced_and_alone() -> None:
    # 21 rows for 20 samples: the last of the third rank is 0 again.
    shard = {"shard": (2, 3), "last_batch": "pad", "seed": 1}
    loader = DataLoader(failing(bad=(0,)), batch_size=None, on_error="replace", **shard)
    found = [(len(batch.skipped), batch.pad) for batch in loader.batches()]
    assert found == [(0, 0)] * 6 + [(1, 1)]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_an_epoch_with_bad_samples_is_resumed(make: Any, on_error: str) -> None:
    settings = {"batch_size": 3, "shuffle": True, "seed": 4, "on_error": on_error}
    whole = read(DataLoader(failing(), **settings))
    first = make(failing(), **settings)
    for taken in range(len(whole) + 1):
        first.set_epoch(0)
        batches = first.batches()
        steps = [next(batches).step for _ in range(taken)]
        later = DataLoader(failing(), **settings)
        later.load_state_dict(first.state_dict())
        assert read(later) == whole[taken:] if taken else read(later) == whole, steps


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_each_rank_mends_its_own(make: Any, on_error: str) -> None:
    settings = {"batch_size": 2, "seed": 4, "on_error": on_error, "shard": (1, 2), "last_batch": "keep"}
    assert read(make(failing(), **settings)) == read(DataLoader(failing(), **settings))


def test_replacements_come_from_the_dataset_as_long_as_an_update_made_it(make: Any) -> None:
    loader = make(Growing(), batch_size=4, on_error="replace", seed=0)
    with pytest.raises(LookupError):
        list(loader)
    loader.update(n=40)
    first = next(iter(loader))
    assert len(first) == 4 and all(4 <= key < 40 for key in first)


def test_replacements_come_from_the_order_as_it_is_in_this_epoch(make: Any) -> None:
    sampler = SubsetRandomSampler([3, 6, 7])
    loader = make(failing(), batch_size=3, sampler=sampler, on_error="replace", seed=0)
    assert {key for batch in loader for key in batch.tolist()} == {6, 7}
    sampler.indices = [3, 8, 9]
    assert {key for batch in loader for key in batch.tolist()} == {8, 9}


def test_a_run_that_a_bad_sample_ended_is_resumed_with_another_on_error(make: Any) -> None:
    loader = make(failing(), batch_size=3, seed=0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="pixels of 3"):
        next(batches)
    other = make(failing(), batch_size=3, seed=0, on_error="skip")
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other][:3] == [[6, 7, 8], [9, 10], [12, 13, 14]]


def test_large_and_mended_batches_arrive_whole(make: Any) -> None:
    class Pixels(Dataset[Any]):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, key: int) -> Any:
            if key % 7 == 3:
                raise LookupError("x" * 5000)
            return {"x": np.full(100 if key < 8 else 50_000, key), "s": str(key)}

    loader = make(Pixels(), batch_size=4, on_error="skip")
    for batch in loader.batches():
        assert batch.data["x"][:, -1].tolist() == batch.index.tolist() == [int(s) for s in batch.data["s"]]
    assert [key for key, _ in loader.skipped] == [3, 10, 17]


class Weighty(Dataset[Any]):
    """Remembers its samples weakly, and fails with one in its frame."""

    seen: ClassVar[list[weakref.ref[Any]]] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        sample = np.zeros(3)
        self.seen.append(weakref.ref(sample))
        if key == 2:
            raise ValueError(key)
        return sample


def test_what_is_listed_holds_no_samples() -> None:
    loader = DataLoader(Weighty(), batch_size=4, on_error="skip")
    gc.disable()
    try:
        (batch,) = loader
        del batch
        loader.close()
        assert [key for key, _ in loader.skipped] == [2]
        assert len(Weighty.seen) == 4 and not any(seen() is not None for seen in Weighty.seen)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("on_error", "lack"),
    [("skip", MemoryError("no room")), ("replace", OSError(errno.EMFILE, "Too many open files"))],
    ids=["skip", "replace"],
)
def test_a_lack_of_memory_or_descriptors_is_never_skipped(make: Any, on_error: str, lack: Exception) -> None:
    loader = make(sources.Failing(N, {7: lack}), batch_size=2, on_error=on_error)
    found = []
    with pytest.raises(type(lack), match=re.escape(str(lack))) as raised:
        found.extend(loader)
    assert len(found) == 3, "the batches before it were handed out"
    assert not loader.skipped
    notes = "\n".join(raised.value.__notes__)
    assert "sample 7" in notes
    assert "not a bad sample" in notes
