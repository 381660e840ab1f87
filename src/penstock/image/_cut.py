"""Which part of an image becomes the sample: arithmetic on sizes, without a pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Size = tuple[int, int]  # height, width
TRIES = 10  # windows that are drawn before the middle of the image is taken; nearly always the first fits


class Box(NamedTuple):
    """A part of an image."""

    top: int
    left: int
    height: int
    width: int


class Cut(NamedTuple):
    """The `window` of the image is resized `to` a size, and the sample is what is `inside` of that.

    `crop` is where the sample is in an image of the size `before` the crop, if there is one.
    """

    window: Box
    to: Size
    inside: Box
    crop: Box
    before: Size


def fitting(image: Size, shorter: int) -> Size:
    """The size of an image when its shorter side has this length."""
    height, width = image
    if height <= width:
        return shorter, max(1, round(width * shorter / height))
    return max(1, round(height * shorter / width)), shorter


def covering(image: Size, crop: Size) -> Size:
    """The least size of an image, its proportions kept, that has room for the crop."""
    factor = max(crop[0] / image[0], crop[1] / image[1])
    return max(crop[0], round(image[0] * factor)), max(crop[1], round(image[1] * factor))


def crop_box(image: Size, crop: Size, down: float, right: float) -> Box:
    """The crop that begins at this share, from 0 to below 1, of the places where it can begin."""
    return Box(int(down * (image[0] - crop[0] + 1)), int(right * (image[1] - crop[1] + 1)), *crop)


def centre_box(image: Size, crop: Size) -> Box:
    return Box((image[0] - crop[0]) // 2, (image[1] - crop[1]) // 2, *crop)


def random_box(
    image: Size, area: tuple[float, float], ratio: tuple[float, float], drawn: Sequence[float]
) -> Box:
    """A window with such a share of the area, and such a ratio of width to height, each uniform (the ratio: its
    logarithm); from 2 + 2 * TRIES numbers between 0 and 1.

    Where none of the tries fits into the image it is the middle, as much of it as the ratio allows.
    """
    height, width = image
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for at in range(2, 2 + 2 * TRIES, 2):
        pixels = height * width * (area[0] + drawn[at] * (area[1] - area[0]))
        shape = math.exp(low + drawn[at + 1] * (high - low))
        tall, wide = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < tall <= height and 0 < wide <= width:
            return crop_box(image, (tall, wide), drawn[0], drawn[1])
    tall = min(height, max(1, round(width / ratio[0])))
    wide = min(width, max(1, round(height * ratio[1])))
    return centre_box(image, (tall, wide))


def shrinking(window: Box, to: Size) -> int:
    """How many times fewer pixels along each axis the decoder may give: there are still as many as wanted."""
    for times in (8, 4, 2):
        if window.height // times >= to[0] and window.width // times >= to[1]:
            return times
    return 1


def shrunk(window: Box, times: int) -> tuple[Box, tuple[float, float]]:
    """The same window of an image that was decoded so many times smaller: a box of whole pixels, and how much of it
    the window has, from its upper left corner on. What is beyond may be padding: no side need be a multiple.

    A window that begins inside of a decoded pixel begins with it: it was drawn, and is as good there.
    """
    top, left, height, width = window
    box = Box(top // times, left // times, -(-height // times), -(-width // times))
    return box, (height / times, width / times)
