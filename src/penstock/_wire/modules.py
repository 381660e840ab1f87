"""Decides which modules a fresh interpreter can import. Classes and functions from other modules are sent by value.

A fresh interpreter has the same `sys.path`. But it does not have the program's `__main__`, `__mp_main__` (the script
in a process that multiprocessing has spawned), modules made by `exec` or `runpy`, or modules from files that are not
on the path. Importing such a module by its name would fail, or would find another file.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

ABSENT = {b"__main__", b"__mp_main__"}
"""Modules that are known not to be importable. The names are bytes, because pickles are searched for them."""


@contextmanager
def sent_by_value() -> Iterator[Callable[[Any], None]]:
    """Inside the `with` block, cloudpickle sends an object by value if the object cannot be imported.

    Pass each object to the yielded function before cloudpickle pickles the object.
    """
    import cloudpickle

    seen = {"__main__"}  # cloudpickle always sends the contents of `__main__` by value
    registered: list[types.ModuleType] = []

    def look_at(part: Any) -> None:
        if issubclass(type(part), type) or isinstance(part, types.FunctionType):
            name = part.__module__
        elif isinstance(part, types.ModuleType):
            name = part.__name__
        else:
            return
        if not isinstance(name, str) or name in seen:
            return
        seen.add(name)
        module = sys.modules.get(name)
        if isinstance(module, types.ModuleType) and not is_importable(name):
            own = module.__name__
            ABSENT.add(own.encode())
            if own in sys.modules and own not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)

    try:
        yield look_at
    finally:
        for module in registered:
            with suppress(ValueError):  # another thread has done it
                cloudpickle.unregister_pickle_by_value(module)


def is_importable(name: str) -> bool:
    """True if a fresh interpreter that imports this module name gets the same module."""
    if name in ("__main__", "__mp_main__"):
        return False
    parent = name.rpartition(".")[0]
    if parent and not is_importable(parent):
        return False
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return bool(parent)  # made by the program; or, if there is a parent, made when the parent is imported
    path = None
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None:
            return True  # made by its parent, which is not a package
    found = _find_spec(name, path)
    if found is None or not found.has_location:  # built-in, frozen, or a namespace package
        return found is not None
    return _is_same(found.origin, getattr(module, "__file__", None) or spec.origin)


def _find_spec(name: str, path: Any) -> Any:
    for finder in tuple(sys.meta_path):
        with suppress(Exception):  # the program's own finder may raise
            spec = finder.find_spec(name, path, None)
            if spec is not None:
                return spec
    return None


def _is_same(found: str | None, loaded: str | None) -> bool:
    return found is None or loaded is None or found == loaded or os.path.realpath(found) == os.path.realpath(loaded)
