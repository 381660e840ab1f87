"""The settings of a loader that are worth showing: those that differ from their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALWAYS = ("batch_size", "num_workers", "backend", "prefetch_factor")
"""Settings that are always shown, unless they are None."""

_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "shuffle": (False,),
    "in_order": (True,),
    "timeout": (0,),
    "retries": (2,),
    "on_error": ("raise",),
    "auto": ((), []),
    "shard": ([0, 1], (0, 1)),
    "one_reader": (False,),
    "pin_memory": (False,),
}


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are None or have their default, the important ones first."""
    names = [*ALWAYS, *(name for name in settings if name not in ALWAYS)]
    found = {name: settings[name] for name in names if settings.get(name) is not None and name != "face"}
    return {name: value for name, value in found.items() if value not in _defaults(name, settings)}


def _defaults(name: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    if name == "persistent_workers":
        is_ours = settings.get("face", "penstock") == "penstock" and settings.get("num_workers")
        return (bool(is_ours),)
    return _DEFAULTS.get(name, ())
