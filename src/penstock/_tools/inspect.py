"""The command `penstock inspect`, which prints the format, the fields and the first samples of files."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from penstock._open.recognise import open_files
from penstock._printable import printable
from penstock.formats._inspection import Inspection
from penstock.stats._units import size

_WIDTH = 100  # the largest number of characters that are printed for a value


def run(path: str, samples: int, settings: dict[str, Any]) -> int:
    try:
        found = open_files(path, settings).inspect(samples)
    except (OSError, ValueError, ImportError, TypeError) as error:
        print(printable(f"penstock inspect: {error}", lines=True), file=sys.stderr)
        return 1
    print("\n".join(map(printable, lines(found))))
    return 0


def lines(found: Inspection) -> list[str]:
    amounts = [(found.samples, "sample"), (found.files, "file"), (found.blocks, "block")]
    counts = ", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in amounts)
    if found.blocks > 1 and found.block_samples is not None:
        fewest, most = found.block_samples
        plural = "" if most == 1 else "s"
        counts += f" of {most:,} sample{plural}" if fewest == most else f" of {fewest:,} to {most:,} samples"
    shown = [f"{found.format}: {counts}, {size(found.bytes)}"]
    rows = [(field.name or "(the sample)", field.dtype, _shape(field.shape)) for field in found.fields]
    if rows:
        rows.insert(0, ("field", "dtype", "shape or length"))
        first, second = (max(len(row[at]) for row in rows) for at in (0, 1))
        shown += ["", *(f"{name:{first}}  {dtype:{second}}  {shape}".rstrip() for name, dtype, shape in rows)]
    for number, sample in enumerate(found.first):
        shown += ["", f"sample {number}", *(f"  {line}" for line in _values(sample))]
    return shown


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if not shape else str(shape[0]) if len(shape) == 1 else str(shape)


def _values(sample: Any) -> list[str]:
    if isinstance(sample, dict):
        return [f"{name}: {_value(value)}" for name, value in sample.items()]
    if isinstance(sample, tuple):
        names = getattr(sample, "_fields", range(len(sample)))
        return [f"{name}: {_value(value)}" for name, value in zip(names, sample, strict=True)]
    return [_value(sample)]


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        some = ", ".join(map(str, value.reshape(-1)[:12].tolist()))
        return f"[{some}{', ...' if value.size > 12 else ''}]"
    if isinstance(value, dict):
        text = f"{{{', '.join(f'{name!r}: {_value(inner)}' for name, inner in value.items())}}}"
    else:
        text = str(value) if isinstance(value, np.generic) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
