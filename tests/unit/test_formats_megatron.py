"""Megatron-LM's indexed datasets, written here from the description of the format."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from penstock.errors import FormatError
from penstock.formats import Megatron

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
law = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBER = iter(range(1 << 30))


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def write(folder: Path, documents: list[list[int]], dtype: str = "uint16", modes: bool = False) -> Path:
    """Documents of sequences of the given lengths; the ids count up."""
    prefix = folder / f"{next(NUMBER):06}_text_document"
    lengths = np.array([length for document in documents for length in document], np.int32)
    ids = np.arange(lengths.sum()) % 100
    ids.astype(dtype).tofile(f"{prefix}.bin")
    pointers = np.cumsum(np.append(0, lengths))[:-1] * np.dtype(dtype).itemsize
    firsts = np.cumsum([0, *map(len, documents)])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(lengths), len(firsts)))
        file.write(lengths.tobytes() + pointers.astype(np.int64).tobytes() + firsts.astype(np.int64).tobytes())
        file.write(bytes(len(lengths) if modes else 0))
    return prefix


def expected(documents: list[list[int]]) -> list[list[int]]:
    found, at = [], 0
    for length in (length for document in documents for length in document):
        found.append([number % 100 for number in range(at, at + length)])
        at += length
    return found


DOCUMENTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=5)


@law
@given(files=st.lists(DOCUMENTS, min_size=1, max_size=3), dtype=st.sampled_from(list(CODES)), modes=st.booleans())
def test_sequences_are_those_that_were_written(tmp_path: Path, files: list[Any], dtype: str, modes: bool) -> None:
    found = Megatron([write(tmp_path, documents, dtype, modes) for documents in files])
    sequences = [sequence for documents in files for sequence in expected(documents)]
    assert [sample.tolist() for sample in found] == sequences
    assert found.__lengths__().tolist() == list(map(len, sequences))
    assert all(sample.dtype == found.dtype == np.dtype(dtype) for sample in found)
    assert found.documents.tolist() == np.cumsum([0, *(len(d) for documents in files for d in documents)]).tolist()
    assert (found.blocks[0], found.blocks[-1]) == (0, len(sequences))


def test_a_prefix_either_file_and_a_folder_mean_the_same(tmp_path: Path) -> None:
    prefix = write(tmp_path, [[3], [2, 2]])
    for path in (prefix, f"{prefix}.bin", f"{prefix}.idx", tmp_path, str(tmp_path / "*.idx")):
        assert len(Megatron(path)) == 3


def test_a_loader_reads_sequences(tmp_path: Path) -> None:
    found = Megatron(write(tmp_path, [[3], [2, 4]]))
    batches = list(DataLoader(found, batch_size=3, collate_fn=list))
    assert [sample.tolist() for sample in batches[0]] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]


def test_a_pickle_has_no_index(tmp_path: Path) -> None:
    sent = pickle.dumps(Megatron(write(tmp_path, [[1]] * 5000)))
    assert len(sent) < 1500
    assert len(pickle.loads(sent)) == 5000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda idx: b"x" + idx[1:], r"\.idx, byte 0: an index of Megatron begins with MMIDIDX"),
        (lambda idx: b"TNTIDX\0\0" + idx[8:], "byte 0: this is Megatron's older format"),
        (lambda idx: idx[:17] + b"\x09" + idx[18:], "byte 9: version 1 with the dtype of code 9"),
        (lambda idx: idx[:-1], r"byte 18: 3 sequences and 3 numbers of documents need 94 bytes, not 93"),
        (lambda idx: idx[:18] + b"\xff" * 8 + idx[26:], "byte 18: 18,446,744,073,709,551,615 sequences"),
        (lambda idx: idx[:34] + b"\x04" + idx[35:], r"sequence 1, of 2 ids, should begin at byte 8, not 6"),
        (lambda idx: idx[:-8] + b"\x02" + idx[-7:], "byte 70: the numbers of documents do not go from 0 to 3"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    idx = Path(f"{write(tmp_path, [[3], [2, 4]])}.idx")
    idx.write_bytes(change(idx.read_bytes()))
    with pytest.raises(FormatError, match=message):
        Megatron(idx)


def test_a_bin_of_another_size_is_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path, [[3], [2, 4]])
    path = Path(f"{prefix}.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"\.bin has 17 bytes, but its \.idx describes 18"):
        Megatron(prefix)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"\.bin"):
        Megatron(prefix)


def test_an_index_without_its_bin_is_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path, [[1, 2]])
    Path(f"{prefix}.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"Megatron: there is no '.*_document\.bin', .*together: copy both"):
        Megatron(prefix)


def test_several_dtypes_are_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path, [[3]], dtype) for dtype in ("uint16", "int32")]
    with pytest.raises(FormatError, match="several dtypes"):
        Megatron(paths)


@law
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
def test_a_wrong_byte_of_an_index_is_noticed_or_changes_documents_only(
    tmp_path: Path, place: float, flip: int, cut: bool
) -> None:
    documents = [[3], [2, 4], [5, 1, 1]]
    prefix = write(tmp_path, documents)
    idx = Path(f"{prefix}.idx")
    content = bytearray(idx.read_bytes())
    at = int(place * len(content))
    if cut:
        content = content[:at]
    else:
        content[at] ^= flip
    idx.write_bytes(content)
    try:
        found = Megatron(prefix)
    except FormatError:
        return
    assert not cut
    if at == 17:  # the dtype has no checksum: one of the same size cannot be noticed
        assert found.dtype.itemsize == 2
    else:
        assert at >= 34 + 12 * 6
        assert [sample.tolist() for sample in found] == expected(documents)
