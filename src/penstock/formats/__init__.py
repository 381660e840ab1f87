"""The files people have, read by key: token files, lines, tar shards."""

from penstock.errors import FormatError
from penstock.formats._format import Format
from penstock.formats._inspection import FieldInfo, Inspection

__all__ = ["FieldInfo", "Format", "FormatError", "Inspection"]
