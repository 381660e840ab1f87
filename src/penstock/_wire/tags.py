"""Tags: names that this process and its workers share for classes that cannot be imported by name.

Classes of `__main__` and classes made inside a function have no importable name. Sent by value, such a class
arrives as another class: `is`, `isinstance` and `except MyError` would fail. A tag is eight random bytes that both
processes map to their own copy of the class. A forked worker inherits the tags, any other gets them with its
shipment.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress

# Weak on both sides: a class made inside a function dies with the last object that uses it.
_tag_of: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()
_class_of: weakref.WeakValueDictionary[bytes, type] = weakref.WeakValueDictionary()


def tag(cls: type) -> bytes:
    """The tag under which this process and its workers know `cls`."""
    known = _tag_of.get(cls)
    if known is None:
        known = os.urandom(8)  # random, not counted: tags made in two processes never collide
        adopt({known: cls})
    return known


def tag_if_known(cls: type) -> bytes | None:
    """The tag of `cls`, if it has one already."""
    with suppress(TypeError):  # a metaclass may make its classes unhashable
        return _tag_of.get(cls)
    return None


def tagged(known: bytes) -> type:
    """The class of this tag. Pickles call this function by its name."""
    return _class_of[known]


def adopt(tags: Mapping[bytes, type]) -> None:
    """Learns the tags that came with a shipment."""
    for known, cls in tags.items():
        _tag_of[cls] = known
        _class_of[known] = cls


def tag_exceptions() -> None:
    """Tags every exception type that has no importable name. Called just before a fork."""
    seen: dict[int, type] = {}
    todo: list[type] = [BaseException]
    while todo:
        cls: type
        for cls in type.__subclasses__(todo.pop()):
            if id(cls) not in seen:
                seen[id(cls)] = cls
                todo.append(cls)
                if cls.__module__ == "__main__" or not _importable(cls):
                    with suppress(TypeError):  # a metaclass may make its classes unhashable
                        tag(cls)


def tags_of_main() -> frozenset[bytes]:
    """Tags the classes of the program. Workers that are forked from now on know them by tag."""
    found: set[bytes] = set()
    todo: list[object] = [sys.modules["__main__"]]
    while todo:
        for value in tuple(vars(todo.pop()).values()):
            ours = issubclass(type(value), type) and vars(value).get("__module__") == "__main__"
            with suppress(TypeError):  # a metaclass may make its classes unhashable
                if ours and tag(value) not in found:
                    found.add(tag(value))
                    todo.append(value)
    return frozenset(found)


def _importable(cls: type) -> bool:
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        # Not getattr: a module's own __getattr__ may import half a library.
        found = getattr(found, "__dict__", {}).get(name)
    return found is cls
