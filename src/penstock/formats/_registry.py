"""The formats of others, which `penstock.open` and `penstock inspect` find besides ours."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TypeVar

from penstock._system.warnings import warn_caller
from penstock.formats._format import Format

F = TypeVar("F", bound=type[Format])

GROUP = "penstock.formats"
"""The group of entry points by which packages name their formats."""

_registered: list[type[Format]] = []
_loaded = False


def register(format: F) -> F:
    """Makes `penstock.open` and `penstock inspect` find a format of your own, by its `matches` and `suffixes`.

    It returns the class, so that it can be a decorator. A format that is registered later comes first; a second
    registration of the same class changes nothing. A package that is installed names its formats in the entry points
    of its pyproject.toml instead, so that programs need not import it:

        [project.entry-points."penstock.formats"]
        hdf5 = "my_package:HDF5"

    Packages are asked only for files that are of no other format.
    """
    if not isinstance(format, type) or not issubclass(format, Format):
        raise TypeError(f"register takes a subclass of penstock.formats.Format, but got {format!r}.")
    if isinstance(format.suffixes, str):
        raise TypeError(f"{format.__name__}.suffixes must be a tuple, such as ({format.suffixes!r},), and not a str.")
    if format not in _registered:
        _registered.insert(0, format)
    return format


def unregister(format: type[Format]) -> None:
    """Takes back a registration. A format that is not registered is no error."""
    if format in _registered:
        _registered.remove(format)


def registered() -> tuple[type[Format], ...]:
    """The registered formats, the last one first."""
    return tuple(_registered)


def load_entry_points() -> bool:
    """Registers the formats of installed packages, once. True if there are any new ones."""
    global _loaded
    if _loaded:
        return False
    _loaded, before = True, len(_registered)
    for entry in entry_points(group=GROUP):
        try:
            register(entry.load())
        except Exception as error:  # a package that is broken must not keep others from being found
            warn_caller(
                f"The format {entry.name!r} ({entry.value}) of an installed package cannot be loaded, and is not "
                f"used: {type(error).__name__}: {error}. Reinstall or remove the package."
            )
    return len(_registered) > before
