"""examples/torchtitan_loader.py, with torchtitan if it is installed, and else with a stand-in for its base class."""

from __future__ import annotations

import abc
import importlib.util
import runpy
import struct
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchtitan_loader.py"


class _BaseDataLoader(abc.ABC):
    """The interface of that of torchtitan 0.3.0: `__iter__`, the methods of Stateful, and a Config with build()."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        dataset: str = ""
        dataset_path: str | None = None

        def build(self, **given: Any) -> Any:
            return sys.modules[__name__].LOADER(self, **given)  # type: ignore[attr-defined]

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@pytest.fixture
def loader_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    if importlib.util.find_spec("torchtitan") is None:
        for name in ("torchtitan", "torchtitan.components", "torchtitan.components.dataloader"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setattr(
            sys.modules["torchtitan.components.dataloader"], "BaseDataLoader", _BaseDataLoader, raising=False
        )
    found = runpy.run_path(str(EXAMPLE))["PenstockLoader"]
    monkeypatch.setattr(sys.modules[__name__], "LOADER", found, raising=False)
    return found


@pytest.fixture
def config(loader_class: Any, tmp_path: Path) -> Any:
    """Two sources, with ids below and above 1,000."""
    for number, name in enumerate(("web", "code")):
        lengths = np.random.default_rng(number).integers(1, 40, 60).astype("<i4")
        ids = (np.arange(lengths.sum()) % 900 + 1 + 1000 * number).astype("<i4")
        starts = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 60, 61)
        (tmp_path / f"{name}.bin").write_bytes(ids.tobytes())
        index = head + lengths.tobytes() + starts.tobytes() + np.arange(61, dtype="<i8").tobytes()
        (tmp_path / f"{name}.idx").write_bytes(index)
    sources = {name: str(tmp_path / name) for name in ("web", "code")}
    return loader_class.Config(sources=sources, weights={"web": 0.7, "code": 0.3}, num_workers=0)


def build(config: Any, rank: int, world: int, rows: int) -> Any:
    # What torchtitan's trainer passes.
    return config.build(
        dp_rank=rank,
        dp_world_size=world,
        tokenizer=None,
        seq_len=32,
        local_batch_size=rows,
        snapshot_every_n_steps=None,
    )


def test_labels_are_the_next_tokens_of_the_same_document(config: Any) -> None:
    with closing(build(config, 0, 1, 4)) as loader:
        inputs, labels = next(iter(loader))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (4, 32)
    assert inputs["input"].dtype == inputs["positions"].dtype == labels.dtype == torch.int64
    known = labels != -100
    assert 0 < known.sum() < labels.numel()
    # Within a document of these files, an id is one more than the id before, but 900 is followed by 1.
    assert ((labels - inputs["input"]) % 900)[known].eq(1).all()
    starts = inputs["positions"][:, 1:] == 0
    assert labels[:, :-1][starts].eq(-100).all()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_of_two_ranks_continues_on_three(config: Any, tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("torch.distributed.checkpoint")

    def steps(loaders: list[Any], count: int) -> list[Any]:
        each = [list(islice(loader, count)) for loader in loaders]
        return [torch.cat([inputs["input"] for inputs, _ in step]) for step in zip(*each, strict=True)]

    with ExitStack() as stack:

        def ranks(world: int) -> list[Any]:
            return [stack.enter_context(closing(build(config, rank, world, 6 // world))) for rank in range(world)]

        expected = steps(ranks(1), 5)
        first = ranks(2)
        assert all(map(torch.equal, steps(first, 2), expected[:2]))
        assert first[0].state_dict() == first[1].state_dict()
        # As torchtitan's checkpointer does: the loader is an entry, whose state is the template to load into.
        checkpoints.save({"dataloader": first[0]}, checkpoint_id=str(tmp_path / "saved"), no_dist=True)
        later = ranks(3)
        for loader in later:
            checkpoints.load({"dataloader": loader}, checkpoint_id=str(tmp_path / "saved"), no_dist=True)
        assert all(map(torch.equal, steps(later, 3), expected[2:]))


def test_an_empty_state_begins_at_the_start(config: Any) -> None:
    with closing(build(config, 0, 1, 2)) as loader:
        loader.load_state_dict({})
        (first, _), (again, _) = next(iter(loader)), next(iter(build(config, 0, 1, 2)))
    assert torch.equal(first["input"], again["input"])
