"""What `loader.stats()` returns: plain frozen figures, in seconds and bytes. Nothing here measures anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Spans:
    """A summary of many durations: their number, total, median, 95th percentile and longest, in seconds.

    Median and percentile come from a histogram, and are right within 10 %.
    """

    count: int = 0
    total: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many samples took between `low` and `high` seconds."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class SlowSample:
    """One of the slowest samples. `key` is an integer, or the text of any other key; `path` is the end of the path of
    its file, where the dataset has one for each sample.
    """

    key: int | str
    seconds: float
    epoch: int
    step: int
    worker: str
    path: str = ""

    @property
    def name(self) -> str:
        """The path, if there is one, and the key: a text by which people find the sample."""
        return f"{self.path} (key {self.key})" if self.path else str(self.key)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """Where the time of one worker went, in seconds. `seat` is its number; replacements continue its figures.

    `fetch`: the dataset's own work. `collate`: making a batch of the samples, which writes arrays into shared memory
    directly. `write`: sending everything else. `waited_task`: idle although the caller waited for a batch.
    `waited_room`: idle because enough batches were ready. `cpu`: processor time. `delayed`: ready to compute, but
    without a processor, because other programs used it. `node`: the machine, if it may be another one. `pil`: PIL has
    opened images in its process.
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
        """The share of its time in which it worked, from 0 to 1."""
        whole = self.busy + self.waited_task + self.waited_room
        return self.busy / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """What the loader's workers read from remote files, also ahead of time, and the blocks that they decoded.

    `hits`: pieces that were on this machine when a worker asked for them. `misses`: pieces that workers waited for.
    `waited`: the seconds of this waiting, summed over workers. `fetched`: pieces that were downloaded, for workers or
    ahead of time. `evicted`: pieces that were deleted from the cache folder to make room for others. `requests`:
    requests to the stores; `retries`: how many of them repeated one that had failed. `nbytes`: bytes that were
    downloaded. `decoded`: blocks of tables, remote or local, that were decoded. `needed`: bytes of the blocks that
    are in use at the same time, such as those of the window of `shuffle="blocks"`. `limit`: bytes that the cache may
    hold. Requests that a dataset makes when it is created, to find its files and index them, are not those of a
    loader, and not counted.
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

    - `epochs`: how many were begun.
    - `seconds`: wall clock from the first `iter()` on, without the pauses between two epochs.
    - `batches`, `samples`, `nbytes`: what was handed out.
    - `waits`: how long the caller waited in `next()` for each batch. `works`: how long it worked between two batches.
    - `ready`: how many of the batches were ready when the caller asked for them. `tasks`: how many tasks they came
      in: small steps travel several in one task, a bundle.
    - `caller_cpu`: processor time of the calling process.
    - `slowest`: the ten slowest samples, slowest first; `sample_times`: how long samples took. Samples that take less
      than 20 µs on average are not timed one by one.
    - `replaced`: workers that crashed and were replaced. `repeated`: steps that were done again for that reason, or
      after `update()`. `skipped`: samples that failed and were left out or replaced (`on_error=`).
    - `cache`: what was read of remote files and decoded of tables; None if nothing was.
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
        """The share of the wall clock in which the caller waited for batches, from 0 to 1."""
        whole = self.waits.total + self.works.total
        return self.waits.total / whole if whole else 0.0

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """Seconds from the first `iter()` to the first batch, and its parts, one after the other.

    `start`: the loader prepared its memory, and asked for workers. `ship`: part of `start` in which the dataset was
    pickled and sent (0 with fork). `boot`: until the first worker was ready, `worker_init_fn` included.
    `sample`: until the first batch was fetched. `rest`: everything else.
    """

    total: float = 0.0
    start: float = 0.0
    ship: float = 0.0
    boot: float = 0.0
    sample: float = 0.0
    rest: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of batches: `lent` to the caller, `pooled` for the next batches, and in `strays` outside the pool."""

    lent: int = 0
    pooled: int = 0
    strays: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A change that `num_workers="auto"` made, with its reason. `at` is in seconds since the first `iter()`."""

    at: float
    workers: int
    prefetch_factor: int
    reason: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of the loader at one moment of its history; sums are since the first `iter()`, `at` seconds ago.

    `busy`: workers that had a task. `ready`: batches that were done and not handed out.
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
    """A store of remote files that has not answered for `seconds`; `store` also names the failure."""

    store: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What the loader may use. `cpus` is a fraction under a cgroup's CPU limit. `throttled`: seconds that the
    cgroup held this process back while the loader was read, summed over CPUs. `memory_limit`: bytes, None without a
    limit. `swapped`: bytes of the loader's processes in swap space, when it was last read.
    """

    cpus: float = 1.0
    throttled: float = 0.0
    memory_limit: int | None = None
    memory_used: int = 0
    swapped: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of a loader. `print(stats)` shows a table, `stats.verdict` says where the time goes."""

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

    @property
    def verdict(self) -> str:
        """Where the time goes and what to do about it, in one or two sentences, or that it is too early to say."""
        from penstock.stats._verdict import verdict

        return verdict(self)

    def __str__(self) -> str:
        from penstock.stats._table import table

        return table(self)

    def _repr_html_(self) -> str:
        """The table as HTML, which notebooks show."""
        from penstock.stats._table import html

        return html(self)

    def to_dict(self) -> dict[str, Any]:
        """The figures and the verdict as plain data that JSON can hold."""
        plain = asdict(replace(self, settings=dict(self.settings)))
        return {**plain, "verdict": self.verdict}
