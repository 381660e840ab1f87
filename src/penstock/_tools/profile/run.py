"""Runs the trials of `penstock profile`, and prints their results."""

from __future__ import annotations

import argparse
import os
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock._memory.guests import guest_of
from penstock._printable import printable
from penstock._system.warnings import is_ours
from penstock._tools.profile.choice import INLINE, Choice, Limits, Trial, advice, best_processes, next_choice
from penstock._tools.profile.target import TargetError, dataset, target
from penstock.loader import DataLoader
from penstock.source._dataset import is_stream
from penstock.stats._figures import Stats
from penstock.stats._report import write
from penstock.stats._units import count, seconds, share
from penstock.stats._verdict import rule_of

WARM = 0.25
"""The share of a trial's time that is skipped at the start, because the first batches were prefetched."""

Tell = Callable[[float], None]
"""A function that is called with the progress of a trial, from 0 to 1."""

TrialResults = dict[Choice, tuple[Trial, Stats | None]]


@dataclass(frozen=True, slots=True)
class Subject:
    """The settings of all trials. `seconds` is the length of a trial, and `step` of a simulated training step."""

    dataset: Any
    batch_size: int
    collate_fn: Any
    seconds: float
    step: float

    def loader(self, choice: Choice) -> DataLoader[Any]:
        backend: Any = choice.backend if choice.workers else None
        return DataLoader(
            self.dataset,
            batch_size=self.batch_size,
            shuffle=not is_stream(self.dataset),
            collate_fn=self.collate_fn,
            num_workers=choice.workers,
            backend=backend,
            seed=0,
        )


def run(options: argparse.Namespace) -> int:
    """Runs all trials, prints a table and advice, and returns the exit code. Errors in user code are raised."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        _check_page(options.html)
        collate_fn = None if options.collate is None else target(options.collate)
        subject = Subject(dataset(options.dataset), options.batch_size, collate_fn, options.seconds, options.step)
    except TargetError as error:
        errors.print(printable(f"penstock profile: {error}", lines=True))
        return 2
    done: TrialResults = {}
    try:
        limits = _limits(subject, options.max_workers)
        with _live_display(errors, subject) as show:
            while (choice := next_choice([trial for trial, _ in done.values()], limits)) is not None:
                done[choice] = try_out(subject, choice, lambda part: show(done, choice, part))
    except Exception as error:
        if _is_of_user(error):
            raise
        said = "".join(traceback.format_exception_only(error)).rstrip()
        errors.print(printable(f"penstock profile: {options.dataset} cannot be loaded. {said}", lines=True))
        return 1
    trials = [trial for trial, _ in done.values()]
    recommended = advice(trials, limits)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    stats = done[recommended.trial.choice][1]
    if stats is not None:  # the verdict must not recommend more workers than the user allows
        stats = replace(stats, settings={**stats.settings, "most_workers": options.max_workers})
    lines = [("use", settings(recommended.trial.choice, subject)), ("because", recommended.reason)]
    if recommended.trial.choice.backend == "thread":
        lines += [("or", text) for text in _of_its_guest(subject, trials)]
    if stats is not None and rule_of(stats):
        lines.insert(0, ("verdict", stats.verdict))
    if stats is not None and options.html is not None:
        write(stats, options.html)
        lines.append(("page", options.html))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold")
    for name, text in lines:
        grid.add_row(name, Text(printable(text)))
    console.print(table(trials, subject, recommended.trial), Text(), grid)
    return 0


def _of_its_guest(subject: Subject, trials: Sequence[Trial]) -> Iterator[str]:
    """For a torch dataset, yields the best settings for `penstock.torch.DataLoader` (with worker processes)."""
    guest, best = guest_of(type(subject.dataset)), best_processes(trials)
    if guest is not None and best is not None:
        call = settings(best.choice, subject).replace("penstock.", f"penstock.{guest}.")
        yield f"{call}, whose workers are processes: {count(best.rate)} batches a second."


def _is_of_user(error: BaseException) -> bool:
    """True if an error comes from the user's code. If so, the user needs the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(not is_ours(frame.filename) for frame in frames) or error.__cause__ is not None


def _check_page(path: str | None) -> None:
    """Raises TargetError if the report cannot be written to `path`."""
    if path is not None and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")):
        raise TargetError(f"--html is the path of a file in an existing folder, and {path} is not.")


def _limits(subject: Subject, most: int) -> Limits:
    probe = subject.loader(Choice("thread", 1)).stats()
    return Limits(probe.machine.cpus, most, bool(probe.settings.get("one_reader")), subject.step)


def try_out(subject: Subject, choice: Choice, tell: Tell) -> tuple[Trial, Stats | None]:
    """Runs one trial. If a trial with workers fails, the error is returned as part of the trial, not raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about more workers than processors
        loader = subject.loader(choice)
    with loader:
        try:
            trial = measure(loader, choice, subject, tell)
        except Exception as error:
            if choice == INLINE:
                raise
            return Trial(choice, error=f"{type(error).__name__}: {error}".splitlines()[0]), None
        return trial, loader.stats()


def measure(loader: DataLoader[Any], choice: Choice, subject: Subject, tell: Tell) -> Trial:
    clock, batches, waited, warm = time.perf_counter, 0, 0.0, None
    begun = asked = clock()
    first = drawn = 0.0
    with closing(_endless(loader)) as stream:
        for _ in stream:
            now = clock()
            if not first:
                first = now - begun
                until = now + subject.seconds
            if warm is None:
                if now >= until - (1 - WARM) * subject.seconds:
                    warm = now
            else:
                batches, waited = batches + 1, waited + now - asked
            if now - drawn > 0.1:
                tell(1 - max(0.0, until - now) / subject.seconds)
                drawn = clock()
            if now >= until and batches:
                break
            if subject.step:
                time.sleep(subject.step)
            asked = clock()
    assert warm is not None
    return Trial(choice, batches / (now - warm), waited / (now - warm), first)


def _endless(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError("the dataset gives no batch: is it empty?")


@contextmanager
def _live_display(console: Console, subject: Subject) -> Iterator[Callable[[TrialResults, Choice, float], None]]:
    if not console.is_terminal:
        yield lambda done, choice, part: None
        return
    # Drawn in the calling thread, because workers are not forked if the process has a second thread.
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as live:

        def show(done: TrialResults, choice: Choice, part: float) -> None:
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_row(f"trying {choice}", ProgressBar(1.0, part, width=24))
            live.update(Group(table([trial for trial, _ in done.values()], subject), row), refresh=True)

        yield show


def table(trials: Sequence[Trial], subject: Subject, best: Trial | None = None) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold")
    found.add_column("workers")
    for name in ("batches/s", "samples/s", "speed-up", "waiting", "first batch"):
        found.add_column(name, justify="right")
    found.add_column("")
    plain = next((trial.rate for trial in trials if trial.choice == INLINE), 0.0)
    for trial in sorted(trials, key=lambda one: (one.choice.backend != "inline", *one.choice[::-1])):
        if trial.error:
            found.add_row(str(trial.choice), "-", "-", "-", "-", "-", Text(printable(trial.error), style="red"))
            continue
        found.add_row(
            str(trial.choice),
            count(trial.rate),
            count(trial.rate * subject.batch_size),
            f"{trial.rate / plain:.1f} x",
            share(trial.waiting),
            seconds(trial.first),
            "<- use this" if trial is best else "",
            style="bold green" if trial is best else "",
        )
    return found


def settings(choice: Choice, subject: Subject) -> str:
    backend = ', backend="thread"' if choice.backend == "thread" else ""
    return f"penstock.DataLoader(dataset, batch_size={subject.batch_size}, num_workers={choice.workers}{backend})"
