"""`ImageFolder`: class folders and lists."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded, picture

from penstock import CollateError, DataLoader
from penstock.formats import Format
from penstock.image import ImageError, ImageFolder, Images, Transform

SMALL = Transform(resize=(8, 8), dtype="uint8", layout="HWC")


def write(path: Path, value: int = 0, size: tuple[int, int] = (10, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(np.full((*size, 3), value, np.uint8), "PNG"))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    for number, name in enumerate(["dogs/b.png", "dogs/a.PNG", "cats/x/deep.png", "cats/tom 1.png"]):
        write(tmp_path / name, 10 * number)
    write(tmp_path / ".cache" / "hidden.png")
    (tmp_path / "dogs" / "notes.txt").write_text("good dogs")
    return tmp_path


def test_folders_are_classes_in_the_order_of_their_names(zoo: Path) -> None:
    images = ImageFolder(zoo, SMALL)
    assert images.classes == ("cats", "dogs")
    assert list(images.paths) == ["cats/tom 1.png", "cats/x/deep.png", "dogs/a.PNG", "dogs/b.png"]
    assert images.targets.tolist() == [0, 0, 1, 1]
    assert [(int(image[0, 0, 0]), label) for image, label in map(images.__getitem__, range(4))] == [
        (30, 0),
        (20, 0),
        (10, 1),
        (0, 1),
    ]
    assert type(images[0][1]) is int and repr(images) == f"ImageFolder({str(zoo)!r}, 4 images, 2 classes)"


def test_it_is_a_format_like_others(zoo: Path) -> None:
    images = ImageFolder(zoo.as_uri(), SMALL)  # file:///...
    assert isinstance(images, Format)
    found = images.inspect(1)
    assert (found.files, found.samples, found.blocks) == (4, 4, 4)
    assert found.bytes == sum((zoo / path).stat().st_size for path in images.paths)
    assert [(field.name, field.shape) for field in found.fields] == [("0", (8, 8, 3)), ("1", ())]
    assert [label for _, label in images[1:3]] == [0, 1]
    assert images[-1][1] == 1
    with pytest.raises(IndexError, match="key 4 is not in a ImageFolder of 4 samples"):
        images[4]
    with pytest.raises(TypeError, match=r"ImageFolder\.__init__\(\) got an unexpected keyword argument 'cash'"):
        ImageFolder(zoo, cash=True)  # type: ignore[call-arg]


def test_without_labels_samples_are_images_wherever_they_are(zoo: Path) -> None:
    write(zoo / "top.png", 99)
    images = ImageFolder(zoo, SMALL, labels=False)
    assert list(images.paths)[-1] == "top.png" and len(images) == 5
    (batch,) = DataLoader(images, batch_size=5)
    assert batch.shape == (5, 8, 8, 3) and batch[-1, 0, 0, 0] == 99


def test_a_batch_is_images_and_labels(zoo: Path) -> None:
    pixels, labels = next(iter(DataLoader(ImageFolder(zoo, SMALL), batch_size=4)))
    assert pixels[:, 0, 0, 0].tolist() == [30, 20, 10, 0] and labels.tolist() == [0, 0, 1, 1]
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "kind"),
    [("dogs/b.png 3\ncats/tom 1.png 1\n", int), ("dogs/b.png 3\r\ncats/tom 1.png -0.5", float)],
)
def test_a_list_has_a_path_and_a_label_on_each_line(zoo: Path, text: str, kind: type) -> None:
    listing = zoo / "train.txt"
    listing.write_text(text + "\n\n")
    for images in (ImageFolder(listing, SMALL), ImageFolder(zoo, SMALL, listing=listing)):
        assert list(images.paths) == ["dogs/b.png", "cats/tom 1.png"]
        assert type(images[1][1]) is kind and images[1][0][0, 0, 0] == 30
        assert images.targets[0] == 3 and images.classes == ()


def test_a_list_may_begin_with_a_byte_order_mark(zoo: Path) -> None:
    (zoo / "train.txt").write_text("dogs/b.png 3\n", encoding="utf-8-sig")
    assert list(ImageFolder(zoo / "train.txt").paths) == ["dogs/b.png"]


def test_the_paths_of_a_list_begin_at_root(zoo: Path, tmp_path_factory: Any) -> None:
    listing = tmp_path_factory.mktemp("lists") / "train.txt"
    listing.write_text("b.png 3")
    assert ImageFolder(zoo / "dogs", SMALL, listing=listing)[0][1] == 3
    with pytest.raises(FileNotFoundError, match=r"begins with 'b\.png', but there is no file"):
        ImageFolder(listing, SMALL)


def test_a_list_without_labels_may_have_them_or_not(zoo: Path) -> None:
    (zoo / "list.txt").write_text("dogs/b.png\ncats/tom 1.png\ndogs/a.PNG 7\n")
    images = ImageFolder(zoo / "list.txt", SMALL, labels=False)
    assert list(images.paths) == ["dogs/b.png", "cats/tom 1.png", "dogs/a.PNG"]


@pytest.mark.parametrize("line", ["dogs/b.png", "dogs/b.png dog", "7"])
def test_a_line_without_a_label_is_named(zoo: Path, line: str) -> None:
    (zoo / "train.txt").write_text(f"dogs/a.PNG 1\n{line}\n")
    with pytest.raises(
        ValueError, match=rf"line 2 of .*train\.txt' must be a path and its label, a number.* is '{line}'"
    ):
        ImageFolder(zoo / "train.txt")


def test_a_missing_file_of_a_list_is_an_error_of_its_sample(zoo: Path) -> None:
    (zoo / "train.txt").write_text("dogs/b.png 1\ndogs/lost.png 1\n")
    images = ImageFolder(zoo / "train.txt", SMALL)
    with pytest.raises(FileNotFoundError, match=r"dogs/lost\.png") as caught:
        list(DataLoader(images, batch_size=2))
    assert "In sample 1 (row 1)" in caught.value.__notes__[0]
    loader = DataLoader(images, batch_size=2, on_error="skip")
    assert [labels.tolist() for _, labels in loader] == [[1]] and len(loader.skipped) == 1


def test_nothing_to_find_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder or list"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no folders, one for each class.*labels=False"):
        ImageFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no images \(files that end in .*\.png"):
        ImageFolder(tmp_path, labels=False)
    write(tmp_path / "dogs" / "a.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"the class 'empty' in .* has no images"):
        ImageFolder(tmp_path)
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        ImageFolder(tmp_path / "none.txt")


def test_an_image_that_cannot_be_decoded_is_named_by_its_path(zoo: Path) -> None:
    (zoo / "dogs" / "b.png").write_bytes(b"woof")
    with pytest.raises(ImageError, match=r"dogs/b\.png: its 4 bytes cannot be decoded"):
        ImageFolder(zoo, SMALL)[3]


def test_images_of_many_sizes_are_stacked_where_they_can_be(zoo: Path) -> None:
    plain = Transform(dtype="uint8")
    pixels, _ = next(iter(DataLoader(ImageFolder(zoo, plain), batch_size=4)))
    assert pixels.shape == (4, 3, 10, 12)
    write(zoo / "dogs" / "a.PNG", size=(10, 13))
    with pytest.raises(CollateError, match=r"tom 1\.png is \(3, 10, 12\), but .*a\.PNG is \(3, 10, 13\)"):
        list(DataLoader(ImageFolder(zoo, plain), batch_size=4))


def test_a_getitem_of_the_users_own_is_not_passed_by(zoo: Path) -> None:
    class Inverted(ImageFolder):
        def __getitem__(self, key: int) -> Any:
            image, label = super().__getitem__(key)
            return 255 - image, label

    pixels, _ = next(iter(DataLoader(Inverted(zoo, SMALL), batch_size=4)))
    assert pixels[:, 0, 0, 0].tolist() == [225, 235, 245, 255]


def test_the_transform_can_be_changed_while_it_is_read(zoo: Path) -> None:
    with DataLoader(ImageFolder(zoo, SMALL), batch_size=2, num_workers=1) as loader:
        batches = iter(loader)
        assert next(batches)[0].shape == (2, 8, 8, 3)
        for shape, transform in (
            ((2, 3, 4, 4), Transform(resize=(4, 4))),
            ((2, 3, 10, 12), Transform()),
        ):
            loader.update(transform=transform)
            assert next(iter(loader))[0].shape == shape


def test_labels_may_be_arrays() -> None:
    class Boxes(Images):
        def __len__(self) -> int:
            return 4

        def read(self, key: int) -> Any:
            return picture(seed=key), np.full(5, key, np.float32), f"record {key}"

    _, labels = next(iter(DataLoader(Boxes(SMALL), batch_size=4)))
    assert labels.dtype == np.float32 and labels[:, 0].tolist() == [0, 1, 2, 3]


def test_other_transforms_are_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"must be a penstock\.image\.Transform, but it is a function"):
        Images(lambda image: image)  # type: ignore[arg-type]


def test_it_is_sent_as_two_arrays(zoo: Path) -> None:
    images = pickle.loads(pickle.dumps(ImageFolder(zoo, SMALL)))
    assert images[1][1] == 0 and len(images) == 4


def test_a_list_of_mxnet_has_a_number_a_label_and_a_path(zoo: Path) -> None:
    (zoo / "train.lst").write_text("7\t2.000000\tdogs/b.png\n3\t5\tdogs/b.png\n")
    images = ImageFolder(zoo / "train.lst", SMALL)
    assert list(images.paths) == ["dogs/b.png"] * 2
    assert images.targets.tolist() == [2, 5]


def test_a_list_of_mxnet_may_have_several_labels(zoo: Path) -> None:
    (zoo / "boxes.lst").write_text("0\t1\t0.5\t2\tdogs/b.png\n1\t3\t0.25\t4\tdogs/b.png\n")
    images = ImageFolder(zoo / "boxes.lst", SMALL)
    assert images.targets.tolist() == [[1, 0.5, 2], [3, 0.25, 4]]
    assert images[1][1].tolist() == [3, 0.25, 4]
    (_, labels), *_ = DataLoader(images, batch_size=2)
    assert labels.tolist() == images.targets.tolist()


def test_all_lines_of_a_list_have_as_many_labels(zoo: Path) -> None:
    (zoo / "boxes.lst").write_text("0\t1\t0.5\tdogs/b.png\n1\t3\tdogs/b.png\n")
    with pytest.raises(ValueError, match=r"line 2 of .* has 1 labels, but the first has 2"):
        ImageFolder(zoo / "boxes.lst", SMALL)


@pytest.mark.parametrize("names", [["scan 1", "scan 2"], ["scan 1", "scan", "scan 2"], ["scan 1", "a.png"]])
def test_without_labels_a_name_that_ends_in_a_number_is_a_name(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write(tmp_path / name)
    (tmp_path / "list.txt").write_text("\n".join(names))
    images = ImageFolder(tmp_path, SMALL, labels=False, listing=tmp_path / "list.txt")
    assert list(images.paths) == names
    assert images[0].shape == (8, 8, 3)


@pytest.mark.parametrize("lines", [["a.png 3", "b c.png 1"], ["0\t3\ta.png", "1\t1\tb c.png"]])
def test_labels_of_a_list_need_not_be_used(tmp_path: Path, lines: list[str]) -> None:
    for name in ("a.png", "b c.png"):
        write(tmp_path / name)
    (tmp_path / "list.txt").write_text("\n".join(lines))
    images = ImageFolder(tmp_path, SMALL, labels=False, listing=tmp_path / "list.txt")
    assert list(images.paths) == ["a.png", "b c.png"]


def test_links_are_followed_unless_they_lead_back(zoo: Path) -> None:
    expected = list(ImageFolder(zoo).paths)
    (zoo / "cats" / "x" / "back").symlink_to(zoo)
    (zoo / "cats" / "self").symlink_to(".")
    assert list(ImageFolder(zoo).paths) == expected
    (zoo / "dogs" / "c").symlink_to(zoo / "cats" / "x")
    assert list(ImageFolder(zoo).paths) == [*expected[:3], "dogs/b.png", "dogs/c/deep.png"]
