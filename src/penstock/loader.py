"""DataLoader: a dataset in, batches out. Read it from top to bottom to see the data path.

source   what the samples are               penstock.source
plan     which samples, in which order      penstock.plan
run      one epoch of the plan              penstock._epoch.run
engine   who does what, in which memory     penstock._epoch.engine, _schedule, _memory
backend  where it is done                   penstock.backends, penstock._work
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, SupportsIndex, TypeVar

import numpy as np

from penstock._epoch import crew as _crew
from penstock._epoch.engine import Engine
from penstock._epoch.readers import Batches, IndexedBatches, Keys, Reader
from penstock._epoch.run import Drawing, Run, SamplerReading, light_items
from penstock._epoch.share import share
from penstock._fill.collate import convert
from penstock._options import Options
from penstock._resume.marks import asked, known
from penstock._resume.reading import Mark, Reading, has_state
from penstock._resume.state import ANEW, Progress, State, content
from penstock._wire.task import BY_KEY, PULLED, Kind
from penstock._wire.updates import Restoring, Setting
from penstock._work.job import Job
from penstock.batch import Batch
from penstock.collate import default_collate
from penstock.errors import StateError
from penstock.plan import Order, OrderPlan, SamplerPlan, Sequential, Shuffled, rest
from penstock.plan._samplers import BatchSampler, order_of
from penstock.plan._seeds import draw_key
from penstock.source._kind import is_stream

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

    With `shard=(rank, world)`, or `"auto"` under torchrun, SLURM or Open MPI, this loader has one rank's share of
    each step: `world * batch_size` samples of the one order that all ranks have from their common seed.
    `last_batch` says what becomes of an end that does not come out even: "keep" (a shorter batch), "drop", "pad"
    (full batches on every rank, see `Batch.pad`), which is the default where there are ranks, or "rollover" (what
    is left over begins the next epoch).

    `dtype="float32"` makes all numbers of a batch so while they are written into it, `dtype={"image": "float32"}`
    those of single fields. What would be lost (300 as uint8) is an error, but with `casting="unsafe"`.

    Worker processes have the dataset as it was when they were started. They are started anew when
    its length has changed; any other change goes through `update`.

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
        shard: tuple[int, int] | str | None = None,
        last_batch: str | None = None,
        on_error: str = "raise",
        max_errors: int | None = None,
        dtype: Any = None,
        casting: str = "checked",
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
            shard=shard,
            last_batch=last_batch,
            on_error=on_error,
            max_errors=max_errors,
            dtype=dtype,
            casting=casting,
        )
        self._dataset = dataset
        self._kind = _kind(stream, self._batched, self._has_load(dataset))
        self._check_dataset()
        self._seed = self._options.seed
        self._next_epoch = 0
        self._epoch: int | None = None
        self._length: int | None = None
        self._promised: int | None = None
        self._progress: Progress | None = None
        self._resume: State | None = None
        self._give_crews()

    # What a loader for another kind of batches does in its own way: how tasks are run, and which generators are set
    # while light items are read (see `borrowed_generators`).
    _make_runner: ClassVar[type | None] = None
    _borrow: ClassVar[Callable[..., AbstractContextManager[int]] | None] = None

    @staticmethod
    def _has_load(dataset: Any) -> bool:
        return hasattr(dataset, "load")

    # The epochs.

    def __iter__(self) -> Iterator[T_co]:
        """The next epoch. A second live iterator is independent of the first, and is the epoch after it."""
        return self._start(Batches)

    def batches(self) -> Iterator[Batch[T_co]]:
        """The same stream as iterating over the loader, each batch with its index, epoch and step."""
        return self._start(IndexedBatches)

    def share(self, n: int, *, in_turn: bool = False) -> list[Iterator[T_co]]:
        """The next epoch as `n` iterators, for as many threads of this process: each batch goes to one of them.

        It goes to whoever asks first, or with `in_turn` to one after the other: then batches wait for a consumer
        that is slow, as many as workers may be ahead, and after that the others wait for it. One that is closed
        or forgotten leaves its share to the others.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise ValueError(f"share() takes the number of consumers, an integer of at least 1, got {n!r}.")
        return list(share(self._start(Batches), int(n), in_turn, _crew.window(self._options, self._kind)))

    @property
    def epoch(self) -> int:
        """The epoch that was begun last; before the first, the one that will be."""
        return self._next_epoch if self._epoch is None else self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` is this epoch. Only needed to repeat or skip one: epochs count themselves."""
        if not isinstance(epoch, SupportsIndex) or not 0 <= operator.index(epoch) < 1 << 62:
            raise ValueError(f"An epoch is an int from 0 to 2**62 - 1, got {epoch!r}.")
        self._next_epoch, self._epoch = operator.index(epoch), None
        self._progress = self._resume = None

    # Stopping and going on.

    def state_dict(self) -> dict[str, Any]:
        """Which batches were handed out so far: of the epoch begun last, or of all of it, once it has ended.

        Plain data, ready for JSON. It may be taken at any point, also inside a loop.
        """
        progress = self._progress
        if self._resume is not None or progress is None or progress.is_over:
            state = self._begin().as_dict()
        else:
            state = progress.as_dict()
        state["seed"] = self.seed
        if not state["steps"] and not state["beyond"]:  # else as it was when the epoch began
            state["about"] = self._about()
        if self._keeps_state():
            state["dataset"] = asked(self._dataset, self._dataset.state_dict)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter()` goes on where the state was taken, whatever the number of workers is now.

        With `shard=` the number of ranks may be another too: any rank's state of the same step does for all.
        A state that does not fit raises a StateError that says what differs, and nothing is changed.
        """
        parsed = State.parse(state)
        if parsed.dataset is None:
            resume = self._fitting(parsed)
        else:
            if not self._keeps_state():
                raise StateError(
                    f"The resume state has a state of the dataset, and {type(self._dataset).__name__} has no "
                    "load_state_dict() here. Give the loader the dataset that it had when the state was taken."
                )
            before = asked(self._dataset, self._dataset.state_dict)
            try:
                self.update(Restoring(parsed.dataset))  # first: the dataset may have another length then
                resume = self._fitting(parsed)
            except BaseException:
                self.update(Restoring(before))
                raise
        if resume.seed != self._seed:
            self._crews.close()  # workers have the seed from the beginning
            self._seed = resume.seed
        self.set_epoch(resume.epoch)
        self._resume = resume

    def _fitting(self, state: State) -> State:
        """The state as it goes on here, or else a StateError."""
        plan, about = self._plan(seed=state.seed or 0) if self._kind in BY_KEY else None, self._about()
        if state.begun:
            about["sampler"] = content(plan, about["length"])
        state.check(about)
        if state.seed is None:
            raise StateError(f"The resume state is damaged: 'seed' is None, and every loader has one. {ANEW}")
        if self._options.seed is not None:
            replace(state, about={"seed": state.seed}).check({"seed": self._options.seed})
        return replace(state.dealt_anew(plan, self._options.shard.world), about=about)

    def _keeps_state(self) -> bool:
        """Whether the dataset has a state of its own. (That of a stream belongs to what was read of it.)"""
        return self._kind in BY_KEY and has_state(self._dataset)

    def _about(self) -> dict[str, Any]:
        """What must not change between a state and its loading.

        Not `on_error`: it changes nothing but batches of which samples fail, and a run that was stopped by a bad
        sample is best resumed with another.
        """
        options = self._options
        order: Any = options.sampler if options.batch_sampler is None else options.batch_sampler
        name = type(order).__name__ if order is not None else "shuffled" if options.shuffle else "in sequence"
        if getattr(order, "generator", None) is not None:
            name += " with a generator"
        return {
            "kind": self._kind.name.lower(),
            "length": self._length_now(),
            "order": name if self._kind in BY_KEY else "stream",
            "batch_size": options.batch_size,
            "last_batch": options.last_batch,
            "world": options.shard.world,
            "dtype": None if options.cast is None else options.cast.describe(),
        }

    def __len__(self) -> int:
        """The number of batches in an epoch: the next, where they differ (`last_batch="rollover"`)."""
        if self._kind in BY_KEY:
            steps = self._plan(self._begin().consumed).steps(self._next_epoch)
            if steps is None:
                given = (
                    self._options.batch_sampler if self._options.sampler is None else self._options.sampler
                )
                raise TypeError(f"{type(given).__name__} has no len(), so the loader has none.")
            return steps
        if not isinstance(self._dataset, Sized):
            raise TypeError(
                f"The stream {type(self._dataset).__name__} has no len(), so the loader has none."
            )
        self._promised = self._cut(Sequential(len(self._dataset))).steps(0)
        return self._promised

    # A dataset that changes.

    def update(self, change: Callable[[Any], object] | None = None, /, **attributes: Any) -> None:
        """Changes the dataset here and in every worker: `update(size=416)`, or a function of the dataset.

        The next batch that is handed out has it, on every backend, as it would without workers: what was
        prefetched is done again. A change that raises ends the iterators that live: some of it may be made.
        """
        if (change is None) == (not attributes):
            raise TypeError("update() takes a function of the dataset, or attributes to set: one of the two.")
        if self._kind in PULLED and self._options.num_workers:
            raise ValueError(
                "A stream without load() is read by a worker, which cannot read again what was prefetched. Give "
                "it load(item), or use num_workers=0."
            )
        self._crews.update(Setting(attributes) if change is None else change, self._dataset)
        self._length = self._length_now()

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
    shard = property(lambda self: self._options.shard, doc="This loader's rank, and of how many.")
    last_batch = property(lambda self: self._options.last_batch, doc='"keep", "drop", "pad" or "rollover".')
    on_error = property(lambda self: self._options.on_error, doc='"raise", "skip" or "replace".')
    max_errors = property(lambda self: self._options.max_errors)
    dtype = property(lambda self: self._options.dtype, doc="As it was given.")
    casting = property(lambda self: self._options.casting, doc='"checked" or "unsafe".')

    @property
    def workers(self) -> list[Any]:
        """The worker processes that live now, each with `pid`, `is_alive()`, `join(timeout)` and `exitcode`."""
        return [worker for engine in self._crews.live for worker in engine.workers]

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
        ours = options.sampler is None and options.batch_sampler is None and self._kind in BY_KEY
        return Keys(self) if ours else options.sampler

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
        left = ("_crews", "_runs", "_skipped")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._give_crews()

    def _give_crews(self) -> None:
        self._runs = itertools.count()
        # Not closed by a finalizer of the loader's: that would keep what the engines keep, which may be the loader.
        self._crews = _crew.Crews()
        self._skipped: list[tuple[Any, Exception]] = []

    # From the plan to the engine.

    @property
    def _batched(self) -> bool:
        return self._options.batch_size is not None or self._options.batch_sampler is not None

    def _check_dataset(self) -> None:
        options, dataset = self._options, self._dataset
        if self._kind in (Kind.PULL, Kind.PULL_ONE, Kind.ITEMS, Kind.ITEM):
            if self._kind in PULLED and options.on_error == "skip":
                raise ValueError(
                    f'on_error="skip" needs samples that are fetched one by one, and {type(dataset).__name__} makes '
                    "them in its __iter__, which an exception ends. Let it yield light items and define load(item), "
                    "or catch the exception there."
                )
            if self._kind in PULLED and options.num_workers > 1:
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

    def _plan(self, start: int | None = 0, seed: int | None = None) -> OrderPlan | SamplerPlan:
        """Which keys each step has, for the dataset as long as it is now; from a position of the order on.

        With another seed than the loader's: for a state that is not taken over yet.
        """
        options = self._options
        sampler, batched = options.batch_sampler, True
        if sampler is None:
            order = self._order(self.seed if seed is None else seed)
            if order is not None:
                return self._cut(order, start or 0)
            sampler, batched = options.sampler, False
        if options.last_batch in ("pad", "rollover"):
            raise ValueError(
                f'last_batch="{options.last_batch}" was given for a {type(sampler).__name__} whose order was known. '
                "It was changed since (a generator, or keys that are not integers from 0 on), and where it ends is "
                "not known now."
            )
        return SamplerPlan(sampler, options.batch_size, options.drop_last, batched, *options.shard)

    def _order(self, seed: int) -> Order | None:
        """The order, if it is a function; None where the sampler is not one of ours."""
        if self._options.sampler is not None:
            return order_of(self._options.sampler, seed)
        n = len(self._dataset)
        return Shuffled(n, seed) if self._options.shuffle else Sequential(n)

    def _cut(self, order: Order, start: int = 0) -> OrderPlan:
        options = self._options
        padded, rollover = options.last_batch == "pad", options.last_batch == "rollover"
        return OrderPlan(
            order, options.batch_size, options.drop_last, padded, *options.shard, start, rollover
        )

    def _begin(self) -> State:
        """Where the next `iter()` begins."""
        if self._resume is not None:
            return self._resume
        before = self._progress
        mark = None if before is None or not before.is_over else before.mark
        return State(self._next_epoch, 0, mark=mark)

    def _start(self, kind: type[_I]) -> _I:
        with self._crews.changing():
            epoch, begin, about = self._next_epoch, self._begin(), self._about()
            plan = self._plan(begin.consumed) if self._kind in BY_KEY else None
            if begin.begun:  # dataset and sampler may have changed since the state was loaded
                begin.check({**about, "sampler": content(plan, about["length"])})
            else:
                begin = replace(begin, about=about)
            engine = self._take_engine(plan)
            try:
                ahead = engine.ahead
                if ahead is None or ahead.epoch != epoch or ahead.plan != plan or self._resume is not None:
                    ahead = self._new_run(
                        epoch, plan, begin, known(begin.mark) if self._loads(engine) else None
                    )
                progress = Progress(begin, plan)
                iterator = kind(self, engine, ahead, progress)
                engine.open(ahead)
            except BaseException:
                engine.close()
                raise
            self._crews.begun(engine)
            # In this order: another thread may take a state between any two.
            self._progress, self._skipped = progress, iterator.skipped
            self._resume = None
            self._epoch, self._next_epoch = epoch, epoch + 1
            return iterator

    def _take_engine(self, plan: OrderPlan | SamplerPlan | None) -> Engine:
        """The idle engine, if its workers know dataset and order as they are, or else a new one."""
        options, length = self._options, self._length_now()
        order = plan.order if options.on_error == "replace" and isinstance(plan, OrderPlan) else None
        engine = self._crews.take()
        if engine is not None:
            grown = length != self._length and options.backend == "process"
            if grown or engine.job.order != order:
                engine.close()
                engine = None
        self._length = length
        return engine or self._new_engine(order)

    def _length_now(self) -> int | None:
        return len(self._dataset) if self._kind in BY_KEY and isinstance(self._dataset, Sized) else None

    def _loads(self, engine: Engine) -> bool:
        """Whether what is read must be given back its state: it is not here, or not where it was left."""
        if self._resume is not None:
            return True
        gone = self._kind in PULLED and self._options.backend == "process" and engine.heritage is None
        return gone or (self._progress is not None and self._progress.began_at_end)

    def _new_run(self, epoch: int, plan: OrderPlan | SamplerPlan | None, at: State, mark: Mark | None) -> Run:
        keys: Iterator[Any]
        options, reading = self._options, None
        drawing = Drawing(self.seed, epoch, self._borrow)
        size = options.batch_size or 1
        if isinstance(plan, OrderPlan):
            keys = plan.draw(epoch, at.steps)
        elif plan is not None:
            # What draws nothing need not be given generators, which takes 50 µs for each batch.
            plain = type(plan.sampler) in (list, tuple, range, np.ndarray)
            reading = Reading(plan.sampler) if plain else SamplerReading(plan.sampler, drawing)
            reading.open(mark)
            keys = plan.draw(epoch, at.steps, reading)
        elif self._kind in PULLED:
            # The reader is told to pass over what was handed out.
            first = [(size, mark)] if at.steps or mark is not None else []
            keys = itertools.chain(first, itertools.repeat(size))
        else:
            reading = Reading(self._dataset)
            items = light_items(reading, mark, options.batch_size, options.drop_last, drawing)
            read = 0 if mark is None else mark.read
            keys = rest(items, at.steps, read, *options.shard, options.drop_last)
        return Run(self._runs, epoch, self._kind, keys, plan, at.steps, frozenset(at.beyond), reading)

    def _new_engine(self, order: Order | None) -> Engine:
        options, collate_fn = self._options, self._options.collate_fn
        job = Job(
            dataset=self._dataset,
            collate_fn=None if collate_fn is default_collate and self._batched else collate_fn,
            worker_init_fn=options.worker_init_fn,
            num_workers=_crew.workers(options, self._kind),
            seed=self.seed,
            drop_last=options.drop_last,
            shard=options.shard,
            batch_size=options.batch_size or 1,
            on_error=options.on_error,
            cast=options.cast,
            order=order,
            make_runner=self._make_runner,
        )
        engine = _crew.new_engine(job, options, self._kind)
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


_SETTINGS = frozenset({"dataset", *Options.__slots__})


_I = TypeVar("_I", bound=Reader)


def _kind(stream: bool, batched: bool, has_load: bool) -> Kind:
    if not stream:
        return Kind.KEYS if batched else Kind.KEY
    if has_load:
        return Kind.ITEMS if batched else Kind.ITEM
    return Kind.PULL if batched else Kind.PULL_ONE
