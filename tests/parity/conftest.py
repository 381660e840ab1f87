"""What torch itself leaves behind in this process is put away, so that ours stands out."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_sharer

import pytest


@pytest.fixture
def tensors_are_sent() -> Iterator[None]:
    """For a test in which this process sends tensors: torch opens a socket for that, and keeps it."""
    yield
    resource_sharer.stop()
