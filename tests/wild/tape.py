"""What a program of `programs/` has seen, as text that can be compared with that of another process."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import inspect
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

EPOCHS = 3


class Tape:
    """Records every batch that the program shows it, or, with `times_only`, just how long the epochs took."""

    def __init__(self, *, times_only: bool = False) -> None:
        self.lines: list[str] = []
        self.clock = self.cpu = 0.0  # seconds; of CPU without the workers
        self.batches = 0
        self._times_only = times_only

    def epochs(self) -> Iterator[int]:
        for epoch in range(EPOCHS):
            with self.timed():
                yield epoch

    @contextmanager
    def timed(self) -> Iterator[None]:
        began, busy = time.perf_counter(), time.process_time()
        yield
        self.clock += time.perf_counter() - began
        self.cpu += time.process_time() - busy
        self.saw(generators())

    def saw(self, batch: Any) -> None:
        if not self._times_only:
            self.lines += described(batch, f"[{self.batches}]", set())
        self.batches += 1


def seed() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def generators() -> dict[str, str]:
    return {
        "random": _digest(repr(random.getstate()).encode()),
        "numpy": _digest(repr([np.asarray(part).tolist() for part in np.random.get_state()]).encode()),
        "torch": _digest(torch.get_rng_state().numpy().tobytes()),
    }


def described(value: Any, where: str, above: set[int]) -> list[str]:
    """One line for each leaf: where it is, its type, and its content to the bit."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None), enum.Enum, PurePath, range, slice)):
        return [f"{where}: {kind} {value!r}"]
    if isinstance(value, (torch.dtype, torch.device, torch.Size, np.generic, np.dtype)):
        return [f"{where}: {kind} {value!r}"]
    if inspect.isroutine(value) or isinstance(value, type):
        return [f"{where}: {getattr(value, '__qualname__', kind)}"]
    if id(value) in above:
        return [f"{where}: a cycle"]
    above = above | {id(value)}
    lines = [f"{where}: {kind}"]
    if isinstance(value, torch.Tensor):
        lines = [f"{where}: {kind} {value.dtype} {tuple(value.shape)} {value.layout} {_digest(_bits(value))}"]
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        lines = [f"{where}: {kind} {value.dtype} {value.shape} {_digest(value.tobytes())}"]
    elif isinstance(value, Mapping):
        for key in value:
            lines += described(value[key], f"{where}[{key!r}]", above)
    elif isinstance(value, (list, tuple, np.ndarray)):
        for number, part in enumerate(value):
            lines += described(part, f"{where}[{number}]", above)
    elif isinstance(value, (set, frozenset)):
        lines = [f"{where}: {kind} {sorted(map(repr, value))}"]
    for name, part in sorted(_attributes(value).items()):
        lines += described(part, f"{where}.{name}", above)
    return lines


def _attributes(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}


def _bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().as_subclass(torch.Tensor)
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _digest(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()[:12]
