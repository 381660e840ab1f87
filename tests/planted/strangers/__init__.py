"""Bugs that programs of strangers found: one module for each area, with its `BUGS`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.planted.bug import Bug

BUGS: list[Bug] = [
    bug for module in pkgutil.iter_modules(__path__) for bug in import_module(f"{__name__}.{module.name}").BUGS
]
