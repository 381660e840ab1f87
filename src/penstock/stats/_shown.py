"""Selects the loader settings that are worth showing: those that differ from their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock._options import OPTIONS, Show, shown_names

_HIDDEN = ("face", "threads")  # only verdicts use them; `backend` tells a reader the same

ALWAYS = shown_names(Show.ALWAYS)
"""The names of the settings that are shown even if they have their default value. The value None is never shown."""

_DEFAULTS: dict[str, tuple[Any, ...]] = {
    **{name: (OPTIONS[name].default,) for name in shown_names() if name not in ALWAYS},
    # Values that are derived from the settings.
    "auto": ((), []),
    "shard": ([0, 1], (0, 1)),
    "one_reader": (False,),
}


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are in ALWAYS or differ from their defaults.

    Settings that are None or in _HIDDEN are left out.
    """
    names = [*ALWAYS, *(name for name in settings if name not in ALWAYS)]
    found = {name: settings[name] for name in names if settings.get(name) is not None and name not in _HIDDEN}
    return {name: value for name, value in found.items() if value not in _defaults(name, settings)}


def _defaults(name: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    if name == "persistent_workers":
        is_ours = settings.get("face", "penstock") == "penstock" and settings.get("num_workers")
        return (bool(is_ours),)
    return _DEFAULTS.get(name, ())
