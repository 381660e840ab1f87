"""JAX with four devices on the CPU, for all tests here: `make jax`. Without JAX, they are skipped."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
pytest.importorskip("jax", reason="these tests need JAX: make jax")


@pytest.fixture(autouse=True)
def the_runners_threads_do_not_count() -> None:
    """In place of the fixture for all tests, by which a process that runs JAX would be forked."""
