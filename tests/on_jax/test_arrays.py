"""Which arrays a batch has: classes, dtypes, shardings, and what JAX cannot hold."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import penstock
import penstock.jax
from penstock import CastError

FOUR = np.array(jax.devices()[:4])
BY_ROWS = NamedSharding(Mesh(FOUR, ("data",)), P("data"))
BY_BOTH = NamedSharding(Mesh(FOUR.reshape(2, 2), ("data", "model")), P("data", "model"))


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclasses.dataclass
class Record:
    image: Any
    label: Any


def nested(key: int) -> Any:
    image = np.full((4, 6), key, np.float32)
    return {
        "pair": Pair(image, key),
        "record": Record(image[0] + 1, float(key)),
        "list": [np.uint8(key), (True, image.astype(np.float16))],
        "text": f"sample {key}",
        "when": np.datetime64(key, "D"),
    }


class Nested:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: int) -> Any:
        return nested(key)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "backend": "thread"}])
@pytest.mark.parametrize("sharding", [None, BY_ROWS, SingleDeviceSharding(FOUR[1])])
def test_batches_have_the_values_and_containers_of_numpys_loader(sharding: Any, workers: dict[str, Any]) -> None:
    plain = list(
        penstock.DataLoader(Nested(), 8, shuffle=True, seed=0, dtype={"pair.label": "int32", "record": "float32"})
    )
    with penstock.jax.DataLoader(Nested(), 8, shuffle=True, seed=0, sharding=sharding, **workers) as loader:
        found = list(loader)
    assert len(found) == len(plain) == 2
    for one, other in zip(found, plain, strict=True):
        assert isinstance(one["pair"], Pair)
        assert isinstance(one["record"], Record)
        assert one["text"] == other["text"]
        np.testing.assert_array_equal(one["when"], other["when"])
        assert type(one["when"]) is np.ndarray
        pairs = [
            (one["pair"].image, other["pair"].image),
            (one["pair"].label, other["pair"].label),
            (one["record"].image, other["record"].image),
            (one["record"].label, other["record"].label),
            (one["list"][0], other["list"][0]),
            (one["list"][1][0], other["list"][1][0]),
            (one["list"][1][1], other["list"][1][1]),
        ]
        for array, expected in pairs:
            assert isinstance(array, jax.Array)
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(array), expected)
            if sharding is not None:
                assert array.sharding.is_equivalent_to(sharding, array.ndim) or sharding is BY_ROWS
                assert array.sharding.device_set == sharding.device_set


def test_without_a_sharding_arrays_may_still_be_moved_by_jit() -> None:
    (batch,) = penstock.jax.DataLoader(np.arange(8), 8)
    weights = jax.device_put(np.arange(8), BY_ROWS)
    assert (jax.jit(lambda w, b: w + b)(weights, batch)).sharding.device_set == set(FOUR)


def test_fields_of_fewer_axes_are_split_along_those_they_have() -> None:
    def sample(key: int) -> Any:
        return {"tokens": np.arange(6), "image": np.zeros((4, 3, 2)), "label": key}

    rows = penstock.dataset(list(range(8))).map(sample)
    (batch,) = penstock.jax.DataLoader(rows, 8, sharding=BY_BOTH)
    shapes = {name: array.addressable_shards[0].data.shape for name, array in batch.items()}
    assert shapes == {"tokens": (4, 3), "image": (4, 2, 3, 2), "label": (4,)}


def test_four_ways_to_make_a_global_array_are_equal() -> None:
    (batch,) = penstock.DataLoader(np.random.default_rng(0).random((8, 6), np.float32), 8)
    indices = BY_BOTH.addressable_devices_indices_map(batch.shape)
    ways = [
        penstock.jax._arrays.DevicePlacer(BY_BOTH, None, None, None)(batch, None),
        jax.device_put(batch, BY_BOTH),
        jax.make_array_from_process_local_data(BY_BOTH, batch, batch.shape),
        jax.make_array_from_single_device_arrays(
            batch.shape, BY_BOTH, [jax.device_put(batch[index], device) for device, index in indices.items()]
        ),
    ]
    for way in ways:
        assert way.sharding == BY_BOTH
        np.testing.assert_array_equal(np.asarray(way), batch)
        for one, other in zip(way.addressable_shards, ways[0].addressable_shards, strict=True):
            assert one.device == other.device
            np.testing.assert_array_equal(one.data, other.data)


# Numbers.


def test_64_bit_numbers_become_32_bit_numbers_in_the_worker() -> None:
    rows = penstock.dataset([{"i": np.int64(1), "u": np.uint64(2), "f": 0.5, "c": 1j, "big": np.ones(2, ">f8")}] * 4)
    (batch,) = penstock.jax.DataLoader(rows, 4)
    kinds = {name: str(array.dtype) for name, array in batch.items()}
    assert kinds == {"i": "int32", "u": "uint32", "f": "float32", "c": "complex64", "big": "float32"}
    job = penstock.jax.DataLoader(rows, 4)._session.job()
    assert job.cast is not None
    assert job.cast.root().target(np.dtype("int64")) == np.int32


def test_with_64_bits_enabled_numbers_stay_as_they_are() -> None:
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # the latter before 0.8
    with enable(True):
        (batch,) = penstock.jax.DataLoader(np.arange(4) << 40, 4)
        assert (batch.dtype, batch[3]) == (np.int64, 3 << 40)
        (batch,) = penstock.jax.DataLoader(np.arange(4), 4, dtype="float64")
        assert batch.dtype == np.float64


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_number_that_does_not_fit_is_an_error_that_says_why(batch_size: int | None) -> None:
    loader = penstock.jax.DataLoader([{"id": 1 << 40}] * 4, batch_size)
    with pytest.raises(CastError, match=r"1099511627776 in the field 'id' .*int32 holds.*jax_enable_x64.*unsafe"):
        next(iter(loader))
    (batch, *_) = penstock.jax.DataLoader([{"id": 1 << 40}] * 4, batch_size, casting="unsafe")
    assert batch["id"].dtype == np.int32


def test_a_64_bit_dtype_is_refused_without_64_bits() -> None:
    with pytest.raises(ValueError, match=r'dtype="int64" is not possible: .*jax_enable_x64.*dtype="int32"'):
        penstock.jax.DataLoader([1], dtype={"x": "int64"})


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "backend": "thread"}])
@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4", "float16", "int16"]
)
def test_dtypes_of_ml_dtypes(name: str, workers: dict[str, Any]) -> None:
    values = np.arange(8, dtype=np.float32)
    with penstock.jax.DataLoader(values, 4, dtype=name, **workers) as loader:
        found = list(loader)
    assert all(batch.dtype == name for batch in found)
    assert np.concatenate([np.asarray(batch, np.float32) for batch in found]).tolist() == values.tolist()
    with penstock.jax.DataLoader(
        [{"x": value, "y": 1} for value in values], 4, dtype={"x": name}, **workers
    ) as loader:
        batch = next(iter(loader))
    assert (batch["x"].dtype, batch["y"].dtype) == (name, np.int32)


@pytest.mark.parametrize(
    ("name", "value"), [("bfloat16", 3.4e38), ("float8_e4m3fn", 500.0), ("int4", 8.0), ("uint4", -1.0), ("int4", 0.5)]
)
@pytest.mark.parametrize("size", [1, 5000])
def test_a_value_that_a_small_dtype_cannot_hold_is_an_error(name: str, value: float, size: int) -> None:
    rows = [np.zeros(size, np.float32), np.full(size, value, np.float32)]
    with pytest.raises(CastError, match=r"in the batch \(row 1\) would be lost"):
        next(iter(penstock.jax.DataLoader(rows, 2, dtype=name)))
    (batch,) = penstock.jax.DataLoader(rows, 2, dtype=name, casting="unsafe")
    assert batch.dtype == name


def test_samples_may_be_of_ml_dtypes() -> None:
    rows = [np.full(5, key, ml_dtypes.bfloat16) for key in range(4)]
    with penstock.jax.DataLoader(rows, 2, num_workers=1) as loader:
        for number, batch in enumerate(loader):
            assert batch.dtype == jnp.bfloat16
            assert np.asarray(batch, np.float32)[:, 0].tolist() == [2 * number, 2 * number + 1]
    (batch, *_) = penstock.jax.DataLoader(rows, 2, dtype="float32")
    assert batch.dtype == np.float32


def test_an_unknown_dtype_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"one of float16, .*bfloat16.*got 'bfloat17'"):
        penstock.jax.DataLoader([1], dtype="bfloat17")


# What else a sample may have.


def test_samples_without_a_batch_axis() -> None:
    samples = [
        (1, 2.5, True, None, "text", np.float64(3), np.arange(3)),
        (2, 0.5, False, None, "", np.float64(4), []),
    ]
    first, _ = penstock.jax.DataLoader(samples, batch_size=None)
    kinds = [str(leaf.dtype) if isinstance(leaf, jax.Array) else leaf for leaf in first]
    assert kinds == ["int32", "float32", "bool", None, "text", "float32", "int32"]
    ((item, *_), _) = penstock.jax.DataLoader(samples, batch_size=None, sharding=SingleDeviceSharding(FOUR[2]))
    assert item.devices() == {FOUR[2]}
    (batch, _) = penstock.jax.DataLoader(samples, batch_size=None).batches()
    assert batch.mask is None


def test_empty_arrays() -> None:
    (batch,) = penstock.jax.DataLoader([np.zeros((0, 3), np.float32)] * 4, 4)
    assert batch.shape == (4, 0, 3)
    (batch,) = penstock.jax.DataLoader([np.zeros((0, 3), np.float32)] * 4, 4, sharding=BY_ROWS)
    assert batch.shape == (4, 0, 3)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "backend": "thread"}, {"num_workers": 1}])
def test_samples_may_be_jax_arrays_and_raw_keys_of_random_numbers(workers: dict[str, Any]) -> None:
    class Drawn:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, key: int) -> Any:
            return {"x": jnp.full(3, key, jnp.bfloat16), "key": jax.random.key_data(jax.random.key(key))}

    with penstock.jax.DataLoader(Drawn(), 2, **workers) as loader:
        batches = list(loader)
    assert [batch["x"].dtype for batch in batches] == [jnp.bfloat16] * 2
    keys = jax.random.wrap_key_data(batches[1]["key"])
    assert (jax.random.bits(keys[1]) == jax.random.bits(jax.random.key(3))).item()


def test_typed_keys_of_random_numbers_pass_through_where_nothing_is_stacked() -> None:
    ((key, _),) = penstock.jax.DataLoader([(jax.random.key(3), 1)], batch_size=None)
    assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


# Errors.


def test_a_batch_that_cannot_be_split_names_the_field_and_the_sharding() -> None:
    rows = [{"x": np.zeros(3)}] * 8
    with pytest.raises(
        ValueError, match=r"batch_size=6 cannot be split by NamedSharding.*multiple of the number"
    ) as one:
        penstock.jax.DataLoader(rows, 6, sharding=BY_ROWS)
    assert "global batch" in str(one.value)
    loader = penstock.jax.DataLoader(rows, 8, sharding=BY_BOTH)
    with pytest.raises(
        ValueError, match=r"The field 'x' has the shape \(8, 3\), which cannot be split by Named"
    ) as two:
        next(iter(loader))
    assert any("step 0" in note for note in two.value.__notes__)
    loader = penstock.jax.DataLoader(rows, 3, sharding=NamedSharding(BY_ROWS.mesh, P()), last_batch="keep")
    assert [len(batch["x"]) for batch in loader] == [3, 3, 2]
    loader = penstock.jax.DataLoader(rows[:6], 4, sharding=BY_ROWS, last_batch="keep")
    with pytest.raises(ValueError, match=r"has the shape \(2, 3\).*last_batch"):
        list(loader)


@pytest.mark.parametrize("wrong", [P("data"), FOUR[0], Mesh(FOUR, ("data",)), "data"])
def test_what_is_no_sharding_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"sharding must be a jax.sharding.Sharding .*NamedSharding\(mesh"):
        penstock.jax.DataLoader([1], sharding=wrong)


def test_forks_are_refused() -> None:
    with pytest.raises(ValueError, match=r'"fork" is not possible here.*"forkserver".*"spawn"'):
        penstock.jax.DataLoader([1], num_workers=1, multiprocessing_context="fork")


def test_a_method_that_multiprocessing_has_set_does_not_fork_either(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.backends._process import methods

    monkeypatch.setattr(methods, "_configured", lambda: "fork")
    assert penstock.DataLoader([1], num_workers=1).multiprocessing_context is None
    with penstock.jax.DataLoader(np.arange(4), 2, num_workers=1) as loader:
        assert loader.multiprocessing_context == "forkserver"
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
