"""DataLoader: a dataset in, batches out. Read it from top to bottom to see the data path.

source   what the samples are               penstock.source
plan     which samples, in which order      penstock.plan
run      one epoch of the plan              penstock._run
engine   who does what, in which memory     penstock._engine, _schedule, _memory
backend  where it is done                   penstock.backends, penstock._work
"""

from __future__ import annotations

import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._engine import Delivery, Engine
from penstock._run import Run
from penstock._schedule import Scheduler
from penstock._work.collate import convert, default_collate
from penstock._work.failure import annotate
from penstock._work.task import MOST_STEPS, Job, Kind, Mended
from penstock.backends.base import Backend
from penstock.backends.inline import InlineBackend
from penstock.batch import Batch
from penstock.options import Options
from penstock.plan import Order, OrderPlan, SamplerPlan, Sequential, Shuffled
from penstock.plan.samplers import BatchSampler
from penstock.plan.seeds import draw_key
from penstock.source.kind import is_stream

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

T_co = TypeVar("T_co", covariant=True)


class DataLoader(Generic[T_co]):
    """Batches from a dataset, prefetched by workers, in memory that is lent and never copied twice.

    The arguments have the names and meanings that users of torch know; the batches are numpy.
    `dataset` is anything with `__len__` and `__getitem__`, or an `IterableDataset`.

    With `num_workers=0` a loader is a plain loop, and any other setting gives the same batches.
    Workers are processes, or threads with `backend="thread"`, which suits datasets that wait or
    that call code which releases the GIL. They live until the loader is closed or forgotten, and a
    worker that dies is replaced, its step being done again up to `retries` times.

    With `seed=` the order, and all that the dataset draws from `random` and `numpy.random`, is a
    function of the seed (threads share these two; what a sample draws from `penstock.rng()` is, with them
    too). Without, a seed is drawn from `generator`, or else from numpy's global one.

    `on_error="skip"` leaves samples that raise out of their batch, and "replace" puts others in their place;
    `max_errors` is how many of an epoch may fail (see `skipped`).

    Worker processes have the dataset as it was when they were started. They are started anew when
    its length has changed; any other change needs a new loader.

        >>> import numpy as np, penstock
        >>> loader = penstock.DataLoader(np.arange(6), batch_size=4)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], T_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: np.random.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        backend: str | None = None,
        seed: int | None = None,
        retries: int = 2,
        on_error: str = "raise",
        max_errors: int | None = None,
    ) -> None:
        stream = is_stream(dataset)
        self._options = Options.resolve(
            is_stream=stream,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            backend=backend,
            seed=seed,
            retries=retries,
            on_error=on_error,
            max_errors=max_errors,
        )
        self._dataset = dataset
        self._kind = _kind(dataset, stream, self._batched)
        self._check_dataset()
        self._seed = self._options.seed
        self._runs = itertools.count()
        self._next_epoch = 0
        self._epoch: int | None = None
        self._length: int | None = None
        self._promised: int | None = None
        self._give_crews()

    _make_runner: ClassVar[type | None] = None

    # The epochs.

    def __iter__(self) -> Iterator[T_co]:
        """The next epoch. A second live iterator is independent of the first, and is the epoch after it."""
        return self._start(_Batches)

    def batches(self) -> Iterator[Batch[T_co]]:
        """The same stream as iterating over the loader, each batch with its index, epoch and step."""
        return self._start(_IndexedBatches)

    @property
    def epoch(self) -> int:
        """The epoch that was begun last; before the first, the one that will be."""
        return self._next_epoch if self._epoch is None else self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` is this epoch. Only needed to repeat or skip one: epochs count themselves."""
        if not 0 <= epoch < 1 << 62:
            raise ValueError(f"An epoch is a number from 0 to 2**62 - 1, got {epoch!r}.")
        self._next_epoch, self._epoch = int(epoch), None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        if self._kind in _BY_KEY:
            steps = self._plan().steps(self._next_epoch)
            if steps is None:
                given = self._options.batch_sampler or self._options.sampler
                raise TypeError(f"{type(given).__name__} has no len(), so the loader has none.")
            return steps
        if not isinstance(self._dataset, Sized):
            raise TypeError(
                f"The stream {type(self._dataset).__name__} has no len(), so the loader has none."
            )
        self._promised = OrderPlan(Sequential(len(self._dataset)), self.batch_size, self.drop_last).steps(0)
        return self._promised

    # The life of the workers.

    def close(self) -> None:
        """Ends the workers. Batches that were handed out stay valid; a later `iter()` starts new workers."""
        self._crews.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The settings, as they were resolved.

    dataset = property(lambda self: self._dataset, doc="The dataset.")
    batch_size = property(lambda self: self._options.batch_size, doc="None: not batched, or a batch_sampler.")
    drop_last = property(lambda self: self._options.drop_last)
    num_workers = property(lambda self: self._options.num_workers)
    prefetch_factor = property(lambda self: self._options.prefetch_factor)
    persistent_workers = property(lambda self: self._options.persistent_workers)
    pin_memory = property(lambda self: self._options.pin_memory)
    pin_memory_device = property(lambda self: self._options.pin_memory_device)
    timeout = property(lambda self: self._options.timeout)
    worker_init_fn = property(lambda self: self._options.worker_init_fn)
    multiprocessing_context = property(lambda self: self._options.multiprocessing_context)
    generator = property(lambda self: self._options.generator)
    in_order = property(lambda self: self._options.in_order)
    backend = property(lambda self: self._options.backend, doc='"inline", "process" or "thread".')
    retries = property(lambda self: self._options.retries)
    on_error = property(lambda self: self._options.on_error, doc='"raise", "skip" or "replace".')
    max_errors = property(lambda self: self._options.max_errors)

    @property
    def skipped(self) -> list[tuple[Any, Exception]]:
        """Key and exception of each sample that failed, in the batches of this epoch that were asked for so far.

        All of them, some 2 KB each with its traceback: where very many may fail, `max_errors` bounds it.
        """
        return list(self._skipped)

    @property
    def seed(self) -> int:
        """The seed that was given, or the one that was drawn when it was first needed."""
        if self._seed is None:
            self._seed = draw_key(self._options.generator)
        return self._seed

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """What makes a batch of samples (without batching: of one sample)."""
        if self._options.collate_fn is not None:
            collate_fn: Callable[[Any], Any] = self._options.collate_fn
            return collate_fn
        return default_collate if self._batched else convert

    @property
    def sampler(self) -> Any:
        """The order: the sampler that was given, or an iterable over the keys of the current epoch.

        None where there is no such thing: for a stream, or beside a batch_sampler.
        """
        options = self._options
        ours = options.sampler is None and options.batch_sampler is None and self._kind in _BY_KEY
        return _Keys(self) if ours else options.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives the keys of each batch; None where nothing is batched."""
        if self._options.batch_sampler is not None or self._kind is not Kind.KEYS:
            return self._options.batch_sampler
        return BatchSampler(self.sampler, self.batch_size, self.drop_last)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _SETTINGS:
            raise ValueError(
                f"{name} cannot be set after the loader was made: its workers have the old value. Make a new loader."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        given = f"batch_size={self.batch_size}, num_workers={self.num_workers}, backend={self.backend!r}"
        return f"{type(self).__name__}({type(self._dataset).__name__}, {given})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_crews", "_skipped")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._give_crews()

    def _give_crews(self) -> None:
        self._crews = _Crews()
        self._skipped: list[tuple[Any, Exception]] = []
        weakref.finalize(self, self._crews.close)

    # From the plan to the engine.

    @property
    def _batched(self) -> bool:
        return self._options.batch_size is not None or self._options.batch_sampler is not None

    def _check_dataset(self) -> None:
        options, dataset = self._options, self._dataset
        if self._kind in (Kind.PULL, Kind.PULL_ONE, Kind.ITEMS, Kind.ITEM):
            if self._kind in (Kind.PULL, Kind.PULL_ONE) and options.on_error == "skip":
                raise ValueError(
                    f'on_error="skip" needs samples that are fetched one by one, and {type(dataset).__name__} makes '
                    "them in its __iter__, which an exception ends. Let it yield light items and define load(item), "
                    "or catch the exception there."
                )
            if self._kind in (Kind.PULL, Kind.PULL_ONE) and options.num_workers > 1:
                warnings.warn(
                    f"A stream is read by one reader, so {options.num_workers - 1} of num_workers="
                    f"{options.num_workers} have nothing to do and are not started. Where the stream hands out "
                    "light items and defines load(item), all workers load in parallel.",
                    stacklevel=3,
                )
            return
        if not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"{type(dataset).__name__} has no __getitem__, so it is not a dataset. Give it __getitem__ and "
                "__len__, or derive from penstock.IterableDataset for a stream."
            )
        if options.sampler is None and options.batch_sampler is None and not isinstance(dataset, Sized):
            raise TypeError(
                f"{type(dataset).__name__} has no __len__, which the order of its samples needs. Define it, or "
                "pass sampler= or batch_sampler=."
            )

    def _plan(self) -> OrderPlan | SamplerPlan:
        """Which keys each step has, for the dataset as long as it is now."""
        options = self._options
        if options.batch_sampler is not None:
            return SamplerPlan(options.batch_sampler, batched=True)
        if options.sampler is not None:
            return SamplerPlan(options.sampler, options.batch_size, options.drop_last)
        n = len(self._dataset)
        order = Shuffled(n, self.seed) if options.shuffle else Sequential(n)
        return OrderPlan(order, options.batch_size, options.drop_last)

    def _order(self) -> Order | None:
        """The order, where it is one of ours."""
        plan = self._plan()
        return plan.order if isinstance(plan, OrderPlan) else None

    def _start(self, kind: type[_I]) -> _I:
        epoch = self._next_epoch
        plan = self._plan() if self._kind in _BY_KEY else None
        engine = self._take_engine()
        try:
            ahead = engine.ahead
            if ahead is None or ahead.epoch != epoch or ahead.plan != plan:
                ahead = self._new_run(epoch, plan)
            iterator = kind(self, engine, ahead)
            engine.open(ahead)
        except BaseException:
            engine.close()
            raise
        self._epoch, self._next_epoch = epoch, epoch + 1
        self._skipped = iterator.skipped
        return iterator

    def _take_engine(self) -> Engine:
        """The idle engine, if its workers know the dataset as it is, or else a new one."""
        length = len(self._dataset) if self._kind in _BY_KEY and isinstance(self._dataset, Sized) else None
        engine = self._crews.take()
        stale = self._options.backend == "process" or self._options.on_error == "replace"
        if engine is not None and length != self._length and stale:
            engine.close()
            engine = None
        self._length = length
        return engine or self._new_engine()

    def _new_run(self, epoch: int, plan: OrderPlan | SamplerPlan | None) -> Run:
        keys: Iterator[Any]
        size = self._options.batch_size or 1
        if plan is not None:
            keys = plan.draw(epoch)
        elif self._kind in (Kind.PULL, Kind.PULL_ONE):
            keys = itertools.repeat(size)
        else:
            keys = _items(self._dataset, self._options.batch_size, self._options.drop_last)
        return Run(self._runs, epoch, self._kind, keys, plan, self.seed)

    def _new_engine(self) -> Engine:
        options = self._options
        workers = options.num_workers
        if self._kind in (Kind.PULL, Kind.PULL_ONE):
            workers = min(workers, 1)
        window = max(1, workers * (options.prefetch_factor or 1))
        collate_fn = options.collate_fn
        job = Job(
            dataset=self._dataset,
            collate_fn=None if collate_fn is default_collate and self._batched else collate_fn,
            worker_init_fn=options.worker_init_fn,
            num_workers=workers,
            seed=self.seed,
            drop_last=options.drop_last,
            # Each task may turn out to be several, and a cancelled run may leave one in the hands of each worker.
            slots=window * MOST_STEPS + workers,
            batch_size=options.batch_size or 1,
            on_error=options.on_error,
            order=self._order() if options.on_error == "replace" else None,
            make_runner=self._make_runner,
        )
        # A stream that a worker reads cannot be read again from the middle.
        retries = 0 if self._kind in (Kind.PULL, Kind.PULL_ONE) else options.retries
        scheduler = Scheduler(
            window=window,
            workers=max(1, workers),
            retries=retries,
            in_order=options.in_order,
            room=MOST_STEPS,
        )
        engine = Engine(
            _new_backend(job, options),
            scheduler,
            retries=retries,
            # Threads share the dataset with the caller, who may change it before the next epoch.
            look_ahead=options.persistent_workers and options.backend == "process",
        )
        self._crews.live.add(engine)
        return engine

    def _release(self, engine: Engine) -> None:
        """An iterator is done with its engine."""
        if self._options.persistent_workers or self._options.num_workers == 0:
            self._crews.put(engine)
        else:
            engine.close()

    def _count(self, yielded: int) -> None:
        if (
            self._promised is not None
            and yielded == self._promised + 1
            and self._kind not in (Kind.KEYS, Kind.KEY)
        ):
            warnings.warn(
                f"The stream {type(self._dataset).__name__} said len() = {len(self._dataset)}, which is "
                f"{self._promised} batches, and yields more. Its __len__ is wrong.",
                stacklevel=3,
            )


# The kinds of task that name samples by key: of all datasets but streams.
_BY_KEY = (Kind.KEYS, Kind.KEY)

_SETTINGS = frozenset({"dataset", *Options.__slots__})


class _Crews:
    """The engines of one loader: at most one is idle and waits for the next epoch."""

    def __init__(self) -> None:
        self.live: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._idle: Engine | None = None

    def take(self) -> Engine | None:
        engine, self._idle = self._idle, None
        # A forked child has a copy of the idle engine; its workers belong to the parent.
        usable = engine is not None and not engine.closed and engine.is_ours()
        return engine if usable else None

    def put(self, engine: Engine) -> None:
        if self._idle is None:
            self._idle = engine
        else:
            engine.close()

    def close(self) -> None:
        self._idle = None
        for engine in tuple(self.live):
            engine.close()


class _Reader:
    """One epoch, batch by batch. It has its engine to itself until it ends or is dropped."""

    def __init__(self, loader: DataLoader[Any], engine: Engine, run: Run) -> None:
        self._loader: DataLoader[Any] = loader
        self._engine: Engine | None = engine
        self._plan = run.plan
        self._timeout = loader.timeout if 0 < loader.timeout < math.inf else None
        self._yielded = 0
        self.skipped: list[tuple[Any, Exception]] = []

    def _next(self) -> Delivery:
        while True:
            if self._engine is None:
                raise StopIteration
            delivery = self._engine.next(self._timeout)
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
        return len(self._loader)

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


class _Batches(_Reader):
    def __next__(self) -> Any:
        return self._next().data


class _IndexedBatches(_Reader):
    def __next__(self) -> Batch[Any]:
        delivery = self._next()
        task = delivery.task
        assert task is not None
        skipped = [] if delivery.mended is None else delivery.mended.errors
        index = _index(delivery, self._loader.batch_size)
        return Batch(delivery.data, index, task.epoch, task.step, skipped=skipped)


_I = TypeVar("_I", bound=_Reader)


class _Keys:
    """The keys of the loader's current epoch, in order."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        plan = self._loader._plan()
        assert isinstance(plan, OrderPlan)
        return OrderPlan(plan.order, None).draw(self._loader.epoch)

    def __len__(self) -> int:
        return len(self._loader.dataset)


def _kind(dataset: Any, stream: bool, batched: bool) -> Kind:
    if not stream:
        return Kind.KEYS if batched else Kind.KEY
    if hasattr(dataset, "load"):
        return Kind.ITEMS if batched else Kind.ITEM
    return Kind.PULL if batched else Kind.PULL_ONE


def _items(dataset: Any, batch_size: int | None, drop_last: bool) -> Iterator[Any]:
    """The light items of a stream, in lists of one batch each."""
    items = iter(dataset)
    if batch_size is None:
        yield from items
        return
    while len(chunk := list(itertools.islice(items, batch_size))) == batch_size:
        yield chunk
    if chunk and not drop_last:
        yield chunk


def _new_backend(job: Job, options: Options) -> Backend:
    if options.backend == "inline":
        return InlineBackend(job)
    if options.backend == "thread":
        from penstock.backends.threads import ThreadBackend

        return ThreadBackend(job)
    from penstock.backends.launch import choose_method
    from penstock.backends.processes import ProcessBackend

    method = choose_method(options.multiprocessing_context)
    return ProcessBackend(job, method, explicit=options.multiprocessing_context is not None)


def _index(delivery: Delivery, batch_size: int | None) -> NDArray[np.uint64] | None:
    """The keys of the rows where they are integers from 0 on; for a stream, the rows' positions in it."""
    task = delivery.task
    assert task is not None
    if delivery.mended is not None:
        keys = delivery.mended.keys
    elif task.kind not in _BY_KEY:
        start = task.step * (batch_size or 1)
        return np.arange(start, start + delivery.rows, dtype=np.uint64)
    else:
        keys = [task.keys] if task.kind is Kind.KEY else task.keys
    if isinstance(keys, np.ndarray):
        return keys.astype(np.uint64)
    if all(isinstance(key, (int, np.integer)) and key >= 0 for key in keys):
        return np.array(keys, np.uint64)
    return None
