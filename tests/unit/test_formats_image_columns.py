"""Tables with columns of images: `decode=` of `Parquet` and `Arrow`."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pictures import decoded, encoded, picture
from PIL import UnidentifiedImageError

from penstock import DataLoader
from penstock.errors import FormatError, ImageError
from penstock.formats import Arrow, Parquet
from penstock.image import Transform


def images(count: int = 8) -> list[bytes]:
    return [encoded(picture(40, 50, seed), "PNG") for seed in range(count)]


def image_table(files: list[bytes | None], stored: str) -> pa.Table:
    """A table with images as binary data, or as Hugging Face stores them."""
    column = (
        files
        if stored == "binary"
        else [None if data is None else {"bytes": data, "path": "x.png"} for data in files]
    )
    return pa.table({"image": column, "label": np.arange(len(files))})


STORED = pytest.mark.parametrize("stored", ["binary", "struct"])


def gray(data: bytes) -> Any:
    return decoded(data, "L")


@STORED
@pytest.mark.parametrize("kind", [Arrow, Parquet])
def test_a_column_of_images_is_decoded(kind: Any, stored: str, tmp_path: Path) -> None:
    files = images()
    table = image_table(files, stored)
    pa.parquet.write_table(table, tmp_path / "some.parquet", row_group_size=3)
    data = kind(table if kind is Arrow else tmp_path, decode={"image": gray})
    assert np.array_equal(data[3]["image"], gray(files[3])) and data[3]["label"] == 3
    keys = [5, 0, 7]
    assert [
        np.array_equal(sample["image"], gray(files[key]))
        for sample, key in zip(data.__getitems__(keys), keys, strict=True)
    ] == [True] * 3
    kept = kind(table if kind is Arrow else tmp_path, decode={"image": None})
    assert kept[2]["image"] == files[2]
    assert [field.shape for field in data.fields()] == [(40, 50), ()]
    assert np.array_equal(pickle.loads(pickle.dumps(data))[3]["image"], gray(files[3]))


@STORED
def test_a_transform_writes_into_the_batch(stored: str) -> None:
    files = images()
    transform = Transform(crop=32, dtype="uint8", mirror=True)
    data = Arrow(image_table(files, stored), decode={"image": transform})
    for backend in ("inline", "thread", "process"):
        workers = {"num_workers": 0} if backend == "inline" else {"num_workers": 2, "backend": backend}
        with DataLoader(data, batch_size=4, shuffle=True, seed=0, **workers) as loader:
            batches = [{name: np.array(value) for name, value in batch.items()} for batch in loader]
        assert [batch["image"].shape for batch in batches] == [(4, 3, 32, 32)] * 2
        if backend == "inline":
            expected = batches
        for batch, same in zip(batches, expected, strict=True):
            assert all(np.array_equal(batch[name], same[name]) for name in ("image", "label"))
    with DataLoader(data, batch_size=4, dtype={"image": "float32"}, seed=0, shuffle=True) as loader:
        for batch, same in zip(loader, expected, strict=True):
            assert batch["image"].dtype == np.float32 and np.array_equal(batch["image"], same["image"])


@STORED
def test_a_null_is_not_decoded(stored: str) -> None:
    files = images(3)
    data = Arrow(image_table([files[0], None, files[2]], stored), decode={"image": gray})
    assert data[1]["image"] is None and data[2]["image"].shape == (40, 50)


def test_a_function_keeps_its_error_which_names_the_row() -> None:
    data = Arrow(image_table([b"one", b"two"], "binary"), decode={"image": gray})
    with pytest.raises(UnidentifiedImageError) as caught:
        data[1]
    assert re.match(r"While decoding 'image' of row 1 of Arrow\(", caught.value.__notes__[0])
    data = Arrow(image_table([*images(1), b"two"], "binary"), decode={"image": Transform(crop=8, train=False)})
    with DataLoader(data, batch_size=2, on_error="skip") as loader:
        (batch,) = loader
    assert isinstance(loader.skipped[0][1], ImageError)
    assert batch["label"].tolist() == [0]


def test_an_image_without_bytes_is_an_error() -> None:
    column = pa.array([{"bytes": None, "path": "lost.png"}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    data = Arrow(pa.table({"image": column}), decode={"image": gray})
    with pytest.raises(FormatError, match=r"row 0 of .* has no bytes in 'image', only the path 'lost\.png'"):
        data[0]


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ({"picture": gray}, "decode names the column 'picture', but the columns are image, label"),
        ({"label": gray}, "decode names the column 'label' of type int64, but a column of files is binary"),
        ({"image": "gray"}, r"decode\['image'\] must be a function of bytes, or None, but it is 'gray'"),
        (gray, "decode must be a dict from columns to functions of bytes"),
    ],
)
def test_a_decode_that_does_not_fit_is_refused(decode: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Arrow(image_table(images(1), "struct"), decode=decode)
