"""The files people have, read by key: token files, lines, tar shards."""

from penstock.errors import FormatError
from penstock.formats._format import Format
from penstock.formats._inspection import FieldInfo, Inspection
from penstock.formats._lines import JsonLines, TextLines
from penstock.formats._megatron import Megatron
from penstock.formats._tar import Tar
from penstock.formats._tokens import Tokens

__all__ = ["FieldInfo", "Format", "FormatError", "Inspection", "JsonLines", "Megatron", "Tar", "TextLines", "Tokens"]
