"""What people try in their first hour, and the answer that they get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import DataLoader


class Foreign:
    """A stream of a library, such as Hugging Face's."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


Library = type("IterableDataset", (Foreign,), {"__module__": "datasets.iterable_dataset"})
Own = type("Own", (type("IterableDataset", (Foreign,), {}),), {})


class Ours(penstock.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("path", ["data/train", Path("data/train")])
def test_a_path_is_no_dataset(path: Any) -> None:
    with pytest.raises(TypeError, match=r"is the class Path, not an object of it\. Pass Path\(\.\.\.\)"):
        penstock.DataLoader(Path)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"is a path, 'data/train'\. penstock\.open\('data/train'\) makes a dataset"):
        DataLoader(path)


def test_columns_are_no_dataset_but_may_become_one() -> None:
    columns: Any = {"x": np.arange(3), "y": np.arange(3)}
    with pytest.raises(TypeError, match=r"with the keys \['x', 'y'\].*penstock\.ArrayDataset\(\*\*columns\)"):
        DataLoader(columns)
    assert [sorted(batch) for batch in DataLoader(penstock.ArrayDataset(**columns), 3)] == [["x", "y"]]
    samples: Any = {"a": 1, "b": 2}
    assert [batch.tolist() for batch in DataLoader(samples, sampler=["b", "a"])] == [[2], [1]]
    assert len(list(DataLoader({0: "x", 1: "y"}))) == 2


def test_a_table_is_no_dataset_because_its_first_item_is_a_column() -> None:
    pandas = pytest.importorskip("pandas")
    square = pandas.DataFrame(np.arange(9.0).reshape(3, 3))  # square[0] is a column: wrong samples, and no error
    for table in (square, pandas.DataFrame({"x": [1, 2]})):
        with pytest.raises(TypeError, match=r"is a DataFrame, a table.*ArrayDataset.*Table\.from_pandas"):
            DataLoader(table)
    rows = list(DataLoader(square.to_dict("records"), 3))
    columns = list(DataLoader(penstock.ArrayDataset(**{f"{name}": square[name].to_numpy() for name in square}), 3))
    assert [batch.tolist() for batch in rows[0].values()] == [batch.tolist() for batch in columns[0].values()]
    assert [batch.tolist() for batch in DataLoader(square, sampler=[2])] == [[[2.0, 5.0, 8.0]]]
    assert [batch.tolist() for batch in DataLoader(pandas.Series([1, 2]), 2)] == [[1, 2]]


def test_a_table_of_arrow_is_no_dataset_but_its_format_is() -> None:
    table = pytest.importorskip("pyarrow").table({"x": [1, 2], "y": ["a", "b"]})
    with pytest.raises(TypeError, match=r"is a Table, a table.*ArrayDataset.*penstock\.formats\.Arrow\(table\)"):
        DataLoader(table)
    assert [batch["y"] for batch in DataLoader(penstock.formats.Arrow(table), 2)] == [["a", "b"]]


def test_a_generator_beside_a_seed_would_not_be_used() -> None:
    with pytest.raises(ValueError, match="seed=1 and generator= were both given"):
        DataLoader([1], seed=1, generator=np.random.default_rng(2))


def test_ray_without_workers_is_an_error() -> None:
    with pytest.raises(ValueError, match='backend="ray" needs workers: give num_workers=1 or more'):
        DataLoader([1], backend="ray")


@pytest.mark.parametrize(
    ("stream", "advice"),
    [
        (Ours(), r"Let the stream yield light items and define load\(item\)"),
        (Own(), r"Derive the stream from penstock\.IterableDataset"),
        (Library(), r"datasets makes its samples .*without streaming \(penstock\.formats\.HuggingFace"),
    ],
    ids=["ours", "one's own", "a library's"],
)
def test_the_advice_for_a_stream_can_be_followed(stream: Any, advice: str) -> None:
    with pytest.warns(UserWarning, match=f"read by one reader.*{advice}"):
        DataLoader(stream, num_workers=2)
    with pytest.raises(ValueError, match=f"which an exception ends.*{advice}"):
        DataLoader(stream, on_error="skip")
    with pytest.raises(ValueError, match=advice), DataLoader(stream, num_workers=1) as loader:
        loader.update(n=1)


def test_dir_shows_what_is_public() -> None:
    code = "import penstock; print([n for n in dir(penstock) if n[0] == '_' or not hasattr(penstock, n)])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "['__doc__', '__version__']\n"
    assert set(penstock.__all__) < set(dir(penstock))


def test_penstock_torch_is_there_without_an_import_of_its_own() -> None:
    pytest.importorskip("torch")
    code = "import sys, penstock; print('torch' in sys.modules, penstock.torch.DataLoader.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False penstock.torch._loader\n", done.stderr


def test_without_torch_penstock_torch_says_what_it_needs() -> None:
    code = """
import sys
import penstock
sys.modules["torch"] = None
print(hasattr(penstock, "torch"))
penstock.torch
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"
    assert 'AttributeError: penstock.torch needs torch: pip install ".[torch]"' in done.stderr


def test_modules_of_formats_are_there_without_an_import_of_their_own() -> None:
    code = "import sys, penstock; print('penstock.formats' in sys.modules, penstock.formats.Tokens.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False Tokens\n"
