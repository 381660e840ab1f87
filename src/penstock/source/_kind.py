"""Tells streams from datasets with keys, and finds a dataset's batch methods."""

from __future__ import annotations

from typing import Any


def is_stream(dataset: object) -> bool:
    """True if the dataset is iterated rather than read by keys."""
    # By the name of the class, so that torch's and Hugging Face's IterableDataset need not be imported to be
    # streams too. (torch's has a `__getitem__`, which only raises.)
    return any(cls.__name__ == "IterableDataset" for cls in type(dataset).__mro__)


def method_of(dataset: object, name: str) -> Any:
    """The dataset's method `__getitems__` or `__gather__`, or None if its class has none."""
    # Looked up on the class, as Python does for special methods: a wrapper that forwards missing attributes to an
    # inner dataset would otherwise be bypassed, and the inner dataset's samples used instead of its own.
    return getattr(dataset, name, None) if hasattr(type(dataset), name) else None
