"""`penstock.prefetch` reads batches from any iterable in advance, in a thread, into recycled memory."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from penstock._fill.cast import Cast
from penstock._measure.meter import Answer, Meter, Stopwatch
from penstock._memory.guests import can_pin
from penstock._options import is_int
from penstock._prefetch import Copies, Gate, Produced, Producer, Sweep, start
from penstock._session.measures import Measures
from penstock._system.ending import END, NoBatch, never_ends, raises_instead
from penstock._system.interrupts import LOOK_AGAIN, interrupts_deferred
from penstock._system.threads import GRACE
from penstock._system.warnings import warn_caller

if TYPE_CHECKING:
    from penstock._session.tracing import Tracing
    from penstock.stats import Stats

__all__ = ["Prefetcher", "prefetch"]

_CLOSED = "This prefetch() was closed. Call prefetch() again."
_ENDED = "This prefetch() was ended by {}: a batch may be lost. reset() or iter() starts again, if possible."


def prefetch(
    source: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    depth: int = 16,
    hold: int = 4,
    dtype: Any = None,
    casting: str = "checked",
    pin_memory: bool = False,
) -> Prefetcher:
    """Reads the batches of `source` ahead, in a thread, and copies them into recycled memory.

    `source` is any iterable of batches (arrays and tensors in dicts, tuples, `Batch`es and so on), or a function that
    returns one, such as a generator function. One thread reads the source, at most `depth` batches ahead. Arrays and
    tensors are copied, so the source may overwrite them at once; other objects are passed on unchanged.

    A batch stays valid as long as you keep any of its arrays. `hold` is the number of batches that you keep at the
    same time; their memory is recycled. If you keep more batches, new memory is allocated.

    `dtype` and `casting` have the same meaning as in `DataLoader`. `pin_memory=True` copies tensors into pinned
    memory.

        >>> import numpy as np, penstock
        >>> def batches():
        ...     buffer = np.empty(3)
        ...     for step in range(2):
        ...         buffer[:] = step
        ...         yield buffer
        >>> with penstock.prefetch(batches, dtype="int32") as ahead:
        ...     [batch.tolist() for batch in ahead]
        [[0, 0, 0], [1, 1, 1]]
    """
    return Prefetcher(source, depth=depth, hold=hold, dtype=dtype, casting=casting, pin_memory=pin_memory)


class _ReadingThread:
    """Describes the reading thread to `Measures`, as if it were a crew of one worker."""

    seats: ClassVar = [0]

    def __init__(self, producer: Producer, copies: Copies, meter: Meter) -> None:
        # When the thread ends, it drops its copies, and so frees their memory.
        self.gauges, self._copies = producer.gauges, weakref.ref(copies)
        self.made: queue.SimpleQueue[Produced] | None = None
        self.stopwatch = Stopwatch(meter)

    @property
    def ready(self) -> int:
        return 0 if self.made is None else self.made.qsize()

    def open_answer(self) -> Answer | None:
        return self.stopwatch.open_answer(0)

    def memory(self) -> tuple[int, int, int]:
        copies = self._copies()
        return (0, 0, 0) if copies is None else copies.memory()


class Prefetcher:
    """The iterator that `prefetch` returns.

    To start the next epoch, call `reset()`, or call `iter()` at the end of the current epoch. Reading starts with the
    first call to `iter()`, `next()` or `reset()`. Several threads may call `next()`, but only one of them may start a
    new epoch.

    >>> import numpy as np, penstock
    >>> with penstock.prefetch([np.zeros(2), np.ones(2)]) as ahead:  # a Prefetcher
    ...     for epoch in range(2):
    ...         print([batch.tolist() for batch in ahead])
    [[0.0, 0.0], [1.0, 1.0]]
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, source: Any, *, depth: int, hold: int, dtype: Any, casting: str, pin_memory: bool) -> None:
        for name, value in (("depth", depth), ("hold", hold)):
            if not is_int(value, 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        cast = Cast.of(dtype, casting)
        if not isinstance(pin_memory, (bool, np.bool_)):
            raise ValueError(f"pin_memory must be True or False, got {pin_memory!r}.")
        pin = bool(pin_memory) and can_pin()
        if pin_memory and not pin:
            warn_caller("pin_memory=True has no effect here: no accelerator is available.", UserWarning)
        self._source = source
        self._gate = Gate(self)  # replaced when the thread starts, which has a gate of its own
        copies = Copies(int(depth + hold), None if cast is None else cast.root(), pin)
        self._producer = Producer(source, copies)
        crews: list[_ReadingThread] = []
        shown = {"backend": "prefetch", "face": "prefetch", "depth": int(depth), "hold": int(hold)}
        self._measures = Measures(f"prefetch({type(source).__name__})", shown.copy, partial(list, crews))
        self._crew = _ReadingThread(self._producer, copies, self._measures.meter)
        crews.append(self._crew)
        self._epochs = 0
        self._depth, self._hold = int(depth), int(hold)
        self._dtype, self._casting, self._pin_memory = dtype, casting, bool(pin_memory)
        self._thread: threading.Thread | None = None
        self._beginning = threading.RLock()  # reentrant: a signal handler may call reset() too
        self._ended_by: str | None = None
        self._closed = False
        self._pid = os.getpid()

    depth = property(attrgetter("_depth"), doc="How many batches are read ahead at most.")
    hold = property(attrgetter("_hold"), doc="How many batches you are expected to keep.")
    dtype = property(attrgetter("_dtype"), doc="The argument `dtype`.")
    casting = property(attrgetter("_casting"), doc='"checked" or "unsafe".')
    pin_memory = property(attrgetter("_pin_memory"))

    @never_ends
    def __iter__(self) -> Prefetcher:
        """Starts the next epoch if the current epoch has ended or was interrupted. Otherwise continues it."""
        again = self._over or self._ended_by is not None
        if not again or self._can_begin:
            self._begin(again)
        return self

    @raises_instead
    def __next__(self) -> Any:
        if self._over and not self._closed:
            return END
        if self._measures.meter.due:  # before a batch is taken: this may call the user's functions, which may raise
            self._measures.tick()
        self._begin(again=False)
        try:
            taken = self._take()
        except BaseException as interrupt:
            # Ctrl-C may come at any instruction: a batch and its permit may be lost.
            self._end_by(interrupt)
            raise
        if taken is END:
            self._measures.end_epoch()
        return taken

    def _take(self) -> Any:
        """Returns the next batch, END, or a NoBatch that holds an error.

        When a batch is taken, the thread may read another.
        """
        if self._gate.stopped and not self._closed:  # this object was in a cycle, and a finalizer brought it back
            self._ended_by = "the garbage collector"
        stopwatch = self._crew.stopwatch
        stopwatch.ask()
        while self._ended_by is None:
            ready = not self._gate.made.empty()
            made = self._gate.take()
            if self._closed or self._ended_by is not None:
                self._gate.made.put(made)  # other threads may be waiting
                break
            sweep = made.sweep
            if sweep is None or sweep is not self._producer.wanted:
                continue  # it was made before a reset, and its permit has expired
            if made.state is not None:
                sweep.state = made.state
            if made.batch is END:
                sweep.is_over = True
                self._gate.made.put(made)  # for other threads that wait, and until the next reset
            else:
                self._gate.permits.put(sweep)
                stopwatch.deliver(1, 0, made.nbytes)
                stopwatch.answer(ready)
            return made.batch
        return NoBatch(RuntimeError(_CLOSED if self._closed else _ENDED.format(self._ended_by)))

    def _end_by(self, interrupt: BaseException) -> None:
        self._ended_by = type(interrupt).__name__
        self._gate.made.put(Produced(None))  # for other threads that wait

    @property
    def _over(self) -> bool:
        sweep = self._producer.wanted
        return sweep is not None and sweep.is_over

    @property
    def _can_begin(self) -> bool:
        """True if a pass over the source can start: none has started yet, or the source can be restarted."""
        # At its end a generator is exhausted. Other iterators may start again when iter() is called.
        over = self._over and not isinstance(self._source, Generator)
        return self._producer.wanted is None or over or self._producer.can_restart

    @never_ends
    def reset(self) -> None:
        """Starts the source again from its beginning. Batches that you hold stay valid.

        If reading has not started yet, it starts now. An iterator without a `reset()` method cannot be reset before
        its end, and a generator cannot be reset at all.
        """
        self._begin(again=True)

    @never_ends
    def __len__(self) -> int:
        """Returns the length of the source. Raises TypeError if the source has no length."""
        return len(self._source)

    def __bool__(self) -> bool:
        return True  # not by len(), which many sources do not have

    # Resuming. These methods exist only if the source has them, because programs test for them.

    def __getattr__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict") and self._producer.has_state:
            return self._state_dict if name == "state_dict" else self._load_state_dict
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @never_ends
    def _state_dict(self) -> Any:
        """Returns the source's state after the last delivered batch. If necessary, waits until reading has begun."""
        sweep = self._producer.wanted
        if sweep is None:
            return self._source.state_dict()
        while True:
            with self._gate.changes.lock:
                if sweep.state_is_known:
                    return sweep.state
                bell = self._gate.changes.bell()
            self._check()
            if self._ended_by is not None:  # perhaps before the first permit
                raise RuntimeError(_ENDED.format(self._ended_by))
            bell.acquire(timeout=LOOK_AGAIN)

    @never_ends
    def _load_state_dict(self, state: Any) -> None:
        """Waits until the source has finished a batch, then loads the state. If loading fails, reading continues."""
        self._check()
        with self._producer.turn:
            try:
                self._source.load_state_dict(state)
                self._producer.loads += 1
                self._begin(again=True, loaded=True, first=state)
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt: the state may be half loaded
                    self._end_by(error)
                raise

    # Where the time goes.

    def stats(self) -> Stats:
        """Returns statistics: how long you waited, what the reading thread did, and a verdict.

        The verdict names the bottleneck, if there is one. The statistics cover the current epoch, and the whole life
        of this object. The prefetcher measures all the time, and any thread may call this method.
        """
        return self._measures.stats()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics to an HTML page. See `DataLoader.report`."""
        self._measures.report(path)

    def trace(self, path: str | os.PathLike[str]) -> Tracing:
        """Writes a trace of the caller and the reading thread to a file. See `DataLoader.trace`."""
        return self._measures.trace(path)

    def close(self) -> None:
        """Stops the thread. Batches that you hold stay valid."""
        with interrupts_deferred():
            self._closed = True
            self._gate.stop()
            if self._pid != os.getpid():
                return
            self._gate.drain()
            self._gate.made.put(Produced(None))  # for a thread that waits for a batch
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(GRACE)
        with interrupts_deferred():  # ending a Thread runs Python code
            self._thread = thread = None
        self._measures.close()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"prefetch({type(self._source).__name__}, depth={self.depth})"

    def __reduce__(self) -> Any:
        raise TypeError("A Prefetcher cannot be pickled, because it has a thread. Pickle the source instead.")

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)
        if self._pid != os.getpid():
            raise RuntimeError(
                "This prefetch() was made before the process was forked, and its thread runs only in the parent "
                "process. Call prefetch() after the fork."
            )

    def _begin(self, again: bool, *, loaded: bool = False, first: Any = None) -> None:
        """Starts a pass over the source, and the thread if needed.

        If `again` is False, does nothing unless this is the first pass. If `loaded` is True, the pass begins at the
        state `first`.
        """
        self._check()
        producer = self._producer
        with self._beginning:
            if self._thread is not None and not again:
                return
            if not loaded and not self._can_begin:
                raise TypeError(
                    f"The source, {type(self._source).__name__}, is an iterator without a reset(), and cannot start "
                    "again now. Give prefetch() the object that the iterator comes from: the list, the loader, or "
                    "the generator function."
                )
            try:
                if self._thread is None or self._gate.stopped:
                    with interrupts_deferred():
                        self._gate = Gate(self)
                        self._thread = start(self._gate, producer)
                # Frees memory. This must come before the new sweep, whose batches may be in the queue later.
                self._gate.drain()
                self._crew.made = self._gate.made
                self._measures.begin_epoch(self._epochs)
                self._epochs += 1
                sweep = producer.wanted = Sweep(loaded, first, producer.loads)
                for _ in range(self.depth):
                    self._gate.permits.put(sweep)
                self._ended_by = None
            except BaseException as interrupt:
                if self._thread is None:
                    self._gate.stop()  # the thread may run, but ends at once; the next one has another gate
                self._end_by(interrupt)
                raise
