"""DALI's `.idx` beside a tar."""

from __future__ import annotations

from functools import cache

from penstock._files.local import File
from penstock.errors import FormatError
from penstock.formats import Tar
from penstock.formats._archive import member_at
from penstock.formats._samples import split_name
from tests.fuzz import scratch
from tests.fuzz.targets import tar

ALLOWED = (FormatError,)


@cache
def seeds() -> list[bytes]:
    return [_index(3), _index(4)]


def _index(width: int) -> bytes:
    lines: dict[str, list[str]] = {}
    with scratch.files({"some.tar": tar.seeds()[2]}) as folder:
        file, at = File(str(folder / "some.tar")), 0
        while (member := member_at(file, at)) is not None:
            split, at = split_name(member), member.stop
            if split is not None:
                name = [member.name] if width == 4 else []
                lines.setdefault(split[0], []).append(" ".join([split[1], str(member.data), str(member.size), *name]))
    text = [f"v1.{width - 2} {len(lines)}", *(" ".join(each) for each in lines.values())]
    return "\n".join(text).encode() + b"\n"


def attack(data: bytes) -> None:
    with scratch.files({"some.idx": data, "some.tar": tar.seeds()[2]}) as folder:
        scratch.samples(Tar(str(folder / "some.tar")), ALLOWED)
