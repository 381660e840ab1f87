"""A worker with torch's semantics: it has its own random generators and its own copy of the dataset."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.random  # takes 20 ms: imported here so that forked workers need not
import torch

from penstock._at_work import set_worker_info
from penstock._fill.cast import Into
from penstock._memory.layout import Writer
from penstock._resume.reading import Mark, Reading, has_state, taken
from penstock._wire.failure import annotate
from penstock._wire.pickling import dumps
from penstock._wire.task import Task, shorten
from penstock._work.runner import Job
from penstock._work.samples import StreamEnded
from penstock.torch import _private as private
from penstock.torch._collate import collate
from penstock.worker_info import WorkerInfo

Resumed = tuple[Mark | None, int]
"""The position of a worker's copy of the dataset in the state that was loaded: its mark, and the batches since."""


class Replica:
    """Runs tasks like torch's workers. Replaces `Runner`.

    If the dataset has a state, its mark travels with the result of a task: that of a stream with every `marks`-th
    batch, none if `marks` is 0.
    """

    def __init__(self, job: Job, who: str, stream: bool, marks: int, resumed: Sequence[Resumed]) -> None:
        self._job, self._who = job, who
        self._seat = -1
        self._init_error: Exception | None = None
        self._is_stream = stream
        self._stream, self._stream_run = Reading(()), -1
        self._marks = marks
        self._asks = marks > 0 and has_state(job.dataset)
        self._resumed: Resumed | None = None
        self._all_resumed = resumed
        self._at: Any = None
        self._field = None if job.cast is None else job.cast.root()
        self.rows = 1
        self.mended = None
        self.mark: bytes | None = None  # travels with the reply of the task: see Task

    def begin(self, seat: int, *, alone: bool) -> None:
        """Seeds the generators once, as torch does: later random numbers depend on all earlier ones."""
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
        """Does nothing: the generators are seeded once."""

    def run(self, task: Task, writer: Writer) -> object:
        """The batch. With torch's default collate_fn, its tensors are in the writer's slab."""
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
        """The exception as bytes, in torch's words. SystemExit and the like are raised here: they end the worker."""
        if not isinstance(error, Exception):
            raise error
        where = f"step {task.step}, in {self._who}."
        if self._at is not None:
            where = f"sample {self._at!r} of {where}"
        elif not self._is_stream:
            where = f"the step of samples {shorten(_keys(task.keys))}: {where}"
        thrown = type(error), error, error.__traceback__
        wrapped = private.ExceptionWrapper(thrown, where=f"in DataLoader worker process {self._seat}")
        with suppress(Exception):  # an exception that cannot be pickled
            return dumps(TorchFailure(wrapped, f"In {where}"))
        text = f"Caught {type(error).__name__} {wrapped.where}.\nOriginal {wrapped.exc_msg}"
        return dumps(TorchFailure(text, f"In {where}"))

    def _samples(self, task: Task) -> Any:
        dataset = self._job.dataset
        if self._is_stream:
            return self._pull(task)
        if self._resumed is not None:
            (mark, _), self._resumed = self._resumed, None
            if mark is not None:
                Reading(dataset).prepare(mark)
        try:
            if not self._job.batched:
                return self._get(task.keys)
            keys = _keys(task.keys)
            many = getattr(dataset, "__getitems__", None)
            return many(keys) if many else [self._get(key) for key in keys]
        finally:
            if self._asks:
                self.mark = taken(dataset, lambda: Mark(0, {"iterable": dataset.state_dict()}))

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
            if self._marks:
                self.mark = taken(self._job.dataset, stream.end)
            stream.close()
            raise StreamEnded
        if self._marks and stream.read % self._marks == 0:
            self.mark = taken(self._job.dataset, stream.mark)
        return samples if self._job.batched else samples[0]

    def _open_stream(self, run: int, count: int) -> None:
        self._stream_run = run
        stream = self._stream = Reading(self._job.dataset)
        (mark, more), self._resumed = self._resumed or (None, 0), None
        if mark is not None and mark.at_end:  # nothing is left in this epoch
            self._resumed = mark.next_epoch(), 0
        stream.open(mark)
        until = stream.read + more
        stream.pass_over(until, count)


class TorchFailure(NamedTuple):
    """An exception in transit, as torch wraps it: of the same type, with the traceback in its text."""

    wrapped: Any  # the text alone if the exception cannot be pickled
    note: str

    def exception(self) -> BaseException:
        try:
            raise RuntimeError(self.wrapped) if isinstance(self.wrapped, str) else self.wrapped.reraise()
        except BaseException as error:
            error.__traceback__ = error.__context__ = None
            return annotate(error, self.note)


def sealed(keys: Any) -> Any:
    """The keys of a batch, packed so that `_keys` returns exactly the object that the sampler gave."""
    return keys if type(keys) is list and set(map(type, keys)) == {int} else (keys,)


def _keys(sent: Any) -> Any:
    return sent[0] if type(sent) is tuple else sent.tolist() if type(sent) is np.ndarray else sent


NOT_THE_END = (
    "The dataset (or collate_fn) raised StopIteration. This is an error, and does not end the epoch: raise "
    "IndexError for a missing sample, or derive from IterableDataset for a stream."
)
