"""The immutable figures that `loader.stats()` returns, in seconds and bytes. This module measures nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.plan._packing import PackingFigures as PackingFigures


@dataclass(frozen=True, slots=True)
class Spans:
    """A summary of many durations: their number, total, median, 95th percentile and maximum, in seconds.

    The median and the percentile come from a histogram, and are accurate to within 10 %.

    >>> import penstock
    >>> with penstock.DataLoader(range(8), batch_size=2, num_workers=2, backend="thread") as loader:
    ...     for batch in loader:
    ...         pass
    ...     figures = loader.stats()
    >>> figures.epoch.waits.count, figures.epoch.waits.longest >= figures.epoch.waits.median
    (4, True)
    """

    count: int = 0
    total: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a histogram: `count` samples took between `low` and `high` seconds.

    >>> import penstock
    >>> with penstock.DataLoader(range(8), batch_size=2, num_workers=2, backend="thread") as loader:
    ...     for batch in loader:
    ...         pass
    ...     figures = loader.stats()
    >>> sum(bucket.count for bucket in figures.life.sample_times)
    8
    """

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class SlowSample:
    """One of the slowest samples.

    `key` is an integer, or the text of a key that is not an integer. `path` is the path of the sample's file, or the
    end of a long path, or "" if the dataset does not have a file for each sample.

    >>> slow = SlowSample(key=7, seconds=0.5, epoch=0, step=3, worker="worker 1")  # of `loader.stats().life.slowest`
    >>> f"sample {slow.key} took {slow.seconds} s in {slow.worker}"
    'sample 7 took 0.5 s in worker 1'
    """

    key: int | str
    seconds: float
    epoch: int
    step: int
    worker: str
    path: str = ""

    @property
    def name(self) -> str:
        """A text that helps people to find the sample: its path, if there is one, and its key."""
        return f"{self.path} (key {self.key})" if self.path else str(self.key)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """Where the time of one worker went, in seconds.

    - `seat`: the number of the worker. A worker that replaces a crashed one has the same number, and continues its
      figures.
    - `tasks`, `steps`: the number of tasks and steps that were done, including batches that were never handed out.
    - `fetch`: the time in the dataset's own code.
    - `collate`: the time to combine samples into a batch. Arrays are written directly into shared memory.
    - `write`: the time to write the rest of the batch to shared memory and to send it.
    - `waited_task`: the time in which the worker was idle although the caller waited for a batch.
    - `waited_room`: the time in which the worker was idle because enough batches were ready.
    - `cpu`: the processor time.
    - `delayed`: the time in which the worker was ready to compute, but other programs used the processors.
    - `node`: the name of the worker's machine, or "" if workers cannot run on other machines.
    - `pil`: True if PIL has opened images in the worker's process.

    >>> import penstock
    >>> with penstock.DataLoader(range(8), batch_size=2, num_workers=2, backend="thread") as loader:
    ...     for batch in loader:
    ...         pass
    ...     figures = loader.stats()
    >>> sum(worker.steps for worker in figures.life.workers)
    4
    """

    seat: int
    name: str
    alive: bool = True
    tasks: int = 0
    steps: int = 0
    fetch: float = 0.0
    collate: float = 0.0
    write: float = 0.0
    waited_task: float = 0.0
    waited_room: float = 0.0
    cpu: float = 0.0
    node: str = ""
    delayed: float = 0.0
    pil: bool = False

    @property
    def busy(self) -> float:
        return self.fetch + self.collate + self.write

    @property
    def share(self) -> float:
        """The share of the time in which the worker was busy, from 0 to 1."""
        whole = self.busy + self.waited_task + self.waited_room
        return self.busy / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """The loader's use of remote files (including data that it downloaded ahead of time), and of blocks of tables.

    Remote files are downloaded and cached in pieces.

    - `hits`: the number of pieces that were on this machine when a worker asked for them.
    - `misses`: the number of pieces that workers waited for. `waited`: the total number of seconds that they waited.
    - `fetched`: the number of pieces that were downloaded, on request or ahead of time.
    - `evicted`: the number of pieces that were deleted from the cache folder to make room for others.
    - `requests`: the number of requests to the stores. `retries`: how many of the requests were retries.
    - `nbytes`: the number of bytes that were downloaded.
    - `decoded`: the number of blocks of tables, remote or local, that were decoded.
    - `needed`: the total size in bytes of the blocks that are in use at the same time, such as the blocks in the
      window of `shuffle="blocks"`.
    - `limit`: the number of bytes that the cache may hold.

    Requests that a dataset makes when it is created, to find and index its files, are not counted.

    >>> cache = CacheFigures(hits=95, misses=5, waited=1.5)  # `loader.stats().life.cache`
    >>> cache.hits / (cache.hits + cache.misses)
    0.95
    """

    hits: int = 0
    misses: int = 0
    waited: float = 0.0
    fetched: int = 0
    evicted: int = 0
    requests: int = 0
    retries: int = 0
    nbytes: int = 0
    decoded: int = 0
    needed: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Period:
    """The figures of an epoch, or of the loader's whole life.

    - `epochs`: the number of epochs that were started.
    - `seconds`: the wall-clock time since the first `iter()`, without the pauses between epochs.
    - `batches`, `samples`, `nbytes`: the number of batches, samples and bytes that the caller received.
    - `waits`: how long the caller waited in `next()` for each batch. `works`: how long it worked between two batches.
    - `ready`: the number of batches that were ready when the caller asked for them.
    - `tasks`: the number of tasks in which workers made the batches. Several small batches can be made in one task.
    - `caller_cpu`: the processor time of the calling process, in seconds.
    - `slowest`: the ten slowest samples, slowest first. `sample_times`: a histogram of the time that samples took.
      Samples that take less than 20 µs on average are not timed one by one.
    - `replaced`: the number of workers that crashed and were replaced.
    - `repeated`: the number of steps that were done again because a worker crashed or `update()` was called.
    - `skipped`: the number of samples that failed and were left out or replaced (see `on_error=`).
    - `cache`: the figures of remote files and of decoded tables, or None if the loader used neither of them.

    >>> import penstock
    >>> with penstock.DataLoader(range(8), batch_size=2, num_workers=2, backend="thread") as loader:
    ...     for batch in loader:
    ...         pass
    ...     figures = loader.stats()
    >>> figures.life.batches, figures.life.samples, figures.life.rate > 0
    (4, 8, True)
    """

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    waits: Spans = Spans()
    works: Spans = Spans()
    ready: int = 0
    tasks: int = 0
    caller_cpu: float = 0.0
    workers: tuple[WorkerFigures, ...] = ()
    slowest: tuple[SlowSample, ...] = ()
    sample_times: tuple[Bucket, ...] = ()
    replaced: int = 0
    repeated: int = 0
    skipped: int = 0
    epochs: int = 1
    cache: CacheFigures | None = None

    @property
    def waiting(self) -> float:
        """The share of the wall-clock time in which the caller waited for batches, from 0 to 1."""
        whole = self.waits.total + self.works.total
        return self.waits.total / whole if whole else 0.0

    @property
    def rate(self) -> float:
        """The number of batches per second."""
        return self.batches / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """The time from the first `iter()` to the first batch, in seconds, and its parts in order.

    - `start`: the time in which the loader prepared its memory and requested workers.
    - `ship`: the part of `start` in which the dataset was pickled and sent to workers (0 with fork).
    - `boot`: the time after `start` until the first worker was ready, including `worker_init_fn`.
    - `sample`: the time after `boot` until the samples of the first batch were fetched.
    - `rest`: everything else.

    >>> import penstock
    >>> with penstock.DataLoader(range(8), batch_size=2, num_workers=2, backend="thread") as loader:
    ...     for batch in loader:
    ...         pass
    ...     figures = loader.stats()
    >>> figures.first_batch.total >= figures.first_batch.sample
    True
    """

    total: float = 0.0
    start: float = 0.0
    ship: float = 0.0
    boot: float = 0.0
    sample: float = 0.0
    rest: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of batches, in bytes.

    `lent` is the memory of batches that the caller holds, `pooled` is the memory for the next batches, and `strays`
    is memory outside the pool, for batches that did not fit into it.

    >>> import numpy as np, penstock
    >>> rows = penstock.ArrayDataset(np.zeros((8, 1000)))
    >>> with penstock.DataLoader(rows, batch_size=4, num_workers=1) as loader:
    ...     batch = next(iter(loader))
    ...     loader.stats().memory.lent >= batch.nbytes
    True
    """

    lent: int = 0
    pooled: int = 0
    strays: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A change made by `num_workers="auto"`, and its reason. `at` is its time in seconds after the first `iter()`.

    >>> decision = Decision(1.0, 4, 2, "The caller waits: trying 4 workers.")  # of `loader.stats().decisions`
    >>> f"{decision.at:.0f} s: {decision.workers} workers"
    '1 s: 4 workers'
    """

    at: float
    workers: int
    prefetch_factor: int
    reason: str


@dataclass(frozen=True, slots=True)
class BudgetFigures:
    """How well batches fill the budget of `batch_tokens=`.

    The figures are those of all batches that are cut together with the current batch, for all ranks.

    - `batches`, `samples`, `tokens`: how many there are, without padding.
    - `padding`: the share of padding in the batches, from 0 to 1.
    - `used`: the share of the budget that the batches use, padding included, from 0 to 1.

    >>> import penstock
    >>> data = penstock.dataset(["ab", "abc", "a"]).with_lengths(len)
    >>> loader = penstock.DataLoader(data, batch_tokens=4, collate_fn=list, seed=0)
    >>> batches = list(loader)
    >>> loader.stats().budget.samples
    3
    """

    batches: int = 0
    samples: int = 0
    tokens: int = 0
    padding: float = 0.0
    used: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What one source of a mixture has given in this epoch (with `stop=<number>`, in all epochs), to all ranks.

    - `name`: the name of the source.
    - `asked`, `share`: its present weight as a share, and its share of the samples, from 0 to 1.
    - `samples`: the number of samples. `passes`: how often it was read, such as 1.5 for one and a half times.
    - `tokens`, `token_share`: the tokens of these samples, estimated from the mean length of the source's samples,
      and their share. Both are None if the lengths of a source are not known.

    >>> import penstock
    >>> data = penstock.mix({"a": range(90), "b": range(90)}, {"a": 2, "b": 1}, stop=60)
    >>> loader = penstock.DataLoader(data, batch_size=10, seed=0)
    >>> batches = list(loader)
    >>> [(source.name, source.samples) for source in loader.stats().mixture.sources]
    [('a', 40), ('b', 20)]
    """

    name: str
    asked: float
    share: float
    samples: int
    passes: float
    tokens: float | None = None
    token_share: float | None = None


@dataclass(frozen=True, slots=True)
class MixtureFigures:
    """The sources of a mixture, and the changes of its weights in this loader: the epoch and the step of each.

    With packed rows, the samples are the documents of all windows that were begun.

    >>> import penstock
    >>> loader = penstock.DataLoader(penstock.mix({"a": range(9), "b": range(9)}, {"a": 1, "b": 1}), seed=0)
    >>> first = next(iter(loader))
    >>> [source.asked for source in loader.stats().mixture.sources], loader.stats().mixture.changed
    ([0.5, 0.5], ())
    """

    sources: tuple[SourceFigures, ...] = ()
    changed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """How many batches of a loader with `commit=True` were committed, over the loader's life.

    - `committed`: the number of batches that were committed.
    - `twice`: how often a batch was committed that had been committed before. Such calls change nothing.
    - `open`: the number of batches that were handed out and not committed yet. After a resume they come again.

    >>> import penstock
    >>> loader = penstock.DataLoader(range(4), commit=True, seed=0)
    >>> batches = list(loader.batches())
    >>> loader.commit(batches[0])
    >>> loader.stats().commits.committed, loader.stats().commits.open
    (1, 3)
    """

    committed: int = 0
    twice: int = 0
    open: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the loader at one moment of its history.

    - `at`: the time of the moment, in seconds after the first `iter()`.
    - `batches`: the number of batches that were handed out since the first `iter()`.
    - `waited`, `worked`: the number of seconds that the caller waited for batches, and worked between them.
    - `ready`: the number of batches that were finished but not handed out yet.
    - `busy`: the number of workers that had a task. `workers`: the number of workers.
    - `lent`, `pooled`: the memory of batches that the caller held, and memory for the next batches, in bytes.

    >>> import penstock
    >>> loader = penstock.DataLoader(range(8))
    >>> batches = list(loader)
    >>> sum(moment.batches for moment in loader.stats().history) <= 8
    True
    """

    at: float
    batches: int
    waited: float
    worked: float
    ready: int
    busy: int
    workers: int
    lent: int
    pooled: int


@dataclass(frozen=True, slots=True)
class Outage:
    """A store of remote files that has not answered for `seconds`. `store` is its name, followed by the failure.

    >>> outage = Outage("s3://bucket", 75.0)  # `loader.stats().outage`
    >>> f"{outage.store} has not answered for {outage.seconds:.0f} s"
    's3://bucket has not answered for 75 s'
    """

    store: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that the loader may use.

    - `cpus`: the number of CPUs, which may be a fraction under a cgroup's CPU limit.
    - `throttled`: how many seconds the cgroup's CPU limit throttled this process while the loader was read, summed
      over CPUs.
    - `memory_limit`: the memory limit in bytes, or None if there is none. `memory_used`: the memory in use.
    - `swapped`: the number of bytes of the loader's processes that were in swap space when the loader was last read.

    >>> import penstock
    >>> loader = penstock.DataLoader(range(8))
    >>> batches = list(loader)
    >>> loader.stats().machine.cpus > 0
    True
    """

    cpus: float = 1.0
    throttled: float = 0.0
    memory_limit: int | None = None
    memory_used: int = 0
    swapped: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of a loader. `print(stats)` shows them as a table, and `stats.verdict` says where the time goes.

    >>> import penstock
    >>> loader = penstock.DataLoader(range(8), batch_size=2)
    >>> batches = list(loader)
    >>> figures = loader.stats()
    >>> figures.epoch_number, figures.epoch.batches, figures.settings["batch_size"]
    (0, 4, 2)
    """

    name: str
    settings: Mapping[str, Any]
    epoch: Period
    life: Period
    epoch_number: int = 0
    first_batch: FirstBatch | None = None
    memory: Memory = Memory()
    machine: Machine = Machine()
    decisions: tuple[Decision, ...] = ()
    history: tuple[Moment, ...] = field(default=(), repr=False)
    outage: Outage | None = None
    budget: BudgetFigures | None = None
    packing: PackingFigures | None = None
    commits: CommitFigures | None = None
    mixture: MixtureFigures | None = None

    @property
    def verdict(self) -> str:
        """One or two sentences that say where the time goes and what to do, or that it is too early to say."""
        from penstock.stats._verdict import verdict

        return verdict(self)

    def __str__(self) -> str:
        from penstock.stats._table import table

        return table(self)

    def _repr_html_(self) -> str:
        from penstock.stats._table import html

        return html(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures and the verdict as a dict that can be serialised as JSON."""
        plain = asdict(replace(self, settings=dict(self.settings)))
        return {**plain, "verdict": self.verdict}
