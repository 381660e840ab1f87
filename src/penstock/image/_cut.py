"""Computes which part of an image becomes the sample. This is arithmetic on sizes; no pixels are involved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Size = tuple[int, int]  # height, width
TRIES = 10  # windows drawn before the centre of the image is taken; nearly always the first fits


class Box(NamedTuple):
    top: int
    left: int
    height: int
    width: int

    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)

    def shrinking(self, to: Size) -> int:
        """Returns the largest factor (1, 2, 4, 8) by which the box can shrink without becoming smaller than `to`."""
        for times in (8, 4, 2):
            if self.height // times >= to[0] and self.width // times >= to[1]:
                return times
        return 1

    def shrunk(self, times: int) -> tuple[Box, tuple[float, float]]:
        """Scales the box to an image decoded at 1/`times` size. Returns the rounded box and the exact size."""
        # The exact box begins at the upper left corner of the rounded one; pixels beyond its size may be padding. A
        # box that begins inside a decoded pixel is moved to the pixel's edge: this is harmless, as its position is
        # random.
        top, left, height, width = self
        box = Box(top // times, left // times, -(-height // times), -(-width // times))
        return box, (height / times, width / times)


class Cut(NamedTuple):
    region: Box  # of the image; it is resized to `to`
    to: Size
    inside: Box  # the sample, in the resized region
    crop: Box  # of a mean image of the size `before`
    before: Size  # of the image before cropping


def fitting(image: Size, shorter: int) -> Size:
    height, width = image
    if height <= width:
        return shorter, max(1, round(width * shorter / height))
    return max(1, round(height * shorter / width)), shorter


def covering(image: Size, crop: Size) -> Size:
    """Returns the smallest size that has the image's proportions and contains the crop."""
    factor = max(crop[0] / image[0], crop[1] / image[1])
    return max(crop[0], round(image[0] * factor)), max(crop[1], round(image[1] * factor))


def crop_box(image: Size, crop: Size, down: float, right: float) -> Box:
    """Returns the box of a crop at the relative position `down`, `right` (each at least 0 and less than 1)."""
    return Box(int(down * (image[0] - crop[0] + 1)), int(right * (image[1] - crop[1] + 1)), *crop)


def centre_box(image: Size, crop: Size) -> Box:
    return Box((image[0] - crop[0]) // 2, (image[1] - crop[1]) // 2, *crop)


def random_box(image: Size, area: tuple[float, float], ratio: tuple[float, float], drawn: Sequence[float]) -> Box:
    """Returns a random window. Its area and the logarithm of its aspect ratio are uniformly distributed.

    `area` holds the smallest and the largest share of the image that the window may cover. `ratio` holds the smallest
    and the largest ratio of width to height. `drawn` holds 2 + 2 * TRIES random numbers between 0 and 1.
    """
    height, width = image
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for at in range(2, 2 + 2 * TRIES, 2):
        pixels = height * width * (area[0] + drawn[at] * (area[1] - area[0]))
        shape = math.exp(low + drawn[at + 1] * (high - low))
        tall, wide = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < tall <= height and 0 < wide <= width:
            return crop_box(image, (tall, wide), drawn[0], drawn[1])
    # No window fits into the image: take the centre, as much of it as the ratio allows.
    tall = min(height, max(1, round(width / ratio[0])))
    wide = min(width, max(1, round(height * ratio[1])))
    return centre_box(image, (tall, wide))
