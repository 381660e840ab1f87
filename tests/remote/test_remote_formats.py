"""Every format from URLs: the samples of local files, with all kinds of workers, and no credentials in sight."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, picture

import penstock
from penstock import DataLoader
from penstock._files import remote as module
from penstock._files.pieces import PiecesInMemory
from penstock._remote import objects
from penstock.cli import main
from penstock.errors import FormatError, RemoteError
from penstock.formats import Arrow, JsonLines, Megatron, Parquet, Tar, TextLines, Tokens
from penstock.formats._chunks import chunks, places
from penstock.image import ImageFolder, Transform
from penstock.records import CaffeLMDB, RecordFile, RecordStream, RecordWriter, write_caffe_lmdb
from remote.serving import Server, serving
from tests.written import plain, write_part

N = 40
SMALL = Transform(resize=(4, 4), dtype="uint8")
CASES: dict[str, Any] = {
    "Tokens": (lambda paths, **more: Tokens(paths, "uint16", 6, 5, **more), ["0.bin", "1.bin"]),
    "Megatron": (Megatron, ["0-documents", "1-documents.idx"]),
    "TextLines": (TextLines, ["0.txt", "1.txt"]),
    "JsonLines": (JsonLines, ["0.jsonl", "1.jsonl"]),
    "Tar": (Tar, ["0.tar", "1.tar"]),
    "Parquet": (Parquet, ["0.parquet", "1.parquet"]),
    "Parquet, columns": (lambda paths, **more: Parquet(paths, ["x"], **more), ["0.parquet", "1.parquet"]),
    "Arrow": (Arrow, ["0.arrow", "1.arrow"]),
    "Arrow, stream": (Arrow, ["0.arrows"]),
    "Arrow, compressed": (Arrow, ["0.feather"]),
    "mixed": (JsonLines, ["local 0.jsonl", "1.jsonl"]),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    rng = np.random.default_rng(0)
    for part in range(2):
        numbers = range(N // 2 * part, N // 2 * part + N // 2)
        n = len(numbers)
        write_part(folder, part, numbers, rng.integers(0, 1000, 5 * n + 1, np.uint16), 5)
        columns = {"ids": list(rng.integers(0, 9, (n, 3))), "x": rng.random(n), "text": [f"row {n}" for n in numbers]}
        table = pa.table({**columns, "nested": [{"a": number} for number in numbers]})
        pa.parquet.write_table(table, folder / f"{part}.parquet", row_group_size=7)
        for end, new in (("arrow", pa.ipc.new_file), ("arrows", pa.ipc.new_stream)):
            with new(folder / f"{part}.{end}", table.schema) as writer:
                for batch in table.to_batches(6):
                    writer.write_batch(batch)
        pyarrow.feather.write_feather(table, folder / f"{part}.feather", "lz4")
    return folder


@pytest.fixture
def served(files: Path) -> Iterator[Server]:
    with serving(files) as server:
        yield server


def both(case: str, files: Path, server: Server, **more: Any) -> tuple[Any, Any]:
    """The dataset of local files, and that of their URLs."""
    make, names = CASES[case]
    local = [files / name.removeprefix("local ") for name in names]
    urls = [str(files / n[6:]) if n.startswith("local ") else f"{server.url}/{n}" for n in names]
    return make(local), make(urls, **more)


@pytest.mark.parametrize("case", CASES)
def test_samples_equal_those_of_local_files(
    case: str, files: Path, served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that samples cross from one to the next. Those of a tar have a header of 512 bytes.
    monkeypatch.setattr(module, "PIECE", 700 if case == "Tar" else 100)
    local, remote = both(case, files, served)
    assert len(local) == len(remote)
    keys = np.random.default_rng(1).permutation(len(local)).tolist()
    assert plain(remote.__getitems__(keys)) == plain(local.__getitems__(keys))
    assert [plain(remote[key]) for key in keys[:5]] == [plain(local[key]) for key in keys[:5]]
    assert remote.blocks.tolist() == local.blocks.tolist()
    assert plain(remote.inspect().first) == plain(local.inspect().first)


def one_by_one(samples: list[Any]) -> list[Any]:
    return samples


@pytest.mark.parametrize(
    "how", [{}, {"multiprocessing_context": "spawn"}, {"backend": "thread"}], ids=["default", "spawn", "threads"]
)
def test_workers_give_the_batches_of_local_files(how: dict[str, Any], files: Path, served: Server) -> None:
    cases = ("Tokens", "Megatron", "Parquet", "Arrow", "Tar", "JsonLines")
    pairs = {case: both(case, files, served) for case in cases}
    local, remote = (penstock.StackDataset(**{case: pair[at] for case, pair in pairs.items()}) for at in (0, 1))
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 4}
    expected = [plain(batch) for batch in penstock.DataLoader(local, **settings)]
    with penstock.DataLoader(remote, num_workers=2, **settings, **how) as loader:
        assert [plain(batch) for batch in loader] == expected


def test_workers_read_no_footer_and_no_size_again(files: Path, served: Server) -> None:
    _, data = both("Parquet", files, served)
    before = len(served.log)
    with penstock.DataLoader(data, batch_size=5, num_workers=2, collate_fn=one_by_one) as loader:
        assert sum(len(batch) for batch in loader) == N
    requests = served.log[before:]
    asked = [tuple(map(int, part.removeprefix("bytes=").split("-"))) for _, _, part in requests]
    footers = {f"/{part}.parquet": footer_of(files / f"{part}.parquet") for part in range(2)}
    assert all(last < footers[path] for (_, path, _), (_, last) in zip(requests, asked, strict=True))


def footer_of(path: Path) -> int:
    content = path.read_bytes()
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def test_a_column_is_read_without_the_others(tmp_path: Path) -> None:
    wide = {"a": np.random.default_rng(0).random(400_000), "b": range(400_000), "c": np.arange(400_000) * 1.5}
    pa.parquet.write_table(pa.table(wide), tmp_path / "x.parquet", compression="none", use_dictionary=False)
    with serving(tmp_path) as server:
        data = Parquet(f"{server.url}/x.parquet", columns=["b"])
        before = len(server.log)
        assert plain(data[399_999]) == {"b": 399_999}
        assert len(server.log) == before + 1
        first, last = map(int, server.log[-1][2].removeprefix("bytes=").split("-"))
        assert 3_200_000 <= last - first < 3_300_000
        two = Parquet(f"{server.url}/x.parquet", columns=["a", "c"])
        assert len(two.ranges(two.file_rows(0))) == 2  # what is between them is not read


def test_the_pieces_of_a_block_are_those_that_reading_it_fetches(files: Path, served: Server) -> None:
    for case in ("Parquet, columns", "Parquet", "Arrow", "Arrow, compressed"):
        _, data = both(case, files, served)
        for block, first in enumerate(data.blocks[:-1].tolist()):
            rows = data.file_rows(block)
            file = data.files[rows.file]
            wanted = [piece for some in data.ranges(rows) for piece in file.pieces_of(*some)]
            fetched: list[Any] = []
            file.pieces = Fetching(fetched)
            data[first]
            assert fetched == wanted


class Fetching:
    """Keeps no pieces, but a list of those that were fetched."""

    def __init__(self, fetched: list[Any]) -> None:
        self._fetched = fetched

    def get(self, piece: Any, fetch: Any) -> memoryview:
        self._fetched.append(piece)
        return memoryview(fetch(piece))

    def found(self, piece: Any) -> None:
        return None


@pytest.mark.parametrize("about", [{}, {"use_dictionary": False, "compression": "zstd", "write_page_index": True}])
def test_the_footer_says_of_columns_what_pyarrow_says(about: Any) -> None:
    table = pa.table(
        {
            "a": range(900),
            "b.c": [{"a": [1], "b": "x"}] * 900,
            "b": [[1.5, None]] * 900,
            "d": pa.array([True] * 900),
            "e": pa.array([b"abc"] * 900, pa.binary(3)),
            "a column with a long name": ["and a long text, which is also in the statistics"] * 900,
            "g": [None, 1.5, -1.5] * 300,
        }
    )
    written = io.BytesIO()
    pa.parquet.write_table(table, written, row_group_size=400, **about)
    content = written.getvalue()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    metadata = pa.parquet.read_metadata(written)
    some = (["e", "b", "d", "a"], [0, 3, 4, 5])
    for columns, numbers in ((["a"], [0]), (["b.c"], [1, 2]), (["b"], [3]), some, (["g"], [7])):
        found = chunks(footer, columns)
        assert len(found) == metadata.num_row_groups == 3
        for group, mine in enumerate(found):
            theirs = [metadata.row_group(group).column(number) for number in numbers]
            assert [chunk.path for chunk in mine] == [chunk.path_in_schema for chunk in theirs]
            assert [chunk.type for chunk in mine] == [chunk.physical_type for chunk in theirs]
            assert [chunk.values for chunk in mine] == [chunk.num_values for chunk in theirs]
            assert [chunk.nbytes for chunk in mine] == [chunk.total_uncompressed_size for chunk in theirs]
            assert [chunk.has_dictionary for chunk in mine] == [chunk.has_dictionary_page for chunk in theirs]
            starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in theirs]
            stops = [start + chunk.total_compressed_size for start, chunk in zip(starts, theirs, strict=True)]
            assert [chunk.extent for chunk in mine] == list(zip(starts, stops, strict=True))
            assert places(found)[group].tolist() == [group, min(starts), max(stops)]


def test_only_the_row_group_and_the_columns_that_are_read_are_parsed() -> None:
    written = io.BytesIO()
    table = pa.table({f"column_{number}": range(40) for number in range(40)})
    pa.parquet.write_table(table, written, row_group_size=1)
    content = written.getvalue()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    chunks(footer, ["column_7"])[0]  # compiles its expressions
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = chunks(footer, ["column_7"])[0]
    finally:
        sys.setprofile(before)
    assert [chunk.path for chunk in found] == ["column_7"]
    assert calls < 5_000, "1,600 chunks, each with more than ten fields"


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_a_footer_of_any_bytes_is_read_or_refused(footer: bytes) -> None:
    try:
        places(chunks(footer, ["a"]))
    except (ValueError, OverflowError):
        pass


def test_opening_parquet_files_takes_two_requests_for_each(files: Path, served: Server) -> None:
    both("Parquet", files, served)
    ranges = [(path, part) for _, path, part in served.log]
    sizes = {f"/{part}.parquet": (files / f"{part}.parquet").stat().st_size for part in range(2)}
    footers = [(path, f"bytes={max(0, size - 65536)}-{size - 1}") for path, size in sizes.items()]
    assert sorted(ranges) == sorted([*footers, *((path, "bytes=0-0") for path in sizes)])


def test_an_index_of_a_remote_file_is_made_once(files: Path, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "served" / "x.txt"
    path.parent.mkdir()
    path.write_text("one\ntwo\n")
    with serving(path.parent) as server:
        assert list(TextLines(f"{server.url}/x.txt", cache=False)) == ["one", "two"]
        assert len(list(cache.iterdir())) == 1
        before = len(server.log)
        data = pickle.loads(pickle.dumps(TextLines(f"{server.url}/x.txt", cache=False)))
        assert [part for _, _, part in server.log[before:]] == ["bytes=0-0"]
        assert data[1] == "two"
        path.write_text("a\nbcdef\n")  # of the same size
        assert list(TextLines(f"{server.url}/x.txt", cache=False)) == ["a", "bcdef"]
        with pytest.raises(FormatError, match="has changed since"):
            pickle.loads(pickle.dumps(data))[0]


def test_a_damaged_remote_file_is_named(files: Path, tmp_path: Path) -> None:
    content = (files / "0.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[:-1])
    (tmp_path / "lies.parquet").write_bytes(content[:-8] + b"\xff\xff\xff\x7fPAR1")
    (tmp_path / "cut.arrow").write_bytes((files / "0.arrow").read_bytes()[:-1])
    (tmp_path / "cut.tar").write_bytes((files / "0.tar").read_bytes()[:1000])
    with serving(tmp_path) as server:
        kinds = {"cut.parquet": Parquet, "lies.parquet": Parquet, "cut.arrow": Arrow, "cut.tar": Tar}
        for name, kind in kinds.items():
            with pytest.raises(FormatError, match=name):
                kind(f"{server.url}/{name}")


def test_a_process_forked_by_wish_says_why_it_cannot_read(files: Path, served: Server) -> None:
    _, data = both("Tokens", files, served, cache=False)  # what is in a cache could be read
    loader = penstock.DataLoader(data, batch_size=5, num_workers=1, multiprocessing_context="fork")
    with loader, pytest.raises(RemoteError, match=r"threads of obstore do not survive a fork.*forkserver"):
        list(loader)


def test_a_forked_process_never_frees_a_store_of_its_parent() -> None:
    freed: list[int] = []

    class Watched(objects.Objects):
        def __del__(self) -> None:  # obstore takes a lock here, which a thread of the parent may have held
            freed.append(os.getpid())

    store = Watched("s3://bucket", "", {"region": "eu-central-1", "skip_signature": True})
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            del store
            code = bool(freed)
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    del store
    assert freed == [os.getpid()]


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl", "deep/d.JSONL", "notes.txt", ".hidden.jsonl", ".git/e.jsonl"):
        system.pipe(f"/bucket/{name}", json.dumps(name).encode())
    yield system
    system.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("memory://bucket", ["a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/d.JSONL"]),
        ("memory://bucket/deep/", ["deep/c.jsonl", "deep/d.JSONL"]),
        ("memory://bucket/*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("memory://bucket/*/[c]*", ["deep/c.jsonl"]),
        ("memory://bucket/**/*.jsonl", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
        (["memory://bucket/b.jsonl", "memory://bucket/[ab]*"], ["a.jsonl", "b.jsonl"]),
    ],
)
def test_a_url_means_a_file_a_folder_or_a_pattern(memory: Any, url: Any, names: list[str]) -> None:
    data = JsonLines(url)
    assert data.paths == [f"memory://bucket/{name}" for name in names]
    assert list(data) == names


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("memory://bucket/none", FileNotFoundError, r"there is no file 'memory://bucket/none', and no"),
        ("memory://bucket/*.rec", FileNotFoundError, r"no file matches the pattern 'memory://bucket/\*.rec'"),
        ("file://host/x.jsonl", ValueError, "three slashes"),
        ("nosuch://x/y.jsonl", RemoteError, "Protocol not known: nosuch"),
    ],
)
def test_nothing_found_says_what_was_looked_for(memory: Any, url: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        JsonLines(url)


def test_a_file_url_is_a_local_file(files: Path) -> None:
    path = files / "0.jsonl"
    assert JsonLines(path.as_uri()).paths == [str(path)]


@pytest.mark.parametrize("url", ["{}/*.jsonl", "{}", "{}/folder/"])
def test_by_http_there_is_no_list_of_files(served: Server, url: str) -> None:
    with pytest.raises(ValueError, match=r"by http there is no list of files\. Name the files"):
        JsonLines(url.format(served.url))


def test_inspect_shows_a_url(files: Path, served: Server, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{served.url}/0.parquet?sig=SECRET", "--samples", "1"]) == 0
    assert capfd.readouterr().out.startswith(f"Parquet: {N // 2} samples, 1 file, 3 blocks of 6 to 7 samples, ")
    assert main(["inspect", f"{served.url}/none.parquet?sig=SECRET"]) == 1
    shown = capfd.readouterr().err
    assert shown.startswith(f"penstock inspect: {served.url}/none.parquet cannot be found") and "SECRET" not in shown


@pytest.mark.parametrize("library", ["obstore", "fsspec"])
def test_a_library_that_is_missing_is_named(library: str) -> None:
    url = "s3://bucket/x.jsonl" if library == "obstore" else "hf://datasets/x/y.jsonl"
    code = f"import sys; sys.modules[{library!r}] = None; import penstock; penstock.open({url!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f'need {library}: pip install ".[remote]"' in ran.stderr.splitlines()[-1]


def test_open_finds_the_format_of_a_url(served: Server) -> None:
    for name, kind in (("0.parquet", Parquet), ("0.arrow", Arrow), ("1.tar", Tar), ("1.jsonl", JsonLines)):
        assert type(penstock.open(f"{served.url}/{name}")) is kind
    assert type(penstock.open(f"{served.url}/0-documents")) is Megatron
    assert len(penstock.open(f"{served.url}/0.bin", dtype="uint16", length=5)) == N // 2


def test_a_folder_of_records_is_opened_by_its_url(memory: Any, tmp_path: Path) -> None:
    for part in range(2):
        with RecordWriter(tmp_path / f"{part}.rec") as writer:
            writer.write(b"%d" % part, id=5 + part)
        for end in ("rec", "idx"):
            memory.pipe(f"/bucket/x/{part}.{end}", (tmp_path / f"{part}.{end}").read_bytes())
    found = penstock.open("memory://bucket/x")
    assert type(found) is RecordFile
    assert [record.data for record in found] == [b"0", b"1"]
    assert found.by_id(6).data == b"1"
    with pytest.raises(ValueError, match=r"x/0\.rec is remote\. Pass the path of a local file for its index"):
        found.save_idx()
    RecordFile("memory://bucket/x/0.rec", idx=False).save_idx(tmp_path / "saved")
    assert (tmp_path / "saved").read_text() == (tmp_path / "0.idx").read_text()
    named = RecordFile("memory://bucket/x/1.rec", idx="memory://bucket/x/1.idx")
    assert named.ids.tolist() == [6]
    stream = RecordStream("memory://bucket/x/1.rec")
    assert [stream.load(extent).data for extent in stream] == [b"1"]


def test_the_folder_of_an_lmdb_is_opened_by_its_url(memory: Any, tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    images = [(np.full((1, 2, 2), number, np.uint8), number) for number in range(3)]
    write_caffe_lmdb(tmp_path / "lmdb", images)
    memory.pipe("/bucket/lmdb/data.mdb", (tmp_path / "lmdb" / "data.mdb").read_bytes())
    memory.pipe("/bucket/lmdb/lock.mdb", bytes(8192))
    for found in (penstock.open("memory://bucket/lmdb"), CaffeLMDB("memory://bucket/lmdb/data.mdb")):
        assert type(found) is CaffeLMDB
        assert [label for _, label in found] == [0, 1, 2]


@pytest.fixture
def photos(tmp_path: Path, memory: Any) -> Path:
    """Class folders, local, and the same in the store as memory://bucket/photos."""
    folder = tmp_path / "photos"
    for n, name in enumerate(["dogs/b.png", "dogs/a.png", "dogs/a/z.png", "cats/x.png", "cats/.hidden.png", "n.txt"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(picture(9, 7, seed=n), "PNG"))
        memory.pipe(f"/bucket/photos/{name}", (folder / name).read_bytes())
    return folder


@pytest.mark.parametrize("files", [{}, {"cache": False}])
def test_folders_of_images_are_read_by_their_url(photos: Path, cache: Path, files: Any) -> None:
    url = "memory://bucket/photos"
    for labels in (True, False):
        local, remote = (ImageFolder(root, SMALL, labels, **files) for root in (photos, url))
        assert remote.paths == local.paths == ["cats/x.png", "dogs/a/z.png", "dogs/a.png", "dogs/b.png"]
        assert remote.classes == local.classes == (("cats", "dogs") if labels else ())
        assert remote.__fingerprint__() == local.__fingerprint__()
        assert (remote.inspect().bytes, remote.inspect().fields) == (local.inspect().bytes, local.inspect().fields)
        expected = [plain(batch) for batch in DataLoader(local, 3, shuffle=True, seed=1)]
        assert [plain(batch) for batch in DataLoader(remote, 3, shuffle=True, seed=1)] == expected
        copied = pickle.loads(pickle.dumps(remote))
        with DataLoader(copied, 3, shuffle=True, seed=1, num_workers=2, backend="thread") as loader:
            assert [plain(batch) for batch in loader] == expected
    assert repr(remote) == f"ImageFolder('{url}', 4 images)"


def test_images_of_a_remote_folder_are_asked_for_once(photos: Path, cache: Path) -> None:
    """The listing has their sizes, and the cache their bytes."""
    images = ImageFolder("memory://bucket/photos", SMALL)
    loader = DataLoader(images, 2)
    for _ in range(2):
        list(loader)
        cached = loader.stats().life.cache
        assert cached is not None
        assert cached.requests == 4


def test_a_list_of_remote_images_may_be_anywhere(photos: Path, memory: Any, tmp_path: Path) -> None:
    text = "dogs/b.png 3\ncats/x.png 4\ncats/none.png 5\n"
    (photos / "list.txt").write_text(text)
    memory.pipe("/bucket/photos/list.txt", text.encode())
    url = "memory://bucket/photos"
    for where in ({"root": f"{url}/list.txt"}, {"root": url, "listing": photos / "list.txt"}):
        images = ImageFolder(**where, transform=SMALL)
        assert images.targets.tolist() == [3, 4, 5]
        assert plain(images[0]) == plain(ImageFolder(photos / "list.txt", SMALL)[0])
        with pytest.raises(FileNotFoundError, match=r"memory://bucket/photos/cats/none\.png"):
            images[2]
    assert len(ImageFolder(photos, SMALL, listing=f"{url}/list.txt")) == 3
    with pytest.raises(FileNotFoundError, match=r"begins with 'dogs/b\.png', but there is no file 'memory://bucket/"):
        ImageFolder("memory://bucket/other", SMALL, listing=photos / "list.txt")


def test_a_folder_of_images_by_http_needs_a_list(photos: Path) -> None:
    with (
        serving(photos) as server,
        pytest.raises(ValueError, match=r"a web server does not list its files\. Pass listing="),
    ):
        ImageFolder(f"{server.url}/", SMALL)


def test_paths_that_the_user_has_changed_are_read(photos: Path) -> None:
    images = ImageFolder("memory://bucket/photos", SMALL)
    images.paths, images.targets = ["dogs/b.png"], np.array([7])
    assert len(images) == 1
    assert images[0][1] == 7
    assert plain(images[0][0]) == plain(ImageFolder(photos, SMALL)[3][0])


def test_an_index_of_a_remote_record_file_is_not_compared_with_all_records(tmp_path: Path, cache: Path) -> None:
    """An index that lacks a record is noticed when the records are read, and not by a download of the whole file."""
    with RecordWriter(tmp_path / "x.rec") as writer:
        for number in range(4):
            writer.write(bytes(10_000), id=number)
    lines = (tmp_path / "x.idx").read_text().splitlines()
    (tmp_path / "x.idx").write_text("\n".join([lines[0], *lines[2:]]))
    with pytest.raises(FormatError, match="it lacks the record at byte"):
        RecordFile(tmp_path / "x.rec")
    with serving(tmp_path) as server:
        found = RecordFile(f"{server.url}/x.rec", cache=False)
        assert len(found) == 3
        with pytest.raises(
            FormatError, match=r"byte 0: .* Or .*x\.idx is not the index of this file: pass idx=False"
        ):
            found[0]
        assert len(found[1].data) == 10_000


SECRET = "hunter2-hunter2"


def test_no_credentials_are_shown_anywhere(files: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    broken = False
    with serving(files, status=lambda path: 403 if broken else 0) as server:
        base = server.url.replace("//", f"//me:{SECRET}@")
        storage = {"client_options": {"default_headers": {"x-token": SECRET}}}
        urls = [f"{base}/{part}.jsonl?X-Amz-Signature={SECRET}" for part in range(2)]
        data = JsonLines(urls, storage=storage)  # keeps pieces in the cache folder
        assert data[0] and server.headers[-1]["x-token"] == SECRET
        data = JsonLines(urls, storage=storage, cache=False)
        with penstock.DataLoader(data, batch_size=4, num_workers=1, collate_fn=one_by_one) as loader:
            next(iter(loader))
            stats = loader.stats()
            seen += [repr(loader.state_dict()), str(stats), str(stats.to_dict()), repr(loader), repr(data)]
        seen += [repr(data.paths), repr(data.inspect()), repr(vars(data))]
        broken = True
        for fails in (
            lambda: pickle.loads(pickle.dumps(data))[0],
            lambda: JsonLines(urls, storage=storage),
            lambda: penstock.open(urls, storage=storage),
            lambda: JsonLines(f"{base}/none-{SECRET}?sig={SECRET}"[:-4] + "*", storage=storage),
            lambda: list(penstock.DataLoader(pickle.loads(pickle.dumps(data)), num_workers=1)),
        ):
            with pytest.raises((RemoteError, ValueError)) as raised:
                fails()
            seen += [*texts(raised.value)]
    seen += capfd.readouterr()
    kept = [each for each in cache.rglob("*") if each.is_file()]
    assert len(kept) > 2
    seen += [os.fsdecode(each.read_bytes()) + each.name for each in kept]
    assert sum(len(text) for text in seen) > 2000
    found = [text for text in seen if SECRET in text.replace(f"none-{SECRET}", "")]
    assert found == []


def texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", []))
        error = error.__cause__ or error.__context__


class Listing(fsspec.AbstractFileSystem):
    """Answers from a list of the folder, as ftp does, until it is told to forget it; the list has other marks."""

    protocol = "listing"
    cachable = False
    content: ClassVar[bytes] = b""
    time: ClassVar[int] = 0

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return [{"name": "host/x.txt", "size": len(self.content), "type": "file", "etag": f"e{self.time}"}]

    def info(self, path: str, **options: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = [{"name": path, "size": len(self.content), "type": "file", "modify": self.time}]
        return self.dircache[path][0]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        return self.content[start:end]


@pytest.mark.parametrize("url", ["listing://host/x.txt", "listing://host/*.txt"])
def test_by_fsspec_a_file_that_is_rewritten_with_the_same_size_is_noticed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("listing", Listing, clobber=True)
    monkeypatch.setattr(module, "PIECE", 8)
    Listing.content, Listing.time = b"one\ntwo\nsix\nten\n", 1
    data = TextLines(url, cache=False)
    data.files[0].pieces = PiecesInMemory()  # the index was made from all pieces
    assert data[0] == "one"
    Listing.content, Listing.time = b"ONE\nTWO\nSIX\nTEN\n", 2
    with pytest.raises(FormatError, match="has changed since"):
        data[3]
    assert list(TextLines(url, cache=False)) == ["ONE", "TWO", "SIX", "TEN"]


def test_urls_that_differ_in_the_query_are_two_files_by_penstock_open(folder: Path) -> None:
    (folder / "x.txt").write_text("line\n")
    with serving(folder) as server:
        assert list(penstock.open([f"{server.url}/x.txt?st=a", f"{server.url}/x.txt?st=b"])) == ["line", "line"]
