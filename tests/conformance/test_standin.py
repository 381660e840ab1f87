"""The backend for Ray keeps the laws too. Here its nodes are processes of this machine: `make ray` has real ones."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import standin

from penstock import DataLoader
from penstock.testing import conformance
from tests.conformance.test_memory import Growing, check_that_strays_are_counted

pytestmark = pytest.mark.usefixtures("warmed_up")


class TestStandIn(conformance.Suite):
    backend = "standin"

    def setup_method(self) -> None:
        super().setup_method()
        self._block = ExitStack()
        self.cluster = standin.LocalCluster()
        self._block.enter_context(standin.standing_in(self.cluster))

    def teardown_method(self) -> None:
        super().teardown_method()
        self._block.close()

    def test_memory_outside_of_the_pool_is_counted_while_it_is_used(self) -> None:
        with DataLoader(Growing(), batch_size=1, num_workers=1, backend="standin") as loader:
            check_that_strays_are_counted(loader)
