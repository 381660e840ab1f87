"""The laws of penstock hold on a cluster as everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.testing import conformance

from .conftest import Nodes


class TestRay(conformance.Suite):
    backend = "ray"
    settings = {"ray_options": {"patience": 60}}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _on(self, nodes: Nodes) -> Any:
        return nodes
