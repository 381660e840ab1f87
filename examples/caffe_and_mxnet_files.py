"""Trains on the files that Caffe and MXNet left: an LMDB of Datum, and a .rec file. Neither has to be installed.

    python examples/caffe_and_mxnet_files.py

It needs `pip install "penstock[image,lmdb]"`, and takes a few seconds. The program writes both files itself, from the
same pictures of discs, squares and crosses, and trains the same small classifier on each. With files of your own,
only `train` and the two lines that open the files are left.
"""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import penstock
from penstock.image import Transform
from penstock.records import CaffeLMDB, RecordFile, RecordWriter, write_caffe_lmdb

SHAPES = ("disc", "square", "cross")
TRAINING, TESTING, SIDE = 1_500, 300, 40


# The files.


def picture(rng: np.random.Generator, shape: str) -> Image.Image:
    """A bright shape of random size, place and colour on dark noise."""
    noise = rng.integers(0, 120, (SIDE, SIDE, 3)).astype(np.uint8)
    image = Image.fromarray(noise)
    draw = ImageDraw.Draw(image)
    radius = int(rng.integers(6, 13))
    x, y = (int(place) for place in rng.integers(radius + 2, SIDE - radius - 2, 2))
    color = tuple(int(part) for part in rng.integers(150, 256, 3))
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "disc":
        draw.ellipse(box, color)
    elif shape == "square":
        draw.rectangle(box, color)
    else:
        draw.line((x - radius, y, x + radius, y), color, 5)
        draw.line((x, y - radius, x, y + radius), color, 5)
    return image


def write_files(folder: Path, name: str, count: int) -> None:
    rng = np.random.default_rng(count)
    labels = rng.integers(0, len(SHAPES), count).tolist()
    images = [picture(rng, SHAPES[label]) for label in labels]
    with RecordWriter(folder / f"{name}.rec") as writer:  # also writes the .idx
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = io.BytesIO()
            image.save(file, "PNG")
            writer.write(file.getvalue(), label=label, id=number)
    # Caffe keeps pixels, with the channels first and in the order blue, green, red.
    datums = (np.asarray(image)[:, :, ::-1].transpose(2, 0, 1) for image in images)
    write_caffe_lmdb(folder / f"{name}_lmdb", zip(datums, labels, strict=True))


# The classifier: distances to the pixels of the brightness, by softmax regression.


def features(images: Any) -> Any:
    """The sizes of the frequencies of each image, which do not depend on the place of the shape."""
    brightness = images.max(axis=1)
    return np.log1p(np.abs(np.fft.rfft2(brightness))[:, :12, :12]).reshape(len(images), -1)


def train(training: Any, testing: Any) -> None:
    weights = np.zeros((12 * 12 + 1, len(SHAPES)))
    begun = time.perf_counter()
    with penstock.DataLoader(training, batch_size=50, shuffle=True, seed=0, num_workers=2) as loader:
        for epoch in range(1, 6):
            for images, labels in loader:
                inputs, wanted = with_bias(features(images)), np.eye(len(SHAPES))[labels.astype(int)]
                weights += 0.05 * inputs.T @ (wanted - softmax(inputs @ weights)) / len(inputs)
            if epoch in (1, 5):
                print(f"  epoch {epoch}: {accuracy(weights, testing):.0%} of {len(testing)} test images are right")
    images_read = 5 * len(training)
    print(f"  {images_read / (time.perf_counter() - begun):,.0f} images a second, decoded, cropped and mirrored")


def accuracy(weights: Any, testing: Any) -> float:
    right = 0
    for images, labels in penstock.DataLoader(testing, batch_size=100):
        right += int((np.argmax(with_bias(features(images)) @ weights, axis=1) == labels).sum())
    return right / len(testing)


def with_bias(inputs: Any) -> Any:
    return np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    training = Transform(crop=36, mirror=True, scale=1 / 255)
    testing = Transform(crop=36, scale=1 / 255, train=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, count in (("train", TRAINING), ("test", TESTING)):
            write_files(folder, part, count)

        print(f"MXNet: {penstock.open(folder / 'train.rec')}")
        mxnet = RecordFile(folder / "test.rec", transform=testing)
        train(RecordFile(folder / "train.rec", transform=training), mxnet)

        print(f"Caffe: {penstock.open(folder / 'train_lmdb')}")
        caffe = CaffeLMDB(folder / "test_lmdb", testing)
        train(CaffeLMDB(folder / "train_lmdb", training), caffe)

        pairs = zip(mxnet, caffe, strict=True)
        same = all(np.array_equal(one, other) and left == right for (one, left), (other, right) in pairs)
        print(f"Both files have the same test images and labels: {same}")


if __name__ == "__main__":
    main()
