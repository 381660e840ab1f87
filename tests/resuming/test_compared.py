"""The table of docs/resume-compared.md is what the loaders do."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from resuming.comparing import COLUMNS, compare, table, written
from resuming.loaders import LOADERS

NEEDED = ("torch", "torchdata", "grain", "datasets", "webdataset", "litdata", "streaming")


@pytest.mark.skipif(any(find_spec(name) is None for name in NEEDED), reason="`make resuming` installs them")
def test_the_table_of_the_page_is_what_the_loaders_do() -> None:
    """`python -m resuming.comparing --write`, with tests/ on the path, writes it anew."""
    rows = compare(LOADERS)
    print("\n" + table(rows))
    (ours,) = [row for row in rows if row.name == "penstock"]
    best = ("exact", "exact", "each sample once", "the same", "the same")
    assert tuple(ours.cells[name] for name in COLUMNS[1:6]) == best
    assert table(rows) == written()
