"""Formats are datasets that read samples from files by key.

They read tables, token files, lines, tar shards, and files in formats of your own. All formats accept local paths and
URLs. They also accept these keyword arguments for remote files, which have no effect on local files:

- `storage`: options for the library that reads URLs, such as `{"region": "eu-central-1"}` (docs/remote.md).
- `cache`: the folder in which pieces of the files are kept, shared by all processes on this machine. The default is
  penstock's cache folder. With `cache=False`, each process keeps the last 128 MB of pieces in its own memory
  (docs/cache.md).
- `cache_bytes`: the maximum size of the cache folder, in bytes. The default is half of the free space on the disk,
  but at most 100 GB.
- `cache_shared`: True if members of the folder's group may use the folder too. They could then change your samples
  (docs/cache.md#a-folder-for-a-team). By default, only you can use the folder.

All formats except `Tokens`, whose samples have the length that you specify, also accept:

- `max_sample_bytes`: the maximum size of a sample in memory, in bytes. A larger sample raises an error. The default
  is 2 GiB, and None means no limit (docs/formats.md#samples-that-are-too-large).
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
