"""Laws for authors of formats. A law is a test that every format must pass.

To check all laws with one function, call `check` with some files of the format:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from penstock.formats import TextLines
    >>> from penstock.testing import formats
    >>> path = Path(tempfile.mkdtemp(), "some.txt")
    >>> _ = path.write_text("one\\ntwo\\nthree\\nfour\\n")
    >>> formats.check(TextLines, [path], only="by_key")
    []

To have a pytest test for each law, derive a class from `Suite`:

    class TestMine(formats.Suite):
        make = staticmethod(Mine)

        def write(self, folder):
            write_some_files(folder)
            return [folder / "some.mine"]

Each law is a method, and its name is the sentence that it checks. A law that does not apply raises
`unittest.SkipTest` with the reason, and pytest reports it as skipped. `Suite` lists the attributes that describe a
format.
"""

from __future__ import annotations

import copy
import os
import pickle
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np

import penstock
from penstock._files.pieces import FetchPiece, Piece, PiecesInMemory
from penstock._files.remote import RemoteFile
from penstock.errors import CollateError, FormatError, ImageError
from penstock.source._nested import method_of
from penstock.testing._laws import BrokenLaw, Stated, check_each
from penstock.testing._same import assert_resumes_everywhere, assert_same_everywhere, difference
from penstock.testing._serving import serving

__all__ = ["BrokenLaw", "Suite", "check"]

_SMALL = 64  # bytes of a piece; pieces are small so that a read of too many bytes is noticed


class Suite(Stated):
    """All laws for formats. To check a format, derive a class that describes it with these attributes and methods:

    - `make(paths, **files)`: makes a dataset. This is usually the format's class. `files` are the keyword arguments
      of `FileOptions`.
    - `write(folder)`: writes files of the format into an empty folder, and returns the paths to pass to `make`. The
      files should be small (a few KB, with 10 to 100 samples), and have more than one block.
    - `found`: the arguments, besides the paths, that `penstock.open` needs to find the format (none by default). Use
      None if `penstock.open` cannot find the format.
    - `settings`: the settings of the loaders with workers. By default, one loader has two threads, and another one
      has two processes.
    - `damages`: the number of randomly damaged copies of the files to test, 60 by default. Use 0 if the library that
      reads the format crashes on damaged files.
    """

    make: Callable[..., Any]
    found: ClassVar[Mapping[str, Any] | None] = {}
    settings: ClassVar[Sequence[Mapping[str, Any]]] = ({"num_workers": 2, "backend": "thread"}, {"num_workers": 2})
    damages: ClassVar[int] = 60

    def write(self, folder: Path) -> Sequence[Path]:
        raise NotImplementedError("a suite of laws must define write(folder), which returns the paths of its files.")

    def setup_method(self) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="penstock-laws-")
        self.folder = Path(self._made.name, "files")
        self.folder.mkdir()
        self.paths = [Path(path) for path in self.write(self.folder)]
        self._scratch = 0

    def teardown_method(self) -> None:
        self._made.cleanup()

    def named(self) -> str:
        return getattr(self.make, "__name__", repr(self.make))

    # Tools for writing laws.

    def new_folder(self) -> Path:
        self._scratch += 1
        return Path(self._made.name, str(self._scratch))

    def copy(self) -> tuple[Path, list[Path]]:
        """Copies the files to a new folder. Returns the folder and the paths of the copies."""
        folder = self.new_folder()
        ignored = shutil.ignore_patterns(".*")  # indexes of these files
        shutil.copytree(self.folder, folder, ignore=ignored, copy_function=shutil.copyfile)  # with new timestamps
        return folder, [folder / path.relative_to(self.folder) for path in self.paths]

    def local(self) -> Any:
        return self.make(self.paths)

    def samples(self) -> tuple[Any, list[Any]]:
        data = self.local()
        return data, [data[key] for key in range(len(data))]

    def remote(self, url: str, **files: Any) -> Any:
        return self.make([f"{url}/{path.relative_to(self.folder)}" for path in self.paths], **files)

    # The laws.

    def test_samples_are_given_by_key_as_by_a_list(self) -> None:
        data, samples = self.samples()
        n = len(data)
        assert n >= 4, f"the files have {n} samples, too few for the laws"
        _same(list(data), samples, "iterating")
        _same(data[-1], samples[-1], "the key -1")
        _same(data[np.int64(n - 1)], samples[-1], "a key of numpy's")
        _same(list(data[1:3]), samples[1:3], "a slice")
        for key in (n, -n - 1):
            try:
                data[key]
            except IndexError:
                continue
            raise AssertionError(f"the key {key} of {n} samples raised no IndexError")

    def test_any_split_into_steps_gives_the_same_samples(self) -> None:
        data, samples = self.samples()
        for keys in _steps(len(data)):
            _same(data.__getitems__(keys), [samples[key] for key in keys], f"the keys {keys}")

    def test_a_gathered_batch_is_the_collated_samples(self) -> None:
        data, samples = self.samples()
        gather = method_of(data, "__gather__")
        if gather is None:
            raise SkipTest(f"{self.named()} has no __gather__")
        for keys in _steps(len(data)):
            found = gather(np.array(keys), np.empty)
            if found is NotImplemented:
                continue
            try:
                expected = penstock.default_collate([samples[key] for key in keys])
            except CollateError as error:
                raise AssertionError(f"the keys {keys} were gathered, but cannot be collated: {error}") from error
            _same(found, expected, f"the keys {keys}")

    def test_a_pickled_copy_gives_the_same_samples(self) -> None:
        data = pickle.loads(pickle.dumps(self.local()))
        _same(list(data), self.samples()[1], "a copy of a dataset that was not read")
        _same(list(pickle.loads(pickle.dumps(data))), self.samples()[1], "a copy of a dataset that was read")

    def test_a_sample_that_is_changed_is_read_again_unchanged(self) -> None:
        data, samples = self.samples()
        samples = copy.deepcopy(samples)  # they may share the memory that is overwritten
        for key in range(len(data)):
            for array in _arrays(data[key]):
                array[...] = 0
            for array in _arrays(data.__getitems__([key])):
                array[...] = 0
        _same(list(data), samples, "after the samples were overwritten")

    def test_blocks_cover_every_row_once(self) -> None:
        data = self.local()
        blocks = np.asarray(data.blocks)
        assert blocks[0] == 0 and blocks[-1] == len(data), f"blocks are {blocks} of {len(data)} samples"
        assert (np.diff(blocks) > 0).all(), f"blocks are {blocks}: they must ascend"
        for block in range(len(blocks) - 1):
            rows = data.file_rows(block)
            first, file = data.edges[rows.file] + rows.first, data.files[rows.file]
            assert (first, rows.stop - rows.first) == (blocks[block], blocks[block + 1] - blocks[block]), rows
            for start, stop in data.ranges(rows):
                assert 0 <= start <= stop <= file.size, f"block {block} has the range {start} to {stop} of {file}"

    def test_remote_files_give_the_same_samples(self) -> None:
        _needs_remote()
        _, samples = self.samples()
        with serving(self.folder) as url:
            cached = self.remote(url, cache=str(self.new_folder()))
            _same(list(cached), samples, "with a cache")
            _same(list(pickle.loads(pickle.dumps(cached))), samples, "a copy with a cache")
            _same(self.remote(url, cache=False).__getitems__(range(len(samples))), samples, "without a cache")

    def test_the_ranges_of_a_block_have_the_bytes_that_are_read(self) -> None:
        _needs_remote()
        with serving(self.folder) as url:
            data = self.remote(url, cache=False)
            if len(data.blocks) < 3:
                raise SkipTest(f"the files of {self.named()} have only one block")
            fetched: list[Piece] = []
            for file in data.files:
                file.pieces = _Noting(fetched)
                if file.edges is None:
                    file.edges = np.append(np.arange(0, file.size, _SMALL), file.size)
            outside: dict[int, list[set[Piece]]] = {}  # other pieces that are read for each block of each file
            for block, (first, stop) in enumerate(zip(data.blocks, data.blocks[1:], strict=False)):
                rows = data.file_rows(block)
                wanted = {piece for some in data.ranges(rows) for piece in data.files[rows.file].pieces_of(*some)}
                fetched.clear()
                data.__getitems__(range(first, stop))
                outside.setdefault(rows.file, []).append(set(fetched) - wanted)
            names = [repr(file) for file in data.files]
        for number, found in outside.items():
            # A piece that is read for several blocks has no samples; it is a header, or an index inside the file.
            times = Counter(piece for others in found for piece in others)
            for part, others in enumerate(found):
                more = sorted(piece for piece in others if times[piece] == 1)
                where = f"block {part} of {names[number]}"
                assert not more, f"{where} was also read from {more[0]}, which is not in its ranges"

    def test_a_loader_that_fetches_ahead_gives_the_same_samples(self) -> None:
        _needs_remote()
        _, samples = self.samples()
        with serving(self.folder) as url:
            data = self.remote(url, cache=str(self.new_folder()))
            assert isinstance(data.files[0], RemoteFile) and method_of(data, "__foresee__") is not None
            with penstock.DataLoader(data, 2, shuffle="blocks", seed=1, collate_fn=list) as loader:
                found = [sample for batch in loader for sample in batch]
            with penstock.DataLoader(self.local(), 2, shuffle="blocks", seed=1, collate_fn=list) as loader:
                _same(found, [sample for batch in loader for sample in batch], "read ahead")
        assert len(found) == len(samples), f"{len(found)} samples of {len(samples)}"

    def test_damaged_files_raise_format_errors_and_no_others(self) -> None:
        if not self.damages:
            raise SkipTest(f"files of {self.named()} are not damaged")
        for seed in range(self.damages):
            folder, paths = self.copy()
            done = _damage(folder, random.Random(seed))
            try:
                data = self.make(paths)
                for key in range(len(data)):
                    try:
                        data[key]
                    except (FormatError, ImageError):
                        pass
                data.__getitems__(range(len(data)))
            except (FormatError, ImageError, FileNotFoundError):  # a file may contain the name of another one
                pass
            except Exception as error:
                raise AssertionError(f"{done} (seed {seed}) raised {type(error).__name__}: {error}") from error
            shutil.rmtree(folder)

    def test_copies_of_the_files_have_the_same_fingerprint(self) -> None:
        _, paths = self.copy()
        assert self.make(paths).__fingerprint__() == self.local().__fingerprint__()

    def test_workers_give_the_same_samples(self) -> None:
        assert_same_everywhere(self._loader, self.settings, epochs=2)

    def test_a_loader_resumes_at_any_step(self) -> None:
        assert_resumes_everywhere(self._loader, [{"num_workers": 0}])

    def test_it_is_found_by_penstock_open(self) -> None:
        if self.found is None:
            raise SkipTest(f"{self.named()} is not found by its files")
        paths = [os.fspath(path) for path in self.paths]
        for given in (paths, paths[0] if len(paths) == 1 else paths, os.fspath(self.folder)):
            found = penstock.open(given, **self.found)
            assert type(found) is type(self.local()), f"penstock.open({given!r}) made a {type(found).__name__}"

    def _loader(self, **settings: Any) -> Any:
        # Samples are not collated, because they may differ in shape.
        order: Any = "blocks" if len(self.local().blocks) > 2 else True
        return penstock.DataLoader(self.local(), 3, shuffle=order, seed=1, collate_fn=list, **settings)


def check(
    make: Callable[..., Any], paths: Sequence[str | os.PathLike[str]], *, only: str = "", **told: Any
) -> list[str]:
    """Checks all laws, and returns those that were skipped, each with its reason.

    Raises `BrokenLaw` if a law is broken. `make(paths, **files)` makes a dataset. `paths` names files in the
    format. The folder that contains them is copied, so it should be small and contain nothing else. If `only` is
    given, only the laws whose names contain this text are checked. All other arguments set attributes of `Suite`.
    """
    given = [Path(path).absolute() for path in paths]

    def write(self: Any, folder: Path) -> list[Path]:
        shutil.copytree(given[0].parent, folder, dirs_exist_ok=True)
        return [folder / path.relative_to(given[0].parent) for path in given]

    return check_each(type("Checked", (Suite,), {"make": staticmethod(make), "write": write, **told}), only)


def _same(found: Any, expected: Any, where: str) -> None:
    differs = difference(found, expected)
    assert differs is None, f"{where}: it differs from the samples by key{differs}"


def _steps(n: int) -> Iterator[list[int]]:
    """Yields lists of keys: all keys in order, all keys in random order, and short random lists with repeats."""
    drawn = random.Random(0)
    yield list(range(n))
    yield drawn.sample(range(n), n)
    for size in (1, 2, 3, 7):
        yield [drawn.randrange(-n, n) for _ in range(size)]


def _arrays(sample: Any) -> Iterator[Any]:
    if isinstance(sample, np.ndarray):
        if sample.flags.writeable and sample.dtype.kind in "biuf":
            yield sample
    elif isinstance(sample, Mapping):
        for value in sample.values():
            yield from _arrays(value)
    elif isinstance(sample, (list, tuple)):
        for value in sample:
            yield from _arrays(value)


def _damage(folder: Path, drawn: random.Random) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    file = drawn.choice(files)
    content = bytearray(file.read_bytes())
    at, how = drawn.randrange(len(content)), drawn.choice(("cut", "changed", "inserted", "zeros"))
    if how == "cut":
        del content[at:]
    elif how == "changed":
        content[at] ^= drawn.randrange(1, 256)
    elif how == "inserted":
        content[at:at] = drawn.randbytes(drawn.randrange(1, 9))
    else:
        content[at : at + 8] = bytes(len(content[at : at + 8]))
    file.write_bytes(content)
    return f"{file.name}, {how} at byte {at}"


class _Noting(PiecesInMemory):
    """Keeps pieces in memory, and records every piece that is requested."""

    def __init__(self, fetched: list[Piece]) -> None:
        super().__init__()
        self._fetched = fetched

    def get(self, piece: Piece, fetch: FetchPiece) -> memoryview:
        self._fetched.append(piece)
        return super().get(piece, fetch)

    def found(self, piece: Piece) -> memoryview | None:
        return None


def _needs_remote() -> None:
    if find_spec("obstore") is None:
        raise SkipTest('remote files need pip install ".[remote]"')
