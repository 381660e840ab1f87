"""Files of token ids: which samples they have, and that a batch has the bytes of its files."""

from __future__ import annotations

import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from penstock._fill.cast import Cast, FieldMemory
from penstock.errors import CastError, FormatError
from penstock.formats import FieldInfo, Tokens, _tokens
from penstock.formats._crc32c import crc32c, masked
from penstock.records import RecordWriter

Array = np.ndarray[Any, Any]
LLMC_MAGIC = {"uint16": 20240520, "uint32": 20240801}


def write(folder: Path, *files: Array) -> list[Path]:
    paths = [folder / f"{number}.bin" for number in range(len(files))]
    for path, ids in zip(paths, files, strict=True):
        ids.tofile(path)
    return paths


def write_llmc(path: Path, ids: Array) -> Path:
    header = np.zeros(256, np.int32)
    header[:3] = LLMC_MAGIC[ids.dtype.name], 1, len(ids)
    path.write_bytes(header.tobytes() + ids.tobytes())
    return path


def expected(files: list[Array], length: int, stride: int) -> list[Any]:
    """By the words of the documentation: a plain loop over each file."""
    return [ids[at : at + length].tolist() for ids in files for at in range(0, len(ids) - length + 1, stride)]


# With and without overlap; rows that are whole pages, or that are not, with a header before them or another file.
SHAPES = [(1, None), (3, 7), (512, None), (1024, None), (1024, 512), (1024, 1536), (1025, 1024)]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(["uint8", "uint16", "uint32", "int64"]),
    header=st.booleans(),
    scratch=st.sampled_from([1, 5000, _tokens._SCRATCH]),
    data=st.data(),
)
def test_samples_are_those_of_a_plain_loop(
    tmp_path: Path,
    sizes: list[int],
    shape: tuple[int, int | None],
    dtype: str,
    header: bool,
    scratch: int,
    data: Any,
) -> None:
    length, stride = shape
    rng = np.random.default_rng(0)
    files = [rng.integers(0, 100, size).astype(dtype) for size in sizes]
    if header and dtype in LLMC_MAGIC:
        paths = [write_llmc(tmp_path / f"{number}.bin", ids) for number, ids in enumerate(files)]
    else:
        paths = write(tmp_path, *files)
    samples = expected(files, length, stride or length)
    if not samples:
        with pytest.raises(ValueError, match="no file has a sample of"):
            Tokens(paths, dtype, length, stride)
        return
    tokens = Tokens(paths, dtype, length, stride)
    n = len(samples)
    assert len(tokens) == n
    keys = data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=9))
    into = FieldMemory(Cast((((), "float64"),), False, True).root(), np.empty)
    with mock.patch.object(_tokens, "_SCRATCH", scratch):
        for empty in (np.empty, into):
            assert tokens.__gather__(keys, empty).tolist() == [samples[key] for key in keys]
    assert [row.tolist() for row in tokens.__getitems__(keys)] == [samples[key] for key in keys]
    assert tokens[keys[0]].tolist() == samples[keys[0]]
    assert tokens[keys[0]].dtype == tokens.__gather__(keys, np.empty).dtype == np.dtype(dtype)
    blocks = tokens.blocks
    assert (blocks[0], blocks[-1]) == (0, n)
    assert (np.diff(blocks) > 0).all()


def test_a_file_is_cut_into_blocks_of_some_megabytes(tmp_path: Path) -> None:
    paths = write(tmp_path, np.zeros(10 << 20, np.uint16), np.zeros(1 << 20, np.uint16))
    tokens = Tokens(paths, "uint16", 1024)
    assert tokens.blocks.tolist() == [0, 4096, 8192, 10240, 11264]


def test_a_loader_converts_ids_while_it_copies_them(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 65536, 200_000).astype(np.uint16)
    tokens = Tokens(write(tmp_path, ids), "uint16", 1025, 1024)
    batches = list(DataLoader(tokens, batch_size=90, dtype="int64"))
    assert batches[0].dtype == np.int64
    assert np.concatenate(batches).tolist() == expected([ids], 1025, 1024)


def test_an_id_that_does_not_fit_names_its_row(tmp_path: Path) -> None:
    ids = np.zeros(200_000, np.uint16)
    ids[1024 * 81] = 300
    tokens = Tokens(write(tmp_path, ids), "uint16", 1024)
    with pytest.raises(CastError, match=r"300 in the batch \(row 81\)"):
        next(iter(DataLoader(tokens, batch_size=90, dtype="uint8")))


def test_a_pickle_has_paths_and_settings_only(tmp_path: Path) -> None:
    tokens = Tokens(write(tmp_path, np.arange(5000, dtype=np.uint16)), "uint16", 100)
    first = tokens[0]
    sent = pickle.dumps(tokens)
    assert len(sent) < 1500
    assert np.array_equal(pickle.loads(sent)[0], first)


def test_a_sample_may_be_written_to(tmp_path: Path) -> None:
    tokens = Tokens(write(tmp_path, np.arange(10, dtype=np.uint16)), "uint16", 5)
    tokens[0][:] = 7
    assert tokens[0].tolist() == [0, 1, 2, 3, 4]


def test_a_folder_means_its_bin_files(tmp_path: Path) -> None:
    write(tmp_path, np.arange(10, dtype=np.uint16), np.arange(20, dtype=np.uint16))
    (tmp_path / "meta.pkl").write_bytes(b"vocabulary")
    assert len(Tokens(tmp_path, "uint16", 5)) == 6


def test_inspection_says_what_the_files_hold(tmp_path: Path) -> None:
    found = Tokens(write(tmp_path, np.arange(12, dtype=np.uint16)), "uint16", 5).inspect(samples=1)
    assert (found.format, found.files, found.samples, found.bytes, found.blocks) == ("Tokens", 1, 2, 24, 1)
    assert found.fields == (FieldInfo("", "uint16", (5,)),)
    assert [sample.tolist() for sample in found.first] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(("key", "error"), [(2, IndexError), (-3, IndexError), ("a", TypeError)])
def test_keys_are_those_of_a_list(tmp_path: Path, key: Any, error: type[Exception]) -> None:
    tokens = Tokens(write(tmp_path, np.arange(12, dtype=np.uint16)), "uint16", 5)
    assert tokens[-1].tolist() == tokens[1].tolist()
    with pytest.raises(error):
        tokens[key]
    with pytest.raises(error):
        tokens.__getitems__([0, key])


def test_a_file_of_odd_size_is_cut_off_or_of_another_dtype(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(33))
    with pytest.raises(FormatError, match=r"a.bin has 33 bytes, .* the 4 bytes of a uint32. The file is cut"):
        Tokens(tmp_path / "a.bin", "uint32", 2)


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (b"MMIDIDX\0\0", r"this is Megatron's index, the \.idx of a \.bin, .*formats\.Megatron"),
        (b"TNTIDX\0\0", r"this is Megatron's older index"),
        (b"ARROW1\0\0", r"this is an Arrow file, .*formats\.Arrow"),
        (b"\x89HDF\r\n\x1a\n", r"this is an HDF5 file, .*astype\('uint16'\)"),
    ],
)
def test_a_file_of_another_format_is_refused_with_the_remedy(tmp_path: Path, begin: bytes, said: str) -> None:
    (tmp_path / "x.idx").write_bytes(begin + bytes(2001 - len(begin) % 2))
    with pytest.raises(FormatError, match=rf"x\.idx, byte 0: {said}"):
        Tokens(tmp_path / "x.idx", "uint16", 10)


def test_a_file_of_every_known_format_is_refused_with_its_class(tmp_path: Path) -> None:
    table = pa.table({"a": range(300)})
    pa.parquet.write_table(table, tmp_path / "x.parquet")
    pa.feather.write_feather(table, tmp_path / "x.arrow")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "x.arrow", "a.bin")
    with RecordWriter(tmp_path / "x.rec") as writer:
        writer.write(bytes(1000))
    length = struct.pack("<Q", 1000)
    (tmp_path / "x.tfrecord").write_bytes(length + struct.pack("<I", masked(crc32c(length))) + bytes(1004))
    (tmp_path / "x.mdb").write_bytes(bytes(16) + 0xBEEFC0DE.to_bytes(4, "little") + bytes(8172))
    classes = {
        "parquet": "formats.Parquet",
        "arrow": "formats.Arrow",
        "tar": "formats.Tar",
        "rec": "records.RecordFile",
        "tfrecord": "formats.TFRecord",
        "mdb": "records.CaffeLMDB",
    }
    for end, name in classes.items():
        with pytest.raises(FormatError, match=rf"x\.{end}, byte 0: this is an? .*, which would .*penstock\.{name}\("):
            Tokens(tmp_path / f"x.{end}", "uint8", 10)


def test_the_dtype_of_megatrons_index_counts(tmp_path: Path) -> None:
    np.arange(10, dtype=np.int32).tofile(tmp_path / "x.bin")
    (tmp_path / "x.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) + bytes(28))
    with pytest.raises(FormatError, match=r"the ids are int32, but dtype is uint16\. Pass dtype='int32'"):
        Tokens(tmp_path / "x.bin", "uint16", 2)
    assert Tokens(tmp_path / "x.bin", "int32", 2)[1].tolist() == [2, 3]


def test_a_npy_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(10, dtype=np.uint16))
    with pytest.raises(FormatError, match=r"ids.npy, byte 0: this is a .npy file.*astype\('uint16'\).tofile"):
        Tokens(tmp_path / "ids.npy", "uint16", 2)


def test_the_header_of_llmc_says_the_dtype(tmp_path: Path) -> None:
    path = write_llmc(tmp_path / "a.bin", np.arange(10, dtype=np.uint16))
    with pytest.raises(FormatError, match=r"a.bin, byte 0: .* uint16, but dtype is uint32. Pass dtype='uint16'"):
        Tokens(path, "uint32", 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float32", "length": 4}, "integer type"),
        ({"dtype": ">u2", "length": 4}, "integer type"),
        ({"dtype": "unit16", "length": 4}, "integer type .* but it is 'unit16'"),
        ({"dtype": "uint16", "length": 0}, "length must be 1 or more"),
        ({"dtype": "uint16", "length": 4, "stride": 0}, "stride must be 1 or more"),
        ({"dtype": "uint16", "length": 4, "stride": 1.5}, "stride must be 1 or more"),
        ({"dtype": "uint16", "length": 100}, "no file has a sample of 100 ids: the longest of 1 has 12"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokens(write(tmp_path, np.arange(12, dtype=np.uint16)), **settings)


@pytest.mark.parametrize("ids", [12, 10_000])
def test_a_file_that_changed_before_it_was_mapped_is_an_error(tmp_path: Path, ids: int) -> None:
    (path,) = write(tmp_path, np.arange(ids, dtype=np.uint16))
    tokens = Tokens(path, "uint16", 5)
    np.arange(6, dtype=np.uint16).tofile(path)
    with pytest.raises(FormatError, match="has changed since"):
        tokens[0]


class Doubled(Tokens):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) * 2


def test_a_subclass_with_its_own_getitem_is_not_bypassed(tmp_path: Path) -> None:
    tokens = Doubled(write(tmp_path, np.arange(12, dtype=np.uint16)), "uint16", 5)
    (batch,) = DataLoader(tokens, batch_size=2)
    assert batch.tolist() == [sample.tolist() for sample in tokens] == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]


@pytest.mark.parametrize("given", [{"length": 0}, {"length": True}, {"length": 2.0}, {"length": 4, "stride": -1}])
def test_a_length_that_is_no_number_of_ids_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    paths = write(tmp_path, np.arange(10, dtype=np.uint16))
    with pytest.raises(ValueError, match="must be 1 or more ids, but it is"):
        Tokens(paths, "uint16", **given)


def test_a_length_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    paths = write(tmp_path, np.arange(100, dtype=np.uint16))
    data = Tokens(paths, "uint16", np.uint8(60), np.int8(20))  # type: ignore[arg-type]
    assert [sample[0] for sample in data] == [0, 20, 40]


def test_max_sample_bytes_is_not_a_keyword(tmp_path: Path) -> None:
    write(tmp_path, np.arange(10, dtype=np.uint16))
    with pytest.raises(TypeError, match=r"^Tokens\.__init__\(\) got an unexpected keyword .*'max_sample_bytes'"):
        Tokens(tmp_path, "uint16", 4, max_sample_bytes=100)  # type: ignore[call-arg]
