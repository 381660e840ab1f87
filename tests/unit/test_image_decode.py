"""Every kind of image file gives the pixels that a viewer shows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import decoded, encoded, oriented, picture
from PIL import Image, ImageOps

from penstock._pixels import decode, open_image, survey
from penstock.image import ImageError


def pixels(data: Any, color: Any = "rgb", shrink: int = 1, rows: int = 10_000) -> Any:
    return open_image(data, color, "tom.jpg").pixels(rows, shrink, lambda n: np.empty(n, np.uint8))[0]


def test_a_jpeg_has_the_pixels_that_pillow_gives() -> None:
    data = encoded(picture(), subsampling=2)
    assert (pixels(data) == decoded(data)).all()
    assert (pixels(data, "bgr") == decoded(data)[:, :, ::-1]).all()
    assert (pixels(data, "gray") == decoded(data, "L")).mean() > 0.9
    assert pixels(data, "gray").shape == (60, 80)
    assert (decode(data) == decoded(data)).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "TIFF", "PPM", "GIF"])
def test_other_formats_have_the_pixels_that_pillow_gives(kind: str) -> None:
    data = encoded(picture(), kind)
    assert (pixels(data) == decoded(data)).all()


def test_a_gray_jpeg_has_three_equal_channels_in_colour() -> None:
    data = encoded(picture()[:, :, 0])
    assert (pixels(data) == decoded(data, "L")[:, :, None]).all() and pixels(data).shape == (60, 80, 3)


@pytest.mark.parametrize("tag", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_turned_upright(kind: str, tag: int) -> None:
    data = oriented(picture(), tag, kind)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    opened = open_image(data, "rgb", "")
    assert (opened.height, opened.width) == upright.shape[:2]
    assert (pixels(data) == upright).all()
    assert (pixels(data, rows=20)[:20] == upright[:20]).all()


@pytest.mark.parametrize("tag", [6, 3])
def test_a_gray_image_is_turned_upright(tag: int) -> None:
    data = oriented(picture()[:, :, 0], tag)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert (pixels(data, "gray") == upright).all()


@pytest.mark.parametrize("order", ["little", "big"])
def test_the_orientation_is_found_behind_other_segments(order: Any) -> None:
    mark = b"II*\0" if order == "little" else b"MM\0*"

    def entry(tag: int, value: int) -> bytes:
        parts = (tag, 2), (3, 2), (1, 4), (value, 2), (0, 2)
        return b"".join(number.to_bytes(size, order) for number, size in parts)

    ifd = (2).to_bytes(2, order) + entry(0x010E, 7) + entry(0x0112, 6) + bytes(4)
    exif = b"Exif\0\0" + mark + (8).to_bytes(4, order) + ifd
    data = encoded(picture())
    segments = [b"\xff\xfe\0\x06note", b"\xff\xe1" + (2 + len(exif)).to_bytes(2, "big") + exif]
    assert survey(data[:2] + b"".join(segments) + data[2:])[0] == 6
    assert survey(data)[0] == 1


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_an_ordinary_jpeg_does_not_need_pillow(monkeypatch: Any, shrink: int) -> None:
    monkeypatch.setattr("penstock._pixels._by_pillow", None)
    plain = encoded(picture(61, 83), subsampling=2)
    for data in (plain, plain + bytes(3), encoded(picture()[:, :, 0]), oriented(picture(), 6)):
        for rows in (20, 1000):
            assert pixels(data, shrink=shrink, rows=rows).size
            assert pixels(data, "gray", shrink=shrink, rows=rows).size


def test_bytes_between_two_markers_do_no_harm() -> None:
    data = encoded(picture())
    with_bytes = data[:-2] + b"\0\0\0" + data[-2:]
    assert (pixels(with_bytes) == decoded(data)).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_jpeg_is_an_image_error_or_an_image(draw: st.DataObject) -> None:
    data = bytearray(oriented(picture(), 6))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, min(700, len(data) - 1)))] = draw.draw(st.integers(0, 255))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)))])
    try:
        found = pixels(cut)
    except ImageError:
        return
    assert found.dtype == np.uint8 and found.ndim == 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_a_truncated_file_is_an_error_that_names_it(kind: str) -> None:
    data = encoded(picture(200, 300), kind)
    with pytest.raises(ImageError, match=r"^tom\.jpg: its \d+ bytes cannot be decoded as an image: "):
        pixels(data[: len(data) // 2])


def test_a_header_that_asks_for_too_many_pixels_is_refused() -> None:
    data = bytearray(encoded(picture()))
    at = survey(bytes(data))[1]
    data[at + 1 : at + 5] = b"\xff\xff\xff\xff"
    with pytest.raises(ImageError, match=r"tom\.jpg: .*4294836225 pixels.*[^.]\.$"):
        pixels(bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8\xff", b"<html>not found</html>", bytes(1000), b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_what_is_no_image_is_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(ImageError, match=r"tom\.jpg: its \d+ bytes .* they are not in a format that Pillow reads"):
        pixels(data)


@pytest.mark.parametrize("quality", [95])
def test_a_cmyk_jpeg_has_the_colours_that_it_was_made_with(quality: int) -> None:
    image = Image.fromarray(picture()).convert("CMYK")
    data = encoded(image, quality=quality)  # Pillow stores it as Adobe does, inverted
    assert b"Adobe" in data
    assert np.abs(pixels(data).astype(int) - np.asarray(image.convert("RGB"))).mean() < 3
    assert np.abs(pixels(data, "gray").astype(int) - np.asarray(image.convert("RGB").convert("L"))).mean() < 3


def test_a_palette_has_its_colours_also_where_it_is_transparent() -> None:
    image = Image.fromarray(picture()).quantize(16)
    assert (pixels(encoded(image, "PNG")) == np.asarray(image.convert("RGB"))).all()
    clear = encoded(image, "PNG", transparency=bytes([0, 128] + [255] * 14))
    assert (pixels(clear) == np.asarray(image.convert("RGB"))).all()


def test_transparency_is_left_out() -> None:
    alpha = np.dstack([picture(), np.zeros((60, 80), np.uint8)])
    assert (pixels(encoded(alpha, "PNG")) == picture()).all()
    gray = Image.fromarray(picture()[:, :, 0]).convert("LA")
    assert (pixels(encoded(gray, "PNG"), "gray") == picture()[:, :, 0]).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_of_16_bits_the_upper_8_are_taken(kind: str) -> None:
    values = np.arange(0, 65536, 13, dtype=np.uint16)[:5000].reshape(50, 100)
    data = encoded(Image.fromarray(values), kind)
    assert (pixels(data, "gray") == values >> 8).all()
    assert (pixels(data) == (values >> 8)[:, :, None]).all()


def test_one_bit_is_black_or_white() -> None:
    image = Image.fromarray(picture()).convert("1")
    assert set(pixels(encoded(image, "PNG"), "gray").flat) == {0, 255}


def test_floats_have_no_pixels() -> None:
    with pytest.raises(ImageError, match=r"tom\.jpg: its pixels are floats"):
        pixels(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))


def test_a_jpeg_is_decoded_smaller_where_fewer_pixels_are_wanted() -> None:
    data = encoded(picture(61, 83), subsampling=2)
    assert pixels(data, shrink=4).shape == (16, 21, 3)
    assert pixels(oriented(picture(64, 88), 6), shrink=8).shape == (11, 8, 3)
    assert pixels(oriented(picture(64, 84), 6), shrink=8).shape == (
        21,
        16,
        3,
    )  # no padding is turned to the front
    whole = pixels(data)[:60, :80].reshape(30, 2, 40, 2, 3).mean(axis=(1, 3))
    assert np.abs(pixels(data, shrink=2)[:30, :40] - whole).mean() < 2


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("kind", ["baseline", "progressive", "restarts", "gray"])
def test_rows_below_those_that_are_wanted_are_not_decoded_and_the_others_are_the_same(
    subsampling: int, kind: str
) -> None:
    rough = np.random.default_rng(0).integers(0, 256, (200, 90, 3)).astype(np.uint8)
    options = {"progressive": {"progressive": True}, "restarts": {"restart_marker_rows": 2}}.get(kind, {})
    data = encoded(rough[:, :, 0] if kind == "gray" else rough, subsampling=subsampling, **options)
    for shrink in (1, 2, 4, 8):
        whole = pixels(data, shrink=shrink)
        for rows in (1, 14, 15, 16, 31, 48, 100, 150, 199):
            part = pixels(data, shrink=shrink, rows=rows)
            wanted = -(-rows // shrink)
            assert len(part) >= wanted and (part[:wanted] == whole[:wanted]).all()
            assert len(part) < len(whole) or rows > 150


def test_a_file_that_was_cut_off_is_an_error_also_where_its_first_rows_are_there() -> None:
    data = encoded(picture(200, 300))
    for cut in (data[: len(data) // 2], data[:-2]):
        with pytest.raises(ImageError, match="cannot be decoded"):
            pixels(cut, rows=16)


def test_arrays_are_taken_as_pixels() -> None:
    assert pixels(picture()) is not None and (pixels(picture(), "bgr") == picture()[:, :, ::-1]).all()
    assert (pixels(picture()[:, :, :1]) == picture()[:, :, :1]).all()
    assert (pixels(picture()[:, :, 0], "gray") == picture()[:, :, 0]).all()
    luma = np.asarray(Image.fromarray(picture()).convert("L")).astype(int)
    assert np.abs(pixels(picture(), "gray") - luma).max() <= 1


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4, 3), np.float32), np.zeros((3, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_other_arrays_are_refused(array: Any) -> None:
    with pytest.raises(ImageError, match=r"tom\.jpg: pixels must be uint8 of shape .* but they are"):
        pixels(array)
