"""Error messages for samples that cannot be collated: the field, the rows, and what to do."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock._memory.forms import is_dataclass
from penstock._wire.failure import type_name

PAD_OR_PACK = "Pad them (collate_fn=penstock.pad()), fill rows with them (penstock.pack)"
Column = Sequence[Any]
Array = np.ndarray[Any, Any]


class Misfit(Exception):
    """Raised if a column cannot be collated. Each level of nesting appends its key to `path`, innermost first."""

    def __init__(self, text: str, rows: Sequence[int] = (), groups: dict[Any, list[int]] | None = None) -> None:
        """If rows were compared, `groups` maps each value to the rows that have this value."""
        super().__init__(text)
        self.rows = tuple(rows)
        compared = [row for some in sorted((groups or {}).values(), key=len, reverse=True) for row in some]
        self.reference = next((row for row in compared if row not in set(rows)), None)
        self.path: list[str] = []

    def where(self) -> str:
        path = self.path[::-1]
        return "".join(path if len(path) < 12 else [*path[:4], " ... ", *path[-2:]])

    @classmethod
    def of(cls, what: str, groups: dict[Any, list[int]], remedy: str) -> Misfit:
        return cls(f"{what}: {listed_rows(groups)}{remedy}, or pass collate_fn=", odd_rows(groups), groups)

    @classmethod
    def of_shapes(cls, values: Sequence[Array]) -> Misfit:
        groups = rows_of_each(value.shape for value in values)
        remedy = ". Pad them to one shape"
        if all(value.ndim == 1 for value in values):
            remedy = f". {PAD_OR_PACK}"
        return cls.of("arrays of different shapes cannot be stacked", groups, remedy)

    @classmethod
    def of_types(cls, values: Column) -> Misfit:
        groups = rows_of_each(map(type, values))
        unknown = [kind for kind in groups if not _is_known(kind)]
        named = {type_name(values[rows[0]]): rows for rows in groups.values()}
        if len(groups) > 1:
            return cls(
                f"values of different types cannot be collated: {listed_rows(named)}. "
                "Give every sample the same type here, drop the field, or pass collate_fn=",
                sorted(row for kind in unknown for row in groups[kind]) or odd_rows(groups),
                groups,
            )
        if values[0] is None:
            return cls(
                "values of type NoneType cannot be collated. Does __getitem__ return its sample? If values are "
                "missing, fill them in, drop the field, or pass collate_fn=",
                range(len(values)),
            )
        return cls(
            f"values of type {next(iter(named))} cannot be collated. Batches are made of arrays, numbers, str, "
            "bytes, and dicts, lists, tuples, namedtuples and dataclasses of these. Convert the values, drop "
            "the field, or pass collate_fn=",
            range(len(values)),
        )

    @classmethod
    def of_keys(cls, values: Sequence[Mapping[Any, Any]]) -> Misfit:
        groups = rows_of_each(frozenset(value) for value in values)
        odd = odd_rows(groups)
        usual = next(keys for keys, rows in groups.items() if rows[0] not in odd)
        parts = []
        for keys, rows in list(groups.items())[:5]:
            if keys != usual:
                lacks, more = _listed_keys(usual - keys), _listed_keys(keys - usual)
                said = [f"lacks {lacks}"] * bool(lacks) + [f"has also {more}"] * bool(more)
                parts.append(f"{in_rows(rows)} {' and '.join(said)}")
        return cls(
            f"dicts with different keys cannot be collated: {'; '.join(parts)}; the other rows have "
            f"{_listed_keys(usual)}. Give every sample the same keys, or pass collate_fn=",
            odd,
            groups,
        )


def is_arraylike(kind: type) -> bool:
    if issubclass(kind, (str, bytes)):
        return False  # also np.str_: text
    return hasattr(kind, "__array__") or issubclass(kind, (int, float, complex))


def _is_known(kind: type) -> bool:
    return is_arraylike(kind) or issubclass(kind, (str, bytes, list, tuple, Mapping)) or is_dataclass(kind)


def rows_of_each(values: Any) -> dict[Any, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(value, []).append(row)
    return groups


def odd_rows(groups: dict[Any, list[int]]) -> list[int]:
    """Returns the rows that do not have the most frequent value."""
    most = max(groups.values(), key=len)
    return sorted(row for rows in groups.values() if rows is not most for row in rows)


def listed_rows(groups: dict[Any, list[int]]) -> str:
    parts = [f"{value} in {in_rows(rows)}" for value, rows in list(groups.items())[:4]]
    if len(groups) > 4:
        parts.append(f"{len(groups) - 4} more")
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]


def in_rows(rows: Sequence[int]) -> str:
    if len(rows) == 1:
        return f"row {rows[0]}"
    shown = ", ".join(map(str, rows[:8]))
    return f"rows {shown}" if len(rows) <= 8 else f"rows {shown}, ... ({len(rows)} rows)"


def _listed_keys(keys: frozenset[Any]) -> str:
    texts = sorted(map(repr, keys))
    if len(texts) > 12:
        texts = [*texts[:10], f"... ({len(texts)} keys)"]
    return f"[{', '.join(texts)}]" if texts else ""
