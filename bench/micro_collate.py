"""Microseconds of flatten, unflatten and collate, beside optree, torch and a bare loop.

    python bench/micro_collate.py

Each figure is the best and the median of many short runs: the best is the cost of the code, the median
includes the noise of the machine. The aims are those that the loader's hot path was designed for.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._fill.collate import collate
from penstock._memory.tree import flatten, unflatten

try:
    import optree
except ImportError:
    optree = None
try:
    import torch
except ImportError:
    torch = None

ROWS = 64


def measure(*calls: Callable[[], object]) -> list[tuple[float, float]]:
    """Best and median microseconds of each call.

    They alternate in short runs and in random order, so that a busy moment of the machine hits all of them,
    and none always runs after the same other one.
    """
    timers = [timeit.Timer(call) for call in calls]
    loops = [max(1, int(0.0003 / max(1e-7, min(timer.repeat(3, 3)) / 3))) for timer in timers]
    runs: list[list[float]] = [[] for _ in calls]
    turns = list(zip(timers, loops, runs, strict=True))
    for _ in range(300):
        random.shuffle(turns)
        for timer, count, times in turns:
            times.append(timer.timeit(count) / count * 1e6)
    return [(min(times), statistics.median(times)) for times in runs]


def row(name: str, aim: str, ours: Callable[[], object], **peers: Callable[[], object]) -> None:
    figures = measure(ours, *peers.values())
    text = f"{name:34} {aim:>9} {figures[0][0]:9.2f} {figures[0][1]:9.2f}"
    for peer, (best, median) in zip(peers, figures[1:], strict=True):
        text += f"   {peer} {best:.2f} {median:.2f} ({median / figures[0][1]:.2f}x)"
    print(text, flush=True)


class Slab:
    """An allocator like the loader's: aligned parts of one buffer, which starts again for each batch."""

    def __init__(self, size: int) -> None:
        self.root = np.zeros(size, np.uint8)
        self.used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, self.root, self.used)
        self.used += -(-array.nbytes // 64) * 64
        return array


def trees() -> None:
    leaf = np.zeros(3)
    cases: dict[str, tuple[Any, str, str]] = {
        "a bare array": (leaf, "0.3", "-"),
        "a tuple of 2": ((leaf, leaf), "0.8", "-"),
        "a dict of 20": ({f"field{i}": leaf for i in range(20)}, "3", "2"),
        "3 levels of dicts, 100 leaves": (
            {f"a{i}": {f"b{j}": {f"c{k}": leaf for k in range(5)} for j in range(4)} for i in range(5)},
            "-",
            "-",
        ),
    }
    for name, (tree, aim, aim_back) in cases.items():
        leaves, spec = flatten(tree)
        peers: dict[str, Callable[[], object]] = {}
        back: dict[str, Callable[[], object]] = {}
        if optree is not None:
            theirs, treespec = optree.tree_flatten(tree, none_is_leaf=True)
            peers["optree"] = lambda tree=tree: optree.tree_flatten(tree, none_is_leaf=True)
            back["optree"] = lambda spec=treespec, leaves=theirs: optree.tree_unflatten(spec, leaves)
        row(f"flatten {name}", aim, lambda tree=tree: flatten(tree), **peers)
        row(f"unflatten {name}", aim_back, lambda spec=spec, leaves=leaves: unflatten(spec, leaves), **back)


def collates() -> None:
    slab = Slab(16 << 20)

    def into_slab(samples: Any) -> object:
        slab.used = 0
        return collate(samples, slab.empty)

    images = [np.random.default_rng(i).integers(0, 255, (224, 224, 3), np.uint8) for i in range(ROWS)]
    place = slab.empty((ROWS, 224, 224, 3), np.dtype(np.uint8))  # the same pages for both

    def bare_loop() -> None:
        for i, image in enumerate(images):
            place[i] = image

    tokens = np.arange(1000 * 512, dtype=np.int32).reshape(1000, 512)
    small = np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8)
    cases: dict[str, tuple[Any, str, dict[str, Callable[[], object]]]] = {
        "64 ints": (list(range(1000, 1000 + ROWS)), "6", {}),
        "64 floats": ([i / 2 for i in range(ROWS)], "-", {}),
        "64 np.float32": (list(small[:, 0]), "-", {}),
        "64 arrays of 512 int32": ([tokens[i].copy() for i in range(ROWS)], "25", {}),
        "64 (array of 512 int32, int)": ([(tokens[i], i) for i in range(ROWS)], "-", {}),
        "an array of 64 rows of 512": (tokens[:ROWS], "-", {}),
        "64 dicts of 20 arrays of 8": (
            [{f"field{k}": small[i] for k in range(20)} for i in range(ROWS)],
            "350",
            {},
        ),
        "64 images 224x224x3": (images, "1.05 loop", {"loop": bare_loop}),
    }
    for name, (samples, aim, peers) in cases.items():
        if torch is not None and not peers and not isinstance(samples, np.ndarray):
            from torch.utils.data import default_collate

            peers = {"torch": lambda samples=samples: default_collate(samples)}
        row(f"collate {name}", aim, lambda samples=samples: into_slab(samples), **peers)
    guests = [np.ascontiguousarray(tokens[i]) for i in range(ROWS)]
    if torch is not None:
        tensors = [torch.from_numpy(guest) for guest in guests]
        row("collate 64 tensors of 512 int32", "-", lambda: into_slab(tensors))


if __name__ == "__main__":
    versions = [f"numpy {np.__version__}"]
    versions += [f"{peer.__name__} {peer.__version__}" for peer in (optree, torch) if peer is not None]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {sys.version.split()[0]}, {', '.join(versions)}"
    )
    print(f"{'microseconds':34} {'aim':>9} {'best':>9} {'median':>9}   peers: best median (ratio)")
    trees()
    collates()
