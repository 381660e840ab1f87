"""Two loaders, one program: what torch's loader does is what ours must do.

A program takes a loader class and a tape, and writes on the tape all that it sees. `both` runs it with either
class, from the same random state, and compares the tapes. Batches stay on the tape as they came and are compared
at the very end, so that a batch whose memory was used again for another shows.
"""

from __future__ import annotations

import hashlib
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.data

from parity.compare import difference

# The one place where the suite says what "ours" is.
from penstock.torch import DataLoader as Ours

Theirs = torch.utils.data.DataLoader
Tape = list[Any]
Program = Callable[[Any, Tape], None]


def run(program: Program, loader_class: Any) -> Tape:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    tape: Tape = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, category, *_: _warn(tape, category, str(message))
        program(loader_class, tape)
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # of torch's queues: it closes its pipe when it gets to it
            thread.join(10)
    return tape


def _warn(tape: Tape, category: type[Warning], message: str) -> None:
    # What torch's C++ says of sparse tensors and the like it says once in a process, and not of loaders.
    if "Triggered internally" not in message:
        tape.append(("warned", category, message))


def both(program: Program) -> Tape:
    """What the program saw, the same with both loaders."""
    expected = run(program, Theirs)
    found = run(program, Ours)
    assert (problem := difference(found, expected)) is None, problem
    return found


def randomness(*generators: torch.Generator | None) -> dict[str, str]:
    """The random state of this process, in a form that can be compared and read."""
    states = {
        "random": repr(random.getstate()).encode(),
        "numpy": repr([np.asarray(part).tolist() for part in np.random.get_state()]).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    for i, generator in enumerate(generators):
        if generator is not None:
            states[f"generator {i}"] = generator.get_state().numpy().tobytes()
    return {name: hashlib.md5(state).hexdigest()[:8] for name, state in states.items()}


def forget_frames(error: BaseException) -> BaseException:
    """Frames keep iterators alive, and those their workers."""
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        linked = linked.__context__
    return error


def begin(loader: Any, tape: Tape) -> Any:
    """An iterator, or None if beginning failed. The random state before and after goes on the tape."""
    try:
        batches = iter(loader)
    except Exception as error:
        tape.append(("not begun", forget_frames(error), randomness(loader.generator)))
        return None
    tape.append(("begun", randomness(loader.generator)))
    return batches


def take(batches: Any, tape: Tape, count: int = 1000, *, generator: torch.Generator | None = None) -> None:
    """Takes so many batches, or as many as there are. Errors are a part of the stream."""
    for _ in range(count):
        try:
            tape.append(("batch", next(batches)))
        except StopIteration:
            tape.append(("ended", randomness(generator)))
            return
        except Exception as error:
            tape.append(("raised", forget_frames(error)))
        tape.append(("state", randomness(generator)))


def epoch(loader: Any, tape: Tape, count: int = 1000) -> None:
    """Begins an epoch, takes so many batches, and abandons the iterator."""
    batches = begin(loader, tape)
    if batches is not None:
        take(batches, tape, count, generator=loader.generator)
