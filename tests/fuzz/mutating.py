"""Mutation: of bytes, of numbers in them, of JSON."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Where code often forgets something: ends of ranges, sizes of pages and headers, signs.
_EDGES = (
    0,
    1,
    2,
    3,
    7,
    8,
    16,
    255,
    256,
    511,
    512,
    4095,
    4096,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
)
_LARGE = (2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1)
_FORMS = ("<B", "<H", "<I", "<Q", ">I", ">Q")
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**62,
        2**63,
        2**64,
        10**30,
        1e308,
        float("nan"),
        float("inf"),
        0.5,
    ),
    *("", "x", "\ud800", "\x1b[2J", "../../etc/passwd", "1" * 5000, "é"),
    *([], {}, [[]], [None], {"": 0}, [0] * 20),
)


def mutated(rng: random.Random, module: ModuleType, seeds: list[bytes], most: int = 1 << 16) -> bytes:
    """A mutation of one of the seeds, mostly with checksums that are right again."""
    data = rng.choice(seeds)
    if getattr(module, "JSON", False) and rng.random() < 0.7:
        data = of_json(rng, data)
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            data = rng.choice(_MUTATIONS)(rng, data, rng.choice(seeds))
    return mended(rng, module, data[:most])


def mended(rng: random.Random, module: ModuleType, data: bytes) -> bytes:
    mend = getattr(module, "mended", None)
    if mend is not None and rng.random() < 0.9:
        made: bytes = mend(data)
        return made
    return data


def _place(rng: random.Random, data: bytes) -> int:
    """Any, but mostly near the beginning or the end, where headers are."""
    size = len(data) + 1
    near = rng.randrange(min(size, rng.choice((16, 64, 512))))
    return rng.choice((rng.randrange(size), near, size - 1 - near))


def _flip(rng: random.Random, data: bytes, _: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    changed[min(_place(rng, data), len(changed) - 1)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _byte(rng: random.Random, data: bytes, _: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    changed[min(_place(rng, data), len(changed) - 1)] = rng.choice((0, 255, 128, 127, rng.randrange(256)))
    return bytes(changed)


def _number(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A number at an even place becomes one of the ends of ranges, or a little more or less."""
    form = struct.Struct(rng.choice(_FORMS))
    if len(data) < form.size:
        return data
    at = min(_place(rng, data) & ~1, len(data) - form.size)
    (now,) = form.unpack_from(data, at)
    wanted = rng.choice(
        (now + rng.randrange(-9, 10), -now, now * 2, rng.choice(_EDGES), rng.choice(_LARGE), len(data))
    )
    return data[:at] + form.pack(wanted % (1 << 8 * form.size)) + data[at + form.size :]


def _digits(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """A number in text becomes another."""
    places = [at for at, letter in enumerate(data[: 1 << 14]) if 48 <= letter <= 57]
    if not places:
        return _byte(rng, data, b"")
    at = rng.choice(places)
    stop = at + 1
    while stop < len(data) and 48 <= data[stop] <= 57:
        stop += 1
    now = int(data[at:stop][:18])
    said = rng.choice(
        (str(now + 1), str(now - 1), "-1", "0", str(2**63), "9" * 19, "9" * 5000, "00", "7" * (stop - at))
    )
    return data[:at] + said.encode() + data[stop:]


def _cut(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: _place(rng, data)]


def _remove(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + data[at + rng.choice((1, 4, 8, 64, 512)) :]


def _repeat(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at, size = _place(rng, data), rng.choice((1, 8, 64, 512, 4096))
    return data[: at + size] + data[at : at + size] * rng.choice((1, 2, 50)) + data[at + size :]


def _insert(rng: random.Random, data: bytes, _: bytes) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 8, 64))) + data[at:]


def _move(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A part of this, or of another seed, replaces another part."""
    size = rng.choice((1, 8, 64, 512, 4096))
    source, to = _place(rng, other), _place(rng, data)
    part = other[source : source + size]
    return data[:to] + part + data[to + len(part) :]


_MUTATIONS: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    *(_flip, _byte, _number, _number, _number, _digits, _cut, _remove, _repeat, _insert, _move),
)


def of_json(rng: random.Random, data: bytes) -> bytes:
    """The data with some values changed in the JSON that it has, from its first bracket on."""
    begin = min((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), default=0)
    try:
        value, end = json.JSONDecoder().raw_decode(data.decode("latin-1"), begin)
    except (ValueError, RecursionError):
        return _byte(rng, data, b"")
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = _changed(rng, value)
    return data[:begin] + json.dumps(value).encode("latin-1") + data[end:]


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        what = rng.random()
        if what < 0.1:
            return {name: inner for name, inner in value.items() if name != key}
        if what < 0.15:
            return {**value, rng.choice(("x", "", *value)): rng.choice(_VALUES)}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        what = rng.random()
        if what < 0.1:
            return value[:at] + value[at + 1 :]
        if what < 0.2:
            return [*value, value[at]]
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, -value, value * 2, rng.choice(_EDGES), rng.choice(_LARGE)))
    return rng.choice(_VALUES)
