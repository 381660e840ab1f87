"""What torch itself leaves behind in this process is put away, so that ours stands out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from multiprocessing import resource_sharer

import pytest
from programs import forge


@pytest.fixture
def tensors_are_sent() -> Iterator[None]:
    """For a test in which this process sends tensors: torch opens a socket for that, and keeps it."""
    yield
    resource_sharer.stop()


@pytest.fixture(scope="session")
def torch_forge() -> Iterator[socket.socket]:
    """Begins programs that have imported torch."""
    pytest.importorskip("torch")
    with forge("import torch, torch.distributed.run") as control:
        yield control
