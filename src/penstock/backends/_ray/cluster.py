"""Starts and kills Ray actors, ships the job, and reports which actors have died. Only this module imports Ray.

This module relies on these facts about Ray 2.60:

- After `ray.shutdown()`, almost any call to Ray starts a new cluster. So `is_there` is checked before every call.
- The callback of a future must not call Ray: `ray.kill` would wait for the thread in which the callback runs.
- An object reference must not be dropped while its callback is pending: dropping it aborts the process.
- Methods of a plain actor run in the actor's main thread, which the user's code may need. With concurrency groups,
  the methods run in other threads.
- A node that is cut off from the network counts as alive for 15 s or longer, and its resources count as free. An
  actor that is placed on such a node waits until Ray declares the node dead.
- An actor's class is pickled by value if it is local to a function. So a node without penstock can unpickle the
  class, and report that penstock is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import ray
from ray import exceptions
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

from penstock.backends._ray.handshake import TlsFiles
from penstock.backends._ray.remote import Call, KillWorker, ProcessEnd

_INIT = 'backend="ray" needs a cluster: call ray.init(address=...) before the first iter(loader).'
_CLIENT = (
    'backend="ray" does not work over Ray Client (ray://): workers connect to the process that trains, which must '
    "run on a node of the cluster. Start it there, for example by ray job submit."
)

_pending: set[Any] = set()
"""Ray's object references whose callbacks have not been called yet."""


class RayCluster:
    """The cluster that this process is connected to. `options` are Ray's options for the actors."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if not ray.is_initialized():
            raise RuntimeError(_INIT)
        if ray.util.client.ray.is_connected():
            raise RuntimeError(_CLIENT)
        self._options = dict(options)
        self._job = _job()
        self.address: str = get_node_ip_address()
        self.tls = TlsFiles.of(os.environ)

    def is_there(self) -> bool:
        return bool(ray.is_initialized()) and _job() == self._job

    def ship(self, data: memoryview) -> object:
        return ray.put(np.frombuffer(data, np.uint8))

    def start(
        self, call: Call, shipped: object, told: Callable[[ProcessEnd], None], avoid: Collection[str]
    ) -> KillWorker:
        if not self.is_there():
            raise RuntimeError("Ray was shut down, or another cluster is in use now.")
        actor = _worker_class().options(**_elsewhere(self._options, avoid)).remote()
        # A plain tuple can be unpickled without penstock. In a list, the reference is not resolved before the call,
        # so that the worker says hello first, and then fetches the job.
        reference = actor.serve.remote(tuple(call), [shipped])
        _pending.add(reference)
        reference.future().add_done_callback(partial(_ended, reference, told))
        return partial(self._kill, actor)

    def _kill(self, actor: Any) -> None:
        if self.is_there():
            ray.kill(actor, no_restart=True)

    def shortage(self, workers: int) -> str:
        free, whole = ray.available_resources(), ray.cluster_resources()
        wanted = _wanted(self._options)
        named = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items()) or "nothing"
        there = ", ".join(f"{free.get(name, 0):g} of {whole.get(name, 0):g} {name}" for name in wanted or ("CPU",))
        if all(free.get(name, 0) >= workers * amount for name, amount in wanted.items()):
            verdict = "which is enough, unless no single node has it, or a node was lost that Ray still counts."
        else:
            verdict = "which is too little. Use fewer workers, give ray_options= that need less, or add nodes."
        return (
            f"{workers} worker{'s' * (workers != 1)} wait{'s' * (workers == 1)} for a place: each needs {named}. Ray "
            f"says that {there} are free, {verdict}"
        )


@cache
def _worker_class() -> Any:
    class PenstockWorker:
        def serve(self, call: Any, shipped: list[Any]) -> None:
            import os
            import threading

            import ray

            node = ray.util.get_node_ip_address()
            try:
                from penstock.backends._ray.actor import serve

                serve(call, node, lambda: ray.get(shipped[0]))
            except Exception as error:
                error.add_note(f"While a worker was started on node {node} (pid {os.getpid()}).")
                raise
            finally:  # the driver may be gone, and Ray's kill may have come too early to have an effect
                last = threading.Timer(1.0, os._exit, (0,))
                last.daemon = True
                last.start()

    return ray.remote(max_restarts=0, max_task_retries=0)(PenstockWorker)


def actors_that_fit(options: Mapping[str, Any]) -> int | None:
    """Returns how many actors with these options an empty cluster could hold, or None if there is no cluster."""
    if not ray.is_initialized():
        return None
    whole = ray.cluster_resources()
    wanted = _wanted(options) or {"CPU": 1.0}
    return int(min(whole.get(name, 0) // amount for name, amount in wanted.items()))


def _job() -> str:
    return str(ray.get_runtime_context().get_job_id())


def _wanted(options: Mapping[str, Any]) -> dict[str, float]:
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    wanted = {**named, **(options.get("resources") or {})}
    return {name: float(amount) for name, amount in wanted.items() if amount}


def _elsewhere(options: dict[str, Any], avoid: Collection[str]) -> dict[str, Any]:
    """Returns options that prefer nodes outside `avoid`, unless the user has chosen a scheduling strategy."""
    if not avoid or options["scheduling_strategy"] not in ("SPREAD", "DEFAULT"):
        return options
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] in avoid]
    if not nodes:
        return options
    others = NodeLabelSchedulingStrategy(hard={}, soft={"ray.io/node-id": NotIn(*nodes)})
    return {**options, "scheduling_strategy": others}


def _ended(reference: Any, told: Callable[[ProcessEnd], None], future: Any) -> None:
    _pending.discard(reference)
    told(_end(future.exception()))


def _end(error: BaseException | None) -> ProcessEnd:
    if error is None:
        return ProcessEnd("ended")
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause if isinstance(error.cause, BaseException) else RuntimeError(str(error))
        return ProcessEnd("raised an exception", error, cause.with_traceback(None))
    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return ProcessEnd("could not be given its runtime_env", error, error)
    return ProcessEnd(f"was lost; Ray says: {_reason(error)}", error)


# From here on, Ray's messages list possible causes.
_CAUSES = re.compile(r"\s*(Some common causes include|There are some potential root causes).*", re.DOTALL)


def _reason(error: BaseException) -> str:
    """Returns how the actor died: the type of Ray's error, and the last line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {_CAUSES.sub('', lines[-1]).rstrip('.')}" if lines else type(error).__name__
