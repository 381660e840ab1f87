"""Which kind of source an object is."""

from __future__ import annotations

from typing import Any


def is_stream(dataset: object) -> bool:
    """Whether it is read from its beginning to its end, rather than by keys.

    By the name of the class, so that torch's and Hugging Face's IterableDataset are streams too
    without being imported. (torch's has a `__getitem__`, which only raises.)
    """
    return any(cls.__name__ == "IterableDataset" for cls in type(dataset).__mro__)


def way(dataset: object, name: str) -> Any:
    """Its method of this name, `__getitems__` or `__gather__`, or None.

    Only one that its class has, as of Python's own names with underscores: a wrapper that hands on whatever it lacks
    to the dataset inside of it would be passed by, and that dataset's samples taken for its own.
    """
    return getattr(dataset, name, None) if hasattr(type(dataset), name) else None
