"""One loader of each library, over 240 samples: `python -m resuming.loaders NAME REQUEST` prints its answer.

A sample is its number and a random number that the loader's own means of reproducibility should determine. Each
program below is what the library's documentation advises for resuming, with a seed wherever one can be given.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

COUNT, BATCH = 240, 8
Pair = tuple[int, float]


class Numbers:
    """A dataset by key, with an augmentation: the number, and a random number from numpy's global generator."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> Any:
        return int(key), float(np.random.random())


def seed_torch() -> None:
    """torch's loaders seed the generators of their workers from torch's own."""
    import torch

    torch.manual_seed(0)


def augmented(sample: Any) -> Any:
    return {"id": int(sample["id"]), "noise": float(np.random.random())}


class Loader:
    """What the comparison asks of every loader. `state` is None if it has none."""

    has_state = True

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[Pair]]:
        """One epoch, as batches of (number, random number)."""
        for numbers, noise in self.loader:
            yield list(zip(np.asarray(numbers).tolist(), np.asarray(noise).tolist(), strict=True))

    loader: Any

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)


class Penstock(Loader):
    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        import penstock

        self.loader = penstock.DataLoader(
            Numbers(), BATCH, shuffle=True, seed=0, num_workers=workers, shard=(rank, world)
        )


class PenstockStream(Loader):
    """A stream with a shuffle buffer."""

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        import penstock

        data = Numbers()
        stream = penstock.dataset(CountedNumbers()).shuffle(40).map(lambda number: data[number])
        self.loader = penstock.DataLoader(
            stream, BATCH, seed=0, num_workers=workers, shard=(rank, world), last_batch="keep"
        )


class CountedNumbers:
    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))


class PenstockTorch(Loader):
    """penstock.torch with torch's semantics, as after a change of the import only."""

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        from penstock.torch import DataLoader

        self.loader = DataLoader(Numbers(), BATCH, num_workers=workers, **_torch_order(rank, world))


def _torch_order(rank: int, world: int) -> dict[str, Any]:
    import torch
    from torch.utils.data import DistributedSampler

    torch.manual_seed(0)
    return {"sampler": DistributedSampler(Numbers(), world, rank, seed=0)}  # type: ignore[arg-type]


class Torch(Loader):
    has_state = False

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        from torch.utils.data import DataLoader

        self.loader = DataLoader(Numbers(), BATCH, num_workers=workers, **_torch_order(rank, world))  # type: ignore[arg-type]


class Torchdata(Loader):
    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        self.loader = StatefulDataLoader(Numbers(), BATCH, num_workers=workers, **_torch_order(rank, world))


class HuggingFace(Loader):
    """Streaming, in torchdata's loader, as its documentation advises."""

    buffer = 0

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        import datasets
        from datasets.distributed import split_dataset_by_node
        from torchdata.stateful_dataloader import StatefulDataLoader

        seed_torch()
        datasets.disable_progress_bars()
        files = sorted(map(str, (folder / "parquet").glob("*.parquet")))
        data: Any = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        if self.buffer:
            data = data.shuffle(seed=0, buffer_size=self.buffer)
        if world > 1:
            data = split_dataset_by_node(data, rank, world)
        self.loader = StatefulDataLoader(data.map(augmented), BATCH, num_workers=workers)

    def __iter__(self) -> Iterator[list[Pair]]:
        for batch in self.loader:
            yield list(zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True))


class HuggingFaceShuffled(HuggingFace):
    buffer = 40


class Grain(Loader):
    iterator: Any = None
    resumed: Any = None

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        import grain

        def drawn(number: int, rng: np.random.Generator) -> Any:
            return np.array([number, rng.random()])

        data = grain.MapDataset.range(COUNT).seed(0).shuffle()[rank::world].random_map(drawn).batch(BATCH)
        self.dataset = data.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))
        if workers:
            self.dataset = self.dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))

    def __iter__(self) -> Iterator[list[Pair]]:
        self.iterator = iter(self.dataset)
        if self.resumed is not None:
            self.iterator.set_state(self.resumed)
            self.resumed = None
        for batch in self.iterator:
            yield [(int(number), float(noise)) for number, noise in batch]

    def state(self) -> Any:
        return self.iterator.get_state()

    def load(self, state: Any) -> None:
        self.resumed = state


class WebDataset(Loader):
    has_state = False

    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        import webdataset

        seed_torch()
        shards = sorted(map(str, (folder / "tar").glob("*.tar")))
        split = webdataset.split_by_node if world == 1 else lambda urls, *_: islice(urls, rank, None, world)
        data = webdataset.WebDataset(shards, shardshuffle=100, nodesplitter=split, seed=0)
        data = data.shuffle(40, seed=0).decode().to_tuple("cls").map(lambda one: (one[0], float(np.random.random())))
        self.loader = webdataset.WebLoader(data.batched(BATCH), batch_size=None, num_workers=workers)


class LitData(Loader):
    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        from litdata import StreamingDataLoader, StreamingDataset

        seed_torch()
        data = StreamingDataset(str(folder / "litdata"), shuffle=True, seed=0, transform=augmented)
        self.loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)

    def __iter__(self) -> Iterator[list[Pair]]:
        for batch in self.loader:
            yield list(zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True))


def stand_in_for_torchvision() -> None:
    """MosaicML's package imports torchvision for its datasets of images; its wheel needs a torch with CUDA."""
    names = "torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"
    for name in names:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
        vars(sys.modules[name]).update(VisionDataset=object, to_tensor=None)


class MosaicML(Loader):
    def __init__(self, folder: Path, workers: int, rank: int, world: int) -> None:
        stand_in_for_torchvision()
        from streaming import StreamingDataLoader, StreamingDataset

        seed_torch()

        class Augmented(StreamingDataset):
            def __getitem__(self, at: Any) -> Any:
                return augmented(super().__getitem__(at))

        data = Augmented(local=str(folder / "mds"), shuffle=True, shuffle_seed=0, batch_size=BATCH)
        self.loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)

    def __iter__(self) -> Iterator[list[Pair]]:
        for batch in self.loader:
            yield list(zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True))


LOADERS: dict[str, type[Loader]] = {
    "penstock": Penstock,
    "penstock, stream": PenstockStream,
    "penstock.torch, no seed": PenstockTorch,
    "torch": Torch,
    "torchdata": Torchdata,
    "grain": Grain,
    "datasets, in order": HuggingFace,
    "datasets, shuffled": HuggingFaceShuffled,
    "webdataset": WebDataset,
    "litdata": LitData,
    "streaming": MosaicML,
}
WITHOUT_RANKS = ("litdata", "streaming")  # they need real processes of torch.distributed


def write(name: str, folder: Path) -> None:
    """The samples in the files of a library, in several files each."""
    if name.startswith("datasets"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        (folder / "parquet").mkdir()
        for part in range(6):
            ids = np.arange(40 * part, 40 * part + 40)
            pq.write_table(pa.table({"id": ids}), folder / "parquet" / f"{part}.parquet", row_group_size=20)
    if name == "webdataset":
        import webdataset

        (folder / "tar").mkdir()
        for part in range(6):
            with webdataset.TarWriter(str(folder / "tar" / f"{part:06}.tar")) as writer:
                for number in range(40 * part, 40 * part + 40):
                    writer.write({"__key__": f"{number:06}", "cls": number})
    if name == "litdata":
        from litdata.streaming.writer import BinaryWriter

        (folder / "litdata").mkdir()
        chunks = BinaryWriter(str(folder / "litdata"), chunk_size=20)
        for number in range(COUNT):
            chunks[number] = {"id": number}
        chunks.done()
        chunks.merge()
    if name == "streaming":
        stand_in_for_torchvision()
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"id": "int"}, size_limit=400) as shards:
            for number in range(COUNT):
                shards.write({"id": number})


def run(request: dict[str, Any], make: Callable[..., Loader]) -> dict[str, Any]:
    """Reads `batches` of an epoch (all, if None) and then, if asked for, another epoch; with the state in between."""
    random.seed(0)
    np.random.seed(0)
    loader = make(Path(request["folder"]), request["workers"], request["rank"], request["world"])
    if request.get("state") is not None:
        loader.load(request["state"])
    read, state = [], None
    for batch in loader:
        read.append(batch)
        if len(read) == request.get("batches"):
            state = loader.state() if loader.has_state else None
            break
    else:
        if request.get("next"):
            return {"read": read, "next": list(loader)}
    return {"read": read, "state": state}


def main() -> None:
    name, request = sys.argv[1], pickle.loads(bytes.fromhex(sys.argv[2]))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints
    found = write(name, Path(request["folder"])) if "write" in request else run(request, LOADERS[name])
    print(pickle.dumps(found).hex(), file=answer, flush=True)
    os._exit(0)  # some leave threads or processes that keep the interpreter from ending


if __name__ == "__main__":
    main()
