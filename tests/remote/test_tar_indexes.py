"""Remote tars with an index beside them: only what is needed is downloaded."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from penstock import DataLoader, cli
from penstock._remote import store
from penstock._remote.retry import Patience
from penstock._tools import index as indexing
from penstock.errors import RemoteError
from penstock.formats import Tar, UncountedTar
from penstock.formats._beside import NAME
from remote.serving import Handler, Server, running

SAMPLES, SHARDS = 20, 5


def write(folder: Path) -> None:
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                info = tarfile.TarInfo(f"{number:06}.cls")
                content = b"%d" % number
                info.size = len(content)
                archive.addfile(info, BytesIO(content))


def forget(cache: Path) -> None:
    """Another machine: nothing is kept."""
    for path in cache.rglob("*"):
        if path.is_file():
            path.unlink()


def shards_of(server: Server) -> set[str]:
    """The shards of which more than a few bytes were asked for."""
    found = set()
    for _, path, ranged in server.log:
        first, _, last = ranged.removeprefix("bytes=").partition("-")
        if path.endswith(".tar") and last and int(last) - int(first) > 600:
            found.add(path.rpartition("/")[2])
    return found


def order(**settings: Any) -> list[int]:
    with DataLoader(shuffle="blocks", window=2, seed=3, batch_size=4, **settings) as loader:
        return [number for batch in loader for number in batch["cls"].tolist()]


def test_with_an_index_beside_them_only_the_shards_that_are_read_are_downloaded(
    folder: Path, server: Server, cache: Path
) -> None:
    write(folder)
    urls = f"{server.url}/{{0..{SHARDS - 1}}}.tar"
    wanted = order(dataset=Tar(urls))
    assert len(shards_of(server)) == SHARDS
    assert cli.main(["index", str(folder)]) == 0  # as whoever uploads them does
    forget(cache)
    server.log.clear()
    data = Tar(urls)
    assert len(data) == SHARDS * SAMPLES and shards_of(server) == set()
    assert data[2 * SAMPLES]["cls"] == 2 * SAMPLES and shards_of(server) == {"2.tar"}
    assert order(dataset=data) == wanted == order(dataset=Tar(urls), num_workers=2)


def test_with_an_index_of_wids_a_shard_is_downloaded_when_a_sample_of_it_is_read(
    folder: Path, server: Server, cache: Path
) -> None:
    write(folder)
    urls = [f"{server.url}/{shard}.tar" for shard in range(SHARDS)]
    wanted = order(dataset=Tar(urls))
    listed = [{"url": f"{shard}.tar", "nsamples": SAMPLES} for shard in range(SHARDS)]
    (folder / "wids-meta.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    forget(cache)
    server.log.clear()
    data = Tar(urls)
    assert len(data) == SHARDS * SAMPLES and shards_of(server) == set()
    assert data[2 * SAMPLES]["cls"] == 2 * SAMPLES and shards_of(server) == {"2.tar"}
    assert order(dataset=data, num_workers=2) == wanted == order(dataset=Tar(urls))


class Bucket(Handler):
    """Also takes files."""

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if status := self.server.status(self.path):
            return self.answer(status, b"<Error><Code>AccessDenied</Code></Error>")
        (self.server.folder / self.path.partition("?")[0].lstrip("/")).write_bytes(content)
        return self.answer(200, b"", {"ETag": '"new"'})


@pytest.fixture
def bucket(folder: Path) -> Iterator[Server]:
    """A bucket of S3."""
    (folder / "bucket").mkdir()
    with Server(folder) as server, running(server):
        server.RequestHandlerClass = Bucket
        yield server


def test_the_command_writes_the_index_into_the_bucket(
    folder: Path, bucket: Server, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "bucket")
    storage = {"endpoint": bucket.url, "skip_signature": True}
    urls = [f"s3://bucket/{shard}.tar" for shard in range(SHARDS)]
    options = ["--storage", f"endpoint={bucket.url}", "--storage", "skip_signature=true"]
    assert cli.main(["index", *urls, *options]) == 0
    assert capsys.readouterr().out.startswith(f"s3://bucket/{NAME}: {SHARDS} tars with {SHARDS * SAMPLES} samples")
    assert (folder / "bucket" / NAME).stat().st_size < 2000
    forget(cache)
    bucket.log.clear()
    assert len(Tar(urls, storage=storage)) == SHARDS * SAMPLES
    # The ETag is in the index: not one byte of the shards is read.
    assert not [path for method, path, _ in bucket.log if method == "GET" and path.endswith(".tar")]


def test_an_index_that_cannot_be_written_there_is_written_here(
    folder: Path, bucket: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "bucket")
    bucket.status = lambda path: 403 if path.endswith(NAME) else 0  # also for who asks if it is there
    monkeypatch.chdir(tmp_path)
    storage = {"endpoint": bucket.url, "skip_signature": True}
    urls = [f"s3://bucket/{shard}.tar" for shard in range(SHARDS)]
    assert indexing.run(urls, None, storage) == 1
    printed = capsys.readouterr()
    assert f"s3://bucket/{NAME} cannot be written" in printed.err and f"index='{tmp_path / NAME}'" in printed.err
    assert len(Tar(urls, index=tmp_path / NAME, storage=storage)) == SHARDS * SAMPLES


def test_of_a_web_server_the_index_is_written_here(
    folder: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["index", f"{server.url}/{{0..{SHARDS - 1}}}.tar"]) == 1
    assert f"copy it to {server.url}/{NAME}" in capsys.readouterr().err and (tmp_path / NAME).exists()


def test_the_command_writes_through_fsspec(cache: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    (tmp_path / "local").mkdir()
    write(tmp_path / "local")
    system = fsspec.filesystem("memory")
    for path in (tmp_path / "local").iterdir():
        system.pipe_file(f"/shards/{path.name}", path.read_bytes())
    try:
        assert cli.main(["index", "memory://shards/"]) == 0
        assert system.exists(f"/shards/{NAME}")
        assert len(Tar("memory://shards/")) == SHARDS * SAMPLES
    finally:
        system.rm("/shards", recursive=True)


def test_an_outage_is_not_taken_for_a_missing_index(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks may find it, and would have other blocks."""
    write(folder)
    monkeypatch.setattr(store, "FINDING", Patience(seconds=0.0))
    server.status = lambda path: 503 if path.endswith(".json") else 0
    with pytest.raises(RemoteError, match=r"\.json cannot be found: the server answered 503"):
        Tar(f"{server.url}/0.tar")


def test_uncounted_tars_are_read_as_they_are_needed(folder: Path, server: Server) -> None:
    """The first batch needs the shards of the window; some more are read ahead."""
    for shard in range(40):
        with tarfile.open(folder / f"{shard:02}.tar", "w") as archive:
            for number in range(3):
                info = tarfile.TarInfo(f"{number}.cls")
                info.size = 4
                archive.addfile(info, BytesIO(b"%4d" % (100 * shard + number)))
    data = UncountedTar(f"{server.url}/{{00..39}}.tar")
    assert shards_of(server) == set()
    with DataLoader(data, 4, sampler=data.sampler(window=4), seed=0, prefetch_factor=1, num_workers=1) as loader:
        batches = iter(loader)
        found = next(batches)["cls"].tolist()
        assert len(shards_of(server)) < 25
        found += [number for batch in batches for number in batch["cls"].tolist()]
    assert sorted(found) == [100 * shard + number for shard in range(40) for number in range(3)]


STRANGER = """
import sys
from penstock.formats import Tar
if __name__ == "__main__":
    data = Tar(sys.argv[1] + "/train-{000..011}.tar", decode=False)
    print("samples:", len(data))
"""


def test_a_stranger_is_told_before_the_shards_are_read_and_sees_a_bar(
    folder: Path, server: Server, tmp_path: Path
) -> None:
    """In a real terminal: what Tar does, how much that is, and both ways out, before the first shard is read."""
    for shard in range(12):
        with tarfile.open(folder / f"train-{shard:03}.tar", "w") as tar:
            info = tarfile.TarInfo(f"{shard}.bin")
            info.size = 6 << 20
            tar.addfile(info, BytesIO(bytes(info.size)))
    server.latency = 0.2
    (tmp_path / "stranger.py").write_text(STRANGER)
    ours, theirs = pty.openpty()
    command = [sys.executable, tmp_path / "stranger.py", server.url]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as program:
        os.close(theirs)
        said, until, read_when_told = b"", time.monotonic() + 100, -1
        try:
            while time.monotonic() < until:
                said += os.read(ours, 65536)
                if b"UncountedTar" in said and read_when_told < 0:
                    read_when_told = sum(int(each.rpartition("-")[2] or 0) > 1 << 20 for _, _, each in server.log)
        except OSError:  # the program has ended
            pass
        finally:
            os.close(ours)
            program.kill()
    text = said.decode()
    assert "12 remote shards (75.6 MB)" in text and "penstock index SHARDS" in text, text
    assert "reading remote files" in text and "samples: 12" in text, text
    assert text.count("12 remote shards") == 1
    assert 0 <= read_when_told < 3
    assert text.index("UncountedTar") < text.index("reading remote files")
