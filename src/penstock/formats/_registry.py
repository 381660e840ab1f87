"""Formats registered by users and installed packages, for `penstock.open` and `penstock inspect`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TypeVar

from penstock._system.warnings import warn_caller
from penstock.formats._format import Format

F = TypeVar("F", bound=type[Format])

GROUP = "penstock.formats"
"""The entry point group in which packages list their formats."""

_registered: list[type[Format]] = []
_loaded = False


def register(format: F) -> F:
    """Registers a format of your own, so that `penstock.open` and `penstock inspect` recognise its files.

    They recognise files by the `matches` and `suffixes` of the class. `register` returns the class, so it can be used
    as a decorator. The format that was registered last is tried first. Registering a class twice has no further
    effect. An installed package lists its formats in the entry points of its pyproject.toml instead, so that programs
    do not have to import it:

        [project.entry-points."penstock.formats"]
        hdf5 = "my_package:HDF5"

    These entry points are loaded only if none of the other known formats matches a file.
    """
    if not isinstance(format, type) or not issubclass(format, Format):
        raise TypeError(f"register takes a subclass of penstock.formats.Format, but got {format!r}.")
    if isinstance(format.suffixes, str):
        raise TypeError(f"{format.__name__}.suffixes must be a tuple, such as ({format.suffixes!r},), and not a str.")
    if format not in _registered:
        _registered.insert(0, format)
    return format


def unregister(format: type[Format]) -> None:
    """Undoes `register`. Does nothing if the format is not registered.

    >>> from penstock.formats import TextLines, register, unregister
    >>> class Notes(TextLines):
    ...     suffixes = (".notes",)
    >>> register(Notes) is Notes
    True
    >>> unregister(Notes)
    """
    if format in _registered:
        _registered.remove(format)


def registered() -> tuple[type[Format], ...]:
    """Returns the registered formats, latest first."""
    return tuple(_registered)


def load_entry_points() -> bool:
    """Registers the formats of installed packages, once per process. Returns True if this call added any."""
    global _loaded
    if _loaded:
        return False
    _loaded, before = True, len(_registered)
    for entry in entry_points(group=GROUP):
        try:
            register(entry.load())
        except Exception as error:  # a broken package must not hide the others
            warn_caller(
                f"The format {entry.name!r} ({entry.value}) of an installed package cannot be loaded, and is not "
                f"used: {type(error).__name__}: {error}. Reinstall or remove the package."
            )
    return len(_registered) > before
