"""Law of `penstock.image.loader`: whatever is done with an image, the result is that of Pillow's own."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import encoded, oriented, picture
from PIL import Image, ImageFilter, ImageOps, features

from penstock.image import loader

pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency")

PICTURE = picture(61, 83)
ROUGH = np.random.default_rng(0).integers(0, 256, (61, 83, 3)).astype(np.uint8)
CMYK = Image.fromarray(PICTURE).convert("CMYK")
PALETTE = Image.fromarray(PICTURE).quantize(16)
DEEP = np.arange(0, 61 * 83 * 12, 12, dtype=np.uint16).reshape(61, 83)
FRAMES = [Image.fromarray(picture(61, 83, seed)).quantize(16) for seed in (1, 2, 3)]


def several(kind: str, frames: list[Image.Image]) -> bytes:
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


def as_rgb() -> bytes:
    """A JPEG without a transform of colours, as Adobe's marker says."""
    return encoded(PICTURE, keep_rgb=True)


FILES = {
    "JPEG 4:4:4": encoded(PICTURE),
    "JPEG 4:2:0": encoded(ROUGH, subsampling=2, quality=80),
    "JPEG 4:2:2": encoded(ROUGH, subsampling=1, quality=30),
    "JPEG progressive": encoded(ROUGH, progressive=True, subsampling=2),
    "JPEG restarts": encoded(ROUGH, restart_marker_rows=2, subsampling=2),
    "JPEG gray": encoded(PICTURE[:, :, 0]),
    "JPEG RGB": as_rgb(),
    "JPEG CMYK": encoded(CMYK),
    "JPEG with a profile": encoded(PICTURE, icc_profile=bytes(300), dpi=(300, 300), comment=b"a picture"),
    **{f"JPEG EXIF {tag}": oriented(PICTURE, tag) for tag in range(1, 9)},
    "JPEG with bytes after its end": encoded(PICTURE) + bytes(100),
    "JPEG of one pixel": encoded(PICTURE[:1, :1]),
    "JPEG of one row": encoded(PICTURE[:1]),
    "MPO": several("MPO", [Image.fromarray(PICTURE), Image.fromarray(ROUGH)]),
    "PNG": encoded(PICTURE, "PNG"),
    "PNG with alpha": encoded(np.dstack([PICTURE, ROUGH[:, :, 0]]), "PNG"),
    "PNG gray": encoded(PICTURE[:, :, 0], "PNG"),
    "PNG gray with alpha": encoded(Image.fromarray(PICTURE[:, :, 0]).convert("LA"), "PNG"),
    "PNG of 16 bits": encoded(Image.fromarray(DEEP), "PNG"),
    "PNG of one bit": encoded(Image.fromarray(PICTURE).convert("1"), "PNG"),
    "PNG with a palette": encoded(PALETTE, "PNG"),
    "PNG with a transparent palette": encoded(PALETTE, "PNG", transparency=bytes([0, 128] + [255] * 14)),
    "PNG EXIF": oriented(PICTURE, 6, "PNG"),
    "GIF": several("GIF", FRAMES),
    "WEBP": encoded(PICTURE, "WEBP"),
    "WEBP animated": several("WEBP", [frame.convert("RGB") for frame in FRAMES]),
    "BMP": encoded(PICTURE, "BMP"),
    "PPM": encoded(PICTURE, "PPM"),
    "TIFF": encoded(PICTURE, "TIFF"),
    "TIFF of 16 bits": encoded(Image.fromarray(DEEP), "TIFF"),
    "TIFF of floats": encoded(Image.fromarray(PICTURE[:, :, 0].astype(np.float32)), "TIFF"),
} | ({"AVIF": encoded(PICTURE, "AVIF")} if features.check("avif") else {})


def default_loader(data: bytes) -> Image.Image:
    """As torchvision's `pil_loader`."""
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


RESAMPLES = [Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC]
edges = st.integers(-5, 90)
boxes = st.tuples(edges, edges, edges, edges).map(lambda box: (*sorted(box[::2]), *sorted(box[1::2])))
boxes = boxes.map(lambda box: (box[0], box[2], box[1] + 1, box[3] + 1))
sizes = st.tuples(st.integers(1, 100), st.integers(1, 100))

steps = st.one_of(
    st.tuples(st.just("crop"), boxes),
    st.tuples(st.just("crop"), st.none()),
    st.tuples(st.just("resize"), sizes, st.sampled_from(RESAMPLES)),
    st.tuples(st.just("resize part"), sizes, st.tuples(*[st.floats(0, 1)] * 4)),
    st.tuples(st.just("thumbnail"), sizes),
    st.tuples(st.just("reduce"), st.integers(1, 4)),
    st.tuples(st.just("transpose"), st.sampled_from(list(Image.Transpose))),
    st.tuples(st.just("rotate"), st.sampled_from([0, 17, 90])),
    st.tuples(st.just("convert"), st.sampled_from(["RGB", "L", "HSV", "P", "RGBA", None])),
    st.tuples(st.just("copy")),
    st.tuples(st.just("blur")),
    st.tuples(st.just("upright")),
    st.tuples(st.just("paint")),
    st.tuples(st.just("note")),
    st.tuples(st.just("array")),
    st.tuples(st.just("pickle")),
)


def done(image: Image.Image, step: Any) -> Image.Image:
    match step:
        case "crop", box:
            return image.crop(box)
        case "resize", size, resample:
            return image.resize(size, resample)
        case "resize part", size, (left, upper, right, lower):
            width, height = image.size
            left, right = sorted((left * width, right * width))
            upper, lower = sorted((upper * height, lower * height))
            return image.resize(size, Image.Resampling.BILINEAR, (left, upper, max(right, left + 1e-3), lower))
        case "thumbnail", size:
            image.thumbnail(size)
        case "reduce", factor:
            return image.reduce(factor)
        case "transpose", method:
            return image.transpose(method)
        case "rotate", angle:
            return image.rotate(angle, expand=True)
        case "convert", mode:
            return image.convert(mode)
        case ("copy",):
            return image.copy()
        case ("blur",):
            return image.filter(ImageFilter.BoxBlur(1)) if image.mode != "P" else image
        case ("upright",):
            return ImageOps.exif_transpose(image)
        case ("paint",):
            copied = image.copy()
            copied.putpixel((0, 0), 7 if len(image.getbands()) == 1 else (7,) * len(image.getbands()))
            return copied
        case ("note",):
            image.info["note"] = "read"
        case ("array",):
            return Image.fromarray(np.array(image)) if image.mode not in ("P", "HSV") else image
        case ("pickle",):
            import pickle

            return pickle.loads(pickle.dumps(image))
    return image


def outcome(image: Image.Image, program: list[Any]) -> Any:
    try:
        for step in program:
            image = done(image, step)
        return image.mode, image.size, image.info, image.tobytes()
    except Exception as error:
        return type(error), str(error)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.lists(steps, max_size=4))
@example("JPEG 4:2:0", [("crop", (3, 5, 50, 40)), ("resize", (20, 20), Image.Resampling.BILINEAR)])
@example("JPEG EXIF 6", [("upright",), ("crop", (3, 5, 50, 40))])
@example("JPEG 4:4:4", [("note",), ("crop", (3, 5, 50, 40))])
@example("JPEG 4:4:4", [("paint",), ("crop", (0, 0, 50, 40))])
@example("JPEG 4:4:4", [("crop", (9, 9, 80, 60)), ("crop", (3, 5, 50, 40))])
def test_the_result_of_any_program_is_that_of_pillow(kind: str, program: list[Any]) -> None:
    with warnings.catch_warnings(record=True) as expected_warnings:
        warnings.simplefilter("always")
        expected = outcome(default_loader(FILES[kind]), program)
    with warnings.catch_warnings(record=True) as found_warnings:
        warnings.simplefilter("always")
        found = outcome(loader()(FILES[kind]), program)
    assert found == expected
    assert [str(each.message) for each in found_warnings] == [str(each.message) for each in expected_warnings]


@pytest.mark.parametrize("kind", sorted(FILES))
def test_arrays_have_the_pixels_that_pillow_gives(kind: str) -> None:
    expected = np.asarray(default_loader(FILES[kind]))
    found = loader("numpy")(FILES[kind])
    assert found.dtype == np.uint8 and found.flags.c_contiguous and found.flags.writeable
    assert (found == expected).all()
    assert (np.asarray(loader()(FILES[kind])) == expected).all()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_jpeg_is_what_pillow_makes_of_it(draw: st.DataObject) -> None:
    data = bytearray(FILES[draw.draw(st.sampled_from([name for name in sorted(FILES) if name.startswith("JPEG")]))])
    for _ in range(draw.draw(st.integers(0, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)) | st.just(len(data)))])
    try:
        expected = default_loader(cut)
    except Exception:
        return  # what penstock reads beyond that does no harm
    assert np.array_equal(np.asarray(loader()(cut)), np.asarray(expected))
    box = (5, 7, max(6, expected.width // 2), max(8, expected.height // 2))
    if box[2] < expected.width and box[3] < expected.height:
        assert loader()(cut).crop(box).tobytes() == expected.crop(box).tobytes()
