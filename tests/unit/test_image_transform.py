"""`Transform`: what Caffe's data transformer does to an image, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from pictures import decoded, encoded, oriented, picture
from PIL import Image

from penstock._at_work import working_at
from penstock._feed.base import StepSource
from penstock._pixels import decode
from penstock.image import ImageError, Transform


def drawn(transform: Transform, image: Any, number: int = 0) -> Any:
    """The result with the random numbers of one sample."""
    with working_at(StepSource(0, 0, number, 0)):
        return transform(image, name="tom.jpg")


def hwc(**settings: Any) -> Transform:
    return Transform(**{"dtype": "uint8", "layout": "HWC", "train": False, **settings})


def test_uint8_gives_the_pixels_themselves() -> None:
    assert (hwc()(picture()) == picture()).all()
    data = encoded(picture())
    assert (hwc()(data) == decoded(data)).all()
    assert (Transform(dtype="uint8")(data) == decoded(data).transpose(2, 0, 1)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
def test_mean_is_taken_away_and_then_it_is_scaled(dtype: str, layout: Any, color: Any) -> None:
    channels = 1 if color == "gray" else 3
    mean, std = [100.0, 110.5, 120.0][:channels], [50.0, 60.0, 70.0][:channels]
    settings = {"dtype": dtype, "layout": layout, "color": color}
    pixels = hwc(color=color)(picture()).astype(np.float64)
    for numbers, factor in (
        ({}, np.ones(channels)),
        ({"scale": 1 / 256}, np.full(channels, 1 / 256)),
        ({"mean": mean, "scale": 0.5}, np.full(channels, 0.5)),
        ({"mean": mean, "std": std, "scale": 2}, 2 / np.array(std)),
    ):
        expected = ((pixels - (mean if "mean" in numbers else 0)) * factor).astype(dtype)
        expected = expected.transpose(2, 0, 1) if layout == "CHW" else expected
        found = Transform(**settings, **numbers)(picture())
        assert found.dtype == dtype and (found == expected).all()


def test_one_number_is_the_mean_of_every_channel() -> None:
    assert (Transform(mean=3)(picture()) == Transform(mean=(3, 3, 3))(picture())).all()


def test_the_shorter_side_is_resized_or_both_are() -> None:
    assert hwc(resize=30)(picture(60, 80)).shape == (30, 40, 3)
    assert hwc(resize=30)(picture(81, 60)).shape == (40, 30, 3)
    assert hwc(resize=(31, 77))(picture(60, 80)).shape == (31, 77, 3)
    assert hwc(resize=(31, 77), layout="CHW").shape == (3, 31, 77)
    assert hwc(resize=30).shape is None and hwc(resize=30, crop=(20, 10)).shape == (20, 10, 3)


def test_the_middle_is_cropped_in_evaluation_and_nothing_is_mirrored() -> None:
    image = picture(60, 81)
    assert (hwc(crop=(20, 40), mirror=True)(image) == image[20:40, 20:60]).all()
    resized = cv2.resize(image, (54, 40), interpolation=cv2.INTER_LINEAR)
    assert (hwc(resize=40, crop=20)(image) == resized[10:30, 17:37]).all()


def test_a_training_crop_is_anywhere_and_mirrored_half_of_the_time() -> None:
    rows, columns = np.mgrid[:12, :20].astype(np.uint8)
    image = np.dstack([rows, columns, rows])
    transform = hwc(crop=(10, 16), mirror=True, train=True)
    found = [drawn(transform, image, number) for number in range(200)]
    left = {(int(crop[0, 0, 0]), int(crop[0, :, 1].min())) for crop in found}
    assert left == {(top, left) for top in range(3) for left in range(5)}
    mirrored = [bool(crop[0, 0, 1] > crop[0, 1, 1]) for crop in found]
    assert 70 < sum(mirrored) < 130
    places = [(int(crop[0, 0, 0]), int(crop[0, :, 1].min())) for crop in found]
    for at in (0, 1):
        both = {(place[at], turned) for place, turned in zip(places, mirrored, strict=True)}
        assert len(both) == (6, 10)[at], "where the crop is tells nothing about the mirror"
    for crop, turned in zip(found, mirrored, strict=True):
        top, left_edge = crop[0, 0, 0], crop[0, :, 1].min()
        window = image[top : top + 10, left_edge : left_edge + 16]
        assert (crop == (window[:, ::-1] if turned else window)).all()


def test_a_random_window_is_resized_to_the_crop() -> None:
    transform = hwc(crop=(24, 32), area=(0.08, 1), mirror=False, train=True)
    results = [drawn(transform, picture(), number) for number in range(20)]
    assert {result.shape for result in results} == {(24, 32, 3)}
    assert len({result.tobytes() for result in results}) == 20
    whole = hwc(crop=(60, 80), area=(1, 1), ratio=(80 / 60, 80 / 60), train=True)
    assert (drawn(whole, picture()) == picture()).all()


def test_random_windows_are_resized_and_cropped_in_the_middle_in_evaluation() -> None:
    image = picture(60, 80)
    by_crop = hwc(crop=30, area=(0.08, 1))
    assert (by_crop(image) == hwc(resize=30, crop=30)(image)).all()
    by_resize = hwc(resize=40, crop=30, area=(0.08, 1))
    assert (by_resize(image) == hwc(resize=40, crop=30)(image)).all()


def test_train_can_be_turned_off() -> None:
    transform = Transform(crop=20, mirror=True, mean=(1, 2, 3), area=(0.5, 1))
    assert not dataclasses.replace(transform, train=False).train
    assert (
        dataclasses.replace(transform, train=False)(picture())
        == Transform(resize=20, crop=20, mean=(1, 2, 3), train=False)(picture())
    ).all()


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("color", ["rgb", "gray"])
def test_a_mean_image_is_cropped_with_the_same_window_and_mirrored_with_it(layout: Any, color: Any) -> None:
    # The image is its own mean: nothing is left, wherever the crop is and whether it is mirrored or not.
    mean = Transform(color=color, layout=layout)(picture())
    transform = Transform(crop=40, mirror=True, mean=mean, scale=3, color=color, layout=layout)
    for number in range(8):
        assert not drawn(transform, picture(), number).any()
    shifted = Transform(crop=40, mirror=True, mean=mean - 2, scale=3, color=color, layout=layout)
    assert (drawn(shifted, picture()) == 6).all()


def test_a_mean_image_of_the_size_of_the_crop_is_taken_as_it_is() -> None:
    mean = np.zeros((3, 20, 20))
    mean[:, 0] = 5
    plain = Transform(crop=20, train=False)(picture())
    found = Transform(crop=20, mean=mean, train=False)(picture())
    assert (plain - found == mean).all()


def test_a_mean_image_of_another_size_is_an_error_that_names_both() -> None:
    with pytest.raises(ImageError, match=r"tom\.jpg: the image is 60 x 80 .* the mean image is 50 x 80"):
        Transform(crop=20, mean=np.zeros((3, 50, 80)), train=False)(picture(), name="tom.jpg")


@pytest.mark.parametrize("tag", range(1, 9))
def test_windows_are_of_the_upright_image(tag: int) -> None:
    data = oriented(picture(61, 83), tag)
    upright = hwc()(data)
    height, width = upright.shape[:2]
    top, left = (height - 20) // 2, (width - 40) // 2
    assert (hwc(crop=(20, 40))(data) == upright[top : top + 20, left : left + 40]).all()
    resized = cv2.resize(np.ascontiguousarray(upright), (width // 2 + 9, height // 2 + 9))
    assert (hwc(resize=resized.shape[:2])(data) == resized).all()


def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same() -> None:
    image = picture(800, 1000)
    small = hwc(resize=100, crop=100)(encoded(image, subsampling=2))
    exact = cv2.resize(image, (125, 100), interpolation=cv2.INTER_AREA)[:, 12:112]
    assert np.abs(small.astype(int) - exact).max() <= 6


@pytest.mark.parametrize("tag", [1, 3, 6])
@pytest.mark.parametrize(("side", "to"), [(777, 64), (1793, 224), (1030, 130), (449, 224), (2253, 60)])
def test_what_is_decoded_smaller_stays_where_it_is(side: int, to: int, tag: int) -> None:
    """Sides that are no multiple of the factor: the last pixels that are decoded are mostly padding."""
    image = np.zeros((side, side, 3), np.uint8)
    begin, end = side * 95 // 100, side * 97 // 100
    image[begin:end] = image[:, begin:end] = 255
    data = oriented(image, tag)
    small = hwc(resize=(to, to), color="gray")(data)[..., 0].astype(float)
    true = hwc(resize=(to, to), color="gray")(decode(data))[..., 0].astype(float)
    assert np.abs(_centre(small.mean(0)) - _centre(true.mean(0))) < 0.15
    assert np.abs(_centre(small.mean(1)) - _centre(true.mean(1))) < 0.15


def _centre(profile: Any) -> Any:
    weight = np.where(profile > profile.min() + 10, profile - profile.min(), 0)
    return (weight * np.arange(len(weight))).sum() / weight.sum()


@pytest.mark.parametrize("size", [(50, 50), (50, 400), (400, 50), (50, 600), (133, 90)])
def test_a_strong_reduction_averages_all_pixels(size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3)).astype(np.uint8)
    pixels_for_one = max(1, 400 / size[0]) * max(1, 400 / size[1])
    assert hwc(resize=size)(noise).std() < 1.1 * noise.std() / pixels_for_one**0.5


def test_the_result_can_be_written_where_it_is_wanted() -> None:
    batch = np.zeros((3, 3, 20, 20), np.float32)
    transform = Transform(resize=(20, 20), mean=7, train=False)
    assert transform(picture(), batch[1]).base is not None
    assert (batch[1] == transform(picture())).all() and not batch[0].any() and not batch[2].any()
    for wrong in (np.zeros((3, 20, 21), np.float32), np.zeros((3, 20, 20)), batch[1].swapaxes(1, 2)):
        with pytest.raises(ValueError, match="out must be contiguous float32 of shape"):
            transform(picture(), wrong)


def test_an_image_without_room_for_the_crop_says_so() -> None:
    with pytest.raises(ImageError, match=r"tom\.jpg: the image is 60 x 80 .* 64 x 64 .* Pass resize=64 or more"):
        drawn(Transform(crop=64), picture())
    with pytest.raises(ImageError, match=r"60 x 80 .*, 32 x 43 .* after resize=32, .* 20 x 44"):
        drawn(Transform(resize=32, crop=(20, 44)), picture())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resize": 200, "crop": 224}, "crop=224 is larger than resize=200"),
        ({"resize": (256, 200), "crop": 224}, "is larger than resize"),
        ({"resize": 0}, "resize must be a positive int or a pair"),
        ({"crop": (1, 2, 3)}, "crop must be a positive int or a pair"),
        ({"crop": 22.5}, "crop must be a positive int or a pair"),
        ({"crop": True}, "crop must be a positive int or a pair"),
        ({"color": "cmyk"}, "color must be one of 'rgb', 'bgr', 'gray', but it is 'cmyk'"),
        ({"layout": "NCHW"}, "layout must be one of 'CHW', 'HWC'"),
        ({"dtype": "int32"}, "dtype must be one of uint8, float16, float32, float64"),
        ({"dtype": "pixels"}, "dtype must be one of"),
        ({"mirror": 1}, "mirror must be one of True, False"),
        ({"train": "yes"}, "train must be one of True, False"),
        ({"dtype": "uint8", "mean": 3}, "need a float dtype"),
        ({"dtype": "uint8", "scale": 2}, "need a float dtype"),
        (
            {"mean": (1, 2)},
            r"mean must be a number, one for each channel \(3\), or an image, but its shape is \(2,\)",
        ),
        ({"mean": (1, 2, 3), "color": "gray"}, r"mean must be a number, one for each channel \(1\)"),
        ({"mean": float("nan")}, "mean must be finite"),
        ({"mean": "m.binaryproto"}, r"mean must be .* but it is 'm.binaryproto'.*records\.read_caffe_mean"),
        ({"mean": Path("m.binaryproto")}, r"mean must be .*read_caffe_mean\(path\)"),
        (
            {"mean": [[1, 2], [3]]},
            r"mean must be a number, one for each channel \(3\), or an image, but it is \[\[1, 2\], \[3\]\]\.$",
        ),
        ({"std": "a"}, r"std must be a number or one for each channel \(3\), but it is 'a'\.$"),
        ({"std": (1, 2)}, r"std must be a number or one for each channel \(3\), but its shape"),
        ({"std": (0.229, 0.224, 0.225)}, "std is in pixel values, 0 to 255"),
        ({"std": 0}, "std is in pixel values"),
        ({"scale": "1"}, "scale must be a number"),
        ({"area": (0.08, 1)}, "it needs crop="),
        ({"area": (0, 1), "crop": 9}, "area must be a pair"),
        ({"area": (0.5, 2), "crop": 9}, "area must be a pair .* up to 1"),
        ({"area": 0.5, "crop": 9}, "area must be a pair"),
        ({"area": (0.5, 1), "ratio": (2, 1), "crop": 9}, "ratio must be a pair"),
        ({"area": (0.5, 1), "ratio": (1, float("inf")), "crop": 9}, "ratio must be .*finite"),
        ({"area": (0.5, 1), "ratio": (1, float("nan")), "crop": 9}, "ratio must be a pair"),
        ({"mean": np.zeros((9, 9, 3))}, r"the mean image must be of shape \(3, 'height', 'width'\)"),
        ({"mean": np.zeros((3, 9, 9)), "resize": (8, 8), "crop": 4}, r"\(3, 8, 8\) or \(3, 4, 4\)"),
        ({"mean": np.zeros((3, 9, 9)), "area": (0.5, 1), "crop": 4}, r"of shape \(3, 4, 4\), but"),
    ],
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_bad_settings_are_refused_at_construction(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transform(**settings)


def test_random_choices_need_a_loader_and_others_do_not() -> None:
    with pytest.raises(RuntimeError, match=r"tom\.jpg: .*train=False.*DataLoader.*seed=") as caught:
        Transform(crop=20)(picture(), name="tom.jpg")
    assert "numpy.random" not in str(caught.value)
    Transform(resize=20)(picture())


@pytest.mark.parametrize("image", [None, Image.new("RGB", (8, 8)), "tom.jpg", [[1, 2], [3, 4]]])
def test_what_is_no_image_is_a_type_error_that_says_what_is_one(image: Any) -> None:
    said = rf"tom\.jpg: .* bytes of a file or pixels, .* but it is of type {type(image).__name__}\."
    with pytest.raises(TypeError, match=said):
        Transform()(image, name="tom.jpg")


def test_the_bytes_of_a_file_may_be_in_any_kind_of_memory() -> None:
    data = encoded(picture())
    for same in (bytearray(data), memoryview(data)):
        assert (hwc()(same) == hwc()(data)).all()
