"""prefetch: the same memory, and one thread, for any iterable of batches."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from penstock._fill.cast import Cast, Field, converted, is_tensor
from penstock._memory.arena import Arena
from penstock._memory.layout import Writer
from penstock._memory.lease import Leases
from penstock._memory.leaves import STORES
from penstock._memory.pool import Pool
from penstock._memory.tree import flatten, unflatten
from penstock._wire.failure import annotate

# Seconds that close() and the interpreter's exit wait for a source that is in the middle of a batch. It cannot be
# interrupted, and finishes that batch in the background.
_GRACE = 1.0

_LONGEST_WAIT = 1.0


def prefetch(
    source: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    depth: int = 16,
    hold: int = 4,
    dtype: Any = None,
    casting: str = "checked",
    pin_memory: bool = False,
) -> Prefetcher:
    """The batches of `source`, in their order, read ahead by a thread and copied into memory that is used again.

    `source` is any iterable of batches: arrays and tensors in dicts, tuples, `Batch`es and so on; or a function that
    returns one, so that a generator can begin anew. It is read by one thread, at most `depth` batches ahead, and
    its arrays and tensors are copied, so that it may overwrite them at once. What is neither is handed on as it is.

    A batch is yours for as long as anything looks into it. `hold` is how many of those that you have are expected:
    for so many there is memory that was used before, and who keeps more gets new memory.

    `dtype` and `casting` are as for `DataLoader`, and `pin_memory` puts tensors into pinned memory.

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


class Prefetcher:
    """What `prefetch` returns: an iterator, which `reset()`, or a new `iter()` after its end, begins anew.

    Reading begins with the first `iter()`, `next()` or `reset()`. Several threads may call `next()`; `reset()`, and
    the `iter()` of a new epoch, are for one of them.
    """

    def __init__(
        self,
        source: Any,
        *,
        depth: int,
        hold: int,
        dtype: Any,
        casting: str,
        pin_memory: bool,
    ) -> None:
        for name, value in (("depth", depth), ("hold", hold)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
        cast = Cast.of(dtype, casting)
        self._source = source
        self._gate = _Gate()  # the thread's, once there is one
        self._feed = _Feed(source, int(depth + hold), cast, _pinning(pin_memory))
        self._options = {
            "depth": int(depth),
            "hold": int(hold),
            "dtype": dtype,
            "casting": casting,
            "pin_memory": bool(pin_memory),
        }
        self._thread: threading.Thread | None = None
        self._beginning = threading.RLock()  # a signal's handler may begin anew too
        self._ended_by: str | None = None
        self._closed = False
        self._pid = os.getpid()
        self._state: tuple[_Run | None, Any] = None, None  # the source's, and in which run

    depth = property(lambda self: self._options["depth"], doc="How many batches the source is ahead at most.")
    hold = property(
        lambda self: self._options["hold"], doc="How many batches you are expected to have at a time."
    )
    dtype = property(lambda self: self._options["dtype"], doc="As it was given.")
    casting = property(lambda self: self._options["casting"], doc='"checked" or "unsafe".')
    pin_memory = property(lambda self: self._options["pin_memory"])

    # One epoch.

    def __iter__(self) -> Prefetcher:
        """Begins the next epoch if this one was read to its end, or was interrupted, and else goes on."""
        again = self._over or self._ended_by is not None
        if not again or self._can_begin:
            self._begin(again)
        return self

    def __next__(self) -> Any:
        if self._over and not self._closed:
            raise StopIteration
        self._begin(again=False)
        try:
            made = self._take()
            if made is not None and made.error is None and not made.is_end:
                return made.batch
        except BaseException as interrupt:
            # Ctrl-C comes anywhere: a batch, and its permit, may be lost.
            self._end_by(interrupt)
            raise
        if made is None:
            raise RuntimeError(_CLOSED if self._closed else _ENDED.format(self._ended_by))
        error = made.error
        del made
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            del error  # its traceback holds this frame, which must not hold it in turn

    def _take(self) -> _Made | None:
        """What comes next, and a permit for another; None where it was closed, or ended."""
        if self._ended_by is not None:
            return None
        while True:
            made = self._gate.take()
            if self._closed or self._ended_by is not None:
                self._gate.made.put(made)  # others may wait
                return None
            run = made.run
            if run is not None and run is self._feed.wanted:
                break  # others were read before a reset, and their permits have ended with them
        if made.state is not None:
            self._state = run, made.state
        if made.is_end:
            run.over = True
            self._gate.made.put(made)  # for others who wait, and until the next reset
        else:
            self._gate.permits.put(run)
        return made

    def _end_by(self, interrupt: BaseException) -> None:
        self._ended_by = type(interrupt).__name__
        self._gate.made.put(_Made(None))  # for others who wait

    @property
    def _over(self) -> bool:
        run = self._feed.wanted
        return run is not None and run.over

    @property
    def _can_begin(self) -> bool:
        """Whether nothing that was read ahead would be lost, or the source can be read again."""
        # A generator is spent then, and can only be made anew.
        over = self._over and not isinstance(self._source, Generator)
        return self._feed.wanted is None or over or self._feed.can_restart

    def reset(self) -> None:
        """Begins the source anew, wherever it was. Batches that were handed out stay as they are.

        Where reading has not begun yet, it begins. An iterator without a `reset()` cannot be reset before its end, a
        generator not at all.
        """
        self._begin(again=True)

    def __len__(self) -> int:
        """The number of batches, where the source has one."""
        return len(self._source)

    def __bool__(self) -> bool:
        return True  # and not what len() says, which many sources do not have

    # Stopping and going on: only where the source can, as programs look for these methods.

    def __getattr__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict") and self._feed.has_state:
            return self._state_dict if name == "state_dict" else self._load_state_dict
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _state_dict(self) -> Any:
        """What the source's `state_dict()` was after the batch that was handed out last.

        After a reset, that is when it has begun anew: this waits for that.
        """
        run = self._feed.wanted
        if run is None:
            return self._source.state_dict()
        if self._state[0] is run:
            return self._state[1]
        while not run.opened.wait(_LONGEST_WAIT):
            self._check()
            if self._ended_by is not None:  # perhaps before there was a permit
                raise RuntimeError(_ENDED.format(self._ended_by))
        return run.first

    def _load_state_dict(self, state: Any) -> None:
        """Gives the state to the source, which is begun anew with it. If it raises, all stays as it was.

        This waits for the batch that the source is at.
        """
        self._check()
        with self._feed.turn:
            try:
                self._source.load_state_dict(state)
                self._begin(again=True, loaded=True, first=state)
            except Exception:
                raise
            except BaseException as interrupt:  # of which nobody knows how much was done
                self._end_by(interrupt)
                raise

    # The life of the thread.

    def close(self) -> None:
        """Ends the thread. Batches that were handed out stay valid."""
        self._closed = True
        self._gate.stop()
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self._gate.drain()
        self._gate.made.put(_Made(None))  # for a thread that waits for a batch
        if thread is not threading.current_thread():
            thread.join(_GRACE)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"prefetch({type(self._source).__name__}, depth={self.depth})"

    def __reduce__(self) -> Any:
        raise TypeError("What prefetch() returns cannot be pickled: it has a thread. Pickle the source.")

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError(_CLOSED)
        if self._pid != os.getpid():
            raise RuntimeError(
                "This prefetch() was made before this process was forked, and its thread is in the process that "
                "made it. Call prefetch() after the fork."
            )

    def _begin(self, again: bool, *, loaded: bool = False, first: Any = None) -> None:
        """Starts the thread if there is none yet, or has it begin `again`; with a `first` state that was `loaded`."""
        self._check()
        feed = self._feed
        with self._beginning:
            if self._thread is not None and not again:
                return
            if not loaded and not self._can_begin:
                raise TypeError(
                    f"The source, {type(self._source).__name__}, is an iterator without a reset(), and cannot begin "
                    "anew now. Give prefetch() what makes it: the list, the loader, or the generator "
                    "function."
                )
            try:
                if self._thread is None:
                    first = first if loaded else feed.state()
                    self._start()
                # For the memory. Not once the new run is wanted: there may be batches of it then.
                self._gate.drain()
                run = feed.wanted = _Run(loaded, first)
                for _ in range(self.depth):
                    self._gate.permits.put(run)
                self._ended_by = None
            except BaseException as interrupt:
                self._end_by(interrupt)
                raise

    def _start(self) -> None:
        """A thread with a gate of its own: one whose start is interrupted may run all the same, and only ends."""
        gate = _Gate()
        # Not by a method of ours: it would keep us alive.
        weakref.finalize(self, gate.stop).atexit = False  # _stop_all does that, and waits
        # It knows the gate only, and the feed while it reads: so whoever forgets us, or a source that knows us,
        # ends it.
        thread = threading.Thread(
            target=_produce, args=(gate, weakref.ref(self._feed)), name="penstock-prefetch", daemon=True
        )
        try:
            thread.start()
            _running[thread] = gate
            self._gate, self._thread = gate, thread
        except BaseException:
            self._thread = None
            gate.stop()
            raise


_CLOSED = "This prefetch() was closed. Call prefetch() again."
_ENDED = (
    "This prefetch() was ended by {}, and a batch may be lost. reset() or a new iter() begins the source anew, if it "
    "can be read again."
)


class _Run:
    """One reading of the source, which begins anew for it, or from a state that was `loaded`.

    It is what a permit is for, and what a batch is of: those of another run than the wanted one are passed over.
    """

    __slots__ = ("first", "loaded", "opened", "over")

    def __init__(self, loaded: bool, first: Any) -> None:
        self.loaded = loaded
        self.over = False  # its end was handed out
        self.first = first  # the source's, before the first batch: there when it is `opened`
        self.opened = threading.Event()
        if first is not None:
            self.opened.set()


class _Made(NamedTuple):
    """What the thread made of one `next()` of the source."""

    run: _Run | None
    batch: Any = None
    error: BaseException | None = None
    is_end: bool = False
    state: Any = None


class _Gate:
    """All that the thread and its consumer have in common while both wait.

    Neither queue takes a lock of Python's: a permit may be given inside the garbage collector.
    """

    __slots__ = ("made", "permits", "stopped")

    def __init__(self) -> None:
        self.permits: SimpleQueue[_Run | None] = SimpleQueue()
        self.made: SimpleQueue[_Made] = SimpleQueue()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        self.permits.put(None)

    def take(self) -> _Made:
        while True:
            # Not for ever: an interrupt that comes just before the wait does not end it, and is seen after it.
            with suppress(Empty):
                return self.made.get(timeout=_LONGEST_WAIT)

    def drain(self) -> None:
        """Drops what was made."""
        with suppress(Empty):
            while True:
                self.made.get_nowait()


def _produce(gate: _Gate, reference: weakref.ref[_Feed]) -> None:
    """The thread: for each permit, one batch. It is in the line with what it made until that is taken."""
    has_read = False
    while (run := gate.permits.get()) is not None and not gate.stopped:
        feed = reference()
        if feed is None:
            return
        with feed.turn:
            if feed.wanted is run:
                has_read = True
                gate.made.put(feed.make(run))
        del feed
    feed = reference()
    if feed is not None and has_read:  # else another may have it
        feed.end()


_running: weakref.WeakKeyDictionary[threading.Thread, _Gate] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_all() -> None:
    """At the interpreter's exit: a thread must not be in the middle of numpy when that is taken down."""
    threads = dict(_running)
    for gate in threads.values():
        gate.stop()
    deadline = time.monotonic() + _GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class _Feed:
    """The source, and the memory that its batches are copied into. All but `wanted` is for who has its `turn`."""

    def __init__(self, source: Any, slabs: int, cast: Cast | None, pin: Callable[[Any], Any] | None) -> None:
        kind = type(source)
        self._source = source
        self._call = callable(source) and not hasattr(kind, "__iter__")
        if not (self._call or hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
            raise TypeError(
                f"prefetch() takes an iterable of batches, or a function that returns one, got {kind.__name__}."
            )
        is_iterator = hasattr(kind, "__next__")
        self._reset: Callable[[], object] | None = getattr(source, "reset", None) if is_iterator else None
        self.can_restart = not is_iterator or self._reset is not None
        self.has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self.wanted: _Run | None = None  # set by the consumer
        self.turn = threading.Lock()  # the thread's for a batch, and the consumer's to load a state
        self._reading: _Run | None = None  # the one that the iterator is of
        self._iterator: Iterator[Any] | None = None
        self._count = 0
        self._memory = _Memory(slabs)
        self._field = None if cast is None else cast.root()
        self._pin = pin

    def make(self, run: _Run) -> _Made:
        """The next batch of the source, or the error in its place, or its end."""
        number = 0
        try:
            if run is not self._reading:
                try:
                    self._open(run)
                finally:
                    if not run.opened.is_set():
                        run.first = self._state_if_any()
                        run.opened.set()
            number, self._count = self._count, self._count + 1
            given = _END if self._iterator is None else next(self._iterator, _END)
            if given is _END:
                self._iterator = None
                return _Made(run, is_end=True, state=self.state())
            return _Made(run, self._memory.copy(given, self._field, self._pin), state=self.state())
        except BaseException as error:  # SystemExit too: it is for the caller to end the program
            note = f"While batch {number} of the source was read ahead."
            return _Made(run, error=annotate(_not_the_end(error), note), state=self._state_if_any())

    def _open(self, run: _Run) -> None:
        again, self._reading, self._count = self._reading is not None, run, 0
        self.leave()
        if again and not run.loaded and self._reset is not None:
            self._reset()
        self._iterator = iter(self._source() if self._call else self._source)

    def leave(self) -> None:
        """Ends the iterator here and now, and not when it is forgotten."""
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if iterator is not self._source and close is not None:
            close()

    def end(self) -> None:
        del self._memory  # what is lent stays
        self.leave()

    def state(self) -> Any:
        """The source's own, if it has one."""
        return self._source.state_dict() if self.has_state else None

    def _state_if_any(self) -> Any:
        """Where an error is on its way already."""
        with suppress(Exception):
            return self.state()
        return None


_END = object()


def _not_the_end(error: BaseException) -> BaseException:
    """What to raise for it: a StopIteration that is not the iterator's would be taken for the end."""
    if not isinstance(error, StopIteration):
        return error
    wrong = RuntimeError("The source raised StopIteration, and not at its end.")
    wrong.__cause__ = error
    return wrong


class _Memory:
    """Slabs that batches are copied into: of those that are free again, so many are kept that there are `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pool = Pool(Arena(None))
        self._leases = Leases(shared=False)
        self._warm: list[int] = []
        self._cold: list[int] = []  # their pages went back to the system
        self._lent = 0

    def copy(self, tree: object, field: Field | None, pin: Callable[[Any], Any] | None) -> Any:
        """The tree with its arrays in a slab that is lent."""
        leaves, spec = flatten(tree)
        fields = [None] * len(leaves) if field is None else field.of(spec)
        slab, needed = self._take(), 0
        try:
            while True:
                writer = Writer(self._pool.arena.root(self._pool.region(slab, needed)))
                made = [_copied(*each, writer, pin) for each in zip(leaves, fields, strict=True)]
                self._pool.learn(writer.used)
                if not writer.overflow:
                    break
                needed = writer.used
        except BaseException:
            self._warm.append(slab)
            raise
        if writer.used:
            self._leases.lend(slab, writer.root)
            self._lent += 1
        else:
            self._warm.append(slab)
        return unflatten(spec, made)

    def _take(self) -> int:
        for slab in self._leases.collect():
            self._lent -= 1
            if self._lent + len(self._warm) < self._most:
                self._warm.append(slab)
            else:
                self._pool.cool(slab)
                self._cold.append(slab)
        free = self._warm or self._cold
        return free.pop() if free else self._lent


def _copied(leaf: Any, field: Field | None, writer: Writer, pin: Callable[[Any], Any] | None) -> Any:
    kind = type(leaf)
    if field is not None:
        made = converted(leaf, field, writer.empty)
        if made is not leaf:
            return pin(made) if pin is not None and is_tensor(kind) else made
    if (kind is np.ndarray or kind is np.memmap) and not leaf.dtype.hasobject:
        out = writer.empty(leaf.shape, leaf.dtype)
        np.copyto(out, leaf)
        return out
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not is_tensor(kind):
        return leaf
    if pin is not None:
        return pin(leaf)
    place = STORES[kind](leaf, writer) if kind in STORES else None
    if place is None:
        return leaf.clone()
    make, shape, how, start = place
    return leaf if writer.overflow else make(shape, how, writer.root, start)


def _pinning(wanted: bool) -> Callable[[Any], Any] | None:
    """What puts a tensor into pinned memory; None where that is not wanted, or has no effect."""
    if not isinstance(wanted, (bool, np.bool_)):
        raise ValueError(f"pin_memory must be True or False, got {wanted!r}.")
    pin: Callable[[Any], Any] | None = None
    if wanted:
        with suppress(ImportError):
            from penstock.torch import _tensors as tensors

            pin = tensors.pinning()
        if pin is None:
            warnings.warn(
                "pin_memory=True has no effect here: it is for tensors that go to an accelerator, and there is none.",
                stacklevel=4,
            )
    return pin
