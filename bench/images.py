"""The rows of JPEG files: a random resized crop to 224, mirrored half of the time, float32, channels first.

Each loader reads the same files with a decoder of its own; the limit is the decoder alone. Separate from
bench/workloads.py, because each decoder needs libraries of its own.
"""

from __future__ import annotations

import io
import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FILES = 512
HEIGHT, WIDTH, QUALITY = 375, 500, 90
CROP = 224
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class Jpegs:
    """Sample i is file i, cropped and resized by Pillow, as torch users write it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jpegs"
        self.paths = sorted(str(path) for path in self.folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> np.ndarray:
        from PIL import Image

        with Image.open(self.paths[key]) as image:
            left, top, width, height = window(image.width, image.height)
            box = (left, top, left + width, top + height)
            image = image.convert("RGB").resize((CROP, CROP), Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(image)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)


def window(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random window, as torchvision draws it."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            return random.randint(0, width - wide), random.randint(0, height - tall), wide, tall
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def decode_only(dataset: Jpegs, keys: np.ndarray, out: Any) -> None:
    """The limit: each file is read and decoded, and nothing more."""
    import simplejpeg

    pixels = out.reshape(-1).view(np.uint8)
    for key in keys.tolist():
        with open(dataset.paths[key], "rb", buffering=0) as file:
            simplejpeg.decode_jpeg(file.read(), "RGB", buffer=pixels)


def penstock_images(dataset: Jpegs) -> Any:
    from penstock.image import ImageFolder, Transform

    return ImageFolder(dataset.folder, Transform(crop=CROP, area=AREA, ratio=RATIO, mirror=True), labels=False)


def spdl_batch(dataset: Jpegs) -> Callable[[np.ndarray], np.ndarray]:
    """A function from keys to a batch, for spdl's threads, with the fastest decoder that we know.

    With SPDL_DECODER=1 it uses spdl's own decoder, FFmpeg, if its libraries are installed. That makes a filter graph
    for each image, because each has another window, and takes three times as long.
    """
    if "SPDL_DECODER" not in os.environ:
        return lambda keys: turbo_batch(dataset, keys)
    import spdl.io

    def decode(path: str) -> Any:
        left, top, width, height = window(WIDTH, HEIGHT)
        flip = ",hflip" if random.random() < 0.5 else ""
        scale = f"scale=w={CROP}:h={CROP}:flags=fast_bilinear{flip},format=pix_fmts=rgb24"
        description = f"crop=w={width}:h={height}:x={left}:y={top},{scale}"
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=description)

    def batch(keys: np.ndarray) -> np.ndarray:
        frames = [decode(dataset.paths[key]) for key in keys.tolist()]
        pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)

    return batch


def turbo_batch(dataset: Jpegs, keys: np.ndarray) -> np.ndarray:
    """A batch decoded by hand, with the libraries that penstock uses."""
    import cv2
    import simplejpeg

    out = np.empty((len(keys), 3, CROP, CROP), np.float32)
    for row, key in enumerate(keys.tolist()):
        with open(dataset.paths[key], "rb", buffering=0) as file:
            pixels = simplejpeg.decode_jpeg(file.read(), "RGB")
        left, top, width, height = window(pixels.shape[1], pixels.shape[0])
        pixels = cv2.resize(pixels[top : top + height, left : left + width], (CROP, CROP))
        if random.random() < 0.5:
            pixels = cv2.flip(pixels, 1)
        np.copyto(out[row], pixels.transpose(2, 0, 1))
    return out


@contextmanager
def dali_stream(workload: Any, dataset: Jpegs) -> Iterator[Iterator[Any]]:
    """DALI's pipeline for the CPU, which decodes only the pixels of the window."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=workload.batch_size, num_threads=workload.workers, device_id=None, seed=0)
    def pipeline() -> Any:
        files, _ = fn.readers.file(files=dataset.paths, random_shuffle=True)
        images = fn.decoders.image_random_crop(files, random_area=AREA, random_aspect_ratio=RATIO)
        images = fn.resize(images, size=[CROP, CROP], interp_type=types.INTERP_LINEAR, antialias=False)
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mirror=mirror, dtype=types.FLOAT, output_layout="CHW")

    pipe = pipeline(prefetch_queue_depth=4)
    pipe.build()

    def batches() -> Iterator[Any]:
        while True:
            (images,) = pipe.run()
            yield np.asarray(images.as_tensor())

    yield batches()


def write_jpegs(folder: Path) -> None:
    """Write 512 pictures with clouds, edges and grain, so that the files are as large as photographs (70 kB)."""
    from PIL import Image

    if (folder / "jpegs").exists():
        return
    rng = np.random.default_rng(0)
    for number in range(FILES):
        encoded = io.BytesIO()
        Image.fromarray(picture(rng)).save(encoded, "JPEG", quality=QUALITY)
        path = folder / "jpegs" / f"class{number % 8}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded.getvalue())


def picture(rng: np.random.Generator) -> np.ndarray:
    from PIL import Image

    pixels = np.full((HEIGHT, WIDTH, 3), 120.0)
    for across, strength in ((4, 70), (12, 40), (40, 22), (120, 12)):
        coarse = rng.normal(size=(across * HEIGHT // WIDTH + 2, across + 2, 3)).astype(np.float32)
        for channel in range(3):
            cloud = Image.fromarray(coarse[:, :, channel]).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            pixels[:, :, channel] += strength * np.asarray(cloud)
    for _ in range(12):
        top, left = rng.integers(0, HEIGHT), rng.integers(0, WIDTH)
        tall, wide = rng.integers(10, 160, 2)
        pixels[top : top + tall, left : left + wide] += 50 * rng.normal(size=3)
    pixels += 5 * rng.normal(size=(HEIGHT, WIDTH, 1))
    return np.clip(pixels, 0, 255).astype(np.uint8)
