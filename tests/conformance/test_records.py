"""Files of records: the same stream on every backend, and damage that is named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import DataLoader
from penstock.image import ImageError, Transform
from penstock.records import CaffeLMDB, RecordError, RecordFile, RecordStream, RecordWriter, write_caffe_lmdb

N = 11
# A random crop and a mirror: what is drawn belongs to the sample.
TRANSFORM = Transform(crop=6, mirror=True, dtype="uint8")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures as out.rec and as out_lmdb."""
    folder = tmp_path_factory.mktemp("records")
    rng = np.random.default_rng(0)
    pictures = [png(rng.integers(0, 255, (9, 9, 3), np.uint8)) for _ in range(N)]
    write_caffe_lmdb(folder / "out_lmdb", [(data, label) for label, data in enumerate(pictures)])
    with RecordWriter(folder / "out.rec") as writer:
        for label, data in enumerate(pictures):
            writer.write(data, label)
    return folder


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def read(loader: DataLoader[Any]) -> list[Any]:
    return [(np.asarray(images).tolist(), np.asarray(labels).tolist()) for images, labels in loader]


def test_every_backend_gives_the_same_images(make: Any, files: Path) -> None:
    for dataset in (
        RecordFile(files / "out.rec", transform=TRANSFORM),
        CaffeLMDB(files / "out_lmdb", TRANSFORM),
    ):
        inline = DataLoader(dataset, batch_size=3, shuffle=True, seed=4)
        assert read(make(dataset, batch_size=3, shuffle=True, seed=4)) == read(inline)
    stream = RecordStream(files / "out.rec", TRANSFORM)
    assert read(make(stream, batch_size=3, seed=4)) == read(DataLoader(stream, batch_size=3, seed=4))


def test_without_its_transform_a_file_gives_what_is_stored(make: Any, files: Path) -> None:
    stored = [record.data for record in RecordFile(files / "out.rec")]
    loader = make(RecordFile(files / "out.rec", transform=TRANSFORM), batch_size=3)
    batches = iter(loader)
    next(batches)
    loader.update(transform=None)
    assert [data for batch in batches for data in batch.data] == stored[3:]


def test_a_transform_that_is_taken_away_from_the_dataset_itself_is_gone(files: Path) -> None:
    dataset = RecordFile(files / "out.rec", transform=TRANSFORM)
    batches = iter(DataLoader(dataset, batch_size=3))
    next(batches)
    dataset.transform = None
    assert next(batches).data == [dataset[key].data for key in (3, 4, 5)]


def test_damage_is_named_or_skipped(make: Any, files: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.rec"
    content = bytearray((files / "out.rec").read_bytes())
    starts = RecordFile(files / "out.rec").indexes[0]["starts"].tolist()
    content[starts[4]] ^= 1  # the mark of one
    content[starts[7] + 8 + 24] ^= 1  # the first byte of the image of another
    path.write_bytes(content)
    path.with_suffix(".idx").write_bytes((files / "out.idx").read_bytes())

    dataset = RecordFile(path, transform=TRANSFORM)
    loader = make(dataset, batch_size=3, on_error="skip")
    assert [label for _, labels in read(loader) for label in labels] == [0, 1, 2, 3, 5, 6, 8, 9, 10]
    assert [(key, type(error)) for key, error in loader.skipped] == [(4, RecordError), (7, ImageError)]
    assert f"out.rec, byte {starts[4]:,}: " in str(loader.skipped[0][1])
    assert f"out.rec, record 7, byte {starts[7]:,}: " in str(loader.skipped[1][1])

    with pytest.raises(RecordError, match=r"out\.rec, byte ") as raised:
        read(make(dataset, batch_size=3))
    assert "In sample 4 (row 1), step 1 of epoch 0" in raised.value.__notes__[0]
