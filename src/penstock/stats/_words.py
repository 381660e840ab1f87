"""The phrases of a verdict. Each name in braces in a rule's text is replaced with one of these phrases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.stats._facts import Facts
from penstock.stats._figures import FirstBatch
from penstock.stats._units import count, seconds, share, size


def say(text: str, facts: Facts) -> str:
    return text.format_map(_Phrases(facts))


class _Phrases(dict[str, str]):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __missing__(self, name: str) -> str:
        return str(PIECES[name](self._facts))


def _loop_waited(facts: Facts) -> str:
    when = f" in {facts.scope}" if facts.stats.life.epochs > 1 else ""
    after = " after the first batch" if facts.starting >= 0.01 * facts.whole else ""
    times = f"{seconds(facts.waited)} of {seconds(facts.whole)}"
    return f"Your loop waited for data {share(facts.waiting)} of the time{when}{after} ({times})"


def _batches(facts: Facts) -> str:
    number = facts.period.batches
    return f"{count(number)} batch{'' if number == 1 else 'es'} in {seconds(facts.period.seconds)}"


def _cpus(facts: Facts) -> str:
    return "1 CPU" if facts.cpus == 1 else f"{count(facts.cpus)} CPUs"


def _parts(facts: Facts) -> str:
    """Returns the parts of the workers' busy time as text, longest first, such as "fetch 80 %, collate 20 %"."""
    shares = sorted(((facts.part(name), name) for name in ("fetch", "collate", "write")), reverse=True)
    return ", ".join(f"{name} {share(part)}" for part, name in shares if part >= 0.005)


# How many workers.


def use_workers(facts: Facts, workers: int) -> str:
    """Returns the text `num_workers=...`, with a warning if changing the number changes the random numbers."""
    if facts.depends_on_workers:
        return f"num_workers={workers} in the next run (without seed=, this changes your samples' random numbers)"
    return f"num_workers={workers}"


def _more_workers(facts: Facts, most: int) -> str:
    """Returns advice on how to use more workers: at least one more, and preferably no more than `most` in all.

    The advised number is never above `--max-workers`.
    """
    if facts.auto:
        return f'num_workers="auto" has chosen {facts.workers}; raise max_workers= if that is its limit'
    if facts.workers >= facts.most_workers:
        return f"raise --max-workers, which is {facts.most_workers}, to try more"
    most = min(most, facts.most_workers)
    most = min(most, 4 * facts.workers)
    return f"use {use_workers(facts, max(facts.workers + 1, min(facts.needed, most)))}"


def _workers_on_free_cpus(facts: Facts) -> str:
    free = max(0.0, facts.cpus - facts.cpu_used)
    each = max(0.05, facts.cpu / max(1, facts.workers))
    return _more_workers(facts, facts.workers + math.floor(free / each))


def _workers_that_wait(facts: Facts) -> str:
    threads = facts.face == "penstock" and facts.backend == "process"
    return _more_workers(facts, 1000) + (', and with backend="thread" they need less memory' if threads else "")


def _first_workers(facts: Facts) -> str:
    waits = facts.blocked_share >= 0.6
    workers = max(1, min(facts.needed, 16 if waits else math.floor(facts.cpus), facts.most_workers))
    threads = waits and facts.face == "penstock"
    return f"num_workers={workers}" + (', backend="thread"' if threads else "")


# What takes the time.

_CHEAPER = {
    "fetch": "make samples cheaper",
    "collate": "make collating cheaper",
    "write": "return arrays instead of objects that have to be pickled",
}


def _cheaper(facts: Facts) -> str:
    return f"{_CHEAPER[max(_CHEAPER, key=facts.part)]} (their work: {_parts(facts)}){_decode(facts)}"


def _decode(facts: Facts) -> str:
    said = ". PIL decodes images here. JPEGs are faster with ImageFolder(..., loader=penstock.image.loader())"
    return said if facts.uses_pil else ""


def _cpus_in_use(facts: Facts) -> str:
    if facts.cpu_used >= 0.85 * facts.cpus:
        return f"which are all in use ({count(facts.cpu_used)} on average)"
    return f"and waited for one {share(facts.delay_share)} of their time, because other threads or programs run too"


def _collate_remedy(facts: Facts) -> str:
    if facts.settings.get("collate_fn"):
        return "Make your collate_fn faster, or try the default one"
    if facts.face == "penstock":
        return "Use ArrayDataset for rows of arrays, or define __getitems__(keys) that returns one array"
    return "Define __getitems__(keys) that returns one array, or return fewer and larger fields"


def _or_threads(facts: Facts) -> str:
    # Only here, where processes cost most, and only if the user's code may run in threads: see decision 0057.
    if facts.has_gil or facts.face != "penstock" or facts.backend != "process":
        return ""
    threads = 'this Python runs without the GIL: backend="thread" avoids this, if your dataset is safe for threads'
    return f"; {threads} (docs/free-threading.md)"


_STARTS = {
    "ship": "sending the dataset to the workers: keep large data in files, and open them in the workers",
    "start": "preparing memory and asking for workers",
    "boot": "starting the workers: their imports, and worker_init_fn",
    "sample": "fetching the samples of the first batch",
    "rest": "handing it out",
}


def _starts(facts: Facts) -> str:
    first = facts.stats.first_batch or FirstBatch()
    times: dict[str, float] = {name: getattr(first, name) for name in _STARTS}
    times["start"] -= first.ship
    longest = max(times, key=lambda name: times[name])
    return f"The longest part was {_STARTS[longest]} ({seconds(times[longest])} of {seconds(first.total)})"


def _slow_keys(facts: Facts) -> str:
    *others, last = [sample.name for sample in facts.slow[:3]]
    return f"{', '.join(others)} and {last}" if others else last


def _slow_times(facts: Facts) -> str:
    longest, median = facts.slow[0].seconds, facts.median_sample
    return f"up to {seconds(longest)}, {count(round(longest / median))} times the median of {seconds(median)}"


def _let_others_pass(facts: Facts) -> str:
    if not facts.workers:
        return ""
    in_order = facts.workers > 1 and facts.settings.get("in_order", True)
    passing = "let the others pass (in_order=False), or " if in_order else ""
    return f"; or {passing}work further ahead (a larger prefetch_factor=)"


PIECES: dict[str, Callable[[Facts], Any]] = {
    "store": lambda facts: facts.stats.outage.store if facts.stats.outage else "",
    "silent": lambda facts: seconds(round(facts.stats.outage.seconds)) if facts.stats.outage else "",
    "cache_limit": lambda facts: size(facts.period.cache.limit) if facts.period.cache else "",
    "cache_needed": lambda facts: size(facts.period.cache.needed) if facts.period.cache else "",
    "batches": _batches,
    "least": lambda facts: facts.least,
    "loop_waited": _loop_waited,
    "waiting": lambda facts: share(facts.waiting),
    "each_wait": lambda facts: seconds(facts.waited / max(1, facts.period.batches)),
    "starting": lambda facts: seconds(facts.starting + facts.begun),
    "all_seconds": lambda facts: seconds(facts.starting + facts.begun + facts.whole),
    "starts": _starts,
    "or_threads": _or_threads,
    "workers": lambda facts: facts.workers,
    "busy": lambda facts: share(facts.busy_share),
    "no_task": lambda facts: share(facts.idle_share("task")),
    "no_room": lambda facts: share(facts.idle_share("room")),
    "parts": _parts,
    "collate": lambda facts: share(facts.part("collate")),
    "write": lambda facts: share(facts.part("write")),
    "collate_remedy": _collate_remedy,
    "cheaper": _cheaper,
    "decode": _decode,
    "cpus": _cpus,
    "cpu": lambda facts: count(round(facts.cpu, 2)),
    "cpu_used": lambda facts: count(round(facts.cpu_used, 1)),
    "cpu_share": lambda facts: share(facts.cpu_share),
    "cpus_in_use": _cpus_in_use,
    "as_many_as_cpus": lambda facts: use_workers(facts, max(1, min(math.floor(facts.cpus), facts.most_workers))),
    "fewer_workers": lambda facts: use_workers(facts, facts.would_do),
    "workers_on_free_cpus": _workers_on_free_cpus,
    "workers_that_wait": _workers_that_wait,
    "first_workers": _first_workers,
    "each_from_source": lambda facts: seconds(facts.busy / max(1, facts.period.batches)),
    "throttled": lambda facts: seconds(facts.stats.machine.throttled),
    "life": lambda facts: seconds(facts.stats.life.seconds),
    "swapped": lambda facts: size(facts.stats.machine.swapped),
    "prefetch_factor": lambda facts: facts.settings.get("prefetch_factor"),
    "slow_keys": _slow_keys,
    "slow_times": _slow_times,
    "one_slow_in": lambda facts: count(round(facts.timed / max(1, facts.tail_count))),
    "let_others_pass": _let_others_pass,
}
