"""Tables: what was written is read, a batch is what its samples give, and no damage ends the process."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same import same

from penstock._files.local import File
from penstock._fill.collate import collate
from penstock.errors import CollateError, FormatError
from penstock.formats import Arrow, Parquet
from penstock.formats._messages import count_batches, find_messages, look_ahead

law = settings(deadline=None, max_examples=60)

NUMBERS = st.integers(-100, 100)
# A type, and its values.
COLUMNS: dict[str, tuple[Any, Any]] = {
    "numbers": (pa.int16(), NUMBERS),
    "floats": (pa.float64(), st.floats(allow_nan=False)),
    "bools": (pa.bool_(), st.booleans()),
    "pairs": (pa.list_(pa.int32(), 2), st.tuples(NUMBERS, NUMBERS)),
    "lists": (pa.list_(pa.int32()), st.lists(NUMBERS, max_size=3)),
    "long lists": (pa.list_(pa.int64()), st.integers(0, 9).map(lambda n: [n] * 70)),
    "text": (pa.string(), st.text(max_size=4)),
    "bytes": (pa.large_binary(), st.binary(max_size=4)),
    "categories": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b"])),
    "structs": (pa.struct([("n", pa.int8())]), st.fixed_dictionaries({"n": st.integers(0, 9)})),
}


@st.composite
def tables(draw: Any, nulls: bool = True) -> Any:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    n = draw(st.integers(1, 17))
    columns = {}
    for name in names:
        kind, values = COLUMNS[name]
        if nulls and draw(st.booleans()):
            values = values | st.none()
        columns[name] = pa.array(draw(st.lists(values, min_size=n, max_size=n)), kind)
    data = pa.table(columns)
    start = draw(st.integers(0, n - 1))
    return data.slice(start)


def plain(value: Any) -> Any:
    """The value as pyarrow's to_pylist gives it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def written(data: Any, how: str, folder: str, size: int) -> Any:
    if how == "memory":
        return Arrow(pa.Table.from_batches(data.to_batches(size)))
    if how == "parquet":
        pa.parquet.write_table(data, f"{folder}/some.parquet", row_group_size=size)
        return Parquet(folder, keep=0)
    write_ipc(data, how, f"{folder}/some.arrow", size)
    return Arrow(f"{folder}/some.arrow")


def write_ipc(data: Any, how: str, sink: Any, size: int) -> None:
    new, compression = how.split()
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "plain" else compression, use_threads=False)
    with getattr(pa.ipc, f"new_{new}")(sink, data.schema, options=options) as writer:
        # A file has one dictionary for all its record batches.
        writer.write_table(data.combine_chunks().unify_dictionaries(), max_chunksize=size)


WAYS = st.sampled_from(["memory", "parquet", "file plain", "stream plain", "file zstd", "stream lz4"])


@law
@given(tables(), WAYS, st.integers(1, 6), st.data())
def test_a_row_is_what_was_written(data: Any, how: str, size: int, draw: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = written(data, how, folder, size)
        assert [plain(row) for row in dataset] == data.to_pylist()
        keys = draw.draw(st.lists(st.integers(-len(dataset), len(dataset) - 1), max_size=9))
        assert same(dataset.__getitems__(keys), [dataset[key] for key in keys])


@law
@given(tables(), WAYS, st.integers(1, 6), st.data())
def test_a_gathered_batch_is_what_its_samples_give(data: Any, how: str, size: int, draw: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset = written(data, how, folder, size)
        keys = draw.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=9))
        found = dataset.__gather__(np.array(keys), np.empty)
        try:
            expected = collate(dataset.__getitems__(keys), np.empty)
        except CollateError:
            assert found is NotImplemented
        else:
            assert found is NotImplemented or same(found, expected)
            if "structs" not in data.column_names:
                assert found is not NotImplemented


@law
@given(tables(), st.sampled_from(["file plain", "stream plain", "file zstd", "stream lz4"]), st.integers(1, 6))
def test_the_messages_of_a_file_are_found(data: Any, how: str, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(data, how, folder, size)
        path = f"{folder}/some.arrow"
        content = Path(path).read_bytes()
        found = find_messages(File(path), lambda start, stop: content[start:stop])
        ahead = look_ahead(File(path))  # as remote files are looked into
        assert str(find_messages(File(path), ahead)) == str(found)
        assert not found.is_file or count_batches(File(path), ahead) == len(found.rows)
        opened: Any = pa.ipc.open_file(path) if how.startswith("file") else pa.ipc.open_stream(path)
        batches = [opened.get_batch(at) for at in range(opened.num_record_batches)] if found.is_file else list(opened)
        assert found.rows.tolist() == [batch.num_rows for batch in batches]
        assert found.compressed.any() == ("plain" not in how)


def damaged(content: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    """Bytes are changed, left out or added, or the rest is cut off; places are fractions of the whole."""
    data = bytearray(content)
    for what, where, value in changes:
        at = int(where * len(data))
        if what == "set":
            data[at : at + 1] = bytes([value])
        elif what == "number":
            data[at : at + 4] = bytes([255] * 3 + [value])
        elif what == "delete":
            del data[at : at + 1 + value % 8]
        elif what == "insert":
            data[at:at] = bytes([value] * (1 + value % 8))
        else:
            del data[at:]
    return bytes(data)


# The second half of the places is at the end, where the metadata is.
WHERE = st.floats(0, 0.999) | st.floats(0.9, 0.999)
WHAT = ("set", "set", "set", "number", "delete", "insert", "cut")
CHANGES = st.lists(st.tuples(st.sampled_from(WHAT), WHERE, st.integers(0, 255)), min_size=1, max_size=4)


def rows_of(content: bytes, kind: Any, remote: bool = False) -> int:
    """How many rows can be read; all other rows, or the file, are errors that name the file."""
    suffix = ".parquet" if kind is Parquet else ".arrow"
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(content)
        file.flush()
        url = f"memory:/{file.name}"
        if remote:
            fsspec.filesystem("memory").pipe(file.name, content)
        errors: list[str] = []
        found = 0
        try:
            dataset = kind(url if remote else file.name)
            for key in range(min(len(dataset), 100)):
                try:
                    dataset[key]
                    found += 1
                except FormatError as error:
                    errors.append(str(error))
        except FormatError as error:
            errors.append(str(error))
    assert all(file.name in error for error in errors)
    return found


def example(how: str) -> bytes:
    """A small file with columns of many types."""
    n = 12
    data = pa.table(
        {
            "n": pa.array(range(n), pa.int32()),
            "flags": [key % 3 == 0 for key in range(n)],
            "ids": pa.array([[key] * (key % 4) for key in range(n)], pa.list_(pa.int16())),
            "pair": pa.array([[key, key] for key in range(n)], pa.list_(pa.float64(), 2)),
            "text": [f"row {key}" * (key % 3) for key in range(n)],
            "maybe": [None if key % 5 == 0 else key for key in range(n)],
            "kind": pa.array([f"k{key % 3}" for key in range(n)]).dictionary_encode(),
            "who": [{"a": key, "b": ["x"] * (key % 3)} for key in range(n)],
        }
    )
    sink = io.BytesIO()
    if how.startswith("parquet"):
        _, compression, version, dictionary = how.split()
        pa.parquet.write_table(
            data,
            sink,
            row_group_size=5,
            compression=compression,
            data_page_version=version,
            use_dictionary=dictionary == "dictionary",
        )
    else:
        write_ipc(data, how, sink, 5)
    return sink.getvalue()


EXAMPLES = {
    how: (Parquet if how.startswith("parquet") else Arrow, example(how))
    for how in (
        "parquet none 1.0 plain",
        "parquet snappy 1.0 dictionary",
        "parquet zstd 2.0 plain",
        "file plain",
        "stream plain",
        "file zstd",
        "stream lz4",
    )
}


@law
@given(st.sampled_from(sorted(EXAMPLES)), CHANGES, st.booleans())
def test_damage_is_an_error_of_its_file(how: str, changes: list[tuple[str, float, int]], remote: bool) -> None:
    kind, content = EXAMPLES[how]
    assert 0 <= rows_of(damaged(content, changes), kind, remote) <= 100


@pytest.mark.parametrize("how", EXAMPLES)
def test_an_example_is_sound(how: str) -> None:
    kind, content = EXAMPLES[how]
    assert rows_of(content, kind) == rows_of(content, kind, remote=True) == 12


FUZZ = """
import random, sys
from laws.test_table_laws import EXAMPLES, WHAT, damaged, rows_of
seed, count = int(sys.argv[1]), int(sys.argv[2])
read = 0
for number in range(seed, seed + count):
    rng = random.Random(number)
    kind, content = EXAMPLES[rng.choice(sorted(EXAMPLES))]
    changes = [
        (rng.choice(WHAT),
         rng.choice([rng.random(), rng.uniform(0.9, 0.999)]), rng.randrange(256))
        for _ in range(rng.choice([1, 1, 2, 4, 16]))
    ]
    print(number, end=" ", flush=True)  # the last one is the one that ends the process
    read += rows_of(damaged(content, changes), kind, rng.random() < 0.5)
print()
"""


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(0, 20_000, 5_000))
def test_no_damage_ends_the_process(seed: int) -> None:
    """In a process of its own: pyarrow's decoders are C++."""
    code = [sys.executable, "-X", "faulthandler", "-c", FUZZ, str(seed), "5000"]
    ran = subprocess.run(code, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert ran.returncode == 0, f"at seed {ran.stdout.split()[-1:]}: {ran.stderr[-3000:]}"
