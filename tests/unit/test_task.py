"""Tasks on their way to a worker process: what keys become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from same import same

from penstock._wire.task import Notice, Task, encode_keys


def arrived(keys: Any, batched: bool = True) -> tuple[Any, bool]:
    """The keys as a worker gets them, and whether they travelled as an array."""
    task = Task(7, 1, 2, 3, keys)
    root = np.zeros(4096, np.uint8)
    data, size = encode_keys(keys, batched, main_is_there=True)
    root[: len(data)] = data
    there = Notice(7, 1, 2, 3, size, 1, 0, 0, 4096, 0, 4096).task(root)
    assert there[:4] == task[:4]
    return there.keys, size >= 0


@pytest.mark.parametrize("keys", [np.arange(5), [3, -1, 2**40]], ids=["array", "list"])
def test_integer_keys_arrive_as_a_read_only_array(keys: Any) -> None:
    there, raw = arrived(keys)
    assert raw and there.dtype == np.int64 and there.tolist() == list(keys)
    assert not there.flags.writeable


@pytest.mark.parametrize(
    "keys",
    [
        np.arange(5, dtype=np.int32),
        np.arange(10)[::2],
        np.arange(6).reshape(2, 3),
        np.arange(4.0),
        [True, False],
        [1, 2.0],
        [np.int64(1)],
        [2**70],
        [],
        (1, 2),
        ["a", ("b", 1)],
        5,
        (5, None),
    ],
    ids=repr,
)
def test_all_other_keys_arrive_as_they_were(keys: Any) -> None:
    there, raw = arrived(keys)
    assert not raw
    assert same(there, keys)


@pytest.mark.parametrize("key", [[1, 2], np.arange(3), 5, (1, 2)], ids=repr)
def test_a_single_key_keeps_its_type(key: Any) -> None:
    there, _ = arrived(key, batched=False)
    assert same(there, key)
    if isinstance(key, np.ndarray):
        assert there.flags.writeable
