"""Laws of windows: what is taken is inside the image, and never fewer pixels than wanted if there are more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.image._cut import TRIES, Box, Size, centre_box, covering, crop_box, fitting, random_box

lengths = st.integers(1, 5000)
sizes = st.tuples(lengths, lengths)
shares = st.floats(0, 1, exclude_max=True)
draws = st.lists(shares, min_size=2 + 2 * TRIES, max_size=2 + 2 * TRIES)


def is_inside(box: Box, image: Size) -> bool:
    down = box.top >= 0 and box.height > 0 and box.top + box.height <= image[0]
    return down and box.left >= 0 and box.width > 0 and box.left + box.width <= image[1]


@given(sizes, draws, st.floats(0.01, 1), st.floats(0.1, 1))
def test_a_random_window_is_inside_the_image(image: Size, drawn: list[float], least: float, flat: float) -> None:
    assert is_inside(random_box(image, (least, 1.0), (flat, 1 / flat), drawn), image)


@given(st.integers(100, 2000), st.integers(100, 2000), draws)
def test_a_random_window_has_the_area_and_the_ratio_or_is_the_middle(
    height: int, width: int, drawn: list[float]
) -> None:
    box = random_box((height, width), (0.08, 1.0), (1.2, 1.9), drawn)
    middle = centre_box((height, width), (box.height, box.width))
    assert box == middle or 0.07 <= box.height * box.width / (height * width) <= 1
    assert 1.2 * 0.95 <= box.width / box.height <= 1.9 * 1.05


@given(sizes, sizes, shares, shares)
def test_a_crop_is_inside_the_image(image: Size, crop: Size, down: float, right: float) -> None:
    fits = min(image[0], crop[0]), min(image[1], crop[1])
    for box in (crop_box(image, fits, down, right), centre_box(image, fits)):
        assert is_inside(box, image) and (box.height, box.width) == fits


@given(sizes, lengths)
def test_fitting_gives_the_shorter_side_its_length(image: Size, shorter: int) -> None:
    height, width = fitting(image, shorter)
    assert (height if image[0] <= image[1] else width) == shorter
    assert abs(height * image[1] - width * image[0]) <= max(image)


@given(sizes, sizes)
def test_covering_has_room_for_the_crop_and_not_more_than_needed(image: Size, crop: Size) -> None:
    height, width = covering(image, crop)
    assert height >= crop[0] and width >= crop[1] and (height == crop[0] or width == crop[1])


@given(sizes, st.data(), sizes)
def test_a_smaller_decoded_window_has_all_pixels_that_are_wanted(image: Size, data: st.DataObject, to: Size) -> None:
    crop = data.draw(st.integers(1, image[0])), data.draw(st.integers(1, image[1]))
    window = crop_box(image, crop, data.draw(shares), data.draw(shares))
    times = window.shrinking(to)
    decoded = -(-image[0] // times), -(-image[1] // times)
    small, extent = window.shrunk(times)
    assert is_inside(small, decoded)
    assert small.height >= extent[0] == window.height / times
    assert small.width >= extent[1] == window.width / times
    assert times == 1 or (extent[0] >= to[0] and extent[1] >= to[1])
    # It begins less than a decoded pixel before, and where the image does if the window does.
    assert 0 <= window.top - small.top * times < times
    assert 0 <= window.left - small.left * times < times
