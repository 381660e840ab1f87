"""With `seed=` penstock's laws hold in torch's face: what is in a batch does not depend on who computes it."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
import re
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import penstock
from parity.compare import difference
from penstock.source._nested import blocks_of
from penstock.testing import assert_resumes_everywhere, assert_same_everywhere
from penstock.torch import DataLoader
from penstock.torch import _private as private
from tests.stores import Store, threads, until


class Noisy(Dataset[Any]):
    """Each sample has random numbers from all the generators that people use."""

    def __init__(self, n: int = 37) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> Any:
        return {"key": key, "a": random.random(), "b": np.random.random(), "c": torch.rand(3), "s": str(key)}


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ((torch.tensor([n]), torch.rand(1)) for n in range(23))


def epochs(dataset: Any, count: int = 2, **settings: Any) -> list[Any]:
    loader = DataLoader(dataset, seed=11, **settings)
    return [list(loader) for _ in range(count)]


@pytest.mark.parametrize("settings", [{"num_workers": 1}, {"num_workers": 3, "persistent_workers": True}])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_stream_is_the_same_for_any_number_of_workers(settings: dict[str, Any], batch_size: int | None) -> None:
    inline = epochs(Noisy(), shuffle=True, batch_size=batch_size)
    assert difference(epochs(Noisy(), shuffle=True, batch_size=batch_size, **settings), inline) is None
    assert difference(inline[0], inline[1]) is not None
    keys = inline[0] if batch_size is None else [batch["key"] for batch in inline[0]]
    flat = [sample["key"] for sample in keys] if batch_size is None else torch.cat(keys).tolist()
    assert sorted(flat) == list(range(37)) != flat


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.wide)])
def test_the_start_method_does_not_matter(method: str) -> None:
    workers = {"num_workers": 1, "multiprocessing_context": method, "persistent_workers": True}
    given = epochs(Noisy(), shuffle=True, batch_size=8, **workers)
    assert difference(given, epochs(Noisy(), shuffle=True, batch_size=8)) is None


class Blocked(Noisy):
    blocks = np.array([0, 10, 20, 30, 37])


def test_the_order_by_blocks_is_that_of_the_core() -> None:
    core = penstock.DataLoader(Blocked(), 4, shuffle="blocks", window=2, seed=11)
    expected = [[batch["key"].tolist() for batch in core] for _ in range(2)]
    for given in ({"shuffle": "blocks", "num_workers": 1}, {"sampler": penstock.BlockSampler(Blocked.blocks, 2)}):
        window = {"window": 2} if "shuffle" in given else {}
        found = epochs(Blocked(), batch_size=4, **given, **window)
        assert [[batch["key"].tolist() for batch in epoch] for epoch in found] == expected
    by_position: Any = DataLoader(Blocked(), 4, "blocks", seed=11, window=2)
    assert [batch["key"].tolist() for batch in by_position] == expected[0]
    assert len(by_position) == 10


def test_a_state_by_blocks_resumes_and_says_what_differs() -> None:
    def make(**settings: Any) -> Any:
        return DataLoader(Blocked(), 4, shuffle="blocks", **{"window": 2, **settings}, seed=11)

    assert_resumes_everywhere(make, [{"num_workers": 0}])
    first = make()
    next(iter(first))
    with pytest.raises(penstock.StateError, match=r"window 2, .* and is .* window 3"):
        make(window=3).load_state_dict(first.state_dict())
    copied = pickle.loads(pickle.dumps(first))
    assert difference(list(copied), list(first)) is None


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"shuffle": "blocks"}, ValueError, "shuffle='blocks' needs seed=: .*or sampler=penstock.BlockSampler"),
        ({"window": 2}, ValueError, "window=2 needs seed="),
        ({"window": 2, "seed": 1}, ValueError, 'window=2 needs shuffle="blocks"'),
        ({"window": 2, "seed": 1, "shuffle": True}, ValueError, 'window=2 needs shuffle="blocks"'),
        ({"shuffle": "block", "seed": 1}, ValueError, 'shuffle must be True, False, None or "blocks", got .block.'),
        ({"shuffle": "blocks", "seed": 1, "window": 0}, ValueError, "window must be an integer of at least 1"),
        ({"shuffle": "blocks", "seed": 1, "sampler": [0]}, ValueError, "mutually exclusive"),
        ({"shuffle": "blocks", "seed": 1}, TypeError, "Noisy has none: 'Noisy' object has no attribute 'blocks'"),
    ],
    ids=str,
)
def test_an_order_by_blocks_that_is_not_possible_is_refused(
    settings: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        DataLoader(Noisy(), 4, **settings)


def test_a_stream_is_read_once() -> None:
    with pytest.warns(UserWarning, match="read by one reader"):
        given = epochs(Numbers(), batch_size=5, num_workers=2)
    assert difference(given, epochs(Numbers(), batch_size=5)) is None
    assert torch.cat([batch[0] for batch in given[0]]).flatten().tolist() == list(range(23))


def test_the_callers_generators_are_left_alone() -> None:
    for workers in (0, 1):
        torch.manual_seed(4)
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        epochs(Noisy(), shuffle=True, batch_size=4, num_workers=workers)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert np.random.get_state()[1].tolist() == before[2]  # type: ignore[index]


def test_a_sampler_of_ones_own_is_followed() -> None:
    keys = [5, 3, 3, 1]
    (batches,) = epochs(Noisy(), 1, sampler=keys, batch_size=2, num_workers=1)
    assert [batch["key"].tolist() for batch in batches] == [[5, 3], [3, 1]]
    sampler = RandomSampler(range(4), num_samples=3, generator=torch.Generator().manual_seed(0))
    assert len(list(DataLoader(Noisy(), sampler=sampler, seed=1))) == 3


class Mortal(Noisy):
    def __init__(self, lives: Path) -> None:
        super().__init__()
        self.lives = lives

    def __getitem__(self, key: int) -> Any:
        if key == 20:
            for life in self.lives.iterdir():
                life.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


def test_a_worker_that_is_killed_is_not_noticed(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    given = epochs(Mortal(tmp_path), shuffle=True, batch_size=4, num_workers=2)
    assert not list(tmp_path.iterdir())
    assert difference(given, epochs(Noisy(), shuffle=True, batch_size=4)) is None


def who(key: int) -> Any:
    info = get_worker_info()
    assert info is not None
    return info.id, info.num_workers, info.seed, len(info.dataset)  # type: ignore[arg-type]


class Who(Noisy):
    def __getitem__(self, key: int) -> Any:
        return who(key)


def test_torch_tells_a_dataset_which_worker_it_is_in() -> None:
    (batches,) = epochs(Who(), 1, batch_size=None, num_workers=1)
    assert batches == [[0, 1, 11, 37]] * 37


def test_settings_that_torch_lets_change_take_effect_at_the_next_epoch() -> None:
    loader = DataLoader(Noisy(), seed=11, shuffle=True, batch_size=8)
    first = list(loader)
    loader.num_workers, loader.prefetch_factor = 1, 2
    assert difference([first, list(loader)], epochs(Noisy(), shuffle=True, batch_size=8)) is None


def test_an_epoch_may_be_repeated() -> None:
    loader = DataLoader(Noisy(), seed=11, shuffle=True, batch_size=8)
    first = list(loader)
    loader.set_epoch(0)
    assert difference(list(loader), first) is None


@pytest.mark.parametrize("seed", [True, -1, "1", 1.5, 1 << 64])
def test_a_seed_is_a_number(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed must be an int"):
        DataLoader(Noisy(), seed=seed)


def test_persistent_workers_end_with_their_iterator() -> None:
    loader = DataLoader(Noisy(), seed=1, num_workers=1, persistent_workers=True)
    iterator: Any = iter(loader)
    next(iterator)
    (worker,) = iterator._workers
    assert worker.is_alive()
    loader._iterator = None
    del iterator
    worker.join()
    assert not worker.is_alive()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_resumed_on_another_number_of_workers(workers: int) -> None:
    (whole,) = epochs(Noisy(), 1, shuffle=True, batch_size=4)
    taken = DataLoader(Noisy(), 4, shuffle=True, seed=11, num_workers=1)
    batches = iter(taken)
    for _ in range(3):
        next(batches)
    loader = DataLoader(Noisy(), 4, shuffle=True, seed=11, num_workers=workers)
    loader.load_state_dict(json.loads(json.dumps(taken.state_dict())))
    assert difference(list(loader), whole[3:]) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_have_the_batches_of_one_process_in_turn(workers: int) -> None:
    (alone,) = epochs(Noisy(), 1, shuffle=True, batch_size=4)
    for rank in range(2):
        loader = DataLoader(
            Noisy(), 4, shuffle=True, seed=11, num_workers=workers, shard=(rank, 2), last_batch="keep"
        )
        batches = list(loader)
        assert difference(batches, alone[rank::2]) is None
        assert len(loader) == len(batches) == 5


def test_a_rank_pads_its_last_batch() -> None:
    loader = DataLoader(Noisy(), 4, seed=11, shard=(1, 2))
    assert [len(batch["key"]) for batch in loader] == [4] * 5
    assert loader.shard == (1, 2) and loader.last_batch is None


@pytest.mark.parametrize(
    ("settings", "instead"),
    [({"shard": (0, 2)}, "DistributedSampler"), ({"last_batch": "drop"}, "drop_last")],
)
def test_without_a_seed_ranks_are_torchs_business(settings: dict[str, Any], instead: str) -> None:
    with pytest.raises(ValueError, match=instead):
        DataLoader(Noisy(), **settings)


def test_a_rank_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="rank"):
        DataLoader(Noisy(), seed=0, shard=(2, 2))
    with pytest.raises(ValueError, match="last_batch"):
        DataLoader(Noisy(), seed=0, last_batch="some")


SAMPLERS: dict[str, Any] = {
    "a subset": lambda data: SubsetRandomSampler(range(3, 23)),
    "with replacement": lambda data: RandomSampler(data, replacement=True, num_samples=20),
    "of another source": lambda data: RandomSampler(range(20)),
    "weighted": lambda data: WeightedRandomSampler([1.0] * 37, 20),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_torchs_random_samplers_draw_from_the_seed(name: str) -> None:
    def loader(workers: int) -> Any:
        data = Noisy()
        return DataLoader(data, 4, sampler=SAMPLERS[name](data), seed=5, num_workers=workers)

    whole = list(loader(0))
    assert difference(list(loader(1)), whole) is None
    taken = loader(1)
    batches = iter(taken)
    next(batches)
    resumed = loader(0)
    resumed.load_state_dict(taken.state_dict())
    assert difference(list(resumed), whole[1:]) is None


class Loads(IterableDataset[Any]):
    """torch knows nothing of `load`: here it means something else."""

    def __iter__(self) -> Any:
        return iter(range(6))

    def load(self, path: str) -> None:
        raise AssertionError("this is not for a loader")


def test_a_method_named_load_of_a_torch_dataset_is_left_alone() -> None:
    (batches,) = epochs(Loads(), 1, batch_size=3, num_workers=1)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]


def test_a_setting_that_changes_after_a_state_was_loaded_keeps_the_place() -> None:
    loader = DataLoader(Noisy(), 4, seed=5)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.timeout, loader.num_workers, loader.prefetch_factor = 5, 1, 2
    assert len(list(loader)) == 9


def test_a_copy_goes_on_with_the_epochs() -> None:
    loader = DataLoader(Noisy(), 8, shuffle=True, seed=5)
    list(loader)
    twin = pickle.loads(pickle.dumps(loader))
    assert difference(list(twin), list(loader)) is None


class Trainer:
    """Holds its loader, whose workers hold it."""

    def __init__(self, seed: int | None) -> None:
        self.loader: Any = DataLoader(
            Noisy(), seed=seed, num_workers=1, persistent_workers=True, worker_init_fn=self.init
        )

    def init(self, worker: int) -> None:
        pass


@pytest.mark.parametrize("seed", [None, 1])
def test_a_loader_that_its_own_workers_refer_to_is_freed(seed: int | None) -> None:
    trainer = Trainer(seed)
    next(iter(trainer.loader))
    gone = weakref.ref(trainer.loader)
    del trainer
    gc.collect()
    assert gone() is None  # and the fixture finds nothing left behind


class Drawing(Dataset[Any]):
    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> Any:
        if key in self.bad:
            raise LookupError(key)
        return torch.tensor([key, penstock.rng().random()])


@pytest.mark.parametrize("workers", [1, 2])
def test_random_numbers_of_a_sample_do_not_depend_on_the_workers(workers: int) -> None:
    inline = epochs(Drawing(), batch_size=4, shuffle=True)
    assert difference(epochs(Drawing(), batch_size=4, shuffle=True, num_workers=workers), inline) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_seed_a_sample_has_no_random_numbers_of_its_own(workers: int) -> None:
    with pytest.raises(RuntimeError, match=r"penstock\.torch it needs seed="):
        list(DataLoader(Drawing(), num_workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_skipped(workers: int) -> None:
    loader = DataLoader(Drawing((3, 4, 5)), batch_size=2, num_workers=workers, seed=0, on_error="skip")
    assert loader.skipped == []
    assert [batch[:, 0].tolist() for batch in loader][1] == [2]
    assert [(key, type(error)) for key, error in loader.skipped] == [(key, LookupError) for key in (3, 4, 5)]


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_replaced_until_there_are_too_many(workers: int) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "on_error": "replace"}
    inline = epochs(Drawing((3, 9)), **settings)
    assert difference(epochs(Drawing((3, 9)), num_workers=workers, **settings), inline) is None
    assert all(len(batch) == 4 for epoch in inline for batch in epoch)
    with pytest.raises(LookupError):
        epochs(Drawing((3, 9)), num_workers=workers, max_errors=1, **settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_error", "skip"),
        ("max_errors", 3),
        ("shard", (0, 2)),
        ("last_batch", "rollover"),
        ("ray_options", {}),
        ("backend_options", {}),
    ],
)
def test_without_a_seed_what_needs_one_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}={re.escape(repr(value))} needs seed=: without it"):
        DataLoader(Drawing(), **{name: value})


@pytest.mark.parametrize("argument", ["backend_options", "multiprocessing_context"])
def test_a_registered_backend_gets_its_options(argument: str) -> None:
    made: list[Any] = []

    def make(job: penstock.backends.Job, given: Any) -> penstock.backends.Backend:
        made.append(given)
        return penstock.backends.make("process", job)

    penstock.backends.register("mine", make, argument=argument)
    try:
        with DataLoader(range(4), num_workers=1, seed=0, backend="mine", **{argument: "spawn"}) as loader:
            assert [batch.item() for batch in loader] == [0, 1, 2, 3]
    finally:
        penstock.backends.unregister("mine")
    assert [given if isinstance(given, str) else given.get_start_method() for given in made] == ["spawn"]


def test_a_registered_backend_of_threads_is_refused() -> None:
    penstock.backends.register("mine", lambda job, given: penstock.backends.make("thread", job), threads=True)
    try:
        with pytest.raises(ValueError, match=r'^backend="mine" is not possible here: workers seed torch'):
            DataLoader(range(4), num_workers=1, seed=0, backend="mine")
    finally:
        penstock.backends.unregister("mine")


def test_a_way_with_bad_samples_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match='"raise", "skip" or "replace"'):
        DataLoader(Drawing(), seed=0, on_error="ignore")
    with pytest.raises(ValueError, match="needs a dataset with keys"):
        DataLoader(Numbers(), seed=0, on_error="replace")


class Halves(Dataset[Any]):
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> Any:
        return {
            "x": torch.full((2,), key * self.amount, dtype=torch.bfloat16),
            "y": torch.tensor(penstock.rng().random()),
        }


def test_the_stream_of_a_torch_loader_can_be_asserted_to_be_the_same() -> None:
    assert_same_everywhere(
        lambda num_workers: DataLoader(Halves(1), batch_size=2, seed=1, num_workers=num_workers),
        [{"num_workers": 0}, {"num_workers": 2}],
    )
    with pytest.raises(
        AssertionError,
        match=r"batch 0 of epoch 0 differs from that in the plain run \(num_workers=0\), in \['x'\]: at \[1, 0\]",
    ):
        assert_same_everywhere(
            lambda num_workers: DataLoader(Halves(1 + num_workers), batch_size=2, seed=1, num_workers=num_workers),
            [{"num_workers": 1}],
        )


def test_a_torch_loader_is_tried_with_the_settings_that_it_takes() -> None:
    made = []

    def make(**settings: Any) -> Any:
        loader = DataLoader(Noisy(9), batch_size=4, shuffle=True, seed=1, **settings)
        made.append(settings)
        return loader

    assert_same_everywhere(make)
    assert {"num_workers": 3} in made and not any("backend" in settings for settings in made)
    assert_resumes_everywhere(make, steps=2)


# Which samples a batch has.


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_say_which_rows_only_fill_up(workers: int) -> None:
    found = []
    for rank in range(2):
        loader = DataLoader(Noisy(10), 4, True, seed=1, shard=(rank, 2), num_workers=workers)
        plain = list(loader)
        loader.set_epoch(0)
        for batch, same in zip(loader.batches(), plain, strict=True):
            assert difference(batch.data, same) is None
            assert batch.index is not None and batch.data["key"].tolist() == batch.index.tolist()
            found += batch.data["key"][: len(batch.index) - batch.pad].tolist()
    assert sorted(found) == list(range(10))


def test_batches_are_the_next_epoch_and_can_be_stopped() -> None:
    loader = DataLoader(Noisy(10), 4, seed=1)
    assert [(batch.epoch, batch.step) for batch in loader.batches()] == [(0, 0), (0, 1), (0, 2)]
    batches = loader.batches()
    assert (next(batches).epoch, loader.state_dict()["steps"]) == (1, 1)
    other = DataLoader(Noisy(10), 4, seed=1)
    other.load_state_dict(loader.state_dict())
    assert [batch.step for batch in other.batches()] == [1, 2]


def test_batches_use_the_workers_that_are_kept() -> None:
    loader = DataLoader(Noisy(10), 4, seed=1, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    [pid] = [worker.pid for worker in batches._workers]
    list(batches)
    assert len(list(loader.batches())) == 3
    assert [worker.pid for worker in iter(loader)._workers] == [pid]


def test_batches_are_pinned_as_plain_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        patch.setattr(private, "pin", lambda data, device: ("pinned", device, data))
        loader = DataLoader([1, 2], 2, seed=1, pin_memory=True)
        [batch] = loader.batches()
        assert batch.data[:2] == ("pinned", "cuda") == next(iter(loader))[:2]
        assert batch.index is not None and batch.index.tolist() == [0, 1]


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_pinned_once_after_they_arrive(
    seed: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(private, "pin", lambda data, device: ("pinned", device, data.tolist()))
    loader = DataLoader([1, 2, 3], 2, seed=seed, pin_memory=True, num_workers=workers)
    assert list(loader) == [("pinned", "cuda", [1, 2]), ("pinned", "cuda", [3])]


def test_without_a_seed_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^batches\(\) needs seed=: without it"):
        DataLoader(Noisy()).batches()


class Growing(Dataset[Any]):
    def __init__(self) -> None:
        self.n, self.scale = 8, 1

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        return key * self.scale


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_update_is_in_the_next_batch(workers: int, persistent: bool) -> None:
    more = {"persistent_workers": persistent} if workers else {}
    loader = DataLoader(Growing(), 2, num_workers=workers, seed=0, **more)
    found = []
    for step, batch in enumerate(loader):
        found.append(batch.tolist())
        if step == 1:
            loader.update(scale=10)
        if step == 2:
            loader.update(lambda data: setattr(data, "scale", 100))
    assert found == [[0, 1], [2, 3], [40, 50], [600, 700]]
    loader.update(n=2)
    assert (len(loader), [batch.tolist() for batch in loader]) == (1, [[0, 100]])


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_seed_an_update_is_refused_and_says_what_to_do(workers: int) -> None:
    data = Growing()
    with pytest.raises(ValueError, match=r"^update\(\) needs seed=: .* Give seed=; or change loader\.dataset"):
        DataLoader(data, num_workers=workers).update(scale=3)
    assert data.scale == 1


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int) -> Any:
        return {"x": torch.zeros(3 + (key in (4, 6)))}


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_do_not_fit_together_are_named(workers: int) -> None:
    loader = DataLoader(Ragged(), 6, sampler=[9, 1, 4, 2, 6, 3], seed=0, num_workers=workers)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        list(loader)
    assert "row 2 is sample 4, row 4 is sample 6." in caught.value.__notes__


class Light(penstock.IterableDataset[Any], IterableDataset[Any]):
    """Light items with random numbers of torch's, drawn where they are read."""

    def __iter__(self) -> Any:
        return ((key, torch.rand(1).item()) for key in torch.randperm(12).tolist())

    def load(self, item: Any) -> Any:
        return item


@pytest.mark.parametrize("workers", [0, 2])
def test_light_items_are_read_with_torchs_generator_at_the_seed(workers: int) -> None:
    torch.manual_seed(1)
    (expected,) = epochs(Light(), 1, batch_size=4)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    (given,) = epochs(Light(), 1, batch_size=4, num_workers=workers)
    assert difference(given, expected) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_that_cannot_begin_says_it_once(monkeypatch: Any) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    loader = DataLoader(Noisy(), seed=1, num_workers=1, persistent_workers=True, prefetch_factor=0)
    with pytest.raises(ValueError, match="prefetch_factor"):
        iter(loader)
    gc.collect()
    assert not ignored


@pytest.mark.parametrize("kept", [0, 1])
def test_an_iterator_that_is_dropped_leaves_anothers_workers_alone(kept: int) -> None:
    """As where two threads begin to iterate at once: each makes an iterator, and one replaces the other."""
    loader = DataLoader(Noisy(), 4, seed=1, num_workers=1, persistent_workers=True)
    both = []
    for _ in range(2):
        both.append(iter(loader))
        loader._iterator = None
        next(both[-1])
    used = both[kept]
    del both
    assert len(list(used)) == 9


def test_a_shallow_copy_has_epochs_of_its_own() -> None:
    plain = DataLoader(Noisy(), 8, shuffle=True, seed=5)
    expected = [list(plain) for _ in range(3)]
    loader = DataLoader(Noisy(), 8, shuffle=True, seed=5)
    list(loader)
    twin = copy.copy(loader)
    assert difference(list(twin), expected[1]) is None
    assert difference(list(loader), expected[1]) is None
    assert difference(list(twin), expected[2]) is None


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_shallow_copy_stays_where_it_was_made(settings: dict[str, Any]) -> None:
    loader = DataLoader(Noisy(), 8, seed=5, **settings)
    batches = iter(loader)
    next(batches)
    twin, state = copy.copy(loader), loader.state_dict()
    next(batches)
    assert twin.state_dict() == state
    after = loader.state_dict()
    list(twin)
    assert loader.state_dict() == after
    assert len(list(batches)) == 3


class WithNames(DataLoader[Any]):
    """A class of the user's that has other plans with our names."""

    last_batch = "of mine"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.shard, self.on_error = 3, print  # type: ignore[assignment]
        super().__init__(*args, **kwargs)
        self.seed, self.max_errors, self.skipped = 7, -1, {}  # type: ignore[assignment]


@pytest.mark.parametrize("seed", [None, 1])
def test_names_of_ours_are_free_in_a_subclass(seed: int | None) -> None:
    def run(kind: Any) -> list[Any]:
        torch.manual_seed(0)
        loader = kind(range(20), batch_size=4, shuffle=True, seed=seed)
        first = [len(loader), *loader]
        state = loader.state_dict()
        loader.load_state_dict(state)
        return [*first, *loader, state]

    assert difference(run(WithNames), run(DataLoader)) is None
    loader = WithNames(range(4), seed=seed)
    assert (loader.shard, loader.on_error, loader.seed, loader.max_errors) == (3, print, 7, -1)
    assert (loader.skipped, loader.last_batch) == ({}, "of mine")


def test_settings_can_be_read() -> None:
    loader = DataLoader(Noisy(), 4, seed=1, shard=(0, 2), last_batch="keep", on_error="skip", max_errors=2)
    assert (loader.seed, loader.shard, loader.last_batch) == (1, (0, 2), "keep")
    assert (loader.on_error, loader.max_errors, loader.skipped) == ("skip", 2, [])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_told_which_keys_will_be_asked_for(tmp_path: Path, workers: int) -> None:
    store = Store(tmp_path, 10, 1 << 20)
    loader = DataLoader(store, batch_size=10, shuffle=True, seed=1, num_workers=workers)
    for _ in range(2):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(100))
    assert sorted(block for block, _ in store.fetched()) == list(range(10))
    assert "penstock-scout" in threads()
    del loader
    gc.collect()
    until(lambda: not threads())


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_pieces_are_fetched_ahead_through_subsets_and_concatenations_of_torch(tmp_path: Path, shuffle: Any) -> None:
    stores = []
    for name in "ab":
        (tmp_path / name).mkdir()
        stores.append(Store(tmp_path / name, 10, 1 << 20))
    seeded = torch.Generator().manual_seed(0)
    halves = [torch.utils.data.random_split(one, [50, 50], seeded)[0] for one in stores]  # type: ignore[arg-type]
    whole: Any = torch.utils.data.ConcatDataset(halves)
    loader = DataLoader(whole, batch_size=10, shuffle=shuffle, seed=1)
    batches = iter(loader)
    until(lambda: all(len(one.fetched()) == 10 for one in stores))
    given = torch.cat(list(batches)).tolist()
    assert sorted(given) == sorted(key for half in halves for key in half.indices)
    assert {by for one in stores for _, by in one.fetched()} == {"scout"}
    assert len(blocks_of(whole)) == 20
    del batches, loader
    until(lambda: not threads())
