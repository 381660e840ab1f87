"""Lists the objects below a folder of a store, many pages at a time.

A page of S3 has 1,000 objects, and the next one can be asked for only after it: a million objects would take 1,000
requests one after another. But a page may begin after any name, whether there is such an object or not. So, where the
store sorts, the names after a page are cut into ranges that are listed at once: after `part-000999` these begin at
`part-01`, `part-02`, ..., `part-1`, `part-2`, .... A range that turns out to be long is cut again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from penstock._remote.parallel import Pause, in_parallel
from penstock._remote.store import IN_FLIGHT, Remote, StoredObject

_PAGES = 4  # of a range before it is cut again
_POSITIONS = 2  # at which names are cut
_HEX = re.compile(r"[0-9a-f]{8}")

NameRange = tuple[str, str]
"""Names greater than the first, up to the second; "" is no limit."""


def listed(remote: Remote, folder: str) -> Iterator[list[StoredObject]]:
    """All objects below a folder, in lists, in no order."""
    if not remote.sorts:
        yield from (page.objects for page in remote.below(folder, True))
        return
    ranges: list[NameRange] = [("", "")]
    pages = 1  # few objects need no cuts
    while ranges:

        def some(each: NameRange, pause: Pause, pages: int = pages) -> tuple[list[StoredObject], list[NameRange]]:
            return _some(remote, folder, each, pages, pause)

        found = in_parallel(some, ranges, IN_FLIGHT)
        ranges = []
        for objects, rest in found:
            yield objects
            ranges += rest
        pages = _PAGES


def _some(
    remote: Remote, folder: str, limits: NameRange, pages: int, pause: Pause
) -> tuple[list[StoredObject], list[NameRange]]:
    """The objects of the first pages of a range, and the ranges that are left."""
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
    """Names between the two at which the objects after `last` may be cut, in order.

    They differ from `last` in a digit after the first `begin` letters; of names that look hexadecimal, also in a-f.
    """
    while begin < min(len(last), len(until)) and last[begin] == until[begin]:
        begin += 1
    found: list[list[str]] = []
    for at in range(begin, len(last)):
        if not last[at].isdigit():
            continue
        digits = "0123456789" + ("abcdef" if _HEX.match(last, max(begin, at - 7)) else "")
        here = [last[:at] + digit for digit in digits if digit > last[at]]
        here = [name for name in here if not until or name < until]
        if here:
            found.append(here)
        if len(found) == _POSITIONS:
            break
    return [name for here in reversed(found) for name in here]
