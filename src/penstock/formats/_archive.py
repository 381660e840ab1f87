"""Finds the members of a tar file by following their headers.

    a header:  512 bytes with name, size, kind and a checksum
    a member:  its header | its content | zeros up to a multiple of 512
    the end:   zeros

If a member's name is too long for its header, or is not ASCII, an extra member that holds the name comes first. The
kind of the extra member is L (GNU) or x (POSIX). The content of kind x consists of lines of the form
`length key=value`. Other modules reject compressed archives.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from penstock._files.local import AnyFile

HEADER = 512
_ZEROS = bytes(HEADER)
_ADLER = 65521
_LONGEST_NAME = 1 << 20  # the maximum size in bytes of a member that holds a name
_FILE, _FOLDER, _SPARSE = "a file", "a folder", "a sparse file"
_KINDS = {
    b"0": _FILE,
    b"\0": _FILE,
    b"7": _FILE,
    b"5": _FOLDER,
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": _SPARSE,
    b"V": "the name of a volume",
}
_GNU_NAME, _GNU_LINK, _GNU_SPARSE, _PAX, _PAX_FOR_ALL = b"L", b"K", b"S", b"x", b"g"


class TarPart(AnyFile):
    """A part of a tar file, in memory. Offsets count from the file's start; `size` is the part's end offset."""

    __slots__ = ("_raw", "_start")

    def __init__(self, file: AnyFile, raw: bytes, start: int) -> None:
        self.path, self._raw, self._start = file.path, raw, start
        self.size = start + len(raw)

    def read(self, start: int, length: int) -> bytes:
        return self._raw[start - self._start : start - self._start + length]


class Member(NamedTuple):
    """A member of a tar. `start`, `data` and `stop` are the offsets of its headers, its content and its end."""

    name: str
    kind: str
    start: int
    data: int
    size: int
    stop: int

    @property
    def is_file(self) -> bool:
        return self.kind == _FILE

    @property
    def is_folder(self) -> bool:
        return self.kind == _FOLDER


def is_archive(begin: bytes) -> bool:
    """True if these 512 bytes could be the start of a tar file."""
    return begin[257:262] == b"ustar" and len(begin) == HEADER


def member_at(archive: AnyFile, start: int) -> Member | None:
    """Returns the member at the offset `start`, or None at the archive's end. The member may be cut off."""
    at, long_name, pax = start, None, {}
    while True:
        if at + HEADER > archive.size:
            archive.refused(
                min(at, archive.size),  # the zeros after the last member may be cut off too
                "the archive ends here without the zeros that mark its end. The file is cut off, or its writer was "
                "not closed. To read what is there, append the mark: head -c 1024 /dev/zero >> FILE",
            )
        header = archive.read(at, HEADER)
        if header == _ZEROS:
            if at == start:
                return None
            archive.damaged(start, "a long name is not followed by its member")
        size = _checked(archive, at, header)
        code = header[156:157]
        data = at + HEADER
        if code not in (_GNU_NAME, _GNU_LINK, _PAX, _PAX_FOR_ALL):
            break
        if data + size > archive.size or size > _LONGEST_NAME:
            archive.damaged(at, f"a long name cannot have {size:,} bytes here")
        if code == _GNU_NAME:
            long_name = archive.read(data, size).partition(b"\0")[0]
        elif code == _PAX:
            pax = _pax_records(archive, data, size)
        at = data + _padded(size)
    name = (pax.get(b"path") or long_name or _name(header)).decode("utf-8", "surrogateescape")
    if b"size" in pax:
        size = _decimal(archive, at, pax[b"size"])
    more = code == _GNU_SPARSE and header[482]  # more headers follow, which describe the sparse file
    while more and data + HEADER <= archive.size:
        more = archive.read(data, HEADER)[504]
        data += HEADER
    kind = _KINDS.get(code)
    if kind is None:
        archive.refused(
            at, f"member {name!r} is of kind {code!r}, which penstock cannot read. Write a tar with plain files only"
        )
    if any(key.startswith(b"GNU.sparse") for key in pax):
        kind = _SPARSE
    elif kind == _FILE and name.endswith("/"):
        kind = _FOLDER
    if kind not in (_FILE, _SPARSE):
        size = 0  # the size of a link or folder is that of another file, or has no meaning
    return Member(name, kind, start, data, size, data + _padded(size))


def plain_member(name: str, start: int, data: int, size: int) -> Member:
    return Member(name, _FILE, start, data, size, data + _padded(size))


def check_complete(archive: AnyFile, member: Member) -> None:
    if member.data + member.size > archive.size:
        what = f"should have {member.size:,} bytes, but the file ends at byte {archive.size:,}"
        archive.damaged(member.start, f"member {member.name!r} {what}")


def _checked(archive: AnyFile, at: int, header: bytes) -> int:
    """Verifies the checksum of a header, and returns the size of its member."""
    try:
        stated = int(header[148:156].strip(b" \0"), 8)
    except ValueError:
        stated = -1
    # The sum of all bytes, with the bytes of the checksum itself counted as spaces. The lower half of Adler-32 is
    # this sum plus 1, modulo a prime. Computing it takes a fiftieth of the time that `sum` takes.
    found = (zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 32
    if stated < 0 or (stated - found) % _ADLER:
        what = "a member should begin here, but the checksum of its header is wrong"
        archive.damaged(at, "this is not a tar file: " + what if at == 0 else what)
    field = header[124:136]
    if field[0] in (0x80, 0xFF):  # too large for octal digits
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    else:
        try:
            size = int(field.strip(b" \0") or b"0", 8)
        except ValueError:
            size = -1
    if size < 0:
        archive.damaged(at, f"{field!r} is not the size of a member")
    return size


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_records(archive: AnyFile, start: int, size: int) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    content = archive.read(start, size)
    at = 0
    while at < size and content[at]:
        digits, _, _ = content[at : at + 12].partition(b" ")
        length = _decimal(archive, start + at, digits)
        key, equals, value = content[at + len(digits) + 1 : at + length].partition(b"=")
        if not equals or not value.endswith(b"\n") or at + length > size:
            archive.damaged(start + at, "a line of a POSIX header should be here, but is not")
        records[key] = value[:-1]
        at += length
    return records


def _decimal(archive: AnyFile, at: int, digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 19:
        archive.damaged(at, f"{digits[:20]!r} is not a length")
    return int(digits)


def _padded(size: int) -> int:
    return -(-size // HEADER) * HEADER
