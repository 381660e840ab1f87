"""A worker as torch has it: with random generators of its own, and its own copy of a stream."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.random  # 20 ms, which every worker that is forked from here is spared
import torch

from penstock._at_work import set_worker_info
from penstock._fill.out import Into
from penstock._memory.layout import Writer
from penstock._resume.marks import taken
from penstock._resume.reading import Mark, Reading, has_state
from penstock._wire.failure import annotate
from penstock._wire.pickling import dumps
from penstock._wire.task import Task, shorten
from penstock._work.job import Job
from penstock._work.samples import StreamEnded
from penstock.torch import _private as private
from penstock.torch._collate import collate
from penstock.worker_info import WorkerInfo


class Replica:
    """Runs tasks as torch's workers do. It stands in the place of `Runner`.

    Where the dataset has a state, it goes with what comes of a task: that of a stream with every `marks`-th batch,
    and none if that is 0. `resumed` is where each worker's copy of the dataset was when a state was taken: its mark,
    and how many batches it gave since.
    """

    def __init__(
        self,
        job: Job,
        who: str,
        stream: bool = False,
        marks: int = 0,
        resumed: Sequence[tuple[Mark | None, int]] = (),
    ) -> None:
        self._job = job
        self._who = who
        self._seat = -1
        self._init_error: Exception | None = None
        self._is_stream = stream
        self._stream = Reading(())
        self._stream_run = -1
        self._marks = marks
        self._asks = marks > 0 and has_state(job.dataset)
        self._resumed: tuple[Mark | None, int] | None = None
        self._all_resumed = resumed
        self._at: Any = None
        self._field = None if job.cast is None else job.cast.root()
        self.rows = 1
        self.mended = None
        self.mark: bytes | None = None  # set after a task, it travels with its reply: see Task

    def begin(self, seat: int, *, alone: bool) -> None:
        """Seeds the generators once, as torch does: what is drawn later depends on what was drawn before."""
        job = self._job
        self._seat = seat
        self._resumed = self._all_resumed[seat] if self._all_resumed else None
        with suppress(OSError), open("/proc/self/comm", "w") as name:
            name.write("pt_data_worker")
        torch.set_num_threads(1)
        seed = job.seed + seat
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(private.numpy_seed(job.seed, seat))
        private.set_worker_info(seat, job.num_workers, seed, job.dataset)
        set_worker_info(WorkerInfo(seat, job.num_workers, seed, job.dataset), of_process=True)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(seat)
            except Exception as error:
                self._init_error = error

    def prepare(self, task: Task) -> None:
        """Nothing is seeded again."""

    def run(self, task: Task, writer: Writer) -> object:
        """The batch. Its tensors are in the writer's slab where collate is torch's."""
        self._at = self.mark = None
        if self._init_error is not None:
            raise self._init_error
        job = self._job
        try:
            samples = self._samples(task)
            into = None if self._field is None else Into(self._field, writer.empty)
            if job.collate_fn is None:
                batch = collate(samples, into or writer.empty, alone=False)
            else:
                batch = job.collate_fn(samples)
            return batch if into is None else into.finish(batch, len(samples) if job.batched else 0)
        except StopIteration as error:
            raise RuntimeError(NOT_THE_END) from error

    def capture(self, error: BaseException, task: Task) -> bytes:
        """The error as it travels to the caller, in torch's words. One that means to exit does."""
        if not isinstance(error, Exception):
            raise error
        where = f"step {task.step}, in {self._who}."
        if self._at is not None:
            where = f"sample {self._at!r} of {where}"
        elif not self._is_stream:
            where = f"the step of samples {shorten(_keys(task.keys))}: {where}"
        wrapped = private.ExceptionWrapper(
            (type(error), error, error.__traceback__), where=f"in DataLoader worker process {self._seat}"
        )
        failure = TorchFailure(wrapped, f"In {where}")
        try:
            return dumps(failure)
        except Exception:  # a class that cannot be sent
            text = f"Caught {type(error).__name__} {wrapped.where}.\nOriginal {wrapped.exc_msg}"
            return pickle.dumps(_Told(text, f"In {where}"))

    def _samples(self, task: Task) -> Any:
        dataset = self._job.dataset
        if self._is_stream:
            return self._pull(task)
        if self._resumed is not None:
            (mark, _), self._resumed = self._resumed, None
            if mark is not None and mark.states is not None:
                dataset.load_state_dict(mark.states["iterable"])
        if not self._job.batched:
            samples = self._get(task.keys)
        else:
            keys = _keys(task.keys)
            many = getattr(dataset, "__getitems__", None)
            samples = many(keys) if many else [self._get(key) for key in keys]
        if self._asks:
            self.mark = taken(dataset, lambda: Mark(0, {"iterable": dataset.state_dict()}))
        return samples

    def _get(self, key: Any) -> Any:
        self._at = key
        sample = self._job.dataset[key]
        self._at = None
        return sample

    def _pull(self, task: Task) -> Any:
        count = task.keys if self._job.batched else 1
        if task.run != self._stream_run:
            self._open_stream(task.run, count)
        stream = self._stream
        samples = stream.take(count)
        if not samples or (stream.ended and self._job.drop_last and self._job.batched):
            self._stream = Reading(())  # so that the state at the end is asked for once
            self.mark = taken(self._job.dataset, stream.end) if self._marks else None
            raise StreamEnded
        if self._marks and stream.read % self._marks == 0:
            self.mark = taken(self._job.dataset, stream.mark)
        return samples if self._job.batched else samples[0]

    def _open_stream(self, run: int, count: int) -> None:
        self._stream_run = run
        self._stream = Reading(())  # until iter() has come back
        stream = Reading(self._job.dataset)
        (mark, more), self._resumed = self._resumed or (None, 0), None
        if mark is not None and mark.states is None and mark.kept is not None:
            # Nothing is left now, and the next epoch begins with this.
            self._resumed = Mark(0, {}, mark.kept), 0
        stream.open(mark)
        for _ in range(more):
            with suppress(Exception):  # it was raised the first time
                stream.take(count)
        self._stream = stream


class TorchFailure(NamedTuple):
    """An exception on its way to the caller, as torch wraps it: one of its type, with the traceback as text."""

    wrapped: Any
    note: str

    def exception(self) -> BaseException:
        try:
            self.wrapped.reraise()
        except BaseException as error:
            error.__traceback__ = error.__context__ = None
            return annotate(error, self.note)
        raise AssertionError("it raises")


class _Told(NamedTuple):
    """What is left of an exception that could not be sent."""

    text: str
    note: str

    def exception(self) -> BaseException:
        return annotate(RuntimeError(self.text), self.note)


def sealed(keys: Any) -> Any:
    """The keys of a batch, so that `_keys` gives back just what the sampler gave."""
    return keys if type(keys) is list and set(map(type, keys)) == {int} else (keys,)


def _keys(sent: Any) -> Any:
    return sent[0] if type(sent) is tuple else sent.tolist() if type(sent) is np.ndarray else sent


NOT_THE_END = (
    "The dataset (or collate_fn) raised StopIteration. That is an error, and does not end the epoch: raise "
    "IndexError for a missing sample, or derive from IterableDataset for a stream."
)
