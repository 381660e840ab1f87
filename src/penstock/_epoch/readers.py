"""The iterators of a loader: one epoch each, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._epoch.engine import Delivery, Engine
from penstock._epoch.run import Run
from penstock._wire.failure import annotate
from penstock._wire.task import BY_KEY, Kind, Mended
from penstock.batch import Batch
from penstock.plan import OrderPlan

if TYPE_CHECKING:
    from penstock.loader import DataLoader


class Told(Protocol):
    """Who is told what was handed out: `checkpoint.Progress`, or somebody who tells it later."""

    epoch: int

    def passed(self, step: int, mark: bytes | None) -> None: ...
    def finish(self, end: bytes | None) -> None: ...


class Reader:
    """One epoch, batch by batch. It has its engine to itself until it ends or is dropped."""

    def __init__(self, loader: DataLoader[Any], engine: Engine, run: Run, told: Told) -> None:
        self._loader: DataLoader[Any] = loader
        self.told = told
        self._engine: Engine | None = engine
        self._run = run
        self._plan = run.plan
        self._timeout = loader.timeout if 0 < loader.timeout < math.inf else None
        self._yielded = 0
        self.skipped: list[tuple[Any, Exception]] = []

    def _next(self) -> Delivery:
        while True:
            if self._engine is None:
                raise StopIteration
            engine, delivery = self._engine, None
            try:
                delivery = engine.next(self._timeout)
                if delivery.task is not None:
                    if delivery.task.step in self._run.again:
                        continue
                    self.told.passed(delivery.task.step, delivery.task.mark)
            except BaseException:
                if delivery is not None:  # an interrupt, and the batch is lost: nothing may come after it
                    engine.close()
                raise
            error = delivery.error
            if delivery.mended is not None:
                error = self._note(delivery.mended)
            if error is not None:
                del delivery
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame, which must not hold it in turn
            if delivery.task is None:
                self.told.finish(self._run.end)
                self._let_go(cancel=False)
                raise StopIteration
            if delivery.rows or delivery.mended is None:
                break
            # Nothing is left of the batch: it is passed over.
        self._yielded += 1
        if self._plan is None:
            self._loader._count(self._yielded)
        return delivery

    def _note(self, mended: Mended) -> BaseException | None:
        """Lists what failed on the way to a batch; the error that is one too many, if there is one."""
        most, errors = self._loader.max_errors, mended.errors
        room = len(errors) if most is None else most - len(self.skipped)
        self.skipped += errors[:room]
        if room >= len(errors):
            return None
        why = f"It is raised because {most} samples of this epoch have failed before it: max_errors={most}."
        error: BaseException = errors[room][1]
        return annotate(error, why)

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        """The number of batches in the whole epoch."""
        steps = None if self._plan is None else self._plan.steps(self.told.epoch)
        return len(self._loader) if steps is None else steps

    def close(self) -> None:
        """Abandons the epoch. What workers are at is void and not waited for."""
        self._let_go(cancel=True)

    def __del__(self) -> None:
        self._let_go(cancel=True)

    def _let_go(self, cancel: bool) -> None:
        engine, self._engine = getattr(self, "_engine", None), None
        if engine is None or engine.closed:
            return
        if cancel:
            engine.cancel()
        self._loader._release(engine)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A loader's iterator cannot be pickled: it has workers. Pickle the loader, or its settings."
        )


class Batches(Reader):
    def __next__(self) -> Any:
        return self._next().data


class IndexedBatches(Reader):
    def __next__(self) -> Batch[Any]:
        delivery = self._next()
        task = delivery.task
        assert task is not None
        pad = 0 if self._plan is None else self._plan.pad(task.epoch, task.step)
        index, mended = _index(delivery, self._loader), delivery.mended
        if mended is None:
            return Batch(delivery.data, index, task.epoch, task.step, pad)
        if pad:
            rows = len(task.keys) if task.kind is Kind.KEYS else 1
            pad = sum(row >= rows - pad for row in mended.rows)
        return Batch(delivery.data, index, task.epoch, task.step, pad, skipped=mended.errors)


def _index(delivery: Delivery, loader: DataLoader[Any]) -> NDArray[np.uint64] | None:
    """The keys of the rows where they are integers from 0 on; for a stream, the rows' positions in it."""
    task = delivery.task
    assert task is not None
    if delivery.mended is not None:
        keys = delivery.mended.keys
    elif task.kind not in BY_KEY:
        rank, world = loader._options.shard
        start = (task.step * world + rank) * (loader.batch_size or 1)
        return np.arange(start, start + delivery.rows, dtype=np.uint64)
    else:
        keys = [task.keys] if task.kind is Kind.KEY else task.keys
    if isinstance(keys, np.ndarray):
        return keys.astype(np.uint64)
    if all(isinstance(key, (int, np.integer)) and key >= 0 for key in keys):
        return np.array(keys, np.uint64)
    return None


class Keys:
    """The keys of the loader's current epoch, in order."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        plan = self._plan()
        for keys in plan.draw(self._loader.epoch):
            yield from np.atleast_1d(keys).tolist()

    def __len__(self) -> int:
        epoch, plan = self._loader.epoch, self._plan()
        steps = plan.steps(epoch)
        if steps == 0:
            return 0
        return (steps - 1) * (plan.batch_size or 1) + np.size(plan.keys(epoch, steps - 1))

    def _plan(self) -> OrderPlan:
        plan = self._loader._plan()
        assert isinstance(plan, OrderPlan)
        whole = plan.world == 1 and not plan.padded and not plan.rollover
        return OrderPlan(plan.order, None) if whole else plan
