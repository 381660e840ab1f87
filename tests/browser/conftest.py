"""A real browser, without a window: Debian's chromium. `make browser` installs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.window import Window


@pytest.fixture(scope="session")
def window() -> Iterator[Window]:
    made = Window()
    yield made
    made.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept, to be looked at."""
    folder = Path("build/browser")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
