"""The files people have, read by key: tables, token files, lines, tar shards.

All formats take local paths and URLs. Four keywords are about files of URLs, and have no effect on local files:

- `storage`: options of the library that reads URLs, such as `{"region": "eu-central-1"}` (docs/remote.md).
- `cache`: the folder in which pieces of the files are kept for all processes of this machine; by default the cache
  folder of penstock. With `cache=False`, each process keeps the last 128 MB of pieces in its memory (docs/cache.md).
- `cache_bytes`: the most that the folder takes; by default half of the free space of its disk, at most 100 GB.
- `cache_shared`: whether members of the folder's group may use the folder too. They could change your samples
  (docs/cache.md#a-folder-for-a-team). By default it is yours alone.
"""

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
from penstock.formats._uncounted import UncountedTar

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
    "UncountedTar",
]
