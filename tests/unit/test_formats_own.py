"""Formats of others on the public base: registered, found, spelt out."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest

import penstock
from penstock import cli, formats
from penstock._files.access import Access, RemoteOptions
from penstock.errors import FormatError
from penstock.formats import Blocks, FileOptions, Format, Tokens, _registry, register, unregister


class Pairs(Format):
    suffixes = (".pairs",)

    def __init__(self, paths: Any, scale: int = 1, **files: Unpack[FileOptions]) -> None:
        super().__init__(paths, **files)
        self.scale = scale
        self.set_rows([(file.size - 4) // 2 for file in self.files])

    @classmethod
    def matches(cls, first_bytes: bytes) -> bool:
        return first_bytes.startswith(b"PAIR")

    def sample(self, row: int) -> Any:
        number, row = self.locate(row)
        return np.frombuffer(self.files[number].read(4 + 2 * row, 2), np.uint8) * self.scale


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "files" / "some.pairs"
    path.parent.mkdir()
    path.write_bytes(b"PAIR" + bytes(range(8)))
    yield path
    unregister(Pairs)


def test_a_registered_format_is_found_by_content_and_by_name(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FormatError, match="the format is not known"):
        penstock.open(pairs)
    assert register(Pairs) is Pairs
    (pairs.parent / "unnamed").write_bytes(pairs.read_bytes())
    for path in (pairs, pairs.parent, pairs.parent / "unnamed"):
        found = penstock.open(path, scale=2)
        assert type(found) is Pairs and found[3].tolist() == [12, 14]
    assert cli.main(["inspect", str(pairs), "--samples", "1"]) == 0
    assert capsys.readouterr().out.startswith("Pairs: 4 samples, 1 file, 1 block, 12 B")
    with pytest.raises(TypeError, match=r"by Pairs, which has no argument 'size'. Its arguments are: scale, storage"):
        penstock.open(pairs, size=3)


def test_a_registered_format_comes_before_ours(pairs: Path) -> None:
    class Mine(Pairs):
        suffixes = (".txt",)

        @classmethod
        def matches(cls, first_bytes: bytes) -> bool:
            return False

    (pairs.parent / "a.txt").write_text("PAIRab")
    register(Mine)
    try:
        assert type(penstock.open(pairs.parent / "a.txt")) is Mine
    finally:
        unregister(Mine)
    assert type(penstock.open(pairs.parent / "a.txt")).__name__ == "TextLines"


def test_an_index_that_belongs_to_no_format_is_left_out(pairs: Path) -> None:
    """wids, for example, writes an index.json beside its tars."""
    folder = pairs.parent
    pairs.unlink()
    (folder / "a.txt").write_text("one\n")
    (folder / "index.json").write_text('{"wids_version": 1}')
    assert list(penstock.open(folder)) == ["one"]


def test_files_that_belong_to_another_are_read_with_it(pairs: Path) -> None:
    class Listed(Pairs):
        suffixes = ("index.json",)
        companions = ("part-*.txt",)

        @classmethod
        def matches(cls, first_bytes: bytes) -> bool:
            return first_bytes.startswith(b"PAIR")

    folder = pairs.parent
    pairs.rename(folder / "index.json")
    (folder / "part-1.txt").write_text("one\n")
    register(Listed)
    try:
        assert type(penstock.open(folder)) is Listed
        (folder / "other.txt").write_text("one\n")
        with pytest.raises(FormatError, match=r"several formats: .json \(Listed\), .txt \(TextLines\)"):
            penstock.open(folder)
    finally:
        unregister(Listed)


def test_only_formats_can_be_registered() -> None:
    with pytest.raises(TypeError, match=r"takes a subclass of penstock.formats.Format, but got <class 'int'>"):
        register(int)  # type: ignore[type-var]
    wrong = type("Wrong", (Format,), {"suffixes": ".one"})
    with pytest.raises(TypeError, match=r"Wrong.suffixes must be a tuple, such as \('.one',\)"):
        register(wrong)


def entry_points(tmp_path: Path, value: str) -> Path:
    """A folder with an installed package that names a format."""
    site = tmp_path / "site"
    (site / "their_formats-1.0.dist-info").mkdir(parents=True)
    (site / "their_formats-1.0.dist-info" / "METADATA").write_text("Name: their-formats\nVersion: 1.0\n")
    (site / "their_formats-1.0.dist-info" / "entry_points.txt").write_text(f"[penstock.formats]\ntheirs = {value}\n")
    (site / "their_formats.py").write_text(
        textwrap.dedent("""
        from penstock.formats import Format
        class Theirs(Format):
            suffixes = (".theirs",)
            def __init__(self, paths, **files):
                super().__init__(paths, **files)
                self.set_rows([file.size for file in self.files])
            def sample(self, row):
                number, row = self.locate(row)
                return self.files[number].read(row, 1)
        """)
    )
    return site


PROGRAM = """
import sys, penstock
from pathlib import Path
folder = Path({folder!r})
penstock.open(folder / "a.txt")
assert "their_formats" not in sys.modules  # nothing is imported for files of ours
assert type(penstock.open(folder / "b.theirs")).__name__ == "Theirs"
assert penstock.open(folder / "c")[1] == b"y"  # a folder
"""


def test_the_format_of_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    site = entry_points(tmp_path, "their_formats:Theirs")
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.theirs").write_bytes(b"xy")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "b.theirs").write_bytes(b"xy")
    code = f"import sys; sys.path.insert(0, {str(site)!r})\n" + PROGRAM.format(folder=str(tmp_path))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_package_that_cannot_be_loaded_is_told_of_once(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = importlib.metadata.EntryPoint("theirs", "no_such_module:Theirs", _registry.GROUP)
    monkeypatch.setattr(_registry, "entry_points", lambda group: [broken])
    monkeypatch.setattr(_registry, "_loaded", False)
    with pytest.warns(RuntimeWarning, match="'theirs'.*cannot be loaded.*no_such_module"), pytest.raises(FormatError):
        penstock.open(pairs)
    with pytest.raises(FormatError):
        penstock.open(pairs)


def test_keywords_about_remote_files_are_spelt_out_in_every_signature() -> None:
    assert RemoteOptions.__annotations__.keys() == set(Access._fields)
    for name in formats.__all__:
        made = getattr(formats, name)
        if not inspect.isclass(made) or not issubclass(made, Format) or name == "HuggingFace":
            continue
        found = inspect.signature(made).parameters
        for keyword, default in Access._field_defaults.items():
            assert found[keyword].default is default and found[keyword].kind is inspect.Parameter.KEYWORD_ONLY, name
        assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in found.values()), name
        assert ("max_sample_bytes" in found) == (made is not Tokens)


def test_samples_of_a_length_that_is_given_have_no_limit(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "x.bin")
    with pytest.raises(TypeError, match="max_sample_bytes"):
        Tokens(tmp_path / "x.bin", "uint16", 4, max_sample_bytes=3)  # type: ignore[call-arg]
    assert Tokens(tmp_path / "x.bin", "uint16", 4).max_sample_bytes is None


def test_a_keyword_that_there_is_not_is_named(pairs: Path) -> None:
    with pytest.raises(TypeError, match=r"Pairs.__init__\(\) got an unexpected keyword argument 'cash'"):
        Pairs(pairs, cash=True)  # type: ignore[call-arg]


def test_a_format_without_its_methods_says_which_it_needs(pairs: Path) -> None:
    class Nothing(Format):
        def __init__(self, paths: Any) -> None:
            super().__init__(paths)
            self.set_rows([1])

    with pytest.raises(NotImplementedError, match=r"Nothing must define sample\(row\)"):
        Nothing(pairs)[0]


class Columns(Blocks):
    """Blocks of two rows as a dict of arrays."""

    def __init__(self, paths: Any, **files: Unpack[FileOptions]) -> None:
        super().__init__(paths, **files)
        self.set_rows([[2, 0, 2] for _ in self.files])
        self.reads = 0

    def read(self, rows: Any) -> Any:
        self.reads += 1
        raw = np.frombuffer(self.files[rows.file].read(4, 8), np.uint8)
        return {"part": np.full(2, rows.part), "pair": raw.reshape(4, 2)[rows.first : rows.stop]}


def test_empty_blocks_are_left_out_and_parts_count_them(pairs: Path) -> None:
    data = Columns(pairs)
    assert data.blocks.tolist() == [0, 2, 4] and [data.file_rows(block).part for block in (0, 1)] == [0, 2]
    assert [int(sample["part"]) for sample in data] == [0, 0, 2, 2]


def test_a_block_is_read_once_and_its_arrays_are_gathered(pairs: Path) -> None:
    data = Columns(pairs)
    with penstock.DataLoader(data, batch_size=4, shuffle=True, seed=3, dtype={"pair": "float32"}) as loader:
        (batch,) = loader
    assert data.reads == 2 and batch["pair"].dtype == np.float32
    expected = penstock.default_collate([data[key] for key in range(4)])
    order = batch["pair"][:, 0].argsort()
    assert (batch["pair"][order] == expected["pair"]).all() and (batch["part"][order] == expected["part"]).all()


def test_a_block_with_other_rows_than_were_said_is_damage(pairs: Path) -> None:
    class Short(Columns):
        def read(self, rows: Any) -> Any:
            return [1]

    with pytest.raises(FormatError, match="block 2 has 1 row, but 2 were expected"):
        Short(pairs)[3]


def test_an_opened_file_reads_as_python_files_do(pairs: Path) -> None:
    (file,) = Pairs(pairs).files
    with file.open() as ours, pairs.open("rb") as theirs:
        for step in (lambda f: f.read(3), lambda f: f.seek(-2, 2), lambda f: f.read(), lambda f: f.read(1)):
            assert step(ours) == step(theirs)
        assert ours.seek(100) == theirs.seek(100) and ours.read(5) == theirs.read(5) == b""
        assert not ours.writable() and ours.readable() and ours.seekable()
        with pytest.raises(ValueError, match="before its beginning"):
            ours.seek(-1)


def test_what_a_library_says_of_the_content_is_a_format_error(pairs: Path) -> None:
    (file,) = Pairs(pairs).files
    said = r"some.pairs, chunk 3: it cannot be read \(KeyError: 'x'\)"
    with pytest.raises(FormatError, match=said), file.decoding("chunk 3"):
        raise KeyError("x")
    with pytest.raises(MemoryError) as caught, file.decoding("chunk 3"):
        raise MemoryError
    assert "chunk 3" in caught.value.__notes__[0]


def test_a_format_that_sets_no_rows_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(AttributeError, match=r"Format has no rows yet: call self\.set_rows"):
        len(Format(tmp_path / "x"))
