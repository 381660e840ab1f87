"""What the engine says of workers that hang or die: who, at which step and samples, why most likely, what to do."""

from __future__ import annotations

from textwrap import indent

from penstock._resume.marks import NOT_LOST
from penstock._wire.task import PULLED, Task, shorten
from penstock.backends._base import Doing, Lost
from penstock.errors import LoaderTimeout
from penstock.errors import WorkerLost as WorkerLostError

_MOST_SHOWN = 4  # workers, by what they are at

_LIKELY = {
    "SIGKILL": "Most often this is the kernel's out-of-memory killer: use fewer workers, a smaller "
    "prefetch_factor, or smaller batches.",
    "SIGSEGV": "Native code that the dataset calls has crashed: run these samples with num_workers=0 under "
    "python -X faulthandler.",
    "unknown": "Perhaps it is the kernel's out-of-memory killer, or native code that the dataset calls has crashed.",
    "SIGBUS": "Memory or a mapped file ended under the reader: a truncated file, or no memory left.",
}
_UNLIKELY = "The dataset, or a library that it calls, ended the process."


def timeout_error(timeout: float | None, task: Task | None, at_work: list[Doing]) -> LoaderTimeout:
    """The error for a task that is not done in time, or for workers that are not: what they are at."""
    said = [f"DataLoader timed out after {timeout} seconds"]
    likely = "Most often a read hangs: raise timeout=, or look at these calls."
    if not at_work:
        likely = "Workers may take long to start: raise timeout=."
    if task is not None and all(one.seq != task.seq for one in at_work):
        said.append(f"Step {task.step} of epoch {task.epoch} is not done; no worker has it yet.")
    # Those with the oldest work, or none yet, first: they keep the others waiting.
    at_work = sorted(at_work, key=lambda one: -1 if one.seq is None else one.seq)
    for who, stack, seq, epoch, step in at_work[:_MOST_SHOWN]:
        at = ", and is at (the innermost call first):\n" + indent(stack, "    ") if stack else "."
        if task is not None and task.seq == seq:
            keys = shorten(task.single()[step - task.step].keys)
            said.append(f"Step {step} of epoch {epoch} is not done; {who} has it{at}")
            said.append(f"Samples in the step: {keys}.")
            likely = (
                "Most often one sample is slow, or a read hangs: raise timeout=, or look at these samples."
            )
        else:
            has = "has no step" if seq is None else f"is in step {step} of epoch {epoch}"
            said.append(f"{who} {has}{at}")
    if len(at_work) > _MOST_SHOWN:
        said.append(f"There are {len(at_work) - _MOST_SHOWN} more workers that are at something.")
    said.append(f"Asking again waits again. {likely}")
    return LoaderTimeout("\n  ".join(said))


def lost_error(task: Task, loss: Lost, retries: int, fatal: bool = False) -> WorkerLostError:
    """The error for a step that cost too many workers their lives."""
    if loss.unborn:
        return WorkerLostError(
            f"{loss.who} {loss.how}, and no other could be started in its place ({loss.unborn}): nobody could fill "
            f"step {task.step} of epoch {task.epoch}.\n"
            f"  {_LIKELY.get(loss.signal, _UNLIKELY)}"
        )
    if loss.seq != task.seq:
        return WorkerLostError(
            f"Workers die as soon as they start: {loss.who} {loss.how}, the last of several, so nobody could fill "
            f"step {task.step} of epoch {task.epoch}.\n"
            f"  {_LIKELY.get(loss.signal, _UNLIKELY)} Look at worker_init_fn, and at what importing the dataset's "
            "module does."
        )
    tries = retries + 1
    tried = f"The step was tried {tries} time{'s' * (tries > 1)}; raise retries= to try more."
    if fatal:
        tried = f"The stream's position died with it: the epoch ends here.\n  {NOT_LOST}"
    elif task.kind in PULLED:
        tried = f"Nobody can read the stream past it: the epoch ends here. {tried}"
    else:
        tried = f"Samples in the step: {shorten(task.keys)}. {tried}"
    return WorkerLostError(
        f"{loss.who} died while filling step {task.step} of epoch {task.epoch}: it {loss.how}.\n"
        f"  {_LIKELY.get(loss.signal, _UNLIKELY)}\n"
        f"  {tried}"
    )


def vacancy(loss: Lost) -> str:
    """The warning for a seat that is left empty."""
    why = "the last of several there that died with nothing to do"
    if loss.unborn:
        why = f"and no other could be started in its place ({loss.unborn})"
    return (
        f"{loss.who} {loss.how}, {why}. Its place stays empty until the next epoch; the others do its work.\n"
        f"  {_LIKELY.get(loss.signal, _UNLIKELY)} Look at worker_init_fn."
    )


def irreplaceable(loss: Lost, steps: list[Task]) -> WorkerLostError:
    """The error for a worker whose place nobody can take."""
    doing = "" if not steps else f", while filling step {steps[0].step} (samples {shorten(steps[0].keys)})"
    error = WorkerLostError(
        f"DataLoader {loss.who} exited unexpectedly: it {loss.how}{doing}.\n"
        f"  {_LIKELY.get(loss.signal, _UNLIKELY)}\n"
        "  Its random generators died with it, so no other can go on in its place. With seed= given, "
        "randomness belongs to the sample, and a worker that dies is replaced."
    )
    error.__cause__ = loss.cause
    return error
