"""`DataLoader`, which makes batches from a dataset. Its session (`_session/seeded.py`) does the work."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from penstock._feed.base import AnyPlan
from penstock._fill.collate import convert
from penstock._options import OPTIONS, Balance, Casting, LastBatch, OnError, is_int
from penstock._session.reading import Batches
from penstock._session.seeded import SeedSession, feed_for
from penstock._system.interrupts import import_whole
from penstock.batch import Batch
from penstock.collate import default_collate
from penstock.source._dataset import Keyed

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from numpy.typing import ArrayLike
    from typing_extensions import TypeVar as WithDefault

    from penstock._session.explanation import Explanation
    from penstock._session.tracing import Tracing
    from penstock.stats import Stats

    # The type of the batches is what collate_fn returns. Without one it depends on the samples, and is Any.
    _T_co = WithDefault("_T_co", covariant=True, default=Any)
else:
    _T_co = TypeVar("_T_co", covariant=True)

__all__ = ["DataLoader"]


class DataLoader(Generic[_T_co]):
    """An iterable over the batches of a dataset, which workers prefetch.

    Batches are numpy arrays, as zero-copy views of recycled memory. They are the same for any number and kind of
    workers. The arguments have the same names and meanings as in torch's DataLoader.

        >>> import numpy as np, penstock
        >>> loader = penstock.DataLoader(np.arange(6), batch_size=4)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]

    What is loaded:

    - `dataset`: an object with `__len__` and `__getitem__`, or an `IterableDataset`. Worker processes keep it as it
      was when they started. They are restarted if its length has changed; use `update` for any other change.
    - `batch_size`: the number of samples in a batch. With None, the loader hands out single samples, without a batch
      axis.
    - `collate_fn`: a function that makes a batch from a list of samples; the default is `default_collate`. With
      `batch_size=None` it gets one sample, and by default the sample is not changed.
    - `dtype`: "float32" converts all numbers while they are written into a batch; `{"image": "float32"}` converts
      only those of one field. A value that does not fit (300 as uint8) raises, unless `casting="unsafe"`.

    In which order:

    - `seed`: a number that determines the order, and all random numbers that the dataset draws from `random`,
      `numpy.random` and `penstock.rng()` (in threads, only those from `penstock.rng()`).
    - `generator`: if no `seed` is given, a seed is drawn from this numpy Generator, or from numpy's global generator.
    - `shuffle`: True chooses a new random order in each epoch. The default is the order of the keys. "blocks" is for
      a dataset that has `blocks`, such as those in `penstock.formats`: it chooses a random order that needs at most
      `window` blocks (16 by default) at a time.
    - `sampler`: an iterable of keys. Each epoch iterates over it. `batch_sampler` yields the keys of whole batches,
      and replaces `batch_size`, `shuffle`, `sampler` and `drop_last`.
    - `shard`: `(rank, world)`, or "auto" under torchrun, Ray Train, `jax.distributed`, Open MPI or SLURM. The loader
      then gets one rank's share of each step. A step consists of `world * batch_size` samples, in the order that all
      ranks compute from their common seed.
    - `last_batch`: what happens to an incomplete last batch: "keep", "drop", "pad" (full batches on every rank, see
      `Batch.pad`; the default with ranks), or "rollover" (its samples come first in the next epoch).
      `drop_last=True` means "drop".
    - `in_order`: False hands out batches as soon as they are done, so that a slow batch does not delay the others.

    How batches are made if samples differ in length:

    - `batch_tokens`: the largest number of tokens in a batch, padding included, instead of `batch_size`. Batches have
      samples of similar length. Every rank has the same number of steps, and a batch in each of them, at about the
      same cost. `len(loader)` is exact.
    - `lengths`: the length of each sample, as an array, or as a function of a sample, which measures all samples once
      before the first epoch. By default, the dataset's `__lengths__` returns them.
    - `max_length`: a longer sample is an error. With `collate_fn=penstock.pad(max_length=...)` it is cut instead.
    - `batch_multiple`: the number of samples in a batch is a multiple of this number, if enough of them fit.
    - `buckets`: a list of padded lengths, for compiled code. No other lengths occur. The loader passes the list on to
      `collate_fn=penstock.pad()`.
    - `balance`: deals samples to ranks so that all have about the same cost in each step: "tokens" (the sum of
      lengths) or "quadratic" (the sum of squared lengths, as in attention). With a fixed `batch_size`, all ranks
      together get the samples that they would get without it.
    - `accumulate`: with `balance` and `batch_size`, this many steps are dealt together, for a program that adds up
      the gradients of that many steps.

    By which workers:

    - `num_workers`: 0 loads each batch in the calling process, when you ask for it. "auto" starts with few workers,
      adds workers if you wait for batches, up to `max_workers`, and removes workers that are idle. You may set
      `num_workers` again while the loader runs.
    - `backend`: "process" (the default); "thread", which suits datasets that wait for I/O or release the GIL, and
      most datasets on a Python without the GIL; or "ray", whose workers are actors on the nodes of the cluster that
      `ray.init()` has connected to.
    - `ray_options`: the requirements of each actor, by Ray's names: `num_cpus` (1 by default), `num_gpus`, `memory`,
      `resources`, `runtime_env`, `scheduling_strategy` ("SPREAD" by default). One more option is `patience`: an error
      is raised if no worker could be placed within this many seconds (10 by default).
    - `backend_options`: options for a backend that you have registered. The backend defines them.
    - `multiprocessing_context`: how worker processes are started: "fork", "spawn", "forkserver", or a multiprocessing
      context. The default is "fork" if the process has no other threads, and "forkserver" otherwise.
    - `prefetch_factor`: how many batches (or bundles of very small batches) each worker may be ahead; 2 by default.
      "auto" raises it if you wait for batches although workers are idle.
    - `persistent_workers`: False stops the workers at the end of each epoch. By default they live as long as the
      loader.
    - `worker_init_fn`: a function that is called in each worker when it starts, with the worker's number.
    - `pin_memory`, `pin_memory_device`: accepted for programs written for torch. They do not affect numpy arrays.

    And if something goes wrong:

    - `timeout`: the number of seconds after which `next()` raises LoaderTimeout; 0 sets no limit. After a timeout,
      you can call `next()` again to go on waiting.
    - `retries`: how often a step is tried again, by a new worker, if its worker crashes.
    - `hang`: a worker process that spends more than this many seconds on one step is killed and treated as crashed.
      None sets no limit.
    - `commit`: True lets a resume state count only the batches for which you have called `commit`.
    - `on_error`: "skip" drops samples that raise, and "replace" replaces them with other samples. `max_errors` limits
      how many samples may fail in an epoch (see `skipped`).
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
        batch_tokens: int | None = None,
        lengths: ArrayLike | Callable[[Any], int] | None = None,
        max_length: int | None = None,
        batch_multiple: int = 1,
        buckets: Sequence[int] | None = None,
        balance: Balance | None = None,
        accumulate: int = 1,
        commit: bool = False,
        backend_options: Any = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "dataset")}
        self._session = SeedSession(feed_for(dataset, given))

    # Epochs. `begin` makes the plan, has an engine start the workers, and opens a run of the plan's steps on it.

    def __iter__(self) -> Iterator[_T_co]:
        """Begins the next epoch. Several iterators can be used at the same time, each for its own epoch."""
        return self._session.begin(Batches)

    def batches(self) -> Iterator[Batch[_T_co]]:
        """Begins the next epoch, like `iter()`, but yields each batch with its index, epoch and step."""
        return self._session.batches()

    def share(self, n: int, *, in_turn: bool = False) -> list[Iterator[_T_co]]:
        """Begins the next epoch as `n` iterators, for `n` threads of this process. Each batch goes to one of them.

        By default, a batch goes to the first thread that asks. With `in_turn`, the iterators get batches in turn. If
        one consumer is slow, its batches wait for it, up to the number of batches that may be prefetched. After that,
        the other consumers must wait, too. If a consumer is closed or garbage collected, the other consumers get its
        share.
        """
        if not is_int(n, 1):
            raise ValueError(f"share() takes the number of consumers, an integer of at least 1, got {n!r}.")
        import_whole("penstock._session.share")
        from penstock._session.share import share  # late: few programs need it

        window = self._session.window
        return list(share(self._session.begin(Batches), int(n), in_turn, window))

    def __len__(self) -> int:
        """Returns the number of batches in the next epoch.

        The number may differ between epochs, for example with `last_batch="rollover"`.
        """
        return self._session.length()

    @property
    def epoch(self) -> int:
        """The epoch that was begun last or, before the first `iter()`, the epoch that `iter()` will begin."""
        return self._session.epochs.current

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next `iter()` begins. This is only needed to repeat or skip an epoch."""
        self._session.set_epoch(epoch)

    @property
    def skipped(self) -> list[tuple[Any, Exception]]:
        """The key and the exception of each sample that has failed in the batches of this epoch.

        Each entry takes about 2 KB. `max_errors` limits the number of entries.
        """
        return list(self._session.skipped)

    # Resuming.

    def state_dict(self) -> dict[str, Any]:
        """Returns the current position, just after the last batch that you received.

        At the end of an epoch, this is the start of the next epoch. The result is JSON-serialisable, unless the
        `state_dict` of your dataset or sampler returns other data. The method can be called at any time, even inside
        a loop.
        """
        return self._session.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next `iter()` continue from the position where the state was taken.

        The number of workers may be different. With `shard=`, the number of ranks may be different, too, and a rank
        may load the state of any other rank, as long as all ranks load states of the same step. If the state does not
        fit this loader, a StateError names the difference, and the loader stays unchanged.
        """
        self._session.load(state)

    def commit(self, batch: Batch[Any]) -> None:
        """Records that a batch of `batches()` was used, for a loader with `commit=True`.

        The state then counts only committed batches. After a resume, exactly the other batches come again, in order.
        Use `commit` if you take batches ahead, or finish them out of order, as asynchronous training does. Any thread
        may call it, in any order, even after the next epoch has begun. `stats().commits` counts the batches that are
        still open, and those that were committed twice.
        """
        self._session.commit(batch)

    def explain(self, step: int, epoch: int | None = None) -> Explanation:
        """Returns which samples make up a step on every rank, and where each of them comes from.

        The step may be in the future or long past: everything follows from the plan, and no data is read. Without
        `epoch`, it is a step of the current epoch (see `epoch`). The result can be printed; `as_dict()` returns plain
        data.

            >>> import penstock
            >>> cats, dogs = penstock.dataset([1, 2]), penstock.dataset([3, 4, 5])
            >>> print(penstock.DataLoader(cats.concat(dogs), batch_size=2).explain(step=1))
            epoch 0, step 1
              sample 2: list(3 samples), key 0
              sample 3: list(3 samples), key 1
        """
        return self._session.explain(step, epoch)

    # Changes while it runs.

    def update(self, change: Callable[[Any], object] | None = None, /, **attributes: Any) -> None:
        """Changes the dataset, in this process and in every worker.

        Pass attributes that the dataset has, as in `update(size=416)`, or a function that takes it. On every backend,
        the next batch that is handed out already reflects the change, because prefetched batches are computed again.
        If the change raises, all live iterators end, because the change may be only half done.
        """
        self._session.update(change, **attributes)

    @property
    def num_workers(self) -> int:
        """The current number of workers. You may set it while the loader runs; the batches stay the same.

        New workers start immediately, and surplus workers exit after their current step. A stream without load()
        keeps its single reader. A number that you set replaces "auto".
        """
        return self._session.options.num_workers

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        self._session.set_num_workers(number)

    # Where the time goes.

    def stats(self) -> Stats:
        """Returns statistics: how long you waited, what each worker did, the slowest samples, and a verdict.

        The verdict names the bottleneck, if there is one. The statistics cover the current epoch, and the whole life
        of the loader. The loader measures all the time, and any thread may call this method.
        """
        return self._session.measures.stats()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes the statistics to an HTML page, with charts over time, workers, sample times and settings.

        The page needs no other file and no network, and its size is at most 200 KB. An existing file is replaced as a
        whole.
        """
        self._session.measures.report(path)

    def trace(self, path: str | os.PathLike[str]) -> Tracing:
        """Writes a trace of the caller and the workers to a file that Perfetto and chrome://tracing can open.

        The trace ends with its `with` block, its `close()`, the loader's `close()`, or the exit of the program:

            with loader.trace("trace.json"):
                for batch in loader:
                    ...

        Each task costs 64 bytes in shared memory, and about 30 µs in the thread that reads the loader.
        """
        return self._session.measures.trace(path)

    # The life of the workers.

    @property
    def workers(self) -> list[Any]:
        """The live worker processes. Each is a handle that resembles `multiprocessing.Process`."""
        return self._session.workers

    def close(self) -> None:
        """Stops the workers. Batches that were handed out stay valid; a later `iter()` starts new workers."""
        self._session.close()

    def __enter__(self) -> DataLoader[_T_co]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = copy.copy(self._session)  # a copy has its own workers and figures

    # The resolved settings.

    dataset = property(lambda self: self._session.dataset, doc="The dataset.")

    @property
    def seed(self) -> int:
        """The seed that was given, or the seed that was drawn when one was first needed."""
        return self._session.seed

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that makes a batch from samples, or from one sample if samples are not batched."""
        given: Callable[[Any], Any] | None = self._session.options.collate_fn
        default = default_collate if self._session.feed.batched else convert
        return default if given is None else given

    @property
    def sampler(self) -> Any:
        """The given sampler, or the keys of the current epoch. It is None for a stream and with `batch_sampler`."""
        return self._session.feed.sampler(self._now)

    @property
    def batch_sampler(self) -> Any:
        """The object that yields the keys of each batch, or None if samples are not batched."""
        return self._session.feed.batch_sampler(self._now)

    def _now(self) -> tuple[AnyPlan | None, int]:
        return self._session.feed.plan(self.seed), self.epoch

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS and "_session" in self.__dict__:
            return self._session.options.value(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if name in _SETTINGS and not (name in OPTIONS and OPTIONS[name].live):
            raise ValueError(
                f"{name} cannot be set after the loader was made: its workers have the old value. Make a new loader."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        given = f"batch_size={self.batch_size}, num_workers={self.num_workers}, backend={self.backend!r}"
        return f"{type(self).__name__}({type(self.dataset).__name__}, {given})"


# The attributes that a loader has and that cannot be set: its arguments, and settings derived from them.
_SETTINGS = frozenset({*inspect.signature(DataLoader).parameters, "auto", "is_unsplit"})
