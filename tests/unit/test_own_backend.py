"""The backend of docs/own-backend.md keeps the laws that ours keep."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import backends
from penstock.testing import conformance

PAGE = Path(__file__).parents[2] / "docs" / "own-backend.md"


@pytest.fixture(scope="module", autouse=True)
def example() -> Any:
    """Runs the example, which registers its backend."""
    (code, *_) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    yield names
    backends.unregister("named")


class TestNamedThreads(conformance.Suite):
    backend = "named"
    settings = {"backend_options": {"name": "mine"}}  # noqa: RUF012
    loses_workers = own_generators = seats = False


def test_its_options_are_checked_when_a_loader_is_made() -> None:
    for given in (None, {}, {"name": "mine", "size": 3}):
        with pytest.raises(TypeError, match="Give backend_options="):
            penstock.DataLoader([1], num_workers=1, backend="named", backend_options=given)


def test_its_figures_show_the_work_of_its_workers() -> None:
    with penstock.DataLoader(
        range(12), 2, num_workers=2, backend="named", backend_options={"name": "mine"}
    ) as loader:
        assert len(list(loader)) == 6
        workers = loader.stats().life.workers
    assert sum(worker.steps for worker in workers) == 6
    assert {worker.name for worker in workers} <= {"worker 0 (thread)", "worker 1 (thread)"}


def test_the_page_names_every_public_name() -> None:
    named = set(re.findall(r"\w+", PAGE.read_text()))
    of_backends = set(backends.__all__) - {"Change", "HUNG", "Outcome", "known", "make", "unregister"}
    assert of_backends - named == set()


def test_a_backend_without_a_method_that_it_needs_cannot_be_made(example: dict[str, Any]) -> None:
    kind = type("Forgetful", (example["NamedThreads"],), {"hire": backends.Backend.hire})
    with pytest.raises(TypeError, match=r"abstract method '?hire"):
        kind(backends.Job([1], len, None, None, 1, 0, False), {"name": "mine"})


def test_every_method_of_the_protocol_has_a_default_or_is_in_the_example(example: dict[str, Any]) -> None:
    kind = example["NamedThreads"]
    with contextlib.closing(kind(backends.Job([1], len, None, None, 1, 0, False), {"name": "mine"})) as backend:
        assert backend.clock() > 0 and backend.flush() is None and not backend.has_dead() and not backend.handles
        assert backend.end_hung(1) == [] and backend.most_steps == 1 and not backend.leaves_nothing
