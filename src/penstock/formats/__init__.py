"""Formats, which read the samples of files by key: tables, token files, lines, tar shards, and formats of your own.

All formats take local paths and URLs, and these keywords about remote files, which have no effect on local ones:

- `storage`: options of the library that reads URLs, such as `{"region": "eu-central-1"}` (docs/remote.md).
- `cache`: the folder in which pieces of the files are kept for all processes of this machine; by default the cache
  folder of penstock. With `cache=False`, each process keeps the last 128 MB of pieces in its memory (docs/cache.md).
- `cache_bytes`: the most bytes in that folder; by default half of the free space of its disk, at most 100 GB.
- `cache_shared`: whether members of the folder's group may use the folder too. They could change your samples
  (docs/cache.md#a-folder-for-a-team). By default it is yours alone.

All but `Tokens`, whose samples have the length that you give, also take:

- `max_sample_bytes`: the most bytes that a sample may have in memory, by default 2 GiB; a larger one raises an error.
  None for no limit (docs/formats.md#samples-that-are-too-large).
"""

from penstock._files.access import FileOptions
from penstock._files.local import AnyFile
from penstock.errors import FormatError
from penstock.formats._arrow import Arrow
from penstock.formats._blocks import Blocks
from penstock.formats._decoders import ShapedDecoder
from penstock.formats._extents import Extents
from penstock.formats._format import FileRows, Format
from penstock.formats._huggingface import HuggingFace
from penstock.formats._inspection import FieldInfo, Inspection
from penstock.formats._lines import JsonLines, TextLines
from penstock.formats._litdata import LitData
from penstock.formats._mds import MDS
from penstock.formats._megatron import Megatron
from penstock.formats._parquet import Parquet
from penstock.formats._registry import register, unregister
from penstock.formats._tar import Tar
from penstock.formats._tfrecord import TFRecord
from penstock.formats._tokens import Tokens
from penstock.formats._uncounted import UncountedTar
from penstock.plan._forecast import Forecast

__all__ = [
    "MDS",
    "AnyFile",
    "Arrow",
    "Blocks",
    "Extents",
    "FieldInfo",
    "FileOptions",
    "FileRows",
    "Forecast",
    "Format",
    "FormatError",
    "HuggingFace",
    "Inspection",
    "JsonLines",
    "LitData",
    "Megatron",
    "Parquet",
    "ShapedDecoder",
    "TFRecord",
    "Tar",
    "TextLines",
    "Tokens",
    "UncountedTar",
    "register",
    "unregister",
]
