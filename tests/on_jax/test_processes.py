"""Global batches from several processes of jax.distributed are those of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import penstock.jax
from tests.on_jax import crowd

pytestmark = pytest.mark.timeout(500)  # several interpreters start JAX at the same time

G = 12  # rows of the global batch


class Rows:
    """Images, tokens and labels: fields of four, two and one axes."""

    def __len__(self) -> int:
        return 41

    def __getitem__(self, key: int) -> dict[str, Any]:
        draw = penstock.rng().integers(0, 1000, 4)
        return {
            "image": np.full((4, 6, 2), key, np.float32),
            "tokens": np.arange(6) + key,
            "label": key,
            "draw": draw,
        }


class Items(penstock.IterableDataset[int]):
    """A stream of light items, which workers load."""

    def __iter__(self) -> Any:
        return iter(range(41))

    def load(self, item: int) -> dict[str, Any]:
        return Rows()[item] | {"draw": penstock.rng().integers(0, 1000, 4)}


class Stream(penstock.IterableDataset[Any]):
    """A stream that is read as a whole."""

    def __iter__(self) -> Any:
        return (Rows()[key] | {"draw": np.zeros(4, np.int64)} for key in range(41))


def packed() -> Any:
    documents = [np.arange(1 + n % 7) for n in range(300)]
    return penstock.pack(penstock.dataset(documents).with_lengths(len), length=6, window=40)


def shardings(devices: Any) -> dict[str, NamedSharding]:
    """Four devices, or eight, in order and out of order."""
    all_devices = np.array(sorted(devices, key=lambda device: device.id))
    n = len(all_devices)
    shuffled = np.random.default_rng(0).permutation(all_devices)
    crossed = Mesh(all_devices.reshape(2, n // 2).T, ("a", "b"))
    return {
        "rows": NamedSharding(Mesh(all_devices, ("data",)), P("data")),
        "out of order": NamedSharding(Mesh(shuffled, ("data",)), P("data")),
        "two axes": NamedSharding(crossed, P(("b", "a"))),
        "replicas": NamedSharding(crossed, P("b")),
        "other replicas": NamedSharding(crossed, P("a")),
        "model too": NamedSharding(crossed, P("b", "a")),
        "only model": NamedSharding(crossed, P(None, "b")),
        "everywhere": NamedSharding(crossed, P()),
    }


def _place(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(part.indices(size) for part, size in zip(index, shape, strict=True))


def parts_of(batch: Any) -> dict[str, list[tuple[Any, np.ndarray]]]:
    """The parts of each global array on the devices of this process."""
    data = {**batch.data, "mask": batch.mask}
    return {
        name: [(_place(one.index, array.shape), np.asarray(one.data)) for one in array.addressable_shards]
        for name, array in data.items()
    }


def read(kind: str, name: str, given: dict[str, Any], state: str | None, steps: int) -> Any:
    dataset: Any = {"keys": Rows, "items": Items, "stream": Stream, "packed": packed}[kind]()
    sharding = shardings(jax.devices())[name]
    with penstock.jax.DataLoader(dataset, G, sharding=sharding, seed=3, **given) as loader:
        if state is not None:
            loader.load_state_dict(json.loads(state))
        batches = []
        for _, batch in zip(range(steps), loader.batches(), strict=False):
            shapes = {key: array.shape for key, array in batch.data.items()}
            batches.append((batch.step, batch.pad, batch.index, shapes, parts_of(batch)))
        return batches, json.dumps(loader.state_dict())


def assembled(processes: list[Any]) -> list[Any]:
    """The global batches, from the parts of all processes. Replicas must be equal."""
    whole = []
    for of_each in zip(*(batches for batches, _ in processes), strict=True):
        step, pad, _, shapes, _ = of_each[0]
        assert all((one[0], one[1], one[3]) == (step, pad, shapes) for one in of_each)
        data: dict[str, Any] = {}
        for name in of_each[0][4]:
            cells: dict[Any, np.ndarray] = {}
            for one in of_each:
                for index, part in one[4][name]:
                    assert np.array_equal(cells.setdefault(index, part), part), f"{name}: replicas differ"
            shape = shapes.get(name, (G,))
            array = np.empty(shape, next(iter(cells.values())).dtype)
            filled = np.zeros(shape, bool)
            for index, part in cells.items():
                array[tuple(slice(*each) for each in index)] = part
                filled[tuple(slice(*each) for each in index)] = True
            assert filled.all()
            data[name] = array
        whole.append((step, pad, data))
    return whole


def expected(kind: str, given: dict[str, Any]) -> list[Any]:
    dataset: Any = {"keys": Rows, "items": Items, "stream": Stream, "packed": packed}[kind]()
    given = {name: value for name, value in given.items() if name not in ("num_workers", "backend")}
    loader = penstock.jax.DataLoader(dataset, G, seed=3, **given)
    return [
        (
            batch.step,
            batch.pad,
            {key: np.asarray(array) for key, array in (batch.data | {"mask": batch.mask}).items()},
        )
        for batch in loader.batches()
    ]


def check_same(found: list[Any], wanted: list[Any]) -> None:
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    for (_, _, one), (_, _, other) in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_global_batches_are_those_of_one_process(processes: int, devices: int, tmp_path: Path) -> None:
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("keys", name, {"shuffle": True}) for name in shardings(jax.devices())
    ]
    cases += [
        ("keys", "two axes", {"shuffle": True, "num_workers": 2}),
        ("keys", "out of order", {"num_workers": 1, "backend": "thread", "last_batch": "drop"}),
        ("keys", "rows", {"shuffle": True, "last_batch": "rollover"}),
        ("keys", "rows", {"sampler": list(range(40, -1, -1)), "last_batch": "drop"}),
        ("items", "two axes", {"last_batch": "drop"}),
        ("stream", "two axes", {"last_batch": "drop"}),
        ("packed", "model too", {"shuffle": True}),
    ]

    def work() -> list[Any]:
        return [read(kind, name, given, None, 100) for kind, name, given in cases]

    found = crowd.run(work, processes, devices, tmp_path)
    for number, (kind, _, given) in enumerate(cases):
        of_each = [one[number] for one in found]
        check_same(assembled(of_each), expected(kind, given))
        assert len({state for _, state in of_each}) == 1, "every process has the same state"


def test_a_run_continues_on_another_number_of_processes(tmp_path: Path) -> None:
    kinds = {
        "keys": {"shuffle": True, "num_workers": 1},
        "items": {"last_batch": "drop"},
        "packed": {"shuffle": True},
    }

    def begin() -> Any:
        return {kind: read(kind, "two axes", given, None, 2) for kind, given in kinds.items()}

    on_two = crowd.run(begin, 2, 2, tmp_path)
    states = {kind: on_two[1][kind][1] for kind in kinds}

    def go_on() -> Any:
        return {kind: read(kind, "out of order", given, states[kind], 100) for kind, given in kinds.items()}

    on_four = crowd.run(go_on, 4, 1, tmp_path)
    for kind, given in kinds.items():
        begun, rest = (assembled([one[kind] for one in found]) for found in (on_two, on_four))
        whole = expected(kind, given)
        check_same(begun + rest, whole)
        # And in one process, by the loader without a sharding.
        dataset: Any = {"keys": Rows, "items": Items, "packed": packed}[kind]()
        alone = penstock.jax.DataLoader(dataset, G, seed=3, **given)
        alone.load_state_dict(json.loads(states[kind]))
        with alone:
            steps = [(batch.step, np.asarray(jax.tree.leaves(batch.data)[0])) for batch in alone.batches()]
        assert [step for step, _ in steps] == [step for step, _, _ in whole[2:]]
        for (_, leaf), (_, _, data) in zip(steps, whole[2:], strict=True):
            np.testing.assert_array_equal(
                leaf, jax.tree.leaves({name: data[name] for name in data if name != "mask"})[0]
            )


def test_a_jitted_step_takes_global_batches_in_all_processes(tmp_path: Path) -> None:
    def work() -> Any:
        sharding = shardings(jax.devices())["rows"]
        step = jax.jit(lambda batch: (batch.data["image"][:, 0, 0, 0] * batch.mask).sum())
        loader = penstock.jax.DataLoader(Rows(), G, sharding=sharding, seed=0, shuffle=True)
        return sum(float(step(batch)) for batch in loader.batches()), step._cache_size()

    assert crowd.run(work, 2, 2, tmp_path) == [(sum(range(41)), 1)] * 2


def refusal(settings: dict[str, Any], dataset: Callable[[], Any] = Rows) -> str:
    sharding = shardings(jax.devices())["rows"]
    with pytest.raises(ValueError, match=r"\.$") as caught:
        next(
            iter(penstock.jax.DataLoader(dataset(), **{"batch_size": G, "seed": 0, "sharding": sharding, **settings}))
        )
    return str(caught.value)


def test_what_processes_cannot_do_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"seed": None}, "give seed=, the same number in every process"),
        ({"batch_size": 10}, "batch_size=10 cannot be split by NamedSharding"),
        ({"batch_size": None}, "batch_size=None is not possible with a sharding over several processes"),
        ({"batch_size": 1, "batch_sampler": [[0, 1, 2, 3]]}, "batch_sampler= is not possible"),
        ({"last_batch": "keep"}, 'last_batch="keep" is not possible with a sharding over several processes'),
        ({"on_error": "skip"}, 'on_error="skip" is not possible with a sharding over several processes'),
        ({"balance": "tokens", "lengths": [1] * 41}, "balance= is not possible with a sharding over several"),
        ({"shard": (0, 2)}, "shard=(0, 2) and sharding= were both given"),
        ({"collate_fn": penstock.pad(multiple=8)}, "must pad every batch to one length"),
        (
            {"collate_fn": lambda samples: {"total": np.ones(5)}},
            "The field 'total' has the shape (5,), but its first",
        ),
    ]

    def work() -> list[str]:
        return [refusal(settings) for settings, _ in cases]

    for messages in crowd.run(work, 2, 2, tmp_path):
        for message, (_, words) in zip(messages, cases, strict=True):
            assert words in message


def test_ranks_without_a_sharding_are_those_of_jax(tmp_path: Path) -> None:
    def work() -> Any:
        loader = penstock.jax.DataLoader(np.arange(8), 2, shard="auto", seed=0)
        return loader.shard, [batch.tolist() for batch in loader]

    assert crowd.run(work, 2, 1, tmp_path) == [((0, 2), [[0, 1], [4, 5]]), ((1, 2), [[2, 3], [6, 7]])]


def test_a_checkpoint_of_orbax_has_one_state_for_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def save() -> Any:
        import orbax.checkpoint as ocp

        found, state = read("keys", "two axes", {"shuffle": True}, None, 2)
        with ocp.CheckpointManager(folder) as manager:
            manager.save(2, args=ocp.args.Composite(loader=ocp.args.JsonSave(json.loads(state))))
            manager.wait_until_finished()
        return found, state

    def restore() -> Any:
        import orbax.checkpoint as ocp

        with ocp.CheckpointManager(folder) as manager:
            saved = manager.restore(2, args=ocp.args.Composite(loader=ocp.args.JsonRestore()))
        return read("keys", "rows", {"shuffle": True}, json.dumps(saved["loader"]), 100)

    begun = crowd.run(save, 2, 2, tmp_path, warnings="ignore")
    assert len([path for path in folder.rglob("loader/*") if "{" in path.read_text()]) == 1, "one JSON for all"
    rest = crowd.run(restore, 4, 1, tmp_path, warnings="ignore")
    check_same(assembled(begun) + assembled(rest), expected("keys", {"shuffle": True}))
