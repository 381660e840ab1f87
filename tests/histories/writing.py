"""A history, from a seed; and its program.

A history is plain data: a source, settings, and operations as tuples. An operation that makes no sense where it
stands, because others before it were removed, is left out of the program.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

Operation = tuple[Any, ...]
Texts = dict[str, str]
"""Settings by name, each as Python source."""


@dataclass(frozen=True)
class History:
    """`source` is the name of its class and its arguments; `settings` are those of all its loaders."""

    face: str
    source: tuple[str, Texts]
    settings: Texts
    operations: tuple[Operation, ...]

    def made(self) -> str:
        name, given = self.source
        return f"sources.{name}({_arguments(given)})"


def _arguments(given: Texts) -> str:
    return ", ".join(value if name == "n" else f"{name}={value}" for name, value in given.items())


# ---- the program ----------------------------------------------------------------------------------


@dataclass
class Scope:
    """The names that are bound where an operation stands."""

    history: History
    loaders: dict[str, Texts] = field(default_factory=dict)
    readers: dict[str, str] = field(default_factory=dict)  # and their loaders
    states: set[str] = field(default_factory=set)

    def kind(self, loader: str) -> str:
        """Where the loader's workers run: inline, process, thread or simulated."""
        crew = self.loaders[loader]
        if crew["num_workers"] == "0":
            return "inline"
        return "simulated" if "simulated" in crew.get("backend", "") else crew.get("backend", "process").strip('"')

    def readers_of(self, loader: str) -> list[str]:
        return [reader for reader, of in self.readers.items() if of == loader]

    def has_one_position(self) -> bool:
        """True if an object of the caller's knows where it is, so that two iterators would move it."""
        return self.history.source[0] == "SavedItems" or "Ticket" in self.history.settings.get("sampler", "")

    def draws_here(self) -> bool:
        """True if the caller's process borrows the global generators, which threads share."""
        return "Items" in self.history.source[0] or "Jumbled" in self.history.settings.get("sampler", "")


Write = Callable[..., "str | None"]
_writers: dict[str, Write] = {}


def _writes(write: Write) -> Write:
    _writers[write.__name__.lstrip("_")] = write
    return write


def program(history: History, title: str = "") -> str:
    """The history as Python source that can be run."""
    scope = Scope(history)
    lines = [line for operation in history.operations for line in _lines(operation, scope)]
    module = "checked" if history.face == "core" else f"on_{history.face}"
    head = (
        f'"""{title}\n\nRun it from the root of the repository: PYTHONPATH=src:. python <this file>\n"""\n\n'
        if title
        else ""
    )
    imports = f"import penstock\nfrom tests.histories.{module} import *\n\n"
    return head + imports + "with stage():\n" + "".join(f"    {line}\n" for line in lines or ["pass"])


def count(history: History) -> list[str]:
    """The names of the operations that the program has."""
    scope = Scope(history)
    return [operation[0] for operation in history.operations if _lines(operation, scope)]


def _lines(operation: Operation, scope: Scope) -> list[str]:
    text = _writers[operation[0]](scope, *operation[1:])
    return [] if text is None else text.split("\n")


@_writes
def _make(scope: Scope, name: str, crew: Texts) -> str | None:
    if name in scope.loaders:
        return None
    scope.loaders[name] = crew
    given = {**scope.history.settings, **crew}
    return f"{name} = DataLoader({scope.history.made()}, {_arguments(given)})"


@_writes
def _iter(scope: Scope, reader: str, loader: str, indexed: bool) -> str | None:
    if loader not in scope.loaders:
        return None
    others = [one for one in scope.readers_of(loader) if one != reader]
    if scope.has_one_position() and scope.readers_of(loader):
        return None
    if len(others) > 1:
        return None
    scope.readers[reader] = loader
    return f"{reader} = {loader}.batches()" if indexed else f"{reader} = iter({loader})"


@_writes
def _take(scope: Scope, reader: str, number: int) -> str | None:
    return f"take({reader}, {number})" if reader in scope.readers else None


@_writes
def _drain(scope: Scope, reader: str) -> str | None:
    return f"drain({reader})" if reader in scope.readers else None


@_writes
def _keep(scope: Scope, reader: str, number: int) -> str | None:
    return f"keep({reader}, {number})" if reader in scope.readers else None


@_writes
def _forget(scope: Scope) -> str:
    return "forget()"


@_writes
def _collect(scope: Scope) -> str:
    return "collect()"


@_writes
def _drop(scope: Scope, reader: str) -> str | None:
    return f"del {reader}" if scope.readers.pop(reader, None) else None


@_writes
def _leave(scope: Scope, reader: str) -> str | None:
    return f"{reader}.close()" if reader in scope.readers else None


@_writes
def _state(scope: Scope, state: str, loader: str) -> str | None:
    if loader not in scope.loaders:
        return None
    scope.states.add(state)
    return f"{state} = {loader}.state_dict()"


@_writes
def _load(scope: Scope, loader: str, state: str) -> str | None:
    known = loader in scope.loaders and state in scope.states
    return f"{loader}.load_state_dict({state})" if known else None


@_writes
def _set_epoch(scope: Scope, loader: str, epoch: int) -> str | None:
    return f"{loader}.set_epoch({epoch})" if loader in scope.loaders else None


@_writes
def _len(scope: Scope, loader: str) -> str | None:
    known = (
        loader in scope.loaders and "Stream" not in scope.history.source[0] and "Items" not in scope.history.source[0]
    )
    return f"len({loader})" if known else None


@_writes
def _update(scope: Scope, loader: str, change: str) -> str | None:
    return f"{loader}.update({change})" if loader in scope.loaders else None


@_writes
def _resize(scope: Scope, loader: str, number: int) -> str | None:
    if loader not in scope.loaders or (scope.history.face == "torch" and scope.kind(loader) == "inline"):
        return None
    return f"{loader}.num_workers = {number}"


@_writes
def _close(scope: Scope, loader: str) -> str | None:
    return f"{loader}.close()" if loader in scope.loaders else None


@_writes
def _close_paused(scope: Scope, loader: str, worker: int) -> str | None:
    if loader not in scope.loaders or scope.kind(loader) != "process":
        return None
    return f"close_paused({loader}, {worker})"


@_writes
def _remove(scope: Scope, loader: str) -> str | None:
    if loader not in scope.loaders or len(scope.loaders) < 2:
        return None
    del scope.loaders[loader]
    gone = scope.readers_of(loader)
    for reader in gone:
        del scope.readers[reader]
    return f"del {', '.join([*gone, loader])}"


@_writes
def _copy(scope: Scope, name: str, loader: str) -> str | None:
    if loader not in scope.loaders or name in scope.loaders:
        return None
    scope.loaders[name] = scope.loaders[loader]
    return f"{name} = copied({loader})"


@_writes
def _kill(scope: Scope, loader: str, worker: int) -> str | None:
    known = loader in scope.loaders and scope.kind(loader) == "process"
    return f"kill({loader}, {worker})" if known else None


@_writes
def _killing(scope: Scope, reader: str, worker: int, after: float, number: int) -> str | None:
    loader = scope.readers.get(reader)
    if loader is None or scope.kind(loader) != "process":
        return None
    return f"with killing({loader}, {worker}, after={after}):\n    take({reader}, {number})"


@_writes
def _killed_in(scope: Scope, loader: str, worker: int, after: float, inside: Operation) -> str | None:
    """A worker is killed in the middle of another operation."""
    if loader not in scope.loaders or scope.kind(loader) != "process":
        return None
    lines = _lines(inside, scope)
    return (
        "\n".join([f"with killing({loader}, {worker}, after={after}):", *(f"    {one}" for one in lines)])
        if lines
        else None
    )


@_writes
def _pausing(scope: Scope, reader: str, worker: int, seconds: float, number: int) -> str | None:
    loader = scope.readers.get(reader)
    if loader is None or scope.kind(loader) != "process":
        return None
    return f"with pausing({loader}, {worker}, {seconds}):\n    take({reader}, {number})"


@_writes
def _interrupted(scope: Scope, reader: str, after: float) -> str | None:
    loader = scope.readers.get(reader)
    return None if loader is None or scope.kind(loader) == "simulated" else f"interrupted({reader}, after={after})"


@_writes
def _fork(scope: Scope, loader: str, reader: str, number: int) -> str | None:
    if loader not in scope.loaders or scope.kind(loader) == "simulated":
        return None
    return f"fork({loader}, {reader if scope.readers.get(reader) == loader else None}, {number})"


@_writes
def _race(scope: Scope, one: str, other: str, number: int) -> str | None:
    if one == other or scope.draws_here():
        return None
    for reader in (one, other):
        if reader not in scope.readers or scope.kind(scope.readers[reader]) not in ("process", "thread"):
            return None
    return f"race({number}, {one}, {other})"


@_writes
def _states(scope: Scope, state: str, reader: str, number: int) -> str | None:
    loader = scope.readers.get(reader)
    if loader is None or scope.kind(loader) == "simulated":
        return None
    scope.states.add(state)
    return f"{state} = meanwhile.states({reader}, {number})"


@_writes
def _resizes(scope: Scope, reader: str, number: int, *sizes: int) -> str | None:
    loader = scope.readers.get(reader)
    if loader is None or scope.kind(loader) not in ("process", "thread"):
        return None
    if "multiprocessing_context" in scope.loaders[loader]:
        return None  # a new interpreter for each
    return f"meanwhile.resizes({reader}, {number}, {', '.join(map(str, sizes))})"


@_writes
def _updates(scope: Scope, reader: str, number: int, changes: int) -> str | None:
    loader = scope.readers.get(reader)
    if loader is None or scope.kind(loader) == "simulated" or scope.draws_here():
        return None
    if scope.history.source[0] in ("Stream", "SavedStream"):
        return None
    return f"meanwhile.updates({reader}, {number}, {changes})"


@_writes
def _share(scope: Scope, loader: str, consumers: int, in_turn: bool, threads: bool, each: int) -> str | None:
    if loader not in scope.loaders:
        return None
    if scope.has_one_position() and scope.readers_of(loader):
        return None
    if scope.history.source[0] == "Stream" and scope.kind(loader) in ("process", "simulated"):
        return None  # a lost reader ends the epoch: which consumer is told is not known
    if scope.kind(loader) == "simulated" or scope.kind(loader) == "inline" or scope.draws_here():
        threads = False
    return f"shared({loader}, {consumers}, in_turn={in_turn}, threads={threads}, each={each})"


@_writes
def _prefetch(scope: Scope, loader: str, depth: int, *acts: str | int) -> str | None:
    if loader not in scope.loaders or scope.kind(loader) not in ("process", "thread") or scope.draws_here():
        return None
    if scope.has_one_position() and scope.readers_of(loader):
        return None
    if scope.history.source[0] in ("Stream", "Saved"):
        return None  # a lost reader; and a state of the dataset, which prefetch() does not read ahead
    return f"prefetched({loader}, {depth}, {', '.join(map(repr, acts))})"


@_writes
def _end(scope: Scope, how: str) -> str | None:
    closes = [f"{loader}.close()" for loader in scope.loaders] + ["closed()"] if how == "close" else []
    names = [*scope.readers, *scope.loaders] if how == "drop" else [*scope.loaders, *scope.readers]
    scope.readers.clear()
    scope.loaders.clear()
    return "\n".join([*closes, f"del {', '.join(names)}"]) if names else None


# ---- from a seed ----------------------------------------------------------------------------------

LOADERS, READERS, STATES = ("a", "b", "c"), ("i", "j", "k"), ("s", "t")

# How often each operation is chosen.
WEIGHTS = {
    "make": 3,
    "iter": 14,
    "take": 26,
    "drain": 5,
    "keep": 6,
    "forget": 2,
    "collect": 1,
    "drop": 3,
    "leave": 2,
    "state": 7,
    "load": 7,
    "set_epoch": 1,
    "len": 1,
    "update": 6,
    "resize": 4,
    "close": 2,
    "close_paused": 1,
    "remove": 1,
    "copy": 2,
    "kill": 6,
    "killing": 7,
    "killed_in": 3,
    "pausing": 2,
    "interrupted": 2,
    "fork": 1,
    "race": 2,
    "states": 2,
    "resizes": 1,
    "updates": 1,
    "share": 2,
    "prefetch": 2,
}


# What the torch face does not have.
_CORE_ONLY = frozenset({"prefetch", "update", "updates", "share", "close", "close_paused", "leave", "killed_in"})


def history(seed: int, face: str = "core", without: frozenset[str] = frozenset()) -> History:
    """The history that belongs to a seed."""
    rng = random.Random(f"{face} {seed}")
    source, settings = _source(rng, face)
    crews = _Crews(rng, source, settings, face)
    first: Operation = ("make", "a", crews.choose())
    made = replace(History(face, source, settings, (first,)))
    scope = Scope(made)
    _lines(first, scope)
    operations: list[Operation] = [first]
    left_out = without if face == "core" else without | _CORE_ONLY
    wanted = rng.choice((5, 15, 30, 60))
    for _ in range(5 * wanted):
        [name] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        operation = _operation(rng, name, crews)
        if name not in left_out and _lines(operation, scope):
            operations.append(operation)
        if len(operations) > wanted:
            break
    endings = ("drop", "drop backwards", "close")[: 3 if face == "core" else 2]
    operations.append(("end", rng.choice(endings)))
    return replace(made, operations=tuple(operations))


def _source(rng: random.Random, face: str) -> tuple[tuple[str, Texts], Texts]:
    names = {
        "Numbers": 40,
        "AtOnce": 10,
        "Saved": 8,
        "Items": 9,
        "SavedItems": 7,
        "Stream": 8,
        "SavedStream": 10,
    }
    if face == "torch":  # whose streams are those of torch
        names = {"Numbers": 6, "AtOnce": 2, "Saved": 1}
    [name] = rng.choices(list(names), list(names.values()))
    n = rng.choice((1, 2, 5, 12, 12, 23, 23, 40, 97))
    given = {"n": str(n)}
    is_stream = "Stream" in name or "Items" in name
    bad = sorted(rng.sample(range(n), rng.randint(1, max(1, n // 6)))) if n > 4 and rng.random() < 0.3 else []
    settings: Texts = {"batch_size": str(rng.choice((1, 2, 3, 4, 7, 16)))}
    if rng.random() < 0.05 and not bad:
        settings["batch_size"] = "None"
    if not is_stream:
        settings |= _order(rng, n, settings)
    if rng.random() < 0.2 and "batch_sampler" not in settings and settings.get("batch_size") != "None":
        settings["drop_last"] = "True"
    ours = (
        not is_stream
        and "batch_sampler" not in settings
        and settings.get("sampler", "penstock").startswith("penstock")
    )
    if ours and "drop_last" not in settings and rng.random() < 0.3 and settings.get("batch_size") != "None":
        settings["last_batch"] = repr(rng.choice(("keep", "pad", "rollover", "drop")))
    if rng.random() < 0.15 and (ours or not bad):
        world = rng.randint(2, 3)
        settings["shard"] = repr((rng.randrange(world), world))
        if not ours and "drop_last" not in settings:
            settings["last_batch"] = '"keep"'
    if bad:
        given["bad"] = repr(tuple(bad))
        settings |= _on_error(rng, name, ours, settings)
    draws = [one for one in ("sample", "step") if rng.random() < 0.4]
    if "step" in draws and name == "AtOnce" and bad:
        draws.remove("step")
    if draws:
        given["draws"] = repr(tuple(draws))
    if rng.random() < 0.3:
        given["width"] = str(rng.choice((100, 3000)))
    if rng.random() < 0.3:
        given["slow"] = str(rng.choice((0.0005, 0.002)))
    if rng.random() < 0.08 and settings.get("batch_size") != "None":
        settings["collate_fn"] = "sources.as_rows"
    settings["seed"] = str(rng.randrange(10))
    return (name, given), settings


def _order(rng: random.Random, n: int, settings: Texts) -> Texts:
    keys = [rng.randrange(n) for _ in range(rng.choice((n, n, 2 * n)))]
    orders: list[Texts] = [
        {"sampler": f"sources.Ticket({n})"},
        {"sampler": f"sources.Jumbled({n})"},
        {"sampler": repr(keys)},
        {"sampler": f"penstock.RandomSampler(range({n}), replacement=True, num_samples={n + 3})"},
        {"sampler": f"penstock.WeightedRandomSampler({[1 + key % 3 for key in range(n)]}, {n + 2})"},
        {"sampler": f"penstock.SubsetRandomSampler({sorted(set(keys))})"},
        {"sampler": f"penstock.BlockSampler({[*range(0, n, 5), n]}, 3)"},
    ]
    chance = rng.random()
    if chance < 0.4:
        return {"shuffle": "True"}
    if chance < 0.65:
        return {}
    if chance < 0.7 and settings["batch_size"] != "None":
        settings.pop("batch_size")
        cuts = sorted({0, *(rng.randrange(len(keys)) for _ in range(len(keys) // 3)), len(keys)})
        batches = [keys[begin:end] for begin, end in itertools.pairwise(cuts)]
        return {"batch_sampler": repr(batches)}
    return rng.choice(orders)


def _on_error(rng: random.Random, name: str, ours: bool, settings: Texts) -> Texts:
    chosen = rng.choice(("raise", "skip", "skip", "replace"))
    by_position = name in ("Stream", "SavedStream")
    no_other = not ours and settings.get("batch_size", "None") in ("None", "1")
    if by_position or (chosen == "replace" and ("Items" in name or no_other or not ours)):
        chosen = "raise" if by_position else "skip"
    if chosen == "raise":
        return {}
    made = {"on_error": repr(chosen)}
    if rng.random() < 0.2:
        made["max_errors"] = str(rng.randint(0, 3))
    return made


class _Crews:
    """Chooses where workers run: what may differ between loaders that load each other's states."""

    def __init__(self, rng: random.Random, source: tuple[str, Texts], settings: Texts, face: str) -> None:
        self._rng = rng
        self._face = face
        self._kinds = {"process": 55, "inline": 12}
        if "step" not in source[1].get("draws", ""):
            self._kinds |= {"thread": 15, "simulated": 20}
        if face != "core":
            self._kinds = {"process": 60, "inline": 12}
        self._shard = settings.get("shard")
        self._reshapes = self._shard is not None and "rollover" not in settings.get("last_batch", "")
        self._reshapes &= "step" not in source[1].get("draws", "")

    def choose(self) -> Texts:
        rng = self._rng
        [kind] = rng.choices(list(self._kinds), list(self._kinds.values()))
        made: Texts = {"num_workers": "0"}
        if kind != "inline":
            made = {"num_workers": str(rng.choice((1, 2, 2, 3)))}
            if self._face == "core":
                made["retries"] = "10**6"
            if rng.random() < 0.4:
                made["prefetch_factor"] = str(rng.randint(1, 4))
            if rng.random() < 0.2:
                made["persistent_workers"] = "False"
        if kind == "thread":
            made["backend"] = '"thread"'
        elif kind == "simulated":
            more = f"deaths={rng.choice((0, 0, 1, 3, 8))}, most_steps={rng.choice((1, 1, 4))}"
            if rng.random() < 0.3:
                more += ", copies_dataset=False"
            made["backend"] = f"simulated({rng.randrange(10**6)}, {more})"
        elif kind == "process" and rng.random() < 0.02 and self._face == "core":
            made["multiprocessing_context"] = rng.choice(('"forkserver"', '"spawn"'))
        if self._reshapes and rng.random() < 0.4:
            world = rng.randint(2, 4)
            made["shard"] = repr((rng.randrange(world), world))
        return made


def _operation(rng: random.Random, name: str, crews: _Crews) -> Operation:
    loader, reader, state, worker = (
        rng.choice("aab"),
        rng.choice(READERS),
        rng.choice(STATES),
        rng.randrange(3),
    )
    after = round(10 ** rng.uniform(-5, -1.7), 6)
    number = rng.choice((1, 1, 2, 3, 5, 9))
    given: dict[str, tuple[Any, ...]] = {
        "make": (rng.choice(LOADERS), crews.choose() if name == "make" else {}),
        "iter": (reader, loader, rng.random() < 0.25),
        "take": (reader, number),
        "drain": (reader,),
        "keep": (reader, number),
        "drop": (reader,),
        "leave": (reader,),
        "state": (state, loader),
        "load": (loader, state),
        "set_epoch": (loader, rng.choice((0, 1, 2, 7))),
        "update": (loader, _change(rng)),
        "resize": (loader, rng.randint(1, 4)),
        "close_paused": (loader, worker),
        "copy": (rng.choice(LOADERS), loader),
        "kill": (loader, worker),
        "killing": (reader, worker, after, number),
        "pausing": (reader, worker, after, number),
        "interrupted": (reader, after),
        "fork": (loader, reader, number),
        "race": (reader, rng.choice(READERS), number),
        "states": (state, reader, number),
        "resizes": (reader, number, *(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))),
        "updates": (reader, number, rng.randint(1, 5)),
        "share": (
            loader,
            rng.randint(1, 3),
            rng.random() < 0.4,
            rng.random() < 0.5,
            rng.choice((1, 3, 8, 40)),
        ),
        "prefetch": (
            loader,
            rng.randint(1, 4),
            *rng.choices((1, 3, 9, 40, "state", "load", "reset", "iter"), k=6),
        ),
        "forget": (),
        "collect": (),
    }
    if name == "killed_in":
        inside = rng.choice(
            ("iter", "drop", "leave", "load", "update", "resize", "close", "share", "updates", "resizes")
        )
        return (name, loader, worker, after, _operation(rng, inside, crews))
    return (name, *given.get(name, (loader,)))


def _change(rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.5:
        return f"scale={rng.randrange(100)}"
    if chance < 0.65:
        return f"width={rng.choice((1, 10, 500, 20000))}"
    return "sources." + rng.choice(("triple", "triple", "widen", "refuse"))


# ---- shorter histories ----------------------------------------------------------------------------


def simpler(history: History) -> Iterator[History]:
    """Histories with a simpler source or simpler settings, and operations with smaller numbers."""
    name, given = history.source
    for key, value in given.items():
        if key == "n":
            for n in (2, 5, 12, int(value) // 2, int(value) - 1):
                if (
                    0 < n < int(value)
                    and "sampler" not in history.settings
                    and "batch_sampler" not in history.settings
                ):
                    yield replace(history, source=(name, {**given, "n": str(n)}))
        else:
            yield replace(history, source=(name, {one: of for one, of in given.items() if one != key}))
    for key in history.settings:
        if key != "seed":
            yield replace(history, settings={one: of for one, of in history.settings.items() if one != key})
    for size in ("1", "2"):
        if history.settings.get("batch_size") not in (size, None):
            yield replace(history, settings={**history.settings, "batch_size": size})
    for at, operation in enumerate(history.operations):
        for other in _simpler_operations(operation):
            operations = (*history.operations[:at], other, *history.operations[at + 1 :])
            yield replace(history, operations=operations)


def _simpler_operations(operation: Operation) -> Iterator[Operation]:
    if operation[0] == "make":
        for key in operation[2]:
            if key not in ("num_workers", "retries"):
                yield (*operation[:2], {one: of for one, of in operation[2].items() if one != key})
        for number in ("0", "1", "2"):
            if operation[2]["num_workers"] > number and not (number == "0" and len(operation[2]) > 1):
                yield (*operation[:2], {**operation[2], "num_workers": number})
        return
    if operation[0] == "killed_in":
        yield operation[4]
    if operation[0] in ("killing", "pausing", "states", "resizes", "updates"):
        reader, number = {"killing": (1, 4), "pausing": (1, 4), "states": (2, 3)}.get(operation[0], (1, 2))
        yield ("take", operation[reader], operation[number])
    for at, part in enumerate(operation):
        if isinstance(part, bool):
            if part:
                yield (*operation[:at], False, *operation[at + 1 :])
        elif isinstance(part, int) and part > 1:
            for smaller in {1, part // 2, part - 1}:
                yield (*operation[:at], smaller, *operation[at + 1 :])
