"""Runs a function in several processes of `jax.distributed` on this machine, each with some devices on the CPU."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

ROOT = Path(__file__).resolve().parents[2]


def run(
    function: Callable[..., Any], processes: int, devices: int, folder: Path, *args: Any, warnings: str = "error"
) -> list[Any]:
    """Returns what `function(*args)` returns in each process, in the order of their numbers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    work = folder / f"work-{processes}"
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    work.write_bytes(cloudpickle.dumps((function, args)))
    cloudpickle.unregister_pickle_by_value(sys.modules[function.__module__])
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "PYTHONPATH": str(ROOT)}
    started, results = [], [folder / f"result-{processes}-{number}" for number in range(processes)]
    for number, result in enumerate(results):
        given = [address, str(processes), str(number), str(work), str(result)]
        command = [sys.executable, "-W", warnings, "-m", "tests.on_jax.crowd", *given]
        started.append(subprocess.Popen(command, env={**os.environ, **flags}, stderr=subprocess.PIPE, text=True))
    errors = []
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    codes = [process.returncode for process in started]
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(error[-3000:] for error in errors)
    return [pickle.loads(result.read_bytes()) for result in results]


def main() -> None:
    import jax

    address, processes, number, work, result = sys.argv[1:]
    jax.distributed.initialize(address, int(processes), int(number))
    function, args = pickle.loads(Path(work).read_bytes())
    Path(result).write_bytes(pickle.dumps(function(*args)))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
