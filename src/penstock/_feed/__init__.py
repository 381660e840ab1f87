"""Feeds: how a loader obtains its samples."""

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
    """Returns the feed for a dataset. `has_load` is True for a stream of light items."""
    kind = ByKey if not is_stream(dataset) else ByItem if has_load else ByStream
    return kind(dataset, options, borrow)
