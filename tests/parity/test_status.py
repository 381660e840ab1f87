"""`enable()` reaches every iterator of torch's, however it is made; `status()` and one warning tell of the others."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import penstock.torch
from penstock.torch import LoaderUse, _status
from penstock.torch import _private as private

KINDS = [private.InlineIterator, private.WorkersIterator]


@pytest.fixture(autouse=True)
def nothing_begun_so_far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_status, "_counts", {})
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of torch's queues, which closes its pipe in its own time
            thread.join(10)


def uses() -> dict[str, LoaderUse]:
    """The entries of `status()`, by the class's own name."""
    return {use.loader_class.rpartition(".")[2]: use for use in penstock.torch.status().loaders}


class KeepsItsIterator(DataLoader[Any]):
    """As ultralytics' InfiniteDataLoader and timm's MultiEpochsDataLoader."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class MakesTorchsIterators(DataLoader[Any]):
    """As LitData's StreamingDataLoader does without workers."""

    def _get_iterator(self) -> Any:
        return KINDS[self.num_workers > 0](self)


class Counting(DataLoader[Any]):
    """As the StreamingDataLoader of MosaicML."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [DataLoader, KeepsItsIterator, MakesTorchsIterators, Counting])
def test_a_subclass_that_gets_its_iterators_from_torch_runs_on_penstock(kind: Any, workers: int) -> None:
    with penstock.torch.enable():
        loader = kind(range(6), batch_size=2, num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert uses()[kind.__name__] == LoaderUse(f"{kind.__module__}.{kind.__name__}", 1, 0)


def in_a_list(sample: Any) -> list[Any]:
    return [sample]


class NotALoader:
    """As fastai's `_FakeLoader`: only the attributes that torch's iterators read, and no class of torch's."""

    pin_memory, pin_memory_device, timeout, persistent_workers = False, "", 0, False
    collate_fn, drop_last, worker_init_fn, generator = staticmethod(in_a_list), False, None, None
    multiprocessing_context, prefetch_factor, in_order, _auto_collation = multiprocessing, 2, True, False
    _IterableDataset_len_called, _index_sampler, dataset = None, range(4), range(4)

    def __init__(self, num_workers: int, *, stream: bool) -> None:
        self.num_workers, self._dataset_kind = num_workers, int(stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_is_made_without_a_loader_class_runs_on_penstock(workers: int, stream: bool) -> None:
    with penstock.torch.enable():
        assert [*KINDS[workers > 0](NotALoader(workers, stream=stream))] == [[0], [1], [2], [3]]
    assert uses()["NotALoader"].on_penstock == 1


class OwnWorkers(private.WorkersIterator):  # type: ignore[misc]
    """As LitData's iterator, which says which worker is next."""

    def _try_put_index(self) -> None:
        super()._try_put_index()


class OwnInline(private.InlineIterator):  # type: ignore[misc]
    pass


class OwnIterators(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return (OwnWorkers if self.num_workers else OwnInline)(self)


@pytest.mark.parametrize(("workers", "iterator"), [(0, "OwnInline"), (1, "OwnWorkers")])
def test_a_loader_with_iterators_of_its_own_keeps_them_and_says_so_once(workers: int, iterator: str) -> None:
    loader = OwnIterators(range(4), batch_size=2, num_workers=workers)
    with penstock.torch.enable():
        with pytest.warns(UserWarning, match=f"OwnIterators uses torch's engine.*{iterator}") as caught:
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert [warning.filename for warning in caught] == [__file__]
        # Warnings are errors here, so the second epoch has none.
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    use = uses()["OwnIterators"]
    assert (use.on_penstock, use.on_torch) == (0, 2)
    assert iterator in (use.reason or "")


@pytest.mark.parametrize("ours", [False, True])
def test_datapipes_with_workers_count_as_torchs(ours: bool) -> None:
    with penstock.torch.enable():
        kind = penstock.torch.DataLoader if ours else DataLoader
        loader = kind(IterableWrapper(range(2)), num_workers=1)
        with pytest.warns(UserWarning, match=r"DataLoader uses torch's engine, not penstock's: DataPipes are seeded"):
            assert [batch.tolist() for batch in loader] == [[0], [1]]
    use = uses()["DataLoader"]
    assert (use.on_penstock, use.on_torch) == (0, 1)


class Own(DataLoader[Any]):
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter([1, 2])


def test_a_loader_whose_iter_reaches_no_engine_is_listed_while_it_exists() -> None:
    loader = Own(range(2))
    assert [*loader] == [1, 2]
    use = uses()["Own"]
    assert (use.on_penstock, use.on_torch) == (0, 0)
    assert "its own __iter__" in (use.reason or "")
    del loader
    assert "Own" not in uses()


def test_without_enable_only_our_class_is_counted() -> None:
    [*DataLoader(range(2))]
    [*penstock.torch.DataLoader(range(2), seed=1)]
    [*penstock.torch.DataLoader(range(2), num_workers=1)]
    status = penstock.torch.status()
    assert not status.enabled
    assert status.loaders == (LoaderUse("penstock.torch._loader.DataLoader", 2, 0),)


def test_it_can_be_read() -> None:
    with penstock.torch.enable():
        assert str(penstock.torch.status()).endswith("every torch loader. Iterations begun so far:\n  none")
        [*DataLoader(range(2))]
        assert str(penstock.torch.status()).splitlines()[1:] == [
            "  torch.utils.data.dataloader.DataLoader: 1 on penstock, 0 on torch"
        ]
    assert "is used by only penstock.torch.DataLoader" in str(penstock.torch.status())


def test_after_disable_torchs_iterators_are_torchs() -> None:
    with penstock.torch.enable(), penstock.torch.enable():
        pass
    penstock.torch.disable()  # twice does no harm
    for workers in (0, 1):
        assert type(iter(DataLoader(range(2), num_workers=workers))) is KINDS[workers]


def test_accelerate_is_told_to_enable_when_it_takes_our_loader() -> None:
    """accelerate asks a loader for this attribute, and then makes one of torch's from its arguments."""
    loader = penstock.torch.DataLoader(range(2))
    with penstock.torch.enable():
        assert getattr(loader, "_is_accelerate_prepared", False) is False
    with pytest.warns(UserWarning, match=r"accelerate.*call penstock.torch.enable\(\)"):
        assert getattr(loader, "_is_accelerate_prepared", False) is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not loader._is_accelerate_prepared
    assert "accelerate" in (uses()["DataLoader"].reason or "")
