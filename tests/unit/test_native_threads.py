"""Each library has one thread in each worker, before the first sample, however the worker was started."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

from penstock import DataLoader
from penstock.backends import _native_threads as native_threads

# By value: else each fresh interpreter imports this module, and pytest with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

METHODS = ("fork", "spawn", "forkserver")


class OpenBlas:
    """The samples are numbers of threads: OpenBLAS's, and what a library finds that is imported later."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> np.ndarray[Any, Any]:
        return np.array([openblas_threads(), int(os.environ.get("OMP_NUM_THREADS", 0))])


def openblas_threads() -> int:
    for path in native_threads._libraries():
        if "openblas" in os.path.basename(path):
            library = ctypes.CDLL(path)
            for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads"):
                if hasattr(library, name):
                    return int(getattr(library, name)())
    return 0


class TorchThreads:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> int:
        import torch

        return torch.get_num_threads()


class Blurred:
    """Samples that OpenCV makes with its thread pool."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> int:
        import cv2

        cv2.GaussianBlur(np.ones((500, 500, 3), np.uint8), (31, 31), 5)
        return cv2.getNumThreads()


def found(dataset: Any, method: str, **options: Any) -> Any:
    with DataLoader(dataset, num_workers=1, multiprocessing_context=method, timeout=60, **options) as loader:
        return next(iter(loader))[0].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_openblas_and_libraries_that_are_imported_later_have_one_thread(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # meant for the program, and not for each of its workers
    before = openblas_threads()
    assert found(OpenBlas(), method) == [min(before, 1), 1]
    assert (openblas_threads(), os.environ["OMP_NUM_THREADS"]) == (before, "2")


@pytest.mark.imports_torch
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_torch_has_one_thread_in_workers_of_every_loader(method: str) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert found(TorchThreads(), method) == 1
        assert torch.get_num_threads() == 2
        if method == "fork":
            assert found(TorchThreads(), method, worker_init_fn=lambda seat: torch.set_num_threads(3)) == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_environment_variable_sets_another_number_or_leaves_libraries_alone(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PENSTOCK_WORKER_THREADS", "3")
    assert found(OpenBlas(), method)[1] == 3
    monkeypatch.setenv("PENSTOCK_WORKER_THREADS", "0")
    assert found(OpenBlas(), method)[1] == 0


def test_what_is_no_number_of_threads_is_an_error_in_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_THREADS", "many")
    for method in METHODS:
        with pytest.raises(ValueError, match=r"PENSTOCK_WORKER_THREADS is the number of .*, not 'many'\."):
            found(range(3), method)


FORKED_BESIDE = """
import cv2
from test_native_threads import Blurred, found

cv2.setNumThreads(3)
assert Blurred()[0] == 3  # its threads run
assert found(Blurred(), "fork") == 1
assert Blurred()[0] == 3
"""


def test_opencvs_threads_are_the_parents_again_after_a_fork() -> None:
    pytest.importorskip("cv2")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", FORKED_BESIDE], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")


BESIDE_IMPORTS = """
import sys, threading
from penstock.backends import _native_threads

def look():
    while not over:
        _native_threads._libraries()

over = []
threads = [threading.Thread(target=look) for _ in range(2)]
for thread in threads:
    thread.start()
for name in ("sqlite3", "decimal", "_ssl", "_hashlib", "lzma", "bz2", "pyexpat", "_curses", "readline", "pyarrow"):
    try:
        __import__(name)
    except ImportError:
        pass
over.append(True)
for thread in threads:
    thread.join()
print("imported")
"""


def test_libraries_are_looked_up_beside_a_thread_that_imports() -> None:
    command = [sys.executable, "-c", BESIDE_IMPORTS]
    assert subprocess.run(command, capture_output=True, text=True, timeout=100).stdout == "imported\n"
