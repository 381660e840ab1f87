"""The numbers that verdicts are based on: where the loop and the workers spent their time after start-up."""

from __future__ import annotations

import math
import sys
from functools import cached_property

from penstock.stats._figures import Bucket, FirstBatch, Period, SlowSample, Stats
from penstock.stats._units import count

# The minimum number of batches and seconds for a verdict. The first batches are prefetched before the caller asks for
# them, so the more batches are prefetched, the more batches a verdict needs.
LEAST_BATCHES = 20
LEAST_WINDOWS = 3
LEAST_SECONDS = 0.2


class Facts:
    """The numbers behind a verdict, from the current epoch or, if the current epoch is too short, from all epochs."""

    def __init__(self, stats: Stats) -> None:
        self.stats = stats
        self.settings = stats.settings
        self.most_workers = int(stats.settings.get("most_workers") or sys.maxsize)  # only `penstock profile` has it
        self.face = str(stats.settings.get("face", "penstock"))
        self.backend = str(stats.settings.get("backend", "process"))
        self.threads = bool(stats.settings.get("threads", self.backend == "thread"))  # older figures lack it
        self.has_gil = bool(stats.settings.get("gil", True))
        self.workers = int(stats.settings.get("num_workers") or 0)  # `prefetch` has none
        self.in_the_caller = self.threads or not self.workers
        self.cpus = stats.machine.cpus
        self.auto = "num_workers" in stats.settings.get("auto", ())
        self.period = stats.epoch if self._is_enough(stats.epoch) or stats.life.epochs <= 1 else stats.life
        self.enough = self._is_enough(self.period)

    @property
    def least(self) -> int:
        ahead = self.workers * int(self.settings.get("prefetch_factor") or 1)
        return max(LEAST_BATCHES, LEAST_WINDOWS * ahead)

    def _is_enough(self, period: Period) -> bool:
        return period.batches >= self.least and period.seconds - self._starting(period) >= LEAST_SECONDS

    @property
    def scope(self) -> str:
        if self.period is self.stats.epoch:
            return f"epoch {count(self.stats.epoch_number)}"
        return f"all {count(self.stats.life.epochs)} epochs"

    @property
    def starts_often(self) -> bool:
        return self.workers > 0 and not self.settings.get("persistent_workers", True)

    @property
    def depends_on_workers(self) -> bool:
        """True if the samples' random numbers depend on the number of workers, as they do in torch."""
        return self.face not in ("penstock", "prefetch") and self.settings.get("seed") is None

    # The loop.

    def _starting(self, period: Period) -> float:
        """Returns how many seconds the loop waited for workers to start and make the first batch."""
        first = self.stats.first_batch or FirstBatch()
        each = min(first.total - first.start, period.waits.longest)
        return min(period.waits.total, each * self._starts(period))

    def _starts(self, period: Period) -> int:
        if self.starts_often:
            return period.epochs
        return int(period is self.stats.life or period.batches == self.stats.life.batches)

    @cached_property
    def starting(self) -> float:
        return self._starting(self.period)

    @cached_property
    def begun(self) -> float:
        """The start-up time in seconds that was spent in `iter()`. It does not count as waiting."""
        first = self.stats.first_batch or FirstBatch()
        return first.start * self._starts(self.period)

    @cached_property
    def waited(self) -> float:
        """The time in seconds that the loop waited for data after the workers had started."""
        return max(0.0, self.period.waits.total - self.starting)

    @cached_property
    def whole(self) -> float:
        """The time in seconds that the loop waited or worked after the workers had started."""
        return max(1e-9, self.waited + self.period.works.total)

    @property
    def waiting(self) -> float:
        return self.waited / self.whole

    @property
    def usual_waits(self) -> float:
        """The seconds that the loop would have waited if every wait had been as long as the median wait."""
        return self.period.waits.median * self.period.batches

    # The workers.

    def _sum(self, *names: str) -> float:
        return float(sum(getattr(worker, name) for worker in self.period.workers for name in names))

    @cached_property
    def busy(self) -> float:
        """The workers' busy time in seconds, summed over workers. Without workers: the loop's own loading time."""
        return max(1e-9, self._sum("busy") or (0.0 if self.workers else self.waited))

    @cached_property
    def present(self) -> float:
        """The time in seconds that workers worked or waited, summed over workers."""
        return self.busy + self._sum("waited_task", "waited_room")

    @property
    def busy_share(self) -> float:
        return self.busy / self.present

    def idle_share(self, why: str) -> float:
        """Returns the share of the workers' time in which they were idle for the reason `why`.

        The reason "task" means that the loop waited, but the workers had no task. The reason "room" means that enough
        batches were ready.
        """
        return self._sum(f"waited_{why}") / self.present

    def part(self, name: str) -> float:
        """Returns the share of the workers' busy time that they spent on `name`: "fetch", "collate" or "write"."""
        return self._sum(name) / self.busy

    @property
    def would_do(self) -> int:
        """The number of workers that would have been enough, including a reserve of 25 %."""
        return max(1, math.ceil(1.25 * self.busy / self.whole))

    @property
    def needed(self) -> int:
        """The number of workers needed to keep up with the loop, if workers do not slow each other down."""
        works = self.period.works.total
        return math.ceil(self.busy / works) if works > 1e-3 * self.busy else 1000

    # The processors.

    @cached_property
    def cpu(self) -> float:
        """The average number of CPUs that the workers used."""
        return self._sum("cpu") / self.whole

    @property
    def cpu_used(self) -> float:
        """The average number of CPUs that the workers and the loop used together."""
        caller = self.period.caller_cpu / self.whole
        return caller if self.in_the_caller else caller + self.cpu

    @property
    def cpu_share(self) -> float:
        """The share of the workers' busy time that they spent computing, as opposed to waiting."""
        if not self.period.workers:  # without workers, loading is not measured separately from the loop
            return min(1.0, self.cpu_used)
        return min(1.0, self._sum("cpu") / self.busy)

    @property
    def delayed(self) -> float:
        """The time in seconds that workers were ready to compute but had no processor, summed over workers."""
        return self._sum("delayed")

    @property
    def delay_share(self) -> float:
        """The share of the workers' busy time in which they were ready to compute but had no processor."""
        return min(1.0 - self.cpu_share, self.delayed / self.busy)

    @property
    def blocked_share(self) -> float:
        """The share of the workers' busy time in which they waited for something other than a processor."""
        return 1.0 - self.cpu_share - self.delay_share

    @property
    def wanted(self) -> float:
        """The average number of CPUs that the workers would have used if enough had been available."""
        return (self.cpu_share + self.delay_share) * self.busy / self.whole

    @property
    def elsewhere(self) -> bool:
        """True if workers run on other machines, whose processor load is unknown."""
        return any(worker.node for worker in self.period.workers)

    @property
    def cpus_full(self) -> bool:
        if self.elsewhere:
            return False
        return self.cpu_used >= 0.85 * self.cpus or (self.delay_share >= 0.25 and self.blocked_share < 0.5)

    @property
    def only_wants_cpu(self) -> bool:
        """True if workers mostly computed or waited for a processor, even if other figures show workers as idle."""
        computed = self.delayed + self._sum("cpu")
        return not self.elsewhere and self.delayed >= 0.25 * self.present and computed >= 0.75 * self.present

    # The samples.

    @property
    def uses_pil(self) -> bool:
        """True if PIL has opened images in a worker's process, and fetching took at least half of the busy time."""
        return any(worker.pil for worker in self.period.workers) and self.part("fetch") >= 0.5

    @cached_property
    def _times(self) -> list[Bucket]:
        return [bucket for bucket in self.period.sample_times if bucket.count]

    @cached_property
    def timed(self) -> int:
        return sum(bucket.count for bucket in self._times)

    @cached_property
    def median_sample(self) -> float:
        passed = 0
        for bucket in sorted(self._times, key=lambda bucket: bucket.low):
            passed += bucket.count
            if 2 * passed >= self.timed:
                return (bucket.low + bucket.high) / 2
        return 0.0

    @cached_property
    def _tail(self) -> list[Bucket]:
        return [bucket for bucket in self._times if bucket.low >= 20 * self.median_sample > 0]

    @property
    def tail_count(self) -> int:
        return sum(bucket.count for bucket in self._tail)

    @property
    def tail_seconds(self) -> float:
        return sum(bucket.count * (bucket.low + bucket.high) / 2 for bucket in self._tail)

    @property
    def slow(self) -> list[SlowSample]:
        """The samples, among the ten slowest, that took at least 20 times the median time. Each is listed once."""
        slow: dict[int | str, SlowSample] = {}
        for sample in self.period.slowest:
            if sample.seconds >= 20 * self.median_sample:
                slow.setdefault(sample.key, sample)
        return list(slow.values())

    @property
    def samples_per_batch(self) -> float:
        return self.period.samples / max(1, self.period.batches)
