"""Classes and functions that only this program has: defined inside a function, as in tests, scripts and notebooks."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

import penstock
import penstock.torch
from parity.pair import Tape, both, epoch

FACES = {"core": penstock.DataLoader, "torch": penstock.torch.DataLoader}


def test_under_fork_they_work_wherever_torch_takes_them() -> None:
    """Nothing that a forked worker inherits need be picklable."""
    lock = threading.Lock()

    class Data(Dataset[Any]):
        guard = lock

        def __init__(self) -> None:
            self.lock, self.lines, self.tag = lock, (line for line in ["a"]), 0

        def __len__(self) -> int:
            return 7

        def __getitem__(self, key: int) -> Any:
            with self.lock:
                return torch.tensor([key, self.tag])

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            with lock:
                yield from map(torch.tensor, range(5))

    class Order(Sampler[int]):
        def __init__(self) -> None:
            self.lock = lock

        def __iter__(self) -> Any:
            return iter([3, 1, 2, 6])

        def __len__(self) -> int:
            return 4

    data = Data()

    def tag(worker: int) -> None:
        data.tag = 10 + worker  # the copy of this worker

    def program(loader_class: Any, tape: Tape) -> None:
        for more in (
            {"sampler": Order(), "batch_size": 2},
            {"batch_sampler": [[1, 2], [3]], "persistent_workers": True},
            {"collate_fn": lambda samples: [lock.locked(), len(samples)], "shuffle": True},
        ):
            loader = loader_class(data, num_workers=2, worker_init_fn=tag, multiprocessing_context="fork", **more)
            epoch(loader, tape)
            epoch(loader, tape)
        epoch(loader_class(Stream(), 2, num_workers=1, multiprocessing_context="fork"), tape)

    both(program)


class Program:
    """A loader of the core, or of torch's face with a seed, in which everything is local."""

    def __init__(self, face: Any, **more: Any) -> None:
        class Batch(dict[str, Any]):
            def keys_of_samples(self) -> list[int]:
                return [int(key) for key in self["x"][:, 0]]

        class Data(Dataset[Any]):
            scale = 1

            def __len__(self) -> int:
                return 40

            def __getitem__(self, key: int) -> Any:
                return np.array([key, key * self.scale])

        class Order(Sampler[int]):
            def __iter__(self) -> Any:
                return iter(range(39, -1, -1))

            def __len__(self) -> int:
                return 40

        class Wide:
            scale = 3

        self.batch_class, self.classes = Batch, set[type]()
        self.change = lambda data: setattr(data, "scale", Wide.scale)
        self.loader = face(
            Data(),
            batch_size=2,
            sampler=Order(),
            collate_fn=lambda samples: Batch(x=np.stack(samples)),
            worker_init_fn=lambda worker: None,
            seed=1,
            **more,
        )

    def run(self, *events: Any) -> list[Any]:
        """The batches of an epoch. After every third batch the next of the events happens."""
        found = []
        for step, batch in enumerate(self.loader):
            found.append((type(batch).__name__, batch.keys_of_samples(), batch["x"].tolist()))
            self.classes.add(type(batch))
            if step % 3 == 2 and step // 3 < len(events):
                events[step // 3](self)
        return found


def kill(program: Program) -> None:
    """Ends a worker. Which one makes no difference."""
    loader = program.loader
    workers = loader.workers if isinstance(loader, penstock.DataLoader) else loader._penstock.workers
    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].join(10)


def grow(program: Program) -> None:
    program.loader.num_workers = 3


def shrink(program: Program) -> None:
    program.loader.num_workers = 1


def update(program: Program) -> None:
    program.loader.update(program.change)


def nothing(program: Program) -> None:
    pass


@pytest.mark.filterwarnings("ignore:.*num_workers=3 is more")
@pytest.mark.parametrize(
    ("face", "method"),
    [
        ("core", "fork"),
        ("torch", "fork"),
        ("torch", "forkserver"),
        pytest.param("core", "forkserver", marks=pytest.mark.wide),
    ],
)
def test_they_outlast_kills_resizes_and_updates(face: str, method: str) -> None:
    expected = Program(FACES[face]).run(nothing, nothing, nothing, update)
    program = Program(FACES[face], num_workers=1, multiprocessing_context=method)
    assert program.run(kill, grow, shrink, update, kill) == expected
    assert method == "fork" or program.classes == {program.batch_class}
    (program.loader if face == "core" else program.loader._penstock).close()


def test_they_reach_a_worker_that_is_not_forked_any_more_because_threads_came() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)

    def start_thread(program: Program) -> None:
        thread.start()

    expected = Program(penstock.DataLoader).run(update)
    program = Program(penstock.DataLoader, num_workers=1)
    try:
        with program.loader:
            assert program.run(update, start_thread, kill, nothing, kill) == expected
            [backend] = [engine.backend for engine in program.loader._session.engines.all()]
            assert [launcher.method for launcher in backend._launchers] == ["fork", "forkserver"]
    finally:
        done.set()
        thread.join()


def test_a_batch_of_such_a_class_is_of_that_class() -> None:
    """A worker that is not forked has the class by value, and sends it back by its tag."""

    class Batch(dict[str, Any]):
        pass

    Batch.sent = []  # type: ignore[attr-defined]

    def collate(samples: Any) -> Any:
        Batch.sent.append(1)  # type: ignore[attr-defined]
        return [Batch(a=torch.stack(samples)), {"thing": Batch(b=object)}]

    data = [torch.ones(2), torch.ones(2)]
    loader = penstock.torch.DataLoader(data, num_workers=1, multiprocessing_context="forkserver", collate_fn=collate)
    for first, second in loader:
        assert type(first) is type(second["thing"]) is Batch
    assert Batch.sent == []  # type: ignore[attr-defined]  # the worker's class was not written over ours
