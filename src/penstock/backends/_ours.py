"""Registers penstock's own backends. Each backend is imported at first use (about 10 ms for `process`)."""

from __future__ import annotations

from typing import Any

from penstock._printable import counted
from penstock._system import limits
from penstock._system.interrupts import import_whole
from penstock._system.platform import HAS_PROCESSES, SYSTEM
from penstock._system.warnings import warn_caller
from penstock._work.job import Job
from penstock.backends._base import INLINE, PROCESS, TABLE, THREAD, Backend, Registered


def _inline(job: Job, given: None) -> Backend:
    import_whole("penstock.backends._local")
    from penstock.backends._local import InlineBackend

    return InlineBackend(job)


def _thread(job: Job, given: None) -> Backend:
    import_whole("penstock.backends._local")
    from penstock.backends._local import ThreadBackend

    return ThreadBackend(job)


def _process(job: Job, context: Any) -> Backend:
    import_whole("penstock.backends._process.backend")
    from penstock.backends._process.backend import start

    return start(job, context)


# Seconds of CPU time that a forked worker takes to start, about half of it in the parent. Other start methods
# take up to 30 times as long.
_START = 0.015


def _check_machine(workers: int) -> None:
    """Raises an error if this system cannot run worker processes, and warns if there are more workers than CPUs."""
    if not HAS_PROCESSES:
        raise RuntimeError(
            f"Worker processes need Linux (fork, memfd and pidfd), but this is {SYSTEM}. Use num_workers=0, or "
            'penstock.DataLoader with backend="thread".'
        )
    usable = limits.usable_cpus()
    if workers > usable:
        slow, start = "", workers * _START / usable
        if start > 1:
            slow = (
                f" Starting {workers} processes on {counted(usable, 'CPU')} takes {start:.0f} s or more, and "
                f"num_workers={usable} keeps every CPU busy."
            )
        warn_caller(
            f"num_workers={workers} is more than the {counted(usable, 'CPU')} that this process may use. This helps "
            f'only if samples wait for I/O, and then backend="thread" does the same with less memory.{slow}',
            UserWarning,
        )


def _check_process(context: Any, workers: int) -> None:
    _check_machine(workers)
    if context is not None:
        import_whole("penstock.backends._process.methods")
        from penstock.backends._process.methods import choose_method

        # Raises what torch raises: ValueError for an unknown name, TypeError for anything but a context.
        choose_method(context)


def _ray(job: Job, options: Any) -> Backend:
    import_whole("penstock.backends._ray.backend")
    from penstock.backends._ray.settings import on_cluster

    return on_cluster(job, options)


def _check_ray(options: Any, workers: int) -> None:
    if not HAS_PROCESSES:
        raise RuntimeError(
            f'backend="ray" needs Linux, also on the machine that runs the loader, but this is {SYSTEM}. Run this '
            'program on a node of the cluster, for example as a job of Ray; or use backend="thread".'
        )
    from penstock.backends._ray.settings import resolved

    resolved(options)


def _room_on_ray(options: Any) -> int | None:
    from penstock.backends._ray.settings import workers_that_fit

    return workers_that_fit(options)


TABLE[INLINE] = Registered(make=_inline, kills=False)
TABLE[PROCESS] = Registered(make=_process, argument="multiprocessing_context", check=_check_process)
TABLE[THREAD] = Registered(make=_thread, kills=False, threads=True)
TABLE["ray"] = Registered(make=_ray, argument="ray_options", check=_check_ray, room=_room_on_ray, needs_workers=True)
