"""A panic of a library written in Rust, wherever the user's code runs: an ordinary error that names its sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.errors import PanicError

WAYS: list[dict[str, Any]] = [{}, {"num_workers": 1}, {"num_workers": 1, "backend": "thread"}]


class PanicException(BaseException):
    """As pyo3's: no Exception. The real one belongs to no module."""


class Panicking:
    """Sample 5 panics."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> int:
        if key == 5:
            raise PanicException("index out of bounds")
        return key


class AtOnce(Panicking):
    def __getitems__(self, keys: list[int]) -> list[int]:
        return [self[key] for key in keys]


class Stream(penstock.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0
        raise PanicException("index out of bounds")


def panic(*args: Any) -> Any:
    raise PanicException("index out of bounds")


def panicking() -> Iterator[int]:
    yield 0
    panic()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dataset", [Panicking, AtOnce])
def test_a_panic_in_a_sample_is_an_ordinary_error_that_names_it(dataset: Any, way: dict[str, Any]) -> None:
    with penstock.DataLoader(dataset(), batch_size=4, **way) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(PanicError, match="written in Rust panicked: index out of bounds") as raised:
            next(batches)
        assert any("5" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dataset", [Panicking, AtOnce])
def test_a_sample_that_panics_is_skipped_like_any_other(dataset: Any, way: dict[str, Any]) -> None:
    with penstock.DataLoader(dataset(), batch_size=4, on_error="skip", **way) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 6, 7]]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_panic_in_a_stream_and_in_collate_is_an_ordinary_error(way: dict[str, Any]) -> None:
    for dataset, options in ((Stream(), {}), (range(4), {"collate_fn": panic})):
        with penstock.DataLoader(dataset, batch_size=4, **options, **way) as loader, pytest.raises(PanicError):
            list(loader)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_panic_in_the_callers_part_is_an_ordinary_error(way: dict[str, Any]) -> None:
    with penstock.DataLoader(range(9), sampler=panicking(), **way) as loader, pytest.raises(PanicError):
        list(loader)


def test_a_panic_in_worker_init_fn_is_an_ordinary_error() -> None:
    with pytest.raises(PanicError):
        list(penstock.DataLoader(range(4), batch_size=4, num_workers=1, worker_init_fn=panic))


@pytest.mark.imports_torch
@pytest.mark.parametrize("workers", [0, 1])
def test_a_panic_in_torchs_face_is_an_ordinary_error(workers: int) -> None:
    import torch

    from penstock.torch import DataLoader

    class TorchStream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return panicking()

    given: list[tuple[Any, dict[str, Any]]] = [
        (Panicking(), {}),
        (TorchStream(), {}),
        (range(4), {"collate_fn": panic}),
        (range(4), {"worker_init_fn": panic} if workers else {"sampler": panicking()}),
        (range(9), {"sampler": panicking()}),
    ]
    for dataset, options in given:
        with pytest.raises(PanicError):
            list(DataLoader(dataset, batch_size=4, num_workers=workers, **options))


def test_prefetch_hands_on_an_ordinary_error() -> None:
    with pytest.raises(PanicError):
        list(penstock.prefetch(panicking()))


def test_what_ends_a_program_is_left_alone() -> None:
    class Ends:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, key: int) -> int:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        list(penstock.DataLoader(Ends()))
