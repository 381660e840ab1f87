"""Feeds: how a loader obtains its samples.

There is a feed for samples that are fetched by key, one for samples from a stream, and one for streams of light
items, from which workers load the samples.
"""

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
    """Returns the feed for a dataset.

    `has_load` is True if the dataset is a stream of light items, and its `load()` makes the samples from them.
    """
    kind = ByKey if not is_stream(dataset) else ByItem if has_load else ByStream
    return kind(dataset, options, borrow)
