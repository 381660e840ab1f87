"""Chooses the columns to read, and checks that all files have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import FormatError
from penstock.formats._cells import form_of
from penstock.formats._table import unreadable


def common_schema(paths: Sequence[str], schemas: Sequence[bytes], columns: Iterable[str] | None) -> Any:
    """Returns the schema of the chosen columns (by default, all). Raises FormatError if it differs between files."""
    chosen = chosen_columns(_restored(schemas[0], paths[0]), columns, paths[0])
    wanted = {field.name: form_of(field.type) for field in chosen}
    seen = {schemas[0]}
    for path, serialized in zip(paths, schemas, strict=True):
        if serialized not in seen:
            seen.add(serialized)
            _check(_restored(serialized, path), path, wanted, paths[0], columns is None)
    return chosen


def _restored(serialized: bytes, path: str) -> Any:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(serialized))
        str([(field.name, form_of(field.type)) for field in schema])  # raises an error if a name is not text
    except Exception as error:
        unreadable(f"the schema of {path}", error)
    return schema


def chosen_columns(schema: Any, columns: Iterable[str] | None, path: str) -> Any:
    names = list(schema.names) if columns is None else _names(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise FormatError(f"{path} has no column {names_of(missing)}. It has {names_of(schema.names)}.")
    if not schema.names:
        raise FormatError(f"{path} has no columns, so its rows hold nothing. Write it again with columns.")
    if not names:
        raise ValueError(f"columns must name at least one column of {path}, which has {names_of(schema.names)}.")
    double = sorted({name for name in names if names.count(name) > 1 or schema.names.count(name) > 1})
    if double:
        raise FormatError(f"{path}: the column {names_of(double)} occurs twice. A sample can have it only once.")
    return pa.schema([schema.field(name) for name in names])


def _names(columns: Iterable[str]) -> list[str]:
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got the str {columns!r}. Pass [{columns!r}].")
    names = list(columns) if isinstance(columns, Iterable) else [columns]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"columns must be a list of names, but {wrong[0]!r} is not a name.")
    return names


def _check(schema: Any, path: str, wanted: dict[str, str], first: str, all_columns: bool) -> None:
    """Raises FormatError if a wanted column is missing from a file, or has another type there.

    `first` is the path of the first file, with which all files are compared. If `all_columns` is True, additional
    columns are an error, too.
    """
    for name, form in wanted.items():
        if name not in schema.names:
            raise FormatError(
                f"{path} has no column {name!r}, which {first} has. It has {names_of(schema.names)}. Name the "
                "columns that all files have with columns=, or read the two kinds of files as two datasets."
            )
        # A column without a single value has the type null in some files, and a null is the same in all types.
        if (other := form_of(schema.field(name).type)) != form and "null" not in (form, other):
            raise FormatError(
                f"the column {name!r} is {form} in {first}, but {other} in {path}. Write the files with one schema, "
                "leave the column out with columns=, or read the two kinds of files as two datasets."
            )
    if all_columns and (more := [name for name in schema.names if name not in wanted]):
        raise FormatError(
            f"{path} has the column {names_of(more)}, which {first} does not have. Name the columns that all files "
            "have with columns=, or read the two kinds of files as two datasets."
        )


def names_of(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 12 else shown
