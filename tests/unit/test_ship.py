"""A payload packed and unpacked: arrays out of band, memory maps by name, and what cannot be sent."""

from __future__ import annotations

import dataclasses
import os
import pickle
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._system.descriptors import close
from penstock._wire.shipment import pack, unpack
from penstock.errors import UnshippableDataset


def shipped(payload: object) -> Any:
    shipment = pack(payload, [])
    try:
        return unpack(shipment)
    finally:
        close(shipment)


def size_of(payload: object) -> int:
    shipment = pack(payload, [])
    try:
        return os.fstat(shipment).st_size
    finally:
        close(shipment)


def looks_into_the_shipment(array: np.ndarray[Any, Any]) -> bool:
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
        if low <= address < high:
            return "penstock-shipment" in line
    return False


# Arrays

ARRAYS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "C": lambda: np.arange(6000).reshape(60, 100),
    "F": lambda: np.asfortranarray(np.arange(6000).reshape(60, 100)),
    "transposed": lambda: np.arange(6000).reshape(10, 20, 30).transpose(1, 0, 2),
    "with gaps": lambda: np.arange(9000)[::3],
    "reversed": lambda: np.arange(6000)[::-1],
    "dates": lambda: np.arange(6000).astype("M8[s]"),
    "records": lambda: np.zeros(1000, dtype=[("a", "i4"), ("b", "f8", 3)]),
    "text": lambda: np.array(["abc", "de"] * 3000),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_large_array_is_shared_writable_and_aligned(kind: str) -> None:
    array = ARRAYS[kind]()
    there = shipped({"dataset": array})["dataset"]
    np.testing.assert_array_equal(there, array)
    assert (there.dtype, there.shape) == (array.dtype, array.shape)
    assert looks_into_the_shipment(there)
    assert there.__array_interface__["data"][0] % 64 == 0
    assert there.flags.writeable
    there[:] = there[0]


def test_what_one_writes_no_other_sees() -> None:
    array = np.arange(1000)
    shipment = pack(array, [])
    one, other = unpack(shipment), unpack(shipment)
    close(shipment)
    one[:] = 7
    assert other[1] == 1
    assert array[1] == 1


def test_a_read_only_array_stays_so() -> None:
    for array in (np.arange(1000), np.arange(1000)[::2], np.arange(1000).astype("M8[s]"), np.arange(3)):
        array.flags.writeable = False
        assert not shipped(array).flags.writeable


def made(dtype: str, shape: tuple[int, ...], step: int, turned: bool) -> np.ndarray[Any, Any]:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    if array.ndim:
        array = array[::step]
    return array.T if turned else array


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            made,
            st.sampled_from(["u1", "f4", "c16", "M8[ns]", "U3", "O", "?", "V5"]),
            st.lists(st.integers(0, 30), max_size=3).map(tuple),
            st.sampled_from([1, 2, -1]),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_any_arrays_arrive_as_they_were(arrays: list[np.ndarray[Any, Any]]) -> None:
    there = shipped(arrays)
    for one, other in zip(arrays, there, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


def test_one_object_stays_one() -> None:
    class Dataset:
        def __init__(self) -> None:
            self.rows = np.arange(1000)

        def begin(self, worker: int) -> None:
            self.worker = worker

    dataset = Dataset()
    there = shipped(
        {
            "dataset": dataset,
            "worker_init_fn": dataset.begin,
            "rows": dataset.rows,
            "again": partial(dataset.begin, 3),
        }
    )
    assert there["worker_init_fn"].__self__ is there["dataset"]
    assert there["again"].func.__self__ is there["dataset"]
    assert there["rows"] is there["dataset"].rows


def test_many_small_arrays_travel_in_the_stream() -> None:
    assert size_of([np.arange(4) for _ in range(1000)]) < 200_000


def test_packing_a_large_array_makes_one_copy_of_it() -> None:
    # A fresh process: the peak of this one says nothing.
    script = """
import os, resource, numpy as np
from penstock._wire.shipment import pack
os.close(pack(np.ones(4096), []))
def peak(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
array = np.ones(8 << 20)
before = peak()
shipment = pack({"dataset": array, "turned": np.ones((2048, 2048)).T}, [])
print(peak() - before, os.fstat(shipment).st_blocks // 2)
"""
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    grown, held = (int(number) for number in out.split())
    assert held > 90_000  # KiB: 64 MiB and 32 MiB are in the shipment
    assert grown < 45_000  # the 32 MiB that the script itself makes; the memfd is not mapped here


# Functions and classes without a name to import


def test_lambdas_and_local_classes_travel_by_value() -> None:
    factor = 3

    class Scale:
        def __call__(self, x: int) -> int:
            return x * factor

    there = shipped({"collate_fn": lambda x: Scale()(x) + 1, "scale": Scale()})
    assert there["collate_fn"](5) == 16
    assert there["scale"](5) == 15
    assert type(there["scale"]) is Scale  # in the process that packed it the class is the same


# Memory maps


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap[Any, Any]:
    path = tmp_path / "rows.bin"
    np.arange(100_000, dtype=np.int32).tofile(path)
    return np.memmap(path, np.int32, "r", shape=(1000, 100))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda m: m,
    "slice": lambda m: m[500:],
    "strided": lambda m: m[1::3, ::-2],
    "transposed": lambda m: m.T,
    "plain view": lambda m: np.asarray(m)[10:20],
    "other type": lambda m: m.view(np.uint8)[7:, 3:],
    "one row": lambda m: m[999],
    "broadcast": lambda m: np.broadcast_to(m[3], (50, 100)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_memory_map_travels_by_name(name: str, mapped: Any) -> None:
    view = VIEWS[name](mapped)
    payload = {"dataset": view}
    assert size_of(payload) < 2000
    there = shipped(payload)["dataset"]
    np.testing.assert_array_equal(there, view)
    assert (type(there), there.dtype, there.strides) == (type(view), view.dtype, view.strides)
    assert not there.flags.writeable
    if type(view) is np.memmap:
        assert there.filename == view.filename


def test_a_map_at_an_offset_travels_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    np.arange(50_000, dtype=np.uint8).tofile(path)
    for offset in (1, 4096, 10_007):
        view = np.memmap(path, np.uint8, "r", offset=offset)[5:]
        assert size_of(view) < 2000
        np.testing.assert_array_equal(shipped(view), view)


def test_a_map_of_npy_travels_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(10_000).reshape(100, 100))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert size_of(rows) < 2000
    np.testing.assert_array_equal(shipped(rows), rows)


@pytest.mark.parametrize("mode", ["r+", "w+"])
def test_a_writable_map_is_the_same_file_and_is_not_emptied(mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(5000))
    here = np.memmap(path, np.uint8, mode, shape=(5000,))
    here[7] = 77
    there = shipped(here)
    assert there[7] == 77
    there[8] = 88
    assert here[8] == 88


def test_ten_thousand_views_of_one_map_hold_one_descriptor(mapped: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    there = shipped([mapped[i % 1000] for i in range(10_000)])
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert there[999][99] == 99_999


def test_a_map_of_a_changed_private_copy_travels_as_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(5000))
    here = np.memmap(path, np.uint8, "c")
    here[3] = 33
    assert size_of(here) > 5000
    assert shipped(here)[3] == 33


def test_a_map_of_a_file_that_is_gone_or_replaced_travels_as_data(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    np.arange(5000, dtype=np.uint8).tofile(path)
    here = np.memmap(path, np.uint8, "r")
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(5000))
    os.replace(other, path)
    np.testing.assert_array_equal(shipped(here), here)
    assert size_of(here) > 5000
    path.unlink()
    np.testing.assert_array_equal(shipped(here), here)


def test_a_map_without_a_name_travels_as_data(tmp_path: Path) -> None:
    with open(os.memfd_create("unnamed"), "w+b") as file:
        file.write(bytes(5000))
        file.flush()
        here = np.memmap(file, np.uint8, "r+")
    assert size_of(here) > 5000
    np.testing.assert_array_equal(shipped(here), here)


# Tensors


def test_a_tensor_is_shared_with_all_its_views() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(10_000, dtype=torch.int32).reshape(100, 100)
    payload = {
        "dataset": whole,
        "turned": whole.T,
        "half": whole.to(torch.bfloat16),
        "bytes": whole.view(torch.uint8),
    }
    assert size_of(payload) < 40_000 + 20_000 + 10_000
    there = shipped(payload)
    for name, tensor in payload.items():
        assert torch.equal(there[name], tensor)
        assert there[name].dtype == tensor.dtype
    there["dataset"][0, 1] = 77
    assert there["turned"][1, 0] == 77
    assert whole[0, 1] == 1
    assert looks_into_the_shipment(there["dataset"].numpy())


# What cannot be sent


class Holder:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    dataset: object
    collate_fn: object


def unsendable(payload: object) -> str:
    with pytest.raises(UnshippableDataset) as caught:
        pack(payload, [])
    assert isinstance(caught.value.__cause__, (TypeError, pickle.PicklingError))
    return str(caught.value)


def captured() -> Callable[[], object]:
    lock = threading.Lock()
    return lambda: lock


def with_default(lock: object = threading.Lock()) -> None:
    pass


with_default.__module__ = "__main__"  # so that it goes by value

PATHS: dict[str, object] = {
    "dataset.handles['lock']": Holder(handles={"fine": 1, "lock": threading.Lock()}),
    "dataset.parts[500]": Holder(parts=[*range(500), threading.Lock(), *range(1000)]),
    "dataset.parts[1].handles[3]": Holder(parts=(0, Holder(handles={3: threading.Lock()}))),
    "dataset.lock": Slotted(),
    "dataset": threading.Lock(),
    "dataset's variable 'lock'": captured(),
    "dataset.keywords['lock']": partial(print, lock=threading.Lock()),
    "dataset.__self__.lock": Slotted.__init__.__get__(Slotted()),
    "dataset's defaults[0][0]": with_default,
}


@pytest.mark.parametrize("path", PATHS)
def test_what_cannot_be_sent_is_named_by_its_path(path: str) -> None:
    for payload in ({"other": 1, "dataset": PATHS[path]}, (len, Job(PATHS[path], None))):
        assert unsendable(payload).startswith(f"{path} is a _thread.lock, which cannot be sent")


def test_the_message_says_what_to_do() -> None:
    connection = sqlite3.connect(":memory:")
    message = unsendable({"dataset": Holder(handles={"db": connection})})
    connection.close()
    assert "dataset.handles['db'] is a sqlite3.Connection" in message
    for remedy in ("worker_init_fn", "on first use", 'multiprocessing_context="fork"', 'backend="thread"'):
        assert remedy in message


def test_a_million_parts_are_not_tried_one_by_one() -> None:
    parts = [(i,) for i in range(200_000)]
    parts[150_000] = threading.Lock()  # type: ignore[call-overload]
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    assert unsendable({"dataset": parts}).startswith("dataset[150000] ")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - began < 3


def test_a_cycle_ends_the_search() -> None:
    ring: list[object] = [threading.Lock()]
    ring.insert(0, ring)
    assert unsendable({"dataset": ring}).startswith("dataset[1] ")


def test_nothing_is_left_mapped_or_open_by_a_failure() -> None:
    before = len(os.listdir("/proc/self/fd"))
    unsendable({"dataset": [np.arange(10_000), threading.Lock()]})
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_a_shipment_leaves_what_is_mapped() -> None:
    shipment = pack(np.arange(1000), [])
    there = unpack(shipment)
    close(shipment)
    assert there.sum() == 499_500
