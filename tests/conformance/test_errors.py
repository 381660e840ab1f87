"""Law 7: an error keeps its type, and names its sample."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import numpy as np
import pytest

from conformance import sources
from penstock import CollateError, RemoteTraceback


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def test_an_error_names_sample_step_epoch_and_worker(make: Any) -> None:
    loader = make(sources.Failing(10, {7: ValueError("bad pixels")}), batch_size=3)
    with pytest.raises(ValueError, match="bad pixels") as caught:
        list(loader)
    assert re.search(
        r"sample 7 \(row 1\), step 2 of epoch 0, in (worker \d|the calling process)", notes(caught.value)
    )
    assert len(caught.value.__notes__) == 1


def test_an_error_among_many_samples_that_are_made_at_once_names_its_own(make: Any) -> None:
    loader = make(sources.DrawingEach(10, bad=7), batch_size=3)
    with pytest.raises(ValueError, match="bad pixels") as caught:
        list(loader)
    assert "In sample 7 (row 1), step 2 of epoch 0" in notes(caught.value)


def test_an_error_in_a_process_brings_its_traceback(make_processes: Any) -> None:
    loader = make_processes(sources.Failing(3, {1: ValueError("bad pixels")}))
    with pytest.raises(ValueError) as caught:
        list(loader)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in __getitem__" in str(cause) and "bad pixels" in str(cause)


def test_iteration_goes_on_after_an_error(make: Any) -> None:
    loader = make(sources.Failing(8, {2: KeyError("x"), 5: OSError(5, "io")}), batch_size=2)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(KeyError):
        next(batches)
    with pytest.raises(OSError) as caught:
        next(batches)
    assert caught.value.errno == 5
    assert next(batches).tolist() == [6, 7]
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, SystemExit])
def test_what_is_no_exception_but_is_raised_like_one_is_an_error_like_any(make: Any, kind: Any) -> None:
    batches = iter(make(sources.Failing(3, {1: kind("enough")})))
    assert next(batches).tolist() == [0]
    with pytest.raises(kind, match="enough") as caught:
        next(batches)
    assert "sample 1 (row 0), step 1 of epoch 0" in notes(caught.value)
    assert [batch.tolist() for batch in batches] == [[2]]


def test_an_exception_with_an_odd_constructor_keeps_type_and_attributes(make: Any) -> None:
    loader = make(sources.Oddly())
    with pytest.raises(sources.Odd, match="3 and four") as caught:
        list(loader)
    assert (caught.value.first, caught.value.second) == (3, "four")


def test_an_exception_of_a_local_class_can_be_caught(make: Any) -> None:
    class LocalError(Exception):
        pass

    def fail(samples: Any) -> Any:
        raise LocalError("here")

    loader = make(sources.Squares(2), collate_fn=fail)
    with pytest.raises(LocalError, match="here"):
        list(loader)


def test_stop_iteration_out_of_a_dataset_is_an_error(make: Any) -> None:
    loader = make(sources.Failing(4, {2: StopIteration()}), batch_size=2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        next(batches)
    assert "sample 2" in notes(caught.value)


def test_a_collate_error_names_field_shapes_rows_and_samples(make: Any) -> None:
    rows = [{"x": np.zeros(3)}, {"x": np.zeros(3)}, {"x": np.zeros(4)}, {"x": np.zeros(3)}]
    loader = make(rows, batch_size=3, sampler=[0, 1, 3, 3, 2, 1])
    batches = iter(loader)
    next(batches)
    with pytest.raises(CollateError) as caught:
        next(batches)
    text = f"{caught.value}\n{notes(caught.value)}"
    for part in ("['x']", "(4,)", "(3,)", "row 1", "sample 2", "step 1"):
        assert part in text
    assert "It differs from row 0, which is sample 3." in notes(caught.value)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"x": 1, "y": 2}, "It differs from row 1, which is sample 1."),
        ({"x": "text"}, "It differs from row 1, which is sample 1."),
        ({"x": 1 << 70}, None),
    ],
)
def test_a_collate_error_names_the_sample_that_others_are_compared_with(
    make: Any, odd: Any, said: str | None
) -> None:
    with pytest.raises(CollateError) as caught:
        list(make([odd, {"x": 1}, {"x": 2}], batch_size=3))
    assert "row 0 is sample 0." in caught.value.__notes__
    assert [note for note in caught.value.__notes__ if "differ" in note] == ([] if said is None else [said])


def test_a_batch_that_cannot_be_pickled_says_what_to_do(make_processes: Any) -> None:
    loader = make_processes([1, 2], collate_fn=lambda samples: {"lock": threading.Lock(), "x": np.array(samples)})
    batches = iter(loader)
    for step in range(2):
        with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock'") as caught:
            next(batches)
        assert "pickles everything else. Let collate_fn return objects that can be pickled" in notes(caught.value)
        assert f"step {step}" in notes(caught.value)


def test_getitems_of_the_wrong_length_is_an_error(make: Any) -> None:
    class Short(sources.Batched):
        def __getitems__(self, keys: list[int]) -> Any:
            return keys[1:]

    with pytest.raises(ValueError, match="returned 1 sample for 2 keys"):
        list(make(Short([1, 2]), batch_size=2))


def test_a_failing_worker_init_fn_is_reported_as_itself_each_time(make_concurrent: Any) -> None:
    loader = make_concurrent(sources.Squares(4), worker_init_fn=sources.broken_init)
    batches = iter(loader)
    for _ in range(4):
        with pytest.raises(LookupError, match="no licence") as caught:
            next(batches)
        assert "worker_init_fn" in notes(caught.value)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.filterwarnings("ignore:A stream is read by one reader")
def test_a_stream_that_raises_delivers_what_came_before(make: Any) -> None:
    batches = iter(make(sources.Breaking(), batch_size=2))
    assert next(batches).tolist() == [0, 1]
    assert next(batches).tolist() == [2, 3]
    with pytest.raises(OSError, match="the pipe burst"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_a_stream_read_here_that_raises_delivers_what_came_before(make: Any) -> None:
    class BreakingLight(sources.Breaking):
        def load(self, item: Any) -> Any:
            return item

    batches = iter(make(BreakingLight(), batch_size=2))
    assert next(batches).tolist() == [0, 1]
    assert next(batches).tolist() == [2, 3]
    with pytest.raises(OSError, match="the pipe burst") as caught:
        next(batches)
    assert "step 2" in notes(caught.value)
    with pytest.raises(StopIteration):
        next(batches)


def test_a_sampler_that_raises_delivers_what_came_before(make: Any) -> None:
    def sampler() -> Any:
        yield from (4, 3, 2)
        raise ArithmeticError("no more luck")

    class Sampler:
        def __iter__(self) -> Any:
            return sampler()

    batches = iter(make(sources.Squares(5), sampler=Sampler()))
    assert [next(batches).item() for _ in range(3)] == [16, 9, 4]
    with pytest.raises(ArithmeticError, match="no more luck"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_an_index_out_of_range_is_the_users_error(make: Any) -> None:
    with pytest.raises(IndexError) as caught:
        list(make([1, 2, 3], sampler=[0, 9]))
    assert "sample 9" in notes(caught.value)
