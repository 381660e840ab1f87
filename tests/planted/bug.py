"""A bug that is planted: one change of one file, and the tests that must fail because of it."""

from __future__ import annotations

from dataclasses import dataclass

AREAS = (
    *("scheduling", "memory", "wire", "resume", "endings", "torch parity"),
    *("blocks", "shared", "cache", "scout", "remote", "formats"),
    *("starting", "threads", "faces", "verdicts", "identity", "stores", "tars", "trust"),
    *("stages", "mixtures", "packing", "budgets", "balance", "weights", "commits", "explain", "forecasts"),
    "anywhere",
)


@dataclass(frozen=True)
class Bug:
    """`name` says what is broken, `why` what goes wrong for a user, in words that survive a move of the code.

    `old` must occur exactly once in `file`, a path below `src/penstock`; `new` takes its place. `tests` are paths
    or node ids below `tests`, of which at least one must fail.
    """

    name: str
    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def __post_init__(self) -> None:
        if self.area not in AREAS:
            raise ValueError(f"{self.name!r} has the unknown area {self.area!r}")
        if not self.tests or self.old == self.new:
            raise ValueError(f"{self.name!r} changes nothing, or no test is to find it")
