"""An index of wids beside tars."""

from __future__ import annotations

import json
from functools import cache

from penstock.errors import FormatError
from penstock.formats import Tar
from tests.fuzz import scratch
from tests.fuzz.targets.tar_index import tars

ALLOWED = (FormatError,)
JSON = True


@cache
def seeds() -> list[bytes]:
    shards = [
        {"url": "one.tar", "nsamples": 3, "filesize": len(tars()["one.tar"])},
        {"url": "https://host/folder/two.tar?x=1", "nsamples": 3},
    ]
    return [json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}).encode()]


def attack(data: bytes) -> None:
    with scratch.files({"wids-meta.json": data, **tars()}) as folder:
        for name in tars():
            try:
                scratch.samples(Tar(str(folder / name)), ALLOWED)
            except ALLOWED:
                pass
