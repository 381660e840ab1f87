"""Hugging Face datasets: the same rows as the dataset's own, and batches on every backend."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pictures import encoded, picture
from same import same

from penstock import DataLoader, StateError
from penstock.errors import SampleTooLarge
from penstock.formats import HuggingFace
from penstock.image import Transform, loader

# Of datasets itself, with this version of pyarrow.
pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")

N = 2500  # several record batches

SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "thread": {"num_workers": 2, "backend": "thread"},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
}


@pytest.fixture(autouse=True, scope="module")
def quiet() -> None:
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenised set in three files, memory-mapped."""
    folder = str(tmp_path_factory.mktemp("dataset"))
    in_memory().save_to_disk(folder, num_shards=3)
    return datasets.load_from_disk(folder)


def in_memory() -> Any:
    features = datasets.Features(
        {
            "ids": datasets.Sequence(datasets.Value("int32")),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["odd", "even"]),
        }
    )
    columns = {
        "ids": [list(range(key, key + 8)) for key in range(N)],
        "text": [f"row {key}" for key in range(N)],
        "label": [key % 2 for key in range(N)],
    }
    return datasets.Dataset.from_dict(columns, features)


def plain(sample: Any) -> Any:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in sample.items()}


VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda data: data,
    "selected range": lambda data: data.select(range(700, 2100)),
    "selected rows": lambda data: data.select([5, 2400, 5, 0]),
    "shuffled": lambda data: data.shuffle(seed=1),
    "shuffled and selected": lambda data: data.shuffle(seed=1).select(range(10, 300)),
    "filtered": lambda data: data.filter(lambda row: row["label"] == 1, load_from_cache_file=False),
    "sorted": lambda data: data.sort("text", reverse=True),
    "shards": lambda data: data.shard(4, 1),
    "joined": lambda data: datasets.concatenate_datasets([data, data.select([7, 3])]),
    "some columns": lambda data: data.select_columns(["label", "ids"]),
    "columns of a format": lambda data: data.with_format(None, columns=["label", "text"]),
    "renamed": lambda data: data.rename_column("ids", "tokens"),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("where", ["stored", "in memory"])
def test_rows_are_those_of_the_dataset(stored: Any, name: str, where: str) -> None:
    data = VIEWS[name](stored if where == "stored" else in_memory())
    found = HuggingFace(data)
    assert found.is_direct
    assert len(found) == len(data)
    keys = [0, len(data) - 1, len(data) // 2, 3, -1]
    assert [plain(found[key]) for key in keys] == [data[key] for key in keys]
    assert [plain(sample) for sample in found.__getitems__(keys)] == [data[key] for key in keys]
    assert list(found[0]) == list(data[0])
    if any(name in ("ids", "tokens") for name in found.columns):
        assert (found.__lengths__() == 8).all() and len(found.__lengths__()) == len(data)


def test_lists_of_numbers_are_arrays_of_the_type_of_the_column(stored: Any) -> None:
    expected = {"ids": np.arange(8, dtype=np.int32), "text": "row 0", "label": np.int64(0)}
    assert same(HuggingFace(stored)[0], expected)


def doubled(batch: Any) -> Any:
    return {"twice": [2 * label for label in batch["label"]], "text": batch["text"]}


FORMATTED: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda data: data.with_format("numpy"),
    "torch": lambda data: data.with_format("torch", columns=["ids"]),
    "all columns": lambda data: data.with_format("numpy", columns=["ids"], output_all_columns=True),
    "transform": lambda data: data.with_transform(doubled),
    "arguments": lambda data: data.with_format("numpy", dtype=np.float32, columns=["ids"]),
}


@pytest.mark.parametrize("name", FORMATTED)
def test_a_format_or_transform_is_left_to_the_dataset(stored: Any, name: str) -> None:
    data = FORMATTED[name](stored.shuffle(seed=2))
    found = HuggingFace(data)
    assert not found.is_direct
    assert same(found[7], data[7])
    assert same(found.__getitems__([4, 2, -1]), data.__getitems__([4, 2, N - 1]))
    assert found.__gather__(np.array([1]), np.empty) is NotImplemented


def test_images_are_as_the_dataset_gives_them(tmp_path: Path) -> None:
    from PIL import Image

    pictures = [Image.new("RGB", (4, 3), (value, 0, 0)) for value in (10, 20)]
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"image": pictures, "n": [1, 2]}, features)
    found = HuggingFace(data)
    assert not found.is_direct
    assert np.asarray(found[1]["image"]).tolist() == np.asarray(pictures[1]).tolist()
    encoded = HuggingFace(data.cast_column("image", datasets.Image(decode=False)))
    assert encoded[1]["image"]["bytes"][:4] == b"\x89PNG"
    assert HuggingFace(data.select_columns(["n"])).is_direct


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("where", ["stored", "in memory"])
def test_every_backend_gives_the_same_batches(stored: Any, where: str, setting: str) -> None:
    data = HuggingFace((stored if where == "stored" else in_memory()).shuffle(seed=3))
    rows = [data[key] for key in range(N)]
    expected = DataLoader(rows, batch_size=100, shuffle=True, seed=4)
    with DataLoader(data, batch_size=100, shuffle=True, seed=4, **SETTINGS[setting]) as loader:
        assert same(list(loader), list(expected))


def test_a_transform_goes_to_the_workers(stored: Any) -> None:
    factor = 3
    data = stored.with_transform(lambda batch: {"x": [factor * label for label in batch["label"]]})
    with DataLoader(HuggingFace(data), batch_size=50, num_workers=2, multiprocessing_context="spawn") as loader:
        assert [batch["x"].tolist() for batch in loader] == [[0, 3] * 25] * (N // 50)


def test_blocks_are_record_batches_unless_rows_are_chosen(stored: Any) -> None:
    assert HuggingFace(stored).blocks.tolist()[:2] == [0, 834]
    assert HuggingFace(stored.shuffle(seed=1)).blocks.tolist() == [0, N]


def test_inspect_and_repr(stored: Any) -> None:
    found = HuggingFace(stored)
    assert repr(found) == "HuggingFace(2,500 samples: ids, text, label)"
    assert [field.dtype for field in found.inspect().fields] == ["int32[any]", "str", "int64"]
    assert len(found.paths) == 3
    assert [field.name for field in HuggingFace(stored.with_transform(doubled)).inspect().fields] == ["twice", "text"]


def test_a_stored_dataset_travels_as_paths(stored: Any) -> None:
    assert len(pickle.dumps(HuggingFace(stored))) < 20_000


@pytest.mark.parametrize("page", ["tables.md", "huggingface.md", "parquet-in-s3.md"])
def test_the_examples_of_the_documentation_run(tmp_path: Path, page: str) -> None:
    """Those of ours, and those of the code that people have today. Files of a bucket are local here."""
    (tmp_path / "train").mkdir()
    for part in range(2):
        table = pa.table({"ids": [[row] * 64 for row in range(100)]})
        pa.parquet.write_table(table, tmp_path / "train" / f"{part}.parquet")
    text = (Path(__file__).parents[2] / "docs" / page).read_text().replace("s3://bucket", str(tmp_path))
    found = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found
    for code in found:
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=100)
        assert ran.returncode == 0, ran.stderr


def test_other_kinds_of_datasets_are_refused_with_the_remedy(stored: Any) -> None:
    with pytest.raises(TypeError, match="this one is a stream"):
        HuggingFace(stored.to_iterable_dataset())
    with pytest.raises(TypeError, match=r"Choose one: \['train'\]"):
        HuggingFace(datasets.DatasetDict({"train": stored}))
    with pytest.raises(TypeError, match="but got a list"):
        HuggingFace([1, 2])


def state_of(data: Any) -> dict[str, Any]:
    loader = DataLoader(HuggingFace(data), batch_size=4, shuffle=True, seed=0, collate_fn=list)
    next(iter(loader))
    return loader.state_dict()


def test_a_state_knows_the_rows_of_its_dataset(stored: Any) -> None:
    state = state_of(in_memory())

    def load(data: Any) -> None:
        loader = DataLoader(HuggingFace(data), batch_size=4, shuffle=True, seed=0, collate_fn=list)
        loader.load_state_dict(state)

    load(stored)  # the same rows, in files
    for other in (stored.shuffle(seed=1), stored.select(range(N - 1, -1, -1)), stored.rename_column("text", "words")):
        with pytest.raises(StateError, match="taken with other files"):
            load(other)
    assert HuggingFace(stored.select([])).__fingerprint__() is None


@pytest.mark.parametrize("many", [False, True])
def test_an_image_that_is_too_large_is_not_decoded(many: bool) -> None:
    images = [encoded(picture(size, size), "PNG") for size in (10, 300)]
    column: list[Any] = [{"bytes": each, "path": None} for each in images]
    feature = datasets.Sequence(datasets.Image()) if many else datasets.Image()
    features = datasets.Features({"image": feature, "n": datasets.Value("int64")})
    rows = {"image": [[each] for each in column] if many else column, "n": [0, 1]}
    data = HuggingFace(datasets.Dataset.from_dict(rows, features=features), max_sample_bytes=200_000)
    assert not data.is_direct
    assert data[0]["n"] == 0
    for copied in (data, pickle.loads(pickle.dumps(data))):
        with pytest.raises(SampleTooLarge, match="row 1, 'image': the sample would have 270,000 bytes"):
            copied[1]
        with pytest.raises(SampleTooLarge):
            copied.__getitems__([0, 1])
    assert HuggingFace(data.dataset)[1]["n"] == 1
    assert HuggingFace(data.dataset.select_columns(["n"]), max_sample_bytes=1)[1]["n"] == 1


# Columns of images that penstock decodes.


def with_images(count: int = 6) -> tuple[Any, list[bytes]]:
    files = [encoded(picture(40, 50, seed)) for seed in range(count)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": [{"bytes": data, "path": None} for data in files], "label": list(range(count))}
    return datasets.Dataset.from_dict(columns, features=features), files


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_images_are_decoded_by_a_transform_straight_from_the_table(settings: dict[str, Any]) -> None:
    dataset, files = with_images()
    transform = Transform(resize=(20, 20), dtype="uint8", train=False)
    data = HuggingFace(dataset.select([4, 2, 0]), decode={"image": transform})
    assert data.is_direct
    with DataLoader(data, batch_size=3, **settings) as loader:
        (batch,) = loader
    assert batch["label"].tolist() == [4, 2, 0]
    assert all(np.array_equal(row, transform(files[key])) for row, key in zip(batch["image"], [4, 2, 0], strict=True))


def test_images_are_read_by_a_loader_of_pil_images() -> None:
    dataset, files = with_images()
    data = HuggingFace(dataset, decode={"image": loader()})
    assert np.array_equal(np.asarray(data[3]["image"]), np.asarray(dataset[3]["image"]))
    assert HuggingFace(dataset, decode={"image": None})[3]["image"] == files[3]


def test_images_that_are_files_are_read_from_there(tmp_path: Path) -> None:
    for seed in range(2):
        (tmp_path / f"{seed}.jpg").write_bytes(encoded(picture(40, 50, seed)))
    paths = sorted(map(str, tmp_path.iterdir()))
    dataset = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())  # as "imagefolder"
    data = HuggingFace(dataset, decode={"image": loader("numpy")})
    for row in range(2):
        assert np.array_equal(data[row]["image"], np.asarray(dataset[row]["image"]))


def test_decode_needs_rows_that_are_read_directly() -> None:
    dataset, _ = with_images()
    with pytest.raises(ValueError, match="decode= needs a dataset without a format, but its format is 'torch'"):
        HuggingFace(dataset.with_format("torch"), decode={"image": loader()})
    others = dataset.rename_columns({"image": "second", "label": "other"})
    two = datasets.concatenate_datasets([dataset, others], axis=1)
    with pytest.raises(ValueError, match=r"decode= names only 'image', but the dataset must also decode 'second'"):
        HuggingFace(
            two,
            decode={"image": None},
        )
