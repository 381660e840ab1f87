"""Images are the same, pixel for pixel, whoever decodes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from pictures import encoded, oriented, picture
from same import same

from penstock import CollateError, DataLoader, default_collate
from penstock.image import ImageError, ImageFolder, Transform

TRAINING = Transform(crop=32, area=(0.2, 1), mirror=True, mean=(120, 115, 100), scale=1 / 58)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Ten images in two classes: JPEGs of several sizes, turned ones, gray ones and PNGs."""
    root: Path = tmp_path_factory.mktemp("images")
    for number in range(10):
        pixels = picture(60 + 7 * number, 80, seed=number)
        data = {1: oriented(pixels, 6), 2: encoded(pixels[:, :, 0]), 3: encoded(pixels, "PNG")}
        path = root / f"class{number % 2}" / f"{number}.img.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data.get(number, encoded(pixels, subsampling=2)))
    return root


def test_a_backend_gives_the_pixels_of_the_plain_loop(make: Any, folder: Path) -> None:
    settings = {"batch_size": 4, "shuffle": True, "seed": 3}
    with DataLoader(ImageFolder(folder, TRAINING), **settings) as plain:
        expected = [list(plain), list(plain)]
    loader = make(ImageFolder(folder, TRAINING), **settings)
    assert same([list(loader), list(loader)], expected)
    assert not same(expected[0], expected[1]), "each epoch has its own windows"


@pytest.mark.parametrize(
    "transform",
    [
        TRAINING,
        Transform(crop=32, mirror=True, dtype="uint8", layout="HWC"),
        Transform(resize=(40, 50), crop=30, mirror=True, color="gray", mean=np.ones((1, 40, 50))),
        Transform(resize=(20, 20)),
    ],
    ids=["area", "uint8", "mean", "resize"],
)
def test_what_is_written_into_the_batch_is_what_samples_have_alone(folder: Path, transform: Transform) -> None:
    settings = {"batch_size": 4, "seed": 3}
    together = list(DataLoader(ImageFolder(folder, transform), **settings))
    alone = list(DataLoader(ImageFolder(folder, transform), collate_fn=default_collate, **settings))
    assert same(together, alone)


def test_a_file_that_is_no_image_is_named_with_its_sample(make: Any, folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(encoded(picture(100, 100))[:700])
    listing = tmp_path / "list.txt"
    paths = [*(sorted(folder.rglob("*.jpg"))[:2]), bad]
    listing.write_text("".join(f"{path} 0\n" for path in paths))
    with pytest.raises(ImageError, match=r"bad\.jpg: its 700 bytes cannot be decoded as an image") as caught:
        list(make(ImageFolder(listing, TRAINING), batch_size=3, seed=3))
    assert "In sample 2 (row 2), step 0 of epoch 0" in caught.value.__notes__[0]


def test_a_bad_image_is_skipped_and_the_others_keep_their_windows(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.rglob("*.jpg"))[:4]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"\xff\xd8\xff")
    for listing, last in (("good.txt", paths[3]), ("bad.txt", bad)):
        (tmp_path / listing).write_text("".join(f"{path} 0\n" for path in [*paths[:3], last]))
    settings = {"batch_size": 4, "seed": 3}
    ((good, _),) = DataLoader(ImageFolder(tmp_path / "good.txt", TRAINING), **settings)
    ((left, _),) = DataLoader(ImageFolder(tmp_path / "bad.txt", TRAINING), on_error="skip", **settings)
    assert same(left, good[:3])


def test_a_resumed_epoch_has_the_same_windows(folder: Path) -> None:
    settings = {"batch_size": 2, "seed": 3, "shuffle": True}
    whole = list(DataLoader(ImageFolder(folder, TRAINING), **settings))
    taken = DataLoader(ImageFolder(folder, TRAINING), **settings)
    batches = iter(taken)
    next(batches), next(batches)
    loader = DataLoader(ImageFolder(folder, TRAINING), **settings)
    loader.load_state_dict(taken.state_dict())
    assert same(list(loader), whole[2:])


class Threads(ImageFolder):
    """How many threads OpenCV has where an image was made."""

    def __getitem__(self, key: int) -> int:
        assert super().__getitem__(key)[0].shape == (3, 1500, 2000)
        return cv2.getNumThreads()


def test_opencv_has_one_thread_in_a_worker_and_the_callers_number_here(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "big.jpg").write_bytes(encoded(picture(900, 1200)))
    images = Threads(tmp_path, Transform(resize=(1500, 2000), dtype="uint8"))
    before = cv2.getNumThreads()
    cv2.setNumThreads(4)
    try:
        cv2.resize(picture(3000, 4000), (2000, 1500))  # its threads are there, and will be missing in the worker
        assert [batch.tolist() for batch in DataLoader(images)] == [[4]]
        settings = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 30}
        with DataLoader(images, **settings) as loader:
            assert [batch.tolist() for batch in loader] == [[1]]
        assert cv2.getNumThreads() == 4
    finally:
        cv2.setNumThreads(before)


@pytest.mark.parametrize("resize", [(20, 20), None], ids=["shape known", "shape unknown"])
@pytest.mark.parametrize("dtype", [{0: "float32"}, {1: "float32"}, {(): "float32", 1: None}, "float64"], ids=repr)
def test_fields_are_converted_as_those_of_samples_alone(folder: Path, resize: Any, dtype: Any) -> None:
    images = ImageFolder(folder, Transform(resize=resize, dtype="uint8", train=False))
    images.paths, images.targets = [images.paths[0]] * 4, np.arange(4)
    together = list(DataLoader(images, batch_size=4, dtype=dtype))
    alone = list(DataLoader(images, batch_size=4, dtype=dtype, collate_fn=default_collate))
    assert same(together, alone)


def test_labels_that_are_not_alike_are_named(folder: Path) -> None:
    class Boxes(ImageFolder):
        def read(self, key: int) -> Any:
            data, _, name = super().read(key)
            return data, [0.5] * (5 if key == 6 else 4), name

    with pytest.raises(CollateError, match=r"sample\[1\].* 4 in rows .* 5 in row 2") as caught:
        list(DataLoader(Boxes(folder, TRAINING), batch_size=4, seed=0))
    assert "row 2 is sample 6." in caught.value.__notes__
