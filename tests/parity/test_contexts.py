"""Multiprocessing contexts that are not Python's own: used by their start method, or replaced with one warning."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing import context as contexts
from types import SimpleNamespace
from typing import Any

import pytest
import torch.multiprocessing

import penstock
import penstock.torch
from penstock.backends._process import methods
from penstock.torch import _semantics as semantics


class OwnProcess(contexts.Process):
    """A library's own. `_start_method` is what multiprocessing calls it."""

    _start_method = "library"


class OwnForkProcess(contexts.ForkProcess):
    pass


class Renamed(contexts.ForkContext):
    """A context of Python's under another name, as libraries derive it."""

    _name = "renamed"


class WithProcess(contexts.SpawnContext):
    _name = "with process"
    Process = OwnProcess


class Foreign(contexts.BaseContext):
    """A start method of its own, like loky's."""

    _name = "library"
    Process = OwnProcess


class Failing(contexts.BaseContext):
    _name = "failing"
    Process = OwnForkProcess

    def get_start_method(self, allow_none: bool = False) -> str:
        raise RuntimeError("this library has no start methods")


class FailingForeign(Failing):
    Process = OwnProcess


def another_package() -> Any:
    """Like the context of `multiprocess` or `billiard`: related to none of Python's classes."""
    process = type("Process", (), {"__module__": "multiprocess.context", "_start_method": "spawn"})
    return SimpleNamespace(get_start_method=lambda allow_none=False: "spawn", Process=process)


# The context, the method that is used, and whether a warning says so.
CONTEXTS: dict[str, tuple[Any, str, bool]] = {
    "renamed": (Renamed(), "fork", False),
    "with its own process": (WithProcess(), "spawn", True),
    "foreign": (Foreign(), "fork", True),
    "failing": (Failing(), "fork", True),
    "failing and foreign": (FailingForeign(), "fork", True),
    "default": (multiprocessing.get_context(), "fork", False),
    "torch's": (torch.multiprocessing.get_context("fork"), "fork", False),
    "torch's spawn": (torch.multiprocessing.get_context("spawn"), "spawn", False),
}


@pytest.fixture(autouse=True)
def not_warned_yet() -> Iterator[None]:
    methods._warn.cache_clear()
    yield
    methods._warn.cache_clear()


def caught(program: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = program()
    return result, [str(one.message) for one in seen]


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_is_used_by_its_method_or_replaced_with_one_warning(name: str) -> None:
    context, method, warns = CONTEXTS[name]
    chosen, said = caught(lambda: [methods.choose_method(context) for _ in range(3)])
    assert chosen == [method] * 3
    assert len(said) == warns
    assert all(f"by {method}," in text for text in said)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("name", [name for name in CONTEXTS if "spawn" not in CONTEXTS[name][1]])
def test_a_torch_loader_with_such_a_context_gives_its_batches(name: str, seed: Any) -> None:
    context, _, warns = CONTEXTS[name]

    def program() -> Any:
        loader = penstock.torch.DataLoader(range(4), 2, num_workers=1, multiprocessing_context=context, seed=seed)
        assert loader.multiprocessing_context is context
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    found, said = caught(program)
    assert found == [[[0, 1], [2, 3]]] * 2
    assert len(said) == warns


@pytest.mark.parametrize("name", CONTEXTS)
def test_the_core_says_it_in_its_constructor(name: str) -> None:
    context, _, warns = CONTEXTS[name]
    loader, said = caught(lambda: penstock.DataLoader(range(4), num_workers=1, multiprocessing_context=context))
    assert len(said) == warns
    assert loader.multiprocessing_context is context


def test_a_context_of_another_package_is_used_by_its_method() -> None:
    context = another_package()
    method, said = caught(lambda: methods.choose_method(context))
    assert method == "spawn"
    assert len(said) == 1


@pytest.mark.parametrize(
    "wrong",
    [3, object(), OwnProcess, Foreign, SimpleNamespace(Process=1)],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_no_context_is_refused_by_the_constructor(wrong: Any) -> None:
    with pytest.raises(TypeError, match="multiprocessing_context must be one of fork, spawn, forkserver, or a"):
        penstock.DataLoader(range(4), num_workers=1, multiprocessing_context=wrong)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_start_method_that_a_library_has_set_for_the_program_is_replaced_in_silence(
    seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker process of joblib, loky's is the default. The program has not chosen it, and can do nothing."""
    monkeypatch.setattr(contexts._default_context, "_actual_context", Foreign())
    assert multiprocessing.get_start_method() == "library"
    found, said = caught(
        lambda: [batch.tolist() for batch in penstock.torch.DataLoader(range(4), 2, num_workers=1, seed=seed)]
    )
    assert found == [[0, 1], [2, 3]]
    assert said == []
    assert [batch.tolist() for batch in penstock.DataLoader(range(4), 2, num_workers=1)] == found


class Parents:
    """The samples are the pids of the workers' parents."""

    def __init__(self, held: object = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> int:
        return os.getppid()


def test_beside_jax_workers_are_not_forked_from_the_program_unless_nothing_else_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def parent(held: object = None) -> int:
        found = {int(batch) for batch in penstock.torch.DataLoader(Parents(held), num_workers=1)}
        return found.pop()

    monkeypatch.setattr(methods, "_without_fork", "spawn")  # and no template between
    monkeypatch.setattr(methods, "survives_fork", lambda: False)
    methods_used: list[str] = []
    started = semantics.start
    monkeypatch.setattr(
        semantics,
        "start",
        lambda job, context: methods_used.append(methods.choose_method(context)) or started(job, context),
    )
    assert parent() == os.getpid()
    monkeypatch.setitem(sys.modules, "jax", os)
    assert parent() == os.getpid()
    assert parent(threading.Lock()) == os.getpid()  # cannot be pickled
    assert methods_used == ["fork", "spawn", "spawn", "fork"]


def test_no_process_of_the_context_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Process class may need what only its library prepares."""
    monkeypatch.setattr(OwnProcess, "start", lambda self: os.abort())
    loader = penstock.torch.DataLoader(range(2), num_workers=1, multiprocessing_context=Foreign())
    _, said = caught(lambda: list(loader))
    assert "does not use the Process class" in said[0]
