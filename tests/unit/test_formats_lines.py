"""Lines of text and JSON: which samples a file has, whatever its line ends, and what is said of a bad line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from penstock.errors import FormatError
from penstock.formats import FieldInfo, JsonLines, TextLines, _extents, _lines

law = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = st.lists(st.sampled_from(["", "a", "\r", "two words", "é☃", "x" * 30]), max_size=8)
NUMBER = iter(range(1 << 30))


@pytest.fixture(autouse=True)
def no_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "_PIECE", 5)
    monkeypatch.setattr(_extents, "BLOCK", 16)


def new(folder: Path, content: bytes, suffix: str = ".txt") -> Path:
    """A file with a name that no other example has, so that no index of another is there."""
    path = folder / f"{next(NUMBER):06}{suffix}"
    path.write_bytes(content)
    return path


@law
@given(files=st.lists(LINES, min_size=1, max_size=3), end=st.sampled_from(["\n", "\r\n"]), data=st.data())
@pytest.mark.usefixtures("small_pieces")
def test_lines_are_those_that_were_written(tmp_path: Path, files: list[list[str]], end: str, data: Any) -> None:
    paths, lines = [], []
    for some in files:
        text = "".join(line + end for line in some)
        if some and some[-1] and data.draw(st.booleans()):
            text = text.removesuffix(end)
        mark = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
        paths.append(new(tmp_path, mark + text.encode()))
        # Of "\r\n" both bytes are the line end.
        lines += [line.removesuffix("\r") if (end, line) == ("\n", "\r") else line for line in some]
        if text.endswith("\r"):
            lines[-1] = some[-1]
    found = TextLines(paths)
    assert list(found) == lines
    assert found.__getitems__(range(len(lines))[::-1]) == lines[::-1]
    assert (found.blocks[0], found.blocks[-1]) == (0, len(lines))
    assert (np.diff(found.blocks) > 0).all()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@law
@given(values=st.lists(st.tuples(VALUES, st.lists(st.sampled_from(["\n", "\r\n"]), max_size=2)), max_size=6))
@pytest.mark.usefixtures("small_pieces")
def test_json_values_are_read_and_empty_lines_skipped(tmp_path: Path, values: list[Any]) -> None:
    text = "".join("".join(empty) + json.dumps(value) + "\r\n" for value, empty in values)
    found = JsonLines(new(tmp_path, text.encode()))
    expected = [value for value, _ in values]
    assert list(found) == expected
    assert found.__getitems__(range(len(expected))) == expected
    assert (found.blocks[0], found.blocks[-1]) == (0, len(expected))
    assert (np.diff(found.blocks) > 0).all()


def test_blocks_are_some_bytes_of_one_file(tmp_path: Path, small_pieces: None) -> None:
    paths = [new(tmp_path, b"12345\n" * 6), new(tmp_path, b"1\n" * 3)]
    assert TextLines(paths).blocks.tolist() == [0, 3, 6, 9]
    paths = [new(tmp_path, b"\n\n12345\n\n" * 6)]
    blocks = JsonLines(paths).blocks.tolist()
    assert (blocks[0], blocks[-1]) == (0, 6) and len(blocks) > 2


def test_a_batch_of_lines_is_a_list(tmp_path: Path) -> None:
    path = new(tmp_path, b"one\ntwo\nthree\n")
    assert list(DataLoader(TextLines(path), batch_size=2)) == [["one", "two"], ["three"]]


def test_numbers_of_json_become_arrays(tmp_path: Path) -> None:
    path = new(tmp_path, b'{"id": 1, "ids": [1, 2]}\n{"id": 2, "ids": [3, 4]}\n')
    (batch,) = DataLoader(JsonLines(path), batch_size=2)
    assert batch["id"].tolist() == [1, 2]
    assert np.array(batch["ids"]).T.tolist() == [[1, 2], [3, 4]]


def test_a_pickle_has_no_index(tmp_path: Path) -> None:
    found = JsonLines(new(tmp_path, b"[1]\n" * 50_000))
    sent = pickle.dumps(found)
    assert len(sent) < 1500
    assert pickle.loads(sent)[49_999] == [1]


def test_both_read_the_same_index(tmp_path: Path) -> None:
    path = new(tmp_path, b"1\n2\n", ".jsonl")
    assert (len(TextLines(path)), len(JsonLines(path))) == (2, 2)
    assert len(list(tmp_path.glob(".*.penstock-*"))) == 1


def test_a_folder_means_files_with_the_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2")
    (tmp_path / "a.txt").write_text("text")
    assert (len(JsonLines(tmp_path)), len(TextLines(tmp_path))) == (2, 1)


def test_inspection_names_the_fields(tmp_path: Path) -> None:
    found = JsonLines(new(tmp_path, b'{"id": 1, "text": "four"}\n')).inspect()
    assert found.fields == (FieldInfo("id", "int", ()), FieldInfo("text", "str", (4,)))
    assert found.first == ({"id": 1, "text": "four"},)
    assert JsonLines(new(tmp_path, b"\n\n")).inspect().fields == ()


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = new(tmp_path, b"\xef\xbb\xbfone\n\ntwo \xff\nthree\n")
    assert TextLines(path)[3] == "three"
    for found, key in ((TextLines(path), 2), (JsonLines(path), 1)):
        with pytest.raises(FormatError, match=r"\d+.txt, line 3, byte 12: the line is not UTF-8: invalid start byte"):
            found[key]


@pytest.mark.parametrize(
    ("line", "byte"), [(b'{"a": }', 12), (b"{}{}", 8), (b"  ", 8), (b'"half', 6), (b"[" * 100_000, 6)]
)
def test_a_line_that_is_not_json_is_named(tmp_path: Path, line: bytes, byte: int) -> None:
    found = JsonLines(new(tmp_path, b"1\r\n\r\n\n" + line + b"\n2\n"))
    assert (found[0], found[2]) == (1, 2)
    with pytest.raises(FormatError, match=rf"\d+.txt, line 4, byte {byte}: the line is not JSON: "):
        found[1]


def test_a_loader_skips_a_bad_line_and_names_it(tmp_path: Path) -> None:
    loader = DataLoader(JsonLines(new(tmp_path, b"1\nbad\n3\n")), batch_size=3, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[1, 3]]
    assert [key for key, _ in loader.skipped] == [1]


COMPRESS = [("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)]


@pytest.mark.parametrize(("name", "compress"), COMPRESS)
def test_compressed_files_are_refused_with_the_remedy(tmp_path: Path, name: str, compress: Any) -> None:
    path = new(tmp_path, compress(b"one\ntwo\n"))
    with pytest.raises(FormatError, match=rf"byte 0: the file is compressed by {name}, .* first: {name} -dk '"):
        TextLines(path)


def test_a_line_longer_than_a_piece_is_one_sample(tmp_path: Path) -> None:
    long = "x" * (3 << 20)
    assert list(TextLines(new(tmp_path, f"a\n{long}\nb".encode()))) == ["a", long, "b"]
