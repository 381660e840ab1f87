"""Seeds: integers made from integers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.plan._seeds import MASK, check_generator, draw_key, mix


def test_mixed_seeds_never_change() -> None:
    # A saved run resumes only with the same numbers: a change here must be a decision.
    assert mix(0) == 13849199027997664796
    assert mix(1, 2, 3) == 16580979803851379966
    assert mix(-1) == 17162826511155594549
    assert mix(2**70) == 6571580073907296422


def test_the_order_and_the_number_of_parts_count() -> None:
    parts = [(), (0,), (0, 0), (0, 1), (1, 0), (1,), (0, 0, 0), (1, 1)]
    assert len({mix(*each) for each in parts}) == len(parts)


def test_numbers_that_agree_in_their_low_64_bits_are_told_apart() -> None:
    numbers = [5, -5, 5 + 2**64, 5 + 2**65, 5 - 2**64, -1, MASK, 2**128, 2**192, 0]
    assert len({mix(number) for number in numbers}) == len(numbers)


def test_the_result_has_64_bits() -> None:
    assert all(0 <= mix(seed, 7) <= MASK for seed in (0, 1, -1, 10**30, -(10**30)))


def test_numpy_integers_and_bools_count_as_their_value() -> None:
    assert mix(np.int64(-3), np.uint64(MASK), np.int8(4), True) == mix(-3, MASK, 4, 1)


def test_small_neighbouring_parts_do_not_collide() -> None:
    mixed = {mix(seed, epoch, step) for seed in range(20) for epoch in range(20) for step in range(100)}
    assert len(mixed) == 20 * 20 * 100


@pytest.mark.deep
@pytest.mark.parametrize(("count", "changed"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_one_flipped_bit_flips_half_of_the_result(count: int, changed: int) -> None:
    rng = random.Random(1)
    trials = 256
    for bit in range(64):
        flips = np.zeros(64)
        for _ in range(trials):
            parts = [rng.getrandbits(20) for _ in range(count)]
            other = list(parts)
            other[changed] ^= 1 << bit
            difference = mix(*parts) ^ mix(*other)
            flips += np.unpackbits(np.array([difference], dtype="<u8").view(np.uint8), bitorder="little")
        # 6 standard deviations, over 64 x 64 pairs of bits
        assert np.abs(flips / trials - 0.5).max() < 6 * 0.5 / trials**0.5, f"bit {bit}"


def test_a_key_is_drawn_from_the_generator_and_advances_it() -> None:
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    first, second = draw_key(one), draw_key(one)
    assert first != second
    assert (draw_key(other), draw_key(other)) == (first, second)


def test_without_a_generator_a_key_comes_from_numpys_global_state() -> None:
    state = np.random.get_state()
    try:
        np.random.seed(5)
        first, second = draw_key(None), draw_key(None)
        np.random.seed(5)
        assert (draw_key(None), draw_key(None)) == (first, second)
        assert first != second
    finally:
        np.random.set_state(state)


@pytest.mark.parametrize("wrong", [random.Random(0), np.random.RandomState(0), 5, "seed"])
def test_other_generators_are_refused_with_a_hint(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"numpy\.random\.default_rng.*penstock\.torch"):
        check_generator(wrong)


def test_a_torch_generator_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"Generator.*belongs to the classes of penstock.torch"):
        check_generator(torch.Generator())
