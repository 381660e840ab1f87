"""Files that the packages of others wrote, and what these packages read of them: `make interop` installs them."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from others import samples

import penstock
from penstock.errors import FormatError
from penstock.formats import LitData, Megatron, Tar
from penstock.testing import difference

FILES = Path(__file__).parents[1] / "others" / "files"

leaves_files_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def webdataset() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip("webdataset")


@pytest.fixture(scope="module")
def indexed() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip("megatron.core.datasets.indexed_dataset")


def theirs(webdataset: Any, path: Path) -> list[dict[str, Any]]:
    found = webdataset.WebDataset(str(path), shardshuffle=False, nodesplitter=None)
    added = "__url__", "__local_path__"
    return [{name: value for name, value in sample.items() if name not in added} for sample in found]


@leaves_files_open
def test_tars_of_webdataset_are_read(webdataset: Any, tmp_path: Path) -> None:
    path = tmp_path / "shard-000.tar"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(20):
            text, data = f"sample {number}", {"x": number}
            writer.write({"__key__": f"{number:06}", "txt": text, "cls": number, "json": data, "npy": array})
    raw = Tar(path, decode=False)
    assert list(raw) == theirs(webdataset, path)
    for number, sample in enumerate(Tar(path, fields="txt cls json npy")):
        assert (sample["txt"], sample["cls"], sample["json"]) == (f"sample {number}", number, {"x": number})
        assert np.array_equal(sample["npy"], array)


def test_the_example_of_the_documentation_runs(webdataset: Any, tmp_path: Path) -> None:
    """That of the code that people have today."""
    (tmp_path / "shards").mkdir()
    pixels = np.zeros((64, 64, 3), np.uint8)
    for shard in range(4):
        with webdataset.TarWriter(str(tmp_path / "shards" / f"train-{shard:06}.tar")) as writer:
            for number in range(20):
                writer.write({"__key__": f"{shard}{number:05}", "jpg": pixels, "cls": number})
    page = (Path(__file__).parents[2] / "docs" / "webdataset.md").read_text()
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert ran.returncode == 0, ran.stderr


@leaves_files_open
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_grouped_as_webdataset_groups_them(webdataset: Any, tmp_path: Path, kind: int) -> None:
    names = ["a.jpg", "a.TXT", "b/a.jpg", "b/a.seg.png", "b.c/d.txt", "b.c/e", "README", ".x", "__m__/a.txt"]
    names += ["./z.txt", "é.txt", "f" * 80 + "/" + "g" * 80 + ".txt", "__meta__", "x.y.z.txt", "x.txt"]
    with tarfile.open(tmp_path / "a.tar", "w", format=kind) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()[: len(name)]))
    assert list(Tar(tmp_path / "a.tar", decode=False)) == theirs(webdataset, tmp_path / "a.tar")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("modes", [False, True])
def test_datasets_of_megatron_are_read(indexed: Any, tmp_path: Path, dtype: Any, modes: bool) -> None:
    torch = pytest.importorskip("torch")
    rng, prefix = np.random.default_rng(0), str(tmp_path / "text")
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=modes)
    sequences = []
    for _ in range(20):
        for _ in range(rng.integers(1, 4)):
            sequences.append(rng.integers(0, 100, rng.integers(1, 30)))
            builder.add_item(torch.tensor(sequences[-1]), *([1] if modes else []))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    ours, known = Megatron(prefix), indexed.IndexedDataset(prefix, multimodal=modes)
    assert len(ours) == len(known) == len(sequences)
    assert np.array_equal(ours.documents, known.document_indices)
    for at, sequence in enumerate(sequences):
        read = known[at][0] if modes else known[at]
        assert ours[at].dtype == read.dtype == dtype
        assert ours[at].tolist() == read.tolist() == sequence.tolist()


def written(name: str, folder: Path) -> None:
    """Writes files by their owner's package, in another process: these packages leave threads and memory behind."""
    package = {"mds": "streaming", "mds-gz": "streaming", "tfrecord": "tfrecord"}.get(name, "litdata")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = [sys.executable, "-W", "ignore", "-m", "others.write", str(folder), name]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    ran = subprocess.run(program, capture_output=True, text=True, env=paths, timeout=100)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", ["mds", "litdata", "litdata-rows", "litdata-tokens", "tfrecord"])
def test_files_that_their_owners_write_today_are_read(name: str, tmp_path: Path) -> None:
    """The same as those that tests/others has, which older releases wrote."""
    written(name, tmp_path)
    if name == "litdata-tokens":
        found = np.concatenate(list(LitData(tmp_path / name, samples.BLOCK_SIZE)))
        assert found.tolist() == np.concatenate(list(LitData(FILES / name, samples.BLOCK_SIZE))).tolist()
        return
    expected = {"mds": samples.mds, "litdata": samples.tree, "litdata-rows": samples.row, "tfrecord": samples.example}
    data = penstock.open(tmp_path / name)
    assert len(data) == samples.COUNT
    for n, sample in enumerate(data):
        assert difference(sample, expected[name](n)) is None


def test_shards_that_mosaicml_compresses_are_refused(tmp_path: Path) -> None:
    written("mds-gz", tmp_path)
    with pytest.raises(FormatError, match=r"compressed \(gz.*'shard.00000.mds.gz'"):
        penstock.open(tmp_path / "mds-gz")
