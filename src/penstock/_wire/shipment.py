"""A shipment: a payload that is pickled once for all workers into a memfd, with its arrays out of band:

    head | the pickle stream | buffer 0 | buffer 1 | ... | a pickled table of (start, end) per buffer

A memfd has no name, so nothing is left behind if a process dies. Each worker maps the memfd copy-on-write, so N
workers share one copy of every array, and a worker may write to its arrays, as after a fork. For a memory-mapped
array, only the name of its file is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
import os
import pickle
import struct
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from penstock._memory.guests import Shipping
from penstock._system.descriptors import close, close_in_child, no_fork, open_memfd
from penstock._system.interrupts import import_whole
from penstock._wire.failure import type_name
from penstock._wire.pickling import adopt, dump, dumps, loads, tag
from penstock.errors import UnshippableDataset

_HEAD = struct.Struct("<Q")  # start of the table
_ALIGN = 64  # a cache line, which is also the best alignment for BLAS and torch
_IN_BAND = 1024  # bytes; copying a smaller buffer is faster than looking it up


def pack(payload: object, descriptors: list[int] | None) -> int:
    """Pickles `payload` into a new shipment, and returns its file descriptor.

    Locks, queues, pipes and shared memory of multiprocessing stay shared. Their descriptors are appended to
    `descriptors`, and workers must inherit them under the same numbers. If `descriptors` is None, the workers are on
    other machines, and such objects cannot be sent. If a part cannot be pickled, raises UnshippableDataset, which
    names the part.
    """
    fd = open_memfd("penstock-shipment")
    try:
        shared = nullcontext() if descriptors is None else _passing_on(descriptors)
        with open(fd, "wb", closefd=False) as file, shared:
            _write(file, payload)
    except BaseException:
        close(fd)
        raise
    return fd


def unpack(fd: int) -> Any:
    """Returns the payload of a shipment. Its arrays are views of a private mapping."""
    return unpack_from(memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)))


def unpack_from(view: memoryview) -> Any:
    """Returns the payload of a shipment. Its arrays are views of `view`."""
    (table,) = _HEAD.unpack_from(view)
    buffers = [view[start:end] for start, end in loads(view[table:])]
    payload, tags = loads(view[_HEAD.size :], buffers=buffers)
    adopt(tags)
    return payload


def _write(file: Any, payload: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    tags: dict[bytes, type] = {}
    file.seek(_HEAD.size)
    try:
        _dump((payload, tags), file, buffers, tags)  # the tags come last, because by then all of them are known
    except MemoryError:
        raise
    except Exception as exc:
        error = _unshippable(payload)
        if error is None:
            raise
        raise error from exc
    table: list[tuple[int, int]] = []
    for buffer in buffers:
        start = file.seek(-(-file.tell() // _ALIGN) * _ALIGN)
        file.write(buffer.raw())  # directly from the array, so that the parent makes no other copy
        table.append((start, file.tell()))
    end = file.tell()
    file.write(dumps(table))
    file.seek(0)
    file.write(_HEAD.pack(end))


def _dump(obj: object, file: Any, buffers: list[pickle.PickleBuffer], tags: dict[bytes, type]) -> None:
    """Pickles `obj`. Classes that are sent by value are added to `tags`."""
    files: dict[int, _MappedFile] = {}
    shipping = Shipping()

    def set_aside(buffer: pickle.PickleBuffer) -> bool:
        in_band = buffer.raw().nbytes < _IN_BAND
        if not in_band:
            buffers.append(buffer)
        return in_band

    def override(part: Any, otherwise: Callable[[Any], Any]) -> Any:
        if isinstance(part, np.ndarray):
            return _reduce_array(part, files)
        reduce = shipping[type(part)]
        if reduce is not None:
            return reduce(part)
        reduced = _reduce_shared(part) or otherwise(part)
        if isinstance(part, type) and reduced is not NotImplemented and reduced[0] is not type:
            tags[tag(part)] = part
        return reduced

    dump(obj, file, override=override, aside=set_aside, by_value=True, fresh=True)


# Objects that multiprocessing shares between processes. It pickles them only for a process that it is starting.


def _reduce_shared(part: Any) -> Any:
    """Reduces multiprocessing's pipes and shared memory for pickle. Returns None for other objects."""
    import_whole("multiprocessing.reduction")
    from multiprocessing.reduction import ForkingPickler

    reduce: Any = ForkingPickler._extra_reducers.get(type(part))  # type: ignore[attr-defined]
    where = getattr(reduce, "__module__", "")
    # Reducers in `reduction` are for methods and the like. A ctypes object is shared if it has this attribute.
    if not where.startswith("multiprocessing.") or where == "multiprocessing.reduction":
        return None
    if where == "multiprocessing.sharedctypes" and not hasattr(part, "_wrapper"):
        return None
    if not _stays_here():
        raise TypeError("it is shared by the processes of one machine, and cannot be sent to another")
    return reduce(part)


def _stays_here() -> bool:
    """True if an object is being pickled for processes on this machine."""
    import_whole("multiprocessing.context")
    from multiprocessing import context

    return context.get_spawning_popen() is not None


@contextmanager
def _passing_on(descriptors: list[int]) -> Iterator[None]:
    """Makes multiprocessing pickle objects as for a new process. Collects descriptors that workers will inherit."""
    import_whole("multiprocessing.context")
    from multiprocessing import context

    outer = context.get_spawning_popen()
    context.set_spawning_popen(_ShippingPopen(descriptors))  # type: ignore[arg-type]
    try:
        yield
    finally:
        context.set_spawning_popen(outer)


class _InheritedDescriptor:
    """A descriptor that a worker has inherited, and that multiprocessing gets by calling `detach()`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        return self._fd


class _ShippingPopen:
    """Stands in for a process started by multiprocessing. Collects the descriptors of the pickled objects."""

    DupFd = _InheritedDescriptor

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors

    def duplicate_for_child(self, fd: int) -> int:
        # A duplicate, because workers may start at any time, even after the caller has closed the original.
        with no_fork():
            self._descriptors.append(os.dup(fd))
            close_in_child(self._descriptors[-1])
        return self._descriptors[-1]


# Arrays


def _reduce_array(array: np.ndarray[Any, Any], files: dict[int, _MappedFile]) -> Any:
    """Pickles a memory-mapped array as the name of its file, and any other array out of band."""
    root = _memmap_below(array)
    if root is not None and array.size:
        key = id(root._mmap)
        # One instance per map, which holds a descriptor: a list of 10,000 rows must not need 10,000 of them.
        file = files[key] = files.get(key) or _MappedFile(root)
        if file.is_named:
            offset = array.__array_interface__["data"][0] - file.address
            shape = (type(array), array.dtype, array.shape, array.strides)
            return _view, (file, offset, *shape, array.flags.writeable)
    if type(array) not in (np.ndarray, np.memmap) or array.dtype.hasobject or not array.dtype.itemsize:
        return NotImplemented
    if type(array) is np.ndarray and array.flags.forc and array.dtype.kind not in "mM":
        return NotImplemented  # numpy's own reduction sends these out of band
    axes = np.argsort([-step for step in array.strides], kind="stable")
    if not array.flags.forc and array.transpose(axes).flags.c_contiguous:
        return np.transpose, (np.asarray(array.transpose(axes)), np.argsort(axes).tolist())
    # Arrays with gaps are packed first, which is a second copy that exists until the pickling is finished.
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    flat.flags.writeable = array.flags.writeable
    return np.ndarray, (array.shape, array.dtype, pickle.PickleBuffer(flat))


class _MappedFile:
    """A mapped file, which may be pickled by name if `is_named` is True. Unpickling gives a uint8 memmap."""

    def __init__(self, root: Any) -> None:
        whole = np.frombuffer(root._mmap, np.uint8)
        self.address = whole.__array_interface__["data"][0]
        is_file = root.filename is not None and root.mode in ("r", "r+", "w+")
        self.is_named = is_file and _is_mapped_at(os.fspath(root.filename), self.address)
        start = root.offset - root.offset % mmap.ALLOCATIONGRANULARITY
        mode = "r" if root.mode == "r" else "r+"  # never "w+": that would empty the file
        self._where = (root.filename, np.uint8, mode, start, (whole.nbytes,))

    def __reduce__(self) -> Any:
        return np.memmap, self._where


def _memmap_below(array: np.ndarray[Any, Any]) -> Any:
    """Returns `array` if it is a memmap, otherwise the memmap that it is a view of, or None if there is none."""
    below: Any = array
    while isinstance(below, np.ndarray):
        if isinstance(getattr(below, "_mmap", None), mmap.mmap):
            return below
        below = below.base
    return None


def _is_mapped_at(filename: str, address: int) -> bool:
    """True if the file with this name is still the one that is mapped at `address`."""
    with suppress(OSError), open("/proc/self/maps", "rb") as maps:
        named = os.stat(filename)
        for line in maps:
            bounds, _, _, _, inode, *path = line.split(maxsplit=5)
            low, high = (int(bound, 16) for bound in bounds.split(b"-"))
            if low <= address < high:
                # The path is compared too, because some file systems (overlayfs) show another inode number here.
                mapped = os.fsdecode(path[0].rstrip(b"\n")) if path else ""
                return int(inode) == named.st_ino or mapped == os.path.realpath(filename)
    return False


def _view(file: Any, offset: int, kind: type, dtype: Any, shape: Any, strides: Any, writeable: bool) -> Any:
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, file, offset, strides)
    if issubclass(kind, np.memmap):
        array = array.view(np.memmap)
        array.__array_finalize__(file)  # numpy's way to pass on filename, mode and offset
    if not writeable:
        array.flags.writeable = False
    return array


# The search, made only after a failure, for the part that cannot be sent


_ON_THIS_MACHINE = (
    "Workers started by spawn or forkserver",
    ';\n  or pass multiprocessing_context="fork", which sends nothing; or backend="thread" with penstock.DataLoader.',
)
_ELSEWHERE = "Workers on other machines", "."


def _unshippable(payload: object) -> UnshippableDataset | None:
    """Returns an error for the innermost part of `payload` that cannot be pickled, or None if there is none."""
    why = _ON_THIS_MACHINE if _stays_here() else _ELSEWHERE
    path, culprit, reason, above = "", None, None, set()
    parts: list[tuple[str, object]] = [("", payload)]
    while (refused := _first_refused(parts)) is not None:
        step, culprit, reason = refused
        path += step
        above.add(id(culprit))
        parts = [(step, inner) for step, inner in _parts(culprit, path == "") if id(inner) not in above]
    if reason is None:
        return None
    return UnshippableDataset(
        f"{path.lstrip('.') or 'the payload'} is a {type_name(culprit)}, which cannot be sent to a worker process "
        f"({type(reason).__name__}: {reason}).\n"
        f"  {why[0]} get the dataset pickled, once, before any of them starts.\n"
        f"  Open it in the worker, on first use or in worker_init_fn, and leave it out of __getstate__{why[1]}"
    )


def _first_refused(parts: list[tuple[str, object]]) -> tuple[str, object, Exception] | None:
    """Finds the first of `parts` that cannot be pickled. Uses bisection, because there may be a million parts."""
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        refused = _refusal([part for _, part in half]) is not None
        parts = half if refused else parts[len(half) :]
    for step, part in parts:
        if (reason := _refusal(part)) is not None:
            return step, part, reason
    return None


def _refusal(obj: object) -> Exception | None:
    try:
        _dump(obj, types.SimpleNamespace(write=len), [], {})
    except Exception as exc:  # pickling runs the user's code
        return exc
    return None


def _parts(obj: Any, at_root: bool) -> Iterator[tuple[str, object]]:
    """Yields the parts of `obj` that are pickled, each with its path relative to `obj`, such as ".name" or "[0]"."""
    if isinstance(obj, dict):
        for key, value in obj.items():
            yield str(key) if at_root else f"[{key!r}]", value
        for key in obj:
            yield f" (key {key!r})", key
    elif isinstance(obj, (list, tuple, set, frozenset)):
        for place, item in enumerate(obj):
            yield "" if at_root else f"[{place}]", item
    elif isinstance(obj, types.MethodType):
        yield from _attributes({"__self__": obj.__self__, "__func__": obj.__func__})
    elif isinstance(obj, types.FunctionType):
        yield from _variables(obj)
    elif isinstance(obj, functools.partial):
        yield from _attributes({"func": obj.func, "args": obj.args, "keywords": obj.keywords})
    elif isinstance(obj, type):
        yield from _attributes(dict(vars(obj)))
    else:
        if dataclasses.is_dataclass(obj):
            yield from _attributes({f.name: getattr(obj, f.name, None) for f in dataclasses.fields(obj)})
        yield from _reduced_parts(obj)


def _variables(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that is not set yet
            yield f"'s variable {name!r}", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"'s global {name!r}", function.__globals__[name]
    yield "'s defaults", (function.__defaults__, function.__kwdefaults__)


def _reduced_parts(obj: Any) -> Iterator[tuple[str, object]]:
    try:
        reduced = obj.__reduce_ex__(5)
    except Exception:  # it is the user's code
        return
    if not isinstance(reduced, tuple):
        return
    padded: tuple[Any, ...] = (*reduced, None, None, None, None)
    _, args, state, items, pairs, *_ = padded
    states = state if isinstance(state, tuple) else (state,)  # with __slots__: (__dict__, slots)
    for each in states:
        if isinstance(each, Mapping):
            yield from _attributes(each)
        else:
            yield "'s state", each
    for place, item in enumerate(items or ()):
        yield f"[{place}]", item
    for key, value in pairs or ():
        yield f"[{key!r}]", value
    for place, item in enumerate(args):
        yield f"'s argument {place}", item


def _attributes(values: Mapping[Any, object]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        yield f".{name}", value
