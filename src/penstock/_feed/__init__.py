"""Feeds: how a loader obtains its samples: by key, from a stream, or by loading the light items of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock._feed.base import Borrow, Feed
from penstock._feed.keys import ByKey
from penstock._feed.stream import ByItem, ByStream
from penstock.source._dataset import is_stream

if TYPE_CHECKING:
    from penstock._options import Options

__all__ = ["Feed", "feed_of"]


def feed_of(dataset: Any, options: Options, has_load: bool, borrow: Borrow | None = None) -> Feed:
    """`has_load`: the dataset is a stream whose items are turned into samples by its `load()` method."""
    kind = ByKey if not is_stream(dataset) else ByItem if has_load else ByStream
    return kind(dataset, options, borrow)
