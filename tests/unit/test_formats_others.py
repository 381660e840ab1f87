"""Files of MosaicML's streaming, LitData and TensorFlow, which the owners' packages have written (tests/others)."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from others import samples

import penstock
from penstock.errors import FormatError, SampleTooLarge
from penstock.formats import MDS, LitData, TFRecord
from penstock.formats._crc32c import crc32c, masked
from penstock.formats._tfrecord import example
from penstock.testing import difference

FILES = Path(__file__).parents[1] / "others" / "files"
WRITTEN = {"mds": samples.mds, "litdata": samples.tree, "litdata-rows": samples.row, "tfrecord": samples.example}


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    def copy(name: str) -> Path:
        return shutil.copytree(FILES / name, tmp_path / name)

    return copy


def same(found: Any, expected: Any) -> None:
    differs = difference(found, expected)
    assert differs is None, differs


@pytest.mark.parametrize("name", WRITTEN)
def test_every_sample_is_the_one_that_was_written(name: str, copied: Any) -> None:
    data = penstock.open(copied(name))
    assert len(data) == samples.COUNT
    for n, sample in enumerate(data):
        same(sample, WRITTEN[name](n))
        assert list(sample) == list(WRITTEN[name](n))


def test_a_dataset_of_tokens_is_cut_into_blocks_within_each_chunk(copied: Any) -> None:
    folder = copied("litdata-tokens")
    chunks = json.loads((folder / "index.json").read_text())["chunks"]
    expected, first = [], 0
    for chunk in chunks:
        ids = samples.TOKENS[first : first + chunk["dim"]]
        expected += [ids[at : at + 5] for at in range(0, len(ids) - 4, 5)]
        first += chunk["dim"]
    same(list(LitData(folder, 5)), expected)
    with pytest.raises(FormatError, match="Pass the number of ids of a sample: block_size=2048"):
        LitData(folder)
    with pytest.raises(ValueError, match="block_size is for datasets of tokens"):
        LitData(copied("litdata"), block_size=3)


def test_chunks_of_two_folders_may_have_the_same_names(copied: Any, tmp_path: Path) -> None:
    long = copied("litdata-tokens")
    short = shutil.copytree(long, tmp_path / "short")

    def cut(index: Any) -> None:
        for chunk in index["chunks"]:
            chunk["dim"] = 5

    edited(short, cut)
    same(list(LitData([long, short], 5)), [*LitData(long, 5), *LitData(short, 5)])


def test_compressed_rows_are_refused_before_they_are_too_large(copied: Any) -> None:
    folder = copied("litdata-rows")
    chunk = folder / json.loads((folder / "index.json").read_text())["chunks"][0]["filename"]
    content = chunk.read_bytes()
    (length,) = struct.unpack_from("<I", content, len(content) - 12)
    with pa.ipc.open_file(content[-12 - length : -12]) as opened:
        rows = opened.read_all()
    large = pa.array([b"\0" * (1 << 20)] * len(rows))
    sink = io.BytesIO()
    with pa.ipc.new_file(
        sink, pa.schema([("x", pa.binary())]), options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as to:
        to.write_table(pa.table({"x": large}))
    written = sink.getvalue()
    chunk.write_bytes(content[: -12 - length] + written + struct.pack("<I", len(written)) + content[-8:])
    size = chunk.stat().st_size
    edited(folder, lambda index: index["chunks"][0].__setitem__("chunk_bytes", size))
    assert LitData(folder)[0]["x"] == b"\0" * (1 << 20)
    with pytest.raises(SampleTooLarge, match="max_sample_bytes"):
        LitData(folder, max_sample_bytes=1 << 19)[0]


def edited(folder: Path, change: Any) -> Path:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def as_pickle(index: Any) -> None:
    for shard in index["shards"]:
        shard["column_encodings"][1] = "pkl"


def test_a_pickle_is_refused_unless_there_is_a_function_for_it(copied: Any) -> None:
    folder = edited(copied("mds"), as_pickle)
    with pytest.raises(FormatError, match=r"'bytes' is encoded as 'pkl', .* a pickle.*decode=\{'bytes': function"):
        MDS(folder)
    assert MDS(folder, decode={"bytes": len})[3]["bytes"] == 3
    assert MDS(folder, decode={"bytes": None})[3]["bytes"] == b"xxx"
    assert MDS(folder, columns=["int"])[3] == {"int": 3}
    folder = edited(copied("litdata"), lambda index: index["config"]["data_format"].__setitem__(2, "pickle"))
    with pytest.raises(FormatError, match=r"sample 1: the field 'bytes' is encoded as 'pickle'.*any program"):
        LitData(folder)[1]
    assert LitData(folder, decode={"bytes": len})[3]["bytes"] == 3


def test_the_error_of_a_given_function_keeps_its_type(copied: Any) -> None:
    for data in (MDS(copied("mds"), decode={"bytes": int}), LitData(copied("litdata"), decode={"bytes": int})):
        with pytest.raises(ValueError, match="invalid literal") as caught:
            data[3]
        assert type(caught.value) is ValueError and "field 'bytes'" in caught.value.__notes__[0]


def test_images_stay_bytes_without_decoding(copied: Any) -> None:
    assert MDS(copied("mds"), decode=False)[4]["image"].startswith(b"\x89PNG")


def test_columns_are_read_in_the_order_of_the_shards(copied: Any) -> None:
    data = MDS(copied("mds"), columns=["text", "int"])
    assert data[4] == {"int": 4, "text": "é4"} and data.columns == ["int", "text"]
    with pytest.raises(FormatError, match="there is no column 'none', but 'array', "):
        MDS(FILES / "mds", columns=["none"])


def test_a_function_for_a_field_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FormatError, match="there is no column 'imgae', but 'array', "):
        MDS(FILES / "mds", decode={"imgae": len})
    with pytest.raises(FormatError, match="there is no field 'imgae' to decode, but "):
        LitData(FILES / "litdata", decode={"imgae": len})


def test_compressed_and_encrypted_shards_are_refused(copied: Any) -> None:
    def compress(index: Any) -> None:
        for shard in index["shards"]:
            name = shard["raw_data"]["basename"]
            shard["compression"], shard["zip_data"] = "zstd:7", {"basename": f"{name}.zstd", "bytes": 9, "hashes": {}}

    folder = edited(copied("mds"), compress)
    assert len(MDS(folder)) == samples.COUNT  # what is decompressed is beside them
    (folder / "shard.00000.mds").unlink()
    with pytest.raises(FormatError, match=r"compressed \(zstd:7\).*'shard.00000.mds.zstd'.*compression=None"):
        MDS(folder)
    folder = copied("litdata")
    for what, value in (("compression", "zstd"), ("encryption", {"algorithm": "rsa"})):
        edited(folder, lambda index, what=what, value=value: index["config"].update({what: value}))
        with pytest.raises(FormatError, match=rf"{what} .*again without {what}="):
            LitData(folder)
        edited(folder, lambda index, what=what: index["config"].update({what: None}))


def test_a_merged_index_counts_a_shard_once(copied: Any, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    folder = copied("mds").rename(tmp_path / "both" / "0")
    merged = json.loads((folder / "index.json").read_text())
    for shard in merged["shards"]:
        shard["raw_data"]["basename"] = f"0/{shard['raw_data']['basename']}"
    (tmp_path / "both" / "index.json").write_text(json.dumps(merged))
    assert [sample["int"] for sample in penstock.open(tmp_path / "both")] == list(range(samples.COUNT))


def test_a_shard_is_never_looked_for_outside_of_its_folder(copied: Any) -> None:
    for name in ("../secret", "/etc/passwd", 7):
        folder = copied("mds")
        edited(folder, lambda index, name=name: index["shards"][0]["raw_data"].update(basename=name))
        with pytest.raises(FormatError):
            MDS(folder)
        shutil.rmtree(folder)


def test_a_missing_or_shortened_shard_is_named(copied: Any) -> None:
    folder = copied("litdata")
    (folder / "chunk-0-1.bin").write_bytes(b"short")
    with pytest.raises(FormatError, match=r"chunk-0-1.bin.*it has 5 bytes, but .*index.json says 1,477"):
        LitData(folder)
    (folder / "chunk-0-1.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no 'chunk-0-1.bin' beside"):
        LitData(folder)


def test_the_hashes_of_shards_are_part_of_the_fingerprint(copied: Any, tmp_path: Path) -> None:
    one = MDS(copied("mds")).__fingerprint__()
    folder = edited(tmp_path / "mds", lambda index: index["shards"][0]["raw_data"].update(hashes={"sha1": "0" * 40}))
    assert MDS(folder).__fingerprint__() != one


def test_a_single_shard_and_an_unknown_index_are_explained(copied: Any) -> None:
    with pytest.raises(FormatError, match=r"Pass the folder of all shards, or the index.json in it"):
        penstock.open(copied("mds") / "shard.00000.mds")
    other = copied("litdata") / "index.json"
    other.write_text('{"something": "else"}')
    with pytest.raises(FormatError, match="one JSON value"):
        penstock.open(other)


def test_a_tfrecord_is_found_by_its_content(copied: Any, tmp_path: Path) -> None:
    shutil.copy(copied("tfrecord") / "part-0.tfrecord", tmp_path / "train-00000-of-00001")
    assert isinstance(penstock.open(tmp_path / "train-00000-of-00001"), TFRecord)


def test_features_that_are_named_stay_arrays(copied: Any) -> None:
    sample = TFRecord(copied("tfrecord"), arrays=["label", "image"])[5]
    same((sample["label"], sample["image"]), (np.array([2]), [samples.png(5)]))
    with pytest.raises(TypeError, match=r"Pass \['label'\]"):
        TFRecord(FILES / "tfrecord", arrays="label")


def test_a_record_may_be_left_as_bytes_or_given_to_a_function(copied: Any) -> None:
    folder = copied("tfrecord")
    raw = TFRecord(folder, decode=False)[5]
    same(example(raw), samples.example(5))
    assert TFRecord(folder, decode=len)[5] == len(raw)


@pytest.mark.parametrize("byte", [0, 9, 20, -2])
def test_every_byte_of_a_tfrecord_is_checked(copied: Any, byte: int) -> None:
    path = copied("tfrecord") / "part-0.tfrecord"
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"checksum|ends after the file"):
        list(TFRecord(path))


def framed(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    checks = [struct.pack("<I", masked(crc32c(part))) for part in (length, content)]
    return length + checks[0] + content + checks[1]


def test_an_example_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed(b"\x12\x00") + framed(b"\xff") + framed(b""))
    data = TFRecord(path)
    with pytest.raises(FormatError, match=r"record 0, byte 0: .*SequenceExample"):
        data[0]
    with pytest.raises(FormatError, match="does not end"):
        data[1]
    assert data[2] == {}


def test_integers_and_floats_may_be_packed_or_not(tmp_path: Path) -> None:
    negative = b"\xff" * 9 + b"\x01"
    ints = b"\x0a" + bytes([len(negative) + 1]) + b"\x05" + negative + b"\x08\x07"
    floats = b"\x0a\x04" + struct.pack("<f", 0.5) + b"\x0d" + struct.pack("<f", 2)

    def feature(name: bytes, kind: int, values: bytes) -> bytes:
        inner = bytes([kind << 3 | 2, len(values)]) + values
        entry = b"\x0a\x01" + name + b"\x12" + bytes([len(inner)]) + inner
        return b"\x0a" + bytes([len(entry)]) + entry

    features = feature(b"i", 3, ints) + feature(b"f", 2, floats)
    found = example(b"\x0a" + bytes([len(features)]) + features)
    same(found, {"f": np.array([0.5, 2], np.float32), "i": np.array([5, -1, 7])})


@pytest.mark.parametrize("size", [0, 1, 64, 65, 511, 512, 513, 70_000])
def test_the_checksum_is_that_of_a_plain_loop(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c(data) == crc ^ 0xFFFFFFFF
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the standard


def test_a_pickled_copy_has_no_positions_and_reads_the_same(copied: Any) -> None:
    for data in (MDS(copied("mds")), LitData(copied("litdata")), LitData(copied("litdata-rows"))):
        same(list(pickle.loads(pickle.dumps(data))), list(data))
