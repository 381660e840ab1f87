"""Indexes that lie beside tars: written by `penstock index`, by wids and by DALI."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader, cli
from penstock.errors import FormatError
from penstock.formats import Tar, _beside, _samples
from penstock.formats._beside import NAME, Entry, packed, unpacked

SIZES = (0, 700, 40, 1500, 9)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shards").mkdir()
    return tmp_path / "shards"


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tars whose headers were all followed."""
    paths: list[str] = []

    monkeypatch.setattr(_samples, "refuse_compressed", lambda file: paths.append(os.path.basename(file.path)))
    return paths


def write(path: Path, first: int = 0, kind: int = tarfile.USTAR_FORMAT, name: str = "{}") -> None:
    with tarfile.open(path, "w", format=kind) as tar:
        for number, size in enumerate(SIZES, first):
            for end, content in (("cls", b"%d" % number), ("bin", bytes([number]) * size)):
                info = tarfile.TarInfo(f"{name.format(number)}.{end}")
                info.size = len(content)
                info.mtime = 1.5 if kind == tarfile.PAX_FORMAT else 1  # POSIX has fractions in a header of their own
                tar.addfile(info, io.BytesIO(content))


def shards(folder: Path, count: int = 3) -> list[dict[str, Any]]:
    for number in range(count):
        write(folder / f"s-{number}.tar", 10 * number)
    return list(Tar(folder))


def forget(folder: Path, cache: Path) -> None:
    """Deletes the indexes that this machine has kept."""
    for path in [*folder.glob(".*.penstock-*"), *cache.glob("*.penstock-*")]:
        path.unlink()


def test_the_index_that_the_command_writes_is_found(
    folder: Path, cache_folder: Path, walked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    samples = shards(folder)
    assert cli.main(["index", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder / NAME}: 3 tars with 15 samples, ")
    forget(folder, cache_folder)
    walked.clear()
    found = Tar(folder)
    assert list(found) == samples and walked == []
    assert len(pickle.dumps(found)) < 2000  # it is kept for the workers
    with DataLoader(found, 4, shuffle="blocks", seed=0, num_workers=2) as loader:
        assert sorted(n for batch in loader for n in batch["cls"].tolist()) == sorted(s["cls"] for s in samples)


def test_an_index_is_of_use_after_a_copy_and_not_after_a_change(
    folder: Path, cache_folder: Path, walked: list[str], tmp_path: Path
) -> None:
    samples = shards(folder)
    assert cli.main(["index", str(folder)]) == 0
    there = tmp_path / "copy"
    there.mkdir()
    for path in [*folder.glob("*.tar"), folder / NAME]:
        (there / path.name).write_bytes(path.read_bytes())  # with another time
    walked.clear()
    assert list(Tar(there)) == samples and walked == []

    forget(there, cache_folder)
    write(there / "s-1.tar", 70)  # as long as before, with other names
    (there / "s-2.tar").write_bytes((there / "s-2.tar").read_bytes() + bytes(512))
    assert [sample["cls"] for sample in Tar(there)][5:10] == [70, 71, 72, 73, 74]
    assert walked == ["s-1.tar", "s-2.tar"]


def test_the_command_adds_to_an_index(folder: Path, cache_folder: Path, walked: list[str]) -> None:
    shards(folder)
    for number in range(3):
        assert cli.main(["index", str(folder / f"s-{number}.tar")]) == 0
    forget(folder, cache_folder)
    walked.clear()
    assert len(Tar(folder)) == 15 and walked == []


def test_the_command_says_what_is_broken_and_the_index_knows_it(
    folder: Path, cache_folder: Path, walked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shards(folder)
    cut, twice = folder / "s-1.tar", folder / "t.tar"
    cut.write_bytes(cut.read_bytes()[:3000])
    with tarfile.open(twice, "w") as tar:
        for name in ("a.cls", "b.cls", "a.cls"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert cli.main(["index", f"{folder}/*.tar"]) == 0
    printed = capsys.readouterr().out
    assert f"{cut}, byte 2,560: the tar is cut off" in printed and f"{twice}: 1 sample has members" in printed
    forget(folder, cache_folder)
    walked.clear()
    found = Tar(folder, decode=False)
    with DataLoader(found, 4, on_error="skip") as loader:
        keys = [key for batch in loader for key in batch["__key__"]]
        assert keys == ["0", "1", "2", "3", "4", "10", "20", "21", "22", "23", "24", "a", "b"]
        assert [key for key, _ in loader.skipped] == [6, 14] and walked == []


def test_an_index_elsewhere_is_named(folder: Path, cache_folder: Path, walked: list[str], tmp_path: Path) -> None:
    samples, out = shards(folder), tmp_path / "mine.index"
    assert cli.main(["index", str(folder), "--out", str(out)]) == 0 and not (folder / NAME).exists()
    forget(folder, cache_folder)
    walked.clear()
    assert list(Tar(folder, index=out)) == samples and walked == []
    out.write_bytes(out.read_bytes()[:-1])
    forget(folder, cache_folder)
    with pytest.raises(FormatError, match=r"mine.index cannot be used as an index: .*damaged.* Write it again"):
        Tar(folder, index=out)
    (folder / NAME).write_bytes(out.read_bytes())  # one that nobody named is made again
    assert list(Tar(folder)) == samples and len(walked) == 3


def test_the_command_says_what_it_cannot_do(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards(folder)
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "x.tar")
    assert cli.main(["index", str(folder), str(tmp_path / "more"), "--out", str(tmp_path / "o")]) == 1
    assert "--out is for the tars of one folder" in capsys.readouterr().err
    assert cli.main(["index", str(tmp_path / "none")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err


def test_many_remote_tars_without_an_index_are_worth_a_warning() -> None:
    beside = _beside.Beside([], None, "tar-2")
    remote = _beside.RemoteFile.__new__(_beside.RemoteFile)
    remote.size, remote.path = 3 << 30, "s3://b/x.tar"
    with pytest.warns(RuntimeWarning, match=r"2 remote shards \(6.44 GB\).*`penstock index SHARDS`.*Uncounted"):
        beside.all_others([remote, remote])
    remote.size = 3 << 20
    beside.all_others([remote, remote])


ARRAYS = st.lists(st.integers(1, 1 << 30), max_size=5)


@settings(deadline=None, max_examples=60)
@given(tars=st.dictionaries(st.text(max_size=5), ARRAYS, max_size=3), place=st.floats(0, 1, exclude_max=True))
def test_an_index_is_as_it_was_written_or_refused(tars: dict[str, list[int]], place: float) -> None:
    entries = {}
    for name, distances in tars.items():
        starts = np.cumsum([0, *distances]) * 512
        size = int(starts[-1]) + 1024
        more = {"fault": np.array([3, 4])} if len(distances) > 3 else {}
        entries[name] = Entry.of(size, name, 7, 8, {"starts": _beside.compact(starts, size), **more})
    content = packed(entries, "k")

    def plain(some: dict[str, Entry]) -> Any:
        return {n: (*e[:4], {k: (v.dtype, v.tolist()) for k, v in e.arrays().items()}) for n, e in some.items()}

    assert plain(unpacked(content, "k")) == plain(entries)
    with pytest.raises(ValueError, match="another version"):
        unpacked(content, "another")
    wrong = bytearray(content)
    wrong[int(place * len(wrong))] ^= 1
    for each in (bytes(wrong), content[: int(place * len(content))]):
        with pytest.raises(ValueError, match=r"damaged|version|no index"):
            unpacked(each, "k")


def test_positions_grow_no_further_than_the_tar_has_samples() -> None:
    """600 kB of zeros, compressed to 600 bytes, would be 150,000 samples of a tar that has room for two."""
    entry = Entry(1024, "", 0, 0, zlib.compress(bytes(600_000)), {})
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not those of samples in this tar"):
            entry.arrays()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong", [{"fault": [1]}, {"apart": [1, 2]}, {"fault": ["x", None]}, {"apart": [[1], [1, 2]]}]
)
def test_faults_of_another_shape_are_refused(wrong: dict[str, list[Any]]) -> None:
    sound = Entry.of(2048, "", 0, 0, {"starts": np.array([0, 512])})
    assert sound.arrays()["starts"].tolist() == [0, 512]
    with pytest.raises(ValueError, match=r"damaged|not those|invalid literal|inhomogeneous"):
        sound._replace(bad=wrong).arrays()


# ---- wids --------------------------------------------------------------------------------------------


def write_wids(folder: Path, counts: dict[str, int], name: str = "index.json", **more: Any) -> None:
    listed = [{"url": f"train/{shard}", "nsamples": count, **more} for shard, count in counts.items()]
    (folder / name).write_text(json.dumps({"__kind__": "wids-shard-index-v1", "shardlist": listed}))


@pytest.mark.parametrize("name", ["index.json", "wids-meta.json", "shardindex.json"])
def test_with_an_index_of_wids_a_tar_is_walked_when_one_of_its_samples_is_read(
    folder: Path, cache_folder: Path, walked: list[str], name: str
) -> None:
    samples = shards(folder)
    write_wids(folder, {f"s-{number}.tar": 5 for number in range(3)}, name)
    forget(folder, cache_folder)
    walked.clear()
    found = Tar(folder)
    assert len(found) == 15 and found.blocks.tolist() == [0, 5, 10, 15] and walked == []
    assert found[7] == samples[7] and walked == ["s-1.tar"]
    assert pickle.loads(pickle.dumps(found))[8] == samples[8]
    assert list(found) == samples and walked == ["s-1.tar", "s-0.tar", "s-2.tar"]
    assert list(Tar(folder)) == samples and len(walked) == 3  # they are kept


def test_blocks_by_wids_do_not_depend_on_what_a_machine_has_kept(
    folder: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks must have the same order. Without positions, a block is a whole tar."""
    monkeypatch.setattr("penstock.formats._extents.BLOCK", 4096)
    shards(folder, 1)
    kept = Tar(folder).blocks.tolist()
    write_wids(folder, {"s-0.tar": 5})
    first = Tar(folder).blocks.tolist()
    forget(folder, cache_folder)
    assert Tar(folder).blocks.tolist() == first == [0, 5] != kept
    assert cli.main(["index", str(folder)]) == 0  # this one has positions
    assert Tar(folder).blocks.tolist() == kept


def test_of_a_tar_that_is_cut_off_wids_knows_more_samples(folder: Path, cache_folder: Path) -> None:
    samples = shards(folder)
    path = folder / "s-1.tar"
    path.write_bytes(path.read_bytes()[:3500])
    write_wids(folder, {f"s-{number}.tar": 5 for number in range(3)})
    forget(folder, cache_folder)
    with DataLoader(Tar(folder), 4, on_error="skip", num_workers=2) as loader:
        found = [number for batch in loader for number in batch["cls"].tolist()]
        skipped = loader.skipped
    assert found == [sample["cls"] for sample in samples if not 11 <= sample["cls"] < 20]
    assert [key for key, _ in skipped] == [6, 7, 8, 9]
    assert all("s-1.tar, byte " in str(e) and "The 1 sample before it" in str(e) for _, e in skipped)


def test_a_wrong_number_of_wids_is_an_error(folder: Path, cache_folder: Path) -> None:
    shards(folder, 1)
    for count in (4, 6):
        write_wids(folder, {"s-0.tar": count})
        with pytest.raises(FormatError, match=rf"has 5 samples, but the index of wids .* says {count}\."):
            Tar(folder)[0]
    write_wids(folder, {"s-0.tar": 4}, filesize=3)  # of another tar
    assert len(Tar(folder)) == 5


@pytest.mark.parametrize(
    "text", ["", "[", "[1]", "{}", '{"__kind__": "wids", "shardlist": 3}', '{"version": 2, "shards": []}', "[" * 9999]
)
def test_what_is_no_index_of_wids_is_ignored_unless_it_is_named(folder: Path, text: str) -> None:
    samples = shards(folder, 1)
    (folder / "index.json").write_text(text)
    assert list(Tar(folder)) == samples
    with pytest.raises(FormatError, match=r"index\.json cannot be used as an index"):
        Tar(folder, index=folder / "index.json")


def test_tars_of_one_name_in_wids_are_told_apart_by_their_folders(tmp_path: Path, walked: list[str]) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write(tmp_path / name / "0.tar")
    listed = [{"url": f"gs://x/{name}/0.tar", "nsamples": count} for name, count in (("a", 5), ("b", 4))]
    index = tmp_path / "all.json"
    index.write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    assert len(Tar([tmp_path / "a", tmp_path / "b"], index=index)) == 9 and walked == []


# ---- DALI --------------------------------------------------------------------------------------------


def described(path: Path, version: str = "v1.2", by_gnu: bool = False) -> str:
    """What DALI's wds2idx writes for a tar. With GNU's tar, it counts back from the header of the next member."""
    lines: list[tuple[str, list[str]]] = []
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        for member, following in zip(members, [*members[1:], None], strict=True):
            stem, _, end = member.name.partition(".")
            if not lines or lines[-1][0] != stem:
                lines.append((stem, []))
            data = member.offset_data
            if by_gnu and following is not None:
                data = (following.offset_data - 512 - member.size) // 512 * 512
            words = [end, str(data), str(member.size), member.name]
            lines[-1][1].extend(words if version == "v1.2" else words[:3])
    return "\n".join([f"{version} {len(lines)}", *(" ".join(words) for _, words in lines)]) + "\n"


@pytest.mark.parametrize("version", ["v1.1", "v1.2"])
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_index_of_dali_is_the_one_that_walking_would_give(
    folder: Path, cache_folder: Path, walked: list[str], kind: int, version: str
) -> None:
    write(folder / "a.tar", 0, kind, "{}" if kind == tarfile.USTAR_FORMAT else "n" * 120 + "{}")
    own = Tar(folder)
    (folder / "a.idx").write_text(described(folder / "a.tar", version))
    forget(folder, cache_folder)
    walked.clear()
    found = Tar(folder)
    assert walked == [] and list(found) == list(own)
    assert np.array_equal(found.indexes[0]["starts"], own.indexes[0]["starts"])


@pytest.mark.parametrize("first", [0, 1, 4, 9])
def test_an_index_that_dali_has_made_of_wrong_places_is_not_used(
    folder: Path, cache_folder: Path, walked: list[str], first: int
) -> None:
    """GNU's tar does not tell where the headers of POSIX begin, so wds2idx is wrong about the members before them."""
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(12):
            info = tarfile.TarInfo(f"{'n' * 120 if number >= first else ''}{number:02}.cls")
            info.size = 2
            tar.addfile(info, io.BytesIO(b"%2d" % number))
    (folder / "a.idx").write_text(described(folder / "a.tar", by_gnu=True))
    assert [sample["cls"] for sample in Tar(folder)] == list(range(12)) and walked == ["a.tar"]
    forget(folder, cache_folder)
    walked.clear()
    (folder / "a.idx").write_text(described(folder / "a.tar"))
    assert [sample["cls"] for sample in Tar(folder)] == list(range(12)) and walked == []


def wrong(text: str) -> Iterator[str]:
    head, *lines = text.splitlines()
    yield ""
    yield head
    yield text.replace("v1.2", "v1.3")
    yield "\n".join([head, *lines[:-1]])
    yield "\n".join(["v1.2 4", *lines[:-1]])  # of a shorter tar
    yield text.replace("cls", "c l")
    yield text.replace(" 3.cls", " x.cls").replace(" 4.bin", " y.bin")  # other names
    yield "\n".join([head, *lines[:-1], lines[-1].replace(" 9 ", " 10 ")])  # another size
    yield text.replace(" 512 ", " 511 ")


def test_an_index_of_dali_that_does_not_fit_is_not_used(folder: Path, cache_folder: Path, walked: list[str]) -> None:
    samples = shards(folder, 1)
    text = described(folder / "s-0.tar")
    walked.clear()
    for number, each in enumerate(wrong(text), 1):
        (folder / "s-0.idx").write_text(each)
        forget(folder, cache_folder)
        assert list(Tar(folder)) == samples, each
        assert len(walked) == number, each
    (folder / "s-0.idx").write_bytes(b"MMIDIDX\0\0" + zlib.compress(b""))  # Megatron's
    forget(folder, cache_folder)
    assert list(Tar(folder)) == samples
