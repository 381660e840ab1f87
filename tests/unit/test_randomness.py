"""Generators and keys as numbers: the same in every process, and not alike among each other."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._work.seeding import SAMPLE, STEP, generator, number_of

KEYS: list[Any] = ["a", b"a", ("a", 1), ("a", "a"), (), 2.5, None, (1, (2, 3)), ((1, 2), 3), "ä", ""]


def test_a_number_of_a_key_is_the_same_in_another_process() -> None:
    code = f"from penstock._work.seeding import number_of; print([number_of(key) for key in {KEYS!r}])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str([number_of(key) for key in KEYS])


def test_different_keys_have_different_numbers() -> None:
    assert len({number_of(key) for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.int16])
def test_an_integer_is_its_own_number_whatever_its_type(kind: Any) -> None:
    assert number_of(kind(7)) == 7
    assert type(number_of(kind(7))) is int


SOME: list[Any] = [
    {1, "a"},
    {1},
    np.array([1, 2]),
    np.array([[1, 2]]),
    np.array([1.0, 2.0]),
    np.datetime64("2026-11-16"),
]


def test_sets_and_arrays_have_a_number_whatever_way_they_came() -> None:
    numbers = [number_of(key) for key in SOME]
    assert len(set(numbers)) == len(numbers)
    assert numbers == [number_of(pickle.loads(pickle.dumps(key))) for key in SOME]
    assert number_of(np.array([1, 2, 3, 4])[::2]) == number_of(np.array([1, 3]))
    assert number_of({"at": np.array([1, 2])}) == number_of({"at": np.array([1, 2])})


def test_a_tensor_has_the_number_of_what_is_in_it() -> None:
    torch = pytest.importorskip("torch")
    assert number_of(torch.tensor(7)) == 7
    assert number_of(torch.arange(8)[2:4]) == number_of(np.array([2, 3]))


def test_which_parts_of_a_key_are_one_object_does_not_matter() -> None:
    one = "".join(["pa", "th"])
    other = "".join(["pa", "th"])
    assert one is not other
    assert number_of((one, one)) == number_of((one, other))


def test_a_key_that_cannot_be_pickled_is_known_by_its_repr() -> None:
    class Local:
        def __repr__(self) -> str:
            return "here"

    assert number_of(Local()) == number_of(Local())


@given(st.integers(0, 1 << 70), st.integers(0, 1 << 40), st.integers(-(1 << 70), 1 << 70))
def test_a_generator_is_a_function_of_its_numbers(seed: int, epoch: int, key: int) -> None:
    def first(*of: int) -> list[int]:
        drawn: list[int] = generator(*of).integers(0, 1 << 63, 3).tolist()
        return drawn

    drawn = first(seed, epoch, key, SAMPLE)
    assert drawn == first(seed, epoch, key, SAMPLE)
    assert drawn != first(seed, epoch, key, STEP)
    assert drawn != first(seed, epoch, key + 1, SAMPLE)
    assert drawn != first(seed, epoch + 1, key, SAMPLE)
    assert drawn != first(seed + 1, epoch, key, SAMPLE)


def test_the_first_numbers_of_neighbouring_keys_are_uniform_and_independent() -> None:
    drawn = np.array([generator(0, 0, key, SAMPLE).random(2) for key in range(4000)])
    for column in (drawn[:, 0], drawn[:, 1]):
        counts = np.histogram(column, 20, (0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 45  # chi-square of 19: once in 1,000
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.06
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.06


def test_generators_spawned_from_one_differ_and_can_be_had_again() -> None:
    def spawned() -> list[float]:
        parent = generator(1, 2, 3, SAMPLE)
        return [child.random() for child in (*parent.spawn(2), *parent.spawn(1))]

    assert spawned() == spawned()
    assert len(set(spawned())) == 3


def test_a_generator_can_be_pickled() -> None:
    made = generator(1, 2, 3, SAMPLE)
    assert pickle.loads(pickle.dumps(made)).random() == made.random()
