"""Finds the path of a sample's file if the dataset lists its files. A path tells users more than an index."""

from __future__ import annotations

import os
from typing import Any

_LISTS = ("paths", "files", "filenames", "image_paths", "samples", "imgs")
"""The names of dataset attributes that may list all samples, each as a path or as a tuple that begins with a path."""


def path_of(dataset: Any, key: Any, depth: int = 4) -> str:
    """Returns the path of a sample's file, or "" if it is unknown. The dataset's code is not run."""
    try:
        held = vars(dataset)
        for name in _LISTS:
            found = held[name][key] if name in held and type(key) is int else None
            first = found[0] if isinstance(found, (tuple, list)) and found else found
            if isinstance(first, (str, os.PathLike)):
                return os.fspath(first)
        if depth and "dataset" in held and "indices" in held:  # a Subset
            return path_of(held["dataset"], int(held["indices"][key]), depth - 1)
    except Exception:
        pass
    return ""
