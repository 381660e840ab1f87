"""`penstock.image.loader`: what it takes and gives, what it decodes, and how far `exact=False` is from Pillow."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import decoded, encoded, oriented, picture
from PIL import Image, ImageFile

from penstock._pixels import Jpeg
from penstock.image import loader

DATA = encoded(picture(600, 800), subsampling=2)


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The rows and the factor of each decoding."""
    found: list[tuple[int, int]] = []
    decode = Jpeg.decode

    def noted(self: Jpeg, rows: int, shrink: int, *more: Any) -> Any:
        found.append((rows, shrink))
        return decode(self, rows, shrink, *more)

    monkeypatch.setattr(Jpeg, "decode", noted)
    return found


def test_a_path_bytes_and_an_open_file_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tom.jpg"
    path.write_bytes(DATA)
    load = pickle.loads(pickle.dumps(loader()))
    assert repr(load) == "penstock.image.loader('pil')"
    with path.open("rb") as file:
        images = [load(path), load(str(path)), load(DATA), load(bytearray(DATA)), load(memoryview(DATA)), load(file)]
    assert all(np.array_equal(np.asarray(image), decoded(DATA)) for image in images)


@pytest.mark.parametrize("given", [None, 7, Image.new("RGB", (2, 2))])
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"takes the path, the bytes or an open file of an image, but got a \w+\."):
        loader()(given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "PIL"}, "kind must be one of 'pil', 'numpy', 'tensor', 'tv_tensor', but it is 'PIL'"),
        ({"exact": "no"}, "exact must be True or False, but it is 'no'"),
        ({"kind": "numpy", "exact": False}, "exact=False needs kind='pil'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**arguments)


def test_nothing_is_decoded_before_pixels_are_used(decodings: list[Any]) -> None:
    image = loader()(DATA)
    assert (image.size, image.mode, image.info["jfif"]) == ((800, 600), "RGB", 257)
    part = image.convert("RGB").copy().crop((100, 50, 300, 200)).crop((10, 10, 110, 110))
    assert decodings == []
    assert (np.asarray(part) == decoded(DATA)[60:160, 110:210]).all()
    assert decodings == [(160, 1)]
    np.asarray(part), part.load(), part.resize((5, 5))
    assert decodings == [(160, 1)]


def test_an_array_of_an_image_cannot_be_written_and_outlives_the_image() -> None:
    array = np.asarray(loader()(DATA))
    assert not array.flags.writeable and array.flags.c_contiguous
    assert (array == decoded(DATA)).all()


@pytest.mark.parametrize(
    ("size", "times"), [((300, 225), 2), ((200, 150), 4), ((101, 76), 4), ((100, 75), 8), ((10, 7), 8)]
)
def test_without_exact_an_image_is_decoded_at_a_reduced_size_that_is_large_enough(
    decodings: list[Any], size: tuple[int, int], times: int
) -> None:
    pytest.importorskip("torch")
    loader(exact=False)(DATA).resize(size)
    assert decodings == [(600, times)]


@pytest.mark.parametrize("size", [(500, 400), (224, 224), (100, 75), (20, 20)])
@pytest.mark.parametrize("box", [(0, 0, 800, 600), (101, 53, 717, 561), (8, 16, 408, 416)])
@pytest.mark.parametrize("resample", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
def test_without_exact_pixels_are_near_those_of_pillow(size: Any, box: Any, resample: Any) -> None:
    """By about 1 of 255 on average, for a picture with as much grain as a photograph at night."""
    pytest.importorskip("torch")
    grainy = picture(600, 800).astype(int) + np.random.default_rng(0).normal(0, 8, (600, 800, 1))
    data = encoded(grainy.clip(0, 255).astype(np.uint8), quality=90, subsampling=2)
    found = loader(exact=False)(data).crop(box).resize(size, resample)
    expected = Image.open(io.BytesIO(data)).crop(box).resize(size, resample)
    assert found.size == expected.size
    difference = np.abs(np.asarray(found).astype(int) - np.asarray(expected))
    assert difference.mean() < 1.5 and difference.max() < 24


def test_without_exact_an_enlarged_or_a_damaged_image_is_as_pillows() -> None:
    pytest.importorskip("torch")
    image = loader(exact=False)(DATA)
    expected = Image.open(io.BytesIO(DATA)).resize((900, 700), Image.Resampling.BILINEAR)
    difference = np.abs(np.asarray(image.resize((900, 700), Image.Resampling.BILINEAR)).astype(int) - expected)
    assert difference.max() <= 2
    with pytest.raises(OSError, match="truncated"):
        loader(exact=False)(DATA[:-3000]).resize((100, 100)).load()


def test_orientation_is_left_to_the_program() -> None:
    assert (np.asarray(loader()(oriented(picture(), 6))) == decoded(oriented(picture(), 6))).all()
    assert loader()(oriented(picture(), 6)).getexif()[0x0112] == 6


@pytest.mark.parametrize("kind", ["pil", "numpy"])
def test_a_truncated_file_is_pillows_error_and_names_the_file(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "tom.jpg"
    path.write_bytes(DATA[: len(DATA) // 2])
    with pytest.raises(OSError, match="image file is truncated") as caught:
        np.asarray(loader(kind)(path))
    assert caught.value.__notes__ == [f"While decoding {path}."]
    path.write_bytes(b"no image")
    with pytest.raises(Image.UnidentifiedImageError) as caught:
        loader(kind)(path)
    assert caught.value.__notes__ == [f"While decoding {path}."]


def test_truncated_files_are_read_as_far_as_possible_if_pillow_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    cut = DATA[: len(DATA) // 2]
    assert np.array_equal(loader("numpy")(cut), decoded(cut))


def test_pillows_limit_of_pixels_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 800 * 600 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        loader()(DATA)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 800 * 600 // 2 - 1)
    with pytest.raises(Image.DecompressionBombError):
        loader()(DATA)


def test_postscript_is_refused_because_ghostscript_would_execute_it() -> None:
    with pytest.raises(Image.UnidentifiedImageError):
        loader()(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


@pytest.mark.imports_torch
def test_a_tensor_has_the_pixels_channels_first() -> None:
    torch = pytest.importorskip("torch")
    for data in (DATA, encoded(picture(), "PNG")):
        tensor = loader("tensor")(data)
        assert tensor.dtype == torch.uint8
        assert np.array_equal(tensor.permute(1, 2, 0).numpy(), decoded(data))
