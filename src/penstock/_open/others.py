"""Error messages for files that penstock cannot read, with Python code that turns such files into a dataset."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from penstock._files.local import AnyFile, File
from penstock._remote.urls import is_url
from penstock.errors import FormatError
from penstock.source._folders import PICTURES, folders_below


class _FileKind(NamedTuple):
    """A kind of file that penstock does not read, recognised by its suffix (`ends`) or first bytes (`begins`).

    `lines` is example code that makes a dataset from the file. In this code, FILE stands for the file's path, and
    STEM.parquet for the same path with the suffix `.parquet`.
    """

    name: str
    ends: tuple[str, ...]
    begins: tuple[bytes, ...]
    advice: str
    lines: str = ""


_TO_PARQUET = "Convert the file to Parquet once, which is also faster:"
_IN_MEMORY = "If the file fits into memory:"
_OWN = (
    "If the library that writes such files has a dataset, pass that to penstock.DataLoader: any object with __len__ "
    "and __getitem__ will do."
)

_KINDS = (
    _FileKind(
        "CSV",
        (".csv",),
        (),
        _TO_PARQUET,
        """
import penstock, pyarrow.csv, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.csv.read_csv(FILE), STEM.parquet)
data = penstock.open(STEM.parquet)""",
    ),
    _FileKind(
        "TSV",
        (".tsv", ".tab"),
        (),
        _TO_PARQUET,
        r"""
import penstock, pyarrow.csv, pyarrow.parquet
table = pyarrow.csv.read_csv(FILE, parse_options=pyarrow.csv.ParseOptions(delimiter="\t"))
pyarrow.parquet.write_table(table, STEM.parquet)
data = penstock.open(STEM.parquet)""",
    ),
    _FileKind(
        "ORC",
        (".orc",),
        (),
        _TO_PARQUET,
        """
import penstock, pyarrow.orc, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.orc.read_table(FILE), STEM.parquet)
data = penstock.open(STEM.parquet)""",
    ),
    _FileKind(
        "NumPy's .npy",
        (".npy",),
        (b"\x93NUMPY",),
        "An array is a dataset of its rows:",
        """
import numpy, penstock
data = penstock.ArrayDataset(numpy.load(FILE, mmap_mode="r"))""",
    ),
    _FileKind(
        "NumPy's .npz",
        (".npz",),
        (),
        "Arrays of the same length are a dataset of their rows:",
        """
import numpy, penstock
data = penstock.ArrayDataset(**numpy.load(FILE))""",
    ),
    _FileKind(
        "HDF5",
        (".h5", ".hdf5", ".he5"),
        (b"\x89HDF\r\n\x1a\n",),
        "Wrap it, with the name of your array for 'x'. An open file cannot be sent to workers: each read opens it.",
        """
import h5py
class Rows:
    def __len__(self):
        with h5py.File(FILE) as file: return len(file["x"])
    def __getitem__(self, key):
        with h5py.File(FILE) as file: return file["x"][key]
data = Rows()""",
    ),
    _FileKind(
        "zip",
        (".zip",),
        (),
        "Unpack it and pass the folder, or wrap it:",
        """
import zipfile
class Members:
    with zipfile.ZipFile(FILE) as file: names = [name for name in file.namelist() if not name.endswith("/")]
    def __len__(self): return len(self.names)
    def __getitem__(self, key):
        with zipfile.ZipFile(FILE) as file: return file.read(self.names[key])
data = Members()""",
    ),
    _FileKind(
        "pickle",
        (".pkl", ".pickle"),
        (),
        _IN_MEMORY,
        """
import pickle
with open(FILE, "rb") as file: data = pickle.load(file)
# A list is a dataset; for a dict of arrays it is penstock.ArrayDataset(**data).""",
    ),
    _FileKind(
        "PyTorch's .pt",
        (".pt", ".pth"),
        (),
        _IN_MEMORY,
        """
import torch
data = torch.load(FILE)
# A tensor or a list is a dataset; for a dict of arrays it is penstock.ArrayDataset(**data).""",
    ),
    _FileKind(
        "Excel's files",
        (".xlsx", ".xls"),
        (),
        _TO_PARQUET,
        """
import pandas, penstock
pandas.read_excel(FILE).to_parquet(STEM.parquet)
data = penstock.open(STEM.parquet)""",
    ),
    _FileKind(
        "a single shard of MosaicML's",
        (".mds",),
        (),
        "Pass the folder of all shards, or the index.json in it: penstock.formats.MDS reads these.",
    ),
    *(_FileKind(end, (end,), (), _OWN) for end in (".beton", ".lance", ".zarr", ".avro")),
)
_ARRAY = _FileKind(
    "JSON arrays",
    (".json",),
    (),
    "If the file fits into memory (else write JSON lines, for example by jq -c '.[]'):",
    """
import json
with open(FILE) as file: data = json.load(file)  # a list is a dataset: penstock.DataLoader(data, ...)""",
)
_VALUE = _FileKind(
    "a file that is one JSON value",
    (".json",),
    (),
    "If a part of the value is the list of samples:",
    """
import json
with open(FILE) as file: data = json.load(file)["samples"]  # a list is a dataset: penstock.DataLoader(data, ...)""",
)
_READ = (
    "Parquet, Arrow, tar, JSON lines, text, token ids, TFRecord, Megatron's .bin and .idx, the folders of MosaicML "
    "and LitData, MXNet's .rec, LMDB"
)
_MANY = """
class Files:
    def __init__(self, paths): self.paths = paths
    def __len__(self): return len(self.paths)
    def __getitem__(self, key): return read(self.paths[key])  # your function: from a path to a sample"""
_LOOK = 64 << 10  # bytes of a JSON file
_KNOWN = {end for kind in _KINDS for end in kind.ends}


def advice(file: AnyFile) -> str | None:
    """Returns advice on loading or converting a file that penstock does not read, or None if its kind is unknown."""
    begin, end = bytes(file.peek(0, min(file.size, _LOOK))), os.path.splitext(file.path)[1].lower()
    if end == ".json":
        return _of_json(file.path, begin)
    for kind in _KINDS:
        if begin.startswith(kind.begins) or end in kind.ends:
            return _said(kind, file.path)
    return None


def unknown(file: AnyFile) -> str:
    begin, end = bytes(file.peek(0, min(file.size, 16))), os.path.splitext(file.path)[1].lower()
    if end in PICTURES:
        return (
            f"{file.path} is a single image. Pass a folder with one folder of images for each class, or read images "
            "by a list of names and labels: penstock.image.ImageFolder(folder, listing=...)."
        )
    return (
        f"{file.path}: the format is not known. Its name ends in {end!r}, and it begins with {begin!r}. penstock "
        f"reads {_READ}, and folders of images. If it is text, pass it to penstock.formats.TextLines. For one sample "
        f"in each file, write a dataset:{_indented(_MANY)}"
    )


def of_folder(folder: str) -> str | None:
    """Returns the error message for a folder that penstock cannot read, or None if the folder has no files."""
    found = _below(folder)
    if not found:
        return None
    end = max(found, key=lambda end: (end in _KNOWN, end == ".json", len(found[end])))
    file, count = File(found[end][0]), len(found[end])
    said = advice(file) or unknown(file)
    ending = f"{count:,} files below it end" if count > 1 else "1 file below it ends"
    return f"{folder} has no file that penstock reads; {ending} in {end!r}. {said}"


def refuse_beside_text(folder: str) -> None:
    """Raises FormatError unless the folder has more text files than images and other known files together.

    A few text files among other files may be notes, rather than data.
    """
    found = _below(folder)
    others = {end: paths for end, paths in found.items() if end in _KNOWN or end in PICTURES}
    if not others or sum(map(len, others.values())) < len(found[".txt"]):
        return
    counts = ", ".join(f"{len(paths):,} in {end!r}" for end, paths in sorted(others.items()))
    images = ", or the images by penstock.image.ImageFolder(folder)" if others.keys() & PICTURES else ""
    raise FormatError(
        f"{folder} has files of text ({len(found['.txt']):,} in '.txt') beside others ({counts}). Name those that "
        f"are meant, such as {os.path.join(folder, '**', '*.txt')!r}{images}."
    )


def _below(folder: str) -> dict[str, list[str]]:
    """Returns the paths of the files below a folder, grouped by suffix. Hidden files are left out."""
    found: dict[str, list[str]] = {}
    for where, names in folders_below(folder):
        for name in names:
            found.setdefault(os.path.splitext(name)[1].lower(), []).append(os.path.join(where, name))
    return found


def _of_json(path: str, begin: bytes) -> str:
    line, _, rest = begin.lstrip().partition(b"\n")
    try:
        json.loads(line)
        is_lines = bool(rest.strip())
    except ValueError:
        is_lines = False
    if is_lines:
        return (
            f"{path} has one JSON value on each line. penstock.formats.JsonLines reads it, and so does penstock.open "
            "if its name ends in .jsonl."
        )
    if begin.lstrip().startswith(b"["):
        return _said(_ARRAY, path)
    return _said(_VALUE, path)


def _said(kind: _FileKind, path: str) -> str:
    stem = os.path.splitext(path)[0]
    lines = kind.lines.replace("FILE", repr(path)).replace("STEM.parquet", repr(f"{stem}.parquet"))
    copy = " Copy the file to a local disk first." if is_url(path) else ""
    return f"{path}: penstock has no reader for {kind.name}.{copy} {kind.advice}{_indented(lines)}"


def _indented(lines: str) -> str:
    return lines.replace("\n", "\n    ")
