"""Lists the objects below a folder of a store, many pages at a time.

S3 lists 1,000 objects per page, and each request needs the last name of the previous page. So a million objects would
take 1,000 requests, one after another. But a page may start after any name, even if no object has that name. So, if
the store sorts objects, the names after a page are divided into ranges, which are listed at the same time. For
example, if a page ends with `part-000999`, the next ranges start at `part-01`, `part-02`, ..., `part-1`, `part-2`,
and so on. Long ranges are divided again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from penstock._remote.parallel import Pause, in_parallel
from penstock._remote.store import IN_FLIGHT, Remote, StoredObject

_PAGES = 4  # pages of a range that are listed before it is divided again
_POSITIONS = 2  # positions in a name at which ranges begin
_HEX = re.compile(r"[0-9a-f]{8}")

NameRange = tuple[str, str]
"""The names after the first string, up to and including the second. An empty string means no limit."""


def listed(remote: Remote, folder: str) -> Iterator[list[StoredObject]]:
    """Yields lists that together contain all objects below a folder, in no particular order."""
    if not remote.sorts:
        yield from (page.objects for page in remote.below(folder, True))
        return
    ranges: list[NameRange] = [("", "")]
    pages = 1  # one page is often all
    while ranges:
        found = in_parallel(partial(_some, remote, folder, pages), ranges, IN_FLIGHT)
        ranges = []
        for objects, rest in found:
            yield objects
            ranges += rest
        pages = _PAGES


def _some(
    remote: Remote, folder: str, pages: int, limits: NameRange, pause: Pause
) -> tuple[list[StoredObject], list[NameRange]]:
    """Returns the objects in the first `pages` pages of a range, and ranges that cover the rest of this range."""
    after, until = limits
    objects: list[StoredObject] = []
    for page in remote.below(folder, True, after, pause):
        inside = [each for each in page.objects if not until or each.key <= until]
        objects += inside
        if len(inside) < len(page.objects):
            return objects, []
        pages -= 1
        if pages <= 0 and inside:
            last = inside[-1].key
            return objects, list(pairwise([last, *cuts(last, until, len(folder)), until]))
    return objects, []


def cuts(last: str, until: str, begin: int) -> list[str]:
    """Returns sorted names between `last` and `until` at which a listing can be split into ranges."""
    while begin < min(len(last), len(until)) and last[begin] == until[begin]:
        begin += 1
    found: list[list[str]] = []
    for at in range(begin, len(last)):
        if not last[at].isdigit():
            continue
        digits = "0123456789" + ("abcdef" if _HEX.match(last, max(begin, at - 7)) else "")
        # A prefix of `last`, followed by a digit that is greater than the next character of `last`.
        here = [last[:at] + digit for digit in digits if digit > last[at]]
        here = [name for name in here if not until or name < until]
        if here:
            found.append(here)
        if len(found) == _POSITIONS:
            break
    return [name for here in reversed(found) for name in here]
