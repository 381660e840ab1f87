"""Parquet and Arrow: rows of files by key, blocks that are kept, and errors that name the file."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from same import same

from penstock import DataLoader
from penstock._cache.lru import LruCache
from penstock.errors import CollateError, FormatError
from penstock.formats import Arrow, Parquet

Write = Callable[[Any, Path], Path]


def table(n: int = 20, first: int = 0) -> Any:
    keys = range(first, first + n)
    return pa.table(
        {
            "key": pa.array(keys, pa.int32()),
            "ids": pa.array([[key, key + 1, key + 2] for key in keys], pa.list_(pa.int16())),
            "text": [f"row {key}" for key in keys],
        }
    )


def sample(key: int) -> dict[str, Any]:
    return {
        "key": np.int32(key),
        "ids": np.array([key, key + 1, key + 2], np.int16),
        "text": f"row {key}",
    }


def parquet(data: Any, path: Path) -> Path:
    path = path.with_suffix(".parquet")
    pa.parquet.write_table(data, path, row_group_size=7)
    return path


def ipc(new: Any, compression: str | None = None) -> Write:
    def write(data: Any, path: Path) -> Path:
        path = path.with_suffix(".arrow")
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.OSFile(str(path), "wb") as sink, new(sink, data.schema, options=options) as writer:
            writer.write_table(data, max_chunksize=7)
        return path

    return write


FORMATS: dict[str, tuple[Any, Write]] = {
    "parquet": (Parquet, parquet),
    "file": (Arrow, ipc(pa.ipc.new_file)),
    "stream": (Arrow, ipc(pa.ipc.new_stream)),
    "compressed file": (Arrow, ipc(pa.ipc.new_file, "zstd")),
    "compressed stream": (Arrow, ipc(pa.ipc.new_stream, "lz4")),
    "in memory": (lambda data, *args: Arrow(data, *args), lambda data, path: data),
}


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> tuple[Any, Write]:
    return FORMATS[request.param]


def batch(dataset: Any, keys: list[int]) -> Any:
    return dataset.__gather__(np.array(keys), np.empty)


def test_a_row_is_a_dict(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"))
    assert len(dataset) == 20
    assert same([dataset[key] for key in (0, 6, 7, 19, -1)], [sample(key) for key in (0, 6, 7, 19, 19)])
    assert same(list(dataset), [sample(key) for key in range(20)])
    assert same(dataset.__getitems__([13, 2, -20, 13]), [sample(key) for key in (13, 2, 0, 13)])
    with pytest.raises(IndexError, match="key 20 is not in a"):
        dataset[20]


def test_a_batch_is_gathered_from_several_blocks(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"))
    keys = [13, 2, 14, 19, 13, 0]
    expected = {
        "key": np.array(keys, np.int32),
        "ids": np.array([[key, key + 1, key + 2] for key in keys], np.int16),
        "text": [f"row {key}" for key in keys],
    }
    assert same(batch(dataset, keys), expected)


def test_copies_have_a_cache_of_their_own(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"))
    assert same(dataset[3], sample(3))
    for made in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert 0 in dataset._kept and 0 not in made._kept
        assert same(made[3], sample(3))


def test_columns_are_chosen_in_the_order_given(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"), ["text", "key"])
    assert dataset.columns == ["text", "key"]
    assert list(dataset[3]) == ["text", "key"]
    assert same(dataset[3], {"text": "row 3", "key": np.int32(3)})


def test_a_column_that_is_not_there_is_named(form: tuple[Any, Write], tmp_path: Path) -> None:
    made = form[1](table(), tmp_path / "some")
    with pytest.raises(FormatError, match=r"has no column 'label'\. It has 'key', 'ids', 'text'\."):
        form[0](made, ["key", "label"])
    with pytest.raises(ValueError, match="columns must name at least one column"):
        form[0](made, [])
    with pytest.raises(TypeError, match=r"Pass \['key'\]"):
        form[0](made, "key")
    with pytest.raises(TypeError, match="columns must be a list of names, but 3 is not a name"):
        form[0](made, 3)


def test_blocks_are_row_groups_and_record_batches(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"))
    last = [0, 20] if form[0] is not Parquet and form[0] is not Arrow else [0, 7, 14, 20]
    assert dataset.blocks.tolist() == last


def test_a_pickled_dataset_reads_the_same(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"))
    dataset[0]
    again = pickle.loads(pickle.dumps(dataset))
    assert same(list(again), [sample(key) for key in range(20)])


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    parquet(table(5, 10), tmp_path / "b")
    parquet(table(10), tmp_path / "a")
    parquet(table(1).slice(1), tmp_path / "empty")
    dataset = Parquet(tmp_path)
    assert same(list(dataset), [sample(key) for key in range(15)])
    assert dataset.blocks.tolist() == [0, 7, 10, 15]
    assert repr(dataset) == "Parquet(3 files, 15 samples)"
    assert [os.path.basename(path) for path in dataset.paths] == ["a.parquet", "b.parquet", "empty.parquet"]


def test_footers_of_many_files_are_read_by_threads_that_end(tmp_path: Path) -> None:
    for number in range(20):
        parquet(table(3, 3 * number), tmp_path / f"{number:02}")
    before = threading.active_count()
    dataset = Parquet(tmp_path)
    assert threading.active_count() == before
    assert same(list(dataset), [sample(key) for key in range(60)])


def test_a_footer_is_freed_when_it_is_read(tmp_path: Path) -> None:
    path = parquet(table(20), tmp_path / "one")
    gc.collect()
    gc.disable()
    try:
        dataset = Parquet(path)
        assert [each for each in gc.get_objects() if isinstance(each, pa.parquet.FileMetaData)] == []
    finally:
        gc.enable()
    assert len(dataset) == 20


def test_a_large_footer_is_kept_as_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats._parquet._LARGE", 0)
    path = parquet(table(), tmp_path / "some")
    assert same(list(Parquet(path)), [sample(key) for key in range(20)])
    monkeypatch.setattr("penstock.formats._parquet._described", None)  # so that it cannot be made again
    assert same(list(Parquet(path)), [sample(key) for key in range(20)])


def test_inspect_tells_the_columns_and_the_blocks(form: tuple[Any, Write], tmp_path: Path) -> None:
    found = form[0](form[1](table(), tmp_path / "some")).inspect(1)
    assert [(field.name, field.dtype, field.shape) for field in found.fields] == [
        ("key", "int32", ()),
        ("ids", "int16[any]", (3,)),
        ("text", "str", None),
    ]
    assert found.samples == 20
    assert same(found.first, (sample(0),))


# Several files.


def test_a_column_that_only_one_file_has_is_named_with_both(tmp_path: Path) -> None:
    one, two = parquet(table(), tmp_path / "a"), parquet(table().drop(["ids"]), tmp_path / "b")
    with pytest.raises(FormatError) as raised:
        Parquet([one, two])
    assert str(raised.value).startswith(f"{two} has no column 'ids', which {one} has. It has 'key', 'text'.")
    with pytest.raises(FormatError, match=r"a\.parquet has the column 'ids', which .*0\.parquet does not have"):
        Parquet([one, parquet(table().drop(["ids"]), tmp_path / "0")])
    assert len(Parquet([one, two], columns=["key"])) == 40


def test_a_column_of_two_types_is_named_with_both_files(tmp_path: Path) -> None:
    other = table().set_column(0, "key", pa.array([str(key) for key in range(20)]))
    for write, kind in ((parquet, Parquet), (ipc(pa.ipc.new_file), Arrow)):
        one, two = write(table(), tmp_path / "a"), write(other, tmp_path / "b")
        with pytest.raises(FormatError) as raised:
            kind([one, two])
        assert str(raised.value).startswith(f"the column 'key' is int32 in {one}, but str in {two}. ")
        assert len(kind([one, two], columns=["text"])) == 40


def test_types_that_give_the_same_values_may_be_mixed(tmp_path: Path) -> None:
    large = table().set_column(2, "text", pa.array([f"row {key}" for key in range(20)], pa.large_string()))
    required = pa.schema([pa.field("key", pa.int32(), nullable=False), *list(table().schema)[1:]])
    files = [
        parquet(table(), tmp_path / "a"),
        parquet(large, tmp_path / "b"),
        parquet(table().cast(required), tmp_path / "c"),
        parquet(table().set_column(2, "text", table()["text"].dictionary_encode()), tmp_path / "d"),
    ]
    assert same(list(Parquet(files)), [sample(key) for key in range(20)] * 4)


def test_writers_may_give_the_field_of_a_list_different_names(tmp_path: Path) -> None:
    for name, compliant in (("a", True), ("b", False)):
        data = pa.table({"words": [["x", "y"]], "pairs": [{"one": [["x"]]}]})
        pa.parquet.write_table(data, tmp_path / f"{name}.parquet", use_compliant_nested_type=compliant)
    kinds = [pa.parquet.read_schema(path).field("words").type for path in sorted(tmp_path.iterdir())]
    assert list(map(str, kinds)) == ["list<element: string>", "list<item: string>"]
    dataset = Parquet(tmp_path)
    assert list(dataset) == 2 * [{"words": ["x", "y"], "pairs": {"one": [["x"]]}}]
    assert [field.dtype for field in dataset.inspect().fields] == ["list<str>", "{one: list<list<str>>}"]


def test_a_column_may_be_all_null_in_one_of_the_files(tmp_path: Path) -> None:
    """pandas writes such a column with the type null."""
    nothing = pa.table({"x": pa.nulls(2), "y": [1, 2]})
    one, two = parquet(nothing, tmp_path / "a"), parquet(pa.table({"x": ["a"], "y": [3]}), tmp_path / "b")
    for files in ([one, two], [two]):
        dataset = Parquet(files)
        assert dataset[-1] == {"x": "a", "y": 3}
    dataset = Parquet([one, two])
    assert [row["x"] for row in dataset] == [None, None, "a"]
    assert batch(dataset, [2, 0]) is NotImplemented
    assert batch(dataset, [0, 2]) is NotImplemented


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    double = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(FormatError, match="the table: the column 'x' occurs twice"):
        Arrow(double)


def test_a_file_without_columns_is_refused(tmp_path: Path) -> None:
    with pa.ipc.new_file(tmp_path / "some.arrow", pa.schema([])):
        pass
    with pytest.raises(FormatError, match=r"some.arrow has no columns, so its rows hold nothing"):
        Arrow(tmp_path / "some.arrow")


# What is kept.


def reads(dataset: Any) -> list[int]:
    """Notes the blocks that are read from now on."""
    found: list[int] = []
    read = dataset._read

    def noted(block: int) -> Any:
        found.append(block)
        return read(block)

    dataset._read = noted
    return found


def test_a_row_group_is_read_once_for_all_keys_of_a_step(tmp_path: Path) -> None:
    dataset = Parquet(parquet(table(), tmp_path / "some"), keep=0)
    found = reads(dataset)
    dataset.__getitems__([0, 19, 8, 1, 18, 9, 2])
    assert sorted(found) == [0, 1, 2]
    found.clear()
    batch(dataset, [0, 19, 8, 1, 18, 9, 2])
    assert sorted(found) == [0, 1]  # the last one of before is kept, and is used first


def test_row_groups_are_kept_up_to_a_number_of_bytes(tmp_path: Path) -> None:
    path = parquet(table(), tmp_path / "some")
    group = pa.parquet.ParquetFile(path).read_row_group(0).nbytes
    dataset = Parquet(path, keep=2 * group + group // 2)
    found = reads(dataset)
    for key in (0, 7, 0, 14, 0, 7):  # 7 was used less recently than 0, and makes room for 14
        dataset[key]
    assert found == [0, 1, 2, 1]


def test_by_blocks_each_row_group_is_read_once_in_an_epoch_if_the_window_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    pa.parquet.write_table(pa.table({"x": range(1200)}), path, row_group_size=40)
    group = pa.parquet.ParquetFile(path).read_row_group(0).nbytes
    dataset = Parquet(path, keep=6 * group)
    found = reads(dataset)
    loader = DataLoader(dataset, 20, shuffle="blocks", window=6, seed=1)
    for _ in range(2):
        rows = [row for batch in loader for row in batch["x"].tolist()]
        assert sorted(rows) == list(range(1200))
    assert sorted(found[:30]) == list(range(30))
    assert len(set(found[30:])) == len(found[30:])  # some of the first epoch are still kept


def test_a_random_order_over_row_groups_that_are_not_kept_warns_once(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    pa.parquet.write_table(pa.table({"x": range(400)}), path, row_group_size=40)
    dataset = Parquet(path, keep=0)
    in_sequence = [dataset[key]["x"] for _ in range(7) for key in range(400)]
    assert len(in_sequence) == 2800
    assert dataset._kept.dropped > 64
    dataset = Parquet(path, keep=0)
    with pytest.warns(UserWarning, match=r"Parquet decodes 1\.0 row groups for each row that is read") as caught:
        assert [dataset[40 * (key % 10)]["x"] for key in range(200)] == list(range(0, 400, 40)) * 20
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("keep", [-1, 1.5, True, "1 GB"])
def test_keep_is_a_number_of_bytes(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ValueError, match="keep must be a whole number of bytes, such as 10"):
        Parquet(parquet(table(), tmp_path / "some"), keep=keep)


def test_threads_that_need_the_same_block_read_it_once() -> None:
    kept: LruCache[str] = LruCache(10)
    begun, may_end = threading.Event(), threading.Event()
    calls: list[int] = []

    def read(number: int) -> tuple[str, int]:
        calls.append(number)
        begun.set()
        assert may_end.wait(10)
        return f"block {number}", 1

    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(kept.get(3, read))) for _ in range(3)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()
    assert (found, calls) == (["block 3"] * 3, [3])


def test_blocks_that_were_needed_a_moment_ago_take_no_room_of_others() -> None:
    kept: LruCache[int, int] = LruCache(2)
    found: list[int] = []

    def read(number: int) -> tuple[int, int]:
        found.append(number)
        return number, 1

    kept.needed = {0, 1, 2}
    for number in (0, 1, 2, 7, 8, 7, 8, 9, 8, 0):
        kept.get(number, read)
    assert found == [0, 1, 2, 7, 8, 9]
    kept.needed = set()
    kept.get(5, read)
    assert [number for number in range(10) if number in kept] == [0, 5]


def test_a_block_that_cannot_be_read_is_tried_again() -> None:
    kept: LruCache[str] = LruCache(10)
    with pytest.raises(OSError, match="for now"):
        kept.get(0, lambda number: (_ for _ in ()).throw(OSError("for now")))
    assert kept.get(0, lambda number: ("there", 1)) == "there"


def test_a_forked_child_is_not_stopped_by_a_lock_of_its_parent() -> None:
    kept: LruCache[str] = LruCache(10)
    begun, may_end = threading.Event(), threading.Event()

    def read(number: int) -> tuple[str, int]:
        begun.set()
        assert may_end.wait(60)
        return "parent", 1

    thread = threading.Thread(target=lambda: kept.get(0, read))
    thread.start()
    assert begun.wait(10)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends a child that waits for the lock
        os._exit(0 if kept.get(0, lambda number: ("child", 1)) == "child" else 1)
    status = os.waitpid(child, 0)[1]
    may_end.set()
    thread.join()
    assert status == 0


# In a loader.


def test_rows_of_several_lengths_are_named_by_the_error(tmp_path: Path) -> None:
    ragged = pa.table({"ids": [[1, 2], [3], [4, 5], [6, 7]]})
    dataset = Parquet(parquet(ragged, tmp_path / "some"))
    with pytest.raises(CollateError, match=r"sample\['ids'\]: .*shape"):
        next(iter(DataLoader(dataset, batch_size=4)))
    assert same(next(iter(DataLoader(dataset, 2, sampler=[0, 2])))["ids"], np.array([[1, 2], [4, 5]]))


def test_a_null_is_named_by_the_error(tmp_path: Path) -> None:
    dataset = Parquet(parquet(pa.table({"x": [1, None, 3]}), tmp_path / "some"))
    with pytest.raises(CollateError, match=r"sample\['x'\]: .*NoneType") as raised:
        next(iter(DataLoader(dataset, batch_size=3)))
    assert "row 1 is sample 1" in raised.value.__notes__[0]


def test_columns_that_are_no_arrays_are_collated_from_the_samples(tmp_path: Path) -> None:
    who = pa.struct([("n", pa.int64()), ("at", pa.list_(pa.float64()))])  # older releases infer another order
    rows = pa.array([{"n": 1, "at": [0.5, 1.5]}, {"n": 2, "at": [2.5, 3.5]}], who)
    data = pa.table({"who": rows, "y": [7, 8]})
    found = next(iter(DataLoader(Parquet(parquet(data, tmp_path / "some")), batch_size=2)))
    expected = {"who": {"n": np.array([1, 2]), "at": np.array([[0.5, 1.5], [2.5, 3.5]])}, "y": np.array([7, 8])}
    assert same(found, expected)


def test_numbers_are_converted_on_the_way(form: tuple[Any, Write], tmp_path: Path) -> None:
    dataset = form[0](form[1](table(), tmp_path / "some"))
    (found,) = DataLoader(dataset, batch_size=20, dtype={"ids": "float32"})
    assert same(found["ids"], np.array([[key, key + 1, key + 2] for key in range(20)], np.float32))
    assert found["key"].dtype == np.int32
    with pytest.raises(CollateError, match="dtype= names the field 'text', which is text"):
        next(iter(DataLoader(dataset, batch_size=20, dtype={"text": "float32"})))
    with pytest.raises(CollateError, match="dtype= names the field 'label'"):
        next(iter(DataLoader(dataset, batch_size=20, dtype={"label": "float32"})))


def test_a_subclass_with_a_transform_is_asked_for_each_row(tmp_path: Path) -> None:
    class Texts(Parquet):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key)["text"].upper()

    (found,) = DataLoader(Texts(parquet(table(3), tmp_path / "some")), batch_size=3)
    assert found == ["ROW 0", "ROW 1", "ROW 2"]


# Damage.


def damaged(path: Path, at: int, to: bytes) -> Path:
    content = bytearray(path.read_bytes())
    content[at : at + len(to)] = to
    path.write_bytes(content)
    return path


def test_a_file_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    for content in (b"", b"PAR1", b"not a table at all, but text", b"PAR1" + bytes(40) + b"PARX"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"some\.parquet is not a Parquet file"):
            Parquet(path)
    path.write_bytes(b"PARE" + bytes(40) + b"PARE")
    with pytest.raises(FormatError, match=r"some\.parquet is an encrypted Parquet file"):
        Parquet(path)


def test_a_parquet_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = parquet(table(), tmp_path / "some")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError, match=rf"cut off: its {len(content) // 2:,} bytes end in b'.*', not in PAR1"):
        Parquet(path)


@pytest.mark.parametrize("length", [0, 1, 2**31 - 1, 2**32 - 1])
def test_a_footer_that_lies_about_its_length_is_an_error(tmp_path: Path, length: int) -> None:
    path = parquet(table(), tmp_path / "some")
    damaged(path, path.stat().st_size - 8, length.to_bytes(4, "little"))
    with pytest.raises(FormatError, match=r"the footer of .*some\.parquet cannot be read"):
        Parquet(path)


def test_a_footer_that_names_too_many_rows_is_noticed_when_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    pa.parquet.write_table(pa.table({"x": range(20)}), path)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    rows, more = b"\x16\x28", b"\x16\x2a"  # Thrift's way to write a field of 20, and of 21
    path.write_bytes(content[:start] + content[start:].replace(rows, more))
    dataset = Parquet(path)
    assert len(dataset) == 21
    with pytest.raises(FormatError, match=r"row group 0 cannot be read .*it has 20 rows, but 21 were expected"):
        dataset[0]


def test_a_footer_of_another_file_is_noticed_when_rows_are_read(tmp_path: Path) -> None:
    """It says that row groups have other rows, at other places."""
    one, other = parquet(table(), tmp_path / "one"), parquet(table(300), tmp_path / "other")
    one.write_bytes(one.read_bytes()[:-100] + other.read_bytes())
    dataset = Parquet(one)
    assert len(dataset) == 300
    errors: dict[int, str] = {}
    for key in range(300):
        try:
            dataset[key]
        except FormatError as error:
            errors[key] = str(error)
    assert len(errors) > 250
    where = {key: f"{one}, row group {key // 7} cannot be read (" for key in errors}
    assert all(errors[key].startswith(where[key]) for key in errors)


def test_a_row_group_that_cannot_be_decoded_is_named_and_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    pa.parquet.write_table(table(), path, row_group_size=7, write_page_checksum=True)
    at = pa.parquet.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    damaged(path, at + 20, b"\xff\xff\xff\xff")
    dataset = Parquet(path)
    assert same(dataset[0], sample(0))
    assert same(dataset[19], sample(19))
    with pytest.raises(FormatError, match=r"some\.parquet, row group 1 cannot be read \(\w+: .*on_error=\"skip\"\.$"):
        dataset[7]


def test_an_arrow_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        path = ipc(new)(table(), tmp_path / "some")
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(FormatError, match=r"some\.arrow, byte [\d,]+: .*(cut off|the file ends|cannot be read)"):
            Arrow(path)


@pytest.mark.parametrize("rows", [7, 20])
def test_a_footer_that_names_other_batches_than_the_file_has_is_refused(tmp_path: Path, rows: int) -> None:
    path = ipc(pa.ipc.new_file)(table(14), tmp_path / "some")
    other = ipc(pa.ipc.new_file)(table(rows), tmp_path / "other").read_bytes()
    content = path.read_bytes()
    footers = [len(each) - 10 - int.from_bytes(each[-10:-6], "little") for each in (content, other)]
    path.write_bytes(content[: footers[0]] + other[footers[1] :])
    with pytest.raises(FormatError, match=rf"some\.arrow .*its footer names {-(-rows // 7)} record .* are 2"):
        Arrow(path)


def test_a_stream_that_is_cut_off_in_its_last_batch_is_named(tmp_path: Path) -> None:
    path = ipc(pa.ipc.new_stream)(table(), tmp_path / "some")
    content = path.read_bytes()
    path.write_bytes(content[:-16])  # the end of the stream, and the last bytes of the batch
    with pytest.raises(FormatError, match=r"a message of [\d,]+ bytes begins here, but the file ends at byte "):
        Arrow(path)
    path.write_bytes(content[:-8])  # without the end, which is optional
    assert same(list(Arrow(path)), [sample(key) for key in range(20)])


@pytest.mark.parametrize("content", [b"", b"\x01", b"not a table at all, but text", bytes(100), b"ARROW1\0\0ARROW1"])
def test_a_file_that_is_no_arrow_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.arrow"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"some\.arrow"):
        Arrow(path)


def test_feather_v2_is_read_and_v1_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.feather"
    pa.feather.write_feather(table(), path)
    assert same(list(Arrow(path)), [sample(key) for key in range(20)])
    path.write_bytes(b"FEA1" + bytes(40) + b"FEA1")
    with pytest.raises(FormatError, match="Feather V1"):
        Arrow(path)


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_categories_are_read_from_files_and_streams(tmp_path: Path, new: Any) -> None:
    """In a stream a dictionary may be extended or replaced by a later one."""
    path = tmp_path / "some.arrow"
    batches = [pa.record_batch({"x": pa.array(list(text)).dictionary_encode()}) for text in ("abab", "abcc", "abcd")]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.OSFile(str(path), "wb") as sink, new(sink, batches[0].schema, options=options) as writer:
        for each in batches:
            writer.write_batch(each)
    assert [row["x"] for row in Arrow(path)] == list("abababccabcd")
    assert Arrow(path)[10] == {"x": "c"}


def test_a_stream_may_replace_its_dictionaries(tmp_path: Path) -> None:
    path = tmp_path / "some.arrow"
    batches = [pa.record_batch({"x": pa.array(list(text)).dictionary_encode()}) for text in ("ab", "xy", "ab")]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for each in batches:
            writer.write_batch(each)
    dataset = Arrow(path)
    assert [dataset[key]["x"] for key in (5, 2, 0, 3, 1, 4)] == ["b", "x", "a", "y", "b", "a"]


def test_a_file_that_has_changed_is_an_error(tmp_path: Path) -> None:
    path = parquet(table(), tmp_path / "some")
    again = pickle.dumps(Parquet(path))
    parquet(table(30), tmp_path / "some")
    with pytest.raises(FormatError, match="has changed since the dataset was made"):
        pickle.loads(again)[0]


# Processes.


def test_a_table_in_memory_travels_out_of_band() -> None:
    data = pa.table({"x": np.arange(100_000)}).slice(10, 50_000)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(Arrow(data), 5, buffer_callback=buffers.append)
    assert len(stream) < 5_000
    assert 400_000 <= max(buffer.raw().nbytes for buffer in buffers) < 410_000
    again = pickle.loads(stream, buffers=buffers)
    assert again[7] == {"x": np.int64(17)}
    assert len(again) == 50_000


ALONE = """
import os, sys
from penstock import DataLoader
from penstock.backends._process.methods import choose_method
from penstock.formats import Arrow, Parquet

for path in sys.argv[1:]:
    dataset = (Parquet if path.endswith("parquet") else Arrow)(path)
    before = [dataset[key] for key in range(20)], dataset.__getitems__(range(20))
    assert choose_method(None) == "fork", open("/proc/self/comm").read()
    with DataLoader(dataset, batch_size=5, num_workers=2) as loader:
        found = [key for batch in loader for key in batch["key"].tolist()]
    assert found == list(range(20)), found
print("read")
"""


def test_workers_can_be_forked_after_the_parent_has_read(tmp_path: Path) -> None:
    """pyarrow's own threads would forbid it: none of them may have been started."""
    paths = [write(table(), tmp_path / f"{at}") for at, (_, write) in enumerate(list(FORMATS.values())[:5])]
    ran = subprocess.run([sys.executable, "-c", ALONE, *paths], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "read\n", "")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from penstock.formats import Arrow, HuggingFace, Parquet\n"
        "for kind in (Arrow, HuggingFace, Parquet):\n"
        "    try: kind('x')\n"
        "    except ImportError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert [line.partition(":")[0] for line in ran.stdout.splitlines()] == [
        "Arrow needs pyarrow",
        "HuggingFace needs pyarrow",
        "Parquet needs pyarrow",
    ], ran.stderr


@pytest.mark.parametrize("nested", [False, True])
def test_times_with_and_without_a_zone_do_not_mix(tmp_path: Path, nested: bool) -> None:
    def write(name: str, zone: str | None) -> None:
        kind = pa.timestamp("us", tz=zone)
        values = pa.array([[0], [1]], pa.list_(kind)) if nested else pa.array([0, 1], kind)
        pa.parquet.write_table(pa.table({"when": values}), tmp_path / f"{name}.parquet")

    write("a", "UTC")
    write("b", "Europe/Berlin")  # the same instants
    assert len(Parquet(tmp_path)) == 4
    write("c", None)
    with pytest.raises(FormatError, match=r"'when' is UTC datetime64\[us\].* in .*a\.parquet, but datetime64\[us\]"):
        Parquet(tmp_path)
