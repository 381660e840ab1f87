"""penstock's loader, as its JAX face shows it: masks, the batch as a pytree, batches ahead, states, changes."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import penstock
import penstock.jax
from penstock.testing._laws import until

BACKENDS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "backend": "thread"}]
BY_ROWS = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), P("data"))


def values(batches: Any) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in batches]


# Shapes and masks.


def test_every_batch_has_the_same_shape_and_the_mask_says_which_rows_count() -> None:
    loader = penstock.jax.DataLoader(np.arange(10), 4)
    batches = list(loader.batches())
    assert [batch.data.shape for batch in batches] == [(4,)] * 3 == [(4,)] * len(loader)
    assert values(batch.mask for batch in batches) == [[True] * 4, [True] * 4, [True, True, False, False]]
    assert sum(int((batch.data * batch.mask).sum()) for batch in batches) == sum(range(10))
    assert [batch.pad for batch in batches] == [0, 0, 2]
    assert [batch.index.tolist() for batch in batches][2] == [8, 9, 0, 1]


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ({"last_batch": "keep"}, [4, 4, 2]),
        ({"last_batch": "drop"}, [4, 4]),
        ({"drop_last": True}, [4, 4]),
        ({"last_batch": "rollover"}, [4, 4]),
        ({"sampler": penstock.SubsetRandomSampler([3, 2, 1, 0, 9])}, [4, 4]),
        ({"sampler": (key for key in [3, 2, 1, 0, 9])}, [4, 1]),
        ({"batch_size": 1, "batch_sampler": [[3, 2], [1]]}, [2, 1]),
    ],
)
def test_the_last_batch_is_filled_up_where_its_end_is_known(given: dict[str, Any], shapes: list[int]) -> None:
    loader = penstock.jax.DataLoader(np.arange(10), **{"batch_size": 4, **given})
    batches = list(loader.batches())
    assert [len(batch.data) for batch in batches] == [len(batch.mask) for batch in batches] == shapes


def test_a_stream_has_a_short_last_batch_and_with_a_sharding_the_user_chooses() -> None:
    class Stream(penstock.IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    assert [len(batch) for batch in penstock.jax.DataLoader(Stream(), 4)] == [4, 4, 2]
    with pytest.raises(ValueError, match=r'sharding= and a stream.*last_batch="drop".*"keep".*4 parts'):
        penstock.jax.DataLoader(Stream(), 4, sharding=BY_ROWS)
    with pytest.raises(ValueError, match=r"sharding= and a sampler of your own"):
        penstock.jax.DataLoader(np.arange(9), 4, sharding=BY_ROWS, sampler=(key for key in range(9)))
    assert [len(batch) for batch in penstock.jax.DataLoader(Stream(), 4, sharding=BY_ROWS, last_batch="drop")] == [
        4,
        4,
    ]


def test_batches_by_tokens_and_buckets_have_few_shapes() -> None:
    rows = penstock.dataset([np.ones(1 + n % 13) for n in range(60)]).with_lengths(len)
    given = {"batch_tokens": 64, "buckets": [4, 8, 16], "collate_fn": penstock.pad(), "seed": 0, "shuffle": True}
    lengths = {batch.values.shape[1] for batch in penstock.jax.DataLoader(rows, **given)}
    assert lengths <= {4, 8, 16}
    with pytest.raises(ValueError, match=r"sharding splits them into 4 parts. Use batch_multiple=4"):
        penstock.jax.DataLoader(rows, sharding=BY_ROWS, **given)


def test_samples_that_were_skipped_are_not_in_the_mask() -> None:
    class Bad:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, key: int) -> int:
            if key == 5:
                raise ValueError(key)
            return key

    batches = list(penstock.jax.DataLoader(Bad(), 4, on_error="skip").batches())
    assert values(batch.mask for batch in batches) == [[True] * 4, [True, False, False]]
    assert [key for key, _ in batches[1].skipped] == [5]


# The batch as a pytree.


def test_a_jitted_function_takes_batches_and_is_compiled_once() -> None:
    step = jax.jit(lambda batch: (batch.data["x"] * batch.mask).sum() + 0 * batch.step)
    loader = penstock.jax.DataLoader([{"x": float(n)} for n in range(10)], 4, shuffle=True, seed=0)
    totals = [sum(float(step(batch)) for batch in loader.batches()) for _ in range(3)]
    assert totals == [45.0] * 3
    assert step._cache_size() == 1


def test_a_batch_is_rebuilt_by_tree_map() -> None:
    (batch,) = penstock.jax.DataLoader([{"x": 1.0}, {"x": 2.0}], 2).batches()
    doubled = jax.tree.map(lambda leaf: leaf * 2, batch)
    assert type(doubled) is penstock.jax.Batch
    assert (doubled.data["x"].tolist(), doubled.step, doubled.index) == ([2.0, 4.0], 0, None)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(batch)[0]]
    assert paths == [".data['x']", ".mask", ".epoch", ".step", ".pad"]


def test_a_donated_mask_is_made_again() -> None:
    use = jax.jit(lambda batch: ~batch.mask, donate_argnums=0)
    for batch in penstock.jax.DataLoader(np.arange(8), 4).batches():
        assert not use(batch).any()


# Batches ahead.


class Counted:
    """Counts the batches that were put on devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.placed: list[Any] = []
        place = penstock.jax._arrays.DevicePlacer.__call__

        def counted(placer: Any, batch: Any, root: Any) -> Any:
            self.placed.append(made := place(placer, batch, root))
            return made

        monkeypatch.setattr(penstock.jax._arrays.DevicePlacer, "__call__", counted)


def done(loader: Any, number: int) -> None:
    """Waits until the workers are this many tasks ahead of the caller."""
    (engine,) = loader._session.engines.all()
    until(lambda: engine.ready + engine.backend._outcomes.qsize() >= number, "the threads are ahead")


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_batches_are_on_the_device_before_they_are_asked_for(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    counted = Counted(monkeypatch)
    # A timeout makes each step a task of its own.
    given: dict[str, Any] = {"num_workers": 1, "backend": "thread", "prefetch_factor": 6, "timeout": 100}
    with penstock.jax.DataLoader(np.arange(40), 4, ahead=ahead, **given) as loader:
        assert loader.ahead == ahead
        batches = iter(loader)
        first = next(batches)
        done(loader, ahead + 1)
        second = next(batches)
        assert len(counted.placed) == 2 + ahead
        assert loader.state_dict()["steps"] == 2, "what is ahead does not count"
        third = next(batches)
        assert values([first, second, third]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert second is counted.placed[1]
        assert third is counted.placed[2]


def test_without_workers_nothing_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    for number, _ in enumerate(penstock.jax.DataLoader(np.arange(40), 4), 1):
        assert len(counted.placed) == number


def test_small_steps_that_share_a_task_are_ahead_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    with penstock.jax.DataLoader(np.arange(4000), 4, num_workers=1, seed=0) as loader:
        for number, batch in enumerate(loader.batches(), 1):
            assert number <= len(counted.placed) <= number + 2
            assert np.asarray(batch.data).tolist() == batch.index.tolist()
    assert len(counted.placed) == 1000, "each batch was put on the device once"


@pytest.mark.parametrize("backend", range(3))
def test_an_update_shows_in_the_next_batch_whatever_is_ahead(backend: int) -> None:
    class Scaled:
        scale = 1

        def __len__(self) -> int:
            return 40

        def __getitem__(self, key: int) -> int:
            return key * self.scale

    with penstock.jax.DataLoader(Scaled(), 4, **BACKENDS[backend]) as loader:
        for step, batch in enumerate(loader):
            assert np.asarray(batch).tolist() == [key * (step + 1) for key in range(4 * step, 4 * step + 4)]
            loader.update(scale=step + 2)


def test_new_weights_of_a_mixture_drop_what_is_ahead() -> None:
    ones, twos = penstock.dataset([1] * 500), penstock.dataset([2] * 500)
    mixed = penstock.mix({"a": ones, "b": twos}, {"a": 1.0, "b": 1e-9}, seed=0)
    with penstock.jax.DataLoader(mixed, 4, seed=0, num_workers=1, backend="thread") as loader:
        batches = iter(loader)
        assert np.asarray(next(batches)).tolist() == [1] * 4
        loader.update(weights={"a": 1e-9, "b": 1.0})
        assert np.asarray(next(batches)).tolist() == [2] * 4


# States.


@pytest.mark.parametrize("backend", range(3))
@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_continues_after_any_batch(backend: int, sharded: bool) -> None:
    given = {"shuffle": True, "seed": 4, "sharding": BY_ROWS if sharded else None}
    whole = [
        (batch.step, *values([batch.data, batch.mask]))
        for batch in penstock.jax.DataLoader(np.arange(26), 4, **given).batches()
    ]
    with penstock.jax.DataLoader(np.arange(26), 4, **given, **BACKENDS[backend]) as loader:
        states = [json.dumps(loader.state_dict())]
        states += [json.dumps(loader.state_dict()) for _ in loader]
        for taken, state in enumerate(states[:-1]):
            loader.load_state_dict(json.loads(state))
            rest = [(batch.step, *values([batch.data, batch.mask])) for batch in loader.batches()]
            assert rest == whole[taken:]


def test_states_are_those_of_numpys_loader() -> None:
    plain = penstock.DataLoader(np.arange(26), 4, shuffle=True, seed=4, last_batch="pad")
    ours = penstock.jax.DataLoader(np.arange(26), 4, shuffle=True, seed=4, sharding=BY_ROWS)
    for loader in (plain, ours):
        for _, _ in zip(range(3), loader, strict=False):
            pass
    assert plain.state_dict() == ours.state_dict()


def test_committed_batches() -> None:
    with penstock.jax.DataLoader(np.arange(16), 4, commit=True, num_workers=1, backend="thread") as loader:
        batches = loader.batches()
        taken = [next(batches) for _ in range(3)]
        loader.commit(taken[1])
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch.step for batch in loader.batches()] == [0, 2, 3]


# Everything else that penstock's loader has.


def test_one_epoch_for_two_threads() -> None:
    with penstock.jax.DataLoader(np.arange(64), 4, num_workers=1) as loader:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda one=one: found.extend(one)) for one in loader.share(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(np.concatenate([np.asarray(one) for one in found]).tolist()) == list(range(64))


def test_errors_take_the_place_of_their_batch() -> None:
    class Bad:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, key: int) -> int:
            if key == 9:
                raise ZeroDivisionError(key)
            return key

    for given in BACKENDS:
        with penstock.jax.DataLoader(Bad(), 4, **given) as loader:
            batches = iter(loader)
            assert values([next(batches), next(batches)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
            with pytest.raises(ZeroDivisionError) as caught:
                next(batches)
            assert any("sample 9" in note for note in caught.value.__notes__)
            assert values(batches) == [[12, 13, 14, 15]]


@pytest.mark.parametrize("given", [{"num_workers": 2, "in_order": False}, {"num_workers": "auto", "seed": 1}])
def test_other_settings(given: dict[str, Any]) -> None:
    with penstock.jax.DataLoader(np.arange(64), 4, **given) as loader:
        for _ in range(2):
            assert sorted(np.concatenate(values(loader)).tolist()) == list(range(64))
        assert "penstock.jax" in str(loader.stats().settings)
        assert "DataLoader(ndarray" in repr(loader)


def test_workers_may_be_added_and_a_killed_one_is_replaced() -> None:
    with penstock.jax.DataLoader(np.arange(400), 4, num_workers=1, seed=0) as loader:
        found = []
        for step, batch in enumerate(loader):
            found += np.asarray(batch).tolist()
            if step == 10:
                loader.num_workers = 2
            if step == 20:
                loader.workers[0].kill()
        assert found == list(range(400))


def test_copies_and_pickles_of_a_loader() -> None:
    loader = penstock.jax.DataLoader(np.arange(10), 4, ahead=1, dtype="bfloat16")
    split = penstock.jax.DataLoader(np.arange(10), 4, sharding=BY_ROWS)  # JAX cannot pickle devices
    list(loader.batches()), list(split.batches())
    assert copy.copy(split).sharding is BY_ROWS
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader)), copy.copy(split)):
        assert (other.ahead, other.dtype, other.last_batch) in [(1, "bfloat16", "pad"), (2, None, "pad")]
        assert [batch.mask.sum().item() for batch in other.batches()] == [4, 4, 2]


def test_its_signature_is_that_of_numpys_loader_and_two_arguments() -> None:
    ours = dict(inspect.signature(penstock.jax.DataLoader).parameters)
    assert (ours.pop("sharding").default, ours.pop("ahead").default) == (None, 2)
    theirs = inspect.signature(penstock.DataLoader).parameters
    assert [(name, one.default, one.kind) for name, one in ours.items()] == [
        (name, one.default, one.kind) for name, one in theirs.items()
    ]


@pytest.mark.parametrize("ahead", [-1, 1.5, None, True])
def test_ahead_is_a_number_of_batches(ahead: Any) -> None:
    with pytest.raises(ValueError, match="ahead must be an integer of at least 0"):
        penstock.jax.DataLoader([1], ahead=ahead)
