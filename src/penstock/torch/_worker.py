"""Runs tasks with torch's semantics: a worker has its own random generators and its own copy of the dataset."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.random  # takes 20 ms: imported here so that forked workers do not have to
import torch

from penstock._at_work import set_worker_info
from penstock._fill.cast import Empty, FieldMemory
from penstock._measure.gauges import NO_GAUGE, Gauge, NoGauge, Slow
from penstock._memory.layout import Writer
from penstock._resume.reading import Mark, Reading, has_state, taken
from penstock._system.panics import ordinary
from penstock._wire.failure import annotate, caught, copied, forget_earlier, safe_text, text_of, without_trace
from penstock._wire.pickling import dumps, loads
from penstock._wire.task import Task, shorten
from penstock._wire.updates import Change
from penstock._work.job import Job
from penstock._work.outcomes import AtEnd, Done, Errored
from penstock._work.paths import path_of
from penstock.errors import InternalError, RemoteTraceback
from penstock.torch import _private as private
from penstock.torch._collate import PadTensors, collate, explain
from penstock.torch._gather import Gathered, TensorGather
from penstock.torch._sampling import Sealed
from penstock.worker_info import WorkerInfo

Resumed = tuple[Mark | None, int]
"""A worker's position in a resume state: the last mark (a saved position), and the number of batches after it."""


class Replica:
    """Runs a worker's tasks as torch's workers do. Implements `TaskRunner`, as penstock's `Runner` does.

    If the dataset has a state, results are sent with marks (saved positions). For a stream, every `marks`-th batch
    has a mark. For any other dataset, every result has a mark. If `marks` is 0, no marks are sent.
    """

    def __init__(self, job: Job, who: str, stream: bool, marks: int, resumed: Sequence[Resumed]) -> None:
        self._job, self._who = job, who
        self._seat = -1
        self._init_error: tuple[BaseException, TracebackType | None] | None = None
        self._is_stream = stream
        self._stream, self._stream_run = Reading(()), -1
        self._marks = marks
        self._asks = marks > 0 and has_state(job.dataset)
        self._resumed: Resumed | None = None
        self._all_resumed = resumed
        self._at: Any = None
        self._field = None if job.cast is None else job.cast.root()
        self._gauge: Gauge | NoGauge = NO_GAUGE  # of the task
        self._mark: bytes | None = None
        gathers = job.batched and job.collate_fn is None and not stream
        self._gather = TensorGather(job, seeded=False, late=True) if gathers else None

    def begin(self, seat: int, *, alone: bool) -> None:
        """Seeds the generators once per worker, as torch does. Random numbers thus depend on earlier tasks."""
        job = self._job
        self._seat = seat
        self._resumed = self._all_resumed[seat] if self._all_resumed else None
        with suppress(OSError), open("/proc/self/comm", "w") as name:
            name.write("pt_data_worker")
        seed = job.seed + seat
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(private.numpy_seed(job.seed, seat))
        private.set_worker_info(seat, job.num_workers, seed, job.dataset)
        set_worker_info(WorkerInfo(seat, job.num_workers, seed, job.dataset), of_process=True)
        if job.worker_init_fn is not None:
            try:
                job.worker_init_fn(seat)
            except BaseException as error:
                if not isinstance(kept := caught(error), Exception):
                    raise
                self._init_error = kept, kept.__traceback__

    def change(self, changes: Iterable[Change]) -> None:
        raise InternalError("torch's loader changes no dataset while workers have copies of it")

    def run(self, task: Task, writer: Writer, gauge: Gauge | NoGauge) -> Done | AtEnd | Errored:
        self._at = self._mark = None
        self._task, self._gauge = task, gauge
        try:
            return self._run(task, writer)
        except BaseException as error:
            return self.failed(error, task, self._mark)

    def _run(self, task: Task, writer: Writer) -> Done | AtEnd:
        if self._init_error is not None:
            error, trace = self._init_error
            raise copied(error).with_traceback(trace)
        into = None if self._field is None else FieldMemory(self._field, writer.empty)
        empty = into or writer.empty
        fetched = self._pull(task) if self._is_stream else self._fetch(task, empty)
        if fetched is None:
            return AtEnd(self._mark)
        if self._gauge.detailed:
            self._gauge.fetched = perf_counter_ns()
        if isinstance(fetched, Gathered):
            batch, rows = fetched.batch, fetched.rows
            return Done(batch if into is None else into.finish(batch, rows), rows, None, self._mark)
        samples: Any = fetched[0]
        batch = self._collate(samples, empty, writer)
        if into is not None:
            batch = into.finish(batch, len(samples) if self._job.batched else 0)
        return Done(batch, fetched[1], None, self._mark)

    def _collate(self, samples: Any, empty: Empty, writer: Writer) -> Any:
        custom = self._job.collate_fn
        if isinstance(custom, PadTensors) and self._job.batched:
            return custom.into(samples, writer.empty)
        if custom is not None:
            return custom(samples)
        try:
            return collate(samples, empty, alone=False)
        except Exception as error:
            explain(error, samples)
            raise

    def failed(self, error: BaseException, task: Task, mark: bytes | None) -> Errored:
        """Returns the outcome of a failed task. Re-raises errors such as SystemExit, to end the worker."""
        error = ordinary(error)
        if not isinstance(error, Exception):
            raise error
        where = f"step {task.step}, in {self._who}."
        if self._at is not None:
            where = f"sample {safe_text(self._at, repr)} of {where}"
        elif not self._is_stream:
            where = f"the step of samples {shorten(_keys(task.keys))}: {where}"
        return Errored(error, f"In {where}", mark=mark)

    def capture(self, errored: Errored) -> bytes:
        """Serialises the exception as torch does, with torch's message."""
        error = errored.error
        forget_earlier(error)
        process, body = f"in DataLoader worker process {self._seat}", b""
        with suppress(BaseException):  # torch cannot format the exception, or it cannot be pickled
            wrapped = private.ExceptionWrapper((type(error), error, error.__traceback__), where=process)
            body = dumps(wrapped)
        text = f"Caught {type(error).__name__} {process}.\nOriginal {text_of(error)}"
        return dumps(TorchFailure(body, text, errored.where))

    def _fetch(self, task: Task, empty: Empty) -> tuple[Any, int] | Gathered:
        """Returns the samples of a step and their number, or the whole batch if the dataset gathers batches."""
        dataset = self._job.dataset
        if self._resumed is not None:
            (mark, _), self._resumed = self._resumed, None
            if mark is not None:
                Reading(dataset).prepare(mark)
        try:
            if not self._job.batched:
                return self._get(task.keys), 1
            gathered = None if self._gather is None else self._gather(task.keys, empty)
            if gathered is not None:
                return gathered
            keys = _keys(task.keys)
            rows = len(keys)
            many = getattr(dataset, "__getitems__", None)
            if many:
                return many(keys), rows
            get = self._get
            if self._gauge.times:
                self._gauge.begin_epoch(task.run)  # torch's loader does not count epochs
                get = self._get_timed
            return [get(key) for key in keys], rows
        finally:
            if self._asks:
                self._mark = taken(dataset, lambda: Mark(0, {"iterable": dataset.state_dict()}))

    def _get(self, key: Any) -> Any:
        self._at = key
        sample = self._job.dataset[key]
        self._at = None
        return sample

    def _get_timed(self, key: Any) -> Any:
        before = perf_counter_ns()
        sample = self._get(key)
        took = perf_counter_ns() - before
        if self._gauge.sample(took):
            path = path_of(self._job.dataset, key)
            self._gauge.note(Slow(took, self._task.run, self._task.step, safe_text(key, repr), path))
        return sample

    def _pull(self, task: Task) -> tuple[Any, int] | None:
        """Returns the next samples of the stream and their number, or None at the stream's end."""
        count = task.keys if self._job.batched else 1
        if task.run != self._stream_run:
            self._open_stream(task.run, count)
        stream = self._stream
        samples = stream.take(count)
        if not samples or (stream.ended and self._job.drop_last and self._job.batched):
            if self._marks:
                self._mark = taken(self._job.dataset, stream.end)
            stream.close()
            return None
        if self._marks and stream.read % self._marks == 0:
            self._mark = taken(self._job.dataset, stream.mark)
        return samples if self._job.batched else samples[0], len(samples)

    def _open_stream(self, run: int, count: int) -> None:
        self._stream_run = run
        stream = self._stream = Reading(self._job.dataset)
        (mark, more), self._resumed = self._resumed or (None, 0), None
        if mark is not None and mark.at_end:  # this epoch has no batches left
            self._resumed = mark.next_epoch(), 0
        stream.open(mark)
        until = stream.read + more
        stream.pass_over(until, count)


class TorchFailure(NamedTuple):
    """A worker's exception, wrapped by torch. The type is kept, and the text includes the worker's traceback."""

    wrapped: bytes  # pickled; empty if the exception cannot be pickled
    text: str
    note: str

    def exception(self) -> BaseException:
        error: BaseException = RuntimeError(self.text)
        wrapped = None
        with suppress(Exception):  # a type that this process cannot build
            wrapped = loads(self.wrapped)
        if wrapped is not None:
            try:
                wrapped.reraise()
            except BaseException as raised:
                # For an exception group, torch raises a TypeError of its constructor instead.
                told = type(raised) is wrapped.exc_type
                error = without_trace(raised, None if told else RemoteTraceback(self.text))
        return annotate(error, self.note)


def sealed(keys: Any) -> Any:
    """Packs the keys of a batch for sending, so that `_keys` can return exactly what the sampler yielded."""
    if type(keys) is Sealed:
        return keys.keys
    return keys if type(keys) is list and set(map(type, keys)) == {int} else (keys,)


def _keys(sent: Any) -> Any:
    return sent[0] if type(sent) is tuple else sent.tolist() if type(sent) is np.ndarray else sent
