"""Limits each library's thread pool to one thread per worker. PENSTOCK_WORKER_THREADS changes the limit; 0 lifts it.

If each worker has pools with one thread per CPU, the workers slow each other down: torch.sum of 300,000 numbers takes
five times as long. A library reads its environment variable only while being loaded. After that, only a function of
the library can change the number of threads.

    fresh interpreter   has the variables from the start, and calls the functions after it has unpickled the dataset
    forked worker       sets the variables, and calls the functions, which `look_up` found before the fork
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock._memory import guests

_VARIABLE = "PENSTOCK_WORKER_THREADS"

_VARIABLES = (
    "OMP_NUM_THREADS",  # pyarrow reads this one, too
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",  # Hugging Face's tokenizers
)

# Maps the name of a shared library to the function that sets its number of threads.
_FUNCTIONS = {
    **dict.fromkeys(("libgomp", "libiomp5", "libomp"), "omp_set_num_threads"),
    **dict.fromkeys((f"libmkl_{kind}_thread" for kind in ("intel", "gnu", "tbb")), "MKL_Set_Num_Threads"),
    "libblis": "bli_thread_set_num_threads",
}

# OpenBLAS's functions that set the number of threads. The wheels of numpy and scipy rename the library and these.
_OPENBLAS = [f"{name}openblas_set_num_threads{end}" for name in ("", "scipy_") for end in ("", "64_", "_64")]

# OpenBLAS's variable for the number of threads. After a fork, its function would first start all threads again.
_OPENBLAS_NUMBER = "blas_cpu_number"

# OpenBLAS's function that ends its threads, which start again when needed. It is registered to run before forks.
_OPENBLAS_STOP = "blas_thread_shutdown_"

# Maps the name of a Python module to its function that sets the number of threads.
_MODULES = {
    "cv2": "setNumThreads",
    "numexpr": "set_num_threads",
    "pyarrow": "set_cpu_count",  # its I/O threads stay, because they mostly wait
}

Setter = Callable[[int], object]

_looked_up = 0  # the number of imported modules when `look_up` last searched
_setters: list[Setter] = []
_stops: list[Callable[[], object]] = []


def count() -> int:
    """Returns how many threads each native library may use in a worker, or 0 if the libraries may choose."""
    given = os.environ.get(_VARIABLE, "1")
    if not given.isdecimal():
        raise ValueError(
            f"{_VARIABLE} is the number of threads that each library may use in each worker, or 0 for the library's "
            f"own choice, not {given!r}."
        )
    return int(given)


def variables() -> dict[str, str]:
    most = count()
    return dict.fromkeys(_VARIABLES, str(most)) if most else {}


def look_up() -> int:
    """Finds the functions that set thread counts, so that forked children inherit them. Returns `count()`."""
    global _looked_up, _setters, _stops
    most = count()
    if most and _looked_up != len(sys.modules):  # a library is loaded by importing a module
        guests.meet_imported()
        _looked_up, _setters, _stops = len(sys.modules), [], []
        for path in _libraries():
            name = os.path.basename(path).partition(".")[0].partition("-")[0]
            if name in _FUNCTIONS or "openblas" in name:
                with suppress(OSError):  # it was unloaded meanwhile
                    _look_into(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD), name)
    return most


def stop_openblas() -> None:
    """Stops OpenBLAS's threads, if the library exports a function for this (numpy 2.5's does not)."""
    look_up()
    for stop in _stops:
        stop()


def limit() -> None:
    """Limits the threads of all libraries, even those loaded later. `worker_init_fn` may override the limit."""
    most = look_up()
    if not most:
        return
    launched = getattr(sys.modules.get("numba.np.ufunc.parallel"), "_is_initialized", False)
    text = str(most)
    # One by one, because `update` would make a forked worker copy 60 more memory pages before its first sample.
    for name in _VARIABLES:
        # numba refuses to compile if its variable has changed after its threads were started.
        if not (launched and "NUMBA" in name):
            os.environ[name] = text
    for setter in _setters:
        setter(most)
    guests.limit_threads(most)
    for name, function in _MODULES.items():
        with suppress(AttributeError):  # it is not imported, or still being imported
            getattr(sys.modules.get(name), function)(most)


@contextmanager
def opencv_stopped() -> Iterator[None]:
    """Stops OpenCV's threads during a fork. Stopping them in the child instead could block forever on a lock."""
    module: Any = sys.modules.get("cv2")
    before = getattr(module, "getNumThreads", int)() if count() else 0
    if before > 1:
        module.setNumThreads(1)
    try:
        yield
    finally:
        if before > 1:
            module.setNumThreads(before)


def _look_into(library: ctypes.CDLL, name: str) -> None:
    if name in _FUNCTIONS:
        _setters.extend(_functions_of(library, _FUNCTIONS[name]))
        return
    _stops.extend(_functions_of(library, _OPENBLAS_STOP))
    try:
        number = ctypes.c_int.in_dll(library, _OPENBLAS_NUMBER)
    except ValueError:  # numpy 2.5 hides it
        _setters.extend(_functions_of(library, *_OPENBLAS))
    else:
        _setters.append(lambda most: setattr(number, "value", min(most, number.value)))


def _functions_of(library: ctypes.CDLL, *functions: str) -> list[Any]:
    return [getattr(library, name) for name in functions if hasattr(library, name)]


_RTLD_DI_LINKMAP = 2
_POINTER = ctypes.sizeof(ctypes.c_void_p)


def _libraries() -> list[str]:
    """Returns the paths of the libraries that this process has loaded, from the list of the dynamic linker."""
    # Not dl_iterate_phdr: it would wait for the GIL in each callback and hold the linker's lock, for which a thread
    # that imports a module may be waiting with the GIL. Here, only a library that is unloaded meanwhile is a risk.
    program, library = ctypes.CDLL(None), ctypes.c_void_p()
    program.dlinfo(ctypes.c_void_p(program._handle), _RTLD_DI_LINKMAP, ctypes.byref(library))
    found: list[bytes] = []
    while library.value:  # a struct link_map: an address, the path, a pointer, the next library
        found.append(ctypes.c_char_p.from_address(library.value + _POINTER).value or b"")
        library = ctypes.c_void_p.from_address(library.value + 3 * _POINTER)
    return os.fsdecode(b"\0".join(found)).split("\0")
