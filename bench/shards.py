"""JPEGs from tar shards: `python -m bench.shards` beside webdataset, LitData and MosaicML streaming.

All loaders give batches of 64 crops of 224 x 224 from the centre of photographs, uint8 of shape (64, 224, 224, 3),
with their labels, in a random order, with 2 workers. The pixels are the same, byte for byte. Exits with 1 if
penstock's `Tar` has less than 1.8 times the rate of webdataset, or is slower than LitData or MosaicML streaming: in
the first epoch, in the second, or later. Settings are those that the documentation of each peer advises:

- **webdataset**: shards are shuffled, then samples in a buffer of 1,000; `decode("pil")`, its own decoder. Batches
  are made in the workers, of tensors, which torch hands over in shared memory (arrays would be pickled).
- **LitData**: the bytes of the files, optimised to chunks of 64 MB, and its own `StreamingDataLoader`. Pillow
  decodes in `__getitem__`: LitData's own decoder is torchvision's, of which there is no build without CUDA.
- **MosaicML streaming**: shards of 64 MB with its encoding "jpeg", which Pillow decodes. They are not compressed,
  as the files are local. torch's DataLoader.
- **"our decoder"**: the same loaders over the bytes of the files, with the function by which penstock decodes: this
  tells what the decoder contributes, and what the loader.

None of the peers has an order by key: webdataset shuffles within its buffer, LitData and MosaicML within some
shards.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.images import picture
from bench.served import Batch, Comparison, Contender

PICTURES, TIMES, SHARDS = 512, 8, 8  # each picture is in the data so many times, with another label each time
QUALITY = 95
BATCH, WORKERS, CROP, BUFFER, PREFETCH = 64, 2, 224, 1000, 4
CHUNK = 64 << 20  # bytes of a shard of LitData's and MosaicML's


def write(folder: Path) -> None:
    """Tar shards, and the same samples in the formats of the peers that are installed."""
    if not (folder / "tar").exists():
        write_tar(folder / "tar")
    for package, name, write_one in (
        ("litdata", "litdata", write_litdata),
        ("streaming", "mds", write_mds),
    ):
        if not (folder / name).exists() and _is_installed(package):
            write_one(folder, folder / name)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def write_tar(folder: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(PICTURES):
        encoded = io.BytesIO()
        Image.fromarray(picture(rng)).save(encoded, "JPEG", quality=QUALITY)
        pictures.append(encoded.getvalue())
    labels = rng.permutation(PICTURES * TIMES).reshape(SHARDS, -1)
    folder.mkdir()
    for shard, some in enumerate(labels.tolist()):
        with tarfile.open(folder / f"{shard:06}.tar", "w") as tar:
            for label in some:
                for end, content in (("jpg", pictures[label % PICTURES]), ("cls", b"%d" % label)):
                    info = tarfile.TarInfo(f"{label:06}.{end}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def samples(folder: Path) -> Iterator[tuple[bytes, int]]:
    from penstock.formats import Tar

    for sample in Tar(folder / "tar", decode={"jpg": None}):
        yield sample["jpg"], sample["cls"]


def write_litdata(folder: Path, out: Path) -> None:
    import litdata

    litdata.optimize(
        fn=_as_it_is,
        inputs=[{"jpg": jpg, "cls": label} for jpg, label in samples(folder)],
        output_dir=str(out),
        chunk_bytes=CHUNK,
        num_workers=1,
    )


def _as_it_is(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def write_mds(folder: Path, out: Path) -> None:
    """Twice: with MosaicML's encoding of JPEGs, and as bytes."""
    from PIL import Image

    declare_operators()
    from streaming import MDSWriter

    out.mkdir()
    file = out / "one.jpg"
    with (
        MDSWriter(out=str(out / "jpeg"), columns={"jpg": "jpeg", "cls": "int"}, size_limit=CHUNK) as pictures,
        MDSWriter(out=str(out / "bytes"), columns={"jpg": "bytes", "cls": "int"}, size_limit=CHUNK) as raw,
    ):
        for jpg, label in samples(folder):
            file.write_bytes(jpg)  # of an image that was opened from a file, it takes the file's bytes
            with Image.open(file) as image:
                pictures.write({"jpg": image, "cls": label})
            raw.write({"jpg": jpg, "cls": label})


@cache
def declare_operators() -> Any:
    """Lets MosaicML streaming import torchvision, whose wheel refers to operators of a torch with CUDA."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# Decoding: each gives the centre of an image as pixels.


def cropped(image: Any) -> np.ndarray:
    """Of an image of Pillow's, which decodes all of it."""
    left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
    return np.array(image.crop((left, top, left + CROP, top + CROP)))


def by_pillow(data: bytes) -> np.ndarray:
    from PIL import Image

    return cropped(Image.open(io.BytesIO(data)))


def our_decoder() -> Callable[[bytes], np.ndarray]:
    from penstock.image import Transform

    return Transform(crop=CROP, train=False, dtype="uint8", layout="HWC")


# The loaders.


def penstock_tar(folder: Path) -> Iterable[Batch]:
    from penstock import DataLoader
    from penstock.formats import Tar

    for index in (folder / "tar").glob(".*.penstock-*"):
        index.unlink()  # so that the first epoch makes it
    data = Tar(folder / "tar", decode={"jpg": our_decoder()})
    return _Fields(DataLoader(data, BATCH, shuffle=True, seed=0, num_workers=WORKERS, prefetch_factor=PREFETCH))


def penstock_torch(folder: Path) -> Iterable[Batch]:
    from penstock.formats import Tar
    from penstock.torch import DataLoader

    data = Tar(folder / "tar", decode={"jpg": our_decoder()})
    return _Fields(DataLoader(data, BATCH, shuffle=True, seed=0, **_TORCH))


class _Fields:
    """The pictures and labels of batches that are dicts."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Batch]:
        return ((batch["jpg"], batch["cls"]) for batch in self._loader)


_TORCH: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "prefetch_factor": PREFETCH}


def webdataset(folder: Path, ours: bool = False) -> Iterable[Batch]:
    import torch
    import webdataset as wds

    paths = sorted(map(str, (folder / "tar").glob("*.tar")))
    data = wds.WebDataset(paths, shardshuffle=SHARDS).shuffle(BUFFER)
    if ours:
        decode = our_decoder()
        data = data.map_dict(jpg=decode, cls=int)
    else:
        data = data.decode("pil").map_dict(jpg=cropped)
    data = data.map_dict(jpg=torch.from_numpy).to_tuple("jpg", "cls").batched(BATCH)
    return wds.WebLoader(data, batch_size=None, **_TORCH)


def litdata_optimised(folder: Path, ours: bool = False) -> Iterable[Batch]:
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    decode = our_decoder() if ours else by_pillow

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return torch.from_numpy(decode(sample["jpg"])), sample["cls"]

    data = Pictures(str(folder / "litdata"), shuffle=True)
    return StreamingDataLoader(data, batch_size=BATCH, **_TORCH)


def mosaicml(folder: Path, ours: bool = False) -> Iterable[Batch]:
    import torch
    from torch.utils.data import DataLoader

    declare_operators()
    from streaming import StreamingDataset

    decode = our_decoder() if ours else cropped

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return torch.from_numpy(decode(sample["jpg"])), sample["cls"]

    local = folder / "mds" / ("bytes" if ours else "jpeg")
    data = Pictures(local=str(local), shuffle=True, batch_size=BATCH)
    return DataLoader(data, BATCH, **_TORCH)


CONTENDERS = {
    "penstock Tar": Contender(penstock_tar),
    "penstock Tar, tensors": Contender(penstock_torch, "torch"),
    "webdataset": Contender(webdataset, "webdataset", 1.8),
    "LitData": Contender(litdata_optimised, "litdata", 1.0, early=True),
    "MosaicML streaming": Contender(mosaicml, "streaming", 1.0, early=True),
    "webdataset, our decoder": Contender(partial(webdataset, ours=True), "webdataset"),
    "LitData, our decoder": Contender(partial(litdata_optimised, ours=True), "litdata"),
    "MosaicML streaming, our decoder": Contender(partial(mosaicml, ours=True), "streaming"),
}


if __name__ == "__main__":
    sys.exit(Comparison("bench.shards", "images", write, CONTENDERS).main(__doc__))
