"""For pytest, on another system or pretending: tests run with threads, or are skipped where they name processes."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.elsewhere.pretending import VARIABLE, pretend

if VARIABLE in os.environ:
    pretend(os.environ[VARIABLE])


def pytest_configure(config: pytest.Config) -> None:
    for said in ("Workers are threads here", "Remote files are kept in memory and not on disk"):
        config.addinivalue_line("filterwarnings", f"ignore:{said}")


_ASKED = ("Worker processes need Linux", 'backend="ray" needs Linux')


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skips a test where it asks for processes, which is a clear error."""
    try:
        return (yield)
    except BaseException as error:
        each: BaseException | None = error
        while each is not None:
            if any(said in str(each) for said in _ASKED):
                pytest.skip("it needs worker processes")
            each = each.__cause__ or each.__context__
        raise
