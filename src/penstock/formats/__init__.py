"""The files people have, read by key: tables, token files, lines, tar shards."""

from penstock.errors import FormatError
from penstock.formats._arrow import Arrow
from penstock.formats._format import Format
from penstock.formats._huggingface import HuggingFace
from penstock.formats._inspection import FieldInfo, Inspection
from penstock.formats._lines import JsonLines, TextLines
from penstock.formats._megatron import Megatron
from penstock.formats._parquet import Parquet
from penstock.formats._tar import Tar
from penstock.formats._tokens import Tokens

__all__ = [
    "Arrow",
    "FieldInfo",
    "Format",
    "FormatError",
    "HuggingFace",
    "Inspection",
    "JsonLines",
    "Megatron",
    "Parquet",
    "Tar",
    "TextLines",
    "Tokens",
]
