"""Messages about workers that hang or die: the worker, the step and its samples, the likely cause, and what to do."""

from __future__ import annotations

from textwrap import indent

from penstock._printable import counted
from penstock._wire.task import Task, shorten
from penstock.backends._base import HUNG, Doing, Lost
from penstock.errors import LoaderTimeout
from penstock.errors import WorkerLost as WorkerLostError

_MOST_LISTED = 4  # busy workers in a message

_LIKELY = {
    "SIGKILL": "Most often this is the kernel's out-of-memory killer: use fewer workers, a smaller "
    "prefetch_factor, or smaller batches.",
    "SIGSEGV": "Native code that the dataset calls has crashed: run these samples with num_workers=0 under "
    "python -X faulthandler.",
    "unknown": "Perhaps the kernel's out-of-memory killer ended it, or native code that the dataset calls crashed.",
    "SIGBUS": "A memory-mapped file was truncated while it was read, or no memory was left.",
}
_LIKELY[HUNG] = "A read, a lock or native code does not return: look at the samples, or raise hang=."
_UNLIKELY = "The dataset, or a library that it calls, ended the process."


def timeout_error(timeout: float | None, task: Task | None, at_work: list[Doing]) -> LoaderTimeout:
    # These are torch's words, also for 1 second: programs and torch's own tests search for "after \d+ seconds".
    said = [f"DataLoader timed out after {timeout} seconds"]
    likely = "Most often a read hangs: raise timeout=, or look at these calls."
    if not at_work:
        likely = "Workers may take long to start: raise timeout=."
    if task is not None and all(one.seq != task.seq for one in at_work):
        said.append(f"Step {task.step} of epoch {task.epoch} is not done; no worker has started it yet.")
    # Workers without a task, or with the oldest one, first: the others wait for them.
    at_work = sorted(at_work, key=lambda one: -1 if one.seq is None else one.seq)
    for who, stack, seq, epoch, step, _ in at_work[:_MOST_LISTED]:
        at = ". Its stack, innermost call first:\n" + indent(stack, "    ") if stack else "."
        if task is not None and task.seq == seq:
            keys = shorten(task.single()[step - task.step].keys)
            said.append(f"Step {step} of epoch {epoch} is not done; {who} is working on it{at}")
            said.append(f"Samples in the step: {keys}.")
            likely = "Most often one sample is slow, or a read hangs: raise timeout=, or look at these samples."
        else:
            has = "has no step" if seq is None else f"is in step {step} of epoch {epoch}"
            said.append(f"{who} {has}{at}")
    if len(at_work) > _MOST_LISTED:
        more = len(at_work) - _MOST_LISTED
        said.append(f"{counted(more, 'more worker')} {'is' if more == 1 else 'are'} busy.")
    likely = next((one.likely for one in at_work[:_MOST_LISTED] if one.likely), likely)
    said.append(f"The next next() waits again. {likely}")
    return LoaderTimeout("\n  ".join(said))


def hung(seconds: float, one: Doing, task: Task | None) -> str:
    """Returns the warning about a worker that was killed because it hung."""
    keys = "" if task is None else f" Samples in the step: {shorten(task.single()[one.step - task.step].keys)}."
    at = " Its stack, innermost call first:\n" + indent(one.stack, "    ") if one.stack else ""
    likely = f"\n  {one.likely}" if one.likely else ""
    return (
        f"{one.who} has been in step {one.step} of epoch {one.epoch} for more than "
        f"{counted(seconds, 'second')} (hang=). It is killed, and another worker does the step.{keys}{at}{likely}"
    )


def lost_error(task: Task, loss: Lost, retries: int) -> WorkerLostError:
    step = f"step {task.step} of epoch {task.epoch}"
    if loss.unborn:
        text = (
            f"{loss.who} {loss.how}, and no replacement could be started ({loss.unborn}), so no worker could "
            f"fill {step}.\n  {_likely(loss)}"
        )
    elif loss.seq != task.seq:
        text = (
            f"Workers crash at start-up (the last one: {loss.who} {loss.how}), so no worker could fill "
            f"{step}.\n  {_likely(loss)} Look at worker_init_fn, and at what importing the dataset's module does."
        )
    else:
        text = (
            f"{loss.who} died while filling {step}: it {loss.how}.\n  {_likely(loss)}\n"
            f"  Samples in the step: {shorten(task.keys)}. {_tried(retries)}"
        )
    return _caused(text + _in_torchs_words(loss), loss)


def broken_error(task: Task, loss: Lost, retries: int, unknown: str | None) -> WorkerLostError:
    """Returns the error for a stream that no worker can continue.

    `unknown` says why the position in the stream is unknown, or is None if the position is known.
    """
    when = "while filling" if loss.seq == task.seq else "before"
    why = f"No worker can read the stream past this step, so the epoch ends here. {_tried(retries)}"
    if unknown is not None:
        why = f"The position in the stream is lost with the worker, so the epoch ends here.\n  {unknown}"
    step = f"step {task.step} of epoch {task.epoch}"
    text = f"{loss.who} died {when} {step}: it {loss.how}.\n  {_likely(loss)}\n  {why}"
    return _caused(text + _in_torchs_words(loss), loss)


def _in_torchs_words(loss: Lost) -> str:
    return f"\n  torch's DataLoader reports this as: {loss.phrase}" if loss.phrase else ""


def _tried(retries: int) -> str:
    tries = retries + 1
    return f"The step was tried {tries} time{'s' * (tries > 1)}; raise retries= to try more."


def _likely(loss: Lost) -> str:
    return _LIKELY.get(loss.signal, _UNLIKELY)


def _caused(text: str, loss: Lost) -> WorkerLostError:
    error = WorkerLostError(text.strip())
    error.__cause__ = loss.cause
    return error


def vacancy(loss: Lost) -> str:
    """Returns the warning about a seat that remains empty."""
    why = "the last of several workers that crashed while they had no step"
    if loss.unborn:
        why = f"and no replacement could be started ({loss.unborn})"
    return (
        f"{loss.who} {loss.how}, {why}. Its place stays empty until the next epoch; the other workers do its work.\n"
        f"  {_likely(loss)} Look at worker_init_fn."
    )


def irreplaceable(loss: Lost, task: Task | None) -> WorkerLostError:
    doing = "" if task is None else f", while filling step {task.step} (samples {shorten(task.keys)})"
    text = (
        f"{loss.phrase}\n  {loss.who} {loss.how}{doing}.\n  {_likely(loss)}\n"
        "  Its random generators are lost, so no other worker can continue its work. With seed=, random numbers do "
        "not depend on the worker, and a crashed worker is replaced."
    )
    return _caused(text, loss)
