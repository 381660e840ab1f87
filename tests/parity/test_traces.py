"""The report and the trace of both torch faces; tests/conformance/test_traces.py has what is in a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from traces import read

import penstock.torch


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, key: int) -> Any:
        return torch.full((100,), key)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_loader_of_torchs_kind_has_a_trace(seed: int | None, tmp_path: Path) -> None:
    loader = penstock.torch.DataLoader(Rows(), batch_size=4, num_workers=2, seed=seed)
    with loader.trace(tmp_path / "trace.json"):
        assert len(list(loader)) == 6
    found = read(tmp_path / "trace.json")
    assert "caller" in found.rows and found.rows.keys() <= {"caller", "worker 0", "worker 1"}
    delivered = [span for span in found.rows["caller"] if span.name == "deliver"]
    assert sum(span.args.get("steps", 1) for span in delivered) == 6


def test_without_workers_and_seed_there_is_nothing_to_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fetches its batches\. Use num_workers=1 or more, or seed="):
        penstock.torch.DataLoader(Rows(), batch_size=4).trace(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "seed": 0}])
def test_a_loader_of_torchs_kind_has_a_report(options: dict[str, Any], tmp_path: Path) -> None:
    loader = penstock.torch.DataLoader(Rows(), batch_size=4, **options)
    assert len(list(loader)) == 6
    loader.report(tmp_path / "report.html")
    assert "DataLoader(Rows)" in (tmp_path / "report.html").read_text()
