"""Which kind of source an object is."""

from __future__ import annotations


def is_stream(dataset: object) -> bool:
    """Whether it is read from its beginning to its end, rather than by keys.

    By the name of the class, so that torch's and Hugging Face's IterableDataset are streams too
    without being imported. (torch's has a `__getitem__`, which only raises.)
    """
    return any(cls.__name__ == "IterableDataset" for cls in type(dataset).__mro__)
