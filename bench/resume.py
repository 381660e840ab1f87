"""The time to take a state, to resume, and to recover from a killed worker: `python -m bench.resume`.

Each loader runs in a process of its own, in turn; figures are medians. All have two workers and shuffle the
numbers from 0 to 32 million in batches of 64, so that step 500,000 is within the first epoch.

Reading 500,000 batches would take too long: the states at that step are those of step 10 with changed counts,
for penstock, torchdata and grain alike.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from bench.dated import save
from bench.peers import installed
from bench.run import machine

BATCH, FAR = 64, 500_000
SAMPLES = BATCH * (FAR + 1_000)
ENGINES = ("penstock", "torchdata", "grain")
# About ten minutes. Times of first batches vary by a half, so penstock, whose ratio is claimed, has more rounds;
# torchdata begins by making a list of 32 million numbers.
ROUNDS, PEER_ROUNDS = 15, 3


class Numbers:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: int) -> int:
        return key


class Penstock:
    loader: Any
    stream: Any

    def __init__(self) -> None:
        import penstock

        self.loader = penstock.DataLoader(Numbers(), BATCH, shuffle=True, num_workers=2, seed=0)

    def open(self) -> Iterator[Any]:
        self.stream = iter(self.loader)
        return cast("Iterator[Any]", self.stream)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)

    @staticmethod
    def move(state: Any, step: int) -> None:
        state["steps"], state["consumed"] = step, step * BATCH

    def close(self) -> None:
        self.loader.close()


class Torchdata(Penstock):
    def __init__(self) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        self.loader = StatefulDataLoader(Numbers(), BATCH, shuffle=True, num_workers=2)

    @staticmethod
    def move(state: Any, step: int) -> None:
        snapshot = state["_snapshot"]
        main = snapshot["_main_snapshot"]
        snapshot["_snapshot_step"] = main["_sampler_iter_yielded"] = step
        main["_sampler_iter_state"]["samples_yielded"] = step * BATCH
        main["_sampler_iter_state"]["sampler_iter_state"]["yielded"] = step * BATCH

    def close(self) -> None:
        del self.stream


class Grain(Penstock):
    def __init__(self) -> None:
        import grain

        # Threads: its worker processes take seconds to start.
        batches = grain.MapDataset.range(SAMPLES).seed(0).shuffle().batch(BATCH)
        self.loader = batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))

    def open(self) -> Iterator[Any]:
        self.stream = iter(self.loader)
        if self.resume is not None:
            self.stream.set_state(self.resume)
        return cast("Iterator[Any]", self.stream)

    resume: Any = None

    def state(self) -> Any:
        return self.stream.get_state()

    def load(self, state: Any) -> None:
        self.resume = state

    @staticmethod
    def move(state: Any, step: int) -> None:
        assert state.keys() == {"next_index"}, state
        state["next_index"] = step

    def close(self) -> None:
        self.stream.close()


KINDS: dict[str, type[Penstock]] = {"penstock": Penstock, "torchdata": Torchdata, "grain": Grain}


def state_cost(kind: type[Penstock]) -> dict[str, float]:
    """Microseconds to take a state, and the rate with a state at each step, as a share of the rate without."""
    loader = kind()
    stream = loader.open()
    for _ in range(200):
        next(stream)
    took: list[float] = []
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(20):
        taking, count, start = turn % 2 == 0, 0, time.perf_counter()
        while time.perf_counter() - start < 0.3:
            next(stream)
            count += 1
            if taking:
                before = time.perf_counter()
                loader.state()
                took.append(time.perf_counter() - before)
        rates[taking].append(count / (time.perf_counter() - start))
    loader.close()
    kept = statistics.median(rates[True]) / statistics.median(rates[False])
    return {
        "microseconds": 1e6 * statistics.median(took),
        "rate": kept,
        "batches": statistics.median(rates[False]),
    }


def resume_time(kind: type[Penstock], step: int | None) -> dict[str, float]:
    """Milliseconds from constructing a loader to its first batch: fresh, or resumed at a step."""
    state = None
    if step is not None:
        before = kind()
        stream = before.open()
        for _ in range(10):
            next(stream)
        state = before.state()
        before.close()
        kind.move(state, step)
    else:  # import what the other case has imported
        before = kind()
        next(before.open())
        before.close()
    start = time.perf_counter()
    loader = kind()
    if state is not None:
        loader.load(state)
    next(loader.open())
    took = time.perf_counter() - start
    loader.close()
    return {"milliseconds": 1e3 * took}


def recovery(kind: type[Penstock]) -> dict[str, float]:
    """Milliseconds of the longest wait for a batch after a worker is killed, and of the longest before."""
    loader = kind()
    stream = loader.open()
    for _ in range(200):
        next(stream)

    def longest() -> float:
        waits = []
        for _ in range(100):
            start = time.perf_counter()
            next(stream)
            waits.append(time.perf_counter() - start)
        return 1e3 * max(waits)

    calm = longest()
    os.kill(loader.loader.workers[0].pid, signal.SIGKILL)
    killed = longest()
    loader.close()
    return {"calm": calm, "killed": killed}


MEASURES: dict[str, Callable[[type[Penstock]], dict[str, float]]] = {
    "state": state_cost,
    "cold": lambda kind: resume_time(kind, None),
    "near": lambda kind: resume_time(kind, 10),
    "far": lambda kind: resume_time(kind, FAR),
    "kill": recovery,
}


def _measure(engine: str, what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.resume", engine, what]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{engine}, {what}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.resume", description=__doc__)
    options.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"of penstock; the peers have at most {PEER_ROUNDS}"
    )
    of_penstock = options.parse_args().rounds
    of_peers = min(PEER_ROUNDS, of_penstock)
    console = Console()
    engines = [engine for engine in ENGINES if installed(engine)]
    for engine in set(ENGINES) - set(engines):
        console.print(f"skipped: {engine} is not installed")
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    with console.status("measuring") as status:
        for turn in range(of_penstock):
            for what in MEASURES:
                for engine in engines if what != "kill" and turn < of_peers else ["penstock"]:
                    status.update(f"round {turn + 1} of {of_penstock}: {what}, {engine}")
                    rounds.setdefault((engine, what), []).append(_measure(engine, what))

    def median(engine: str, what: str, value: str = "milliseconds") -> float:
        return statistics.median(found[value] for found in rounds[engine, what])

    table = Table("", *engines, title=f"medians of {of_penstock} for penstock, of {of_peers} for the others")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("a state, µs", *(f"{median(engine, 'state', 'microseconds'):,.1f}" for engine in engines))
    rates = (
        f"{median(engine, 'state', 'rate'):.2f}x of {median(engine, 'state', 'batches'):,.0f}/s" for engine in engines
    )
    table.add_row("rate with a state at each step", *rates)
    table.add_row("first batch, cold, ms", *(f"{median(engine, 'cold'):,.1f}" for engine in engines))
    for what, step in (("near", 10), ("far", FAR)):
        cells = (
            f"{median(engine, what):,.1f} ({median(engine, what) / median(engine, 'cold'):.2f}x)"
            for engine in engines
        )
        table.add_row(f"first batch, resumed at step {step:,}, ms (of cold)", *cells)
    console.print(table)
    figures = {
        engine: {
            "state_us": median(engine, "state", "microseconds"),
            "rate_with_states": median(engine, "state", "rate"),
            **{f"{what}_ms": median(engine, what) for what in ("cold", "near", "far")},
        }
        for engine in engines
    }
    rows = [
        f"| {name} | {' | '.join(f'{value:,.4g}' for value in found.values())} |" for name, found in figures.items()
    ]
    names = f"a state, µs | rate with a state at each step | first batch, ms: cold | at step 10 | at step {FAR:,}"
    text = "\n".join([f"{table.title}.", "", f"| loader | {names} |", "|---" * 6 + "|", *rows])
    save("resume", "python -m bench.resume", machine(), figures, text)
    calm, killed = median("penstock", "kill", "calm"), median("penstock", "kill", "killed")
    console.print(
        f"If a worker of penstock is killed, the longest wait for a batch is {killed:.1f} ms, and {calm:.1f} ms "
        "otherwise. The loaders of torch and torchdata raise RuntimeError instead."
    )
    met = {
        "a state takes under 50 µs": median("penstock", "state", "microseconds") < 50,
        "resuming at step 500,000 takes at most 1.1x a cold start": median("penstock", "far")
        <= 1.1 * median("penstock", "cold"),
    }
    for claim, holds in met.items():
        console.print(f"{'met' if holds else '[bold red]not met[/]'}: {claim}", highlight=False)
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in KINDS:
        warnings.simplefilter("ignore")
        print(json.dumps(MEASURES[sys.argv[2]](KINDS[sys.argv[1]])))
        os._exit(0)  # grain's threads may keep the interpreter from ending
    sys.exit(main())
