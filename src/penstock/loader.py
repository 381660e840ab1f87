"""DataLoader: a dataset in, batches out. It follows the data path: source, plan, feed, engine, backend."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, SupportsIndex, TypeVar

import numpy as np

from penstock._engine.engine import Engine
from penstock._feed import feed_of
from penstock._feed.base import Begin, Plan, shown
from penstock._fill.collate import convert
from penstock._options import Casting, LastBatch, OnError, Options, is_int, warn_of_ranks
from penstock._resume.reading import asked, has_state, known
from penstock._resume.state import ANEW, Epochs, Progress, State, content
from penstock._session import engines
from penstock._session.foresight import NO_FORESIGHT, NoForesight, foresee
from penstock._session.measures import Measured, Measures
from penstock._session.reading import Batches, IndexedBatches, Reader, Setup
from penstock._session.share import share
from penstock._session.tuning import Tuned
from penstock._system.ending import never_ends
from penstock._system.interrupts import Loan
from penstock._wire.updates import Setting
from penstock._work.runner import Job
from penstock.batch import Batch
from penstock.collate import default_collate
from penstock.errors import StateError
from penstock.plan._seeds import draw_key
from penstock.source._dataset import Keyed, is_stream, to_load_in_parallel
from penstock.source._nested import fingerprint_of

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from typing_extensions import TypeVar as WithDefault

    # The batches: what collate_fn returns. Without one they depend on the samples, and are Any.
    _T_co = WithDefault("_T_co", covariant=True, default=Any)
else:
    _T_co = TypeVar("_T_co", covariant=True)

__all__ = ["DataLoader"]

_I = TypeVar("_I", bound=Reader)
_SETTINGS = frozenset({"dataset", *(setting.name for setting in fields(Options))})


class DataLoader(Measured, Tuned, Generic[_T_co]):
    """Batches from a dataset, prefetched by workers, as zero-copy views of recycled memory.

    The arguments have the names and meanings of torch's DataLoader; batches are numpy arrays, and the same for any
    number and kind of workers.

        >>> import numpy as np, penstock
        >>> loader = penstock.DataLoader(np.arange(6), batch_size=4)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]

    What is loaded:

    - `dataset`: an object with `__len__` and `__getitem__`, or an `IterableDataset`. Worker processes keep it as it
      was when they started. They are restarted if its length has changed; use `update` for any other change.
    - `batch_size`: samples in a batch. None hands out single samples, without an axis for the batch.
    - `collate_fn`: makes a batch of a list of samples; by default that is `default_collate`. With `batch_size=None`
      it gets one sample, and by default the sample stays as it is.
    - `dtype`: "float32" converts all numbers while they are written into a batch, `{"image": "float32"}` those of
      single fields. A value that does not fit (300 as uint8) raises, unless `casting="unsafe"`.

    In which order:

    - `seed`: the order, and all random numbers that the dataset draws from `random`, `numpy.random` and
      `penstock.rng()`, are a function of it (in threads, only those from `penstock.rng()`).
    - `generator`: without `seed`, a seed is drawn from this numpy Generator, or else from numpy's global one.
    - `shuffle`: a new order in each epoch. The default is the order of the keys. "blocks" is for a dataset with
      `blocks`, as those of `penstock.formats` have: a random order that needs at most `window` blocks (16) at a time.
    - `sampler`: yields the keys instead, in each epoch anew. `batch_sampler` yields the keys of whole batches, and
      replaces `batch_size`, `shuffle`, `sampler` and `drop_last`.
    - `shard`: `(rank, world)`, or "auto" under torchrun, Ray Train, `jax.distributed`, Open MPI or SLURM: this loader
      gets one rank's share of each step: `world * batch_size` samples of the order that all ranks compute from their
      common seed.
    - `last_batch`: the rule for an incomplete last batch: "keep", "drop", "pad" (full batches on every rank, see
      `Batch.pad`; the default with ranks), or "rollover" (its samples begin the next epoch). `drop_last=True`
      means "drop".
    - `in_order`: False hands out batches as they are done, and a slow one no longer holds up the others.

    By whom:

    - `num_workers`: 0 loads in the calling process, when you ask. "auto" begins with few workers, and changes their
      number while you wait or workers are idle, up to `max_workers`. It may be set again while the loader runs.
    - `backend`: "process" (the default); "thread", which suits datasets that wait for I/O or release the GIL; or
      "ray": workers are actors on the nodes of the cluster that `ray.init()` has connected to.
    - `ray_options`: what each of these actors wants, by Ray's names: `num_cpus` (1 by default), `num_gpus`, `memory`,
      `resources`, `runtime_env`, `scheduling_strategy` ("SPREAD" by default). And `patience`: after so many seconds
      without a worker that has found a place it is an error (10 by default).
    - `multiprocessing_context`: how worker processes are started: "fork", "spawn", "forkserver", or a context of
      multiprocessing. By default they are forked if the process has no other threads, else by "forkserver".
    - `prefetch_factor`: how many batches (of very small ones, bundles) each worker may be ahead; 2 by default. "auto"
      raises it if you wait though workers are idle.
    - `persistent_workers`: False ends workers with each epoch. By default they live as long as the loader.
    - `worker_init_fn`: is called in each worker when it starts, with the number of the worker.
    - `pin_memory`, `pin_memory_device`: for programs that were written for torch: no effect on numpy arrays.

    And if something goes wrong:

    - `timeout`: seconds until `next()` raises LoaderTimeout; 0 sets no limit. The next `next()` waits again.
    - `retries`: how often the step of a worker that has crashed is tried again, by a worker that replaces it.
    - `hang`: after so many seconds in one step, a worker process is killed as if it had crashed; None: never.
    - `on_error`: "skip" drops samples that raise, and "replace" replaces them by other samples. `max_errors` limits
      how many may fail in an epoch (see `skipped`).
    """

    def __init__(
        self,
        dataset: Keyed[Any] | Iterable[Any],
        batch_size: int | None = 1,
        shuffle: bool | Literal["blocks"] | None = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], _T_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: np.random.Generator | None = None,
        *,
        prefetch_factor: int | Literal["auto"] | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        backend: Literal["process", "thread", "ray"] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        retries: int = 2,
        hang: float | None = None,
        shard: tuple[int, int] | Literal["auto"] | None = None,
        last_batch: LastBatch | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        dtype: Any = None,
        casting: Casting = "checked",
        max_workers: int | None = None,
        window: int | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "dataset")}
        self._options = Options.resolve(is_stream=is_stream(dataset), **given)
        self._dataset: Any = dataset
        self._feed = feed_of(dataset, self._options, self._has_load(dataset), self._borrow)
        self._seed = self._options.seed
        self._asks_for_ranks = self._options.is_unsplit  # at the first iter(): see 0036
        self._length: int | None = None
        self._epochs = Epochs()
        self._give_engines()

    # For subclasses with other batches: their module, the class that runs tasks, the random generators that are set
    # while samplers and light items are read (see `Borrowed`), and a function of each batch that is handed out.
    _face: ClassVar[str] = "penstock"
    _make_runner: ClassVar[type | None] = None
    _borrow: ClassVar[Callable[..., Loan] | None] = None
    _deliver: Callable[[Any], Any] | None = None

    @staticmethod
    def _has_load(dataset: Any) -> bool:
        return hasattr(dataset, "load")

    # The epochs.

    def __iter__(self) -> Iterator[_T_co]:
        """The next epoch. Several iterators may be in use at the same time, each for its own epoch."""
        return self._start(Batches)

    def batches(self) -> Iterator[Batch[_T_co]]:
        """The batches of the next `iter()`, each with its index, epoch and step."""
        return self._start(IndexedBatches)

    def share(self, n: int, *, in_turn: bool = False) -> list[Iterator[_T_co]]:
        """The next epoch as `n` iterators, for as many threads of this process: each batch goes to one of them.

        A batch goes to the first thread that asks, or with `in_turn` to each iterator in turn: then batches wait for
        a slow consumer, as many as may be prefetched, and after that the other consumers wait too. A consumer that is
        closed or garbage collected leaves its share to the others.
        """
        if not is_int(n, 1):
            raise ValueError(f"share() takes the number of consumers, an integer of at least 1, got {n!r}.")
        window = engines.window(self.num_workers, self._options, self._feed)
        return list(share(self._start(Batches), int(n), in_turn, window))

    @property
    def epoch(self) -> int:
        """The epoch that was begun last; before the first `iter()`, the epoch that it will begin."""
        return self._epochs.current

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` begins this epoch. Only needed to repeat or skip an epoch."""
        if not isinstance(epoch, SupportsIndex) or not 0 <= operator.index(epoch) < 1 << 62:
            raise ValueError(f"An epoch is an int from 0 to 2**62 - 1, got {epoch!r}.")
        self._epochs.set(operator.index(epoch))

    # Resuming.

    @never_ends
    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that you received; after the end of an epoch, the start of the next epoch.

        Returns JSON-serialisable data. May be called at any time, even inside a loop.
        """
        state = self._epochs.as_dict(self._about, self._feed.beginning)
        state["seed"] = self.seed
        if self._feed.keeps_state():
            state["dataset"] = asked(self._dataset, self._dataset.state_dict)
        return state

    @never_ends
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter()` continues where the state was taken. The number of workers may differ.

        With `shard=` the number of ranks may differ too: the state of any rank at the same step works for all.
        If the state does not fit, a StateError names the difference and the loader stays unchanged.
        """
        parsed = State.parse(state)
        if parsed.dataset is None:
            resume = self._fitting(parsed)
        else:
            if not self._feed.keeps_state():
                raise StateError(
                    f"The resume state contains a state of the dataset, but {type(self._dataset).__name__} has no "
                    "load_state_dict(). Give the loader the dataset that it had when the state was taken."
                )
            before = asked(self._dataset, self._dataset.state_dict)
            try:
                # First: the dataset may have another length then.
                self.update(operator.methodcaller("load_state_dict", parsed.dataset))
                resume = self._fitting(parsed)
            except BaseException:
                self.update(operator.methodcaller("load_state_dict", before))
                raise
        if resume.seed != self._seed:
            self._engines.close()  # workers have the seed from the beginning
            self._seed = resume.seed
        self._epochs.load(resume)

    def _fitting(self, state: State) -> State:
        """The state as this loader continues it; StateError if it does not fit."""
        plan, about = self._feed.plan(state.seed or 0), self._about()
        if state.begun:
            about["sampler"] = content(plan, about["length"])
        state.check(about)
        if state.seed is None:
            raise StateError(f"The resume state is damaged: 'seed' is None, but every state has one. {ANEW}")
        if self._options.seed is not None:
            state._replace(about={"seed": state.seed}).check({"seed": self._options.seed})
        return state.dealt_anew(plan, self._options.shard.world)._replace(about=about)

    def _about(self) -> dict[str, Any]:
        """A description of the loader, which must be the same when a state is loaded.

        Not `on_error`: a run that was stopped by a bad sample is best resumed with another value.
        """
        options = self._options
        return {
            "kind": self._feed.name,
            "length": self._feed.length(),
            "files": fingerprint_of(self._dataset),
            "order": self._feed.order_name,
            "batch_size": options.batch_size,
            "last_batch": options.last_batch,
            "world": options.shard.world,
            "dtype": None if options.cast is None else options.cast.describe(),
        }

    @never_ends
    def __len__(self) -> int:
        """The number of batches in an epoch: in the next one, if epochs differ (`last_batch="rollover"`)."""
        plan = self._feed.plan(self.seed, self._epochs.start().consumed)
        return self._feed.steps(self._epochs.next, plan)

    @never_ends
    def update(self, change: Callable[[Any], object] | None = None, /, **attributes: Any) -> None:
        """Changes the dataset here and in every worker: `update(size=416)`, or a function that takes the dataset.

        The next batch that is handed out has the change, on every backend: prefetched batches are recomputed. If
        the change raises, all live iterators end, because it may be half done.
        """
        if (change is None) == (not attributes) or not (change is None or callable(change)):
            raise TypeError("update() takes either a function that takes the dataset, or attributes to set.")
        if self._feed.one_reader and self._options.num_workers:
            raise ValueError(
                "A stream without load() is read by a worker, which cannot read prefetched batches again. "
                f"{to_load_in_parallel(self._dataset)}; or use num_workers=0."
            )
        self._engines.update(Setting(attributes) if change is None else change, self._dataset)
        self._length = self._feed.length()

    # The life of the workers.

    def close(self) -> None:
        """Stops the workers. Batches that were handed out stay valid; a later `iter()` starts new workers."""
        if self._feed.knows_end:
            self._engines.taken_back()  # an iterator that has handed out its last batch is at its end, not closed
        self._engines.close()
        self._measures.close()
        self._foresight.close()

    def __enter__(self) -> DataLoader[_T_co]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The settings, as they were resolved.

    dataset = property(lambda self: self._dataset, doc="The dataset.")

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS and "_options" in self.__dict__:
            return getattr(self._options, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def workers(self) -> list[Any]:
        """The live worker processes, each a handle like `multiprocessing.Process`."""
        return [worker for engine in self._engines.all() for worker in engine.backend.workers]

    @property
    def skipped(self) -> list[tuple[Any, Exception]]:
        """Key and exception of each sample that has failed in the batches of this epoch, about 2 KB each.

        `max_errors` limits their number.
        """
        return list(self._skipped)

    @property
    def seed(self) -> int:
        """The seed that was given, or else the seed that was drawn when one was first needed."""
        if self._seed is None:
            self._seed = draw_key(self._options.generator)
        return self._seed

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that makes a batch of samples (of one sample, if samples are not batched)."""
        given: Callable[[Any], Any] | None = self._options.collate_fn
        default = default_collate if self._feed.batched else convert
        return default if given is None else given

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the keys of the current epoch. None for a stream and with batch_sampler."""
        return self._feed.sampler(self._now)

    @property
    def batch_sampler(self) -> Any:
        """The object that gives the keys of each batch; None if samples are not batched."""
        return self._feed.batch_sampler(self._now)

    def _now(self) -> tuple[Plan | None, int]:
        return self._feed.plan(self.seed), self.epoch

    def __setattr__(self, name: str, value: object) -> None:
        if name in _SETTINGS and name != "num_workers":
            raise ValueError(
                f"{name} cannot be set after the loader was made: its workers have the old value. Make a new loader."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        given = f"batch_size={self.batch_size}, num_workers={self.num_workers}, backend={self.backend!r}"
        return f"{type(self).__name__}({type(self._dataset).__name__}, {given})"

    def __getstate__(self) -> dict[str, Any]:
        left = ("_engines", "_runs", "_skipped", "_deliver", "_measures", "_tuning", "_foresight")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy made by copy.copy goes on by itself.
        self._epochs, self._feed = self._epochs.copy(), copy.copy(self._feed)
        self._give_engines()

    def _give_engines(self) -> None:
        self._runs = itertools.count()
        # Not closed by a finalizer of the loader: that would keep the engines alive, and these may keep the loader.
        self._engines = engines.Engines()
        # They must not refer to the loader, which ends with its last reference.
        settings = partial(shown, self._feed, self._face)
        self._measures = Measures(f"DataLoader({type(self._dataset).__name__})", settings, self._engines.ours)
        self._begin_tuning()
        self._skipped: list[tuple[Any, Exception]] = []
        self._foresight: NoForesight = NO_FORESIGHT

    @never_ends
    def _start(self, kind: type[_I]) -> _I:
        epochs, feed, options = self._epochs, self._feed, self._options
        if self._asks_for_ranks:
            self._asks_for_ranks = False
            warn_of_ranks(self._dataset)
        timeout = options.timeout if 0 < options.timeout < math.inf else None
        measures = self._measures
        own = self._release, self.__len__, self._deliver, measures, self._tick
        setup = Setup(feed, timeout, options.max_errors, *own)
        with self._engines.changing():
            self._take_back()
            measures.begin_epoch(epochs.next)
            start, about = epochs.start(), self._about()
            plan = feed.plan(self.seed, start.consumed)
            if start.begun:  # dataset and sampler may have changed since the state was loaded
                start.check({**about, "sampler": content(plan, about["length"])})
            else:
                start = start._replace(about=about)
            engine = self._take_engine(plan, about["length"])
            copied = feed.one_reader and engine.backend.copies_dataset
            try:
                run = engine.ahead
                if run is None or run.epoch != epochs.next or run.plan != plan or epochs.loaded is not None:
                    # The dataset of a worker that read the last epoch has the state already, and ignores the mark.
                    restores = epochs.restores() or copied
                    mark = known(start.mark) if restores else None
                    at = Begin(start.steps, frozenset(start.beyond), mark, epochs.restores())
                    if start.mark is None and not start.begun and (epochs.are_fresh or not copied):
                        # Now: what reads ahead moves on before the first batch is asked for.
                        start = start._replace(mark=feed.beginning(is_fresh=epochs.are_fresh))
                    run = feed.run(self._runs, epochs.next, self.seed, plan, at)
                progress = Progress(start, plan)
                reader = kind(setup, engine, run, progress)
                ahead = foresee(self._foresight, self._dataset, plan, progress, measures.meter.scouts)
                self._foresight = reader.foresight = ahead
                engine.open(run)
                measures.started(engine)
                ahead.start()
            except BaseException:
                engine.close()
                raise
            self._engines.begun(engine)
            self._skipped = reader.skipped
            epochs.begin(progress)
            return reader

    def _take_back(self) -> None:
        """Ends the epochs of iterators that have handed out their last batch, and whose end was not asked for.

        Half of all training loops take a fixed number of batches, and never ask.
        """
        free = self._engines.taken_back() if self._feed.knows_end else []
        for engine in free:
            self._release(engine)
        if free:
            self._measures.end_epoch()

    def _take_engine(self, plan: Plan | None, length: int | None) -> Engine:
        """The idle engine, if its workers have the present dataset and order; else a new one."""
        engine, order = self._engines.take(), self._feed.replacements(plan)
        if engine is not None:
            # A state from before the first batch has no position to return to, and the reader may have read on.
            loaded = self._epochs.loaded if self._feed.one_reader and has_state(self._dataset) else None
            read_on = loaded is not None and loaded.mark is None
            outdated = engine.backend.copies_dataset and (read_on or length != self._length)
            if outdated or engine.job.order != order:
                engine.close()
                engine = None
        self._length = length
        return engine or self._new_engine(order)

    def _new_engine(self, order: Any) -> Engine:
        options, collate_fn = self._options, self._options.collate_fn
        job = Job(
            dataset=self._dataset,
            fetch=self._feed.fetch,
            collate_fn=None if collate_fn is default_collate and self._feed.batched else collate_fn,
            worker_init_fn=options.worker_init_fn,
            num_workers=engines.workers(options.num_workers, self._feed),
            seed=self.seed,
            drop_last=options.drop_last,
            shard=options.shard,
            batched=self._feed.batched,
            batch_size=options.batch_size or 1,
            on_error=options.on_error,
            cast=options.cast,
            order=order,
            make_runner=self._make_runner,
        )
        engine = engines.new_engine(job, options, self._feed, self._measures.meter)
        self._engines.live.add(engine)
        return engine

    def _release(self, engine: Engine) -> None:
        """Called by an iterator that no longer needs its engine."""
        stays = self._options.persistent_workers or self._options.num_workers == 0
        self._engines.put(engine) if stays else engine.close()
