"""The verdict on a loader: one or two sentences that say where the time goes and what to change.

The first of the `RULES` whose condition is true gives the verdict. The rules are sorted by importance: problems that
slow down everything, then cases in which faster loading would gain nothing, then causes, from the specific to the
general. If no cause is clear, the last rule only gives the numbers, because a wrong remedy is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.stats._facts import Facts
from penstock.stats._figures import Stats
from penstock.stats._words import say


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition, and the verdict if the condition is true. Names in braces stand for phrases in `_words.PIECES`."""

    name: str
    holds: Callable[[Facts], bool]
    text: str


def verdict(stats: Stats) -> str:
    """Returns one or two sentences with numbers and advice, or a sentence that says there is too little data."""
    rule, facts = rule_of(stats), Facts(stats)
    return say(rule.text if rule else TOO_EARLY if facts.period.batches else NOTHING_YET, facts)


def rule_of(stats: Stats) -> Rule | None:
    """Returns the first rule whose condition is true, or None if there is too little data for a verdict."""
    facts = Facts(stats)
    if facts.enough or _store_is_silent(facts):
        return next(rule for rule in RULES if rule.holds(facts))
    return None


def judgement(stats: Stats) -> str:
    """Returns how well the loader keeps up: "good", "fair" or "poor", or "none" if there is too little data."""
    rule, facts = rule_of(stats), Facts(stats)
    if rule is None:
        return "none"
    if rule.holds in (_store_is_silent, _throttled, _swaps):
        return "poor"
    if _starts(facts):
        return "fair"
    return "good" if facts.waiting < WAITS else "fair" if facts.waiting < WAITS_LONG else "poor"


TOO_EARLY = "It is too early for a verdict: {batches}. It needs {least} batches, and 0.2 s after the first."
NOTHING_YET = "No batch was handed out yet."

NOTHING_TO_GAIN = 0.01  # if the loop waits for a smaller share of its time, faster loading gains nothing
WAITS = 0.05  # if the loop waits for a larger share of its time, a change of settings is worthwhile
WAITS_LONG = 0.3  # if the loop waits for a larger share of its time, the loader is the main problem
ALL_BUSY = 0.75  # workers count as busy if they work for at least this share of their time


# What slows down everything.


def _store_is_silent(facts: Facts) -> bool:
    return facts.stats.outage is not None


def _throttled(facts: Facts) -> bool:
    return facts.stats.machine.throttled >= 0.1 * facts.stats.life.seconds * max(1.0, facts.cpus)


def _swaps(facts: Facts) -> bool:
    # Memory that is swapped out but not used does no harm. In that case, workers compute, or the loop does not wait.
    suffers = facts.waiting >= WAITS and facts.blocked_share >= 0.3
    return suffers and facts.stats.machine.swapped >= 64 << 20


# Can anything be gained?


def _loop_is_slow(facts: Facts) -> bool:
    return facts.waiting < NOTHING_TO_GAIN and not _starts(facts)


def _loop_hardly_waits(facts: Facts) -> bool:
    return facts.waiting < WAITS and not _starts(facts)


def _workers_wait_for_room(facts: Facts) -> bool:
    too_many = not facts.auto and facts.would_do <= 0.6 * facts.workers
    return _loop_is_slow(facts) and too_many and facts.idle_share("room") >= 0.3


# Causes that have a name.


def _cache_is_small(facts: Facts) -> bool:
    cache = facts.period.cache
    return cache is not None and 0 < cache.limit < cache.needed and cache.evicted > 0


def _starts_often(facts: Facts) -> bool:
    return facts.starts_often and _starts(facts)


def _starts(facts: Facts) -> bool:
    took = facts.starting + facts.begun
    return took >= max(0.1 * (took + facts.whole), facts.waited, 0.1)


def _few_slow_samples(facts: Facts) -> bool:
    if facts.timed < 100 or not facts.slow or facts.tail_count > 0.02 * facts.timed:
        return False
    usual_batch = facts.median_sample * facts.samples_per_batch
    return facts.slow[0].seconds >= 2 * usual_batch and facts.tail_seconds >= 0.5 * facts.waited


def _takes_microseconds(facts: Facts) -> bool:
    # The limit is higher if workers are not all busy, because they could make more batches even on a busy machine.
    limit = 100e-6 if facts.busy_share >= ALL_BUSY else 500e-6
    return facts.waited < limit * facts.period.batches and facts.busy < 100e-6 * facts.period.batches


def _is_inline(facts: Facts) -> bool:
    return facts.face != "prefetch" and not facts.workers


# All workers are busy.


def _all_busy(facts: Facts) -> bool:
    return facts.workers > 0 and facts.busy_share >= ALL_BUSY


def _one_reader(facts: Facts) -> bool:
    return bool(facts.settings.get("one_reader")) and _all_busy(facts)


def _holds_the_gil(facts: Facts) -> bool:
    # Only one thread at a time computes, or would compute if it had a processor. The others are blocked: in the
    # middle of a long sample, or, if samples are short, before they can begin a task.
    one_computes = 0.8 <= facts.wanted <= 1.3 and facts.cpus >= 1.8
    in_the_middle = _all_busy(facts) and facts.busy >= 1.5 * facts.whole and facts.blocked_share >= 0.25
    before = facts.blocked_share < 0.25 and facts.idle_share("task") >= 0.3
    several = facts.workers > 1 and (in_the_middle or before)
    return facts.threads and facts.has_gil and several and one_computes


def _most_is_write(facts: Facts) -> bool:
    return _all_busy(facts) and facts.part("write") >= 0.5


def _most_is_collate(facts: Facts) -> bool:
    return _all_busy(facts) and facts.part("collate") >= 0.5


def _cpus_are_full(facts: Facts) -> bool:
    return facts.workers > 0 and ((_all_busy(facts) and facts.cpus_full) or facts.only_wants_cpu)


def _more_workers_than_cpus(facts: Facts) -> bool:
    return _cpus_are_full(facts) and facts.workers > facts.cpus


def _samples_wait(facts: Facts) -> bool:
    return _all_busy(facts) and facts.blocked_share >= 0.6 and facts.part("fetch") >= 0.5


# Workers are not all busy, and the loop waits.


def _own_process_is_slow(facts: Facts) -> bool:
    # The loop's waiting is due to workers only for as long as they worked, or would have worked with a processor.
    explained = facts.busy + facts.delayed
    return facts.workers > 0 and explained < 0.5 * facts.waited


def _wait_in_turn(facts: Facts) -> bool:
    uneven = facts.usual_waits < 0.2 * facts.waited
    return facts.workers > 0 and uneven and facts.idle_share("room") >= 0.15


RULES = (
    Rule(
        "silent store",
        _store_is_silent,
        "Your loop waits for the store {store}, which has not answered for {silent}. Requests are retried, and "
        "batches continue when it answers. Look at the network, the service's status and your credentials.",
    ),
    Rule(
        "throttled",
        _throttled,
        "The CPU limit of this container (cgroup), {cpus}, held its processes back for {throttled} in "
        "{life}, summed over CPUs. Raise the limit, or start fewer threads and workers.",
    ),
    Rule(
        "swaps",
        _swaps,
        "{loop_waited}, and {swapped} of the loader's processes are in swap space, which is slow. Use less "
        "memory: fewer workers, a smaller prefetch_factor= or smaller batches.",
    ),
    Rule(
        "fewer workers would do",
        _workers_wait_for_room,
        "{loop_waited}: your loop is the bottleneck, and faster loading would gain nothing. The {workers} "
        "workers waited for room {no_room} of their time: {fewer_workers} would do.",
    ),
    Rule(
        "nothing to gain",
        _loop_is_slow,
        "{loop_waited}: your loop is the bottleneck, and faster loading would gain nothing.",
    ),
    Rule(
        "little to gain",
        _loop_hardly_waits,
        "{loop_waited}: your loop is the bottleneck, and faster loading would gain {waiting} at most.",
    ),
    Rule(
        "small cache",
        _cache_is_small,
        "{loop_waited}. The cache of remote files holds {cache_limit}, and the blocks that are in use at the same "
        "time take {cache_needed}: they are downloaded several times. Raise cache_bytes=, or use a smaller window=.",
    ),
    Rule(
        "start-up in each epoch",
        _starts_often,
        "Starting workers for each epoch took {starting} of {all_seconds}: keep them with "
        "persistent_workers=True{or_threads}. {starts}.",
    ),
    Rule(
        "start-up",
        _starts,
        "The first batch took {starting} of {all_seconds}; later epochs start without that{or_threads}. {starts}.",
    ),
    Rule(
        "few slow samples",
        _few_slow_samples,
        "{loop_waited}, because one in {one_slow_in} samples is very slow: {slow_keys} took {slow_times}. "
        "Make such samples faster or leave them out{let_others_pass}.",
    ),
    Rule(
        "tiny batches",
        _takes_microseconds,
        "{loop_waited}, but only {each_wait} for a batch, which is mostly the loader's own overhead. Larger "
        "batches have less of it for each sample.",
    ),
    Rule(
        "inline",
        _is_inline,
        "{loop_waited}, because it loads the data itself (num_workers=0). Workers load while your loop "
        "works: make the loader with {first_workers}.",
    ),
    Rule(
        "slow source",
        lambda facts: facts.face == "prefetch",
        "{loop_waited}: one thread reads the source, which takes {each_from_source} for a batch. Make the "
        "source faster, or load its samples with the workers of a penstock.DataLoader.",
    ),
    Rule(
        "one reader",
        _one_reader,
        "{loop_waited}, and the one reader of the stream was busy {busy} of its time. Let __iter__ yield "
        "light items (paths or keys) and define load(item): then all workers load in parallel.",
    ),
    Rule(
        "GIL",
        _holds_the_gil,
        "{loop_waited}. The {workers} threads together used only {cpu} of {cpus}, because one at a time holds the "
        'GIL. Use processes: backend="process".',
    ),
    Rule(
        "write",
        _most_is_write,
        "{loop_waited}. Workers were busy {busy} of their time, {write} of it with pickling what is not an "
        "array: return arrays and numbers from your samples or your collate_fn{or_threads}.",
    ),
    Rule(
        "collate",
        _most_is_collate,
        "{loop_waited}. Workers were busy {busy} of their time, {collate} of it with collating: making a "
        "batch of single samples. {collate_remedy}.",
    ),
    Rule(
        "more workers than CPUs",
        _more_workers_than_cpus,
        "{loop_waited}. The {workers} workers share {cpus}, {cpus_in_use}: {as_many_as_cpus} would be about "
        "as fast. To gain, use more CPUs, or {cheaper}.",
    ),
    Rule(
        "CPUs in use",
        _cpus_are_full,
        "{loop_waited}. The workers share {cpus} with your loop, {cpus_in_use}: more workers would not "
        "help. Use more CPUs, or {cheaper}.",
    ),
    Rule(
        "samples wait",
        _samples_wait,
        "{loop_waited}. Workers were busy {busy} of their time, but computed for only {cpu_share} of that: "
        "samples wait, for files or a network. More workers than CPUs help here: {workers_that_wait}.",
    ),
    Rule(
        "fetch",
        _all_busy,
        "{loop_waited}. Workers were busy {busy} of their time ({parts}), and with your loop they used "
        "{cpu_used} of {cpus}: {workers_on_free_cpus}, or make samples cheaper{decode}.",
    ),
    Rule(
        "own process",
        _own_process_is_slow,
        "{loop_waited}, although workers were busy only {busy} of their time: the time goes to work that "
        "your own process does for each batch (a sampler, the __iter__ of a stream with load, unpickling of "
        "what is not an array). Make that cheaper; more workers would not help.",
    ),
    Rule(
        "wait in turn",
        _wait_in_turn,
        "{loop_waited}, and at other times workers waited for room ({no_room} of their time): the times "
        "of batches, or of your steps, vary widely. Work further ahead: a larger prefetch_factor= (now "
        "{prefetch_factor}).",
    ),
    Rule(
        "unclear",
        lambda facts: True,
        "{loop_waited}, and no single cause stands out: workers were busy {busy} of their time ({parts}), "
        "had no task {no_task}, and no room {no_room}.",
    ),
)
