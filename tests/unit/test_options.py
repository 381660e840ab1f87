"""Bad arguments are refused at construction, with a message that says what is allowed."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from penstock import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    backends,
    default_collate,
)
from penstock._options import OPTIONS
from penstock._system import limits
from penstock.backends._base import arguments
from penstock.stats._facts import Facts
from penstock.stats._shown import settings_of


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


ON_RAY = {"backend": "ray", "num_workers": 1}


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_workers": -1}, ValueError, "num_workers=0 to load in the calling process"),
        ({"num_workers": 1.5}, ValueError, "num_workers must be an integer"),
        ({"num_workers": True}, ValueError, "num_workers must be an integer"),
        ({"timeout": -1, "num_workers": 1}, ValueError, "non-negative"),
        ({"timeout": float("nan"), "num_workers": 1}, ValueError, "non-negative"),
        ({"timeout": 3}, ValueError, "timeout=3 needs workers"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor=2 needs workers"),
        ({"prefetch_factor": 0, "num_workers": 1}, ValueError, "at least 1"),
        ({"prefetch_factor": -1, "num_workers": 1}, ValueError, "at least 1"),
        ({"persistent_workers": True}, ValueError, "persistent_workers=True needs workers"),
        ({"multiprocessing_context": "fork"}, ValueError, "needs workers"),
        ({"multiprocessing_context": "teleport", "num_workers": 1}, ValueError, "fork, spawn, forkserver"),
        ({"multiprocessing_context": 7, "num_workers": 1}, TypeError, "multiprocessing context"),
        (
            {"multiprocessing_context": "fork", "num_workers": 1, "backend": "thread"},
            ValueError,
            "no meaning",
        ),
        ({"backend": "gpu", "num_workers": 1}, ValueError, '"process", "thread" or "ray"'),
        ({"batch_size": 0}, ValueError, "at least 1, or None"),
        ({"batch_size": 2.0}, ValueError, "at least 1, or None"),
        ({"batch_size": True}, ValueError, "at least 1, or None"),
        ({"batch_size": None, "drop_last": True}, ValueError, "mutually exclusive with drop_last"),
        ({"drop_last": 1}, ValueError, "drop_last must be True or False"),
        ({"shuffle": "block"}, ValueError, 'shuffle must be True, False, None or "blocks", got .block.'),
        ({"shuffle": 3}, ValueError, 'shuffle must be True, False, None or "blocks", got 3'),
        ({"window": 3}, ValueError, 'window=3 needs shuffle="blocks", whose blocks it counts, but shuffle is False'),
        ({"window": 3, "shuffle": True}, ValueError, 'needs shuffle="blocks", .* but shuffle is True'),
        ({"window": 0, "shuffle": "blocks"}, ValueError, "window must be an integer of at least 1"),
        ({"sampler": [0], "shuffle": "blocks"}, ValueError, "mutually exclusive"),
        ({"batch_sampler": [[0]], "shuffle": "blocks"}, ValueError, "mutually exclusive with shuffle"),
        ({"shuffle": "blocks"}, TypeError, "list has none: 'list' object has no attribute 'blocks'. Define a"),
        ({"sampler": [0], "shuffle": True}, ValueError, "mutually exclusive"),
        ({"sampler": 3}, TypeError, "sampler must be an iterable of keys, got int"),
        ({"batch_sampler": 2.5}, TypeError, "batch_sampler must be an iterable of lists of keys, got float"),
        ({"batch_sampler": [[0]], "batch_size": 2}, ValueError, "mutually exclusive with batch_size"),
        ({"batch_sampler": [[0]], "batch_size": None}, ValueError, "mutually exclusive with batch_size"),
        ({"batch_sampler": [[0]], "shuffle": True}, ValueError, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "sampler": [0]}, ValueError, "mutually exclusive with sampler"),
        ({"batch_sampler": [[0]], "drop_last": True}, ValueError, "mutually exclusive with drop_last"),
        ({"collate_fn": 3}, TypeError, "collate_fn must be callable"),
        ({"worker_init_fn": 3, "num_workers": 1}, TypeError, "worker_init_fn must be callable"),
        ({"generator": 3}, TypeError, "numpy.random.Generator"),
        ({"seed": -1}, ValueError, "seed must be an integer from 0 to"),
        ({"seed": "x"}, ValueError, "seed must be an integer from 0 to"),
        ({"seed": 1 << 64}, ValueError, "seed must be an integer from 0 to"),
        ({"on_error": "ignore"}, ValueError, '"raise", "skip" or "replace"'),
        ({"max_errors": -1, "on_error": "skip"}, ValueError, "max_errors must be an integer of at least 0"),
        ({"max_errors": 3}, ValueError, 'max_errors=3 needs on_error="skip" or "replace"'),
        ({"on_error": "replace", "sampler": [0]}, ValueError, "there is no other sample in it"),
        ({"retries": -1}, ValueError, "retries"),
        ({"ray_options": {}}, ValueError, "ray_options={} needs workers"),
        ({"ray_options": {}, "num_workers": 1}, ValueError, 'ray_options has no meaning with backend="process"'),
        (ON_RAY | {"ray_options": {"cpus": 2}}, ValueError, "has no 'cpus': its names are num_cpus"),
        (ON_RAY | {"ray_options": 3}, TypeError, "ray_options must be a mapping"),
        (ON_RAY | {"ray_options": {"patience": 0}}, ValueError, "must be a positive number"),
        (
            ON_RAY | {"multiprocessing_context": "fork"},
            ValueError,
            'multiprocessing_context has no meaning with backend="ray"',
        ),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DataLoader([1, 2, 3], **kwargs)


@pytest.mark.parametrize(
    "kwargs", [{"shuffle": True}, {"shuffle": "blocks"}, {"sampler": [0]}, {"batch_sampler": [[0]]}], ids=str
)
def test_a_stream_has_its_own_order(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="decides its own order"):
        DataLoader(Stream(), **kwargs)


def test_a_stream_takes_shuffle_false_and_none() -> None:
    assert len(list(DataLoader(Stream(), shuffle=False))) == len(list(DataLoader(Stream(), shuffle=None))) == 3


def test_what_is_not_a_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="no __getitem__"):
        DataLoader(7)
    with pytest.raises(TypeError, match=r"no __getitem__.*IterableDataset"):
        DataLoader(iter([1]))

    class NoLength:
        def __getitem__(self, key: int) -> int:
            return key

    with pytest.raises(TypeError, match="no __len__"):
        DataLoader(NoLength())
    assert [batch.item() for batch in DataLoader(NoLength(), sampler=[3, 4])] == [3, 4]


def test_more_workers_than_cpus_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="num_workers=4096 is more than"):
        DataLoader([1], num_workers=4096)


def test_workers_that_a_stream_cannot_use_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="1 of num_workers=2 have nothing to do"):
        DataLoader(Stream(), num_workers=2)


def test_pinning_numpy_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="no effect on numpy"):
        DataLoader([1], pin_memory=True)
    with pytest.warns(UserWarning, match="deprecated"):
        DataLoader([1], pin_memory_device="cuda")


@pytest.mark.parametrize(("made", "wrong"), [(0, 2), (2, 0), (2, -1), (2, True), (2, 1.5), (2, None)], ids=str)
def test_the_number_of_workers_changes_only_between_positive_numbers(made: int, wrong: Any) -> None:
    loader = DataLoader([1, 2], num_workers=made)
    with pytest.raises(ValueError, match="make a new loader"):
        loader.num_workers = wrong
    assert loader.num_workers == made


def test_the_number_of_workers_may_be_set_before_the_first_epoch() -> None:
    with DataLoader(range(6), batch_size=2, num_workers=1) as loader:
        loader.num_workers = np.int64(2)
        assert loader.num_workers == 2
        batches = iter(loader)
        assert len(loader.workers) == 2
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "name", ["dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "prefetch_factor"]
)
def test_settings_cannot_be_changed_afterwards(name: str) -> None:
    loader = DataLoader([1])
    with pytest.raises(ValueError, match=f"{name} cannot be set"):
        setattr(loader, name, 3)


def test_attributes_are_the_resolved_arguments() -> None:
    loader = DataLoader(
        [1, 2, 3], batch_size=2, num_workers=2, multiprocessing_context=multiprocessing.get_context("spawn")
    )
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (2, 2, 2)
    assert loader.persistent_workers is True and loader.drop_last is False and loader.timeout == 0
    assert loader.collate_fn is default_collate
    assert loader.backend == "process"
    assert list(loader.sampler) == [0, 1, 2] and len(loader.sampler) == 3
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert list(loader.batch_sampler) == [[0, 1], [2]]
    inline = DataLoader([1, 2, 3])
    assert (inline.prefetch_factor, inline.persistent_workers, inline.backend) == (None, False, "inline")
    given = SequentialSampler([1, 2])
    assert DataLoader([1, 2], sampler=given).sampler is given
    batches = [[0], [1]]
    assert DataLoader([1, 2], batch_sampler=batches).batch_sampler is batches
    assert DataLoader([1, 2], batch_sampler=batches).batch_size is None


def test_the_sampler_shows_the_order_of_the_current_epoch() -> None:
    loader = DataLoader(range(9), shuffle=True, seed=4)
    for _ in range(2):
        order = [batch.item() for batch in loader]
        assert list(loader.sampler) == order


@pytest.mark.parametrize(
    ("n", "size", "drop", "expected"),
    [(10, 3, False, 4), (10, 3, True, 3), (0, 3, False, 0), (9, 3, True, 3)],
)
def test_len_counts_batches(n: int, size: int, drop: bool, expected: int) -> None:
    loader = DataLoader(range(n), size, drop_last=drop)
    assert len(loader) == len(iter(loader)) == len(list(loader)) == expected


class OldSequence:
    """Iterable by `__getitem__` alone."""

    def __getitem__(self, at: int) -> int:
        return [2, 0][at]


def test_a_sampler_may_be_anything_that_iter_takes() -> None:
    assert [batch.item() for batch in DataLoader([1, 2, 3], sampler=OldSequence())] == [3, 1]  # type: ignore[arg-type]


def test_len_of_foreign_samplers() -> None:
    assert len(DataLoader(range(9), 2, sampler=[1, 2, 3])) == 2
    assert len(DataLoader(range(9), batch_sampler=[[1], [2]])) == 2
    with pytest.raises(TypeError, match="has no len"):
        len(DataLoader(range(9), sampler=iter([1])))


class Liar(Stream):
    def __len__(self) -> int:
        return 2


def test_a_stream_that_yields_more_than_it_said_is_a_warning() -> None:
    loader = DataLoader(Liar())
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="said len.. = 2"):
        list(loader)


def test_a_stream_that_nobody_asked_for_its_length_is_not_warned_about() -> None:
    # list() would ask for the length, as a hint.
    assert [batch.item() for batch in DataLoader(Liar())] == [0, 1, 2]


def test_a_batched_length_is_compared_in_batches() -> None:
    """torch compares a number of batches with a number of samples, and says nothing here."""

    class Four(Liar):
        def __iter__(self) -> Any:
            return iter(range(8))

        def __len__(self) -> int:
            return 4

    loader = DataLoader(Four(), batch_size=4)
    assert len(loader) == 1
    with pytest.warns(UserWarning, match="is 1 batch,"):
        list(loader)


def test_a_stream_without_length_has_none() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(DataLoader(Stream()))


def test_a_loader_can_be_pickled_and_an_iterator_cannot() -> None:
    loader = DataLoader(range(9), shuffle=True, seed=1)
    first = [batch.item() for batch in loader]
    copy = pickle.loads(pickle.dumps(loader))
    assert [batch.item() for batch in copy] == [batch.item() for batch in loader] != first
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(iter(DataLoader([1])))


def test_numpy_integers_become_integers() -> None:
    """A state has them, and is plain data for JSON."""
    loader = DataLoader([1], np.int64(4), seed=np.uint64((1 << 64) - 1), shard=(np.int8(0), np.int8(1)))
    state = loader.state_dict()
    assert (state["seed"], state["about"]["batch_size"]) == ((1 << 64) - 1, 4)
    loader.load_state_dict(json.loads(json.dumps(state)))


def test_the_loader_is_generic() -> None:
    assert DataLoader[int] is not None


def test_the_signature_has_the_settings_with_their_defaults_and_arguments_for_backends() -> None:
    parameters = dict(inspect.signature(DataLoader).parameters)
    assert parameters.pop("dataset").default is inspect.Parameter.empty
    declared = {name: option.default for name, option in OPTIONS.items()} | dict.fromkeys(arguments())
    assert {name: each.default for name, each in parameters.items()} == declared


@pytest.mark.parametrize("name", ["ray_options", "multiprocessing_context", "backend_options", "auto", "retries"])
def test_every_setting_is_an_attribute_that_cannot_be_set(name: str) -> None:
    loader = DataLoader([1])
    assert getattr(loader, name) == {"auto": (), "retries": 2}.get(name)
    with pytest.raises(ValueError, match=f"{name} cannot be set"):
        setattr(loader, name, 3)


@contextmanager
def registered(**declared: Any) -> Iterator[list[Any]]:
    """In the block, `backend="mine"` runs on threads. Yields a list of what it was made with."""
    made: list[Any] = []

    def make(job: backends.Job, given: Any) -> backends.Backend:
        made.append(given)
        return backends.make("thread", job)

    backends.register("mine", make, **declared)
    try:
        yield made
    finally:
        backends.unregister("mine")


def test_a_registered_backend_gets_its_options() -> None:
    with registered() as made, DataLoader(range(4), num_workers=1, backend="mine", backend_options=3) as loader:
        assert len(list(loader)) == 4 and made == [3] and loader.backend_options == 3
    with registered() as made, DataLoader(range(4), num_workers=1, backend="mine") as loader:
        assert len(list(loader)) == 4 and made == [None]


def test_a_registered_backend_may_take_a_context_as_ours_does() -> None:
    given = {"num_workers": 1, "backend": "mine", "multiprocessing_context": "any"}
    with registered(argument="multiprocessing_context") as made, DataLoader(range(4), **given) as loader:
        assert len(list(loader)) == 4 and made == ["any"]
        with pytest.raises(ValueError, match='backend_options has no meaning with backend="mine"'):
            DataLoader(range(4), num_workers=1, backend="mine", backend_options=3)


def test_figures_of_a_registered_backend_of_threads_name_its_workers_as_threads() -> None:
    with registered(threads=True), DataLoader(range(4), num_workers=1, backend="mine") as loader:
        assert len(list(loader)) == 4
        stats = loader.stats()
        assert [worker.name for worker in stats.life.workers] == ["worker 0 (thread)"]
        assert Facts(stats).in_the_caller and "threads" not in settings_of(stats.settings)


def test_the_check_of_a_registered_backend_is_made_with_the_loader() -> None:
    def check(given: Any, workers: int) -> None:
        if given != 3:
            raise LookupError(f"{workers} workers, and {given!r}")

    with registered(check=check):
        DataLoader(range(4), num_workers=2, backend="mine", backend_options=3)
        with pytest.raises(LookupError, match="2 workers, and None"):
            DataLoader(range(4), num_workers=2, backend="mine")


def test_what_a_registered_backend_cannot_do_is_refused() -> None:
    with registered(threads=True), pytest.raises(ValueError, match="no worker can be killed"):
        DataLoader(range(4), num_workers=1, backend="mine", hang=3)
    with registered(kills=False, needs_workers=True, argument=None):
        with pytest.raises(ValueError, match='hang=3 needs processes: with backend="mine" no worker can be killed'):
            DataLoader(range(4), num_workers=1, backend="mine", hang=3)
        with pytest.raises(ValueError, match='backend="mine" needs workers'):
            DataLoader(range(4), backend="mine")
        with pytest.raises(ValueError, match='backend_options has no meaning with backend="mine"'):
            DataLoader(range(4), num_workers=1, backend="mine", backend_options={})
    with pytest.raises(
        ValueError, match="one of backend_options, multiprocessing_context, ray_options, or None, got"
    ):
        backends.register("mine", lambda job, given: backends.make("thread", job), argument="my_options")
    with pytest.raises(ValueError, match="backend_options=3 needs workers"):
        DataLoader(range(4), backend_options=3)


def test_every_registered_backend_can_be_chosen_and_no_other() -> None:
    backends.register("mine", lambda job, context: backends.make("thread", job))
    try:
        with DataLoader(range(4), 2, num_workers=3, backend="mine") as loader:
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        with pytest.raises(ValueError, match='multiprocessing_context has no meaning with backend="mine"'):
            DataLoader(range(4), num_workers=1, backend="mine", multiprocessing_context="fork")
        with pytest.raises(ValueError, match='None, "process", "thread", "ray" or "mine", got \'yours\''):
            DataLoader(range(4), num_workers=1, backend="yours")
    finally:
        backends.unregister("mine")
    with pytest.raises(ValueError, match="must be an identifier"):
        backends.register("no name", lambda job, context: backends.make("thread", job))
    with pytest.raises(ValueError, match='None, "process", "thread" or "ray", got \'inline\''):
        DataLoader(range(4), num_workers=1, backend="inline")


@pytest.mark.parametrize("found", [None, ModuleType("ray")], ids=["nothing", "a folder of that name"])
def test_without_ray_the_error_says_how_to_install_it(
    found: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder is an empty module: such as /tmp/ray, where Ray keeps its sessions, beside a script in /tmp.
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.delitem(sys.modules, "penstock.backends._ray.cluster", raising=False)
    with pytest.raises(RuntimeError, match=r'needs Ray .*pip install "\.\[ray\]"'):
        iter(DataLoader(range(4), **ON_RAY))


def test_far_too_many_workers_are_warned_of_with_the_seconds_that_their_start_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "usable_cpus", lambda: 2)
    with pytest.warns(UserWarning, match=r"=500 is more than the 2 CPUs .* 500 processes on 2 CPUs takes 4 s or m"):
        DataLoader(range(3), num_workers=500)
    with pytest.warns(UserWarning, match=r"num_workers=6 is more than the 2 CPUs .* with less memory\.$"):
        DataLoader(range(3), num_workers=6)
